"""Waiting for the end of jobs: by the events stream for speed, by the job's hash for certainty.

Events may be switched off, trimmed or missed (W81); the hash is asked when a wait begins and then at growing
intervals, so a wait never depends on the stream alone.
"""

from __future__ import annotations

import threading
import time

from glidemq_py._client.event_reader import EventReader
from glidemq_py._client.loop_transport import LoopTransport
from glidemq_py._client.runtime import ASYNC_RUNTIME, Background, Runtime, Signal
from glidemq_py._client.transport import Transport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._job.link import Outcome
from glidemq_py.errors import GlideMQConnectionError, GlideMQError, JobNotFoundError, WaitTimeoutError

__all__ = ["LoopWaiter", "ResultWaiter"]

_log = get_logger(__name__)

_ENDS = frozenset(("completed", "failed", "expired", "revoked", "removed"))
_FIRST_POLL_S, _LAST_POLL_S, _GROWTH = 0.2, 2.0, 1.5
_IDLE_S = 10.0
_READY_S = 30.0
"""How long a wait is held up by its reader's start; polling remains."""


class LoopWaiter:
    """A `Waiter` with one `ResultWaiter` per event loop.

    Args:
        transport: of the queue.
        keys: of the queue.
        pace: how to wait.
    """

    def __init__(self, transport: LoopTransport, keys: QueueKeys, runtime: Runtime) -> None:
        self._transport = transport
        self._keys = keys
        self._runtime = runtime

    async def _here(self) -> ResultWaiter:
        connection = await self._transport.connected()
        return connection.part(self, lambda transport: ResultWaiter(transport, self._keys, self._runtime))

    async def start(self) -> None:
        """See `Waiter.start`."""
        await (await self._here()).start()

    async def wait(self, job_id: str, timeout_ms: int) -> Outcome:
        """See `Waiter.wait`."""
        return await (await self._here()).wait(job_id, timeout_ms)

    def beside(self, keys: QueueKeys) -> LoopWaiter:
        """See `Waiter.beside`."""
        return LoopWaiter(self._transport, keys, self._runtime)

    async def close(self) -> None:
        """Close that of the running loop; the others are closed with their connections."""
        await (await self._transport.connected()).close_part(self)


class ResultWaiter:
    """One reader of a queue's events for all who wait for its jobs; it runs only while somebody waits.

    Args:
        transport: where job hashes are read, and the pattern for the reader's own connection.
        keys: of the queue.
        pace: how to wait.
    """

    def __init__(self, transport: Transport, keys: QueueKeys, runtime: Runtime = ASYNC_RUNTIME) -> None:
        self._transport = transport
        self._keys = keys
        self._runtime = runtime
        self._lock = threading.Lock()  # for the twins' threads; nobody awaits anything while holding it
        self._waiting: dict[str, set[Signal]] = {}
        self._reader: Background | None = None
        self._ready: Signal | None = None
        self._dedicated: Transport | None = None
        self._closed = False

    def beside(self, keys: QueueKeys) -> ResultWaiter:
        """See `Waiter.beside`."""
        return ResultWaiter(self._transport, keys, self._runtime)

    async def start(self) -> None:
        """Have the reader's position fixed, so that a job added after this is not missed. Failure to do so is
        no failure of the wait: polling remains."""
        if self._closed:
            return
        with self._lock:
            if self._reader is None or self._reader.done():
                self._ready = self._runtime.signal()
                self._reader = self._runtime.spawn(self._read(self._ready), f"glidemq-results-{self._keys.name}")
        if self._ready is not None:
            await self._ready.wait(_READY_S)

    async def wait(self, job_id: str, timeout_ms: int) -> Outcome:
        """The end of a job.

        Raises:
            WaitTimeoutError: it did not end in time. JobNotFoundError: it is gone.
        """
        await self.start()
        happened = self._runtime.signal()
        with self._lock:
            self._waiting.setdefault(job_id, set()).add(happened)
        seconds = timeout_ms / 1000
        try:
            async with self._runtime.limit(seconds):
                return await self._watch(job_id, happened, time.monotonic() + seconds)
        except TimeoutError:
            raise WaitTimeoutError(f"job {job_id!r} did not end within {timeout_ms} ms") from None
        finally:
            with self._lock:
                waiting = self._waiting[job_id]
                waiting.discard(happened)
                if not waiting:
                    del self._waiting[job_id]

    async def _watch(self, job_id: str, happened: Signal, deadline: float) -> Outcome:
        interval = _FIRST_POLL_S
        while True:
            happened.clear()
            try:
                outcome = await self._look(job_id)
            except GlideMQConnectionError as error:
                # A server that restarts comes back; how long that may take is for the wait's time limit to say.
                _log.debug("waiting for job %r of queue %r: %s", job_id, self._keys.name, error)
                outcome = None
            if outcome is not None:
                return outcome
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            await happened.wait(min(interval, left))
            interval = min(interval * _GROWTH, _LAST_POLL_S)

    async def _look(self, job_id: str) -> Outcome | None:
        fields = ("state", "returnvalue", "failedReason", "failedType")
        values = await self._transport.command("HMGET", self._keys.job(job_id), *fields)
        state, result, reason, kind = (None if v is None else v.decode("utf-8", "surrogateescape") for v in values)
        if state is None:
            raise JobNotFoundError(job_id)
        return Outcome(state, result, reason, kind) if state in ("completed", "failed") else None

    async def _read(self, ready: Signal) -> None:
        try:
            await self._follow(ready)
        except GlideMQError as error:
            if not self._closed:
                _log.warning("queue %r: waiting for results by polling only: %s", self._keys.name, error)
        finally:
            ready.set()
            if self._dedicated is not None:
                await self._dedicated.close()
                self._dedicated = None

    async def _follow(self, ready: Signal) -> None:
        self._dedicated = await self._transport.dedicated()
        reader = EventReader(self._dedicated, self._keys.events)
        await reader.resolve()
        ready.set()
        last_wanted = time.monotonic()
        while not self._closed:
            for event in await reader.read():
                if event.event in _ENDS:
                    with self._lock:
                        for happened in self._waiting.get(event.job_id, ()):
                            happened.set()
            if self._waiting:
                last_wanted = time.monotonic()
            elif time.monotonic() - last_wanted > _IDLE_S:
                return

    async def close(self) -> None:
        """Stop the reader. Waits that are under way go on by polling until their connection is closed."""
        self._closed = True
        reader, dedicated = self._reader, self._dedicated
        if reader is not None:
            if dedicated is not None:
                await dedicated.close()
            await reader.stop()
        if self._ready is not None:
            self._ready.set()
