"""The parts of a running worker: how they are made and tied together, and the order in which they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any

from glidemq_py.client.async_transport import AsyncTransport
from glidemq_py.client.connect import Connection
from glidemq_py.client.transport import Transport
from glidemq_py.errors import GlideMQError
from glidemq_py.job import QueueLink
from glidemq_py.job.current import label_log_records
from glidemq_py.job.waiting import ResultWaiter
from glidemq_py.options.queue import QueueOptions
from glidemq_py.options.worker import WorkerOptions
from glidemq_py.queue.suspended_sweep import SuspendedSweep
from glidemq_py.schedule import ScheduleDuty
from glidemq_py.telemetry.state import TELEMETRY
from glidemq_py.wire.keys import QueueKeys
from glidemq_py.wire.serializers import serializer_of
from glidemq_py.worker.batching import NO_CONTINUATIONS, BatchRunner
from glidemq_py.worker.children_watch import ChildrenWatch
from glidemq_py.worker.connecting import connect_patiently
from glidemq_py.worker.duties import StalledRecovery
from glidemq_py.worker.ending import Endings
from glidemq_py.worker.exchange import ExchangeLoop
from glidemq_py.worker.flow_duty import FlowDuty
from glidemq_py.worker.group_repair import GroupRepair
from glidemq_py.worker.heartbeat import Heartbeat
from glidemq_py.worker.library_sweep import LibrarySweep
from glidemq_py.worker.lifespan import entered
from glidemq_py.worker.listeners import Listeners
from glidemq_py.worker.outbox_duty import OutboxDuty
from glidemq_py.worker.outcome import Outcomes
from glidemq_py.worker.remote_flows import RemoteFlows
from glidemq_py.worker.routes import Routes
from glidemq_py.worker.runner import Runner
from glidemq_py.worker.running_out import run_out
from glidemq_py.worker.sandbox import Sandbox
from glidemq_py.worker.source import QueueSource
from glidemq_py.worker.wake import WakeReader

__all__ = ["Opening", "Parts", "open_parts"]

_LEAVE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a worker is to be opened with; see `Worker`."""

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
    """Where its jobs come from; None = the queue."""
    in_background: bool = True
    """False for tests: no heartbeat, no duty and no wake-up comes by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What runs while a worker does."""

    link: QueueLink
    source: QueueSource
    exchange: ExchangeLoop
    runner: Endings
    wake: WakeReader
    heartbeat: Heartbeat
    recovery: StalledRecovery
    outbox: OutboxDuty
    sleepers: SuspendedSweep
    schedules: ScheduleDuty

    async def close(self, force: asyncio.Event) -> None:
        """Take no more jobs, wait for those that run, until ``force``; hand everything in, leave."""
        self.exchange.taking = False
        self.runner.retire()
        await self.wake.retire()
        await run_out(self.exchange, self.runner, force)
        for part in (self.wake, self.recovery, self.schedules, self.exchange, self.outbox, self.heartbeat):
            await part.close()
        self.runner.close()
        # A courtesy: the registration of a worker that cannot say goodbye runs out by itself.
        with contextlib.suppress(GlideMQError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self.link.transport.call(self.source.leave())


async def open_parts(opening: Opening, stack: AsyncExitStack) -> Parts:
    """Connect and start everything but the taking of jobs. ``stack`` ends what outlives the parts."""
    TELEMETRY.look()
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
    exchange = ExchangeLoop(
        link=link, source=source, consumer=consumer, options=options, listeners=listeners, context=context
    )
    runner = _runner(opening, source.outcomes(link), exchange)
    exchange.attach(runner)
    heartbeat = Heartbeat(
        connect=transport.for_thread, source=source, consumer=consumer, lock_duration=options.lock_duration,
        running=runner.running, lost=runner.lost, silence=lambda: exchange.silence,
    )  # fmt: skip
    exchange.answers.short_lock = heartbeat.expect
    stack.push_async_callback(heartbeat.close)
    outbox = OutboxDuty(link=link, expected=has_dead_letters)
    exchange.answers.owes = outbox.wake
    recovery = StalledRecovery(
        link=link, source=source, options=options, listeners=listeners, failure_log=exchange.failure_log,
        owes=outbox.wake,
    )  # fmt: skip
    schedules = ScheduleDuty(link=link, quiet=not options.events, on_error=lambda error: listeners.tell("error", error))
    exchange.answers.schedules = schedules.told
    sleepers = SuspendedSweep(link, outbox.wake, exchange.failure_log.signal_timed_out)
    stack.push_async_callback(sleepers.close)
    listeners.on("suspended", sleepers.suspended)
    wake = WakeReader(link, exchange, source)
    if opening.in_background:
        await heartbeat.start()
        if isinstance(transport, AsyncTransport):
            flow_duty = FlowDuty(link=link)
            stack.push_async_callback(flow_duty.close)
            flow_duty.start()
            children = ChildrenWatch(link=link, owes=outbox.wake)
            stack.push_async_callback(children.close)
            children.start()
            groups = GroupRepair(link=link)
            stack.push_async_callback(groups.close)
            groups.start()
            if transport.is_cluster:
                remote_flows = RemoteFlows(link=link, owes=outbox.wake)
                stack.push_async_callback(remote_flows.close)
                remote_flows.start()
            sweep = LibrarySweep(transport)
            stack.push_async_callback(sweep.close)
            sweep.start()
        for duty in (recovery, wake, outbox, schedules, sleepers):
            duty.start()
    return Parts(
        link=link, source=source, exchange=exchange, runner=runner, wake=wake, heartbeat=heartbeat,
        recovery=recovery, outbox=outbox, sleepers=sleepers, schedules=schedules,
    )  # fmt: skip


def _runner(opening: Opening, outcomes: Outcomes, exchange: ExchangeLoop) -> Endings:
    options, listeners, name = opening.options, opening.listeners, opening.keys.name
    if options.batch is not None and opening.routes.only is not None:
        return BatchRunner(
            route=opening.routes.only, options=options.batch, outcomes=outcomes, hand_in=exchange, listeners=listeners,
            concurrency=options.concurrency, name=name,
        )  # fmt: skip
    return Runner(
        routes=opening.routes, outcomes=outcomes, hand_in=exchange, listeners=listeners,
        concurrency=options.concurrency, name=name,
    )  # fmt: skip
