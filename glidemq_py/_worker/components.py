"""The components of a running worker: how they are created and connected, and how they are closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, cast

from glidemq_py._client.connect import Connection, is_glide_transport
from glidemq_py._client.failures import DEFAULT_REQUEST_TIMEOUT_MS
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import reading
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._core.payload import serializer_of
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._features.schedulers.firing import SchedulerTask
from glidemq_py._features.suspend.overdue import SuspendTimeoutsTask
from glidemq_py._job.current import label_log_records
from glidemq_py._job.link import QueueLink
from glidemq_py._job.waiting import ResultWaiter
from glidemq_py._maintenance.flows import RemoteFlows, UnfinishedFlowsTask, WaitingParentsTask
from glidemq_py._maintenance.outbox import OutboxTask
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

__all__ = ["Closing", "Parts", "WorkerComponents", "is_drained", "open_parts"]


_log = get_logger(__name__)

_LEAVE_S = 2.0
_JOIN_S = 5.0


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
    schedulers: SchedulerTask
    patience: float
    """Seconds for which `close` waits for replies to reports: the request timeout plus the lock duration."""

    async def close(self, force: asyncio.Event) -> None:
        """Stop fetching, wait for running jobs until ``force`` is set, report all results, disconnect."""
        self.fetching.pause()
        self.runner.stop_accepting()
        closing = Closing(self.fetching, self.runner, self.patience)
        if force.is_set() or not (self.fetching.engine.running or self.fetching.unreported):
            closing.start_limit()
        closing.server_replies = await self.wake.stop_accepting()
        await closing.run_out(force)
        closing.report_losses()
        parts = (self.wake, self.recovery, self.schedulers, self.fetching, self.outbox)
        await asyncio.gather(*(part.close() for part in parts), self.heartbeat.close(closing.seconds_left(_JOIN_S)))
        self.runner.close()
        if closing.is_cut_off:
            return  # its registration expires
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
    schedulers = SchedulerTask(
        link=link, quiet=not options.events, on_error=lambda error: listeners.emit("error", error)
    )
    fetching.schedulers = schedulers.on_revision
    sleepers = SuspendTimeoutsTask(link, outbox.wake, fetching.failure_log.signal_timed_out)
    stack.push_async_callback(sleepers.close)
    listeners.on("suspended", sleepers.suspended)
    wake = WakeReader(link, fetching, source)
    if opening.in_background:
        await heartbeat.start()
        if is_glide_transport(transport):
            # These import GLIDE, which is loaded only to connect.
            from glidemq_py._maintenance.libraries import UnusedLibrariesTask
            from glidemq_py._maintenance.peers import GroupRepair, PeerDetection

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
        for task in (recovery, wake, outbox, schedulers, sleepers):
            task.start()
    return Parts(
        link=link, source=source, fetching=fetching, runner=runner, wake=wake, heartbeat=heartbeat,
        recovery=recovery, outbox=outbox, sleepers=sleepers, schedulers=schedulers,
        patience=(_request_timeout_ms(transport) + options.lock_duration) / 1000,
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


def _request_timeout_ms(transport: Transport) -> int:
    timeout: int | None = cast("Any", transport).config.request_timeout if is_glide_transport(transport) else None
    return timeout or DEFAULT_REQUEST_TIMEOUT_MS


class Closing:
    """Ends the jobs of a worker that closes, and reports their results.

    Args:
        fetching: Reports the results.
        runner: Runs the jobs.
        patience: How long to wait for a server that does not reply once no handler runs, seconds.
    """

    def __init__(self, fetching: FetchLoop, runner: AttemptRunner, patience: float) -> None:
        self._fetching = fetching
        self._runner = runner
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._limited_at: float | None = None
        self.server_replies = True
        """False once the server has not replied to a call of the close."""

    @property
    def is_cut_off(self) -> bool:
        """True if the server is known to be unreachable."""
        return self._fetching.engine.is_cut_off or not self.server_replies

    def start_limit(self) -> None:
        """Limit the time of the remaining calls from now on, in case the server is lost. Idempotent."""
        if self._limited_at is None:
            self._limited_at = self._loop.time()

    def seconds_left(self, usual: float) -> float:
        """Return a time limit: ``usual`` seconds; without a server 2 s from `start_limit`."""
        if not self.is_cut_off:
            return usual
        since = self._loop.time() if self._limited_at is None else self._limited_at
        return max(_ALONE_MIN_S, min(usual, since + _ALONE_S - self._loop.time()))

    async def run_out(self, force: asyncio.Event) -> None:
        """Wait until every handler has ended and every result is reported; when ``force`` is set, release running jobs.

        Also ends if results cannot be reported within the patience.
        """
        fetching, engine = self._fetching, self._fetching.engine
        drained = asyncio.ensure_future(fetching.until(lambda: engine.is_drained))
        forced, hopeless = asyncio.ensure_future(force.wait()), asyncio.ensure_future(self._until_hopeless())
        waiting = (drained, forced, hopeless)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        self.start_limit()
        if not (hopeless.done() or drained.done()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RELEASE_S):
                    await self._release(drained)
        elif drained.done():
            await self._until(lambda: engine.is_recovered, _RELEASE_S)
        for future in waiting:
            future.cancel()

    async def _release(self, drained: asyncio.Future[None]) -> None:
        fetching, runner = self._fetching, self._runner
        while not drained.done():
            # Repeatedly: a reply in flight may still contain jobs.
            runner.release_all()
            await runner.cancelled_ended()
            if not await self._until(lambda: fetching.engine.all_reported, _RELEASE_S):
                return
            if runner.is_idle:
                break
        await self._until(lambda: fetching.engine.is_recovered, _RELEASE_S)

    async def _until(self, reached: Callable[[], bool], usual: float) -> bool:
        """Wait until ``reached`` returns True, within `seconds_left`, which shrinks when the server is lost."""
        began = self._loop.time()
        while not reached():
            if self._loop.time() - began >= usual or (self.is_cut_off and self.seconds_left(usual) <= _ALONE_MIN_S):
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await self._fetching.until(reached)
        return True

    async def _until_hopeless(self) -> None:
        """Wait until no handler runs and the server has not replied for so long that other workers run the jobs again.

        Without a result to report, `_FETCH_S` is enough: jobs of a reply that comes later stall and are recovered. Logs
        a warning when results are delayed.
        """
        fetching, warned = self._fetching, False
        await fetching.until(lambda: not fetching.engine.running)
        began = self._loop.time()
        while True:
            # Not a timer: a reply moves the end, and a lost connection the warning.
            silent = min(self._loop.time() - began, fetching.silent_seconds)
            count = len(fetching.unreported)
            if count and not warned and (fetching.engine.is_cut_off or silent > _ALONE_S):
                warned = True
                _log.warning(
                    "closing; %s of queue %r %s not reported yet: the server does not reply; waiting at most %.0f s",
                    "1 result" if count == 1 else f"{count} results", fetching.name, "is" if count == 1 else "are",
                    self._patience - silent,
                )  # fmt: skip
            if silent >= (self._patience if count else _FETCH_S):
                self.server_replies = False
                return
            await asyncio.sleep(_CHECK_S)

    def report_losses(self) -> None:
        """Log the results that are not reported."""
        if self._fetching.engine.disconnected:
            return  # logged by the fetch loop
        for finished in self._fetching.unreported:
            job = finished.run.job
            _log.error(
                "queue %r: the result of job %s (%r) is not reported: the server does not reply; the job will run again"
                "%s", self._fetching.name, job.id, job.name,
                ", unless the server received the report" if finished.sent else "",
            )  # fmt: skip


_ALONE_S = 2.0
"""Time limit for all calls of a forced close if the server cannot be reached."""
_ALONE_MIN_S = 0.05
_FETCH_S = 5.0
"""How long a close waits for the reply to a call that fetches and reports nothing. GLIDE keeps a call that is made
while it reconnects until the request timeout."""
_CHECK_S = 0.1
