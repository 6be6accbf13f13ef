"""The running components of a worker: its lanes, one for each queue or part of a queue, over one pool of slots."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.runtime import stop_task
from glidemq_py._client.shared_reads import WORKER_READS, Reservation, reserve_read
from glidemq_py._client.threads import in_thread
from glidemq_py._client.transport import Transport, resolve
from glidemq_py._core.calls import pieces
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._job.current import label_log_records
from glidemq_py._job.run import Run
from glidemq_py._partitions.layout import Layout
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.stored import read_layout, renewed_layout
from glidemq_py._worker.batches import BatchCollector, BatchSlots
from glidemq_py._worker.lane import JoinedQueue, Lane, SharedByLanes, link_over
from glidemq_py._worker.opening import ServedQueue, WorkerComponents, connect_patiently, entered, with_partitions
from glidemq_py._worker.slot_pool import TURN_S, SlotPool
from glidemq_py._worker.wake_channel import wake_channels_of
from glidemq_py.errors import GlideMQError, GlideMQValidationError
from glidemq_py.telemetry.state import TELEMETRY

_log = get_logger(__name__)

_OPENED_AT_ONCE: Final = 20
_SHOWN: Final = 5
_PART_TURN_S: Final = 0.05
"""Mean turn of a part. Their jobs are those of one queue, so larger calls are worth more than short turns."""


def turn_of(queues: Sequence[ServedQueue]) -> float:
    """Return the mean turn of these queues; see `slot_pool`."""
    names = {None if queue.partition is None else queue.partition.queue_name for queue in queues}
    return TURN_S if None in names or len(names) > 1 else _PART_TURN_S


class Lanes:
    """The running components of a worker.

    Args:
        opening: The worker.
    """

    shared: SharedByLanes

    def __init__(self, opening: WorkerComponents) -> None:
        self._opening = replace(opening, layout_seen=self._seen)
        self.lanes: list[Lane] = []
        self._accepting = False
        self._closing = False
        self._layouts: dict[str, Layout] = {}
        """Of each partitioned queue, the layout that is served."""
        self._known: dict[str, int] = {}
        self._pending: dict[str, int] = {}
        """Numbers of new layouts, by the names of their queues."""
        self._leaves_read = False
        self._following: asyncio.Task[None] | None = None

    # -- opening --------------------------------------------------------------------------------------------

    async def open(self, stack: AsyncExitStack) -> None:
        """Connect and start everything except fetching. ``stack`` closes the resources that outlive the lanes.

        A worker of one queue without parts waits in a blocking read on a connection of its own, if a process has one
        left: the first workers of one server have.

        Raises:
            GlideMQValidationError: If an option does not fit the parts of a queue.
            ConnectionRejectedError: If the server rejects the connection.
        """
        TELEMETRY.detect_providers()
        reads, reservation = len(self._opening.queues) == 1, None
        if reads and (server := await _shared_server(self._opening)) is not None:
            reservation = reserve_read(server, WORKER_READS, yields=True, claimed=self._give_up_read)
            reads = reservation is not None
        try:
            await self._open(stack, reads, reservation)
        except BaseException:
            if reservation is not None:
                reservation.release()
            raise
        self._follow_soon()

    async def _open(self, stack: AsyncExitStack, reads: bool, reservation: Reservation | None) -> None:
        opening = self._opening

        async def prepare(transport: Transport) -> tuple[dict[str, Layout], list[JoinedQueue]]:
            layouts = {} if opening.source is not None else await _read_layouts(transport, opening.queues)
            return layouts, await _join(with_partitions(opening, layouts), transport)

        transport, (layouts, joined) = await connect_patiently(
            opening.connection, opening.keys, stack, opening.listeners, prepare
        )
        self._layouts = layouts
        self._known = {name: layout.number for name, layout in layouts.items()}
        if layouts and reservation is not None:
            reservation.release()
        context = await open_user_code(opening, link_over(transport, opening), stack)
        whole = with_partitions(opening, layouts)
        pool = SlotPool(opening.options.slots, weighted=whole.weighted, turn_s=turn_of(whole.queues))
        self.shared = SharedByLanes(
            transport=transport, pool=pool, channels=wake_channels_of(transport), context=context,
            collector=make_collector(opening, pool),
        )  # fmt: skip
        reads = reads and not layouts
        await self._add([
            Lane(each, self.shared, position, reads=reads, reservation=reservation)
            for position, each in enumerate(joined)
        ])  # fmt: skip

    async def _add(self, lanes: list[Lane]) -> None:
        try:
            for piece in pieces(lanes, _OPENED_AT_ONCE):
                await asyncio.gather(*(lane.open() for lane in piece))
        except BaseException:
            now = asyncio.Event()
            now.set()
            await asyncio.gather(*(lane.close(now) for lane in lanes), return_exceptions=True)
            await self.shared.channels.idle.remove(lanes)
            raise
        self.lanes += lanes

    # -- parts of queues that are found later ---------------------------------------------------------------

    def _seen(self, name: str, number: int) -> None:
        """Serve the parts of a queue if the number of its layout is a new one."""
        if number != self._known.get(name, 0):
            self._pending[name] = number
        self._follow_soon()

    def _give_up_read(self) -> None:
        self._leaves_read = True
        self._follow_soon()

    def _follow_soon(self) -> None:
        is_due = bool(self._pending) or self._leaves_read
        if is_due and self.lanes and not self._closing and (self._following is None or self._following.done()):
            self._following = asyncio.create_task(self._follow(), name="glidemq-partitions")

    async def follow(self, keys: QueueKeys) -> None:
        """Serve the present parts of a queue, for tests, whose workers have no heartbeats. Raises GlideMQError."""
        if self._opening.source is not None:
            return  # a broadcast has no parts
        layout = await read_layout(self.shared.transport, keys)
        self._seen(keys.name, 0 if layout is None else layout.number)
        if self._following is not None:
            await asyncio.wait({self._following})

    async def _follow(self) -> None:
        while self._pending or self._leaves_read:
            if self._leaves_read:
                self._leaves_read = False
                await self.lanes[0].leave_read()
                continue
            name, number = self._pending.popitem()
            try:
                await self._serve(name)
                self._known[name] = number
            except GlideMQValidationError as error:
                _log.error(
                    "queue %r: the worker closes when its running jobs have ended, as it cannot serve partitions: %s",
                    name, error,
                )  # fmt: skip
                if self._opening.failed is not None:
                    self._opening.failed(error)
                return
            except GlideMQError as error:  # the next heartbeat tries again
                _log.warning("queue %r: the worker cannot serve the new partitions yet: %s", name, error)

    async def _serve(self, name: str) -> None:
        transport, prefix = self.shared.transport, self._opening.keys.prefix
        layout = await renewed_layout(transport, QueueKeys(prefix, name), self._layouts.get(name))
        if layout is None:
            return
        layouts = {**self._layouts, name: layout}
        opening = with_partitions(self._opening, layouts)
        present = {lane.link.keys.name: lane for lane in self.lanes}
        new = [served for served in opening.queues if served.keys.name not in present]
        joined = await _join(replace(opening, queues=tuple(new)), transport)
        await self.lanes[0].leave_read()
        self.shared.pool.share(turn_of(opening.queues))
        for served in opening.queues:
            if served.keys.name in present:
                present[served.keys.name].become(served)
        lanes = [Lane(each, self.shared, at) for at, each in enumerate(joined, len(self.lanes))]
        if opening.options.batch is None:
            for lane in lanes:
                lane.runner.resize(self.shared.pool.slots)
        await self._add(lanes)
        self._layouts = layouts
        if self._accepting:
            self._accept(lanes)
        if not self._accepting:  # another thread may have paused the worker meanwhile
            self.pause()
        if new:
            _log.info("queue %r: the worker serves %d partitions now", name, layout.partitions)

    # -- all lanes as one -----------------------------------------------------------------------------------

    @property
    def running(self) -> list[Run]:
        """Every job whose handler has not ended."""
        # Copies, which are atomic: `active_count` is read from other threads.
        return [run for lane in self.lanes for run in list(lane.runner.running)]

    def cancel(self, job_id: str, queue: str | None = None) -> bool:
        """Cancel a job; ids of different queues may be equal. See `BaseWorker.cancel_job`."""
        names = {run.job.queue_name for run in self.running if run.job.id == job_id and not run.attempt.ended}
        if queue is None and len(names) > 1:
            shown = ", ".join(map(repr, sorted(names)[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
            raise GlideMQValidationError("queue", None, f"job {job_id!r} runs in the queues {shown}; name one of them")
        lanes = [lane for lane in self.lanes if lane.queue_name in names and queue in (None, lane.queue_name)]
        return any(lane.runner.cancel(job_id) for lane in lanes)

    def pause(self) -> None:
        """Stop fetching jobs. Any thread may call this."""
        self._accepting = False
        for lane in self.lanes:
            lane.fetching.pause()

    def resume(self) -> None:
        """Fetch jobs."""
        self._accepting = True
        self._accept(self.lanes)

    def _accept(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            lane.fetching.accept()
        self.shared.pool.pump()  # once: it goes through all lanes

    def resize(self, slots: int) -> None:
        """Change the maximum number of running jobs. Running jobs, and those of calls in flight, may exceed it."""
        pool = self.shared.pool
        pool.resize(slots)
        for lane in self.lanes:
            lane.runner.resize(slots)
            lane.fetching.engine.limit_calls(slots)
        pool.pump()

    def rate_limit(self, milliseconds: int) -> None:
        """Stop fetching for so many ms."""
        for lane in self.lanes:
            lane.fetching.rate_limit(milliseconds)

    @property
    def unresponsive_seconds(self) -> float:
        """See `FetchEngine.unresponsive_seconds`; the longest of all lanes. Also read from a thread."""
        return max(lane.fetching.unresponsive_seconds for lane in self.lanes)

    async def is_drained(self) -> bool:
        """Return True if no queue has waiting, active, delayed or parked jobs."""
        for lane in self.lanes:
            if not await lane.source.is_drained(lane.link):
                return False
        return True

    # -- closing --------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Let jobs that can continue later end at their next step."""
        for lane in self.lanes:
            lane.link.is_closing = True

    async def close(self, force: asyncio.Event) -> None:
        """Stop fetching, wait for running jobs until ``force`` is set, report all results, and leave the queues."""
        self._closing = True
        self.pause()
        if self._following is not None:
            await stop_task(self._following)
        await self.shared.channels.idle.remove(self.lanes)
        await asyncio.gather(*(queue.close() for queue in self.shared.queues.values()))
        for lane in self.lanes:
            lane.runner.stop_accepting()
        await asyncio.gather(*(lane.close(force) for lane in self.lanes))


async def _shared_server(opening: WorkerComponents) -> Hashable | None:
    """Return what identifies the server if the worker shares its clients and may wait for channels; else None."""
    if opening.source is not None or opening.sandbox is not None or opening.options.batch is not None:
        return None
    connection = opening.connection
    if not opening.in_background or not (connection is None or isinstance(connection, (str, ConnectionOptions))):
        return None
    found = await in_thread(resolve, connection)  # it may start the embedded server
    return found if isinstance(found, ConnectionOptions) and found.share_clients else None


async def _read_layouts(transport: Transport, queues: Sequence[ServedQueue]) -> dict[str, Layout]:
    """Return the layout of each queue that has parts."""
    found: dict[str, Layout] = {}
    for page in pieces([served.keys for served in queues], _OPENED_AT_ONCE):
        for keys, each in zip(page, await asyncio.gather(*(read_layout(transport, k) for k in page)), strict=True):
            if each is not None:
                found[keys.name] = each
    return found


async def _join(opening: WorkerComponents, transport: Transport) -> list[JoinedQueue]:
    joined: list[JoinedQueue] = []
    for page in pieces(opening.queues, _OPENED_AT_ONCE):
        joined += await asyncio.gather(*(JoinedQueue.join(opening, served, transport) for served in page))
    return joined


async def open_user_code(opening: WorkerComponents, link: QueueLink, stack: AsyncExitStack) -> Any:
    """Start the processes of a sandbox, and enter the lifespan; return the value that it yields."""
    label_log_records()
    if opening.sandbox is not None:
        stack.push_async_callback(opening.sandbox.close)
        await opening.sandbox.open(link, opening.options.concurrency)
    if opening.lifespan is None:
        return None
    lifespan = entered(opening.lifespan())
    context = await lifespan.open()
    stack.push_async_callback(lifespan.close)
    return context


def make_collector(opening: WorkerComponents, pool: SlotPool) -> BatchCollector | None:
    """Return the collector of batches; None if the handler takes single jobs."""
    options = opening.options
    if options.batch is None or opening.routes.only is None:
        return None
    return BatchCollector(
        route=opening.routes.only, options=options.batch, slots=BatchSlots(pool), listeners=opening.listeners,
        concurrency=options.concurrency, name=opening.queue_name, middleware=opening.queue_options.middleware,
    )  # fmt: skip
