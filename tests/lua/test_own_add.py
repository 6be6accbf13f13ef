"""Test add: the place and id of a job, and that a rejected row changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from tests.inside import row
from tests.lua.own_support import BAND, START, OwnQueue

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
    for page in ("functions.md", "data-model.md"):
        assert "1,048,576 ms (2^20, 17 minutes)" in (ROOT / "docs/reference" / page).read_text(encoding="utf-8")


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
