"""`Message`: a job as a subscription gets it. Its record is everybody's, its attempts are the subscription's own."""

from __future__ import annotations

from typing import Any, Generic

from typing_extensions import TypeVar

from glidemq_py.errors import GlideMQError
from glidemq_py.job import Job
from glidemq_py.wire.calls import control
from glidemq_py.worker.run import Run

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

    async def update_data(self, data: DataT) -> None:
        """Not for messages: other subscriptions have the same data. Raises GlideMQError."""
        raise GlideMQError("the data of a message is that of every subscription and cannot be replaced")


class MessageRun(Run):
    """A message being run."""

    job_type = Message
    __slots__ = ()
