"""The components of a running worker: how they are created and connected, and how they are closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from glidemq_py._client.failures import DEFAULT_REQUEST_TIMEOUT_MS
from glidemq_py._client.shared_reads import Reservation, glide_of
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import administration
from glidemq_py._core.logs import get_logger
from glidemq_py._core.payload import serializer_of
from glidemq_py._job.current import label_log_records
from glidemq_py._job.waiting import ResultWaiter
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.stored import read_layout
from glidemq_py._worker.batches import BatchCollector, BatchRunner, BatchSlots
from glidemq_py._worker.fetch_calls import QueueSource
from glidemq_py._worker.fetch_loop import FetchLoop
from glidemq_py._worker.maintenance.queues import Background
from glidemq_py._worker.opening import WorkerComponents, connect_patiently, entered
from glidemq_py._worker.results import Outcomes
from glidemq_py._worker.runner import AttemptRunner, Runner
from glidemq_py._worker.wake import WakeReader
from glidemq_py._worker.wake_channel import ChannelWake
from glidemq_py.errors import GlideMQError
from glidemq_py.telemetry.state import TELEMETRY

_log = get_logger(__name__)

_LEAVE_S = 2.0
_JOIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The components of a running worker."""

    link: QueueLink
    source: QueueSource
    fetching: FetchLoop
    runner: AttemptRunner
    wake: WakeReader
    background: Background | None
    patience: float
    """Seconds for which `close` waits for replies to reports: the request timeout plus the lock duration."""
    context: Any = None
    """Value that the lifespan has yielded."""
    reservation: Reservation | None = None
    """That of the connection for its blocking reads, if the number of these is limited."""

    def interrupt(self) -> None:
        """Let jobs that can continue later end at their next step."""
        self.link.is_closing = True

    async def close(self, force: asyncio.Event) -> None:
        """Stop fetching, wait for running jobs until ``force`` is set, report all results, disconnect."""
        try:
            await close_parts(self, force)
        finally:
            if self.reservation is not None:
                self.reservation.release()


class Closable(Protocol):
    """The components of one queue, as `close_parts` closes them."""

    @property
    def link(self) -> QueueLink:
        """The queue."""
        ...

    @property
    def source(self) -> QueueSource:
        """Builds the calls."""
        ...

    @property
    def fetching(self) -> FetchLoop:
        """Fetches the jobs."""
        ...

    @property
    def runner(self) -> AttemptRunner:
        """Runs the jobs."""
        ...

    @property
    def wake(self) -> WakeReader | ChannelWake:
        """Wakes up the fetch loop."""
        ...

    @property
    def background(self) -> Background | None:
        """Heartbeats and tasks, if they run."""
        ...

    @property
    def patience(self) -> float:
        """See `Parts.patience`."""
        ...


async def close_parts(parts: Closable, force: asyncio.Event) -> None:
    """See `Parts.close`."""
    fetching, runner, wake = parts.fetching, parts.runner, parts.wake
    fetching.pause()
    runner.stop_accepting()
    closing = Closing(fetching, runner, parts.patience)
    if force.is_set() or (runner.is_idle and not fetching.unreported):
        closing.start_limit()
    closing.server_replies = await wake.stop_accepting()
    await closing.run_out(force)
    closing.report_losses()
    await closing.send_metrics()
    if parts.background is not None:
        background = parts.background.stop(closing.seconds_left(_JOIN_S))
        await asyncio.gather(wake.close(), fetching.close(), background)
    else:
        await asyncio.gather(wake.close(), fetching.close())
    runner.close()
    if closing.is_cut_off:
        return  # its registration expires
    with contextlib.suppress(GlideMQError, TimeoutError):
        async with asyncio.timeout(_LEAVE_S):
            await parts.link.transport.call(parts.source.leave())


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


class FoundPartitionsError(GlideMQError):
    """The queue of a worker is partitioned: it must be opened with `open_lanes`."""


async def open_parts(opening: WorkerComponents, stack: AsyncExitStack) -> Parts:
    """Connect and start everything except fetching. ``stack`` closes the resources that outlive the components.

    Raises:
        FoundPartitionsError: If the queue is partitioned. ``stack`` closes the connection.
    """
    TELEMETRY.detect_providers()
    keys, options, listeners, consumer = opening.keys, opening.options, opening.listeners, opening.consumer
    queue_options = opening.queue_options
    source = opening.source or QueueSource(keys, consumer, options)

    async def prepare(transport: Transport) -> tuple[QueueLink, bool]:
        if opening.source is None and await read_layout(transport, keys) is not None:
            raise FoundPartitionsError
        link = link_over(transport, opening)
        await source.open(link)
        return link, await source.declare_dead_letters(link, queue_options)

    transport, (link, has_dead_letters) = await connect_patiently(opening.connection, keys, stack, listeners, prepare)
    context = await open_user_code(opening, link, stack)
    fetching = FetchLoop(opening=opening, link=link, source=source, context=context)
    outcomes = source.outcomes(link)
    runner = make_runner(opening, outcomes, fetching, make_collector(opening, fetching))
    stack.callback(runner.close)
    fetching.attach(runner)
    background = Background(
        opening, link=link, source=source, fetching=fetching, runner=runner, outcomes=outcomes,
        expects_outbox=has_dead_letters,
    )  # fmt: skip
    stack.push_async_callback(background.close)
    wake = WakeReader(link, fetching, source)
    if opening.in_background:
        await background.start()
        wake.start()
    return Parts(
        link=link, source=source, fetching=fetching, runner=runner, wake=wake, background=background,
        patience=patience_s(transport, opening), context=context,
    )  # fmt: skip


async def open_user_code(opening: WorkerComponents, link: QueueLink, stack: AsyncExitStack) -> Any:
    """Start the processes of a sandbox, and enter the lifespan; return the value that it yields."""
    label_log_records()
    if opening.sandbox is not None and not opening.sandbox.is_open:  # the worker that this one replaces may have it
        stack.push_async_callback(opening.sandbox.close)
        await opening.sandbox.open(link, opening.options.concurrency)
    if opening.lifespan is None:
        return opening.context
    lifespan = entered(opening.lifespan())
    context = await lifespan.open()
    stack.push_async_callback(lifespan.close)
    return context


def make_collector(opening: WorkerComponents, slots: BatchSlots) -> BatchCollector | None:
    """Return what collects jobs into batches; None if the handler takes single jobs."""
    options = opening.options
    if options.batch is None or opening.routes.only is None:
        return None
    return BatchCollector(
        route=opening.routes.only, options=options.batch, slots=slots, listeners=opening.listeners,
        concurrency=options.concurrency, name=opening.queue_name, middleware=opening.queue_options.middleware,
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


_RELEASE_S = 5.0
"""Time limit for releasing jobs. Jobs that are not released by then stall and are recovered."""
_PAGE = 100


async def is_drained(link: QueueLink) -> bool:
    """Return True if no job is waiting, active, delayed or prioritized, or parked in a rate limited group."""
    counts = await link.call(administration.counts)
    waiting, active, delayed, prioritized, *_, parked, _band, _below_normal = counts
    if waiting or active or delayed or prioritized:
        return False
    # Parked jobs of a group that is not rate limited wait for a job in another state, such as suspended.
    return not parked or not await _limited_groups_wait(link)


async def _limited_groups_wait(link: QueueLink) -> bool:
    first = 0
    while groups := await link.command("ZRANGE", link.keys.ratelimited, str(first), str(first + _PAGE - 1)):
        for group in groups:
            if await link.command("ZCARD", link.keys.group_queue(group.decode("utf-8", "surrogateescape"))):
                return True
        first += _PAGE
    return False


def patience_s(transport: Transport, opening: WorkerComponents) -> float:
    """Return how long a close waits for replies to reports: the request timeout plus the lock duration, seconds."""
    glide = glide_of(transport)
    timeout_ms = (glide and glide.config.request_timeout) or DEFAULT_REQUEST_TIMEOUT_MS
    return (timeout_ms + opening.options.lock_duration) / 1000


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
        """Wait until every attempt has ended and every result is reported; when ``force`` is set, release running jobs.

        Also ends if results cannot be reported within the patience. A handler whose attempt has ended before it (a
        timeout, a lost lock) has nothing to report: a coroutine gets some seconds for its cleanup, a thread none.
        """
        fetching, engine, runner = self._fetching, self._fetching.engine, self._runner
        drained = asyncio.ensure_future(fetching.until(lambda: runner.is_idle and engine.all_reported))
        forced, hopeless = asyncio.ensure_future(force.wait()), asyncio.ensure_future(self._until_hopeless())
        waiting = (drained, forced, hopeless)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        self.start_limit()
        if not (hopeless.done() or drained.done()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RELEASE_S):
                    await self._release(drained)
        elif drained.done():
            await runner.cancelled_ended(_RELEASE_S)
            await self._until(lambda: engine.is_recovered, _RELEASE_S)
        for future in waiting:
            future.cancel()

    async def send_metrics(self) -> None:
        """Send the figures per job name that are not sent yet. If this fails, they are lost."""
        if self.server_replies and not self.is_cut_off and not self._fetching.by_name.is_empty:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.seconds_left(_FIGURES_S)):
                    await self._fetching.send_metrics()

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
        """Wait until no attempt runs and the server has not replied for so long that other workers run the jobs again.

        Without a result to report, `_FETCH_S` is enough: jobs of a reply that comes later stall and are recovered. Logs
        a warning when results are delayed.
        """
        fetching, warned = self._fetching, False
        await fetching.until(lambda: self._runner.is_idle)
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
_FIGURES_S = 2.0
