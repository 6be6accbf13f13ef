"""Attributes of a job beyond those that every handler receives, and reading its complete record.

The attributes are its state, parents, group, scheduler and budget. Access to one that was not read from the server
raises `JobNotLoadedError`. None means that the job has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._core.job_states import JobOutcome, JobState
from glidemq_py._core.record import JobRecord
from glidemq_py._features.usage.calls import USAGE_FIELDS
from glidemq_py.errors import JobNotFoundError, JobNotLoadedError

if TYPE_CHECKING:
    from glidemq_py._client.transport import JobTransport
    from glidemq_py._job.attempt import Attempt
    from glidemq_py._job.link import QueueLink

__all__ = ["HAS_USAGE", "LISTED_FIELDS", "RECORD_FIELDS", "JobDetails", "JobReloading", "read_record"]

HAS_USAGE: Final = "usage:bucketTs"
LISTED_FIELDS: Final = (
    "name", "data", "opts", "state", "timestamp", "attemptsMade", "delay", "priority", "processedOn", "finishedOn",
    "returnvalue", "failedReason", "failedType", "stacktrace", "progress", "stalledCount", "signals", "fallbackIndex",
    "budgetKey", HAS_USAGE,
)  # fmt: skip
_ORIGIN: Final = (
    "parentId", "parentQueue", "parentIds", "parentQueues", "groupKey", "orderingSeq", "cost", "expireAt",
    "schedulerName", "scheduledFor", "tpmTokens",
)  # fmt: skip
"""Read for single jobs only: most jobs have none of these fields, and each costs a search through the record."""
RECORD_FIELDS: Final = (*LISTED_FIELDS, *_ORIGIN, *(f"usage:{name}" for name in USAGE_FIELDS))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")


async def read_record(
    link: QueueLink[JobTransport], job_id: str, wanted: Sequence[str] = RECORD_FIELDS
) -> JobRecord | None:
    """Return these fields of a job's record, or None; ``wanted`` must include state and name."""
    values = await link.transport.command("HMGET", link.keys.job(job_id), *wanted)
    fields = {name: _text(value) for name, value in zip(wanted, values, strict=True)}
    if fields["state"] is None and fields["name"] is None:
        return None
    return JobRecord.parse(job_id, fields)


class JobReloading:
    """The method of `Job` and `Message` that reads the record again."""

    id: str
    _link: QueueLink[JobTransport]

    if TYPE_CHECKING:

        def _apply(self, record: JobRecord) -> None: ...

    async def reload(self) -> None:
        """Read the job's complete record from the server, like `Queue.get_job`.

        Handlers receive a job without attributes such as `parent_id`, `group_key` and `delay`, which raise
        `JobNotLoadedError`. After this call they are available. In a handler, `usage` keeps what this attempt has
        reported.

        Raises:
            JobNotFoundError: If the job does not exist.
        """
        record: Any = await read_record(self._link, self.id)
        if record is None:
            raise JobNotFoundError(self.id)
        self._apply(record)


class JobDetails:
    """The attributes of `Job` that `Queue.get_job` and `Job.reload` read.

    Most of them are not loaded for jobs of handlers, lists and adds, and raise `JobNotLoadedError`.
    """

    _delay: int | None
    _state: JobState | None
    outcome: JobOutcome
    _attempt: Attempt | None
    _budget_key: str | None

    if TYPE_CHECKING:
        _record: JobRecord | None

        @property
        def _is_run(self) -> bool: ...

    def _known(self, attribute: str, field: str) -> JobRecord:
        record = self._record
        if record is None or field not in record.fields_read:
            raise JobNotLoadedError(attribute)
        return record

    @property
    def state(self) -> JobState | None:
        """State when the job was read, ``active`` in a handler; None if unknown. `get_state` reads it again."""
        return JobState.ACTIVE if self._is_run else self._state

    @property
    def delay(self) -> int:
        """Delay of the job in ms. In a handler, raises `JobNotLoadedError` before `reload`."""
        if self._delay is not None:
            return self._delay
        if not self._is_run and self.outcome is JobOutcome.ADDED:
            return 0  # added without a delay
        raise JobNotLoadedError("delay")

    @property
    def parent_id(self) -> str | None:
        """Id of the job's parent, if it has exactly one; else None. `get_parents` returns all."""
        record = self._known("parent_id", "parentId")
        # A parent in another cluster slot is stored in the list of parents.
        return record.parent_id or (record.parent_ids[0] if len(record.parent_ids) == 1 else None)

    @property
    def parent_queue(self) -> str | None:
        """Name of the parent's queue, if the job has exactly one parent; else None."""
        record = self._known("parent_queue", "parentQueue")
        return record.parent_queue or (record.parent_queues[0] if len(record.parent_queues) == 1 else None)

    @property
    def parent_ids(self) -> tuple[str, ...]:
        """Ids of the job's parents, for a job of a DAG."""
        return self._known("parent_ids", "parentIds").parent_ids

    @property
    def parent_queues(self) -> tuple[str, ...]:
        """Names of the parents' queues, in the order of `parent_ids`."""
        return self._known("parent_queues", "parentQueues").parent_queues

    @property
    def group_key(self) -> str | None:
        """Key of the ordering group whose limits apply to the job; None without one."""
        return self._known("group_key", "groupKey").group_key

    @property
    def ordering_seq(self) -> int | None:
        """Sequence number of the job in its ordering group; None without one."""
        return self._known("ordering_seq", "orderingSeq").ordering_seq

    @property
    def cost(self) -> float | None:
        """Tokens that the job takes from its group's token bucket; None if ``cost`` was not set."""
        cost = self._known("cost", "cost").cost
        if cost is None:
            return None
        tokens = cost / 1_000  # stored in thousandths
        return int(tokens) if tokens.is_integer() else tokens

    @property
    def expire_at(self) -> int | None:
        """Time at which the job's ``ttl`` expires, epoch ms; None without one."""
        return self._known("expire_at", "expireAt").expire_at

    @property
    def scheduler_name(self) -> str | None:
        """Name of the `repeat_after_complete` scheduler that waits for the end of this job; else None."""
        return self._known("scheduler_name", "schedulerName").scheduler_name

    @property
    def scheduled_for(self) -> int | None:
        """Scheduled time that the job was added for, epoch ms; the first, if it replaces several missed ones.

        None if the job was not added by a scheduler of this library.
        """
        return self._known("scheduled_for", "scheduledFor").scheduled_for

    @property
    def tpm_tokens(self) -> float | None:
        """Tokens that the handler reported with `report_tokens`; None if it reported none."""
        return self._known("tpm_tokens", "tpmTokens").tpm_tokens

    @property
    def budget_key(self) -> str | None:
        """Key of the budget of the job's flow; None without one."""
        if self._budget_key is None and self._record is None and not self._is_run:
            raise JobNotLoadedError("budget_key")
        return self._budget_key
