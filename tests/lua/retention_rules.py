"""Retention in the state machine: completed jobs are trimmed by number and by age."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.inside import working
    from tests.lua.own_support import OwnQueue
    from tests.lua.queue_model import Model

KEPT: Final = 2
"""Number of completed jobs that a worker retains."""
AGE_S: Final = 1
"""Age up to which a worker retains completed jobs, seconds."""
KEEP: Final[dict[str, working.Keep]] = {"kept": (KEPT, 0), "aged": (0, AGE_S), "away": 1}
"""Retention of a completed job, by how it ended."""


class RetentionRules:
    """What remains of the completed jobs."""

    q: OwnQueue
    model: Model

    def _trimmed(self, ends: Sequence[str]):
        """Assert which completed jobs remain after jobs ended in these ways."""
        scored: Any = self.q.redis("ZRANGE", "completed", 0, -1, "WITHSCORES")
        there = {job_id: float(score) for job_id, score in zip(scored[::2], scored[1::2], strict=True)}
        completed = self.model.of("completed")
        if "kept" in ends:
            assert len(there) == min(KEPT, len(completed))
        elif "aged" in ends:
            assert all(score >= self.q.now - 1_000 * AGE_S for score in there.values())
            for job in completed:
                ended = self.ended_at.get(job.id)
                assert job.id in there or ended is None or ended <= self.q.now - 1_000 * AGE_S, job
        else:
            assert len(there) == len(completed)
        self.ended_at.update(there)
        for job in completed:
            if job.id not in there:
                job.state = "gone"

    @property
    def ended_at(self) -> dict[str, float]:
        """Times at which jobs were seen to have ended, by id."""
        found: dict[str, float] = self.__dict__.setdefault("_ended_at", {})
        return found
