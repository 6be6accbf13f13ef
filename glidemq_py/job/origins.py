"""Where a job comes from and what it is bound to, as its record says: parents, group, scheduler, budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glidemq_py.job.attempt import Attempt
    from glidemq_py.model.record import JobRecord

__all__ = ["JobOrigins"]


class JobOrigins:
    """The part of `Job` for what `Queue.get_job` reads beside the rest; jobs of lists and in handlers lack it."""

    _record: JobRecord | None = None
    _attempt: Attempt | None
    _budget_key: str | None

    @property
    def parent_id(self) -> str | None:
        """Id of the job that waits for it, where that is one (`get_parents` asks for all). Of `Queue.get_job` only."""
        return None if self._record is None else self._record.parent_id

    @property
    def parent_queue(self) -> str | None:
        """Name of that job's queue. Of `Queue.get_job` only."""
        return None if self._record is None else self._record.parent_queue

    @property
    def parent_ids(self) -> tuple[str, ...]:
        """Ids of the jobs that wait for it, for a job of a graph. Of `Queue.get_job` only."""
        return () if self._record is None else self._record.parent_ids

    @property
    def parent_queues(self) -> tuple[str, ...]:
        """Names of their queues, in the same order. Of `Queue.get_job` only."""
        return () if self._record is None else self._record.parent_queues

    @property
    def group_key(self) -> str | None:
        """Key of the group whose limits hold for it; None where it has none. Of `Queue.get_job` only."""
        return None if self._record is None else self._record.group_key

    @property
    def ordering_seq(self) -> int | None:
        """Its place in a group that keeps order; None where it has none. Of `Queue.get_job` only."""
        return None if self._record is None else self._record.ordering_seq

    @property
    def cost(self) -> float | None:
        """Tokens that it takes from its group's bucket; None where it does not say. Of `Queue.get_job` only."""
        if self._record is None or self._record.cost is None:
            return None
        tokens = self._record.cost / 1_000  # the record has thousandths
        return int(tokens) if tokens.is_integer() else tokens

    @property
    def expire_at(self) -> int | None:
        """When its ``ttl`` is over, epoch ms; None without one. Of `Queue.get_job` only."""
        return None if self._record is None else self._record.expire_at

    @property
    def scheduler_name(self) -> str | None:
        """The scheduler that waits for its end (`repeat_after_complete`); else None. Of `Queue.get_job` only."""
        return None if self._record is None else self._record.scheduler_name

    @property
    def scheduled_for(self) -> int | None:
        """The instant of its scheduler that it is for, epoch ms; of several missed ones that it stands for, the first.
        None where no scheduler of ours has added it. Of `Queue.get_job` only."""
        return None if self._record is None else self._record.scheduled_for

    @property
    def tpm_tokens(self) -> float | None:
        """What its handler said with `report_tokens`; None where it said nothing. Of `Queue.get_job` only."""
        return None if self._record is None else self._record.tpm_tokens

    @property
    def budget_key(self) -> str | None:
        """Key of the budget of its flow; None without one."""
        return self._budget_key

    @property
    def discarded(self) -> bool:
        """In a handler: whether `discard` was called."""
        return self._attempt is not None and self._attempt.discarded
