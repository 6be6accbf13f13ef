"""Blocking reads that share connections: one command waits for the streams of several readers.

A blocking read needs a connection of its own, so readers of many queues would need many. The readers of an event loop
therefore share them: a line is one connection, whose read waits for the streams of up to `READERS_PER_LINE` readers. A
read that begins while the line waits for others ends that wait by CLIENT UNBLOCK, and the next command includes it. Its
cost for the server grows with the number of streams, so there is a limit.

In a cluster a command reads streams of one slot, so a line serves the readers of one queue. Readers for whom there is
no line are polled over the client that they share (`stream_reads`), until one has room. A process reserves its
connections for blocking commands, of which it has few per server (`Reservation`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

from glidemq_py._client.loop_transport import LoopTransport
from glidemq_py._client.stream_reads import Poller, StreamRead, combine, distribute, ends_all, read_each
from glidemq_py._client.transport import Transport
from glidemq_py._core.forks import new_rlock
from glidemq_py._core.keys import entry_order
from glidemq_py._core.logs import get_logger
from glidemq_py._core.times import monotonic
from glidemq_py.errors import ClosedError, GlideMQError

if TYPE_CHECKING:
    from glidemq_py._client.async_transport import AsyncTransport

_log = get_logger(__name__)

READERS_PER_LINE: Final = 32
_SLICE_S: Final = 0.05
"""Longest wait of a line that cannot be woken up: the delay until it includes another read."""
_LONGEST_S: Final = 1.0
_TURNS: Final = 3
"""Turns of the event loop in which the readers of a reply may begin their next reads, which are then sent together."""
_TRIES: Final = 3
_TRY_PAUSE_S: Final = 0.002
_FAILED_WAKES: Final = 2
"""Number of failed wakes in succession after which a line waits for slices."""


class _Line:
    """One connection whose blocking read serves several readers."""

    def __init__(
        self, transport: Transport, reservation: Reservation, kind: tuple[object, ...], forget: Callable[[_Line], None]
    ) -> None:
        self.kind = kind
        self._forget = forget
        self.readers: set[SharedReader] = set()
        self._transport = transport
        self._reservation = reservation
        self._reads: dict[StreamRead, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None
        self._client_id: int | None = None
        self._may_wake = not transport.is_cluster  # in a cluster, the id is that of one node's connection
        self._failed_wakes = 0
        self._waits_for: set[StreamRead] | None = None
        """The reads that the command in flight serves."""
        self.is_closed = False

    def fits(self, kind: tuple[object, ...]) -> bool:
        """Return whether a reader of this kind may join."""
        return self.kind == kind and len(self.readers) < READERS_PER_LINE and not self.is_ending

    @property
    def is_ending(self) -> bool:
        """True if no more reads may be added."""
        return self.is_closed or self._reservation.is_claimed

    def add(self, read: StreamRead) -> None:
        """Serve a read until it has entries or its time is over."""
        self._reads[read] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve(), name="glidemq-shared-reads")
        else:
            self._wake_up()

    def remove(self, read: StreamRead) -> None:
        """End a read."""
        self._reads.pop(read, None)

    def _wake_up(self) -> None:
        """End the wait of the connection if it does not serve all reads; the next command includes them."""
        served, client_id = self._waits_for, self._client_id
        if served is None or client_id is None or self._waking is not None or not self._may_wake:
            return
        missing = next((read for read in self._reads if read not in served), None)
        if missing is not None:
            self._waking = asyncio.create_task(self._wake(missing, served, client_id), name="glidemq-wake-reads")
            self._waking.add_done_callback(self._woken)

    def _woken(self, _: asyncio.Task[None]) -> None:
        self._waking = None
        self._wake_up()

    async def _wake(self, read: StreamRead, served: set[StreamRead], client_id: int) -> None:
        for _ in range(_TRIES):
            if self._waits_for is not served or self.is_closed:
                return
            try:
                if await read.transport.command("CLIENT", "UNBLOCK", str(client_id)):
                    self._failed_wakes = 0
                    return
            except GlideMQError as error:
                if ends_all(error):
                    self._client_id = None
                else:
                    _log.debug("CLIENT UNBLOCK failed; blocking reads wait for %.0f ms: %s", _SLICE_S * 1000, error)
                    self._may_wake = False
                return
            await asyncio.sleep(_TRY_PAUSE_S)  # the server may not have read the command yet
        if self._waits_for is served:
            # GLIDE has reconnected, or reads from a replica.
            self._client_id = None
            self._failed_wakes += 1
            self._may_wake = self._failed_wakes < _FAILED_WAKES

    async def _serve(self) -> None:
        try:
            while self._reads:
                if self.is_ending:
                    break
                await self._read_once()
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
        except BaseException as error:
            for read in list(self._reads):
                read.end(error=ClosedError(f"reading ended: {type(error).__name__}: {error}"))
            raise
        finally:
            for read in list(self._reads):
                read.end()  # its reader finds another line
            self._reads.clear()
        if self.is_ending:
            await self.close()

    async def _read_once(self) -> None:
        reads = [read for read in self._reads if not read.done.done()]
        try:
            if self._may_wake and self._client_id is None:
                await self._identify()
            reads = await self._catch_up(reads)
            if not reads or any(read not in reads and not read.done.done() for read in self._reads):
                return
            wait = max(0.001, min(_LONGEST_S, min(read.deadline for read in reads) - monotonic()))
            if not self._may_wake and len(self.readers) > 1:
                wait = min(wait, _SLICE_S)
            command = combine(reads[0].head, _latest(reads), int(wait * 1000))
            self._waits_for = set(reads)
            try:
                reply = await self._transport.command(*command)
            finally:
                self._waits_for = None
        except GlideMQError as error:
            self._client_id = None
            if len(reads) > 1 and not ends_all(error):
                await read_each(self._transport, reads)
                return
            for read in reads:
                read.end(error=error)
            return
        if not distribute(reads, reply):
            # Reads that end a little early begin again together.
            now = monotonic()
            for read in reads:
                if now >= read.deadline - read.block / 2:
                    read.end()

    async def _identify(self) -> None:
        try:
            self._client_id = int(await self._transport.command("CLIENT", "ID"))
        except GlideMQError as error:
            if ends_all(error):
                raise
            self._may_wake = False

    async def _catch_up(self, reads: list[StreamRead]) -> list[StreamRead]:
        """Serve readers that are behind others of the same stream: a command has one position per stream."""
        latest = _latest(reads)
        behind = [read for read in reads if any(latest[name] != where for name, where in read.streams.items())]
        if behind:
            await read_each(self._transport, behind)
            # Those that found nothing have read everything up to the latest position.
            reads = [read for read in reads if not read.done.done()]
        return reads

    async def leave(self, reader: SharedReader) -> None:
        """Remove a reader; the last one closes the connection."""
        self.readers.discard(reader)
        if not self.readers:
            await self.close()

    async def close(self) -> None:
        """Close the connection."""
        if not self.is_closed:
            self._close()
            await self._transport.close()

    def abandon(self, reader: SharedReader) -> None:
        """Remove a reader from outside the event loop; the last one closes the connection."""
        self.readers.discard(reader)
        if not self.readers and not self.is_closed:
            self._close()
            self._transport.abandon()

    def _close(self) -> None:
        self.is_closed = True
        self._reservation.release()
        self._forget(self)


def _latest(reads: Sequence[StreamRead]) -> dict[str, str]:
    """Return the highest position of each stream."""
    latest: dict[str, str] = {}
    for read in reads:
        for name, position in read.streams.items():
            before = latest.get(name)
            if before is None or (before != position and entry_order(before) < entry_order(position)):
                latest[name] = position
    return latest


class _Reads:
    """The lines and the poller of one client."""

    def __init__(self) -> None:
        self.poller = Poller()
        self._lines: list[_Line] = []
        self._opening = asyncio.Lock()

    async def join(self, reader: SharedReader, transport: Transport, kind: tuple[object, ...]) -> _Line | None:
        """Return the line that serves a reader from now on; None if there is none for it."""
        line = self._line(kind)
        if line is None:
            async with self._opening:
                line = self._line(kind) or await self._open(reader.server, transport, kind)
        if line is not None:
            line.readers.add(reader)
        return line

    def _line(self, kind: tuple[object, ...]) -> _Line | None:
        return next((line for line in self._lines if line.fits(kind)), None)

    async def _open(self, server: Hashable, transport: Transport, kind: tuple[object, ...]) -> _Line | None:
        reservation = reserve_read(server, yields=True)
        if reservation is None:
            return None
        try:
            line = _Line(await transport.dedicated(), reservation, kind, self._forget)
        except BaseException:
            reservation.release()
            raise
        self._lines.append(line)
        return line

    def _forget(self, line: _Line) -> None:
        """Keep no closed line: its connection refers to the client, which would be kept with it."""
        self._lines = [each for each in self._lines if each is not line]


_of_client: WeakKeyDictionary[Any, _Reads] = WeakKeyDictionary()


class SharedReader:
    """A `ReadConnection` that shares its connection with others of the event loop.

    Args:
        transport: The reader's transport.
        glide: The connection of GLIDE that it uses, which shares its client.
    """

    def __init__(self, transport: Transport, glide: AsyncTransport) -> None:
        self.server = glide.server
        self._transport = transport
        self._reads = _of_client.setdefault(glide.client_owner, _Reads())
        self._line: _Line | None = None
        self._waiting: set[asyncio.Future[Any]] = set()
        self._closed = False

    @property
    def is_cluster(self) -> bool:
        """See `Transport.is_cluster`."""
        return self._transport.is_cluster

    @property
    def is_polled(self) -> bool:
        """True if no connection for blocking reads serves this reader."""
        return self._line is None

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`. A blocking read may return None a little early."""
        self._check_open()
        if "BLOCK" not in args:
            return await self._transport.command(*args)
        read = StreamRead(self._transport, args, cluster=self.is_cluster)
        self._waiting.add(read.done)
        by: _Line | Poller | None = None
        try:
            by = await self._line_of(read)
            self._check_open()
            by.add(read)
            return await read.done
        finally:
            self._waiting.discard(read.done)
            if by is not None:
                by.remove(read)
            if read.done.done() and not read.done.cancelled():
                read.done.exception()  # mark it as retrieved

    async def _line_of(self, read: StreamRead) -> _Line | Poller:
        line = self._line
        if line is None or line.is_ending or line.kind != read.kind:
            if line is not None:
                self._line = None
                await line.leave(self)
            line = await self._reads.join(self, self._transport, read.kind)
            if self._closed and line is not None:
                await line.leave(self)
                line = None
            self._line = line
        return line or self._reads.poller

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the connection was closed")

    def _end(self) -> _Line | None:
        self._closed = True
        line, self._line = self._line, None
        return line

    async def close(self) -> None:
        """See `ReadConnection.close`. The shared client stays open."""
        line = self._end()
        for each in tuple(self._waiting):
            if not each.done():
                each.set_exception(ClosedError("the connection was closed"))
        if line is not None:
            await line.leave(self)

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        line = self._end()
        if line is not None:
            line.abandon(self)


class ReadConnection(Protocol):
    """A connection for the reads of one reader, one after the other."""

    @property
    def is_cluster(self) -> bool:
        """See `Transport.is_cluster`."""
        ...

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        ...

    async def close(self) -> None:
        """See `Transport.close`; a read that waits raises `ClosedError`."""
        ...

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        ...


def shares_client(transport: Transport) -> bool:
    """Return whether other transports of the loop use the same client."""
    glide = glide_of(transport)
    return glide is not None and glide.server is not None


async def open_reader(transport: Transport) -> ReadConnection:
    """Return a connection for blocking reads.

    Args:
        transport: The reader's transport. If it shares its client, the connection is shared with other readers.

    Raises:
        GlideMQConnectionError: If the server cannot be reached.
    """
    if isinstance(transport, LoopTransport):
        transport = await transport.here()
    glide = glide_of(transport)
    if glide is None or glide.server is None:
        return await transport.dedicated()
    return SharedReader(transport, glide)


def glide_of(transport: object) -> AsyncTransport | None:
    """Return the connection of valkey-glide that a connection uses; None for one of another `ConnectionSource`."""
    found: AsyncTransport | None = getattr(transport, "glide", None)
    return found


BLOCKING_READS: Final = 3
"""Number of connections for blocking reads per process and server. With the clients for calls, heartbeats and wake-up
channels, that makes five or six: the channels count as one of these."""
WORKER_READS: Final = 2
"""How many of them workers may have."""

_reserved: Counter[Hashable] = Counter()
_reservations: weakref.WeakSet[Reservation] = weakref.WeakSet()
_lock = new_rlock()
"""Reentrant: garbage collection inside may end a reservation."""


class Reservation:
    """One of the connections of a process and server, until `release` or the end of the object.

    Args:
        server: Identifies the server.
        yields: True if its user gives it back when another use claims it.
        claimed: Is called in the event loop of its user when another use claims it.
    """

    def __init__(self, server: Hashable, *, yields: bool = False, claimed: Callable[[], None] | None = None) -> None:
        self._end = weakref.finalize(self, _give_back, server)
        self._loop = asyncio._get_running_loop()
        self.server = server
        self.yields = yields
        self._claimed = claimed
        self.is_claimed = False
        """True if another use has claimed it."""
        with _lock:
            _reservations.add(self)

    def release(self) -> None:
        """Give it back. Idempotent."""
        self._end()

    def detach(self) -> None:
        """Make `release` do nothing: in a forked child, the reservation is the parent's."""
        self._end.detach()

    @property
    def is_left(self) -> bool:
        """True if its event loop was closed: connections end with their loop."""
        return self._loop is not None and self._loop.is_closed()

    def claim(self) -> None:
        """Ask its user to release it."""
        self.is_claimed = True
        if self._claimed is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._claimed)

    @property
    def is_costly(self) -> bool:
        """True if its user, a worker, fetches later after a claim; others are claimed before."""
        return self._claimed is not None

    @property
    def may_be_claimed(self) -> bool:
        """True if another use can get this connection."""
        return self.yields and self._end.alive and not self.is_claimed


def _give_back(server: Hashable) -> None:
    with _lock:
        _reserved[server] -= 1
        if _reserved[server] <= 0:
            del _reserved[server]


def reserve_read(
    server: Hashable, most: int = BLOCKING_READS, *, yields: bool = False, claimed: Callable[[], None] | None = None
) -> Reservation | None:
    """Reserve a connection for blocking reads from a server; None if ``most`` are reserved. See `Reservation`."""
    with _lock:
        for each in [each for each in list(_reservations) if each.is_left]:
            each.release()
        if _reserved[server] >= most:
            return None
        _reserved[server] += 1
    return Reservation(server, yields=yields, claimed=claimed)


def claim_read(server: Hashable) -> Reservation:
    """Reserve a connection for other blocking commands. If all are reserved, one that yields is given back soon."""
    with _lock:
        _reserved[server] += 1
        if _reserved[server] > BLOCKING_READS:
            held = [each for each in list(_reservations) if each.server == server and each.may_be_claimed]
            if held:
                min(held, key=lambda each: each.is_costly).claim()
    return Reservation(server)


def _forget_parent() -> None:
    for each in list(_reservations):
        each.detach()
    _reserved.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
