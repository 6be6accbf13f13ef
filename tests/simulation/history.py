"""What a queue remembers of its jobs, compared with the server's events: timelines, attempts, figures, failures."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from glidemq_py import Queue
from glidemq_py.records import FailedAttempt
from tests.inside import failed_attempts, worker_results
from tests.inside import timeline as timelines
from tests.simulation.producer import QUEUE

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger
    from tests.simulation.server import SimulatedServer

__all__ = ["History"]

_ENTRIES: Final = 8
"""Transitions that the timeline of a job keeps."""
_INTERVAL_MS, _AUTO_RETRIES, _MAX_AGE_MS, _MAX_FAILED = 1_000, 3, 3_000, 5
_FACTORS: Final = (1, 1, 2)
"""The interval before each automatic retry, in multiples of the shortest."""
_JOB: Final = f"glide:{{{QUEUE}}}:job:".encode()
_DAY_MS: Final = 86_400_000


class History:
    """Applies the settings of a scenario to the queue, and judges what the queue remembers at the end.

    Args:
        settings: see `Scenario`.
        ledger: has the server's events.
        server: has the records.
    """

    def __init__(self, settings: tuple[str, ...], ledger: Ledger, server: SimulatedServer):
        self._settings = settings
        self._ledger = ledger
        self._server = server
        self.judged: Counter[str] = Counter()
        """How many things of each kind were compared."""

    async def apply(self, queue: Queue):
        """Set up the queue, before its first job."""
        if "timeline" in self._settings:
            await queue.timelines.set(1.0, max_entries=_ENTRIES)
        if "figures" in self._settings:
            await queue.metrics_by_name.set(24 * 60, max_names=1_000)
        policy: dict[str, Any] = {}
        if "auto_retries" in self._settings:
            policy |= {"retry_interval": _INTERVAL_MS, "max_auto_retries": _AUTO_RETRIES}
            self._ledger.may_retry_failed = True
        if "max_age" in self._settings:
            policy["max_age"] = timedelta(milliseconds=_MAX_AGE_MS)
        if "max_entries" in self._settings:
            policy["max_entries"] = _MAX_FAILED
        if policy:
            await queue.failures.set_policy(**policy)

    async def wait_for_figures(self):
        """Let workers send what they have counted last."""
        if "figures" in self._settings:
            await asyncio.sleep(1.2 * worker_results.INTERVAL_S)

    async def is_settled(self, queue: Queue) -> bool:
        """Return True if the failure policy has nothing left to do."""
        failed = [failure async for failure in queue.failures.iter()]
        if any(failure.next_retry_at is not None for failure in failed):
            return False
        if "max_entries" in self._settings and len(failed) > _MAX_FAILED:
            return False
        return not ("max_age" in self._settings and failed)

    async def judge(self, queue: Queue) -> list[str]:
        """Return the problems."""
        problems: list[str] = []
        self._judge_records(problems)
        if "figures" in self._settings:
            await self._judge_figures(queue, problems)
        if "auto_retries" in self._settings:
            await self._judge_retries(queue, problems)
        return problems

    def _states(self) -> dict[str, list[tuple[str, int]]]:
        """Return the states of each job since its last add, with their times."""
        found: dict[str, list[tuple[str, int]]] = {}
        for event in self._ledger.log:
            if event[b"event"] != b"state" or event[b"queue"] != QUEUE.encode():
                continue
            job_id = event[b"jobId"].decode()
            if b"new" in event or job_id not in found:
                found[job_id] = []
            found[job_id].append((event[b"state"].decode(), int(event[b"at"])))
        return found

    def _judge_records(self, problems: list[str]):
        states = self._states()
        for key in sorted(self._server.keys_of_jobs(_JOB)):
            job_id = key[len(_JOB) :].decode()
            timeline, attempts, added, made, state = self._server.execute(
                "HMGET", key, "timeline", "failedAttempts", "timestamp", "attemptsMade", "state"
            )
            if "timeline" in self._settings:
                self._judge_timeline(job_id, states[job_id], (timeline or b"").decode(), int(added), problems)
            history = failed_attempts.read_failed_attempts(attempts.decode()) if attempts else []
            self._judge_attempts(job_id, history, int(made or 0), state.decode(), problems)

    def _judge_timeline(self, job_id: str, states: list[tuple[str, int]], text: str, added: int, problems: list[str]):
        """The timeline must have every state that the server has written, in order, but only the last ones."""
        found = [(entry.state.value, entry.at) for entry in timelines.read_timeline(text, added)]
        self.judged["timeline"] += 1
        if found != states[-_ENTRIES:]:
            problems.append(f"timeline of job {job_id} is {found}, but its last states are {states[-_ENTRIES:]}")

    def _judge_attempts(self, job_id: str, history: list[FailedAttempt], made: int, state: str, problems: list[str]):
        """Every failed attempt that the job counts is in its history, in order, with its error."""
        times = [attempt.failed_at for attempt in history]
        if times != sorted(times):
            problems.append(f"attempts of job {job_id} are not in order: {times}")
        if any(attempt.duration is not None and attempt.failed_at < (attempt.started_at or 0) for attempt in history):
            problems.append(f"an attempt of job {job_id} failed before it started: {history}")
        kind = self._ledger.attempted.get(job_id)
        if kind not in ("failing", "retried"):
            return
        raised = [attempt for attempt in history if attempt.error_type == "ExpectedError"]
        if any(attempt.error != kind or "ExpectedError" not in attempt.traceback for attempt in raised):
            problems.append(f"an attempt of job {job_id} has another error than {kind!r}: {raised}")
        self.judged["attempts"] += len(raised)
        numbers = [attempt.number for attempt in raised][-made:] if made else []
        if len(history) < 20 and numbers != list(range(1, made + 1)):
            problems.append(f"attempts of job {job_id} are numbered {numbers}; {made} have failed: {history}")
        if state == "failed" and not self._ledger.has_stalled_out(job_id):
            reasons = [attempt.reason.value for attempt in raised][-2:]
            expected = ["explicit_fail", "max_attempts_exceeded"][-made:]
            if reasons[-made:] != expected:
                problems.append(f"the last attempts of job {job_id} failed for the reasons {reasons}")

    async def _judge_figures(self, queue: Queue, problems: list[str]):
        """The sums of all minutes must be those of the server's events.

        What a dead worker had not sent is missing. A job that is removed when it completes is unknown to a report that
        is repeated because its reply was lost.
        """
        if self._ledger.failovers or self._ledger.holds_leases:
            return  # workers have counted what is lost, and holders of leases count nothing
        kept = {key[len(_JOB) :].decode() for key in self._server.keys_of_jobs(_JOB)}
        expected: dict[str, Counter[str]] = defaultdict(Counter)
        removed: Counter[str] = Counter()
        for event in self._ledger.log:
            what, job_id = event[b"event"].decode(), event.get(b"jobId", b"").decode()
            if what in ("completed", "failed") and event[b"queue"] == QUEUE.encode():
                expected[self._ledger.names[job_id]][what] += 1
                if self._ledger.loses_messages and job_id not in kept:
                    removed[self._ledger.names[job_id]] += 1
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for row in await queue.metrics_by_name.get(_DAY_MS, interval=None):
            found[row.name] += Counter({"completed": row.completed, "failed": row.failed})
        for name in sorted(expected.keys() | found.keys()):
            for what in ("completed", "failed") if name in ("failing", "timeout") else ("completed",):
                self.judged["figures"] += 1
                count, most = found[name][what], expected[name][what]
                least = 0 if self._ledger.loses_workers else most - removed[name]
                if not least <= count <= most:
                    problems.append(f"figures of {name!r}: {count} jobs {what}, but {most} did")

    async def _judge_retries(self, queue: Queue, problems: list[str]):
        """Failed jobs must have been requeued as often as allowed, each time not before the interval."""
        async for failure in queue.failures.iter(name="failing"):
            self.judged["auto_retries"] += 1
            if failure.auto_retries != _AUTO_RETRIES:
                problems.append(f"failed job {failure.job_id} was requeued {failure.auto_retries} times")
        for job_id, states in self._states().items():
            count = 0
            for (before, failed_at), (after, at) in pairwise(states):
                if before != "failed" or after in ("failed", "completed"):
                    continue
                if count >= _AUTO_RETRIES:
                    problems.append(f"job {job_id} was requeued more than {_AUTO_RETRIES} times: {states}")
                    break
                least = _INTERVAL_MS * _FACTORS[count]
                if at - failed_at < least:
                    problems.append(f"job {job_id} was requeued {at - failed_at} ms after its failure, not {least}")
                count += 1
