"""`Message`: a job as a subscription gets it. Its record is everybody's, its attempts are the subscription's own."""

from __future__ import annotations

from typing import Any, Generic, NoReturn

from typing_extensions import TypeVar

from glidemq_py._core.calls import control
from glidemq_py._core.times import Milliseconds
from glidemq_py._job import Job
from glidemq_py._worker.run import Run
from glidemq_py.errors import GlideMQError

__all__ = ["Message", "MessageRun"]

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)


class Message(Job[DataT, ResultT], Generic[DataT, ResultT]):
    """A message in a subscription's hands: a `Job` whose `name` is its subject.

    `attempts_made` and `stalled_count` are those of this subscription. Progress and log are the message's own: every
    subscription writes to the same.
    """

    @property
    def subject(self) -> str:
        """What it was published as."""
        return self.name

    @property
    def _token(self) -> tuple[int, int]:
        # The token of an attempt is its subscription's, and the record does not know it.
        return control.NO_TOKEN

    def __repr__(self) -> str:
        return f"<Message {self.id!r} {self.subject!r} of broadcast {self.queue_name!r}>"

    def suspend(self, **_: Any) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Not for messages. Raises GlideMQError."""
        raise _for_jobs("suspend")

    async def wait_for_signal(self, name: str, **_: Any) -> NoReturn:
        """Not for messages. Raises GlideMQError."""
        raise _for_jobs("wait_for_signal")

    async def move_to_waiting_children(self, **_: Any) -> NoReturn:
        """Not for messages. Raises GlideMQError."""
        raise _for_jobs("move_to_waiting_children")

    def rate_limit_group(self, *_: Any, **__: Any) -> NoReturn:
        """Not for messages. Raises GlideMQError."""
        raise _for_jobs("rate_limit_group")

    async def retry(self) -> NoReturn:
        """Not for messages: `Broadcast.redeliver`. Raises GlideMQError."""
        raise GlideMQError("a message has no end of its own: Broadcast.redeliver brings it to a subscription again")

    async def wait_until_finished(self, timeout: Milliseconds = 30_000) -> NoReturn:
        """Not for messages: `Broadcast.get_delivery`. Raises GlideMQError."""
        raise GlideMQError("a message has no end of its own: ask Broadcast.get_delivery what a subscription made of it")

    async def reload(self) -> None:
        """Read the message's record, which is everybody's; what is this subscription's own stays. See `Job.reload`."""
        own = self.attempts_made, self.stalled_count, self.processed_on, self.failed_reason, self.failed_type
        state, trace = self.state, self._stacktrace_text
        await super().reload()
        self.attempts_made, self.stalled_count, self.processed_on, self.failed_reason, self.failed_type = own
        self._state, self._stacktrace_text = state, trace

    async def update_data(self, data: DataT) -> None:
        """Not for messages: other subscriptions have the same data. Raises GlideMQError."""
        raise GlideMQError("the data of a message is that of every subscription and cannot be replaced")


def _for_jobs(what: str) -> GlideMQError:
    return GlideMQError(f"`{what}` is for jobs: a message is that of every subscription, and none can put it off")


class MessageRun(Run):
    """A message being run."""

    job_type = Message
    __slots__ = ()
