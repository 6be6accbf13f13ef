"""Wakes up readers of job streams: one blocking connection for all readers of a queue.

It only signals that there is something to read: readers read the chunks themselves, and also poll. If this connection
is lost, readers are slower, but no chunk is lost.
"""

from __future__ import annotations

import time
from typing import Any, Final

from glidemq_py._client.runtime import Background, Signal
from glidemq_py._client.transport import Transport
from glidemq_py._core.forks import new_lock
from glidemq_py._core.logs import get_logger
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import GlideMQError

__all__ = ["ChunkWatch"]

_log = get_logger(__name__)

_SLICE_MS: Final = 100
"""How long one read blocks, which is the longest delay until a new reader is included."""
_EVENTS: Final = 200
_MAX_KEYS: Final = 500
_IDLE_S: Final = 5.0
_ENDS: Final = frozenset((b"completed", b"failed", b"expired", b"revoked", b"removed"))


class _Watch:
    __slots__ = ("job_id", "position", "signal")

    def __init__(self, job_id: str, position: str, signal: Signal) -> None:
        self.job_id = job_id
        self.position = position
        self.signal = signal


class ChunkWatch:
    """Wakes up a reader if there is a chunk after its position or its job has ended.

    Args:
        link: the queue.
    """

    def __init__(self, link: QueueLink) -> None:
        self._link = link
        self._lock = new_lock()  # for the threads of blocking queues; never held across an await
        self._watches: set[_Watch] = set()
        self._wanted = link.runtime.signal()
        self._reader: Background | None = None
        self._dedicated: Transport | None = None
        self._closed = False

    async def wait(self, job_id: str, position: str, seconds: float) -> None:
        """Wait for a chunk after ``position`` or the end of the job, for at most ``seconds``."""
        watch = _Watch(job_id, position, self._link.runtime.signal())
        with self._lock:
            self._watches.add(watch)
            if not self._closed and (self._reader is None or self._reader.done()):
                self._reader = self._link.runtime.spawn(self._read(), f"glidemq-chunks-{self._link.keys.name}")
        self._wanted.set()
        try:
            await watch.signal.wait(seconds)
        finally:
            with self._lock:
                self._watches.discard(watch)

    async def _read(self) -> None:
        try:
            self._dedicated = await self._link.transport.dedicated()
            await self._follow(self._dedicated)
        except GlideMQError as error:
            if not self._closed:
                _log.debug("queue %r: reading job streams by polling: %s", self._link.keys.name, error)
        finally:
            if self._dedicated is not None:
                await self._dedicated.close()
                self._dedicated = None

    async def _follow(self, transport: Transport) -> None:
        keys = self._link.keys
        found = await transport.command("XREVRANGE", keys.events, "+", "-", "COUNT", "1")
        events = next(iter(found)).decode() if found else "0-0"
        last_wanted = time.monotonic()
        while not self._closed:
            with self._lock:
                watches = list(self._watches)[:_MAX_KEYS]
            if not watches:
                if time.monotonic() - last_wanted > _IDLE_S:
                    return
                self._wanted.clear()
                await self._wanted.wait(_IDLE_S)
                continue
            last_wanted = time.monotonic()
            streams = {keys.events: events}
            for watch in watches:
                # Readers of one job may have different positions: wait for chunks after the lowest one.
                key = keys.jstream(watch.job_id)
                streams[key] = min(streams.get(key, watch.position), watch.position, key=_order)
            reply: dict[bytes, Any] | None = await transport.command(
                "XREAD", "COUNT", str(_EVENTS), "BLOCK", str(_SLICE_MS), "STREAMS", *streams, *streams.values()
            )
            if reply:
                events = self._wake(watches, reply, events)

    def _wake(self, watches: list[_Watch], reply: dict[bytes, Any], events: str) -> str:
        """Wake up the readers that the reply concerns; return the new position in the events stream."""
        keys = self._link.keys
        happened = reply.get(keys.events.encode(), {})
        ended: set[str] = set()
        for entry, pairs in happened.items():
            events = entry.decode()
            fields = dict(pairs)
            if fields.get(b"event") in _ENDS:
                ended.add(fields.get(b"jobId", b"").decode("utf-8", "replace"))
        woken = [w for w in watches if w.job_id in ended or keys.jstream(w.job_id).encode() in reply]
        with self._lock:
            self._watches.difference_update(woken)
        for watch in woken:
            watch.signal.set()
        return events

    async def close(self) -> None:
        """Stop. Waiting readers continue by polling."""
        self._closed = True
        self._wanted.set()
        reader, dedicated = self._reader, self._dedicated
        if reader is not None:
            if dedicated is not None:
                await dedicated.close()
            await reader.stop()


def _order(entry: str) -> tuple[int, int]:
    ms, _, number = entry.partition("-")
    return int(ms), int(number or 0)
