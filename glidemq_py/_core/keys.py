"""Names of the keys of a queue; docs/reference/data-model.md describes their contents.

Every key contains the queue's name in braces, the hash tag of the cluster: all keys of a queue are in one slot. Keys
that glide-mq for Node does not have are marked; they avoid the patterns that Node peers SCAN (`job:*`, `w:*`,
`group:*`).
"""

from __future__ import annotations

from binascii import crc_hqx
from typing import Final, Literal

from glidemq_py._core.names import validate_job_id, validate_prefix, validate_queue_name
from glidemq_py._core.queue_options import DEFAULT_PREFIX

__all__ = [
    "CONSUMER_GROUP",
    "DEFAULT_PREFIX",
    "OWED",
    "QueueKeys",
    "flow_key",
    "hash_tag",
    "split_budget_key",
    "split_member",
    "usage_registry_key",
    "validate_job_id",
    "validate_prefix",
    "validate_queue_name",
]

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

    __slots__ = (
        "backup_lock",
        "base",
        "completed",
        "dedup",
        "deleted_layout",
        "events",
        "failed",
        "id",
        "job_prefix",
        "lifo",
        "list_active",
        "log_prefix",
        "meta",
        "name",
        "ordering",
        "prefix",
        "priority",
        "rate",
        "ratelimited",
        "scheduled",
        "scheduler_lock",
        "schedulers",
        "stem",
        "stream",
        "suspended",
        "sweep_lock",
        "wake",
        "wake_channels",
    )

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
