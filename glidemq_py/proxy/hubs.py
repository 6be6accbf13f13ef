"""`SubscriptionHub` shares the messages of a subscription among the clients that follow it.

A subscription has one worker in the proxy, however many clients it has, and none without clients: its messages then
stay on the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from glidemq_py._job.message import Message
from glidemq_py._worker.broadcasts import BroadcastWorker
from glidemq_py.errors import GlideMQError
from glidemq_py.proxy.responses import frame

_REDELIVERY_MS: Final = 1


class _Listener:
    """One client; buffers one message, so that at most one is lost with it."""

    def __init__(self, matches: Callable[[str], bool] | None) -> None:
        self.matches = matches
        self.waiting: asyncio.Queue[str] = asyncio.Queue(1)
        self.gone = asyncio.Event()

    async def take(self, text: str) -> bool:
        """Buffer a message as soon as there is room; return False if the client has left."""
        putting = asyncio.ensure_future(self.waiting.put(text))
        leaving = asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait((putting, leaving), return_when=asyncio.FIRST_COMPLETED)
            return not leaving.done()
        finally:
            putting.cancel()
            leaving.cancel()


class SubscriptionHub:
    """The clients of one subscription, and its worker while it has clients.

    Args:
        worker_of: creates the worker for a handler.
        gone: called when the last client has left.
    """

    def __init__(self, worker_of: Callable[[Any], BroadcastWorker], gone: Callable[[], object]) -> None:
        self._worker = worker_of(self._deliver)
        self._gone = gone
        self._listeners: set[_Listener] = set()
        self._starting = asyncio.Lock()
        self._started = False

    async def _deliver(self, message: Message[Any, Any]) -> None:
        listeners = [each for each in self._listeners if each.matches is None or each.matches(message.subject)]
        text = frame("message", _shape(message))
        taken = await asyncio.gather(*(listener.take(text) for listener in listeners))
        if not any(taken) and (listeners or not self._listeners):
            # All clients left after it was fetched: keep it for the next client.
            message.move_to_delayed(_REDELIVERY_MS)

    async def follow(self, matches: Callable[[str], bool] | None) -> AsyncIterator[str]:
        """Yield the matching messages as server-sent events, from now on."""
        listener = _Listener(matches)
        self._listeners.add(listener)
        try:
            async with self._starting:
                if not self._started:
                    await self._worker.start()
                    self._started = True
            while True:
                yield await listener.waiting.get()
        finally:
            listener.gone.set()
            self._listeners.discard(listener)
            if not self._listeners:
                await self.close()

    async def close(self) -> None:
        """Stop the worker; idempotent."""
        self._gone()
        await self._worker.close()


def _shape(message: Message[Any, Any]) -> dict[str, Any]:
    try:
        data = message.data
    except GlideMQError:
        data = None
    return {"id": message.id, "subject": message.subject, "data": data, "timestamp": message.timestamp}
