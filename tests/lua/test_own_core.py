"""Functions on jobs: counted commands, loops over pages, and text of the sources; most cases are transcripts."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Ordering
from glidemq_py._features.streams import append as chunk
from glidemq_py.testing import RespError
from tests.inside import administration, changed, row, working
from tests.lua.own_support import BAND, START, Fetched, OwnQueue

ROOT = Path(__file__).resolve().parents[2]


def test_plain_and_full_add_write_the_same_record(q: OwnQueue):
    q.add(["a", "1", "{}"])
    q.add(["a", "1", "{}", "", 0, 0, 0, 0, 0])
    short, full = q.job("1"), q.job("2")
    for own in ("id", "eid"):
        assert short.pop(own) != full.pop(own)
    assert short == full


def test_chosen_ids_of_a_bulk_are_looked_up_together(q: OwnQueue):
    before = q.calls("exists")
    q.add(*[row("a", "1", "{}", f"id-{n}", attempts=n % 3) for n in range(600)])
    # One call per 500 ids; none if another node of the cluster counts them.
    assert q.calls("exists") - before in (2, 0)
    lone = q.add_job("a", data="1", job_id="lone", attempts=2)
    fields = [field for field in q.job(lone) if field not in ("id", "eid")]
    for n in (2, 599):
        assert {f: q.job(f"id-{n}")[f] for f in fields} == {f: q.job(lone)[f] for f in fields}
    ids = [entry["jobId"] for entry in q.entries()]
    assert ids == [*(f"id-{n}" for n in range(600)), "lone"]


def test_documented_lag_of_the_clock_of_priorities():
    """So many jobs of one millisecond keep their order; the pages say the same number."""
    assert f"G.PRIORITY_CLOCK_LAG_MS = {LAG}" in (ROOT / "lua/core/enqueue.lua").read_text(encoding="utf-8")
    for text in ("functions.md", "data-model.md"):
        assert "1,048,576 ms (2^20, 17 minutes)" in (ROOT / "docs/reference" / text).read_text(encoding="utf-8")


LAG = 1_048_576


@pytest.mark.parametrize(
    ("clock", "now", "first"),
    [
        (None, START, START - LAG), (START - 1, START, START), (START + 10_000_000, START, START), (None, 1_000, 1),
        *((junk, START, START - LAG) for junk in ("junk", "nan", "inf", "-5", "1e308")),
    ],
)  # fmt: skip
def test_clock_of_priorities_stays_behind_the_server(q: OwnQueue, clock: object, now: int, first: int):
    """The band of a score is its priority: a time must not lead to the band before it."""
    q.set_time(now)
    if clock is not None:
        q.redis("HSET", "meta", "priorityClock", str(clock))
    ids = q.add(*[row("a", "", "{}", priority=2) for _ in range(3)])
    scores = [int(score) - 2 * BAND for score in q.redis("ZRANGE", "scheduled", 0, -1, "WITHSCORES")[1::2]]
    assert scores == [min(first + number, now) for number in range(3)]
    assert [job.id for job in q.fetch(3)] == ids


@pytest.mark.parametrize(
    ("options", "commands"),
    [
        ({"ttl": 60_000}, 2), ({"delay": 60_000}, 2), ({"run_at": START + 60_000}, 2),
        ({"priority": 7}, 2), ({"lifo": True}, 2), ({"ordering": ["g", 0, 0, 0, 0, 0, 0]}, 2),
        ({"ordering": ["g", 0, 0, 0, 0, 0, 0], "delay": 60_000}, 2), ({"fair_key": "k"}, 2),
    ],
)  # fmt: skip
def test_rows_of_a_bulk_cost_few_commands(q: OwnQueue, options: Any, commands: int):
    """And their records are those of jobs added alone."""
    (lone,) = q.add(row("a", "1", "{}", **options), quiet=True)

    before = q.calls()
    ids = q.add(*[row("a", "1", "{}", **options) for _ in range(500)], quiet=True)
    assert q.calls() - before <= 500 * commands + 100  # markers that wake workers among them
    own = {"id", "eid", "orderingSeq"}
    expected = {field: text for field, text in q.job(lone).items() if field not in own}
    for job_id in (ids[0], ids[-1]):
        assert {field: text for field, text in q.job(job_id).items() if field not in own} == expected


def test_new_keys_of_a_bulk_cost_one_command_at_most(q: OwnQueue):
    def commands(kind: str, *names: str) -> int:
        before = q.calls(*names)
        q.add(*[row("a", "1", "{}", ordering=[f"{kind}-{n}", 0, 0, 0, 0, 0, 0]) for n in range(600)], quiet=True)
        q.add(*[row("a", "1", "{}", fair_key=f"{kind}-{n}") for n in range(600)], quiet=True)
        return q.calls(*names) - before

    assert commands("x", "hmget", "hincrby", "exists", "zrange", "hget") < 30
    assert commands("y", "hset", "zadd") < 600 * (2 + 1) + 600 * (1 + 1) + 30
    assert q.redis("ZCARD", "fair") == q.redis("ZCARD", "fair-keys") == q.redis("HLEN", "ordering") == 1200


LUA = Path(__file__).parents[2] / "lua"


def work(q: OwnQueue, jobs: int):
    """Two events a job, added one by one and completed five at a time, as time goes by."""
    for n in range(1, jobs + 1):
        q.advance(n % 3)
        q.add_job()
        if n % 5 == 0:
            q.finish(*(job.completed() for job in q.fetch(5)))


@pytest.mark.slow
def test_event_retention_can_be_raised(q: OwnQueue):
    assert q.run(administration.set_settings(q.meta, maxLenEvents="3000")) == 1
    q.add(*[row("task", "{}", "{}") for _ in range(900)])
    work(q, 1_500)
    for _ in range(100):
        q.add_job(priority=1)
        q.finish(q.take_one().failed("boom"))
    assert 3_000 <= q.redis("XLEN", "events") <= 3_300
    assert q.run(administration.set_settings(q.meta, maxLenEvents=None)) == 1
    assert q.redis("HGET", "meta", "maxLenEvents") is None
    q.run(administration.pause(q.meta))
    assert q.redis("XLEN", "events") <= 1_100


@pytest.mark.parametrize("kind", ["log", "jstream"])
def test_numbered_append_is_made_once_in_any_order(q: OwnQueue, kind: str):
    q.add_job()

    def append(job: Fetched, number: int) -> working.AttemptStatus:
        token = (job.fence, job.processed_on)
        if kind == "log":
            return q.run(administration.append_job_log(q.meta, "1", str(number), 0, token, str(number)))
        status, entry = q.run(chunk(q.meta, "1", *token, 0, ["n", str(number)], str(number)))
        if status in (working.AttemptStatus.OK, working.AttemptStatus.ALREADY) and str(number) not in old:
            assert q.redis("XRANGE", "jstream:1", entry, entry) == [[entry, ["n", str(number)]]]
        return status

    def appended() -> list[int]:
        if kind == "log":
            return [int(each) for each in q.redis("LRANGE", "log:1", 0, -1)]
        return [int(fields[1]) for _, fields in q.redis("XRANGE", "jstream:1", "-", "+")]

    first = q.take_one()
    sent = [1, *range(65, 1, -1), 70, 68, 100]  # 65 - 2 < 64: all may be in flight together
    old = {"1", *(str(number) for number in range(62, 66))}  # no longer among the newest 64 chunks
    assert {append(first, number) for number in sent} == {working.AttemptStatus.OK}
    assert {append(first, number) for number in sent} == {working.AttemptStatus.ALREADY}
    assert append(first, 67) == working.AttemptStatus.OK  # lost at first
    assert append(first, 67) == working.AttemptStatus.ALREADY
    assert len(q.job("1")["appended"]) < 300
    q.finish(first.released())
    assert append(first, 101) == working.AttemptStatus.STALE
    assert append(q.take_one(), 1) == working.AttemptStatus.OK  # another attempt counts anew
    assert appended() == [*sent, 67, 1]


def test_obliterate_deletes_every_key_even_of_a_foreign_type(q: OwnQueue):
    names = (LUA / "core" / "queue.lua").read_text(encoding="utf-8").partition("SUFFIXES = ")[2].partition("\n\n")[0]
    suffixes = set(re.sub(r"' *\n? *\.\. '|'", "", names).split()) - {"meta"}
    assert len(suffixes) > 50
    for suffix in suffixes:
        q.redis("SET", suffix, "foreign")
    assert q.obliterate()[-1] == ("done", 0)
    assert q.key_names() == set()


def member(key: str = "k", concurrency: int = 1, *, delay: int | bool = False, job_id: str = "") -> list[Any]:
    """Row of a job in a group."""
    ordering = [key, concurrency, 0, 0, 0, 0, 0]
    return ["a", "null", "{}", job_id, delay, 0, 0 if delay else False, 0, 0, False, ordering]


def drain(q: OwnQueue, *, delayed: bool = False, batch: int = 250) -> int:
    deleted, cursor = 0, ""
    for _ in range(1000):
        piece = q.run(administration.drain(q.meta, delayed, cursor, batch, deleted))
        assert piece.deleted <= batch
        deleted, cursor = deleted + piece.deleted, piece.cursor
        if not cursor:
            return deleted
    raise AssertionError("a drain without end")


def test_thousands_of_skip_marks_are_passed(q: OwnQueue):
    """More than one call may consume: the group is come back to."""
    q.add(member("k", delay=50))
    q.add(*[member("k") for _ in range(2500)])
    assert drain(q) == 2500
    q.advance(50)
    first = q.take_one()
    q.add(member("k", job_id="last"))
    q.finish(first.completed())
    fetched = list(itertools.chain.from_iterable(q.fetch(5) for _ in range(5)))
    assert [job.id for job in fetched] == ["last"]


def test_a_drain_ends_beside_a_producer(q: OwnQueue):
    """Jobs added between the calls are after the end position of each phase."""
    cursor, pieces = "", 0
    q.add(*[row("a", "1", "{}") for _ in range(5)])
    while True:
        piece = q.run(administration.drain(q.meta, False, cursor, 2, 0))
        cursor, pieces = piece.cursor, pieces + 1
        if not cursor:
            break
        q.add_job()
        q.add_job(lifo=True)
        q.add_job(priority=1)
        assert pieces < 30


def test_recovery_trims_metrics(q: OwnQueue):
    """Where peers are always the first of a minute (W71)."""
    minute = START - START % 60_000
    fields = [f"m:{minute - n * 60_000}:c" for n in range(3000)]
    q.redis("HSET", "metrics:completed", *(text for field in fields for text in (field, "1")))
    q.recover_stalled()
    assert q.redis("HLEN", "metrics:completed") == 1441
    q.redis("DEL", "lock:recover")


def test_rejections_are_bounded_per_call(q: OwnQueue):
    q.add(*[row("a", "", "{}") for _ in range(250)], quiet=True)
    for i in range(1, 250):
        q.redis("DEL", f"job:{i}")
    reply = q.exchange(1)
    assert reply.jobs == []
    assert not reply.flags  # more may be ready: come again
    dropped = len(reply.dropped)
    assert 100 <= dropped <= 110
    while not reply.jobs:
        reply = q.exchange(1)
        dropped += len(reply.dropped)
    assert (reply.jobs[0][0], dropped) == ("250", 249)


def add_many(q: OwnQueue, count: int):
    q.add(*[row("a", "", "{}") for _ in range(count)], quiet=True)


def test_old_metrics_are_trimmed(q: OwnQueue):
    minute = START - START % 60_000
    day = 86_400_000
    q.redis("HSET", "metrics:completed", f"m:{minute - day - 60_000}:c", 5, f"m:{minute - day - 60_000}:d", 50,
            f"m:{minute - day}:c", 7, "junk", "x")  # fmt: skip
    add_many(q, 2)
    one, two = q.fetch(2)
    q.finish(one.completed())
    q.finish(two.completed())
    assert q.resp.hash(q.key("metrics:completed")) == {f"m:{minute - day}:c": "7", "junk": "x", f"m:{minute}:c": "2"}


def test_unknown_row_kinds(q: OwnQueue):
    add_many(q, 1)
    job = q.take_one()
    with pytest.raises(RespError):
        q.finish(job.completed(), changed(job.released(), kind=99, id="1"))
    assert q.state("1") == "completed"
    assert q.redis("ZCARD", "completed") == 1


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


def visit(q: OwnQueue, state: str, count: int = 7, between: Any = None) -> list[str]:
    """Ids met by going through a state page by page, as often as they are met."""
    found: list[str] = []
    cursor = ""
    for _ in range(1_000):
        rows, cursor = q.run(administration.page(q.meta, state, cursor, count, ["name"]))
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
        cursor, groups = q.run(administration.count_parked(q.meta, cursor))
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
            q.run(administration.remove(q.meta, job_id))
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


LOCK = 30_000


def looks(q: OwnQueue) -> Iterator[working.RecoverStalledReply]:
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
        reply = q.run(working.reattach(q.meta, "py-1", entries, 100, True, cursor, ids))
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
        reply = q.run(working.reattach(q.meta, consumer, entries, want - len(found), False, cursor, known))
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


def grouped(concurrency: int = 1, rate: tuple[int, int] = (0, 0), **options: Any) -> list[object]:
    return row("a", "{}", "{}", ordering=["k", concurrency, *rate, 0, 0, 0], **options)


def exchange(q: OwnQueue, want: int, *finished: Any) -> list[Fetched]:
    reply = q.exchange(want, finished)
    return [Fetched(job, reply.now) for job in reply.jobs]


@pytest.mark.parametrize("lost", [128, 129, 1_500])
def test_group_continues_after_many_lost_turns(q: OwnQueue, lost: int):
    """W13: after 128 skipped jobs at once it stopped until the next request."""
    q.add(grouped())
    (first,) = exchange(q, 1)
    for _ in range(lost // 100 + 1):
        q.add(*(grouped(delay=90_000) for _ in range(100)))
    gone = lost // 100 * 100 + 100
    q.add(grouped())
    assert exchange(q, 10) == []  # parked: the others have their turn before it
    for number in range(2, gone + 2):
        q.run(administration.remove(q.meta, str(number)))
    ran: list[str] = []
    finished = [first.completed()]
    for _ in range(4):
        jobs = exchange(q, 5, *finished)
        ran += [job.id for job in jobs]
        finished = [job.completed() for job in jobs]
        q.advance(1_000)
    assert ran == [str(gone + 2)]
