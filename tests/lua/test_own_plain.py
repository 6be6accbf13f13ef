"""The short fetch of plain jobs: it is used for them alone, and gives them what the full fetch would."""

import pytest

from tests.inside import row
from tests.lua.own_support import OwnQueue


def pending_and_entries(q: OwnQueue) -> tuple[int, list[str]]:
    return len(q.pending()) if q.redis_groups("stream") else 0, [entry["jobId"] for entry in q.entries()]


@pytest.mark.parametrize("active", [(0,), (39,), (20,), (0, 7, 39)])
def test_entries_of_active_jobs_stay(q: OwnQueue, active: tuple[int, ...]):
    q.add(*[row("a", "1", "{}") for _ in range(45)])
    jobs = q.fetch(40)
    q.finish(*[job.completed() for place, job in enumerate(jobs) if place not in active])
    waiting = [str(number) for number in range(41, 46)]
    assert pending_and_entries(q) == (len(active), [jobs[place].id for place in active] + waiting)
    q.finish(*[jobs[place].completed() for place in active])
    assert pending_and_entries(q) == (0, waiting)
