"""Calls of leases besides `exchange`: extending, releasing all leases of an owner, and ending those that are over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader

CONSUMER: Final = "leases"
"""Consumer of all leases of a queue (``lua/features/leases/leases.lua``)."""


@declared("leased")
class Leased(NamedTuple):
    """A lease: its job and fencing token, and the end of the job's timeout (epoch ms; 0 = none)."""

    id: str
    entry: str
    fence: int
    processed_on: int
    limit: int


@declared("extend_leases_reply")
class ExtendReply(NamedTuple):
    """Reply of `extend_leases`."""

    now: int
    statuses: list[int]
    deadlines: list[int]
    """Epoch ms; 0 if the lease is lost."""


@declared("release_leases_reply")
class ReleaseReply(NamedTuple):
    """Reply of `release_leases`."""

    released: int
    cursor: str


@declared("end_leases_reply")
class EndReply(NamedTuple):
    """Reply of `end_leases`."""

    recovered: list[str]
    """Ids of the jobs that will run again."""
    failed: list[str]
    wait: int
    """Milliseconds until the next lease is over; -1 = none is left."""
    outbox_pending: int
    """1 = there are entries for other queues."""


def extend_leases(meta: str, duration: int, leases: Sequence[Leased]) -> Call[ExtendReply]:
    """Extend leases: they end ``duration`` ms from now."""
    arguments = requests.extend_leases(duration=duration, leases=leases)
    return Call("extend_leases", meta, arguments, reader(ExtendReply))


def release_leases(meta: str, owner: str, cursor: str, quiet: bool) -> Call[ReleaseReply]:
    """Release leases of an owner, reading those of the queue from ``cursor`` ('' = the first) on."""
    arguments = requests.release_leases(owner=owner, cursor=cursor, quiet=quiet)
    return Call("release_leases", meta, arguments, reader(ReleaseReply))


def end_leases(meta: str, quiet: bool) -> Call[EndReply]:
    """End leases that are over, at most 100, the oldest first."""
    arguments = requests.end_leases(quiet=quiet)
    return Call("end_leases", meta, arguments, reader(EndReply))
