"""The jobs that the clients of this process have fetched and not reported."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from glidemq_py._features.leases.tokens import LeaseFacts
from glidemq_py.gateway.fetched import Fetched

__all__ = ["DEFAULT_LOCK_MS", "FRESH_S", "Held", "HeldJobs"]

DEFAULT_LOCK_MS: Final = 30_000
"""Duration of the lock of a job whose client has not chosen one."""

FRESH_S: Final = 1.0
"""How long after a fetch a renewal of its lock is answered from memory, unless the lock is short."""
_FRESH_PART: Final = 1 / 3
"""Part of a short lock for which this is so: it began before its reply arrived, and its client renews it in time."""
_MARGIN_S: Final = 60.0
_ENDED_KEPT: Final = 10_000
"""Reported jobs that are remembered."""


@dataclass(slots=True)
class Held:
    """A fetched job.

    Attributes:
        connection: The session that fetched it.
        queue: Name of its queue in this package.
        facts: What identifies its lease.
        token: Token of its lease.
        lock_ms: Duration of its lock.
        expires_at: When the lock expires unless it is renewed, epoch ms of the server's clock.
        is_owned: Whether the client has the token, because it named an owner.
        is_kept: Whether the job stays locked if the connection is lost.
        fresh_until: Until when renewals of its lock are answered from memory, monotonic seconds.
        forget_at: When this process forgets it, monotonic seconds.
    """

    connection: object
    queue: str
    facts: LeaseFacts
    token: str
    lock_ms: int
    expires_at: int
    is_owned: bool
    is_kept: bool
    fresh_until: float
    forget_at: float

    def is_of(self, token: str | None) -> bool:
        """Return whether a client may report the job with this token.

        One that differs is of another attempt, also if the client of this attempt has none.
        """
        return token == self.token or (not token and not self.is_owned)


class HeldJobs:
    """Fetched jobs by id. Those whose locks have expired are forgotten, so they cannot accumulate."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Held] = OrderedDict()
        self._ended: OrderedDict[str, str] = OrderedDict()
        """Tokens of the jobs that were reported last."""

    def __len__(self) -> int:
        return len(self._jobs)

    def add(
        self, job_id: str, job: Fetched, token: str, connection: object, *, queue: str, is_owned: bool, is_kept: bool
    ) -> None:  # fmt: skip
        """Remember a job."""
        self.add_all(((job_id, job, token),), connection, queue=queue, is_owned=is_owned, is_kept=is_kept)

    def add_all(
        self, fetched: Iterable[tuple[str, Fetched, str]], connection: object, *, queue: str, is_owned: bool,
        is_kept: bool,
    ) -> None:  # fmt: skip
        """Remember jobs, given their ids, themselves and their tokens."""
        now, jobs = time.monotonic(), self._jobs
        while jobs:
            oldest = next(iter(jobs))
            if jobs[oldest].forget_at > now:
                break
            del jobs[oldest]
        for job_id, job, token in fetched:
            lock_s = job.lock_ms / 1_000
            jobs.pop(job_id, None)
            jobs[job_id] = Held(
                connection, queue, job.facts, token, job.lock_ms, job.expires_at, is_owned, is_kept,
                now + min(FRESH_S, lock_s * _FRESH_PART), now + lock_s + _MARGIN_S,
            )  # fmt: skip

    def find(self, job_id: str) -> Held | None:
        """Return the job with this id, or None."""
        return self._jobs.get(job_id)

    def fresh(self, job_id: str, token: str | None, duration: int | None, now: float) -> Held | None:
        """Return the job if it was fetched so recently that its lock need not be renewed on the server; else None.

        The caller then sets `Held.is_kept`: the job stays locked if the connection is lost.

        Args:
            job_id: The id.
            token: Token of the lease, if the client has given it.
            duration: Of the lock, ms, if the client has given it.
            now: Monotonic seconds.
        """
        held = self._jobs.get(job_id)
        if held is None or now >= held.fresh_until or (token and token != held.token):
            return None
        return held if duration is None or duration == held.lock_ms else None

    def renew_fresh(self, job_ids: Sequence[str], tokens: Iterable[object]) -> int | None:
        """Renew locks of jobs as `fresh` does it, and return how many; None if one must be renewed on the server.

        Args:
            job_ids: The ids.
            tokens: The tokens of their leases; those that are not strings are ignored.
        """
        now, jobs, found = time.monotonic(), self._jobs, list[Held]()
        for job_id, token in zip(job_ids, tokens, strict=True):
            held = jobs.get(job_id)
            if held is not None and now < held.fresh_until and (token == held.token or not isinstance(token, str)):
                found.append(held)
            elif not isinstance(token, str) or self._ended.get(job_id) != token:
                return None
        for held in found:
            held.is_kept = True
        return len(found)

    def renewed(self, job_id: str, token: str | None, duration: int | None) -> None:
        """Note that the lock was extended: the job stays locked if the connection is lost."""
        held = self._jobs.get(job_id)
        if held is not None and token in (None, "", held.token):
            held.is_kept = True
            held.forget_at = time.monotonic() + (duration or held.lock_ms) / 1_000 + _MARGIN_S
            self._jobs.move_to_end(job_id)

    def has_ended(self, job_id: str, token: str | None) -> bool:
        """Return whether the job was reported with this token: there is no lock to renew.

        Clients send heartbeats for jobs that they have reported meanwhile.
        """
        return token is not None and self._ended.get(job_id) == token

    def ended(self, job_id: str, token: str) -> None:
        """Forget a job that was reported."""
        self.all_ended((job_id,), (token,))

    def all_ended(self, job_ids: Sequence[str], tokens: Sequence[str]) -> None:
        """Forget jobs that were reported."""
        jobs, ended = self._jobs, self._ended
        for job_id, token in zip(job_ids, tokens, strict=True):
            ended[job_id] = token
            held = jobs.get(job_id)
            if held is not None and held.token == token:
                del jobs[job_id]
        for _ in range(len(ended) - _ENDED_KEPT):
            ended.popitem(last=False)

    def take(self, connection: object) -> list[Held]:
        """Forget the jobs of a lost connection that are to be released, and return them; others may be reported."""
        taken: list[Held] = []
        for job_id, held in list(self._jobs.items()):
            if held.connection is connection:
                if held.is_kept:
                    held.connection = None
                else:
                    taken.append(self._jobs.pop(job_id))
        return taken
