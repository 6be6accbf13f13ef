"""Waiting for jobs without a worker: a blocking read in the consumer group that wakes up workers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from glidemq_py._client.runtime import uncancelled
from glidemq_py._client.shared_reads import ReadConnection, open_reader
from glidemq_py._client.transport import Transport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._core.times import monotonic
from glidemq_py.errors import ClosedError, GlideMQConnectionError, GlideMQError

_log = get_logger(__name__)

POLL_MS: Final = 850
"""Longest read, as that of workers: jobs that a Node peer adds to a list wake no reader."""
_LATE_S: Final = 0.2
_RETRY_S: Final = 0.02

_orphans: set[asyncio.Task[Any]] = set()


def _keep(task: asyncio.Task[Any]) -> None:
    """Keep a task from being garbage-collected while it runs."""
    _orphans.add(task)
    task.add_done_callback(_orphans.discard)


class WakeUps:
    """The wake-ups of one event loop's fetches from a queue; they take turns.

    Args:
        transport: The queue's connection; the reads have one of their own.
        keys: Keys of the queue.
    """

    def __init__(self, transport: Transport, keys: QueueKeys) -> None:
        self._shared = transport
        self._keys = keys
        self._turn = asyncio.Lock()
        self._reading: ReadConnection | None = None
        self._closed = False

    async def wait(self, seconds: float, due: float | None = None) -> None:
        """Wait until jobs may be ready, at most ``seconds``, or a second at most.

        Args:
            seconds: Remaining seconds of the fetch.
            due: Seconds until a job is due or a limit ends: the wait ends exactly then, if it has not ended before.

        Raises:
            ClosedError: If the queue was closed.
            GlideMQConnectionError: If the server cannot be reached.
        """
        until = monotonic() + (seconds if due is None else min(seconds, due))
        limit = min(until - monotonic(), POLL_MS / 1_000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit if due is not None else limit + _LATE_S), self._turn:
                await self._read(max(1, int(min(limit, until - monotonic()) * 1_000)))

    async def _read(self, block: int) -> None:
        """Read for ``block`` ms, or until jobs may be ready."""
        self._check_open()
        if self._reading is None:
            opened = await uncancelled(open_reader(self._shared), self._unused)
            try:
                self._check_open()  # it may have been closed meanwhile
            except ClosedError:
                await opened.close()
                raise
            self._reading = opened
        command = (
            "XREADGROUP", "GROUP", "wakers", "w", "COUNT", "1", "BLOCK", str(block), "NOACK",
            "STREAMS", self._keys.stream, self._keys.wake, ">", ">",
        )  # fmt: skip
        try:
            await uncancelled(self._reading.command(*command), self._orphaned)
        except (ClosedError, GlideMQConnectionError):
            self._reading = None
            raise
        except GlideMQError as error:
            # Usually a missing group (after FLUSHALL), which the next fetch creates.
            _log.debug("queue %r: waiting for a wake-up failed: %s", self._keys.name, error)
            await asyncio.sleep(_RETRY_S)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"queue {self._keys.name!r} is closed")

    def _unused(self, opened: ReadConnection) -> None:
        """Close a connection whose fetch was cancelled before it was open."""
        _keep(asyncio.ensure_future(opened.close()))

    def _orphaned(self, reply: Any) -> None:
        """Pass on a wake-up that arrived after its fetch was cancelled."""
        if reply and not self._closed:
            _keep(asyncio.ensure_future(self._wake()))

    async def _wake(self) -> None:
        try:
            await self._shared.command("XADD", self._keys.wake, "NOMKSTREAM", "MAXLEN", "~", "64", "*", "w", "1")
        except GlideMQError as error:
            _log.debug("queue %r: waking up another worker failed: %s", self._keys.name, error)

    async def close(self) -> None:
        """Close the connection; a fetch that waits raises `ClosedError`."""
        self._closed = True
        if self._reading is not None:
            await self._reading.close()
