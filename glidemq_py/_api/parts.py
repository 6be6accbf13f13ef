"""The parts of a queue, of which a plain queue has one, and how the features of a `Queue` reach them.

A feature is written once over parts: for all of them, for the one of a key or of a job, or for one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from glidemq_py._client.runtime import ASYNC_RUNTIME, Runtime
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._core.names import parse_job_id
from glidemq_py._partitions.layout import Layout, Partition, part_of_key, partition_of_key
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.routing import candidates
from glidemq_py.errors import GlideMQError, JobNotFoundError, JobStateError

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue

T = TypeVar("T")

_ATTEMPTS: Final = 20
ADDS_PER_TURN: Final = 128
"""Concurrent adds without a key that go to the same partition in a row."""


class QueueParts:
    """How the methods of a `Queue` reach its parts. See `ConnectedQueue`."""

    name: str
    _runtime: Runtime
    _partitions: PartQueues | None
    _partition: Partition | None

    @property
    def _parts(self) -> Sequence[Any]:
        raise NotImplementedError

    async def _plain_link(self) -> QueueLink | None:
        raise NotImplementedError

    async def _first_connected(self) -> QueueLink:
        raise NotImplementedError

    async def _check_layout(self, *, always: bool = False) -> None:
        raise NotImplementedError

    async def _renew_layout(self, *, refused: bool = False) -> None:
        raise NotImplementedError

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

    async def _up_to(self, most: int, use: Callable[[QueueLink, int], Awaitable[list[T]]]) -> list[T]:
        """Collect at most ``most`` items of all parts, one after the other; 0 = all."""

        async def run() -> list[T]:
            found: list[T] = []
            for link in await self._links():
                found += await use(link, most and most - len(found))
                if most and len(found) >= most:
                    break
            return found

        return await self._routed(run, fresh=True)

    async def _count_up_to(self, most: int, use: Callable[[QueueLink, int], Awaitable[int]]) -> int:
        """Sum numbers of jobs of all parts, one after the other, until they are ``most``; 0 = all."""

        async def run() -> int:
            done = 0
            for link in await self._links():
                done += await use(link, most and most - done)
                if most and done >= most:
                    break
            return done

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
        if self._partitions is None:
            return self, name
        found = candidates(name, self._partitions.layout)
        for number, own in found[1:] and found:
            link = await self._parts[number]._connected()
            if await link.command("EXISTS", link.keys.job(own)):
                return self._parts[number], own
        number, own = found[0]  # also the place of a job that does not exist
        return self._parts[number], own

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

    def __init__(self, home: Queue[Any, Any], layout: Layout) -> None:
        self.home = home
        self.layout = layout
        self.queues: tuple[Queue[Any, Any], ...] = tuple(
            home._partition_queue(name, Partition(number, home.name), layout)
            for number, name in enumerate(layout.names)
        )
        self._turn = self._adds = 0

    def next_partition(self) -> int:
        """Return the partition of the next job, or jobs, without a routing key."""
        self._turn = (self._turn + 1) % self.layout.partitions
        return self._turn

    def part_of(self, key: str | None) -> Queue[Any, Any]:
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
