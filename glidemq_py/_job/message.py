"""`Message`: a message delivered to a subscription. Subscriptions share its record; attempts are per subscription."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NoReturn

from typing_extensions import TypeVar

from glidemq_py._core.calls import administration
from glidemq_py._core.record import JobRecord
from glidemq_py._core.times import Milliseconds
from glidemq_py._features import usage as usage_reports
from glidemq_py._features import vectors
from glidemq_py._features.streams import job_api as streams
from glidemq_py._job import details, steps
from glidemq_py._job.attempt import Attempt, watch_calls
from glidemq_py._job.contents import JobContents, resolve_in_hints
from glidemq_py._job.message_twin import BlockingMessage

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)
ContextT = TypeVar("ContextT", default=Any)


class Message(JobContents[DataT, ResultT, ContextT]):
    """A message delivered to a subscription of a broadcast, as handlers get it.

    All subscriptions share its data, progress, log, stream, usage and vectors. Attempts are per subscription:
    `Broadcast.get_delivery` returns their state.

    Attributes:
        id: Id of the message, unique in its broadcast.
        name: The subject it was published with; see `subject`.
        timestamp: When the message was published.
        attempts_made: Number of failed attempts so far in this subscription.
        priority: Always 0.
        stalled_count: How often a worker of this subscription stopped renewing the message's lock.
        processed_on: When this attempt started.
        failed_reason: Message of the last failure in this subscription; None without one.
        failed_type: Exception type name of the last failure in this subscription; None without one.
    """

    @property
    def subject(self) -> str:
        """The subject it was published with."""
        return self.name

    @property
    def _token(self) -> tuple[int, int]:
        # Fencing tokens are per subscription; the shared record has none.
        return administration.NO_TOKEN

    def _numbered(self, number: str, attempt: Attempt) -> str:
        return f"{number} {attempt.entry}/{attempt.fence} {self._link.subscription}"

    def _apply(self, record: JobRecord) -> None:
        # The fields of the attempt stay: the shared record has none of this subscription.
        self.timestamp = record.timestamp or 0
        self._forget_data()
        self._data_text, self._opts_text, self._progress_text = record.data, record.opts, record.progress
        self._progress_message = ()

    @property
    def blocking(self) -> BlockingMessage[DataT, ResultT, ContextT]:
        """This message with blocking methods, for handlers that are plain functions."""
        return BlockingMessage(self)

    def move_to_delayed(self, when: Milliseconds | datetime) -> NoReturn:
        """End this attempt and deliver the message to this subscription again later. The attempt is not counted.

        The method always raises, so code after it does not run.

        Args:
            when: Time from now (ms or timedelta), or the time to run at (a datetime; naive is local time).

        Raises:
            DelayedError: Always, unless another error is raised. Do not catch it.
            GlideMQValidationError: If an argument is invalid.
            GlideMQError: If called outside the message's handler.
        """
        self._in_handler("move_to_delayed")
        raise steps.delayed_error(self, when)

    move_to_failed = steps.move_to_failed
    report_tokens = steps.report_tokens
    stream = streams.stream
    stream_chunk = streams.stream_chunk
    report_usage = usage_reports.report_usage
    store_vector = vectors.store_vector
    reload = details.reload

    def __repr__(self) -> str:
        return f"<Message {self.id!r} {self.subject!r} of broadcast {self.queue_name!r}>"


watch_calls(Message)
resolve_in_hints(Message)
