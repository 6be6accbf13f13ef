"""Calls of leases besides `exchange`: extending, releasing all leases of an owner, and ending those that are over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from glidemq_py._core.calls import call, declared

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


class ExtendReply(NamedTuple):
    """Reply of `extend_leases`."""

    now: int
    statuses: list[int]
    deadlines: list[int]
    """Epoch ms; 0 if the lease is lost."""


class ReleaseReply(NamedTuple):
    """Reply of `release_leases`."""

    released: int
    cursor: str


class EndReply(NamedTuple):
    """Reply of `end_leases`."""

    recovered: list[str]
    """Ids of the jobs that will run again."""
    failed: list[str]
    wait: int
    """Milliseconds until the next lease is over; -1 = none is left."""
    outbox_pending: int
    """1 = there are entries for other queues."""


@call("extend_leases", repeatable=True)
def extend_leases(duration: int, leases: Sequence[Leased]) -> ExtendReply:
    """Extend leases: they end ``duration`` ms from now."""
    ...


@call("release_leases", repeatable=True)
def release_leases(owner: str, cursor: str, quiet: bool) -> ReleaseReply:
    """Release leases of an owner, reading those of the queue from ``cursor`` ('' = the first) on."""
    ...


@call("end_leases", repeatable=True)
def end_leases(quiet: bool) -> EndReply:
    """End leases that are over, at most 100, the oldest first."""
    ...
