"""Calls that read a queue for a backup and write it back (``lua/features/backup/functions``).

Names and values are bytes: a record may contain fields that are not text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgpack

from glidemq_py._core.calls import Argument, Flag, call, declared

_msgpack: Any = msgpack  # it has no type annotations

RowT = TypeVar("RowT", bound=tuple[Any, ...])
Flat: TypeAlias = Sequence[bytes]


class BackupFacts(NamedTuple):
    """Facts about a queue before it is read."""

    now: int
    """Time of the server, epoch ms."""
    broadcast: int
    """1 = subscriptions read its stream."""
    features: str
    """Features of the queue that older builds reject, separated by commas."""


@declared("backed_up_job")
class BackedUpJob(NamedTuple):
    """The record of a job."""

    id: bytes
    due: bytes
    """Score in the scheduled set; empty if the job is not in it."""
    fields: list[bytes]
    """Fields and values, flat."""


@declared("backed_up_key")
class BackedUpKey(NamedTuple):
    """A page of another key of the queue."""

    suffix: bytes
    """Part of the key's name after the stem of the queue."""
    kind: bytes
    """string, hash, list, set, zset or stream."""
    ttl: int
    """Remaining time to live, ms; -1 = none."""
    content: list[bytes]
    """Elements, as the server's own commands return them, flat."""


@declared("restored_key")
class RestoredKey(NamedTuple):
    """A page of a key to write."""

    suffix: bytes
    kind: bytes
    ttl: int
    content: Sequence[bytes]
    first: int
    """1 = no earlier page of this restore belongs to the key."""


@declared("placed_job")
class PlacedJob(NamedTuple):
    """An unfinished job to be placed."""

    id: bytes
    due: bytes


class JobsRead(NamedTuple):
    """Records of jobs."""

    rows: list[Any]
    taken: int
    """How many of the ids were read."""
    deferred: list[bytes]
    """Ids of jobs with children, which are read last."""
    used: int
    """CPU time of the server, microseconds."""
    large: list[bytes]
    """Ids of jobs with very many fields, whose records are read as other keys."""


class KeysRead(NamedTuple):
    """Pages of other keys."""

    rows: list[Any]
    taken: int
    """How many keys were read to their end."""
    cursor: bytes
    """Where the next key continues; empty = at its start."""
    used: int
    """CPU time of the server, microseconds."""


class RestoreBegun(NamedTuple):
    """Whether a restore may write."""

    status: str
    """ok, again, other or live."""
    detail: str


def unpack_bytes(packed: bytes) -> Any:
    """Unpack MessagePack without decoding text.

    Raises:
        ValueError: If it is malformed.
    """
    return _msgpack.unpackb(packed, raw=True, strict_map_key=False)


def _reader(kind: type[RowT]) -> Callable[[bytes], RowT]:
    def read(reply: bytes) -> RowT:
        return kind(*unpack_bytes(reply))

    return read


@call("backup_facts", repeatable=True)
def backup_facts() -> BackupFacts:
    """Return the time of the server, the kind of the queue and its features."""
    ...


@call("backup_jobs", read=_reader(JobsRead), repeatable=True)
def backup_jobs(ids: Sequence[str], *, parents: Flag) -> JobsRead:
    """Read records; those of jobs with children only if ``parents`` is True."""
    ...


@call("backup_keys", read=_reader(KeysRead), repeatable=True)
def backup_keys(suffixes: Sequence[str], cursor: bytes) -> KeysRead:
    """Read other keys, the first from the cursor on."""
    ...


@call("restore_begin", repeatable=True)
def restore_begin(backup: str, features: str, last: int) -> RestoreBegun:
    """Begin to restore a backup, or continue an interrupted restore of it."""
    ...


@call("restore_keys")
def restore_keys(backup: str, rows: Sequence[RestoredKey]) -> int:
    """Write keys. Not repeatable: an append could be made twice."""
    ...


@call("restore_jobs", repeatable=True)
def restore_jobs(backup: str, rows: Sequence[BackedUpJob]) -> int:
    """Write records that do not exist, and place the finished jobs. Return how many were written."""
    ...


@call("restore_place", repeatable=True)
def restore_place(backup: str, rows: Sequence[PlacedJob]) -> int:
    """Place unfinished jobs in this order. Return how many were placed; a placed job is not placed again."""
    ...


@call("restore_groups", repeatable=True)
def restore_groups(backup: str, names: Sequence[str]) -> int:
    """Start parked jobs of ordering groups. Return how many were started."""
    ...


@call("restore_end", repeatable=True)
def restore_end(backup: Argument[str]) -> int:
    """End a restore."""
    ...
