"""`PartitionHubs`: fetching from the partitions of a queue in turn.

A partition has a hub like a queue without partitions, so its calls are bundled in the same way. Jobs that were fetched
are reported to the hub of their partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from glidemq_py.errors import AmbiguousResultError, ClosedError, GlideMQConnectionError, GlideMQError
from glidemq_py.gateway.deadlines import WAIT_MARGIN_S
from glidemq_py.gateway.fetched import Fetched
from glidemq_py.gateway.hub import NO_REPLY, Hub

_TURN_S: Final = 0.05
"""How long all fetches begin with the same partition, so that they leave in one call."""
_MORE: Final = 2
"""Fetches that a fetch wakes if it has found jobs, so that the number of those that look doubles."""
_LATE_S: Final = 0.25
"""How long a fetch waits for one partition before it asks the others, too."""
_RETRY_S: Final = 0.5
"""How long a fetch that waits for a job waits after a call that failed because the server was gone."""


class PartitionHubs:
    """The hubs of the partitions of a queue, as far as its clients fetch from them.

    The partitions have turns. A fetch asks that in turn first, then the others, until it has all jobs that it wants;
    those that are known to be empty are not asked. One whose server does not answer holds up no jobs of the others. A
    fetch that waits sleeps until one of them may have a job.

    Args:
        partitions: The `PartQueues` that has the partitions.
        hubs: Their hubs.
    """

    def __init__(self, partitions: object, hubs: Sequence[Hub]) -> None:
        self._loop = asyncio.get_running_loop()
        self.hubs: tuple[Hub, ...] = ()
        self._sleeping: dict[asyncio.Future[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._turn, self._turns_at = 0, 0.0
        self._changes, self._paused_until = 0, 0.0
        self._is_closed = False
        self._late: set[Hub] = set()
        """Those with an overdue call. They are not asked until it has returned."""
        self.partitions: object = None
        """The `PartQueues` that has the partitions."""
        self.use(partitions, hubs)

    def use(self, partitions: object, hubs: Iterable[Hub]) -> None:
        """Fetch from these partitions from now on."""
        present = tuple(hubs)
        for hub in self.hubs:
            if hub not in present:
                hub.leave()
        for hub in present:
            hub.join(self._ready)
        self.partitions, self.hubs = partitions, present
        self._changes += 1
        self._wake(len(self._sleeping))

    async def fetch(self, count: int, lock_ms: int, wait: float) -> list[Fetched]:
        """Fetch jobs; see `Hub.fetch`.

        Raises:
            ClosedError: If the gateway is closed.
            GlideMQError: If a call failed, and no job was fetched. A fetch that waits tries again while the server is
                gone, until its time is over.
        """
        if self._is_closed:
            raise ClosedError("the gateway is closed")
        try:
            return await self._fetch(count, lock_ms, wait)
        finally:
            self._set_timer()

    async def _fetch(self, count: int, lock_ms: int, wait: float) -> list[Fetched]:
        until = self._loop.time() + wait
        while True:
            changes = self._changes
            found, failure = await self._fetch_once(count, lock_ms, until if wait > 0 else None)
            left = until - self._loop.time()
            if found:
                self._wake(_MORE)  # there may be jobs for others
            if found or self._is_closed:
                return found
            if failure is not None and (left <= 0 or not isinstance(failure, GlideMQConnectionError)):
                raise failure
            if left <= 0:
                problem = self.hubs[0].problem if wait > 0 else ""
                if problem:
                    raise GlideMQConnectionError(problem)
                return []
            if failure is not None:
                self._paused_until = self._loop.time() + _RETRY_S
                await self._sleep(min(left, _RETRY_S))
            elif changes == self._changes:
                await self._sleep(left)

    async def _fetch_once(
        self, count: int, lock_ms: int, until: float | None
    ) -> tuple[list[Fetched], GlideMQError | None]:  # fmt: skip
        """Ask the partitions; also return the error of one. A fetch that waits ends soon after ``until``."""
        taken: list[tuple[Hub, list[Fetched]]] = []
        asked: dict[asyncio.Task[list[Fetched]], Hub] = {}
        failure: GlideMQError | None = None
        missing = count

        def take(task: asyncio.Task[list[Fetched]]) -> None:
            nonlocal failure, missing
            hub = asked.pop(task)
            try:
                jobs = task.result()
            except GlideMQError as error:
                failure = error
                return
            if jobs:
                taken.append((hub, jobs))
                missing -= len(jobs)

        try:
            for hub in self._in_turn():
                if hub in self._late or hub.is_known_empty(waits=until is not None):
                    continue
                task = self._loop.create_task(hub.fetch(missing, lock_ms, 0))
                asked[task] = hub
                if (await asyncio.wait((task,), timeout=_LATE_S))[0]:
                    take(task)
                else:
                    self._late.add(hub)
                    task.add_done_callback(partial(self._answered, hub))
                if missing <= 0:
                    break
            while asked and not taken:
                left = None if until is None else max(0.0, until + WAIT_MARGIN_S - self._loop.time())
                replied = (await asyncio.wait(asked, timeout=left, return_when=asyncio.FIRST_COMPLETED))[0]
                if not replied:
                    raise AmbiguousResultError(NO_REPLY)
                for task in replied:
                    take(task)
        except BaseException:  # the client has left, or the time is over
            for hub, jobs in taken:
                hub.release(jobs)
            for task in asked:
                task.cancel()  # its jobs are released
            raise
        for task, hub in asked.items():
            task.add_done_callback(partial(_release, hub))
        return [job for _, jobs in taken for job in jobs], failure

    def _answered(self, hub: Hub, _: object) -> None:
        """Ask a partition again that had not answered in time."""
        self._late.discard(hub)
        self._ready()

    def _in_turn(self) -> Iterator[Hub]:
        now, hubs = self._loop.time(), self.hubs
        if now >= self._turns_at:
            self._turn, self._turns_at = (self._turn + 1) % len(hubs), now + _TURN_S
        first = self._turn % len(hubs)
        yield from hubs[first:]
        yield from hubs[:first]

    @property
    def is_in_use(self) -> bool:
        """Whether commands of clients wait for it."""
        return bool(self._sleeping) or any(hub.is_in_use for hub in self.hubs)

    @property
    def polled_at(self) -> float:
        """When a client has last fetched, by the clock of the event loop."""
        return max(hub.polled_at for hub in self.hubs)

    def look(self) -> None:
        """Believe no longer that the partitions are empty: a client of this process has changed the queue."""
        for hub in self.hubs:
            hub.look()

    # -- waiting ---------------------------------------------------------------------------------------------

    async def _sleep(self, seconds: float) -> None:
        """Sleep until a partition may have a job, or the time is over."""
        future: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_later(seconds, _end, future)
        self._sleeping[future] = None
        self._set_timer()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._wake(1)  # another one instead
            raise
        finally:
            timer.cancel()
            self._sleeping.pop(future, None)

    def _ready(self) -> None:
        """Let a fetch that waits look at the partitions; it wakes others if it has found a job."""
        self._changes += 1
        self._wake(1)

    def _wake(self, count: int) -> None:
        for future in tuple(islice(self._sleeping, count)):
            del self._sleeping[future]
            _end(future)

    def _set_timer(self) -> None:
        """Look again when one of the partitions is not known to be empty any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sleeping and not self._is_closed:
            until = min((hub.empty_until for hub in self.hubs if hub not in self._late), default=None)
            if until is not None:
                self._timer = self._loop.call_at(max(until, self._paused_until), self._ready)

    def close(self) -> None:
        """End the fetches that wait. Idempotent."""
        self._is_closed = True
        self._changes += 1
        self._wake(len(self._sleeping))
        self._set_timer()


def _release(hub: Hub, task: asyncio.Task[list[Fetched]]) -> None:
    """Release jobs that arrive after the fetch has returned those of other partitions."""
    if not task.cancelled() and task.exception() is None:
        hub.release(task.result())


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
