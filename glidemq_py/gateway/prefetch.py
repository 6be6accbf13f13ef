"""`Prefetch`: jobs of a queue that were fetched together with reports, for the fetches that clients send next.

A client that has reported jobs usually fetches as many at once. The call that reports them fetches these jobs, so that
this fetch costs neither a call nor a round trip to the server. The number of active jobs does not exceed what the
clients have room for. Jobs that no client asks for in time return to the front of the queue, and the next ones are
prefetched only after clients have shown several times that they fetch at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from glidemq_py.gateway.fetched import Fetched

__all__ = ["Prefetch"]

_KEPT_S: Final = 0.01
"""How long jobs wait for a fetch."""
_PROMPT_S: Final = 0.02
"""Maximum time from a report to the next fetch of a client that fetches at once, the call included."""
_MOST: Final = 100
"""Jobs of a call."""
_PROMPT_FETCHES: Final = 3
"""Number of such fetches after which jobs are prefetched."""
_MOST_PROMPT_FETCHES: Final = 10_000
"""The same if jobs have returned often."""
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
        self._jobs: list[Fetched] = []
        self._jobs_lock_ms = self._lock_ms = 0
        """Duration of the locks of the last fetch."""
        self._free = 0
        """Jobs that clients have reported and not replaced."""
        self._reported_at = 0.0
        self._requested = 0
        """Jobs of calls in flight."""
        self._awaited = 0
        """Those of them that clients already wait for."""
        self._prompt = 0
        """Prompt fetches in a row."""
        self._wanted_prompt = _PROMPT_FETCHES
        self._served = 0
        """Fetches since the last jobs returned."""
        self._discards = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_jobs(self) -> bool:
        """Whether it has jobs."""
        return bool(self._jobs)

    @property
    def discards(self) -> int:
        """Number of calls of `discard`: jobs of a call that was sent before the last one are returned."""
        return self._discards

    def reported(self, count: int) -> None:
        """Note that clients have reported so many jobs."""
        self._free = min(self._free + count, _MOST)
        self._reported_at = self._loop.time()

    @property
    def lock_ms(self) -> int:
        """Duration of the locks of prefetched jobs."""
        return self._lock_ms

    def request(self, lock_ms: int) -> int:
        """Return how many jobs the next call prefetches; ``lock_ms``: the duration of their locks."""
        count = self._free - len(self._jobs) - self._requested
        if count <= 0 or self._prompt < self._wanted_prompt or lock_ms != self._lock_ms:
            return 0
        self._requested += count
        return count

    def ended(self, count: int) -> None:
        """Note that a call has returned that was to prefetch so many jobs."""
        self._requested -= count
        self._awaited = min(self._awaited, self._requested)

    def awaits(self, count: int, lock_ms: int) -> bool:
        """Return whether a fetch is likely to be served by a call in flight; if so, it waits for it."""
        if lock_ms != self._lock_ms or self._awaited + count > self._requested:
            return False
        self._awaited += count
        return True

    def keep(self, jobs: Sequence[Fetched], lock_ms: int, discards: int) -> None:
        """Keep jobs for the next fetches.

        Args:
            jobs: The jobs.
            lock_ms: Duration of their locks.
            discards: `discards` at the time of their call.
        """
        if discards != self._discards or (self._jobs and lock_ms != self._jobs_lock_ms):
            self._give_back(jobs)
            return
        self._jobs_lock_ms = lock_ms
        self._jobs += jobs
        self._loop.call_soon(_prepare, jobs)  # after the answers to the reports
        if self._timer is None:
            self._timer = self._loop.call_later(_KEPT_S, self._expire)

    def take(self, count: int, lock_ms: int) -> list[Fetched]:
        """Return jobs for a client that fetches up to ``count``, locked for ``lock_ms``."""
        self._lock_ms = lock_ms
        if self._free:
            is_prompt = self._loop.time() - self._reported_at < _PROMPT_S
            self._prompt = self._prompt + 1 if is_prompt else 0
            self._free = max(0, self._free - count)
        return self.take_more(count, lock_ms) if self._jobs else []

    def take_more(self, count: int, lock_ms: int) -> list[Fetched]:
        """Return up to ``count`` jobs for a fetch that has waited for them."""
        if not self._jobs or lock_ms != self._jobs_lock_ms:
            return []
        taken, self._jobs = self._jobs[:count], self._jobs[count:]
        self._stop_timer()
        if self._jobs:
            self._timer = self._loop.call_later(_KEPT_S, self._expire)
        self._served += 1
        if self._served > _FORGIVEN:
            self._wanted_prompt = _PROMPT_FETCHES
        return taken

    def discard(self) -> list[Fetched]:
        """Forget all jobs, and those of the calls in flight; return the jobs, which the caller gives back."""
        self._discards += 1
        jobs, self._jobs = self._jobs, []
        self._stop_timer()
        return jobs

    def _expire(self) -> None:
        jobs, self._jobs, self._timer = self._jobs, [], None
        self._free = self._prompt = self._served = 0
        self._wanted_prompt = min(4 * self._wanted_prompt, _MOST_PROMPT_FETCHES)
        self._give_back(jobs)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _prepare(jobs: Sequence[Fetched]) -> None:
    for job in jobs:
        with contextlib.suppress(Exception):  # the fetch fails in the same way
            job.prepare()
