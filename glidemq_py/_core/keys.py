"""Names of queues and jobs, and of the keys of a queue; docs/reference/data-model.md describes their contents.

Every key contains the queue's name in braces, the hash tag of the cluster: all keys of a queue are in one slot. Keys
that glide-mq for Node does not have are marked; they avoid the patterns that Node peers SCAN (`job:*`, `w:*`,
`group:*`).
"""

from __future__ import annotations

import re
import zlib
from binascii import crc_hqx
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Final, Literal

from glidemq_py._core.checks import check_text
from glidemq_py.errors import GlideMQValidationError, show_value

DEFAULT_PREFIX: Final = "glide"
CONSUMER_GROUP: Final = "workers"
"""Consumer group of the workers on the job stream."""

SLOTS: Final = 16_384
"""Hash slots of a cluster."""

OWED: Final = (
    "batches", "flows", "group-watch", "leases", "list-active-ids", "list-heartbeats", "list-popped", "outbox",
    "parents-left", "ratelimited", "remote-children", "remote-parents", "stall-watch", "suspects", "suspended",
    "waiting-children", "writes",
)  # fmt: skip
"""Ends of the keys that show that maintenance is owed to a queue, besides pending entries and the failure policy."""


def hash_tag(text: str | bytes) -> str | None:
    """Return the hash tag of a key (the text in its first braces), or None if it has none."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    _, opened, rest = text.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed and tag else None


def hash_slot(tag: str) -> int:
    """Return the cluster slot, 0 to 16,383, of keys with this hash tag, or of a key without one."""
    return crc_hqx(tag.encode("utf-8", "surrogateescape"), 0) % SLOTS


class QueueKeys:
    """Key names of one queue.

    Args:
        prefix: first part of every key; "glide" is the default of the package.
        name: name of the queue.

    Raises:
        GlideMQValidationError: `prefix` or `name` is invalid.
    """

    def __init__(self, prefix: str, name: str) -> None:
        self.prefix: Final = validate_prefix(prefix)
        self.name: Final = validate_queue_name(name)
        self.base: Final = f"{prefix}:{{{name}}}"
        """Such as `glide:{emails}`; the documents call it P."""
        stem = self.stem = f"{self.base}:"
        """The base followed by a colon; Lua functions call it the prefix."""
        self.meta: Final = stem + "meta"
        self.id: Final = stem + "id"
        self.stream: Final = stem + "stream"
        self.scheduled: Final = stem + "scheduled"
        self.completed: Final = stem + "completed"
        self.failed: Final = stem + "failed"
        self.events: Final = stem + "events"
        self.priority: Final = stem + "priority"
        self.lifo: Final = stem + "lifo"
        self.list_active: Final = stem + "list-active"
        self.dedup: Final = stem + "dedup"
        self.rate: Final = stem + "rate"
        self.schedulers: Final = stem + "schedulers"
        self.ordering: Final = stem + "ordering"
        self.ratelimited: Final = stem + "ratelimited"
        self.suspended: Final = stem + "suspended"
        self.scheduler_lock: Final = stem + "schedulers:lock:__tick__"
        self.sweep_lock: Final = stem + "suspended:lock:__sweep__"
        self.backup_lock: Final = stem + "lock:backup"
        self.wake: Final = stem + "wake"
        """Stream of markers that wake up idle workers. Node peers do not have this key."""
        self.wake_channels: Final = stem + "wake-channels"
        """Channels of idle processes that serve many queues. Node peers do not have this key."""
        self.deleted_layout: Final = stem + "deleted-layout"
        """Number of the last layout of a deleted partitioned queue. Node peers do not have this key."""
        self.job_prefix: Final = stem + "job:"
        self.log_prefix: Final = stem + "log:"

    def __repr__(self) -> str:
        return f"QueueKeys({self.prefix!r}, {self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QueueKeys) and self.base == other.base

    def __hash__(self) -> int:
        return hash(self.base)

    @property
    def static(self) -> tuple[str, ...]:
        """Return the keys that exist once per queue, `metrics` and locks included. `obliterate` deletes them."""
        return (
            self.meta,
            self.id,
            self.stream,
            self.scheduled,
            self.completed,
            self.failed,
            self.events,
            self.priority,
            self.lifo,
            self.list_active,
            self.dedup,
            self.rate,
            self.schedulers,
            self.ordering,
            self.ratelimited,
            self.suspended,
            self.metrics("completed"),
            self.metrics("failed"),
            self.scheduler_lock,
            self.sweep_lock,
            self.wake,
            self.wake_channels,
        )

    def job(self, job_id: str) -> str:
        """Return the key of a job's hash."""
        return self.job_prefix + job_id

    def log(self, job_id: str) -> str:
        """Return the key of a job's list of log lines."""
        return self.log_prefix + job_id

    def deps(self, job_id: str) -> str:
        """Return the key of the set of a parent's children; the members are `member()` of the children."""
        return f"{self.stem}deps:{job_id}"

    def parents(self, job_id: str) -> str:
        """Return the key of the set of a child's parents; the members are `member()` of the parents."""
        return f"{self.stem}parents:{job_id}"

    def jstream(self, job_id: str) -> str:
        """Return the key of the stream of a job's chunks."""
        return f"{self.stem}jstream:{job_id}"

    def signals(self, job_id: str) -> str:
        """Return the key of the list of signals sent to a job."""
        return f"{self.stem}signals:{job_id}"

    def satellites(self, job_id: str) -> tuple[str, ...]:
        """Return the keys, other than the hash, that may belong to one job."""
        return (
            self.log(job_id),
            self.deps(job_id),
            self.parents(job_id),
            self.jstream(job_id),
            self.signals(job_id),
        )

    def member(self, job_id: str) -> str:
        """Return the name of a job in another job's deps or parents, such as `glide:{emails}:7`."""
        return self.stem + job_id

    def subscription(self, job_id: str, group: str) -> str:
        """Return the key of the hash of one broadcast subscription's attempts at a job."""
        return f"{self.job_prefix}{job_id}:sub:{group}"

    def worker(self, consumer: str) -> str:
        """Return the key of a worker's heartbeat."""
        return f"{self.stem}w:{consumer}"

    def metrics(self, kind: Literal["completed", "failed"]) -> str:
        """Return the key of the hash of counts and durations per minute."""
        return f"{self.stem}metrics:{kind}"

    def group(self, key: str) -> str:
        """Return the key of the hash of an ordering group."""
        return f"{self.stem}group:{key}"

    def group_queue(self, key: str) -> str:
        """Return the key of the sorted set of a group's waiting jobs."""
        return f"{self.stem}groupq:{key}"

    def budget(self, flow_id: str) -> str:
        """Return the key of the hash of a flow's budget."""
        return f"{self.stem}budget:{flow_id}"

    def tokens(self, window: int) -> str:
        """Return the key of the tokens used in one window of a token limit."""
        return f"{self.stem}tpm:{window}"

    def usage(self, bucket_ms: int) -> str:
        """Return the key of the hash of usage in the minute that starts at `bucket_ms` (epoch ms)."""
        return f"{self.stem}usage:{bucket_ms}"


def split_budget_key(key: str) -> tuple[str, str]:
    """Return the meta key of the queue and the flow id of a budget key: the inverse of `QueueKeys.budget`.

    Raises:
        ValueError: the text is not a budget key.
    """
    base, found, flow_id = key.partition("}:budget:")
    if not found or not flow_id or ":{" not in base:
        raise ValueError(f"budget key {key!r}: must be such as 'glide:{{emails}}:budget:7'")
    return f"{base}}}:meta", flow_id


def usage_registry_key(prefix: str) -> str:
    """Return the key of the set of queues with recorded usage; it belongs to no queue."""
    return f"{prefix}:usage:queues"


def flow_key(prefix: str, flow_id: str, part: Literal["meta", "jobs", "roots"]) -> str:
    """Return a key of a flow that was added through the HTTP proxy."""
    return f"{prefix}:{{flow:{flow_id}}}:{part}"


def split_member(member: str) -> tuple[str, str]:
    """Return key base and job id of a member of deps or parents: `glide:{emails}:7` is `glide:{emails}` and `7`.

    Raises:
        ValueError: the text is not such a member.
    """
    base, colon, job_id = member.rpartition(":")
    if not colon or not job_id or not base.endswith("}") or ":{" not in base:
        raise ValueError(f"member {member!r}: must be such as 'glide:{{emails}}:7'")
    return base, job_id


def exact_text(name: str | bytes) -> str:
    """Return the text of a key or a member of one; bytes that are no UTF-8 are kept."""
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def issued_number(job_id: str) -> int:
    """Return the number of an id that the counter of a queue may have issued, else 0."""
    issued = len(job_id) <= _ISSUED_DIGITS and job_id.isascii() and job_id.isdigit() and job_id[0] != "0"
    return int(job_id) if issued else 0


def group_members(members: Iterable[str]) -> dict[str, list[str]]:
    """Return the job ids of members by key base; texts that are no members are left out."""
    found: dict[str, list[str]] = {}
    for member in members:
        with suppress(ValueError):
            base, job_id = split_member(member)
            found.setdefault(base, []).append(job_id)
    return found


_ISSUED_DIGITS: Final = 14
NAME_LENGTH: Final = 256
"""Maximum length of a queue name, prefix or job id, in UTF-16 code units."""
JOB_NAME_LENGTH: Final = 1024
"""Maximum length of a job name, in UTF-16 code units."""
MAX_NUMERIC_ID: Final = 10**13
"""Largest custom id that consists of digits only. Above 10**14, the id counter of a Node peer prints exponents."""
PARTITION_MARK: Final = "~p~"
PARTITION: Final = re.compile(r"~p~[0-9a-z]{4}\Z")
"""The end of the name of a partition, after that of its queue."""
PARTITION_LENGTH: Final = len(PARTITION_MARK) + 4

_PLAIN_ID: Final = re.compile(r"[A-Za-z_\-.@][A-Za-z0-9_\-.@]{0,127}", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_STRUCTURE: Final = re.compile(r"[{}:]")
_BRACES: Final = re.compile(r"[{}]")
_GLOB: Final = re.compile(r"[*?\[\]\\]")
_DIGITS: Final = re.compile(r"[0-9]+")

_NO_STRUCTURE: Final = "must not contain any of { } :"
_NO_BRACES: Final = "must not contain { or }; only the queue name is the cluster hash tag"
_NO_GLOB: Final = "must not contain any of the glob characters * ? [ ] \\"
_NO_CONTROL: Final = "must not contain control characters"


def partition_home(name: str) -> str | None:
    """Return the name of the partitioned queue that may have a partition with this name; None if it is none."""
    return name[:-PARTITION_LENGTH] or None if PARTITION.search(name) is not None else None


def validate_queue_name(name: object, option: str = "name") -> str:
    r"""Check a queue name: 1 to 256 characters, no control characters and none of `{ } : * ? [ ] \`.

    Braces and the colon are key syntax (the name is the cluster hash tag). With glob characters, the SCAN of a Node
    peer on this queue would match the keys of other queues.

    Raises:
        GlideMQValidationError: the name is invalid.
    """
    text = check_text(option, name, maximum=NAME_LENGTH)
    if _STRUCTURE.search(text) is not None:
        # The gateway escapes the names of its clients so. A text that is not shown as it is may contain a password.
        escaped, is_shown = text.replace(":", "%3A"), show_value(text) == repr(text)
        is_escaped = is_shown and not _BRACES.search(text)
        hint = f"; a gateway client's queue of this name is {escaped!r} here" if is_escaped else ""
        raise GlideMQValidationError(option, text, _NO_STRUCTURE + hint)
    _reject(option, text, _GLOB, _NO_GLOB)
    _reject(option, text, _CONTROL, _NO_CONTROL)
    return text


def validate_prefix(prefix: object, option: str = "prefix") -> str:
    r"""Check a key prefix: 1 to 256 characters, no control characters, none of `{ } * ? [ ] \`."""
    text = check_text(option, prefix, maximum=NAME_LENGTH)
    _reject(option, text, _BRACES, _NO_BRACES)
    _reject(option, text, _GLOB, _NO_GLOB)
    _reject(option, text, _CONTROL, _NO_CONTROL)
    return text


def validate_job_name(name: object, option: str = "name") -> str:
    """Check a job name: a non-empty string of at most 1024 characters."""
    if type(name) is str and name.isascii() and 0 < len(name) <= JOB_NAME_LENGTH:
        return name
    return check_text(option, name, maximum=JOB_NAME_LENGTH)


def validate_job_id(job_id: object, option: str = "job_id") -> str:
    """Check the custom id of a new job: 1 to 256 characters, no control characters, none of `{ } :`, no `||`.

    Ids that consist of digits only advance the queue's id counter. `007` and numbers above 10**13 would break the
    counter and are rejected. `||` separates id and subscription in the scheduled set.
    """
    if isinstance(job_id, str) and _PLAIN_ID.fullmatch(job_id) is not None:
        return job_id
    text = validate_existing_id(job_id, option)
    if "||" in text:
        problem = "must not contain '||'; to build it from the id of another job, use Job.id_prefix instead of Job.id"
        raise GlideMQValidationError(option, text, problem)
    if _DIGITS.fullmatch(text) is not None:
        if text[0] == "0":
            raise GlideMQValidationError(option, text, "a numeric id must not start with 0")
        if len(text) > 14 or int(text) > MAX_NUMERIC_ID:
            raise GlideMQValidationError(option, text, f"a numeric id must be at most {MAX_NUMERIC_ID:,}")
    return text


def validate_reference_id(job_id: object, option: str = "job_id") -> str:
    """Check the id of a job to wait for: one that a new job may have, or that after the number of its partition."""
    if isinstance(job_id, str):
        number, mark, own = job_id.partition("||")
        if mark and len(number) <= 3 and _DIGITS.fullmatch(number) is not None:
            validate_job_id(own, option)
            return job_id
    return validate_job_id(job_id, option)


def validate_existing_id(job_id: object, option: str = "job_id") -> str:
    """Check the id of a job to look up: 1 to 256 characters, no control characters, none of `{ } :`.

    A peer may have added the job, so every id that is valid in a key is accepted.
    """
    if isinstance(job_id, str) and _PLAIN_ID.fullmatch(job_id) is not None:
        return job_id
    text = check_text(option, job_id, maximum=NAME_LENGTH)
    _reject(option, text, _STRUCTURE, _NO_STRUCTURE)
    _reject(option, text, _CONTROL, _NO_CONTROL)
    return text


def parse_job_id(job_id: object, option: str = "job_id") -> str:
    """Return the id of a job to look up as a string; an int is converted. Reject anything else, such as a `Job`."""
    if type(job_id) is int:
        return str(job_id)
    return validate_existing_id(job_id, option)


def _reject(option: str, text: str, forbidden: re.Pattern[str], problem: str) -> None:
    if forbidden.search(text) is not None:
        raise GlideMQValidationError(option, text, problem)


COUNTER_BITS: Final = 12
RANDOM_BITS: Final = 30
CHECK_BITS: Final = 8
_LOW, _COUNTER, _CHECK = 2**62 - 1, 2**COUNTER_BITS - 1, 2**CHECK_BITS - 1
_LENGTH: Final = 36
_SHAPE: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)


def queue_numbers_key(prefix: str) -> str:
    """Return the key of the numbers of queues and partitions: field ``q:<name>``."""
    return f"{prefix}:gateway:queues"


def check_bits(content: int) -> int:
    """Return the check bits of the 114 bits that stand before them, without version and variant."""
    return zlib.crc32(content.to_bytes(15, "big")) & _CHECK


def is_uuid7(job_id: str) -> bool:
    """Return whether an id is a UUIDv7, made here or by a client."""
    return _SHAPE.fullmatch(job_id) is not None


def queue_number(job_id: str) -> int | None:
    """Return the number of the queue in an id, or None if the id was not made here."""
    return _queue_number(job_id) if len(job_id) == _LENGTH else None


@lru_cache(maxsize=16_384)  # an id is read when its job is fetched, reported, and named by events
def _queue_number(job_id: str) -> int | None:
    if _SHAPE.fullmatch(job_id) is None:
        return None
    value = int(job_id.replace("-", ""), 16)
    high, low = value >> 64, value & _LOW
    moment = (high >> 16) << COUNTER_BITS | (high & _COUNTER)
    rest = low >> CHECK_BITS
    # `check_bits`, without a function of its own.
    if (zlib.crc32((moment << 54 | rest).to_bytes(15, "big")) ^ low) & _CHECK:
        return None
    return rest >> RANDOM_BITS


def entry_order(entry: str) -> tuple[int, int]:
    """Return the key by which the ids of entries of a stream are sorted."""
    ms, _, number = entry.partition("-")
    return int(ms), int(number or 0)
