"""The parts of a queue, of which a plain queue has one, and how the features of a `Queue` reach them.

A feature is written once over parts: for all of them, for the one of a key or of a job, or for one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final, TypeVar, cast

from glidemq_py._client.loop_transport import LoopConnection, LoopTransport
from glidemq_py._client.runtime import ASYNC_RUNTIME, Runtime
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls.adding import AddCall, add_to_layout
from glidemq_py._core.keys import QueueKeys, parse_job_id
from glidemq_py._core.limits import RateLimit
from glidemq_py._core.queue_options import DurableInput, QueueOptions
from glidemq_py._partitions.layout import Layout, Partition, part_of_key, partition_of_key
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.routing import candidates
from glidemq_py._partitions.stored import open_layout, renewed_layout
from glidemq_py.errors import (
    ClosedError,
    GlideMQConnectionError,
    GlideMQError,
    JobNotFoundError,
    JobStateError,
    LayoutChangedError,
    PartitionedQueueError,
    PermissionDeniedError,
)

T = TypeVar("T")

LAYOUT_S = 10.0
"""Time after which a method reads the layout of the partitions again."""
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 0.0)
"""How long to wait for another client that obliterates the queue, each time; 0 = no longer."""
_ATTEMPTS: Final = 20
ADDS_PER_TURN: Final = 128
"""Concurrent adds without a key that go to the same partition in a row."""


class ConnectedQueue:
    """A `Queue` as its features use it: one or more parts, of which a plain queue has one.

    Each method connects first if necessary, and raises ClosedError if the queue is closed and GlideMQConnectionError if
    the server cannot be reached.
    """

    name: str
    options: QueueOptions
    _runtime: Runtime = ASYNC_RUNTIME
    _keys: QueueKeys
    _transport: LoopTransport
    _middleware: tuple[Any, ...]
    _lease_owner: str
    _adder: Any
    """The adder of the event loop that added last."""
    _link: QueueLink | None
    """The queue's link; None until it is connected, or if it has several parts."""
    _partition: Partition | None
    """Of a part: which one it is."""
    _shown_name: str
    """Name of the queue; of a part, that of the whole queue."""
    _closed: bool
    _wanted_partitions: int | None
    _partitions: PartQueues | None
    _layout_known: bool
    _layout_read_at: float | None
    _layout_renewed_at: float
    _layout_number = 0
    """Of a partition: number of the layout that its jobs were routed by."""
    _add_call: AddCall = staticmethod(add_to_layout(0))

    def _link_over(self, transport: Transport) -> QueueLink:
        raise NotImplementedError

    def _begin_here(self, connection: LoopConnection, transport: Transport) -> None:
        raise NotImplementedError

    def _partition_queue(self, name: str, partition: Partition, layout: Layout) -> ConnectedQueue:
        raise NotImplementedError

    async def _wake_ups(self) -> Any:
        raise NotImplementedError

    async def _confirmer(self, durability: Any) -> Any:
        raise NotImplementedError

    async def _disconnect(self) -> None:
        raise NotImplementedError

    async def _add_all(self, jobs: Iterable[Any], durable: DurableInput = None, around: Any = None) -> list[Any]:
        raise NotImplementedError

    # -- the layout ---------------------------------------------------------------------------------------

    async def _plain_link(self) -> QueueLink | None:
        """Return the queue's link; None if it is partitioned.

        Raises:
            ClosedError: If the queue is closed.
            GlideMQConnectionError: If the server cannot be reached.
        """
        if self._closed:
            raise ClosedError(f"queue {self._shown_name!r} is closed")
        if self._link is None:
            if self._partitions is None:
                await self._transport.connected()
            if self._partitions is not None:
                return None
            self._link = self._link_over(self._transport)
        return self._link

    async def _connected(self) -> QueueLink:
        link = await self._plain_link()
        if link is None:
            raise PartitionedQueueError(self.name, len(self._parts))
        return link

    async def _first_connected(self) -> QueueLink:
        """Return the link of the first part. Raises the errors of `_plain_link`."""
        link = await self._plain_link()
        while link is None:
            link = await self._parts[0]._plain_link()
        return link

    @property
    def _parts(self) -> Sequence[Any]:
        """The queues that share this one's connection: its partitions, or the queue itself."""
        return (self,) if self._partitions is None else self._partitions.queues

    async def _find_partitions(self, transport: Transport) -> None:
        layout = await open_layout(transport, self._keys, self._wanted_partitions)
        if layout is not None:
            self._partitions = PartQueues(self, layout)
        self._layout_known, self._layout_read_at = True, time.monotonic()

    async def _renew_layout(self, *, refused: bool = False) -> None:
        """Read the layout again, and wait for a while if the queue is being obliterated.

        Args:
            refused: True if a partition has refused the known one.

        Raises:
            LayoutChangedError: If an obliterate takes long, or was interrupted.
            GlideMQError: As `renewed_layout`.
        """
        known = self._partitions
        for pause in _PAUSES_S:
            began = time.monotonic()
            try:
                layout = await renewed_layout(
                    self._transport, self._keys, None if known is None else known.layout, refused=refused
                )
                break
            except LayoutChangedError:
                if not pause:
                    raise
                await self._runtime.there(asyncio.sleep(pause))
        else:
            raise AssertionError
        self._layout_read_at, self._layout_renewed_at = time.monotonic(), began
        if self._partitions is known and not (layout is None and known is None):  # else the reply may be an older one
            await self._use_layout(layout)

    def _is_renewed_after(self, refusal: LayoutChangedError) -> bool:
        """Return whether the layout was read after a partition had refused the one before it."""
        return self._layout_renewed_at > refusal.raised_at

    async def _use_layout(self, layout: Layout | None) -> None:
        """Use the layout that partition 0 has; None = it has none any more: the queue itself is the only partition."""
        known = self._partitions
        if known is not None and known.layout == layout:
            return
        self._partitions = PartQueues(self, layout or Layout(0, (self.name,)))
        self._link = self._adder = None
        connection = await self._transport.connected()
        if connection.transport is not None:
            await self._runtime.there(self._begin_parts(connection, connection.transport))

    @property
    def _layout_is_old(self) -> bool:
        """True if the layout was not read for `LAYOUT_S`: another client may have changed it."""
        at = self._layout_read_at
        return at is not None and time.monotonic() - at >= LAYOUT_S and not self._closed

    async def _check_layout(self, *, always: bool = False) -> None:
        """Read the layout again if it is old, or ``always`` unless it was never read."""
        if not self._layout_is_old and (not always or self._layout_read_at is None or self._closed):
            return
        with contextlib.suppress(GlideMQConnectionError, PermissionDeniedError):  # the method itself reports it
            await self._renew_layout()

    async def _begin_parts(self, connection: LoopConnection, transport: Transport) -> None:
        """Start the tasks of the queue, or of its partitions, in the running event loop."""
        for queue in self._parts:
            queue._begin_here(connection, transport)

    @property
    def _known_layout(self) -> int:
        """Number of the layout that the client knows; 0 = the queue has no partitions."""
        return 0 if self._partitions is None else self._partitions.layout.number

    # -- all parts ----------------------------------------------------------------------------------------

    async def _first(self) -> QueueLink:
        """Return the link of the first part, which stores the settings of the whole queue."""
        await self._check_layout()
        return await self._first_connected()

    async def _links(self) -> list[QueueLink]:
        """Return the links of all parts; an old layout is read again before."""
        await self._check_layout()
        await self._plain_link()
        return [await part._connected() for part in self._parts]

    async def _each(self, use: Callable[[QueueLink], Awaitable[T]], *, fresh: bool = False) -> list[T]:
        """Call ``use`` for all parts; return the results in their order. ``fresh``: read the layout before."""

        async def run() -> list[T]:
            return await self._together(use(link) for link in await self._links())

        return await self._routed(run, fresh=fresh)

    async def _change(self, use: Callable[[QueueLink], Awaitable[object]]) -> None:
        """Call ``use`` for all parts, the first one last: readers look there. Repeated as `_settled`."""

        async def run() -> None:
            for link in reversed(await self._links()):
                await use(link)

        await self._settled(run)

    async def _up_to(
        self, most: int, use: Callable[[QueueLink, int], Awaitable[T]], size: Callable[[T], int]
    ) -> list[T]:
        """Call ``use`` for one part after the other, until the sizes of the results add up to ``most``; 0 = all."""

        async def run() -> list[T]:
            found, done = list[T](), 0
            for link in await self._links():
                found.append(await use(link, most and most - done))
                done += size(found[-1])
                if most and done >= most:
                    break
            return found

        return await self._routed(run, fresh=True)

    async def _in_turn(self, items: Callable[[QueueLink], AsyncIterator[T]]) -> AsyncIterator[T]:
        """Iterate over the items of all parts, one after the other."""
        for link in await self._links():
            async with aclosing(cast("AsyncGenerator[T]", items(link))) as found:
                async for each in found:
                    yield each

    async def _merged(
        self, items: Callable[[QueueLink], AsyncIterator[T]], key: Callable[[T], Any]
    ) -> AsyncIterator[T]:
        """Iterate over the items of all parts, which are sorted by ``key`` in each, in that order."""
        async with AsyncExitStack() as stack:
            heads: list[tuple[T, AsyncIterator[T]]] = []
            due = [cast("AsyncGenerator[T]", items(link)) for link in await self._links()]
            for found in due:
                await stack.enter_async_context(aclosing(found))
            following: AsyncIterator[T]
            waiting: list[AsyncIterator[T]] = [*due]
            while True:
                for following in waiting:
                    async for head in following:
                        heads.append((head, following))
                        break
                if not heads:
                    return
                first = min(heads, key=lambda head: key(head[0]))
                heads.remove(first)
                waiting = [first[1]]
                yield first[0]

    async def _together(self, calls: Iterable[Awaitable[T]]) -> list[T]:
        """Await several calls, at the same time unless the queue is a blocking one or has one part."""
        if self._runtime is ASYNC_RUNTIME and len(self._parts) > 1:
            return list(await asyncio.gather(*calls))
        return [await call for call in calls]

    def _next_part(self) -> int:
        """Return the number of the part whose turn it is."""
        return 0 if self._partitions is None else self._partitions.next_partition()

    # -- one part -----------------------------------------------------------------------------------------

    async def _at(
        self, key: str, use: Callable[[QueueLink], Awaitable[T]], *, changes: bool = False, fresh: bool = False
    ) -> T:  # fmt: skip
        """Call ``use`` for the part of a routing key; ``changes``: repeated as `_settled`."""

        async def run() -> T:
            await self._plain_link()
            return await use(await self._parts[part_of_key(key, len(self._parts))]._connected())

        return await (self._settled(run) if changes else self._routed(run, fresh=fresh))

    async def _of(self, job_id: object, use: Callable[[QueueLink, str], Awaitable[T]]) -> T:
        """Call ``use`` for the part that has a job, and the job's id in it; errors name the job as the caller does."""

        async def run() -> T:
            link, own = await self._locate(job_id)
            try:
                return await use(link, own)
            except JobNotFoundError as error:
                if error.job_id in (own, link.shown_id(own)) and error.job_id != job_id:
                    raise JobNotFoundError(str(job_id), error.detail) from None
                raise
            except JobStateError as error:
                if error.job_id in (own, link.shown_id(own)) and error.job_id != job_id and error.args[3] is None:
                    raise JobStateError(str(job_id), error.state, error.action, queue=error.queue) from None
                raise

        return await self._routed(run)

    async def _locate(self, job_id: object) -> tuple[QueueLink, str]:
        """Return the part of a job and the job's id in it. Jobs of other clients may need a read."""
        part, own = await self._placed(job_id)
        return await part._connected(), own

    async def _placed(self, job_id: object) -> tuple[Any, str]:
        """Return the part of a job as a queue, and the job's id in it."""
        name = parse_job_id(job_id)
        await self._plain_link()
        parts = self._partitions  # another task may replace them meanwhile
        if parts is None:
            return self, name
        found = candidates(name, parts.layout)
        for number, own in found[1:] and found:
            part = parts.queues[number]
            link = await part._connected()
            if await link.command("EXISTS", link.keys.job(own)):
                return part, own
        number, own = found[0]  # also the place of a job that does not exist
        return parts.queues[number], own

    # -- parts that another client creates ----------------------------------------------------------------

    async def _routed(self, run: Callable[[], Awaitable[T]], *, fresh: bool = False) -> T:
        """Run calls for parts, again if they were refused because another client has just created the partitions."""
        await self._check_layout(always=fresh)
        for left in reversed(range(_ATTEMPTS)):
            try:
                return await run()
            except LayoutChangedError:  # nothing was changed
                if not left:
                    raise
                await self._renew_layout(refused=True)
        raise AssertionError

    async def _settled(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run a change, again until no other client has created partitions meanwhile. Return the first true result."""
        result = await self._routed(run, fresh=True)
        for _ in range(_ATTEMPTS):
            known = self._partitions
            await self._check_layout(always=True)
            if self._partitions is known:
                return result
            again = await self._routed(run)
            result = result or again
        raise GlideMQError(f"queue {self.name!r}: other clients keep changing its partitions; call the method again")


class PartQueues:
    """The parts of a partitioned queue, as queues that share its connection, and the turns of jobs without a key.

    Args:
        home: The queue of the user.
        layout: Its partitions.
    """

    def __init__(self, home: ConnectedQueue, layout: Layout) -> None:
        self.home = home
        self.layout = layout
        self.queues: tuple[Any, ...] = tuple(
            home._partition_queue(name, Partition(number, home.name), layout)
            for number, name in enumerate(layout.names)
        )
        self._turn = self._adds = 0

    def next_partition(self) -> int:
        """Return the partition of the next job, or jobs, without a routing key."""
        self._turn = (self._turn + 1) % self.layout.partitions
        return self._turn

    def part_of(self, key: str | None) -> Any:
        """Return the partition of a new job with this routing key; None = without one.

        Concurrent adds without a key go to one partition for as long as it can send them together.
        """
        if key is not None:
            return self.queues[partition_of_key(key, len(self.queues))]
        adder: Any = self.queues[self._turn]._adder
        if getattr(adder, "is_busy", False) and self._adds < ADDS_PER_TURN:
            self._adds += 1
            return self.queues[self._turn]
        self._adds = 1
        return self.queues[self.next_partition()]


class Area:
    """Methods of a `Queue` that belong to one feature, such as ``queue.limits``."""

    __slots__ = ("_queue",)

    def __init__(self, queue: ConnectedQueue) -> None:
        self._queue = queue

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of queue {self._queue.name!r}>"


# -- sums over parts ----------------------------------------------------------------------------------------

KeyT = TypeVar("KeyT")


def added(counts: Iterable[Mapping[KeyT, int]]) -> dict[KeyT, int]:
    """Return the sums of counts by key."""
    sums: dict[KeyT, int] = {}
    for each in counts:
        for key, count in each.items():
            sums[key] = sums.get(key, 0) + count
    return sums


def known(values: Iterable[int | None]) -> list[int]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def added_limits(numbers: Sequence[int | None]) -> int | None:
    """Return the sum of the parts' shares in a limit; None if one of them has no limit."""
    return None if None in numbers else sum(known(numbers))


def rate_of(most: int, ms: int) -> RateLimit | None:
    """Return a stored rate limit; None if it is none."""
    return RateLimit(most, ms) if most > 0 and ms > 0 else None


def added_rates(rates: Sequence[RateLimit | None]) -> RateLimit | None:
    """Return the sum of the parts' shares in a rate limit; None if one of them has no limit."""
    most = added_limits([None if rate is None else rate.max for rate in rates])
    return None if most is None or rates[0] is None else RateLimit(most, rates[0].duration)
