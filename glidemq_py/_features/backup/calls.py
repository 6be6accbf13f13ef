"""Calls that read a queue for a backup and write it back (``lua/features/backup/functions``).

Names and values are bytes: a record may contain fields that are not text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgpack

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader

_msgpack: Any = msgpack  # it has no type annotations

RowT = TypeVar("RowT", bound=tuple[Any, ...])
Flat: TypeAlias = Sequence[bytes]


@declared("backup_facts_reply")
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


@declared("backup_jobs_reply")
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


@declared("backup_keys_reply")
class KeysRead(NamedTuple):
    """Pages of other keys."""

    rows: list[Any]
    taken: int
    """How many keys were read to their end."""
    cursor: bytes
    """Where the next key continues; empty = at its start."""
    used: int
    """CPU time of the server, microseconds."""


@declared("restore_begin_reply")
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


def backup_facts(meta: str) -> Call[BackupFacts]:
    """Return the time of the server, the kind of the queue and its features."""
    return Call("backup_facts", meta, (), reader(BackupFacts))


def backup_jobs(meta: str, ids: Sequence[str], *, parents: bool) -> Call[JobsRead]:
    """Read records; those of jobs with children only if ``parents`` is True."""
    arguments = requests.backup_jobs(ids=ids, parents=int(parents))
    return Call("backup_jobs", meta, arguments, _reader(JobsRead))


def backup_keys(meta: str, suffixes: Sequence[str], cursor: bytes) -> Call[KeysRead]:
    """Read other keys, the first from the cursor on."""
    arguments = requests.backup_keys(suffixes=suffixes, cursor=cursor)
    return Call("backup_keys", meta, arguments, _reader(KeysRead))


def restore_begin(meta: str, backup: str, features: str, last: int) -> Call[RestoreBegun]:
    """Begin to restore a backup, or continue an interrupted restore of it."""
    arguments = requests.restore_begin(backup=backup, features=features, last=last)
    return Call("restore_begin", meta, arguments, reader(RestoreBegun))


def restore_keys(meta: str, backup: str, rows: Sequence[RestoredKey]) -> Call[int]:
    """Write keys. Not repeatable: an append could be made twice."""
    return Call("restore_keys", meta, requests.restore_keys(backup=backup, rows=rows), int)


def restore_jobs(meta: str, backup: str, rows: Sequence[BackedUpJob]) -> Call[int]:
    """Write records that do not exist, and place the finished jobs. Return how many were written."""
    return Call("restore_jobs", meta, requests.restore_jobs(backup=backup, rows=rows), int)


def restore_place(meta: str, backup: str, rows: Sequence[PlacedJob]) -> Call[int]:
    """Place unfinished jobs in this order. Return how many were placed; a placed job is not placed again."""
    return Call("restore_place", meta, requests.restore_place(backup=backup, rows=rows), int)


def restore_groups(meta: str, backup: str, names: Sequence[str]) -> Call[int]:
    """Start parked jobs of ordering groups. Return how many were started."""
    return Call("restore_groups", meta, requests.restore_groups(backup=backup, names=names), int)


def restore_end(meta: str, backup: str) -> Call[int]:
    """End a restore."""
    return Call("restore_end", meta, requests.restore_end(backup=backup), int)
