"""Test add: the place and id of a job, and that a rejected row changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from glidemq_py.testing import RespError
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


@pytest.mark.parametrize(
    ("job_id", "following"), [("41", "42"), ("007", "1"), ("9" * 19, "1"), ("123456789012345", "1")]
)
def test_only_a_usable_number_moves_the_counter(q: OwnQueue, job_id: str, following: str):
    assert q.add(row("a", "", "{}", job_id), row("b", "", "{}")) == [job_id, following]
    q.add_job(job_id="7")
    assert q.redis("GET", "id") == str(max(int(following), 7))


def test_issued_id_is_not_that_of_a_later_row(q: OwnQueue):
    rows = [row("a", "1", "{}"), row("b", "2", "{}", "1"), row("c", "3", "{}", "x")]
    assert q.add(*rows) == ["1", ["duplicate", "1"], "x"]
    assert q.job("1")["name"] == "a"


def test_existing_id_is_skipped_by_counter(q: OwnQueue):
    q.put_job("2")
    q.put_job("3")
    ids = q.add(*[row("a", "", "{}") for _ in range(3)])
    assert len(set(ids)) == 3
    assert not {"2", "3"} & set(ids)
    assert [q.state(job_id) for job_id in ids] == ["waiting"] * 3


def test_lost_counter_recovers_in_few_reads(q: OwnQueue):
    q.add(*[row("a", "", "{}") for _ in range(1000)], quiet=True)
    q.redis("DEL", "id")
    before = q.calls("exists")
    job_id = q.add_job()
    after = q.calls("exists")
    assert int(job_id) > 1000
    assert after - before < 20


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


# -- nothing half-present ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("stream", {}),
        ("stream", {"attempts": 2}),
        ("scheduled", {"delay": 5}),
        ("scheduled", {"priority": 5}),
        ("lifo", {"lifo": True}),
        ("id", {}),
    ],
)
def test_foreign_place_fails_add_before_job_exists(q: OwnQueue, suffix: str, options: Any):
    q.redis("SADD", suffix, "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.add_job(**options)
    assert q.key_names() <= {suffix, "id", "meta"}


@pytest.mark.parametrize(("suffix", "options"), [("scheduled", {"delay": 5}), ("lifo", {"lifo": True})])
def test_a_bulk_is_added_whole_or_not_at_all(q: OwnQueue, suffix: str, options: Any):
    q.redis("SADD", suffix, "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.add(row("a", "", "{}"), row("b", "", "{}", **options))
    assert q.key_names() <= {suffix, "id"}


@pytest.mark.parametrize("options", [{}, {"delay": 5}, {"priority": 5}, {"lifo": True}])
def test_foreign_wake_and_events_keys_do_not_undo_add(q: OwnQueue, options: Any):
    q.redis("SADD", "wake", "foreign")
    q.redis("SADD", "events", "foreign")
    assert q.add_job(**options) == "1"
    q.advance(10)
    assert q.take_one().id == "1"


# -- waking ------------------------------------------------------------------------------------------------


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


def test_only_earliest_due_time_of_a_priority_wakes(q: OwnQueue):
    q.add_job(delay=1_000)
    q.add_job(delay=2_000)
    assert q.redis("XLEN", "wake") == 1
    q.add_job(delay=2_000, priority=1)  # a later one in its own band
    assert q.redis("XLEN", "wake") == 2
    q.add_job(delay=500)
    assert q.redis("XLEN", "wake") == 3
