"""Test the read-only functions counts and page."""

from typing import Any

from tests.inside import Ordering, count_delayed, count_parked, page, remove, row
from tests.lua.own_support import NODE_CONSUMER, START, OwnQueue


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


def test_many_priorities_are_counted_in_pages(q: OwnQueue):
    q.add(*[row("a", "", "{}", priority=1 + i, delay=1_000 if i % 2 else 0) for i in range(600)], quiet=True)
    counts = q.counts()
    assert (counts["delayed"], counts["prioritized"], counts["band"]) == (128, 472, 257)
    assert q.run(count_delayed(q.meta, 257)) == (128, 513)
    assert q.run(count_delayed(q.meta, 513)) == (44, 0)
    assert len(visit(q, "prioritized", 50)) == 300
    assert len(visit(q, "delayed", 50)) == 300


def park(q: OwnQueue, groups: int, jobs: int):
    for n in range(groups):
        q.add(*[row("a", "", "{}", ordering=Ordering(f"g{n}").to_row(None)) for _ in range(jobs + 1)], quiet=True)
    q.fetch(1_000)


def test_parked_jobs_of_few_groups_are_counted_in_one_call(q: OwnQueue):
    q.add_job(ordering=Ordering("alone").to_row(None))
    park(q, 30, 3)
    counts = q.counts()
    assert (counts["group_waiting"], counts["active"], counts["waiting"]) == (90, 31, 0)
    assert q.counts()["group_waiting"] == len(visit(q, "group-waiting"))


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


def test_foreign_key_counts_as_no_parked_jobs(q: OwnQueue):
    park(q, 2, 2)
    q.redis("SET", "groupq:other", "x")
    q.redis("HSET", "ordering", "other", 1)
    assert q.counts()["group_waiting"] == 4


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


def test_waiting_excludes_active_jobs(q: OwnQueue):
    q.add(*[row("a", "", "{}") for _ in range(30)], quiet=True)
    q.add(*[row("a", "", "{}", lifo=True) for _ in range(10)], quiet=True)
    for i in range(10):
        q.redis("LPUSH", "priority", q.put_job(f"p{i}", priority=1))
    assert len(q.fetch(10)) == 10  # the whole priority list
    assert len(q.fetch(10)) == 10  # LIFO
    assert len(q.fetch(9)) == 9
    q.read_as(NODE_CONSUMER)
    q.add_job(lifo=True)
    q.redis("LPUSH", "priority", "p1", "p2")
    for count in (1, 3, 100):
        assert visit(q, "waiting", count) == [*[str(i) for i in range(11, 31)], "41", "p2", "p1"]
    assert len(visit(q, "active", 4)) == 30
    assert len(set(visit(q, "active", 4))) == 30


def test_members_without_jobs(q: OwnQueue):
    q.redis("ZADD", "failed", START, "gone", START, "foreign")
    q.redis("SET", "job:foreign", "x")
    rows, _ = q.run(page(q.meta, "failed", "", 10, ["name"]))
    assert rows == [["gone", str(START), [False]]]


def test_foreign_entries_are_not_returned(q: OwnQueue):
    q.redis("XADD", "stream", "*", "foreign", "entry")
    q.add_job()
    assert visit(q, "waiting") == ["1"]
    q.read_as(NODE_CONSUMER, 2)
    assert visit(q, "waiting") == []
    assert visit(q, "active") == ["1"]
