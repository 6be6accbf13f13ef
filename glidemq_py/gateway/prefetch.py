"""`Prefetch`: jobs of a queue that were fetched together with reports, for the fetches that clients send next.

A client that has reported jobs usually fetches as many at once. The call that reports them fetches these jobs, so that
this fetch costs neither a call nor a round trip to the server. No more jobs are prefetched than clients have reported
in the last `_PROMPT_S` and not replaced. Jobs that no client asks for within `_KEPT_S` return to the front of the
queue, and the next ones are prefetched only after clients have shown several times that they fetch at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from glidemq_py.gateway.fetched import Fetched

_KEPT_S: Final = 0.01
"""How long jobs wait for a fetch."""
_PROMPT_S: Final = 0.02
"""Maximum time from a report to the next fetch of a client that fetches at once, the call included."""
_MOST: Final = 100
"""Jobs that are prefetched."""
_PROMPT_FETCHES: Final = 3
"""Number of such fetches after which jobs are prefetched."""
_MOST_PROMPT_FETCHES: Final = 10_000
"""The same if jobs have returned often."""
_SELDOM: Final = 20
"""Prefetching becomes rarer if a command needs the jobs back after fewer fetches that were served with them."""
_FORGIVEN: Final = 500
"""Number of fetches that are served with prefetched jobs until earlier returns are forgotten."""


class Prefetch:
    """The prefetched jobs of a queue.

    Args:
        give_back: Returns jobs to the front of the queue.
    """

    def __init__(self, give_back: Callable[[Sequence[Fetched]], None]) -> None:
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[tuple[float, Fetched]] = deque()
        """Each with the time of its arrival."""
        self._jobs_lock_ms = 0
        self.lock_ms = 0
        """Duration of the locks of the last fetch, and of the next prefetched jobs."""
        self.is_suitable = False
        """Whether jobs can return without a trace: the last ones had no groups, and the queue has no rate limit."""
        self._reported: deque[tuple[float, int]] = deque()
        """Numbers of jobs that clients have reported and not replaced, with the times."""
        self._requested = 0
        """Jobs of calls in flight."""
        self._awaited = 0
        """Those of them that clients already wait for."""
        self._prompt = 0
        """Prompt fetches in a row."""
        self._wanted_prompt = _PROMPT_FETCHES
        self._served = 0
        """Fetches since the last jobs returned."""
        self._stops = 0
        """Commands that run without prefetched jobs."""
        self._timer: asyncio.TimerHandle | None = None

    def may_have(self, job_id: str) -> bool:
        """Return whether it may have the job with this id on the wire.

        The jobs of other programs have other ids on the wire, so each of them might be that job.
        """
        return any(job.number is None or job.facts.id == job_id for _, job in self._jobs)

    def stop(self) -> None:
        """Prefetch and keep nothing until `resume` was called as often."""
        self._stops += 1

    def resume(self) -> None:
        """End a `stop`."""
        self._stops -= 1

    def reported(self, count: int) -> None:
        """Note that clients have reported so many jobs."""
        self._reported.append((self._loop.time(), count))

    def request(self, lock_ms: int) -> int:
        """Return how many jobs the next call prefetches; ``lock_ms``: the duration of their locks."""
        if self._stops or not self.is_suitable or self._prompt < self._wanted_prompt or lock_ms != self.lock_ms:
            return 0
        self._forget_old()
        free = min(sum([count for _, count in self._reported]), _MOST)
        count = max(0, free - len(self._jobs) - self._requested)
        self._requested += count
        return count

    def ended(self, count: int) -> None:
        """Note that a call has ended that was to prefetch so many jobs."""
        self._requested = max(0, self._requested - count)
        self._awaited = max(0, self._awaited - count)

    def awaits(self, count: int, lock_ms: int) -> bool:
        """Return whether a fetch is likely to be served by a call in flight; if so, it waits for it."""
        if lock_ms != self.lock_ms or self._awaited + count > self._requested:
            return False
        self._awaited += count
        return True

    def keep(self, jobs: Sequence[Fetched], lock_ms: int) -> None:
        """Keep jobs for the next fetches; ``lock_ms``: the duration of their locks."""
        if self._stops or (self._jobs and lock_ms != self._jobs_lock_ms):
            self._give_back(jobs)
            return
        now = self._loop.time()
        self._jobs_lock_ms = lock_ms
        self._jobs.extend([(now, job) for job in jobs])
        self._loop.call_soon(_prepare, jobs)  # after the answers to the reports
        if self._timer is None:
            self._timer = self._loop.call_at(now + _KEPT_S, self._expire)

    def take(self, count: int, lock_ms: int) -> list[Fetched]:
        """Return jobs for a client that fetches up to ``count``, locked for ``lock_ms``."""
        self.lock_ms = lock_ms
        if self._reported:
            self._forget_old()
            self._prompt = self._prompt + 1 if self._reported else 0
            self._replace(count)
        return self.take_more(count, lock_ms)

    def take_more(self, count: int, lock_ms: int) -> list[Fetched]:
        """Return up to ``count`` jobs for a fetch that has waited for them."""
        jobs = self._jobs
        if not jobs or lock_ms != self._jobs_lock_ms:
            return []
        if jobs[0][0] + _KEPT_S < self._loop.time():  # the event loop was busy
            self._stop_timer()
            self._expire()
            return []
        taken = [jobs.popleft()[1] for _ in range(min(count, len(jobs)))]
        if not jobs:
            self._stop_timer()
        self._served += 1
        if self._served > _FORGIVEN:
            self._wanted_prompt = _PROMPT_FETCHES
        return taken

    def discard(self) -> list[Fetched]:
        """Forget all jobs, and return them; the caller gives them back."""
        self._stop_timer()
        return self._returned(seldom=self._served >= _SELDOM) if self._jobs else []

    def _expire(self) -> None:
        self._timer = None
        oldest = self._jobs[0][0] + _KEPT_S
        if oldest > self._loop.time():  # the older ones were taken
            self._timer = self._loop.call_at(oldest, self._expire)
            return
        self._reported.clear()
        self._give_back(self._returned(seldom=False))

    def _returned(self, *, seldom: bool) -> list[Fetched]:
        """Return all jobs, which return to the queue, and note this."""
        jobs = [job for _, job in self._jobs]
        self._jobs.clear()
        self._prompt = self._served = 0
        if not seldom:
            self._wanted_prompt = min(4 * self._wanted_prompt, _MOST_PROMPT_FETCHES)
        return jobs

    def _forget_old(self) -> None:
        """Forget reports after which clients had time to fetch."""
        since = self._loop.time() - _PROMPT_S
        while self._reported and self._reported[0][0] < since:
            self._reported.popleft()

    def _replace(self, count: int) -> None:
        """Note that a client asks for so many jobs in place of those that were reported."""
        while self._reported and count > 0:
            at, reported = self._reported.popleft()
            if reported > count:
                self._reported.appendleft((at, reported - count))
            count -= reported

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _prepare(jobs: Sequence[Fetched]) -> None:
    ignored = contextlib.suppress(Exception)  # the fetch fails in the same way
    for job in jobs:
        with ignored:
            job.prepare()
