"""The failure policy of a queue: which failed jobs are retried or deleted, and the task that executes it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from datetime import timedelta
from typing import Final, NamedTuple

from glidemq_py._client.failures import repeated_level
from glidemq_py._client.runtime import BackgroundTask
from glidemq_py._core.calls import Flag, call
from glidemq_py._core.calls.administration import set_settings
from glidemq_py._core.checks import check_int
from glidemq_py._core.logs import get_logger
from glidemq_py._core.misuse import known_methods
from glidemq_py._core.times import MAX_DURATION_MS, SECOND_MS, Milliseconds, to_ms
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import Area
from glidemq_py.errors import ClosedError, GlideMQError, GlideMQValidationError

POLICY_FIELD: Final = "failurePolicy"
_HISTORY: Final = "attemptHistory"
_AUTO_RETRIES: Final = 3
_MOST_RETRIES: Final = 1_000_000
_MOST_ENTRIES: Final = 100_000_000
_MOST_ATTEMPTS: Final = 1_000
_MOST_BYTES: Final = 1_048_576
_LEAST_BYTES: Final = 4_096
_MOST_TRACEBACK: Final = 65_536
_OTHER_BYTES: Final = 2_048
"""Space for the other parts of an attempt than its traceback."""


class PolicyReply(NamedTuple):
    """Reply of `run_failure_policy`."""

    retried: int
    deleted: int
    more: int
    """1 = call again."""
    wait: int
    """Milliseconds until the next job is due; -1 = none."""


@call("run_failure_policy", repeatable=True)
def run_failure_policy(is_first: Flag) -> PolicyReply:
    """Execute the failure policy for a batch of jobs; ``is_first`` for the first call of a round."""
    ...


class FailurePolicy(NamedTuple):
    """Failure policy of a queue; see `Queue.failures.set_policy`.

    Attributes:
        retry_interval: Time from a failure to the automatic requeue, ms; None = failed jobs are not requeued.
        max_auto_retries: Maximum number of automatic requeues of a job; None without ``retry_interval``.
        max_age: Time after which a failed job is deleted, ms; None = never.
        max_entries: Number of newest failed jobs to keep; None = all.
    """

    retry_interval: int | None = None
    max_auto_retries: int | None = None
    max_age: int | None = None
    max_entries: int | None = None


class AttemptHistory(NamedTuple):
    """Bounds of the failed attempts that a job's record keeps; see `Queue.failures.set_attempt_history`.

    Attributes:
        max_attempts: Number of failed attempts to keep, the newest; 0 = none are recorded.
        max_traceback: Maximum size of a traceback, of which the end is kept, bytes; 0 = no tracebacks.
        max_bytes: Maximum size of all attempts of a job, bytes.
    """

    max_attempts: int = 20
    max_traceback: int = 4_096
    max_bytes: int = 65_536


def read_failure_policy(text: bytes | None) -> FailurePolicy | None:
    """Return the policy of the meta field; None if it is absent or malformed."""
    found = re.fullmatch(rb"(\d{1,15})\|(\d{1,15})\|(\d{1,15})\|(\d{1,15})", text or b"")
    if found is None:
        return None
    interval, retries, age, entries = (int(number) for number in found.groups())
    return FailurePolicy(interval or None, retries if interval else None, age or None, entries or None)


def read_attempt_history(text: bytes | None) -> AttemptHistory:
    """Return the bounds of the meta field; the defaults if it is absent or malformed."""
    found = re.fullmatch(rb"(\d{1,15})\|(\d{1,15})\|(\d{1,15})", text or b"")
    return AttemptHistory() if found is None else AttemptHistory(*(int(number) for number in found.groups()))


def _duration(option: str, value: int | timedelta) -> int:
    return to_ms(option, value, minimum=SECOND_MS, maximum=MAX_DURATION_MS)


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


@known_methods
class FailurePolicies(Area):
    """How long failures are kept."""

    __slots__ = ()

    async def set_policy(
        self,
        *,
        retry_interval: Milliseconds | None = None,
        max_auto_retries: int | None = None,
        max_age: Milliseconds | None = None,
        max_entries: int | None = None,
    ) -> None:
        """Set what happens to failed jobs of the queue; replaces the whole policy.

        A worker requeues the jobs that fail in it on time. Workers and `Maintenance` execute the rest with their checks
        for stalled jobs, by default every 30 seconds.

        Args:
            retry_interval: requeue failed jobs this long after their failure, 1_000 ms to ten years or timedelta;
                None: do not. From the third automatic requeue of a job on the interval doubles each time. Revoked and
                expired jobs are not requeued.
            max_auto_retries: maximum number of automatic requeues of a job, 1..1_000_000; None = 3. Each has all
                attempts of the job. A manual requeue starts at 0 again. Requires ``retry_interval``.
            max_age: delete jobs that failed longer ago than this, 1_000 ms to ten years or timedelta; None =
                never. Must be longer than ``retry_interval``.
            max_entries: number of newest failed jobs to keep, 1..100_000_000; None = all.

        Raises:
            GlideMQValidationError: an argument is invalid or has no effect, or none was given.
        """
        if max_auto_retries is not None and retry_interval is None:
            problem = "requires 'retry_interval': without it, failed jobs are not requeued"
            raise GlideMQValidationError("max_auto_retries", max_auto_retries, problem)
        if retry_interval is None and max_age is None and max_entries is None:
            problem = "give at least one of 'retry_interval', 'max_age' and 'max_entries'"
            raise GlideMQValidationError("retry_interval", None, problem)
        interval = 0 if retry_interval is None else _duration("retry_interval", retry_interval)
        retries = _AUTO_RETRIES
        if max_auto_retries is not None:
            retries = check_int("max_auto_retries", max_auto_retries, 1, _MOST_RETRIES)
        age = 0 if max_age is None else _duration("max_age", max_age)
        if interval and 0 < age <= interval:
            problem = (
                f"must be longer than 'retry_interval' ({interval} ms): jobs would be deleted before their requeue"
            )
            raise GlideMQValidationError("max_age", max_age, problem)
        entries = 0 if max_entries is None else check_int("max_entries", max_entries, 1, _MOST_ENTRIES)
        text = f"{interval}|{retries}|{age}|{entries}"
        await self._queue._change(lambda link: link.call(set_settings, failurePolicy=text))

    async def get_policy(self) -> FailurePolicy | None:
        """Return the failure policy of the queue; None if it has none."""
        link = await self._queue._first()
        return read_failure_policy(await link.command("HGET", link.keys.meta, POLICY_FIELD))

    async def remove_policy(self) -> None:
        """Remove the failure policy of the queue: failed jobs stay, unless an option of the job says otherwise."""
        await self._queue._change(lambda link: link.call(set_settings, failurePolicy=None))

    async def set_attempt_history(
        self, *, max_attempts: int = 20, max_traceback: int | None = None, max_bytes: int | None = None
    ) -> None:
        """Set how many failed attempts each job keeps (`Queue.failures.get_attempts`).

        A job's existing history is shortened when its next attempt fails.

        Args:
            max_attempts: number of failed attempts to keep, the newest, 0..1_000; 0 = record none.
            max_traceback: maximum size of a traceback, 0..65_536 bytes; its end is kept. None = 4_096.
            max_bytes: maximum size of the history of a job, 4_096..1_048_576 bytes, and at least 2_048 more than
                ``max_traceback``; the oldest attempts are deleted. None = 65_536.

        Raises:
            GlideMQValidationError: an argument is invalid or has no effect.
        """
        attempts = check_int("max_attempts", max_attempts, 0, _MOST_ATTEMPTS)
        defaults = AttemptHistory()
        traceback, size = defaults.max_traceback, defaults.max_bytes
        if max_traceback is not None:
            traceback = check_int("max_traceback", max_traceback, 0, _MOST_TRACEBACK, unit=" (bytes)")
        if max_bytes is not None:
            size = check_int("max_bytes", max_bytes, _LEAST_BYTES, _MOST_BYTES, unit=" (bytes)")
        for option, value in (("max_traceback", max_traceback), ("max_bytes", max_bytes)):
            if not attempts and value is not None:
                raise GlideMQValidationError(option, value, "requires 'max_attempts' > 0: no attempts are recorded")
        if size < traceback + _OTHER_BYTES:
            problem = f"must be at least 'max_traceback' + {_OTHER_BYTES:,} = {traceback + _OTHER_BYTES:,} (bytes)"
            raise GlideMQValidationError("max_bytes", max_bytes, problem)
        text = f"{attempts}|{traceback}|{size}"
        await self._queue._change(lambda link: link.call(set_settings, attemptHistory=text))

    async def get_attempt_history(self) -> AttemptHistory:
        """Return the bounds of the jobs' attempt histories."""
        link = await self._queue._first()
        return read_attempt_history(await link.command("HGET", link.keys.meta, _HISTORY))
