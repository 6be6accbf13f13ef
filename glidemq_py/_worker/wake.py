"""Waits for wake-ups with a blocking read in a second consumer group (docs/reference/functions.md, "Waking").

The read fetches no jobs; only exchange calls do. It uses its own connection, because a blocking read delays
every other command on its connection, and closing the connection ends the read at once.

If possible, an exchange call is sent right behind the read, and the server runs it as soon as the read ends. This
saves an idle worker one round trip per job.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from glidemq_py._client.transport import Transport
from glidemq_py._core.logs import get_logger
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.fetch_loop import FetchLoop
from glidemq_py._worker.source import BLOCK_MS, QueueSource
from glidemq_py.errors import AmbiguousResultError, ClosedError, GlideMQError

_log = get_logger(__name__)

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 1.0
_INVALIDATE_S = 2.0
_PATIENCE_S = 2.5
"""Timeout of a read, which blocks for a second at most. The slots that its call reserves are unused meanwhile."""


class WakeReader:
    """Reads while the fetch loop is idle, and makes it fetch when jobs may be ready."""

    def __init__(self, link: QueueLink, fetching: FetchLoop, source: QueueSource) -> None:
        self._link = link
        self._source = source
        self._fetching = fetching
        self._transport: Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Start the reader task."""
        self._task = asyncio.create_task(self._watch(), name=f"glidemq-wake-{self._link.keys.name}")

    async def _watch(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            await self._fetching.idle.wait()
            try:
                await self._wait()
                pause = _FIRST_PAUSE_S
                await asyncio.sleep(0)  # lets the fetched jobs start before the next read is sent
                continue
            except ClosedError:
                if self._closed:
                    return
                self._transport = None
            except GlideMQError as error:
                # Usually a missing group (after FLUSHALL), which the next exchange creates.
                _log.debug("queue %s: waiting for a wake-up failed; retrying: %s", self._link.label, error)
                pause = await self._sleep(pause)
            except Exception as error:
                # A bug of ours must not end the wake-ups.
                _log.error("queue %s: waiting for a wake-up failed; retrying", self._link.label, exc_info=error)
                await self._disconnect()
                pause = await self._sleep(pause)
            self._fetching.request_jobs()

    @staticmethod
    async def _sleep(pause: float) -> float:
        """Sleep about ``pause`` seconds and return the next pause."""
        await asyncio.sleep(pause * (0.5 + random.random()))
        return min(pause * 2, _LAST_PAUSE_S)

    async def _disconnect(self) -> None:
        """Close the connection, whose state is unknown; the next read opens another one."""
        transport, self._transport = self._transport, None
        if transport is not None:
            with contextlib.suppress(Exception):
                await transport.close()

    async def _wait(self) -> None:
        """Wait for a wake-up; if possible, send the exchange call right behind the read."""
        if self._transport is None:
            self._transport = await self._link.transport.dedicated()
        pipelined = self._fetching.next_pipelined()
        if pipelined is None:
            woken = bool(await self._transport.command(*self._source.wake_command()))
            engine = self._fetching.engine
            if woken and self._source.wakes_one and (engine.free <= 0 or not engine.may_fetch):
                await self._pass_on()
            self._fetching.request_jobs()
            return
        call, request = pipelined
        try:
            async with asyncio.timeout(_PATIENCE_S):
                reply = await self._transport.call_after(self._source.wake_command(), request, BLOCK_MS)
        except BaseException as error:
            if isinstance(error, TimeoutError):
                # The call may still be in flight; send nothing else on this connection.
                stuck, self._transport = self._transport, None
                await stuck.close()
                error = AmbiguousResultError(f"no reply to an exchange call behind a read within {_PATIENCE_S} s")
            self._fetching.pipelined_failed(call, error, closing=self._closed)
            raise error
        self._fetching.pipelined_replied(call, reply)

    async def _pass_on(self) -> None:
        """Wake up another worker: this one has no free slot any more, or is paused."""
        try:
            # NOMKSTREAM: a bare command of one key must not create the key at the target of a slot that moves.
            await self._link.command("XADD", self._link.keys.wake, "NOMKSTREAM", "MAXLEN", "~", "64", "*", "w", "1")
        except GlideMQError as error:
            _log.debug("queue %s: waking up another worker failed: %s", self._link.label, error)

    async def stop_accepting(self) -> bool:
        """Stop reading, and release the jobs that a pipelined call has fetched.

        If the server cannot be reached, those jobs stall and are recovered.

        Returns:
            False if the server did not reply within two seconds.
        """
        await self.close()
        with contextlib.suppress(GlideMQError):
            try:
                async with asyncio.timeout(_INVALIDATE_S):
                    await self._fetching.invalidate_pipelined()
            except TimeoutError:
                return False
        return True

    async def close(self) -> None:
        """End the read by closing its connection. Idempotent."""
        self._closed = True
        if self._transport is not None:
            await self._transport.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
