"""A maintenance task that executes the failure policy of a queue at the times of its automatic requeues."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Final

from glidemq_py._client.reachability import repeated_level
from glidemq_py._client.runtime import BackgroundTask
from glidemq_py._core.logs import get_logger
from glidemq_py._features.failures.calls import run_failure_policy
from glidemq_py._features.failures.policy import POLICY_FIELD, read_failure_policy
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import ClosedError, GlideMQError

_log = get_logger(__name__)

_CALLS: Final = 500
"""Maximum number of calls per round, each of which requeues and deletes up to 200 jobs."""
_FIRST_S: Final = 0.9
"""Time from a failure to the call that reads it: less than the shortest interval of a policy."""
_SOONEST_S: Final = 0.2
_RETRY_S: Final = 5.0


class FailurePolicyTask(BackgroundTask):
    """Executes the failure policy when a failed job is due.

    It makes no call of its own while no job fails, except one at the start: `StalledJobsTask` starts a round per check,
    and a job that fails in this process starts one shortly afterwards if the policy requeues jobs. The policy is read
    once per check.

    Args:
        link: the queue.
    """

    def __init__(self, link: QueueLink) -> None:
        super().__init__(f"failures-{link.keys.name}")
        self._link = link
        self._woken = asyncio.Event()
        self._due = math.inf
        self._requeues: bool | None = None
        """True if the policy requeues jobs; None = not read since the last check."""

    def start(self) -> None:
        """Start the task. It reads the policy soon: jobs may have become due before, and another worker may check."""
        self._plan(_FIRST_S)
        super().start()

    def job_failed(self) -> None:
        """Plan a round, because a job of the queue has failed in this process."""
        if self._requeues is not False:
            self._plan(_FIRST_S)

    def checked(self) -> None:
        """Read the policy again after the next failure: it may have changed."""
        self._requeues = None

    async def run_round(self, *, is_first: bool = True) -> None:
        """Execute the policy for all jobs.

        Args:
            is_first: False = skip failures that a peer with a slow clock has recorded since the last round.

        Raises:
            GlideMQError: If a call fails.
        """
        link = self._link
        retried = deleted = 0
        for number in range(_CALLS):
            done = await link.call(run_failure_policy, is_first and number == 0)
            retried, deleted = retried + done.retried, deleted + done.deleted
            if not done.more:
                if done.wait >= 0:
                    self._plan(max(_SOONEST_S, done.wait / 1000))
                break
        if retried or deleted:
            _log.info("queue %s: failure policy requeued %d jobs and deleted %d", link.label, retried, deleted)

    async def _run_planned(self) -> None:
        if self._requeues is None:
            link = self._link
            policy = read_failure_policy(await link.command("HGET", link.keys.meta, POLICY_FIELD))
            self._requeues = policy is not None and policy.retry_interval is not None
        if self._requeues:
            await self.run_round(is_first=False)

    def _plan(self, seconds: float) -> None:
        due = asyncio.get_running_loop().time() + seconds
        if due < self._due:
            self._due = due
            self._woken.set()

    async def _repeat(self) -> None:
        while True:
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(None if self._due == math.inf else self._due):
                    await self._woken.wait()
                continue
            self._due = math.inf
            try:
                await self._run_planned()
            except ClosedError:
                return
            except GlideMQError as error:
                _log.log(
                    repeated_level(self._link.transport, error),
                    "queue %s: could not execute the failure policy: %s; retried in %.1f s",
                    self._link.label, error, _RETRY_S,
                )  # fmt: skip
                self._plan(_RETRY_S)
