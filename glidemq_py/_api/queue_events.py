"""Listening to what happens in a queue: the events stream, read without a gap.

Events are news, not state: the stream keeps about the last thousand (data-model.md section 6), or as many as
`Queue.set_event_retention` says. Whoever needs a job's result asks for the job.
"""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

from glidemq_py._client.connect import Connection
from glidemq_py._client.event_reader import EventReader, QueueEvent
from glidemq_py._client.open_transport import open_transport
from glidemq_py._client.runtime import ASYNC_RUNTIME, Background, Runtime
from glidemq_py._client.transport import Transport
from glidemq_py._core.callables import check_callable
from glidemq_py._core.checks import check_text
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._core.names import validate_prefix, validate_queue_name
from glidemq_py._core.queue_options import DEFAULT_PREFIX
from glidemq_py.errors import ClosedError, EventLoopError, GlideMQError, GlideMQValidationError

__all__ = ["QueueEvent", "QueueEvents"]

_log = get_logger(__name__)
_BLOCK_MS = 1_000
_PAGE = 200
_MAX_PAUSE_S = 5.0
_NAME_LENGTH = 1_024
_ANOTHER = "make another QueueEvents for another reader"

Listener = Callable[[QueueEvent], Awaitable[None] | None]


class QueueEvents:
    """The events of a queue, as an async iterator or by listeners.

    ``async for event in QueueEvents("emails"): ...`` yields `QueueEvent`s from the moment the iteration starts;
    or register listeners with `on` and enter it (``async with``). The position is resolved at the start, so
    nothing that happens after it is missed, and a lost connection is taken up again where it broke off.

    One object is read in one way, by its listeners or by one iteration: its position is theirs. An iteration that is
    left closes it. Make another one for another reader.

    Args:
        name: the queue.
        connection: URL, options, or None (`GLIDEMQ_URL`, else the embedded server). A GLIDE client serves as
            the pattern for a connection of its own.
        prefix: first part of every key.
        last_event_id: start after this entry id; None, or "$", is now.

    It belongs to the event loop in which it is first used; another loop gets EventLoopError.

    Raises:
        GlideMQValidationError: a name or id that cannot be.
    """

    def __init__(
        self,
        name: str,
        connection: Connection = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        last_event_id: str | None = None,
    ) -> None:
        self._keys = QueueKeys(validate_prefix(prefix), validate_queue_name(name))
        self.name = name
        self._connection = connection
        self._start = _checked_id(last_event_id)
        self._listeners: dict[str, list[Listener]] = {}
        self._reader: EventReader | None = None
        self._transport: Transport | None = None
        self._task: Background | None = None
        self._loop: object = None
        self._entered = False
        self._iterating = False
        self._closed = False

    def on(self, event: str, listener: Listener) -> Listener:
        """Call ``listener`` (plain or async) for every event of that name; "*" is all of them.

        Raises:
            GlideMQValidationError: no name, or nothing that can be called. GlideMQError: it is being iterated over.
        """
        check_text("event", event, maximum=_NAME_LENGTH)
        check_callable("listener", listener, "event")
        self._refuse_beside_a_loop()
        self._listeners.setdefault(event, []).append(listener)
        if self._entered:
            self._listen()
        return listener

    def off(self, event: str, listener: Listener) -> None:
        """Take a listener away again."""
        with contextlib.suppress(ValueError):
            self._listeners.get(event, []).remove(listener)

    async def wait_until_ready(self) -> None:
        """Connect and fix the position: what happens from now on will be seen. Raises GlideMQConnectionError."""
        if self._closed:
            raise ClosedError("these queue events are closed")
        if self._reader is not None:
            self._check_loop()
            return
        shared = await self._open()
        # An injected client also carries other commands; a blocking read must not stand in their way.
        self._transport = await shared.dedicated() if self._is_injected() else shared
        reader = EventReader(self._transport, self._keys.events)
        if self._start is None:
            await reader.resolve()
        else:
            reader.position = self._start
        self._loop = self._runtime.current_loop()
        self._reader = reader

    def _check_loop(self) -> None:
        """Raise EventLoopError if another event loop reads these events."""
        if self._reader is not None and self._loop is not self._runtime.current_loop():
            raise EventLoopError(f"events of queue {self.name!r}", "another event loop reads them", _ANOTHER)

    _runtime: Runtime = ASYNC_RUNTIME

    async def _open(self) -> Transport:
        return await open_transport(self._connection)

    def _is_injected(self) -> bool:
        return hasattr(self._connection, "fcall")

    async def __aiter__(self) -> AsyncIterator[QueueEvent]:
        if self._task is not None and not self._closed:
            raise GlideMQError(f"listeners are told of these events of queue {self.name!r} already: {_ANOTHER}")
        self._refuse_beside_a_loop()
        self._iterating = True
        try:
            await self.wait_until_ready()
        except BaseException:
            self._iterating = False
            raise
        try:
            while not self._closed:
                for event in await self._read():
                    yield event
        finally:
            await self.close()

    async def _read(self) -> list[QueueEvent]:
        """Read once; where the connection is down, wait for it with growing pauses."""
        reader, pause = self._reader, 0.05
        assert reader is not None
        while not self._closed:
            try:
                return await reader.read()
            except ClosedError:
                break
            except EventLoopError:
                raise
            except GlideMQError as error:
                _log.warning("queue %r: reading events failed: %s; reading on in %.2f s", self.name, error, pause)
            await self._runtime.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, _MAX_PAUSE_S)
            with contextlib.suppress(GlideMQError):
                await reader.check_rewound()
        return []

    async def __aenter__(self) -> Self:
        await self.wait_until_ready()
        self._entered = True
        if self._listeners:
            self._listen()
        return self

    def _refuse_beside_a_loop(self) -> None:
        if self._iterating and not self._closed:
            raise GlideMQError(f"a loop reads these events of queue {self.name!r} already: {_ANOTHER}")

    def _listen(self) -> None:
        self._refuse_beside_a_loop()
        self._check_loop()
        if self._task is None and not self._closed:
            self._task = self._runtime.spawn(self._dispatch(), f"glidemq-events-{self.name}")

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _dispatch(self) -> None:
        while not self._closed:
            for event in await self._read():
                for listener in [*self._listeners.get(event.event, ()), *self._listeners.get("*", ())]:
                    await self._tell(listener, event)

    async def _tell(self, listener: Listener, event: QueueEvent) -> None:
        try:
            answer: Any = listener(event)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            _log.exception("a listener for %r events of queue %r failed", event.event, self.name)

    async def close(self) -> None:
        """Stop reading and close the connection; idempotent. Any event loop may do it."""
        self._closed = True
        if self._transport is not None:
            if self._loop is self._runtime.current_loop():
                await self._transport.close()
            else:
                self._transport.abandon()
        task = self._task
        if task is not None and not task.is_current():
            await task.stop()


def _checked_id(value: object) -> str | None:
    if value is None or value == "$":
        return None
    text = str(value)
    ms, dash, number = text.partition("-")
    if not ms.isdigit() or (dash and not number.isdigit()):
        raise GlideMQValidationError("last_event_id", value, "must be a stream entry id such as '1795240398325-0'")
    return text
