"""`QueueEvents` for blocking code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self, cast

from glidemq_py._client.connect import BlockingConnection
from glidemq_py._client.event_reader import QueueEvent
from glidemq_py._client.portal import drive, iterate
from glidemq_py._core.misuse import BlockingOnly, known_arguments
from glidemq_py._core.queue_options import DEFAULT_PREFIX
from glidemq_py.sync.driving import EventsCore

__all__ = ["QueueEvents"]

Listener = Callable[[QueueEvent], None]


class QueueEvents(BlockingOnly):
    """Receive the events of a queue, by iteration or with listeners. Listeners are called in a separate thread.

    ``for event in QueueEvents("emails"): ...`` yields `QueueEvent` objects from the start of the iteration, without
    end; a `close` in another thread ends it within a second. Alternatively, register listeners with `on` and use the
    object in a ``with`` block. No event after the start is missed: after a lost connection, reading continues where it
    stopped.

    Use one object per reader: either listeners or one iteration. Leaving the iteration closes the object.

    Args:
        name: Name of the queue.
        connection: A URL, `ConnectionOptions`, or None. None means ``GLIDEMQ_URL`` if set, otherwise a private
            embedded server.
        prefix: First part of every key.
        last_event_id: Start after this event: the id of an event, or the property of this name; None or "$" starts now.

    Raises:
        GlideMQValidationError: If a name or id is invalid.
    """

    @known_arguments("queue")
    def __init__(
        self,
        name: str,
        connection: BlockingConnection = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        last_event_id: str | None = None,
    ) -> None:
        self._core = EventsCore(name, cast("Any", connection), prefix=prefix, last_event_id=last_event_id)

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._core.name

    @property
    def last_event_id(self) -> str | None:
        """Where to continue after the last event that was returned: the ``last_event_id`` of another `QueueEvents`.

        It is the id of that event; in a partitioned queue, the ids of the last event of each partition. None before the
        start.
        """
        return self._core.last_event_id

    def on(self, event: str, listener: Listener) -> Listener:
        """Register a listener for an event.

        Args:
            event: Name of the event, such as "completed"; "*" is every event.
            listener: Function, called with the `QueueEvent` in a separate thread. Its exceptions are logged.

        Returns:
            The listener.

        Raises:
            GlideMQValidationError: If the event does not exist, or the listener is not callable.
            GlideMQError: If the object is being iterated over.
        """
        found: Any = self._core.on(event, listener)
        return found  # type: ignore[no-any-return]

    def off(self, event: str, listener: Listener) -> None:
        """Remove a listener; no effect if it is not registered."""
        self._core.off(event, listener)

    def wait_until_ready(self) -> None:
        """Connect and set the start position: all later events will be received.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
            ClosedError: If the object is closed.
        """
        drive(self._core.wait_until_ready())

    def __iter__(self) -> Iterator[QueueEvent]:
        return iterate(aiter(self._core), _same)

    def __enter__(self) -> Self:
        drive(self._core.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._core)

    def close(self) -> None:
        """Stop reading and close the connection. Idempotent."""
        drive(self._core.close())


def _same(event: QueueEvent) -> QueueEvent:
    return event
