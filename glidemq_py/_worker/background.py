"""The heartbeats and maintenance tasks of one queue of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from glidemq_py._client.shared_reads import glide_of
from glidemq_py._features.failure_policy import FailurePolicyTask
from glidemq_py._features.queue_list import QueueListTask
from glidemq_py._features.schedulers.firing import SchedulerTask
from glidemq_py._features.suspend import SuspendTimeoutsTask
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.fetch_loop import FetchLoop
from glidemq_py._worker.heartbeat import Heartbeat
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.maintenance.flows import RemoteFlows, UnfinishedFlowsTask, WaitingParentsTask
from glidemq_py._worker.maintenance.outbox import OutboxTask
from glidemq_py._worker.maintenance.peers import GroupRepair, PeerDetection
from glidemq_py._worker.maintenance.stalled_jobs import StalledJobsTask
from glidemq_py._worker.options import WorkerOptions
from glidemq_py._worker.remote_commands import CommandRunner
from glidemq_py._worker.results import Outcomes
from glidemq_py._worker.runner import AttemptRunner
from glidemq_py._worker.source import QueueSource

if TYPE_CHECKING:
    from glidemq_py._client.runtime import BackgroundTask


class Background:
    """Creates the heartbeats and tasks of one queue, and connects them with its fetch loop.

    Args:
        link: The queue.
        source: Builds the calls.
        consumer: The worker's name.
        options: Options of the worker.
        listeners: Get the worker events.
        fetching: Fetches the jobs of the queue.
        runner: Runs them.
        outcomes: Builds the rows that report results.
        expects_outbox: True if the queue has a dead letter queue.
        control: Runs commands for the worker.
        layout: Called with the number of the layout of the queue's partitions.
    """

    def __init__(
        self, *, link: QueueLink, source: QueueSource, consumer: str, options: WorkerOptions, listeners: Listeners,
        fetching: FetchLoop, runner: AttemptRunner, outcomes: Outcomes, expects_outbox: bool,
        control: CommandRunner | None = None, layout: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        self._link = link
        self._listeners = listeners
        self._outcomes = outcomes
        self.heartbeat = Heartbeat(
            connect=link.transport.elsewhere, source=source, consumer=consumer, lock_duration=options.lock_duration,
            stalled_policy=options.stalled_policy, running=runner.running, lost=runner.lost,
            unresponsive_seconds=lambda: fetching.unresponsive_seconds, unsupported=fetching.refuse,
            commands=None if control is None else partial(control.run, link),
            about=None if control is None else control.about, layout=layout,
        )  # fmt: skip
        fetching.short_lock = self.heartbeat.expect
        self.outbox = OutboxTask(link=link, expected=expects_outbox)
        fetching.outbox_pending = self.outbox.wake
        self.policy = FailurePolicyTask(link)
        fetching.job_failed = self.policy.job_failed
        self.recovery = StalledJobsTask(
            link=link, source=source, options=options, listeners=listeners, failure_log=fetching.failure_log,
            policy=self.policy, outbox_pending=self.outbox.wake,
        )  # fmt: skip
        self.schedulers = SchedulerTask(
            link=link,
            quiet=not options.events,
            on_error=lambda error: listeners.emit("error", error),
            is_worker=True,
        )
        fetching.schedulers = self.schedulers.on_revision
        self.sleepers = SuspendTimeoutsTask(link, self.outbox.wake, fetching.failure_log.signal_timed_out)
        listeners.on("suspended", self.sleepers.suspended)
        self._others = AsyncExitStack()

    async def start(self) -> None:
        """Start the heartbeats and tasks; wait for the first heartbeat."""
        await self.heartbeat.start()
        link, transport = self._link, self._link.transport
        if glide := glide_of(transport):
            # This imports GLIDE, which is loaded only to connect.
            from glidemq_py._worker.maintenance.libraries import UnusedLibrariesTask

            pending = self.outbox.wake
            peers = PeerDetection(link, transport)
            self._outcomes.removal = peers.removal
            others: list[BackgroundTask] = [
                UnfinishedFlowsTask(link=link), WaitingParentsTask(link=link, outbox_pending=pending),
                GroupRepair(link=link), peers, UnusedLibrariesTask(glide),
                QueueListTask(link),
            ]  # fmt: skip
            if transport.is_cluster:
                others.insert(3, RemoteFlows(link=link, outbox_pending=pending))
            for task in others:
                self._others.push_async_callback(task.close)
                task.start()
        for task in (self.recovery, self.policy, self.outbox, self.schedulers, self.sleepers):
            task.start()

    async def stop(self, limit: float = 5.0) -> None:
        """Stop recovery, schedulers, outbox and heartbeats; wait for at most ``limit`` seconds for a heartbeat."""
        tasks = (self.recovery, self.policy, self.schedulers, self.outbox)
        await asyncio.gather(*(task.close() for task in tasks), self.heartbeat.close(limit))

    async def close(self) -> None:
        """Stop the other tasks, and the heartbeats if they still run."""
        self._listeners.off("suspended", self.sleepers.suspended)
        await self._others.aclose()
        await self.sleepers.close()
        await self.heartbeat.close()
