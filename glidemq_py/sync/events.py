"""`QueueEvents` for code that blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self, cast

from glidemq_py._client.connect import BlockingConnection
from glidemq_py._client.event_reader import QueueEvent
from glidemq_py._client.runtime import iterate_now, run_immediately
from glidemq_py._core.queue_options import DEFAULT_PREFIX
from glidemq_py.sync.driving import EventsCore

__all__ = ["QueueEvents"]

Listener = Callable[[QueueEvent], None]


class QueueEvents:
    """The events of a queue, as an iterator or by listeners, which are called in a thread of their own.

    ``for event in QueueEvents("emails"): ...`` yields from now on and for ever; another thread's `close` ends it within
    a second. Arguments and errors are those of `glidemq_py.QueueEvents`.
    """

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
        """The queue."""
        return self._core.name

    def on(self, event: str, listener: Listener) -> Listener:
        """Call ``listener`` for every event of that name, in a thread; "*" is all of them."""
        found: Any = self._core.on(event, listener)
        return found  # type: ignore[no-any-return]

    def off(self, event: str, listener: Listener) -> None:
        """Take a listener away again."""
        self._core.off(event, listener)

    def wait_until_ready(self) -> None:
        """Connect and fix the position: what happens from now on will be seen. Raises GlideMQConnectionError."""
        run_immediately(self._core.wait_until_ready())

    def __iter__(self) -> Iterator[QueueEvent]:
        return iterate_now(aiter(self._core), _same)

    def __enter__(self) -> Self:
        run_immediately(self._core.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading and close the connection; idempotent."""
        run_immediately(self._core.close())


def _same(event: QueueEvent) -> QueueEvent:
    return event
