"""`BlockingJob`: a job for code that blocks.

Written by ``python -m tests.twins``; do not edit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, NoReturn

from typing_extensions import TypeVar

from glidemq_py._core.job_states import JobOutcome, JobState
from glidemq_py._core.times import Milliseconds
from glidemq_py._features.fallbacks import Fallback
from glidemq_py._features.flows.parent_option import JobRef
from glidemq_py._features.streams.job_api import CHUNKS_KEPT
from glidemq_py._features.suspend.info import Signal
from glidemq_py._features.usage.info import JobUsage
from glidemq_py._job.blocking_runtime import wait_for
from glidemq_py._job.control import RevokeOutcome
from glidemq_py._job.job import LOG_LINES_KEPT, Job
from glidemq_py._job.steps import SAME

__all__ = ["BlockingJob"]

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)


class BlockingJob(Generic[DataT, ResultT]):
    """A `Job` whose methods block. Attributes, arguments and errors are those of `Job`.

    Handlers that are plain functions get one as `Job.blocking`, and the queues of `glidemq_py.sync` hand out no others.
    A handler's must not be used on the event loop's own thread: it would wait for itself, and raises RuntimeError.
    """

    __slots__ = ("_job",)

    def __init__(self, job: Job[DataT, ResultT]) -> None:
        """Made by queues and jobs."""
        self._job = job

    def __repr__(self) -> str:
        return repr(self._job)

    @property
    def id(self) -> str:
        """See `Job`."""
        return self._job.id

    @property
    def name(self) -> str:
        """See `Job`."""
        return self._job.name

    @property
    def outcome(self) -> JobOutcome:
        """See `Job`."""
        return self._job.outcome

    @property
    def timestamp(self) -> int:
        """See `Job`."""
        return self._job.timestamp

    @property
    def attempts_made(self) -> int:
        """See `Job`."""
        return self._job.attempts_made

    @property
    def priority(self) -> int:
        """See `Job`."""
        return self._job.priority

    @property
    def stalled_count(self) -> int:
        """See `Job`."""
        return self._job.stalled_count

    @property
    def processed_on(self) -> int | None:
        """See `Job`."""
        return self._job.processed_on

    @property
    def finished_on(self) -> int | None:
        """See `Job`."""
        return self._job.finished_on

    @property
    def failed_reason(self) -> str | None:
        """See `Job`."""
        return self._job.failed_reason

    @property
    def failed_type(self) -> str | None:
        """See `Job`."""
        return self._job.failed_type

    @property
    def queue_name(self) -> str:
        """The queue it belongs to."""
        return self._job.queue_name

    @property
    def data(self) -> DataT:
        """What was given to `add`, decoded when first asked for. See `Job.data`."""
        return self._job.data

    @property
    def opts(self) -> Mapping[str, Any]:
        """The options as stored (camelCase, data-model.md section 4.1); empty where they cannot be read."""
        return self._job.opts

    @property
    def returnvalue(self) -> ResultT | None:
        """What the handler returned, for a completed job that was read back. Raises SerializationError."""
        return self._job.returnvalue

    @property
    def progress(self) -> Any:
        """What `update_progress` wrote last; 0 before."""
        return self._job.progress

    @property
    def context(self) -> Any:
        """What the worker's ``lifespan`` yielded (a database pool, say); None outside a handler."""
        return self._job.context

    @property
    def cancelled(self) -> threading.Event:
        """Set when this attempt's result is no longer wanted: it timed out, was revoked, or was taken away. See
        `Job.cancelled`.
        """
        return self._job.cancelled

    def log(self, line: str, *, keep: int = LOG_LINES_KEPT) -> None:
        """Append a line to the job's log; the newest ``keep`` lines stay (0 = all). See `Job.log`."""
        wait_for(self._job, self._job.log(line, keep=keep))

    def update_progress(self, progress: float | str | Mapping[str, Any] | list[Any]) -> None:
        """Store progress (a number or anything JSON) and tell listeners. Raises as `log`."""
        wait_for(self._job, self._job.update_progress(progress))

    def update_data(self, data: DataT) -> None:
        """Replace the job's data, for its next attempt too. Raises as `log`, and SerializationError."""
        wait_for(self._job, self._job.update_data(data))

    def discard(self) -> None:
        """No more attempts: if this one fails, the job fails for good. Only means something in a handler."""
        self._job.discard()

    def get_state(self) -> JobState | None:
        """Where it stands now; None if it is gone (or in a state that this version does not know)."""
        return wait_for(self._job, self._job.get_state())

    def is_completed(self) -> bool:
        """True if it is completed now."""
        return wait_for(self._job, self._job.is_completed())

    def is_failed(self) -> bool:
        """True if it has failed for good."""
        return wait_for(self._job, self._job.is_failed())

    def is_active(self) -> bool:
        """True if a worker has it now."""
        return wait_for(self._job, self._job.is_active())

    def is_waiting(self) -> bool:
        """True if it is ready and waits for a worker."""
        return wait_for(self._job, self._job.is_waiting())

    def is_delayed(self) -> bool:
        """True if it is due later, a retry's backoff included."""
        return wait_for(self._job, self._job.is_delayed())

    def logs(self, start: int = 0, end: int = -1) -> list[str]:
        """Log lines, oldest first; ``end`` inclusive, -1 = the last."""
        return wait_for(self._job, self._job.logs(start, end))

    def retry(self) -> None:
        """Run a failed job again, with all its attempts. See `Job.retry`."""
        wait_for(self._job, self._job.retry())

    def remove(self) -> bool:
        """Delete it with everything that belongs to it, whatever its state; False if it was gone already. See
        `Job.remove`.
        """
        return wait_for(self._job, self._job.remove())

    def wait_until_finished(self, timeout: Milliseconds = 30000) -> ResultT:
        """The job's result, once it is completed. See `Job.wait_until_finished`."""
        return wait_for(self._job, self._job.wait_until_finished(timeout))

    def change_priority(self, priority: int) -> None:
        """Give it another priority: 1 is most urgent, 2047 least, 0 none. For jobs that have not begun. See
        `Job.change_priority`.
        """
        wait_for(self._job, self._job.change_priority(priority))

    def change_delay(self, delay: Milliseconds) -> None:
        """Have it become due ``delay`` (ms or timedelta) from now; 0 = at once. Raises as `change_priority`."""
        wait_for(self._job, self._job.change_delay(delay))

    def promote(self) -> None:
        """Have it become due at once. Raises JobStateError if it is not delayed, JobNotFoundError if it is gone."""
        wait_for(self._job, self._job.promote())

    def revoke(self) -> RevokeOutcome:
        """Have it not run, or stop running; see `Queue.revoke`."""
        return wait_for(self._job, self._job.revoke())

    def is_revoked(self) -> bool:
        """True if it was revoked; a retry takes that back."""
        return wait_for(self._job, self._job.is_revoked())

    @property
    def step(self) -> str | None:
        """The ``next_step`` with which an earlier attempt ended; None before. See `Job.step`."""
        return self._job.step

    @property
    def ordering_key(self) -> str | None:
        """Key of the group it belongs to; None for a job without `ordering`."""
        return self._job.ordering_key

    def move_to_delayed(
        self, when: Milliseconds | datetime, *, next_step: str | None = None, data: Any = SAME
    ) -> NoReturn:
        """End this attempt here and go on later, without spending an attempt. It always raises, so call it last.
        See `Job.move_to_delayed`.
        """
        self._job.move_to_delayed(when, next_step=next_step, data=data)

    def rate_limit_group(
        self,
        duration: Milliseconds,
        *,
        current_job: Literal["requeue", "fail"] = "requeue",
        position: Literal["front", "back"] = "front",
        extend: Literal["max", "replace"] = "max",
    ) -> NoReturn:
        """Let no job of this job's group begin for a while, and end this attempt here without spending it. See
        `Job.rate_limit_group`.
        """
        self._job.rate_limit_group(duration, current_job=current_job, position=position, extend=extend)

    def move_to_failed(self, reason: str | Exception) -> NoReturn:
        """Fail here and for good, whatever attempts are left. See `Job.move_to_failed`."""
        self._job.move_to_failed(reason)

    def report_tokens(self, tokens: int) -> None:
        """Say how many tokens (of a language model, say) this attempt has used; the last report counts. See
        `Job.report_tokens`.
        """
        wait_for(self._job, self._job.report_tokens(tokens))

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signals that have resumed this job, oldest first; empty for a job that was never suspended."""
        return self._job.signals

    def suspend(
        self,
        *,
        reason: str | None = None,
        timeout: Milliseconds | None = None,
        on_resume: Callable[[tuple[Signal, ...]], Any] | None = None,
    ) -> NoReturn:
        """Suspend the job until `Queue.signal`. Always raises, which ends this attempt without counting it. See
        `Job.suspend`.
        """
        self._job.suspend(reason=reason, timeout=timeout, on_resume=on_resume)

    def wait_for_signal(self, name: str, *, reason: str | None = None, timeout: Milliseconds | None = None) -> Signal:
        """Return the signal with this name, or suspend the job until it comes. See `Job.wait_for_signal`."""
        return wait_for(self._job, self._job.wait_for_signal(name, reason=reason, timeout=timeout))

    @property
    def fallback_index(self) -> int:
        """See `Job`."""
        return self._job.fallback_index

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The chain of fallbacks that the job was added with."""
        return self._job.fallbacks

    @property
    def current_fallback(self) -> Fallback | None:
        """The fallback of this attempt: None for the first attempt, then each of `fallbacks` in turn. See
        `Job.current_fallback`.
        """
        return self._job.current_fallback

    def get_parents(self) -> list[JobRef]:
        """The jobs that wait for this one; several for a node of a `FlowProducer.add_dag`."""
        return wait_for(self._job, self._job.get_parents())

    def get_children_values(self) -> dict[str, Any]:
        """What the children that have completed returned, by their full names (``glide:{queue}:id``). See
        `Job.get_children_values`.
        """
        return wait_for(self._job, self._job.get_children_values())

    def get_children_failures(self) -> dict[str, str]:
        """Why children have failed (expired, were removed, ...) that the parent did not fail with, by full name."""
        return wait_for(self._job, self._job.get_children_failures())

    def get_open_children(self) -> list[JobRef]:
        """The children that have not ended yet."""
        return wait_for(self._job, self._job.get_open_children())

    def move_to_waiting_children(self, *, next_step: str | None = None, data: Any = SAME) -> None:
        """Go on when all children have ended: ends this attempt unless they have, without spending it. See
        `Job.move_to_waiting_children`.
        """
        wait_for(self._job, self._job.move_to_waiting_children(next_step=next_step, data=data))

    @property
    def state(self) -> JobState | None:
        """Where it stood when it was read, ``active`` in a handler (`get_state` asks anew); None where not known."""
        return self._job.state

    @property
    def stacktrace(self) -> tuple[str, ...]:
        """Tracebacks of the last failures, newest last, bounded."""
        return self._job.stacktrace

    @property
    def delay(self) -> int:
        """As stored, ms. Not known in a handler before `reload`."""
        return self._job.delay

    @property
    def parent_id(self) -> str | None:
        """Id of the job that waits for it, where that is one (`get_parents` asks for all)."""
        return self._job.parent_id

    @property
    def parent_queue(self) -> str | None:
        """Name of that job's queue."""
        return self._job.parent_queue

    @property
    def parent_ids(self) -> tuple[str, ...]:
        """Ids of the jobs that wait for it, for a job of a graph."""
        return self._job.parent_ids

    @property
    def parent_queues(self) -> tuple[str, ...]:
        """Names of their queues, in the same order."""
        return self._job.parent_queues

    @property
    def group_key(self) -> str | None:
        """Key of the group whose limits hold for it; None where it has none."""
        return self._job.group_key

    @property
    def ordering_seq(self) -> int | None:
        """Its place in a group that keeps order; None where it has none."""
        return self._job.ordering_seq

    @property
    def cost(self) -> float | None:
        """Tokens that it takes from its group's bucket; None where it does not say."""
        return self._job.cost

    @property
    def expire_at(self) -> int | None:
        """When its ``ttl`` is over, epoch ms; None without one."""
        return self._job.expire_at

    @property
    def scheduler_name(self) -> str | None:
        """The scheduler that waits for its end (`repeat_after_complete`); else None."""
        return self._job.scheduler_name

    @property
    def scheduled_for(self) -> int | None:
        """The instant of its scheduler that it is for, epoch ms; of several missed ones that it stands for, the
        first. None where no scheduler of ours has added it.
        """
        return self._job.scheduled_for

    @property
    def tpm_tokens(self) -> float | None:
        """What its handler said with `report_tokens`; None where it said nothing."""
        return self._job.tpm_tokens

    @property
    def budget_key(self) -> str | None:
        """Key of the budget of its flow; None without one."""
        return self._job.budget_key

    @property
    def discarded(self) -> bool:
        """In a handler: whether `discard` was called."""
        return self._job.discarded

    def reload(self) -> None:
        """Read the job's record, as it is now: everything that `Queue.get_job` would read. See `Job.reload`."""
        wait_for(self._job, self._job.reload())

    def stream(self, chunk: Mapping[str, str | float], *, keep: int = CHUNKS_KEPT) -> str:
        """Append a chunk to the job's stream, which `Queue.stream` and `Queue.read_stream` read. See `Job.stream`."""
        return wait_for(self._job, self._job.stream(chunk, keep=keep))

    def stream_chunk(self, type: str, content: str | None = None, *, keep: int = CHUNKS_KEPT) -> str:
        """Append a chunk with the fields ``type`` and ``content``. Raises the errors of `stream`. See
        `Job.stream_chunk`.
        """
        return wait_for(self._job, self._job.stream_chunk(type, content, keep=keep))

    @property
    def usage(self) -> JobUsage | None:
        """The last usage report: of this attempt in a handler, otherwise as of when the job was read; or None."""
        return self._job.usage

    def report_usage(
        self,
        *,
        model: str | None = None,
        provider: str | None = None,
        tokens: Mapping[str, float] | None = None,
        costs: Mapping[str, float] | None = None,
        total_tokens: float | None = None,
        total_cost: float | None = None,
        cost_unit: str | None = None,
        latency: float | timedelta | None = None,
        cached: bool | None = None,
    ) -> JobUsage:
        """Report the usage of this job so far. A report replaces the previous one: report totals, not increments.
        See `Job.report_usage`.
        """
        return wait_for(
            self._job,
            self._job.report_usage(
                model=model,
                provider=provider,
                tokens=tokens,
                costs=costs,
                total_tokens=total_tokens,
                total_cost=total_cost,
                cost_unit=cost_unit,
                latency=latency,
                cached=cached,
            ),
        )

    def store_vector(self, field: str, embedding: Iterable[float]) -> None:
        """Store an embedding with the job, for `Queue.vector_search`. Works without a search module, too. See
        `Job.store_vector`.
        """
        wait_for(self._job, self._job.store_vector(field, embedding))
