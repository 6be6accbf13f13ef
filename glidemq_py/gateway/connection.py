"""`Connection`: reads the frames of a TCP connection, runs their commands, and writes the answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias, cast

from glidemq_py.gateway.commands import execute, failure
from glidemq_py.gateway.session import Session
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.table import Answer
from glidemq_py.gateway.values import (
    MAX_FRAME,
    MAX_UNAUTHENTICATED_FRAME,
    FrameReader,
    InvalidValueError,
    LargeAnswer,
    ValueLimitError,
    frame_of,
    portable,
    request_id_of,
    value_of,
)

MAX_RUNNING: Final = 50
"""Commands of one connection that run at a time; the next ones wait."""
_AUTH_S: Final = 10.0
"""Maximum time of a connection until it is authenticated, unless that of a frame is shorter."""
_INVALID_FORMAT: Final = "Invalid command format"
_MAX_UNSTARTED: Final = 100
"""Frames that wait before the connection is read no further."""
_LARGE_FRAME: Final = 262_144
"""Bytes of a frame above which it is decoded in a thread: as small maps, this much takes about 0.1 s."""
_Decoded: TypeAlias = tuple[Any, str | None]
"""The value of a frame and None; or a map with its `reqId`, or None, and the error of its answer."""

_decoder: Final = ThreadPoolExecutor(1, "glidemq-gateway-decoder")
"""One thread, so that the event loop gets at least half of the time of the interpreter."""


class Connection(Session, asyncio.Protocol):
    """The protocol of one connection.

    Commands may end in any order, and those that add jobs keep the order of their frames. While `MAX_RUNNING` run, or
    the client does not read its answers, the connection is not read.

    Args:
        state: The gateway.
    """

    def __init__(self, state: GatewayState) -> None:
        super().__init__(state)
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(MAX_FRAME if self.is_authenticated else MAX_UNAUTHENTICATED_FRAME)
        self._unstarted: deque[bytes] = deque()
        self._timer: asyncio.TimerHandle | None = None
        """Closes the connection if its incomplete frame does not end in time."""
        self._remaining: float | None = None
        """Time that the incomplete frame has left, s, while the connection is not read."""
        self._auth_timer: asyncio.TimerHandle | None = None
        """Closes the connection if it is not authenticated in time."""
        self._is_reading = True
        self._is_write_paused = False
        self._is_decoding = False
        """Whether a large frame is being decoded."""
        self._unsent: list[bytes] = []
        """Frames that leave together at the end of this turn of the event loop."""

    # -- connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection unless there are too many."""
        # Of uvloop it is no subclass.
        self._transport = cast("asyncio.Transport", transport)
        if self.state.rejects(self, self.peer):
            self.abort()
        elif not self.is_authenticated:
            seconds = min(_AUTH_S, self.state.options.frame_timeout / 1_000)
            self._auth_timer = self._loop.call_later(seconds, self._end_unauthenticated, seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session; running commands are cancelled."""
        self._is_ending = True
        self._stop_timer()
        self._stop_auth_timer()
        self._unstarted.clear()
        for task in self._running:
            task.cancel()
        self._transport = None
        self.state.clients.discard(self)
        self.release()

    def pause_writing(self) -> None:
        """Stop reading: the client does not read its answers."""
        self._is_write_paused = True
        self._room_changed.clear()
        self._update_reading()

    def resume_writing(self) -> None:
        """Read again."""
        self._is_write_paused = False
        self._room_changed.set()
        self._start()
        self._update_reading()

    def data_received(self, data: bytes) -> None:
        """Run the commands of the frames that are complete."""
        if self._is_ending:
            return
        frames = self._reader.feed(data)
        if frames:
            self._unstarted.extend(frames)
            if self._timer is not None or self._remaining is not None:
                self._stop_timer()  # of a frame that is complete now
        self._start()
        if self._reader.oversized:
            if self.is_authenticated or not self._running:
                limit, size = self._reader.limit, self._reader.oversized
                self._answer(None, failure(f"Frame too large: {size} bytes exceeds maximum {limit}"))
                self._end()  # once the commands before it are answered
            # else an Auth before the frame may permit it
        elif self._timer is None and self._remaining is None and self._reader.has_partial:
            self._start_timer(self.state.options.frame_timeout / 1_000)
        self._update_reading()

    async def drain(self, seconds: float) -> None:
        """Accept no more commands, wait for the running ones, and close the connection."""
        self.end_polls()
        self._unstarted.clear()
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        if self._running:
            self.abort()  # connection_lost cancels them
        self._end()

    # -- commands --------------------------------------------------------------------------------------------

    def authenticate(self, token: str) -> bool:
        """Accept a token; return False if it is invalid."""
        if not super().authenticate(token):
            return False
        self._stop_auth_timer()
        self._reader.limit = MAX_FRAME
        return True

    def _start(self) -> None:
        while self._unstarted and not self._is_decoding and len(self._running) < MAX_RUNNING:
            if self._is_write_paused:
                return
            payload = self._unstarted.popleft()
            if len(payload) > _LARGE_FRAME:
                self._start_large(payload)
            else:
                self._start_decoded(_decoded(payload))

    def _start_large(self, payload: bytes) -> None:
        """Decode a large frame in a thread, so that other connections are served; the frames behind it wait."""
        self._is_decoding = True
        decoding = self._loop.run_in_executor(_decoder, _decoded, payload)
        self._running.add(decoding)
        decoding.add_done_callback(self._start_large_decoded)

    def _start_large_decoded(self, decoding: asyncio.Future[_Decoded]) -> None:
        self._is_decoding = False
        if not self._is_ending and not decoding.cancelled():
            self._start_decoded(decoding.result())
        self._ended(decoding)

    def _start_decoded(self, decoded: _Decoded) -> None:
        """Start the command of a decoded frame."""
        task = self._loop.create_task(self._run(*decoded))
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def _run(self, value: Any, error: str | None) -> None:
        is_allowed = self._limit is None or self._limit.allows()
        name = value.get("cmd") if value.__class__ is dict else None
        if error is None and (not isinstance(name, str) or not name or not is_allowed):
            error = _problem_of(value, is_allowed=is_allowed)
        given = value if value.__class__ is dict else None
        self._answer(given, failure(error) if error is not None else await execute(self, str(name), value))

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._running.discard(task)
        if self._unstarted or self._is_ending or not self._is_reading or self._reader.oversized:
            self._start_next()

    def _start_next(self) -> None:
        self._start()
        if self._reader.oversized and not self._is_ending and (self.is_authenticated or not self._running):
            self.data_received(b"")
        elif self._is_ending:
            self._end()
        else:
            self._update_reading()

    def _answer(self, given: Mapping[Any, Any] | None, answer: Answer) -> None:
        if given is not None and "reqId" in given:
            request = given["reqId"]
            answer["reqId"] = request if request.__class__ is str else portable(request)
        if answer.__class__ is LargeAnswer:
            pieces = self.parts.content(answer)
            self.notify(b"".join((sum(map(len, pieces)).to_bytes(4, "big"), *pieces)))
            return
        try:
            frame = frame_of(answer)
        except (RecursionError, ValueError):  # data of another program
            rejected = failure("The answer is nested too deeply for MessagePack")
            frame = frame_of({**rejected, "reqId": answer["reqId"]} if "reqId" in answer else rejected)
        self._send(frame)

    def notify(self, frames: bytes) -> None:
        """Send frames at once, such as events."""
        self._unsent.append(frames)
        self._flush()

    def _send(self, frame: bytes) -> None:
        # A lone answer leaves at once. Each write costs a system call, so several wait for the end of the turn.
        unsent = self._unsent
        unsent.append(frame)
        if len(unsent) > 1:
            return
        if len(self._running) > 1:
            self._loop.call_soon(self._flush)
        else:
            self._flush()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        transport = self._transport
        if not unsent or transport is None or transport.is_closing():
            return
        transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
        if transport.get_write_buffer_size() > self.state.options.max_unsent:
            self.state.warnings.warn(
                "unsent", f"gateway: closed a connection of {self.peer} that did not read its answers"
            )
            self.abort()

    # -- flow control ----------------------------------------------------------------------------------------

    def _update_reading(self) -> None:
        is_full = len(self._unstarted) > _MAX_UNSTARTED or self._reader.oversized
        is_reading = not (self._is_write_paused or self._is_ending or is_full)
        transport = self._transport
        if is_reading is self._is_reading or transport is None or transport.is_closing():
            return
        self._is_reading = is_reading
        if not is_reading:
            transport.pause_reading()
            if self._timer is not None:  # the client cannot complete its frame now
                remaining = self._timer.when() - self._loop.time()
                self._stop_timer()
                self._remaining = max(0.0, remaining)
        else:
            transport.resume_reading()
            if self._remaining is not None:
                self._start_timer(self._remaining)

    def _start_timer(self, seconds: float) -> None:
        self._remaining = None
        self._timer = self._loop.call_later(seconds, self.abort)

    def _stop_timer(self) -> None:
        self._remaining = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_unauthenticated(self, seconds: float) -> None:
        self._auth_timer = None
        self.state.warnings.warn(
            "unauthenticated",
            f"gateway: closed a connection of {self.peer} that was not authenticated in {seconds:g} s",
        )
        self._answer(None, failure(f"Not authenticated within {seconds:g} s"))
        self._unstarted.clear()
        self._end()

    def _stop_auth_timer(self) -> None:
        if self._auth_timer is not None:
            self._auth_timer.cancel()
            self._auth_timer = None

    def _end(self) -> None:
        self._is_ending = True
        self._stop_timer()
        if self._transport is not None and not self._running and not self._unstarted:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once; then the running commands are cancelled."""
        self._is_ending = True
        if self._transport is not None:
            self._transport.abort()


def _decoded(payload: bytes) -> _Decoded:
    """Return the value of a frame; or its known part, and the error of its answer."""
    try:
        return value_of(payload), None
    except ValueLimitError as error:
        return request_id_of(payload), f"{_INVALID_FORMAT}: {error}"
    except InvalidValueError:
        return None, _INVALID_FORMAT


def _problem_of(value: Any, *, is_allowed: bool) -> str:
    """Return why a value is rejected before it is executed."""
    if value.__class__ is dict and not is_allowed:
        return "Rate limit exceeded"
    is_no_format = value is None or (value.__class__ is dict and any(isinstance(key, bytes) for key in value))
    return _INVALID_FORMAT if is_no_format else "Invalid command"
