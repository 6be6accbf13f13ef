"""Waits for the end of jobs: by the event stream for low latency, and by polling the job's hash for reliability.

Events may be disabled, trimmed or missed. The hash is read when a wait starts and then at growing intervals, so a wait
never depends on events alone.
"""

from __future__ import annotations

import asyncio

from glidemq_py._client.event_reader import EventReader
from glidemq_py._client.loop_transport import LoopTransport
from glidemq_py._client.runtime import stop_task, wait_for_event
from glidemq_py._client.shared_reads import ReadConnection, open_reader
from glidemq_py._client.transport import Transport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._core.times import monotonic
from glidemq_py._partitions.link import Outcome
from glidemq_py.errors import GlideMQConnectionError, GlideMQError, JobNotFoundError, WaitTimeoutError

_log = get_logger(__name__)

_ENDS = frozenset(("completed", "failed", "expired", "revoked", "removed"))
_FIRST_POLL_S, _LAST_POLL_S, _GROWTH = 0.2, 2.0, 1.5
_IDLE_S = 10.0
_READY_S = 30.0
"""How long a wait waits for its event reader to start; then it polls only."""


class LoopWaiter:
    """A `Waiter` with one `ResultWaiter` per event loop.

    Args:
        transport: The queue's transport.
        keys: The queue's keys.
    """

    def __init__(self, transport: LoopTransport, keys: QueueKeys) -> None:
        self._transport = transport
        self._keys = keys

    async def _part(self) -> ResultWaiter:
        connection = await self._transport.connected()
        return connection.part(self, lambda transport: ResultWaiter(transport, self._keys))

    async def start(self) -> None:
        """See `Waiter.start`."""

        async def start() -> None:
            await (await self._part()).start()

        await self._transport.there(start())

    async def wait(self, job_id: str, timeout_ms: int) -> Outcome:
        """See `Waiter.wait`."""

        async def wait() -> Outcome:
            return await (await self._part()).wait(job_id, timeout_ms)

        return await self._transport.there(wait())

    def beside(self, keys: QueueKeys) -> LoopWaiter:
        """See `Waiter.beside`."""
        return LoopWaiter(self._transport, keys)

    async def close(self) -> None:
        """Close the waiter of the running event loop; the others close with their connections."""

        async def close() -> None:
            await (await self._transport.connected()).close_part(self)

        await self._transport.there(close())


class ResultWaiter:
    """One reader of a queue's events, shared by all waits for its jobs; it runs only while there are waits.

    Args:
        transport: Reads the job hashes, and is the template for the reader's own connection.
        keys: The queue's keys.
    """

    def __init__(self, transport: Transport, keys: QueueKeys) -> None:
        self._transport = transport
        self._keys = keys
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._ready: asyncio.Event | None = None
        self._dedicated: ReadConnection | None = None
        self._closed = False

    def beside(self, keys: QueueKeys) -> ResultWaiter:
        """See `Waiter.beside`."""
        return ResultWaiter(self._transport, keys)

    async def start(self) -> None:
        """Start the event reader, so that the end of a job added afterwards is not missed.

        If the reader cannot start, waits poll.
        """
        if self._closed:
            return
        if self._reader is None or self._reader.done():
            self._ready = asyncio.Event()
            self._reader = asyncio.create_task(self._read(self._ready), name=f"glidemq-results-{self._keys.name}")
        if self._ready is not None:
            await wait_for_event(self._ready, _READY_S)

    async def wait(self, job_id: str, timeout_ms: int) -> Outcome:
        """Wait for the job to end and return its outcome.

        Raises:
            WaitTimeoutError: If it did not end in time.
            JobNotFoundError: If it does not exist.
        """
        await self.start()
        happened = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(happened)
        seconds = timeout_ms / 1000
        try:
            async with asyncio.timeout(seconds):
                return await self._watch(job_id, happened, monotonic() + seconds)
        except TimeoutError:
            raise WaitTimeoutError(f"job {job_id!r} did not end within {timeout_ms} ms") from None
        finally:
            waiting = self._waiting[job_id]
            waiting.discard(happened)
            if not waiting:
                del self._waiting[job_id]

    async def _watch(self, job_id: str, happened: asyncio.Event, deadline: float) -> Outcome:
        interval = _FIRST_POLL_S
        while True:
            happened.clear()
            try:
                outcome = await self._poll(job_id)
            except GlideMQConnectionError as error:
                # The server may be restarting; the wait's timeout limits how long to wait for it.
                _log.debug("waiting for job %r of queue %r: %s", job_id, self._keys.name, error)
                outcome = None
            if outcome is not None:
                return outcome
            left = deadline - monotonic()
            if left <= 0:
                raise TimeoutError
            await wait_for_event(happened, min(interval, left))
            interval = min(interval * _GROWTH, _LAST_POLL_S)

    async def _poll(self, job_id: str) -> Outcome | None:
        fields = ("state", "returnvalue", "failedReason", "failedType")
        values = await self._transport.command("HMGET", self._keys.job(job_id), *fields)
        state, result, reason, kind = (None if v is None else v.decode("utf-8", "surrogateescape") for v in values)
        if state is None:
            raise JobNotFoundError(job_id)
        return Outcome(state, result, reason, kind) if state in ("completed", "failed") else None

    async def _read(self, ready: asyncio.Event) -> None:
        try:
            await self._follow(ready)
        except GlideMQError as error:
            if not self._closed:
                _log.warning("queue %r: reading result events failed; polling for results: %s", self._keys.name, error)
        finally:
            ready.set()
            if self._dedicated is not None:
                await self._dedicated.close()
                self._dedicated = None

    async def _follow(self, ready: asyncio.Event) -> None:
        self._dedicated = await open_reader(self._transport)
        reader = EventReader(self._dedicated, self._keys.events)
        await reader.resolve()
        ready.set()
        last_wanted = monotonic()
        while not self._closed:
            for event in await reader.read():
                if event.event in _ENDS:
                    for happened in self._waiting.get(event.job_id, ()):
                        happened.set()
            if self._waiting:
                last_wanted = monotonic()
            elif monotonic() - last_wanted > _IDLE_S:
                return

    async def close(self) -> None:
        """Stop the reader. Pending waits continue by polling until their connection is closed."""
        self._closed = True
        reader, dedicated = self._reader, self._dedicated
        if reader is not None:
            if dedicated is not None:
                await dedicated.close()
            await stop_task(reader)
        if self._ready is not None:
            self._ready.set()
