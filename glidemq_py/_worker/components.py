"""The components of a running worker: how they are created and connected, and how they are closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any

from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.connect import Connection
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import reading
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.payload import serializer_of
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._features.schedulers.firing import SchedulerTask
from glidemq_py._features.suspend.overdue import SuspendTimeoutsTask
from glidemq_py._job import QueueLink
from glidemq_py._job.current import label_log_records
from glidemq_py._job.waiting import ResultWaiter
from glidemq_py._maintenance.flows import RemoteFlows, UnfinishedFlowsTask, WaitingParentsTask
from glidemq_py._maintenance.libraries import UnusedLibrariesTask
from glidemq_py._maintenance.outbox import OutboxTask
from glidemq_py._maintenance.peers import GroupRepair, PeerDetection
from glidemq_py._maintenance.stalled_jobs import StalledJobsTask
from glidemq_py._worker.batches import NO_CONTINUATIONS, BatchRunner
from glidemq_py._worker.fetch_loop import FetchLoop
from glidemq_py._worker.handlers import Routes
from glidemq_py._worker.heartbeat import Heartbeat
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.opening import connect_patiently, entered
from glidemq_py._worker.options import WorkerOptions
from glidemq_py._worker.results import Outcomes
from glidemq_py._worker.runner import AttemptRunner, Runner
from glidemq_py._worker.sandbox import Sandbox
from glidemq_py._worker.source import QueueSource
from glidemq_py._worker.wake import WakeReader
from glidemq_py.errors import GlideMQError
from glidemq_py.telemetry.state import TELEMETRY

__all__ = ["Parts", "WorkerComponents", "is_drained", "open_parts", "run_out"]


_LEAVE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerComponents:
    """The inputs for opening a worker; see `Worker`."""

    keys: QueueKeys
    connection: Connection
    queue_options: QueueOptions
    options: WorkerOptions
    routes: Routes
    consumer: str
    listeners: Listeners
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None
    sandbox: Sandbox | None = None
    source: QueueSource | None = None
    """Source of its jobs; None = the queue."""
    in_background: bool = True
    """False for tests: heartbeats, maintenance tasks and the wake-up reader are not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The components of a running worker."""

    link: QueueLink
    source: QueueSource
    fetching: FetchLoop
    runner: AttemptRunner
    wake: WakeReader
    heartbeat: Heartbeat
    recovery: StalledJobsTask
    outbox: OutboxTask
    sleepers: SuspendTimeoutsTask
    schedules: SchedulerTask

    async def close(self, force: asyncio.Event) -> None:
        """Stop fetching, wait for running jobs until ``force`` is set, report all results, disconnect."""
        self.fetching.pause()
        self.runner.stop_accepting()
        await self.wake.stop_accepting()
        await run_out(self.fetching, self.runner, force)
        for part in (self.wake, self.recovery, self.schedules, self.fetching, self.outbox, self.heartbeat):
            await part.close()
        self.runner.close()
        # Optional: the registration of a worker that cannot remove it expires.
        with contextlib.suppress(GlideMQError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self.link.transport.call(self.source.leave())


async def open_parts(opening: WorkerComponents, stack: AsyncExitStack) -> Parts:
    """Connect and start everything except fetching. ``stack`` closes the resources that outlive the components."""
    TELEMETRY.detect_providers()
    keys, options, listeners, consumer = opening.keys, opening.options, opening.listeners, opening.consumer
    queue_options = opening.queue_options
    source = opening.source or QueueSource(keys, consumer, options)

    async def prepare(transport: Transport) -> tuple[QueueLink, bool]:
        link = QueueLink(
            transport=transport, keys=keys, waiter=ResultWaiter(transport, keys),
            serializer=serializer_of(queue_options.serializer), compression=queue_options.compression,
            loop=asyncio.get_running_loop(), no_continuations=None if options.batch is None else NO_CONTINUATIONS,
        )  # fmt: skip
        await source.open(link)
        return link, await source.declare_dead_letters(link, queue_options)

    transport, (link, has_dead_letters) = await connect_patiently(opening.connection, keys, stack, listeners, prepare)
    label_log_records()
    if opening.sandbox is not None:
        stack.push_async_callback(opening.sandbox.close)
        await opening.sandbox.open(link, options.concurrency)
    context = None
    if opening.lifespan is not None:
        lifespan = entered(opening.lifespan())
        context = await lifespan.open()
        stack.push_async_callback(lifespan.close)
    fetching = FetchLoop(
        link=link, source=source, consumer=consumer, options=options, listeners=listeners, context=context
    )
    outcomes = source.outcomes(link)
    runner = _runner(opening, outcomes, fetching)
    stack.callback(runner.close)
    fetching.attach(runner)
    heartbeat = Heartbeat(
        connect=transport.for_thread, source=source, consumer=consumer, lock_duration=options.lock_duration,
        running=runner.running, lost=runner.lost, unresponsive_seconds=lambda: fetching.unresponsive_seconds,
        unsupported=fetching.refuse,
    )  # fmt: skip
    fetching.short_lock = heartbeat.expect
    stack.push_async_callback(heartbeat.close)
    outbox = OutboxTask(link=link, expected=has_dead_letters)
    fetching.outbox_pending = outbox.wake
    recovery = StalledJobsTask(
        link=link, source=source, options=options, listeners=listeners, failure_log=fetching.failure_log,
        outbox_pending=outbox.wake,
    )  # fmt: skip
    schedules = SchedulerTask(
        link=link, quiet=not options.events, on_error=lambda error: listeners.emit("error", error)
    )
    fetching.schedules = schedules.on_revision
    sleepers = SuspendTimeoutsTask(link, outbox.wake, fetching.failure_log.signal_timed_out)
    stack.push_async_callback(sleepers.close)
    listeners.on("suspended", sleepers.suspended)
    wake = WakeReader(link, fetching, source)
    if opening.in_background:
        await heartbeat.start()
        if isinstance(transport, AsyncTransport):
            unfinished_flows = UnfinishedFlowsTask(link=link)
            stack.push_async_callback(unfinished_flows.close)
            unfinished_flows.start()
            children = WaitingParentsTask(link=link, outbox_pending=outbox.wake)
            stack.push_async_callback(children.close)
            children.start()
            groups = GroupRepair(link=link)
            stack.push_async_callback(groups.close)
            groups.start()
            if transport.is_cluster:
                remote_flows = RemoteFlows(link=link, outbox_pending=outbox.wake)
                stack.push_async_callback(remote_flows.close)
                remote_flows.start()
            peers = PeerDetection(link, transport)
            outcomes.removal = peers.removal
            stack.push_async_callback(peers.close)
            peers.start()
            sweep = UnusedLibrariesTask(transport)
            stack.push_async_callback(sweep.close)
            sweep.start()
        for task in (recovery, wake, outbox, schedules, sleepers):
            task.start()
    return Parts(
        link=link, source=source, fetching=fetching, runner=runner, wake=wake, heartbeat=heartbeat,
        recovery=recovery, outbox=outbox, sleepers=sleepers, schedules=schedules,
    )  # fmt: skip


def _runner(opening: WorkerComponents, outcomes: Outcomes, fetching: FetchLoop) -> AttemptRunner:
    options, listeners, name = opening.options, opening.listeners, opening.keys.name
    if options.batch is not None and opening.routes.only is not None:
        return BatchRunner(
            route=opening.routes.only, options=options.batch, outcomes=outcomes, sink=fetching,
            running=fetching.engine.running, listeners=listeners, concurrency=options.concurrency, name=name,
        )  # fmt: skip
    return Runner(
        routes=opening.routes, outcomes=outcomes, sink=fetching, running=fetching.engine.running,
        listeners=listeners, concurrency=options.concurrency, name=name,
    )  # fmt: skip


_RELEASE_S = 5.0
"""Time limit for releasing jobs. Jobs that are not released by then stall and are recovered."""
_PAGE = 100


async def is_drained(link: QueueLink) -> bool:
    """Return True if no job is waiting, active, delayed or prioritized, or parked in a rate limited group."""
    counts = await link.transport.call(reading.counts(link.keys.meta))
    waiting, active, delayed, prioritized, *_, parked, _band = counts
    if waiting or active or delayed or prioritized:
        return False
    # Parked jobs of a group that is not rate limited wait for a job in another state, such as suspended.
    return not parked or not await _limited_groups_wait(link)


async def _limited_groups_wait(link: QueueLink) -> bool:
    first = 0
    while groups := await link.transport.command("ZRANGE", link.keys.ratelimited, str(first), str(first + _PAGE - 1)):
        for group in groups:
            if await link.transport.command("ZCARD", link.keys.group_queue(group.decode("utf-8", "surrogateescape"))):
                return True
        first += _PAGE
    return False


async def run_out(fetching: FetchLoop, runner: AttemptRunner, force: asyncio.Event) -> None:
    """Wait until every handler has ended and every result is reported; when ``force`` is set, release running jobs."""
    drained = asyncio.ensure_future(fetching.until(lambda: fetching.engine.is_drained))
    forced = asyncio.ensure_future(force.wait())
    await asyncio.wait({drained, forced}, return_when=asyncio.FIRST_COMPLETED)
    forced.cancel()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_RELEASE_S):
            while not drained.done():
                # Repeatedly: a reply in flight may still contain jobs.
                runner.release_all()
                await runner.cancelled_ended()
                await fetching.until(lambda: fetching.engine.all_reported)
                if runner.is_idle:
                    break
            await fetching.until(lambda: fetching.engine.is_recovered)
    drained.cancel()
