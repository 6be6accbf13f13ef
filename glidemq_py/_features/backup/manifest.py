"""The manifest of a backup, which lists its contents with checksums, the reading of its parts, and the server calls."""

from __future__ import annotations

import hashlib
import io
import json
import re
import secrets
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgpack

from glidemq_py._core.calls import Argument, Flag, call, declared
from glidemq_py.errors import BackupError

FORMAT: Final = 1
PARTITIONED: Final = 2
"""Format of the backup of a partitioned queue, which earlier releases would take for that of a plain one."""
_ID: Final = re.compile(r"(\d{8}T\d{6}\.\d{3})Z-[0-9a-f]{8}")
_TIME: Final = "%Y%m%dT%H%M%S.%f"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupPart:
    """A file of a backup.

    Attributes:
        name: name of the file.
        size: its size, bytes.
        sha256: its checksum, hexadecimal.
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedUpPartition:
    """One partition of a queue in a backup.

    Attributes:
        name: its name as a queue.
        jobs: number of jobs.
        keys: number of other keys.
        last_id: highest generated job id.
        features: features that older builds reject, separated by commas.
        parts: names of its files.
    """

    name: str
    jobs: int
    keys: int
    last_id: int
    features: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupInfo:
    """A complete backup of a queue.

    Attributes:
        id: its id, which begins with the UTC time of its start; ids of one queue are in the order of their starts.
        queue: name of the queue.
        prefix: prefix of its keys.
        started: when reading began, epoch ms, by the server's clock.
        ended: when reading ended.
        jobs: number of jobs.
        keys: number of other keys, such as logs, groups and schedulers.
        size: size of the parts, bytes (compressed).
        last_id: highest generated job id.
        features: features of the queue that older builds reject, separated by commas.
        parts: the files.
        partitions: the partitions of the queue, by their numbers; empty if it has none.
        counts: of a partitioned queue, the number of partitions; more numbers if it was being changed by a version that
            could do that.
    """

    id: str
    queue: str
    prefix: str
    started: int
    ended: int
    jobs: int
    keys: int
    size: int
    last_id: int
    features: str
    parts: tuple[BackupPart, ...]
    partitions: tuple[BackedUpPartition, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def sections(self) -> list[BackupInfo]:
        """The backup of each partition, as that of a queue with its name; of a queue without partitions, its own."""
        if not self.partitions:
            return [self]
        files = {part.name: part for part in self.parts}
        return [
            replace(
                self,
                queue=each.name,
                jobs=each.jobs,
                keys=each.keys,
                last_id=each.last_id,
                features=each.features,
                parts=tuple(files[name] for name in each.parts),
                partitions=(),
                counts=(),
            )
            for each in self.partitions
        ]

    def to_json(self) -> bytes:
        """Return the manifest as stored."""
        content = {"format": PARTITIONED if self.partitions else FORMAT, **asdict(self)}
        if not self.partitions:
            del content["partitions"], content["counts"]
        return json.dumps({**content, "sha256": _checksum(content)}, indent=1).encode()


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_manifest(text: bytes, backup: str = "") -> BackupInfo:
    """Return the backup that a manifest describes.

    Args:
        text: The manifest.
        backup: Id of the backup, for error messages: a damaged manifest may contain a wrong one.

    Raises:
        BackupError: If it is damaged, or written by a later release in another format.
    """
    try:
        content: dict[str, Any] = json.loads(text)
        found, name = content.pop("sha256"), backup or content.get("id")
        if content["format"] not in (FORMAT, PARTITIONED):
            known = f"formats {FORMAT} and {PARTITIONED}"
            raise BackupError(f"backup {name!r} has format {content['format']!r}; this release reads {known}")
        if found != _checksum(content):
            raise BackupError(f"the manifest of backup {name!r} is damaged: its checksum differs")
        del content["format"]
        parts = tuple(BackupPart(**part) for part in content.pop("parts"))
        partitions: list[dict[str, Any]] = content.pop("partitions", [])
        for each in partitions:
            each["parts"] = tuple(each["parts"])
        info = BackupInfo(**content, parts=parts, partitions=tuple(BackedUpPartition(**each) for each in partitions))
        return replace(info, counts=tuple(info.counts))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise BackupError(f"the manifest of backup {backup!r} is damaged: {reason}") from error


def new_backup_id(now: int) -> str:
    """Return a new id for a backup that starts at ``now`` (epoch ms)."""
    time = datetime.fromtimestamp(now // 1000, UTC).strftime("%Y%m%dT%H%M%S")
    return f"{time}.{now % 1000:03}Z-{secrets.token_hex(4)}"


def time_of(backup: str) -> int | None:
    """Return the start of a backup with this id, epoch ms; None if the text is no id of a backup."""
    found = _ID.fullmatch(backup)
    if found is None:
        return None
    return round(datetime.strptime(found[1], _TIME).replace(tzinfo=UTC).timestamp() * 1000)


PART_BYTES_MOST: Final = 512 * 1024 * 1024
"""Size of a part after decompression that no backup reaches."""
LARGE: Final = b"job:"
"""Beginning of the keys of records with very many fields, which are read as other keys."""
_GZIP: Final = 31
_msgpack: Any = msgpack  # it has no type annotations


def chunks(path: Path, backup: str) -> Iterator[tuple[bytes, list[Any]]]:
    """Yield the rows of a part in pieces, each with its kind: ``jobs`` or ``keys``. Raises BackupError."""
    try:
        inflating = zlib.decompressobj(wbits=_GZIP)
        content = inflating.decompress(path.read_bytes(), PART_BYTES_MOST)
        if not inflating.eof:
            raise ValueError(f"it is truncated, or larger than {PART_BYTES_MOST:,} bytes")
        unpacker = _msgpack.Unpacker(
            io.BytesIO(content), raw=True, strict_map_key=False, max_buffer_size=PART_BYTES_MOST
        )
        for kind, rows in unpacker:
            yield kind, [_ROWS[kind](*row) for row in rows if kind in _ROWS]
    except (ValueError, TypeError, zlib.error, msgpack.UnpackException) as error:
        raise BackupError(f"part {path.name} of backup {backup!r} is damaged: {error}") from error


def number_of(text: bytes | None) -> float:
    """Return the number in a field; 0 if it has none."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


# -- calls --------------------------------------------------------------------------------------------------


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


_ROWS: Final[dict[bytes, Any]] = {b"jobs": BackedUpJob, b"keys": BackedUpKey}
