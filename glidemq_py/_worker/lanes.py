"""A worker that serves several queues with one pool of slots.

Each queue is a lane: it has its own fetch loop and runner over the shared connection. A queue without any job costs
nothing but its share of the poll (`wake_channel`): heartbeats and maintenance tasks of a lane run only while its queue
has jobs, schedulers or other work.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Hashable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.runtime import stop_task
from glidemq_py._client.shared_reads import WORKER_READS, reserve_read
from glidemq_py._client.threads import in_thread
from glidemq_py._client.transport import Transport, resolve
from glidemq_py._core.calls import pieces
from glidemq_py._core.logs import get_logger
from glidemq_py._features import queue_list
from glidemq_py._features.failure_policy import POLICY_FIELD
from glidemq_py._job.run import Run
from glidemq_py._partitions.layout import Layout
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.stored import read_layout, read_layout_and
from glidemq_py._worker.batches import BatchCollector, PooledSlots
from glidemq_py._worker.components import (
    FoundPartitionsError,
    Parts,
    close_parts,
    is_drained,
    link_over,
    make_collector,
    make_runner,
    open_parts,
    open_user_code,
    patience_s,
)
from glidemq_py._worker.fetch_calls import QueueSource, Throttle
from glidemq_py._worker.heartbeat import registration
from glidemq_py._worker.maintenance.libraries import repair_idle_groups
from glidemq_py._worker.maintenance.queues import Background
from glidemq_py._worker.opening import ServedQueue, WorkerComponents, connect_patiently, with_partitions
from glidemq_py._worker.slot_pool import TURN_S, PooledFetchLoop, QueueOfEngines, SlotPool
from glidemq_py._worker.wake import REGISTERED_S, DrainProbe, idle_queues_of
from glidemq_py._worker.wake_channel import ChannelWake, WakeChannels, wake_channels_of
from glidemq_py.errors import GlideMQError, GlideMQValidationError, UnsupportedFeatureError
from glidemq_py.telemetry.state import TELEMETRY

_log = get_logger(__name__)

QUIET_S: Final = 60.0
"""Time without work after which the heartbeats and tasks of a lane stop."""
_OPENED_AT_ONCE: Final = 20
_SHOWN: Final = 5
_FORMER_POLL_S: Final = 0.02
"""Time between two counts of the jobs that were fetched before the queue was partitioned."""
_REGISTERING_S: Final = 2.0
"""How long a closing lane waits for a registration in flight."""
_SHORT_S: Final = 0.25
"""Time after which a running job needs heartbeats; the shortest lock duration of a worker is a second."""


_PARTITION_TURN_S: Final = 0.05
"""Mean turn of a partition. Their jobs are those of one queue, so larger calls are worth more than short turns."""


def turn_of(queues: Sequence[ServedQueue]) -> float:
    """Return the mean turn of these queues; see `slot_pool`."""
    names = {None if queue.partition is None else queue.partition.queue_name for queue in queues}
    return TURN_S if None in names or len(names) > 1 else _PARTITION_TURN_S


@dataclass(frozen=True, slots=True)
class SharedByLanes:
    """State that all lanes of a worker share.

    Attributes:
        transport: The connection.
        pool: The slots of the worker.
        channels: Wake the queues.
        collector: Collects the jobs of all lanes into batches; None if the handler takes single jobs.
        context: Value yielded by the lifespan.
        throttles: By name of a partitioned queue: its partitions are paused together.
        queues: By name of a partitioned queue: its partitions are drained together.
        probes: By name of a partitioned queue: look for jobs in its partitions before it counts as drained.
    """

    transport: Transport
    pool: SlotPool
    channels: WakeChannels
    collector: BatchCollector | None
    context: Any
    throttles: dict[str, Throttle] = field(default_factory=dict[str, Throttle])
    queues: dict[str, QueueOfEngines] = field(default_factory=dict[str, QueueOfEngines])
    probes: dict[str, DrainProbe] = field(default_factory=dict[str, DrainProbe])


class Lane:
    """One queue of a worker.

    Args:
        opening: The worker; ``keys`` and ``queue_options`` are those of this queue.
        shared: State of all lanes of the worker.
        position: Position of the queue in the list.
        weight: Weight of the queue.
    """

    def __init__(self, *, opening: WorkerComponents, shared: SharedByLanes, position: int, weight: int) -> None:
        self._opening = opening
        self._shared = shared
        transport, channels = shared.transport, shared.channels
        self._channels = channels
        self.link: QueueLink = link_over(transport, opening)
        self.source = QueueSource(opening.keys, opening.consumer, opening.options)
        number = channels.next_number()
        self.fetching = PooledFetchLoop(
            pool=shared.pool, position=position, weight=weight,
            channel=channels.channel(number, cluster=transport.is_cluster), opening=opening, link=self.link,
            source=self.source, context=shared.context,
        )  # fmt: skip
        if opening.partition is not None:
            self._join_partitions(opening.partition.queue_name)
        self._outcomes = self.source.outcomes(self.link)
        self.runner = make_runner(opening, self._outcomes, self.fetching, shared.collector)
        self.fetching.attach(self.runner)
        self.wake = ChannelWake(self.link, self.fetching, channels, number, self._on_activity, self._called)
        self.patience = patience_s(transport, opening)
        self.background: Background | None = None
        self._expects_outbox = False
        self._changing: asyncio.Task[None] | None = None
        self._quiet_since: float | None = None
        self._closing = False
        self._is_first = position == 0
        self._always = False
        """True if the heartbeats never stop: for health checks, of the first queue if nothing can call the worker."""
        self._has_policy = False
        """True if the queue has a failure policy, which the tasks execute also while it has failed jobs only."""
        self._number = number
        self._registering = asyncio.Lock()
        self._registered_for_s = REGISTERED_S
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._started_at = int(time.time() * 1000)
        self._stand_by()

    @property
    def queue_name(self) -> str:
        """Name of the queue; of a partition, that of the whole queue."""
        partition = self.link.partition
        return self.link.keys.name if partition is None else partition.queue_name

    def _join_partitions(self, queue_name: str) -> None:
        engine, throttles = self.fetching.engine, self._shared.throttles
        self._shared.queues.setdefault(queue_name, engine.queue).add(engine)
        engine.throttle = throttles.setdefault(queue_name, engine.throttle)

    def _join_probe(self, name: str) -> None:
        probes = self._shared.probes
        if name not in probes:
            drained = partial(self._opening.listeners.emit, "drained", queue=name)
            probes[name] = DrainProbe(self.fetching.engine.queue, name, drained)
        probes[name].add(self.wake)

    async def open(self) -> None:
        """Prepare the server. Raises GlideMQError."""
        await self.source.open(self.link)
        self._expects_outbox = await self.source.declare_dead_letters(self.link, self._opening.queue_options)
        if self._opening.in_background:
            await self.wake.open()
            if self._opening.partition is not None:
                self._join_probe(self._opening.partition.queue_name)
            self._always = self._is_first and not self._channels.hears
            if self._always:
                self._start_background()
        else:
            self.background = self._make_background()  # for tests, which call its tasks themselves

    # -- heartbeats and tasks -------------------------------------------------------------------------------

    def _stand_by(self) -> None:
        """Start the tasks as soon as the fetch loop reports something for them."""
        fetching = self.fetching
        fetching.started = self._await_long_jobs
        fetching.outbox_pending = self._deliver_outbox
        fetching.schedulers = lambda _: self._start_background()
        fetching.short_lock = lambda _: self._start_background()
        fetching.job_failed = None

    def _deliver_outbox(self) -> None:
        self._start_background()
        if self.background is not None:
            self.background.outbox.wake()

    def _await_long_jobs(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(_SHORT_S, self._start_for_long_jobs)

    def _start_for_long_jobs(self) -> None:
        self._timer = None
        if self.fetching.engine.running:
            self._start_background()

    def _on_activity(self, active: bool) -> None:
        if active or self.fetching.engine.running:
            self._quiet_since = None
            self._start_background()
        elif self.background is None or self._always or self._has_policy:
            return
        elif self._quiet_since is None:
            self._quiet_since = self._loop.time()
        elif self._loop.time() - self._quiet_since >= QUIET_S and self._changing is None:
            self._begin_stop()

    def _begin_stop(self) -> None:
        self._changing = asyncio.create_task(self._stop_background(), name=f"glidemq-quiet-{self.link.keys.name}")

    def _start_background(self) -> None:
        if self.background is not None or self._closing or not self._opening.in_background:
            return
        background = self.background = self._make_background()
        self.fetching.started = None
        before = self._changing
        self._changing = asyncio.create_task(
            self._started(background, before), name=f"glidemq-start-{self.link.keys.name}"
        )

    def _make_background(self) -> Background:
        return Background(
            self._opening, link=self.link, source=self.source, fetching=self.fetching, runner=self.runner,
            outcomes=self._outcomes, expects_outbox=self._expects_outbox,
        )  # fmt: skip

    async def _started(self, background: Background, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait({before})
            await background.start()
        finally:
            self._changed()

    async def _stop_background(self) -> None:
        background, self.background = self.background, None
        self._quiet_since = None
        self._stand_by()
        try:
            if background is not None:
                await background.stop()
                await background.close()
            await self.register()  # the registration of the heartbeats expires soon
        finally:
            self._changed()

    def _changed(self) -> None:
        """End a start or stop of the tasks, unless a later one waits for it."""
        if self._changing is asyncio.current_task():
            self._changing = None

    def _called(self) -> None:
        """Read commands now, which a registration returns."""
        self._reading = asyncio.create_task(self.register(), name=f"glidemq-commands-{self.link.keys.name}")

    async def register(self, interval_s: float | None = None) -> None:
        """Renew the worker's registration with a queue that has no work, where no heartbeats do it.

        Args:
            interval_s: Seconds until the next registration; None = as before.
        """
        if interval_s is not None:
            self._registered_for_s = interval_s
        async with self._registering:
            if self.background is None and not self._closing:
                await self._register()

    async def _register(self) -> None:
        opening = self._opening
        control = opening.control
        info = registration(
            self._started_at, 0, 0, opening.options.lock_duration, opening.options.stalled_policy,
            self._channels.control_channel(self._number) if self._channels.hears else "",
            None if control is None else control.about(), int(self._registered_for_s * 1000),
        )  # fmt: skip
        call = self.source.heartbeat(info, int(3 * self._registered_for_s * 1000), [])
        try:
            reply = await self.link.transport.call(call)
            seen = self._opening.layout_of(self.link.keys)
            if seen is not None:
                seen(reply.layout)
            if reply.commands and control is not None:
                control.run(self.link, reply.commands)
                self._called()  # they may have changed what is registered
        except UnsupportedFeatureError as error:
            self.fetching.refuse(error)
        except GlideMQError as error:
            _log.debug("queue %s: registering the worker failed: %s", self.link.label, error)
        await queue_list.register(self.link)

    async def examine(self) -> None:
        """See `IdleQueue.examine`."""
        if self._closing or (self.background is not None and not self._has_policy):
            return
        keys, seen = self.link.keys, self._opening.layout_of(self.link.keys)
        try:
            layout, (policy,) = await read_layout_and(self.link.transport, keys, POLICY_FIELD)
            if self.background is None:
                await repair_idle_groups(self.link)
        except GlideMQError as error:
            _log.debug("queue %s: reading its partitions, failure policy and groups failed: %s", self.link.label, error)
            return
        if seen is not None:
            seen(0 if layout is None else layout.number)
        self._has_policy = bool(policy)
        if self._has_policy:
            self._start_background()

    # -- closing --------------------------------------------------------------------------------------------

    async def close(self, force: asyncio.Event) -> None:
        """See `Parts.close`."""
        self._closing = True
        if self._changing is not None:
            await asyncio.wait({self._changing})
        # A registration that arrives after the end of the worker would list it for minutes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REGISTERING_S), self._registering:
                pass
        await close_parts(self, force)
        if self._timer is not None:
            self._timer.cancel()
        if self.background is not None:
            await self.background.close()

    async def abandon(self) -> None:
        """Stop a lane whose worker could not start."""
        self._closing = True
        await self.wake.close()
        await self.fetching.close()
        self.runner.close()


def _lane_of(opening: WorkerComponents, served: ServedQueue, position: int, shared: SharedByLanes) -> Lane:
    of_queue = replace(opening, keys=served.keys, queue_options=served.options, partition=served.partition)
    lane = Lane(opening=of_queue, shared=shared, position=position, weight=served.weight)
    _divide(lane, served)
    return lane


def _divide(lane: Lane, served: ServedQueue) -> None:
    """Set the shares of a partition in the limits of the worker."""
    if served.limiter is not None:
        lane.fetching.limit(served.limiter)
    lane.fetching.engine.token_share = served.tokens


class _Running:
    """The running jobs of all lanes, as those of one runner."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self.former: Parts | None = None
        """What the worker was before its queue was partitioned, while its jobs are running."""

    @property
    def running(self) -> list[Run]:
        """Every job whose handler has not ended."""
        found = [run for lane in self._lanes for run in lane.runner.running]
        return found if self.former is None else [*self.former.runner.running, *found]

    def resize(self, concurrency: int) -> None:
        """See `Runner.resize`."""
        for lane in self._lanes:
            lane.runner.resize(concurrency)

    def cancel(self, job_id: str, queue: str | None = None) -> bool:
        """Cancel a job; ids of different queues may be equal. See `BaseWorker.cancel_job`."""
        names = {run.job.queue_name for run in self.running if run.job.id == job_id and not run.attempt.ended}
        if queue is None and len(names) > 1:
            shown = ", ".join(map(repr, sorted(names)[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
            raise GlideMQValidationError("queue", None, f"job {job_id!r} runs in the queues {shown}; name one of them")
        if self.former is not None and self.former.runner.cancel(job_id):
            return True
        lanes = [lane for lane in self._lanes if lane.queue_name in names and queue in (None, lane.queue_name)]
        return any(lane.runner.cancel(job_id) for lane in lanes)


class LanesFetching:
    """The fetch loops of all lanes, as one."""

    def __init__(self, lanes: Sequence[Lane], pool: SlotPool) -> None:
        self._lanes = lanes
        self._pool = pool
        self._slots = pool.slots
        self.former_slots = 0
        """Slots that jobs have which were fetched before the queue was partitioned."""

    def pause(self) -> None:
        """See `FetchLoop.pause`."""
        for lane in self._lanes:
            lane.fetching.pause()

    def resume(self) -> None:
        """See `FetchLoop.resume`."""
        for lane in self._lanes:
            lane.fetching.engine.accepting = True
            lane.fetching.engine.wake()
        self._pool.pump()

    def resize(self, slots: int) -> None:
        """See `FetchLoop.resize`."""
        self._slots = slots
        self._pool.resize(max(0, slots - self.former_slots))
        for lane in self._lanes:
            lane.fetching.engine.limit_calls(slots)
        self._pool.pump()

    def rate_limit(self, milliseconds: int) -> None:
        """See `FetchLoop.rate_limit`."""
        for lane in self._lanes:
            lane.fetching.rate_limit(milliseconds)

    @property
    def unresponsive_seconds(self) -> float:
        """The longest of all lanes."""
        return max(lane.fetching.unresponsive_seconds for lane in self._lanes)

    def reserve(self, slots: int) -> None:
        """Leave so many slots to jobs that were fetched before the queue was partitioned."""
        if slots != self.former_slots:
            self.former_slots = slots
            self._pool.resize(max(0, self._slots - slots))
            self._pool.pump()


class Lanes:
    """The components of a running worker that serves several queues; it takes the place of `Parts`.

    Args:
        opening: The worker; ``several`` without partitions.
        lanes: The queues.
        layouts: Names of the partitions of each queue that has any.
        shared: The connection, slots and other objects of all lanes.
    """

    def __init__(
        self, opening: WorkerComponents, lanes: list[Lane], layouts: dict[str, Sequence[str]], shared: SharedByLanes
    ) -> None:
        self._opening = opening
        self._pool = shared.pool
        self._layouts = layouts
        self.lanes = lanes
        self._idle = idle_queues_of(shared.channels)
        self.fetching = LanesFetching(lanes, shared.pool)
        self.runner = _Running(lanes)
        self._shared = shared
        self._taking_over: asyncio.Task[None] | None = None

    # -- partitions that are added later --------------------------------------------------------------------

    async def serve_layout(self, name: str, layout: Layout, *, accepting: bool) -> int:
        """Serve the partitions of a layout too. Raises the errors of `with_partitions`, and GlideMQError.

        Returns:
            How many partitions were not served before.
        """
        present = {lane.link.keys.name: lane for lane in self.lanes}
        layouts = {**self._layouts, name: layout.names}
        opening = with_partitions(self._opening, layouts)
        new: list[Lane] = []
        for served in opening.several:
            lane = present.get(served.keys.name)
            if lane is not None:
                lane.fetching.engine.weight = served.weight
                _divide(lane, served)
            else:
                new.append(_lane_of(opening, served, len(self.lanes) + len(new), self._shared))
        try:
            await asyncio.gather(*(lane.open() for lane in new))
        except BaseException:
            await asyncio.gather(*(lane.abandon() for lane in new), return_exceptions=True)
            raise
        self._pool.share_by_weight(turn_of(opening.several))
        for lane in new:
            self.lanes.append(lane)
            if accepting:
                lane.fetching.engine.accepting = True
                lane.fetching.engine.wake()
        self._layouts = layouts
        self._idle.add(new)
        self._pool.pump()
        return len(new)

    def take_over(self, former: Parts) -> None:
        """Let the jobs of a worker that was opened before its queue was partitioned end; they keep their slots."""
        self.runner.former = former
        former.fetching.pause()
        former.runner.stop_accepting()  # a batch that is not full starts with jobs of all partitions
        self.fetching.reserve(_slots_of(former))
        self._taking_over = asyncio.create_task(self._take_over(former), name="glidemq-former-jobs")

    async def _take_over(self, former: Parts) -> None:
        while _slots_of(former) or former.fetching.unreported:
            await asyncio.sleep(_FORMER_POLL_S)
            self.fetching.reserve(_slots_of(former))
        await former.close(asyncio.Event())
        self.fetching.reserve(0)
        self.runner.former = None

    def start(self) -> None:
        """Start registering the worker with its queues, and looking for new partitions of them."""
        self._idle.add(self.lanes)

    async def taken_over(self) -> None:
        """Wait until the worker that these lanes replace has ended, if there is one."""
        if self._taking_over is not None:
            await asyncio.wait({self._taking_over})

    async def is_drained(self) -> bool:
        """Return True if no queue has waiting, active, delayed or parked jobs."""
        for lane in self.lanes:
            if not await is_drained(lane.link):
                return False
        return True

    def interrupt(self) -> None:
        """See `Parts.interrupt`."""
        for lane in self.lanes:
            lane.link.is_closing = True
        if self.runner.former is not None:
            self.runner.former.interrupt()

    async def close(self, force: asyncio.Event) -> None:
        """See `Parts.close`."""
        await self._idle.remove(self.lanes)
        self.fetching.pause()
        await asyncio.gather(*(probe.close() for probe in self._shared.probes.values()))
        for lane in self.lanes:
            lane.runner.stop_accepting()
        if self._taking_over is not None:
            await stop_task(self._taking_over)
        former = self.runner.former
        others = () if former is None else (former.close(force),)
        await asyncio.gather(*(lane.close(force) for lane in self.lanes), *others)


def _slots_of(former: Parts) -> int:
    engine = former.fetching.engine
    return len(engine.running) + engine.requested_slots + engine.withheld


async def open_worker(opening: WorkerComponents, stack: AsyncExitStack) -> Parts | Lanes:
    """Open a worker of one or several queues; see `open_parts`.

    The first workers of one name wait in a blocking read on a connection of their own. Further ones of the process wait
    for wake-up channels, as workers of several queues do. So does one of the first when another use claims its
    connection.
    """
    if opening.several:
        return await open_lanes(opening, stack)
    server = await _shared_server(opening)
    if server is None:
        return await _open_one(opening, stack)
    reservation = reserve_read(server, WORKER_READS, yields=True, claimed=opening.read_claimed)
    if reservation is None:
        return await _open_only(opening, stack)
    try:
        parts = await _open_one(opening, stack)
    except BaseException:
        reservation.release()
        raise
    if isinstance(parts, Lanes):
        reservation.release()
        return parts
    stack.callback(reservation.release)
    return replace(parts, reservation=reservation)


async def _open_one(opening: WorkerComponents, stack: AsyncExitStack) -> Parts | Lanes:
    """Open a worker of one queue, which may be partitioned."""
    try:
        return await open_parts(opening, stack)
    except FoundPartitionsError:
        await stack.aclose()
        return await _open_only(opening, stack)


async def _open_only(opening: WorkerComponents, stack: AsyncExitStack) -> Lanes:
    """Open a worker of one queue as one of a list of one. Its partitions are not in ``several``: they may change."""
    only = ServedQueue(opening.keys, opening.queue_options, 1)
    return await open_lanes(replace(opening, several=(only,)), stack)


async def _shared_server(opening: WorkerComponents) -> Hashable | None:
    """Return what identifies the server if the worker shares its clients and may wait for channels; else None."""
    if opening.source is not None or opening.sandbox is not None or opening.options.batch is not None:
        return None
    connection = opening.connection
    if not opening.in_background or not (connection is None or isinstance(connection, (str, ConnectionOptions))):
        return None
    found = await in_thread(resolve, connection)  # it may start the embedded server
    return found if isinstance(found, ConnectionOptions) and found.share_clients else None


async def _layouts(transport: Transport, several: Sequence[ServedQueue]) -> dict[str, Sequence[str]]:
    """Return the names of the partitions of each queue that has any."""
    found: dict[str, Sequence[str]] = {}
    unknown = [served.keys for served in several if served.partition is None]
    for page in pieces(unknown, _OPENED_AT_ONCE):
        for keys, each in zip(page, await asyncio.gather(*(read_layout(transport, k) for k in page)), strict=True):
            if each is not None:
                found[keys.name] = each.names
    return found


async def open_lanes(opening: WorkerComponents, stack: AsyncExitStack) -> Lanes:
    """See `open_parts`."""
    TELEMETRY.detect_providers()

    async def prepare(transport: Transport) -> dict[str, Sequence[str]]:
        return await _layouts(transport, opening.several)

    transport, layouts = await connect_patiently(opening.connection, opening.keys, stack, opening.listeners, prepare)
    plain, opening = opening, with_partitions(opening, layouts)
    context = await open_user_code(opening, link_over(transport, opening), stack)
    pool = SlotPool(opening.options.slots, weighted=opening.weighted, turn_s=turn_of(opening.several))
    channels = wake_channels_of(transport)

    shared = SharedByLanes(transport, pool, channels, make_collector(opening, PooledSlots(pool)), context)
    lanes = [_lane_of(opening, served, position, shared) for position, served in enumerate(opening.several)]
    try:
        for piece in pieces(lanes, _OPENED_AT_ONCE):
            await asyncio.gather(*(lane.open() for lane in piece))
    except BaseException:
        await asyncio.gather(*(lane.abandon() for lane in lanes), return_exceptions=True)
        raise
    opened = Lanes(plain, lanes, layouts, shared)
    if opening.in_background:
        opened.start()
    return opened
