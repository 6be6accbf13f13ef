"""`StoredJob`: the attributes of a job, from the row of a fetch or from its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Self, cast

from glidemq_py._core.job_options import MAX_PRIORITY
from glidemq_py._core.option_values import Fallback, current_fallback, read_fallbacks, read_tags
from glidemq_py._core.payload import decode_result
from glidemq_py._core.record import JobOutcome, JobRecord, JobState
from glidemq_py._features.suspend import Signal, parse_signals_field
from glidemq_py._features.usage import read_usage
from glidemq_py._job.contents import ContextT, DataT, JobContents, ResultT
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import JobNotLoadedError

STEP_KEY: Final = "step"
"""Key of the step in a job's data, here and in glide-mq for Node."""


class StoredJob(JobContents[DataT, ResultT, ContextT]):
    """What a `Job` knows of itself."""

    outcome: JobOutcome = JobOutcome.ADDED
    finished_on: int | None = None
    fallback_index: int = 0
    """Position in the chain of fallbacks, which is the number of retried attempts; 0 = no fallback in use."""
    _delay: int | None = None
    _state: JobState | None = None
    _result_text: str | None = None
    _read_result: Callable[[Any], Any] | None = None
    """Converts a decoded result to the task's result type; set for jobs of a task."""
    _check_step: Callable[[str], None] | None = None
    """Rejects a step that does not fit the task's own parameter ``step``; None if it has no such parameter."""
    _own_keys_text: str | None = None
    """The names in the data that earlier runs of a task have added, JSON."""
    _iterated: bool = False
    """True once `iterate` was called in this attempt."""
    _signals_text: str | None = None
    _requeues: str | None = None
    """Number of requeues that deleted its steps."""
    _waits: dict[str, int] | None = None
    """Number of signals already returned per name in this run of the handler."""

    @classmethod
    def _from_record(cls, link: QueueLink, record: JobRecord) -> Self:
        """Return the job of a record read from the server."""
        job = cls(link, record.id, record.name)
        job._apply(record)
        return job

    def _apply(self, record: JobRecord) -> None:
        self.name = record.name
        self.timestamp = record.timestamp or 0
        self.attempts_made = record.attempts_made
        self._delay = record.delay
        self.priority, self._rank = record.priority, record.rank
        self.stalled_count = record.stalled_count
        self.processed_on = record.processed_on
        self.finished_on = record.finished_on
        self.failed_reason = record.failed_reason
        self.failed_type = record.failed_type
        self._state = record.state
        self._stacktrace_text = None
        self._forget_data()
        self._data_text = record.data
        self._given, self._opts_text = None, record.opts
        self._result_text = record.returnvalue
        self._progress_text, self._progress_message = record.progress, ()
        self._signals_text = record.signals
        self.fallback_index = record.fallback_index
        self._budget_key = record.budget_key
        self._record = record
        if not self._is_run:
            # In a handler, usage is what this attempt has reported; limits and budgets count it.
            self._usage = read_usage(record.usage)

    @property
    def returnvalue(self) -> ResultT | None:
        """Result of a completed job as read from the server; None before.

        Raises:
            SerializationError: If the serializer cannot decode the stored result.
        """
        if self._result_text is None:
            return None
        return self._decode_result(self._result_text)

    def _decode_result(self, text: str) -> ResultT:
        value = decode_result(text, self._link.serializer)
        return cast("ResultT", value if self._read_result is None else self._read_result(value))

    @property
    def step(self) -> str | None:
        """The last ``next_step`` that an earlier attempt set; before, the one that the producer set; else None.

        It is stored as the key ``step`` of the job's data, as in glide-mq for Node. It is not passed to a task as an
        argument, unless the task has a parameter of that name.

        Raises:
            JobDataError: If the data cannot be decoded.
        """
        step = step_of(self.data)
        return step if isinstance(step, str) else None

    @property
    def fair_key(self) -> str | None:
        """Fair key of the job; None for a job without one."""
        key = self.opts.get("fairKey")
        return key if isinstance(key, str) else None

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the job, from the option ``tags``."""
        return read_tags(self.opts.get("tags"))

    @property
    def ordering_key(self) -> str | None:
        """Key of the job's ordering group; None for a job without `ordering`."""
        ordering = self.opts.get("ordering")
        key = cast("Mapping[str, Any]", ordering).get("key") if isinstance(ordering, Mapping) else None
        return key if isinstance(key, str) and key else None

    @property
    def current_fallback(self) -> Fallback | None:
        """The fallback of this attempt: None for the first attempt, then each of the option ``fallbacks`` in turn.

        It is None again if there are more attempts than fallbacks; check `fallback_index` to distinguish the two.
        """
        return current_fallback(read_fallbacks(self.opts.get("fallbacks")), self.fallback_index)

    @property
    def rank(self) -> int:
        """Rank of the job: higher ranks run first; 0 for a job without rank and priority."""
        if self._rank is not None:
            return self._rank
        return max(1, MAX_PRIORITY + 1 - self.priority) if self.priority else 0

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signals that have resumed this job, oldest first; empty for a job that was never suspended."""
        return parse_signals_field(self._signals_text)

    # -- attributes that `Queue.get_job` and `reload` read ------------------------------------------------
    # Most of them are not loaded for jobs of handlers, lists and adds, and raise `JobNotLoadedError`. None means that
    # the job has none.

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
    def scheduled_for(self) -> int | None:
        """Scheduled time that the job was added for, epoch ms; the first, if it replaces several missed ones.

        None if the job was not added by a scheduler of this library.
        """
        return self._known("scheduled_for", "scheduledFor").scheduled_for


def step_of(data: Any) -> object:
    """Return the value of the key ``step``, or None."""
    return cast("Mapping[str, Any]", data).get(STEP_KEY) if isinstance(data, Mapping) else None
