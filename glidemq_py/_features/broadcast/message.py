"""`Message`: a job delivered to a subscription. All subscriptions share its record; attempts are per subscription."""

from __future__ import annotations

from typing import Any, Generic, NoReturn

from typing_extensions import TypeVar

from glidemq_py._core.calls import control
from glidemq_py._core.times import Milliseconds
from glidemq_py._job import Job
from glidemq_py._job.attempt import watch_calls
from glidemq_py._worker.run import Run
from glidemq_py.errors import GlideMQError

__all__ = ["Message", "MessageRun"]

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)
ContextT = TypeVar("ContextT", default=Any)


class Message(Job[DataT, ResultT, ContextT], Generic[DataT, ResultT, ContextT]):
    """A message delivered to a subscription: a `Job` whose `name` is its subject.

    `attempts_made` and `stalled_count` are per subscription. Progress and log are shared by all subscriptions.
    """

    @property
    def subject(self) -> str:
        """The subject it was published with."""
        return self.name

    @property
    def _token(self) -> tuple[int, int]:
        # Fencing tokens are per subscription; the shared record has none.
        return control.NO_TOKEN

    def __repr__(self) -> str:
        return f"<Message {self.id!r} {self.subject!r} of broadcast {self.queue_name!r}>"

    def suspend(self, **_: Any) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Not supported for messages; raises GlideMQError."""
        raise _for_jobs("suspend")

    async def wait_for_signal(self, name: str, **_: Any) -> NoReturn:
        """Not supported for messages; raises GlideMQError."""
        raise _for_jobs("wait_for_signal")

    async def move_to_waiting_children(self, **_: Any) -> NoReturn:
        """Not supported for messages; raises GlideMQError."""
        raise _for_jobs("move_to_waiting_children")

    def rate_limit_group(self, *_: Any, **__: Any) -> NoReturn:
        """Not supported for messages; raises GlideMQError."""
        raise _for_jobs("rate_limit_group")

    async def retry(self) -> NoReturn:
        """Not supported for messages, use `Broadcast.redeliver`; raises GlideMQError."""
        raise GlideMQError("a message cannot be retried; use Broadcast.redeliver to deliver it to a subscription again")

    async def wait_until_finished(self, timeout: Milliseconds = 30_000) -> NoReturn:
        """Not supported for messages, use `Broadcast.get_delivery`; raises GlideMQError."""
        raise GlideMQError("a message finishes once per subscription; use Broadcast.get_delivery")

    async def reload(self) -> None:
        """Reload the shared record of the message; fields of this subscription are kept. See `Job.reload`."""
        own = self.attempts_made, self.stalled_count, self.processed_on, self.failed_reason, self.failed_type
        state, trace = self.state, self._stacktrace_text
        await super().reload()
        self.attempts_made, self.stalled_count, self.processed_on, self.failed_reason, self.failed_type = own
        self._state, self._stacktrace_text = state, trace

    async def update_data(self, data: DataT) -> None:
        """Not supported for messages, whose data all subscriptions share; raises GlideMQError."""
        raise GlideMQError("the data of a message is shared by all subscriptions and cannot be replaced")


watch_calls(Message)


def _for_jobs(what: str) -> GlideMQError:
    return GlideMQError(f"`{what}` is not supported for messages, which all subscriptions share")


class MessageRun(Run):
    """A message being processed."""

    job_type = Message
    __slots__ = ()
