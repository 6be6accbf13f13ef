"""The two ways in which a lane of a worker waits for wake-ups (docs/reference/functions.md, "Waking").

`BlockingRead` waits with a blocking read in a second consumer group. The read fetches no jobs; only exchange calls do.
It uses its own connection, because a blocking read delays every other command on its connection, and closing the
connection ends the read at once. If possible, an exchange call is sent right behind the read, and the server runs it as
soon as the read ends. This saves an idle worker one round trip per job.

`ChannelWake` waits for a message on the channel of its queue, which costs no connection (`wake_channel`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final

from glidemq_py._client.runtime import stop_task
from glidemq_py._client.shared_reads import Reservation
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import working
from glidemq_py._core.logs import get_logger
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.fetch_calls import BLOCK_MS, QueueSource
from glidemq_py._worker.fetch_loop import FetchLoop
from glidemq_py._worker.wake_channel import BUSY_POLL_S, WakeChannels
from glidemq_py.errors import AmbiguousResultError, ClosedError, GlideMQError

_log = get_logger(__name__)

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 1.0
_REPLY_S: Final = 2.0
_PATIENCE_S: Final = 2.5
"""Timeout of a read, which blocks for a second at most. The slots that its call reserves are unused meanwhile."""
_SLOT_WAIT_S: Final = 0.02
"""How long a wake-up waits for a slot that a call in flight may leave free, before it is passed on."""


class Wake:
    """How a lane waits for wake-ups while no job is ready.

    Args:
        link: The queue.
        fetching: Fetches its jobs.
    """

    def __init__(self, link: QueueLink, fetching: FetchLoop) -> None:
        self._link = link
        self._fetching = fetching
        self._passing: set[asyncio.Task[None]] = set()

    @property
    def control_channel(self) -> str:
        """Channel on which the worker is called to read commands; "" if no call arrives."""
        return ""

    async def open(self) -> None:
        """Start waiting."""
        raise NotImplementedError

    def _pass_on(self) -> None:
        """Wake up another worker: this one has no free slot, or is paused."""
        passing = asyncio.create_task(self._wake_another())
        self._passing.add(passing)
        passing.add_done_callback(self._passing.discard)

    async def _wake_another(self) -> None:
        try:
            await self._link.call(working.pass_wake_up)
        except GlideMQError as error:
            _log.debug("queue %s: waking up another worker failed: %s", self._link.label, error)

    async def stop_accepting(self) -> bool:
        """Stop waiting; no job may arrive afterwards. Return False if the server did not reply within two seconds."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop waiting. Idempotent."""
        for each in tuple(self._passing):
            each.cancel()


class BlockingRead(Wake):
    """Reads while the fetch loop is idle, and makes it fetch when jobs may be ready.

    Args:
        link: The queue.
        fetching: Fetches its jobs.
        source: Builds the calls.
        reservation: That of the connection, if the number of these is limited.
    """

    def __init__(
        self, link: QueueLink, fetching: FetchLoop, source: QueueSource, reservation: Reservation | None = None
    ) -> None:
        super().__init__(link, fetching)
        self._source = source
        self._reservation = reservation
        self._transport: Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        fetching.engine.reads = True

    async def open(self) -> None:
        """Start reading."""
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
            if woken and self._source.wakes_one and (engine.pool.free <= 0 or not engine.may_fetch):
                self._pass_on()
            self._fetching.request_jobs()
            return
        call, request = pipelined
        try:
            async with asyncio.timeout(_PATIENCE_S):
                reply, _ = await self._transport.call_with(request, (), BLOCK_MS, read=self._source.wake_command())
        except BaseException as error:
            if isinstance(error, TimeoutError):
                # The call may still be in flight; send nothing else on this connection.
                stuck, self._transport = self._transport, None
                await stuck.close()
                error = AmbiguousResultError(f"no reply to an exchange call behind a read within {_PATIENCE_S} s")
            self._fetching.pipelined_failed(call, error, closing=self._closed)
            raise error
        self._fetching.pipelined_replied(call, reply)

    async def stop_accepting(self) -> bool:
        """Stop reading, and release the jobs that a pipelined call has fetched.

        If the server cannot be reached, those jobs stall and are recovered. See `Wake.stop_accepting`.
        """
        await self.close()
        with contextlib.suppress(GlideMQError):
            try:
                async with asyncio.timeout(_REPLY_S):
                    await self._fetching.invalidate_pipelined()
            except TimeoutError:
                return False
        return True

    async def close(self) -> None:
        """End the read by closing its connection. Idempotent."""
        await super().close()
        self._closed = True
        if self._transport is not None:
            await self._transport.close()
        if self._task is not None:
            await stop_task(self._task)
        self._fetching.engine.reads = False
        if self._reservation is not None:
            self._reservation.release()


class ChannelWake(Wake):
    """Waits for messages on the wake-up channel of a queue, and for the polls of `WakeChannels`.

    Args:
        link: The queue.
        fetching: Fetches its jobs.
        channels: The channels of the event loop.
        on_activity: Called when the queue may need maintenance tasks (True) or was found without any key (False).
        called: Called when there is a command for the worker.
    """

    def __init__(
        self, link: QueueLink, fetching: FetchLoop, channels: WakeChannels, on_activity: Callable[[bool], None],
        called: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(link, fetching)
        self._channels = channels
        self._on_activity = on_activity
        self.called = called
        self._polled_at = 0.0
        self._loop = asyncio.get_running_loop()
        self.number = channels.next_number()
        self.keys = link.keys
        self.transport: Transport = link.transport
        self._channel = channels.channel(self.number, cluster=link.transport.is_cluster)
        fetching.queue.wakes.append(self)

    @property
    def control_channel(self) -> str:
        """See `Wake.control_channel`."""
        return self._channels.control_channel(self.number) if self._channels.hears else ""

    @property
    def position(self) -> str:
        """See `Sleeper.position`. Entries of the same millisecond may be newer than the last exchange."""
        now = self._fetching.server_now
        return "0" if now == 0 else f"{now - 1}-18446744073709551615"

    async def open(self) -> None:
        """Start waking the queue."""
        self._fetching.wake_by(self._channel)
        await self._channels.add(self)

    def woken(self) -> None:
        """See `Sleeper.woken`."""
        pool = self._fetching.engine.pool
        if pool.is_full or not self._fetching.engine.may_fetch:
            self._pass_on()
        elif pool.free <= 0:
            self._loop.call_later(_SLOT_WAIT_S, self._pass_on_if_full)
        self._fetching.request_jobs()

    def _pass_on_if_full(self) -> None:
        engine = self._fetching.engine
        if engine.jobs_may_be_ready and engine.pool.free <= 0:
            self._pass_on()

    def found(self) -> None:
        """See `Sleeper.found`."""
        if not self._fetching.engine.jobs_may_be_ready:
            self._fetching.request_jobs()

    def checked(self, exists: bool) -> None:
        """See `Sleeper.checked`."""
        engine = self._fetching.engine
        self._on_activity(exists or bool(engine.running) or bool(engine.finished))
        now = self._loop.time()
        if exists and not engine.jobs_may_be_ready and now - self._polled_at >= BUSY_POLL_S:
            self._polled_at = now
            self._fetching.request_jobs()

    async def stop_accepting(self) -> bool:
        """See `Wake.stop_accepting`."""
        await self._channels.remove(self)
        try:
            async with asyncio.timeout(_REPLY_S):
                await self._link.command("ZREM", self._link.keys.wake_channels, self._channel.name)
        except (GlideMQError, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        """Stop waking the queue. Idempotent."""
        await super().close()
        await self._channels.remove(self)
        if self in self._fetching.queue.wakes:
            self._fetching.queue.wakes.remove(self)
