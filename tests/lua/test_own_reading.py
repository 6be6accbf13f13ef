"""Test the read-only functions counts and page."""

from typing import Any

from tests.inside import Ordering, count_parked, page, remove, row
from tests.lua.own_support import OwnQueue


def visit(q: OwnQueue, state: str, count: int = 7, between: Any = None) -> list[str]:
    """Ids met by going through a state page by page, as often as they are met."""
    found: list[str] = []
    cursor = ""
    for _ in range(1_000):
        rows, cursor = q.run(page(q.meta, state, cursor, count, ["name"]))
        assert len(rows) <= count
        found += [job_id for job_id, _, _ in rows]
        if not cursor:
            return found
        if between:
            between(found)
    raise AssertionError("the pages do not end")


def park(q: OwnQueue, groups: int, jobs: int):
    for n in range(groups):
        q.add(*[row("a", "", "{}", ordering=Ordering(f"g{n}").to_row(None)) for _ in range(jobs + 1)], quiet=True)
    q.fetch(1_000)


def test_parked_jobs_of_many_groups_are_counted_page_by_page(q: OwnQueue):
    park(q, 40, 2)
    for n in range(1_000):
        q.redis("HSET", "ordering", f"idle{n}", 1)
    assert q.counts()["group_waiting"] == -1
    cursor, found, pages = "", dict[str, int](), 0
    while pages == 0 or cursor:
        cursor, groups = q.run(count_parked(q.meta, cursor))
        found.update(groups)
        pages += 1
    assert found == {f"g{n}": 2 for n in range(40)}
    assert pages >= 2


def test_jobs_that_keep_their_state_are_visited_while_others_leave(q: OwnQueue):
    q.add(*[row("a", "", "{}") for _ in range(60)], quiet=True)
    q.finish(*[job.completed() for job in q.fetch(60)])  # all at one moment
    gone: set[str] = set()

    def leave(found: list[str]):
        for job_id in found[-1:] + found[-4:-3]:
            q.run(remove(q.meta, job_id))
            gone.add(job_id)

    found = visit(q, "completed", between=leave)
    assert {str(i) for i in range(1, 61)} <= set(found)


def test_jobs_that_keep_their_state_are_visited_while_others_come(q: OwnQueue):
    q.add(*[row("a", "", "{}", delay=1_000) for _ in range(30)], quiet=True)
    left = [20]

    def come(_: list[str]):
        if left[0]:
            left[0] -= 1
            q.add(row("b", "", "{}", delay=1_000), row("b", "", "{}", delay=5), row("b", "", "{}", delay=2_000))

    found = [job_id for job_id in visit(q, "delayed", between=come) if int(job_id) <= 30]
    assert sorted(found, key=int) == [str(i) for i in range(1, 31)]
