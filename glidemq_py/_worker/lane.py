"""A lane of a worker: one queue, or one part of a queue, with its fetch loop, its runner and its heartbeats and tasks.

The only lane of a worker waits in a blocking read, if a connection is left for it; others wait for messages on their
wake-up channels (`wake`). A queue without any job then costs nothing but its share of the poll (`wake_channel`): the
heartbeats and tasks of a lane without a read run only while its queue has jobs, schedulers or other work.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from glidemq_py._client.failures import DEFAULT_REQUEST_TIMEOUT_MS
from glidemq_py._client.shared_reads import Reservation, glide_of
from glidemq_py._client.transport import Transport
from glidemq_py._core.logs import get_logger
from glidemq_py._core.payload import serializer_of
from glidemq_py._features import queue_list
from glidemq_py._features.failure_policy import POLICY_FIELD
from glidemq_py._job.waiting import ResultWaiter
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.stored import read_layout_and
from glidemq_py._worker.batches import BatchCollector, BatchRunner
from glidemq_py._worker.closing import Closing
from glidemq_py._worker.fetch_calls import QueueSource, Throttle
from glidemq_py._worker.fetch_loop import FetchLoop
from glidemq_py._worker.heartbeat import registration
from glidemq_py._worker.maintenance.libraries import repair_idle_groups
from glidemq_py._worker.maintenance.queues import Background
from glidemq_py._worker.opening import ServedQueue, WorkerComponents
from glidemq_py._worker.queue_lanes import QueueLanes
from glidemq_py._worker.results import Outcomes
from glidemq_py._worker.runner import AttemptRunner, Runner
from glidemq_py._worker.slot_pool import SlotPool
from glidemq_py._worker.wake import BlockingRead, ChannelWake, Wake
from glidemq_py._worker.wake_channel import REGISTERED_S, WakeChannels
from glidemq_py.errors import GlideMQError, UnsupportedFeatureError

_log = get_logger(__name__)

QUIET_S: Final = 60.0
"""Time without work after which the heartbeats and tasks of a lane stop."""
_REGISTERING_S: Final = 2.0
"""How long a closing lane waits for a registration in flight."""
_SHORT_S: Final = 0.25
"""Time after which a running job needs heartbeats; the shortest lock duration of a worker is a second."""
_LEAVE_S: Final = 2.0
_JOIN_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedByLanes:
    """State that all lanes of a worker share.

    Attributes:
        transport: The connection.
        pool: The slots of the worker.
        channels: Wake the queues.
        collector: Collects the jobs of all lanes into batches; None if the handler takes single jobs.
        context: Value yielded by the lifespan.
        queues: State shared by the lanes of each queue, by its name.
    """

    transport: Transport
    pool: SlotPool
    channels: WakeChannels
    collector: BatchCollector | None
    context: Any
    queues: dict[str, QueueLanes] = field(default_factory=dict[str, QueueLanes])


@dataclass(frozen=True, slots=True)
class JoinedQueue:
    """A queue, or a part of one, that is prepared on the server.

    Attributes:
        opening: The worker; ``keys``, ``queue_options`` and ``partition`` are those of this queue.
        served: Its place in the worker.
        link: The queue.
        source: Builds the calls.
        has_dead_letters: True if it has a dead letter queue.
    """

    opening: WorkerComponents
    served: ServedQueue
    link: QueueLink
    source: QueueSource
    has_dead_letters: bool

    @classmethod
    async def join(cls, opening: WorkerComponents, served: ServedQueue, transport: Transport) -> Self:
        """Prepare the server. Raises GlideMQError."""
        opening = replace(opening, keys=served.keys, queue_options=served.options, partition=served.partition)
        link = link_over(transport, opening)
        source = opening.source or QueueSource(opening.keys, opening.consumer, opening.options)
        await source.open(link)
        return cls(opening, served, link, source, await source.declare_dead_letters(link, served.options))


class Lane:
    """One queue, or one part of a queue, of a worker.

    Args:
        joined: The queue.
        shared: State of all lanes of the worker.
        position: Position of the lane in the list.
        reads: True to wait in a blocking read.
        reservation: That of the connection for the read, if the number of these is limited.
    """

    def __init__(
        self, joined: JoinedQueue, shared: SharedByLanes, position: int, *, reads: bool = False,
        reservation: Reservation | None = None,
    ) -> None:  # fmt: skip
        opening, self.link, self.source = joined.opening, joined.link, joined.source
        self._opening = opening
        self._shared = shared
        self._expects_outbox = joined.has_dead_letters
        if opening.queue_name not in shared.queues:
            throttle = Throttle(opening.options.token_limiter)
            shared.queues[opening.queue_name] = QueueLanes(opening.queue_name, opening.listeners, throttle)
        self.fetching = FetchLoop(
            opening=opening, link=self.link, source=self.source, context=shared.context, pool=shared.pool,
            queue=shared.queues[opening.queue_name], position=position, weight=joined.served.weight,
        )  # fmt: skip
        self._outcomes = self.source.outcomes(self.link)
        self.runner = make_runner(opening, self._outcomes, self.fetching, shared.collector)
        self.fetching.attach(self.runner)
        self.background: Background | None = None
        self.wake: Wake = (
            BlockingRead(self.link, self.fetching, self.source, reservation) if reads else self._channel_wake()
        )
        self._changing: asyncio.Task[None] | None = None
        self._quiet_since: float | None = None
        self._closing = False
        self._is_first = position == 0
        self._always = False
        """True if the heartbeats never stop: of a lane that reads, and of the first if nothing can call the worker."""
        self._has_policy = False
        """True if the queue has a failure policy, which the tasks execute also while it has failed jobs only."""
        self._registering = asyncio.Lock()
        self._registered_for_s = REGISTERED_S
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._started_at = int(time.time() * 1000)
        self.become(joined.served)
        self._stand_by()

    @property
    def queue_name(self) -> str:
        """Name of the queue; of a part, that of the whole queue."""
        return self.link.queue_name

    def become(self, served: ServedQueue) -> None:
        """Take this place in the worker: its weight, and of a part of a queue, its number and shares in limits."""
        self.link.partition = served.partition
        self.fetching.engine.weight = served.weight
        if served.limiter is not None:
            self.fetching.limit(served.limiter)
        self.fetching.engine.token_share = served.tokens

    async def open(self) -> None:
        """Start waiting for jobs, and the tasks if they always run."""
        if not self._opening.in_background:
            self.background = self._make_background()  # for tests, which call its tasks themselves
            return
        await self._open_wake()
        if self._always:
            self._start_background()
        if self._changing is not None:
            await self._changing

    async def _open_wake(self) -> None:
        await self.wake.open()
        if isinstance(self.wake, ChannelWake):
            self._shared.channels.idle.add([self])
        self._always = isinstance(self.wake, BlockingRead) or (self._is_first and not self._shared.channels.hears)

    def _channel_wake(self) -> ChannelWake:
        return ChannelWake(self.link, self.fetching, self._shared.channels, self._on_activity, self._called)

    async def leave_read(self) -> None:
        """Wait for a wake-up channel from now on: another lane, or another use, needs the connection of the read."""
        if isinstance(self.wake, BlockingRead):
            await self.wake.close()
            self.wake = self._channel_wake()
            if self._opening.in_background:
                await self._open_wake()
                self.fetching.find_lost()  # the call behind the read may have fetched jobs

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
            self.wake.control_channel, None if control is None else control.about(), int(self._registered_for_s * 1000),
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
        """Stop fetching, wait for running jobs until ``force`` is set, report all results, and leave the queue."""
        self._closing = True
        fetching, runner, wake = self.fetching, self.runner, self.wake
        fetching.pause()
        runner.stop_accepting()
        if self._changing is not None:
            await asyncio.wait({self._changing})
        # A registration that arrives after the end of the worker would list it for minutes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REGISTERING_S), self._registering:
                pass
        closing = Closing(fetching, runner, self._patience_s)
        if force.is_set() or (runner.is_idle and not fetching.unreported):
            closing.start_limit()
        closing.server_replies = await wake.stop_accepting()
        await closing.run_out(force)
        closing.report_losses()
        await closing.send_metrics()
        ends = [wake.close(), fetching.close()]
        if self.background is not None:
            ends.append(self.background.stop(closing.seconds_left(_JOIN_S)))
        await asyncio.gather(*ends)
        fetching.leave()
        runner.close()
        if self._timer is not None:
            self._timer.cancel()
        if self.background is not None:
            await self.background.close()
        if closing.is_cut_off:
            return  # its registration expires
        with contextlib.suppress(GlideMQError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self.link.transport.call(self.source.leave())

    @property
    def _patience_s(self) -> float:
        """How long a close waits for replies to reports: the request timeout plus the lock duration, seconds."""
        glide = glide_of(self.link.transport)
        timeout_ms = (glide and glide.config.request_timeout) or DEFAULT_REQUEST_TIMEOUT_MS
        return (timeout_ms + self._opening.options.lock_duration) / 1000


def link_over(transport: Transport, opening: WorkerComponents) -> QueueLink:
    """Return the link of the queue over a connection."""
    options = opening.queue_options
    if glide := glide_of(transport):
        glide.lock_ms = opening.options.lock_duration
    return QueueLink(
        transport=transport, keys=opening.keys, waiter=ResultWaiter(transport, opening.keys),
        serializer=serializer_of(options.serializer), compression=options.compression,
        loop=asyncio.get_running_loop(),
        has_batches=opening.options.batch is not None,
        partition=opening.partition,
    )  # fmt: skip


def make_runner(
    opening: WorkerComponents, outcomes: Outcomes, fetching: FetchLoop, collector: BatchCollector | None
) -> AttemptRunner:
    """Return the runner of the fetched jobs."""
    options, listeners, name = opening.options, opening.listeners, opening.queue_name
    if collector is not None:
        return BatchRunner(
            collector=collector, outcomes=outcomes, sink=fetching, running=fetching.engine.running,
            listeners=listeners, name=name,
        )  # fmt: skip
    return Runner(
        routes=opening.routes, outcomes=outcomes, sink=fetching, running=fetching.engine.running,
        listeners=listeners, concurrency=options.concurrency, name=name, middleware=opening.queue_options.middleware,
    )  # fmt: skip
