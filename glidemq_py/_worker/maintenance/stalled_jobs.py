"""A maintenance task, run by one worker at a time: recovers stalled jobs, and executes the failure policy.

The server function (lua/features/stalled_jobs/functions/recover_stalled.lua) takes a lock, so every worker calls it
and one does the work.
"""

from __future__ import annotations

from collections.abc import Callable

from glidemq_py._client.runtime import QueueTask
from glidemq_py._features.failure_policy import FailurePolicyTask
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.failure_log import FailureLog
from glidemq_py._worker.fetch_calls import QueueSource
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.options import WorkerOptions
from glidemq_py.errors import GlideMQError
from glidemq_py.telemetry.state import TELEMETRY


class StalledJobsTask(QueueTask):
    """Recovers stalled jobs at the start and every ``stalled_interval`` (±10%): of the worker, else of the queue."""

    def __init__(
        self,
        *,
        link: QueueLink,
        source: QueueSource,
        options: WorkerOptions,
        listeners: Listeners,
        failure_log: FailureLog,
        policy: FailurePolicyTask,
        outbox_pending: Callable[[], None] = lambda: None,
    ) -> None:
        every = options.stalled_interval / 1000
        super().__init__("stalled", link, "look for stalled jobs", every)
        self._default_s = every
        self._uses_policy = not options.has_stalled_interval
        self._grace = options.lock_duration / 1000
        self._source = source
        self._listeners = listeners
        self._failure_log = failure_log
        self._policy = policy
        self._outbox_pending = outbox_pending

    async def run_once(self) -> None:
        """Check all active jobs once; do nothing if another worker does so now.

        After an interruption (lost connection, moved slot, failed heartbeat) this waits for one lock duration:
        heartbeats did not arrive during it, and healthy workers must be able to renew their locks first. In a cluster,
        interruptions of other queues do not count: they may be on another shard.

        Raises:
            GlideMQError: If a call fails.
        """
        remaining = self._grace - self._link.transport.interruptions.age_s(self._link.keys.name)
        if remaining > 0:
            self._pause = min(self._every, remaining)
            return
        cursor = ""
        while True:
            reply = await self._link.transport.call(self._source.recover_stalled(cursor))
            if self._uses_policy:
                self._pause = self._every = reply.interval / 1000 or self._default_s
            if TELEMETRY.on and (reply.recovered or reply.failed):
                for meter in TELEMETRY.meters:
                    meter.stalled(self._link.queue_name, len(reply.recovered), len(reply.failed))
            for job_id in reply.recovered:
                self._listeners.emit("stalled", self._link.shown_id(job_id), queue=self._link.queue_name)
            if reply.failed:
                self._outbox_pending()  # there may be dead-letter entries
            for job_id in reply.recovered:
                await self._failure_log.stalled(job_id, self._read_record)
            for job_id in reply.failed:
                await self._failure_log.stalled_out(job_id, self._read_record)
            cursor = reply.cursor
            if not cursor or not reply.held:
                break
        self._policy.checked()
        if reply.held and reply.policy:
            await self._policy.run_round()

    async def _read_record(self, job_id: str) -> tuple[str, str]:
        """Return the name and the failure reason of a job, for the log; '' if they cannot be read."""
        keys = self._link.keys
        try:
            (reply,) = await self._link.transport.send_reads(
                keys.meta, [("HMGET", keys.job(job_id), "name", "failedReason")]
            )
        except GlideMQError:
            return "", ""
        if isinstance(reply, GlideMQError):
            return "", ""
        name, reason = (value.decode("utf-8", "replace") if value else "" for value in reply)
        return name, reason
