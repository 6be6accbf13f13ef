"""Duties that one worker does for all: giving the jobs of dead workers to living ones.

The function holds the leader lock, so every worker may ask at any time and one does the work (wrinkles.md W60).
"""

from __future__ import annotations

from collections.abc import Callable

from glidemq_py._client.background import PeriodicTask
from glidemq_py._job.link import QueueLink
from glidemq_py._worker.failure_log import FailureLog
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.options import WorkerOptions
from glidemq_py._worker.source import QueueSource
from glidemq_py.telemetry.state import TELEMETRY

__all__ = ["StalledJobsTask"]


class StalledJobsTask(PeriodicTask):
    """Looks for stalled jobs at the start and every ``stalled_interval``, give or take a tenth."""

    def __init__(
        self,
        *,
        link: QueueLink,
        source: QueueSource,
        options: WorkerOptions,
        listeners: Listeners,
        failure_log: FailureLog,
        outbox_pending: Callable[[], None] = lambda: None,
    ) -> None:
        every = options.stalled_interval / 1000
        super().__init__("stalled", queue=link.keys.name, what="looking for stalled jobs", every=every)
        self._grace = options.lock_duration / 1000
        self._link = link
        self._source = source
        self._listeners = listeners
        self._failure_log = failure_log
        self._outbox_pending = outbox_pending

    async def look(self) -> None:
        """One round over everything that pends; nothing if another worker does it now.

        After an interruption (the server was away, the queue's slot moved, a heartbeat failed) the round waits for one
        lock duration: heartbeats did not arrive meanwhile, and healthy workers have to renew their locks first.
        """
        remaining = self._grace - self._link.transport.interruptions.age_s
        if remaining > 0:
            self._pause = min(self._every, remaining)
            return
        cursor = ""
        while True:
            reply = await self._link.transport.call(self._source.recover_stalled(cursor))
            if TELEMETRY.on and (reply.recovered or reply.failed):
                for meter in TELEMETRY.meters:
                    meter.stalled(self._link.keys.name, len(reply.recovered), len(reply.failed))
            for job_id in reply.recovered:
                self._failure_log.stalled(job_id)
                self._listeners.tell("stalled", job_id)
            for job_id in reply.failed:
                self._failure_log.stalled_out(job_id)
            if reply.failed:
                self._outbox_pending()  # a dead letter, perhaps
            cursor = reply.cursor
            if not cursor or not reply.held:
                return
