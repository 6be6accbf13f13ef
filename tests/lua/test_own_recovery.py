"""Test heartbeat, recover_stalled, reattach and leave."""

from collections.abc import Iterator

import pytest

from tests.inside import RecoverStalledReply, reattach, row
from tests.lua.own_support import Fetched, OwnQueue

LOCK = 30_000


def looks(q: OwnQueue) -> Iterator[RecoverStalledReply]:
    """One look at everything, page by page."""
    cursor = ""
    while True:
        reply = q.recover_stalled(cursor=cursor)
        yield reply
        if not (cursor := reply.cursor):
            return


def test_recovery_reads_one_page_per_call(q: OwnQueue):
    q.add(*[row("a", "", "{}") for _ in range(250)], quiet=True)
    jobs = q.fetch(250)
    for job in jobs:
        if int(job.id) % 2:
            q.let_idle(job.entry, LOCK)
        else:
            q.let_idle(job.entry, 2_000)  # alive, but looked at
    pages = list(looks(q))
    assert [len(page.recovered) for page in pages] == [50, 50, 25]
    assert sorted(int(i) for page in pages for i in page.recovered) == list(range(1, 250, 2))


@pytest.mark.parametrize("lifo", [False, True])
def test_reattach_with_a_full_page_returns_a_cursor(q: OwnQueue, lifo: bool):
    q.add(*[row("a", "", "{}", lifo=lifo) for _ in range(250)], row("a", "", "{}", lifo=not lifo), quiet=True)
    q.fetch(251)
    q.advance(5)
    found: list[Fetched] = []
    cursor, sizes = "", list[int]()
    while cursor or not sizes:
        entries, ids = [job.entry for job in found], [job.id for job in found]
        reply = q.run(reattach(q.meta, "py-1", entries, 100, True, cursor, ids))
        found += [Fetched(job, reply.now) for job in reply.jobs]
        cursor = reply.cursor
        sizes.append(len(reply.jobs))
    assert sorted(int(job.id) for job in found) == list(range(1, 252))
    assert max(sizes) == 100


def ask_lists(q: OwnQueue, *known_ids: str, want: int = 1_000, consumer: str = "py-1") -> list[Fetched]:
    """Everything that pends for a worker that knows its jobs without entries, too."""
    found: list[Fetched] = []
    cursor = ""
    while True:
        known = [*known_ids, *[job.id for job in found]]
        entries = [job.entry for job in found]
        reply = q.run(reattach(q.meta, consumer, entries, want - len(found), False, cursor, known))
        found += [Fetched(job, reply.now) for job in reply.jobs]
        cursor = reply.cursor
        if not cursor:
            return found


def test_reattach_of_list_jobs_is_paged(q: OwnQueue):
    q.add(*[row("a", "", "{}", lifo=True) for _ in range(900)], quiet=True)
    theirs = {job.id for i in range(9) for job in q.fetch(50, f"py-{i % 2 + 1}") if i % 2}
    q.fetch(450)
    q.advance(5)
    back = [job.id for job in ask_lists(q)]
    assert len(back) == len(set(back)) == 700
    assert not theirs & set(back)
