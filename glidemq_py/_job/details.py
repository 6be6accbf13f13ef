"""What a job's record says beside what every handler is given: where it stands, parents, group, scheduler, budget.

What was not read is not known, and asking for it is an error, never an answer: None means that there is none.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from glidemq_py._core.job_states import JobOutcome, JobState
from glidemq_py._core.record import MAX_STACKTRACES
from glidemq_py.errors import JobNotLoadedError

if TYPE_CHECKING:
    from glidemq_py._core.record import JobRecord
    from glidemq_py._job.attempt import Attempt

__all__ = ["JobDetails"]


class JobDetails:
    """The part of `Job` for what `Queue.get_job` and `Job.reload` read.

    Jobs of handlers, lists and adds lack most of it: they raise `JobNotLoadedError`.
    """

    _delay: int | None
    _state: JobState | None
    _stacktrace_text: str | None
    outcome: JobOutcome
    _record: JobRecord | None = None
    _attempt: Attempt | None
    _budget_key: str | None

    def _known(self, attribute: str, field: str) -> JobRecord:
        record = self._record
        if record is None or field not in record.fields_read:
            raise JobNotLoadedError(attribute)
        return record

    @property
    def _is_run(self) -> bool:
        return self._attempt is not None and self._attempt.fence > 0

    @property
    def state(self) -> JobState | None:
        """Where it stood when it was read, ``active`` in a handler (`get_state` asks anew); None where not known."""
        return JobState.ACTIVE if self._is_run else self._state

    @property
    def stacktrace(self) -> tuple[str, ...]:
        """Tracebacks of the last failures, newest last, bounded."""
        if self._stacktrace_text is None:
            return () if self._record is None else self._record.stacktrace
        try:
            read: Any = json.loads(self._stacktrace_text)
        except ValueError:
            return ()
        lines = cast("list[object]", read) if isinstance(read, list) else []
        return tuple(line for line in lines if isinstance(line, str))[-MAX_STACKTRACES:]

    @property
    def delay(self) -> int:
        """As stored, ms. Not known in a handler before `reload`."""
        if self._delay is not None:
            return self._delay
        if not self._is_run and self.outcome is JobOutcome.ADDED:
            return 0  # nothing was said of it when it was added
        raise JobNotLoadedError("delay")

    @property
    def parent_id(self) -> str | None:
        """Id of the job that waits for it, where that is one (`get_parents` asks for all)."""
        record = self._known("parent_id", "parentId")
        # In another slot of a cluster it is written as one of several.
        return record.parent_id or (record.parent_ids[0] if len(record.parent_ids) == 1 else None)

    @property
    def parent_queue(self) -> str | None:
        """Name of that job's queue."""
        record = self._known("parent_queue", "parentQueue")
        return record.parent_queue or (record.parent_queues[0] if len(record.parent_queues) == 1 else None)

    @property
    def parent_ids(self) -> tuple[str, ...]:
        """Ids of the jobs that wait for it, for a job of a graph."""
        return self._known("parent_ids", "parentIds").parent_ids

    @property
    def parent_queues(self) -> tuple[str, ...]:
        """Names of their queues, in the same order."""
        return self._known("parent_queues", "parentQueues").parent_queues

    @property
    def group_key(self) -> str | None:
        """Key of the group whose limits hold for it; None where it has none."""
        return self._known("group_key", "groupKey").group_key

    @property
    def ordering_seq(self) -> int | None:
        """Its place in a group that keeps order; None where it has none."""
        return self._known("ordering_seq", "orderingSeq").ordering_seq

    @property
    def cost(self) -> float | None:
        """Tokens that it takes from its group's bucket; None where it does not say."""
        cost = self._known("cost", "cost").cost
        if cost is None:
            return None
        tokens = cost / 1_000  # the record has thousandths
        return int(tokens) if tokens.is_integer() else tokens

    @property
    def expire_at(self) -> int | None:
        """When its ``ttl`` is over, epoch ms; None without one."""
        return self._known("expire_at", "expireAt").expire_at

    @property
    def scheduler_name(self) -> str | None:
        """The scheduler that waits for its end (`repeat_after_complete`); else None."""
        return self._known("scheduler_name", "schedulerName").scheduler_name

    @property
    def scheduled_for(self) -> int | None:
        """The instant of its scheduler that it is for, epoch ms; of several missed ones that it stands for, the first.
        None where no scheduler of ours has added it."""
        return self._known("scheduled_for", "scheduledFor").scheduled_for

    @property
    def tpm_tokens(self) -> float | None:
        """What its handler said with `report_tokens`; None where it said nothing."""
        return self._known("tpm_tokens", "tpmTokens").tpm_tokens

    @property
    def budget_key(self) -> str | None:
        """Key of the budget of its flow; None without one."""
        if self._budget_key is None and self._record is None and not self._is_run:
            raise JobNotLoadedError("budget_key")
        return self._budget_key

    @property
    def discarded(self) -> bool:
        """In a handler: whether `discard` was called."""
        return self._attempt is not None and self._attempt.discarded
