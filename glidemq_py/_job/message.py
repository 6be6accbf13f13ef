"""`Message`: a message delivered to a subscription. Subscriptions share its record; attempts are per subscription."""

from __future__ import annotations

from glidemq_py._job.attempt import watch_calls
from glidemq_py._job.contents import ContextT, DataT, ResultT
from glidemq_py._job.core import MessageCore
from glidemq_py._job.message_twin import BlockingMessage


class Message(MessageCore[DataT, ResultT, ContextT]):
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
    def blocking(self) -> BlockingMessage[DataT, ResultT, ContextT]:
        """This message with blocking methods, for handlers that are plain functions."""
        return BlockingMessage(self)


watch_calls(Message)
