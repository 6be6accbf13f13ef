"""Reading the record of a job, and which fields it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.record import JobRecord
from glidemq_py._features.usage import USAGE_FIELDS
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
    "scheduledFor",
    "progressMessage",
    *SUSPENSION_FIELDS,
)
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
