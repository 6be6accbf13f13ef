"""Reading the record of a job: which fields, and `reload`, which reads all of them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from glidemq_py._core.record import JobRecord
from glidemq_py._features.usage import USAGE_FIELDS

if TYPE_CHECKING:
    from glidemq_py._client.transport import JobTransport
    from glidemq_py._partitions.link import QueueLink

HAS_USAGE: Final = "usage:bucketTs"
LISTED_FIELDS: Final = (
    "name", "data", "opts", "state", "timestamp", "attemptsMade", "delay", "priority", "rank", "processedOn",
    "finishedOn",
    "returnvalue", "failedReason", "failedType", "stacktrace", "progress", "stalledCount", "signals", "fallbackIndex",
    "budgetKey", HAS_USAGE,
)  # fmt: skip
SUSPENSION_FIELDS: Final = ("suspendReason", "suspendedAt", "suspendTimeout")
_ORIGIN: Final = (
    "parentId", "parentQueue", "parentIds", "parentQueues", "cost", "expireAt",
    "schedulerName", "scheduledFor", "tpmTokens", "progressMessage", *SUSPENSION_FIELDS,
)  # fmt: skip
"""Read for single jobs only: most jobs have none of these fields, and each costs a search through the record."""
RECORD_FIELDS: Final = (*LISTED_FIELDS, *_ORIGIN, *(f"usage:{name}" for name in USAGE_FIELDS))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")


async def read_record(
    link: QueueLink[JobTransport], job_id: str, wanted: Sequence[str] = RECORD_FIELDS
) -> JobRecord | None:
    """Return these fields of a job's record, or None; ``wanted`` must include state and name."""
    values = await link.command("HMGET", link.keys.job(job_id), *wanted)
    fields = {name: _text(value) for name, value in zip(wanted, values, strict=True)}
    if fields["state"] is None and fields["name"] is None:
        return None
    return JobRecord.parse(job_id, fields)


class ReloadableJob(Protocol):
    """A `Job` or `Message`, as `reload` uses it."""

    id: str
    _stored_id: str
    _link: QueueLink[JobTransport]

    def _apply(self, record: JobRecord) -> None: ...


async def reload(self: ReloadableJob) -> None:
    """Read the job's complete record from the server, like `Queue.get_job`.

    Handlers receive a job without attributes such as `parent_id`, `expire_at` and `delay`, which raise
    `JobNotLoadedError`. After this call they are available. In a handler, `usage` keeps what this attempt has
    reported.

    Raises:
        JobNotFoundError: If the job does not exist.
    """
    record = await read_record(self._link, self._stored_id)
    if record is None:
        raise self._link.not_found(self.id)
    self._apply(record)
