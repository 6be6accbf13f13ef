"""Test add: the place and id of a job, and that a rejected row changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from glidemq_py._core.calls.adding import row
from glidemq_py.testing import RespError
from tests.lua.own_support import BAND, START, OwnQueue

ROOT = Path(__file__).resolve().parents[2]


def calls(q: OwnQueue, command: str) -> int:
    """Return how often the server has run a command."""
    return int(q.resp.info("commandstats").get(f"cmdstat_{command}", "calls=0").split(",")[0].removeprefix("calls="))


def test_a_plain_job(q: OwnQueue) -> None:
    assert q.add(row("welcome", '{"to":"a"}', '{"attempts":3}', attempts=3)) == ["1"]
    (entry,) = q.redis("XRANGE", "stream", "-", "+")
    assert entry[1] == ["jobId", "1", "name", "welcome", "plain", str(START)]
    assert q.job("1") == {
        "id": "1", "name": "welcome", "data": '{"to":"a"}', "opts": '{"attempts":3}', "timestamp": str(START),
        "attemptsMade": "0", "delay": "0", "priority": "0", "maxAttempts": "3", "state": "waiting",
        "eid": entry[0],
    }  # fmt: skip
    assert q.events() == [{"event": "added", "jobId": "1", "name": "welcome"}]


def test_plain_and_full_add_write_the_same_record(q: OwnQueue) -> None:
    q.add(["a", "1", "{}"])
    q.add(["a", "1", "{}", "", 0, 0, 0, 0, 0])
    short, full = q.job("1"), q.job("2")
    for own in ("id", "eid"):
        assert short.pop(own) != full.pop(own)
    assert short == full


def test_data_may_be_any_text(q: OwnQueue) -> None:
    text = 'ü"\n\u2028\U0001f600' + "x" * 100_000
    q.add_job(data=text)
    assert q.job("1")["data"] == text
    assert q.take_one().fields["data"] == text


def test_ids_are_in_row_order_and_counted_once(q: OwnQueue) -> None:
    rows = [row(f"n{i}", "{}", "{}") for i in range(700)]
    assert q.add(*rows) == [str(i + 1) for i in range(700)]
    assert q.redis("GET", "id") == "700"
    assert [entry["jobId"] for entry in q.entries()] == [str(i + 1) for i in range(700)]


def test_quiet_add_writes_no_event(q: OwnQueue) -> None:
    q.add(row("a", "{}", "{}"), row("b", "{}", "{}", delay=5, priority=1), quiet=True)
    assert q.key_names().isdisjoint({"events"})


def test_custom_id_is_unique(q: OwnQueue) -> None:
    assert q.add(row("a", "1", "{}", "x"), row("b", "2", "{}", "x"), row("c", "3", "{}")) == [
        "x",
        ["duplicate", "x"],
        "1",
    ]
    assert q.job("x")["name"] == "a"
    assert q.counts()["waiting"] == 2


def test_chosen_ids_of_a_bulk_are_looked_up_together(q: OwnQueue) -> None:
    before = calls(q, "exists")
    q.add(*[row("a", "1", "{}", f"id-{n}", attempts=n % 3) for n in range(600)])
    # One call per 500 ids; none if another node of the cluster counts them.
    assert calls(q, "exists") - before in (2, 0)
    lone = q.add_job("a", data="1", job_id="lone", attempts=2)
    fields = [field for field in q.job(lone) if field not in ("id", "eid")]
    for n in (2, 599):
        assert {f: q.job(f"id-{n}")[f] for f in fields} == {f: q.job(lone)[f] for f in fields}
    ids = [entry["jobId"] for entry in q.entries()]
    assert ids == [*(f"id-{n}" for n in range(600)), "lone"]


@pytest.mark.parametrize(
    ("taken", "chosen", "expected"),
    [
        ("b", ["a", "b", "c"], ["a", ["duplicate", "b"], "c"]),
        (None, ["a", "a", "c"], ["a", ["duplicate", "a"], "c"]),
        (None, ["a", "1", "2"], ["a", "1", "2"]),
        ("2", ["1", "2", "3"], ["1", ["duplicate", "2"], "3"]),
    ],
)
def test_chosen_id_is_added_once_in_a_bulk(
    q: OwnQueue, taken: str | None, chosen: list[str], expected: list[Any]
) -> None:
    if taken is not None:
        q.add_job(data="before", job_id=taken)
    assert q.add(*[row("a", "new", "{}", each) for each in chosen]) == expected
    data = [q.job(each)["data"] for each in dict.fromkeys(chosen)]
    assert data == ["before" if each == taken else "new" for each in dict.fromkeys(chosen)]


def test_issued_id_is_not_that_of_a_later_row(q: OwnQueue) -> None:
    assert q.add(row("a", "1", "{}"), row("b", "2", "{}", "1"), row("c", "3", "{}", "x")) == [
        "1", ["duplicate", "1"], "x",
    ]  # fmt: skip
    assert q.job("1")["name"] == "a"


@pytest.mark.parametrize("options", [{"delay": 5}, {"priority": 2}, {"lifo": True}, {"ttl": 5}, {"fair_key": "k"}])
def test_options_of_a_bulk_with_chosen_ids_count(q: OwnQueue, options: dict[str, Any]) -> None:
    q.add(row("a", "1", "{}", "lone", **options))
    q.add(*[row("a", "1", "{}", f"id-{n}", **options) for n in range(2)])
    own = ("id", "eid")
    assert {k: v for k, v in q.job("id-1").items() if k not in own} == {
        k: v for k, v in q.job("lone").items() if k not in own
    }


def test_a_digit_id_moves_the_counter(q: OwnQueue) -> None:
    assert q.add(row("a", "", "{}", "41"), row("b", "", "{}")) == ["41", "42"]
    assert q.add(row("c", "", "{}", "7")) == ["7"]
    assert q.redis("GET", "id") == "42"


@pytest.mark.parametrize("job_id", ["007", "9" * 19, "123456789012345"])
def test_unusable_digit_id_does_not_move_counter(q: OwnQueue, job_id: str) -> None:
    q.add_job(job_id=job_id)
    assert q.add_job() == "1"


def test_existing_id_is_skipped_by_counter(q: OwnQueue) -> None:
    q.put_job("2")
    q.put_job("3")
    ids = q.add(*[row("a", "", "{}") for _ in range(3)])
    assert len(set(ids)) == 3
    assert not {"2", "3"} & set(ids)
    assert [q.state(job_id) for job_id in ids] == ["waiting"] * 3


def test_lost_counter_recovers_in_few_reads(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}") for _ in range(1000)], quiet=True)
    q.redis("DEL", "id")
    before = int(q.resp.info("commandstats").get("cmdstat_exists", "calls=0").split("calls=")[1].split(",")[0])
    job_id = q.add_job()
    after = int(q.resp.info("commandstats").get("cmdstat_exists", "calls=0").split("calls=")[1].split(",")[0])
    assert int(job_id) > 1000
    assert after - before < 20


def test_a_delayed_job(q: OwnQueue) -> None:
    q.add_job(delay=5_000)
    job = q.job("1")
    assert (job["state"], job["delay"]) == ("delayed", "5000")
    assert "eid" not in job
    assert q.redis("ZRANGE", "scheduled", 0, -1, "WITHSCORES") == ["1", str(START + 5_000)]
    assert q.entries() == []


def test_run_at(q: OwnQueue) -> None:
    q.add(["a", "", "{}", "", 0, 0, 0, 0, 0, START + 70], ["b", "", "{}", "", 0, 0, 0, 0, 0, START - 70])
    assert (q.job("1")["state"], q.job("1")["delay"]) == ("delayed", "70")
    assert (q.job("2")["state"], q.job("2")["delay"]) == ("waiting", "0")


def test_a_delayed_priority_job(q: OwnQueue) -> None:
    q.add_job(delay=9, priority=3)
    assert q.job("1")["state"] == "delayed"
    assert int(q.redis("ZSCORE", "scheduled", "1")) == 3 * BAND + START + 9


def test_priorities_keep_their_order_within_a_bulk(q: OwnQueue) -> None:
    ids = q.add(*[row("a", "", "{}", priority=2) for _ in range(25)])
    assert q.job("1")["state"] == "prioritized"
    assert [job.id for job in q.fetch(25)] == ids


def test_priority_jobs_are_due_however_many_there_are(q: OwnQueue) -> None:
    q.redis("HSET", "meta", "priorityClock", START + 10_000_000)
    q.add_job(priority=1)
    assert q.take_one().id == "1"


def test_clock_of_priorities_lags_by_the_documented_time(q: OwnQueue) -> None:
    """So many jobs of one millisecond keep their order; the pages say the same number."""
    lag = 1_048_576
    assert f"G.PRIORITY_CLOCK_LAG_MS = {lag}" in (ROOT / "lua/core/enqueue.lua").read_text(encoding="utf-8")
    for page in ("functions.md", "data-model.md"):
        assert "1,048,576 ms (2^20, 17 minutes)" in (ROOT / "docs/reference" / page).read_text(encoding="utf-8")
    first, second = q.add(*[row("a", "", "{}", priority=2) for _ in range(2)])
    assert int(q.redis("ZSCORE", "scheduled", first)) == 2 * BAND + START - lag
    assert int(q.redis("ZSCORE", "scheduled", second)) == 2 * BAND + START - lag + 1


def test_clock_of_priorities_never_passes_the_server(q: OwnQueue) -> None:
    q.redis("HSET", "meta", "priorityClock", START - 1)
    q.add(*[row("a", "", "{}", priority=2) for _ in range(3)])
    assert q.redis("ZRANGE", "scheduled", 0, -1, "WITHSCORES")[1::2] == [str(2 * BAND + START)] * 3


@pytest.mark.parametrize("junk", ["junk", "nan", "inf", "-5", "1e308"])
def test_unusable_priority_clock_restarts(q: OwnQueue, junk: str) -> None:
    q.redis("HSET", "meta", "priorityClock", junk)
    q.add_job(priority=2)
    assert int(q.redis("ZSCORE", "scheduled", "1")) == 2 * BAND + START - 1_048_576


def test_time_of_a_priority_job_is_never_below_zero(q: OwnQueue) -> None:
    """The band of a score is its priority: a clock that has hardly begun must not lead to the band before it."""
    q.set_time(1000)
    q.add_job(priority=2)
    assert int(q.redis("ZSCORE", "scheduled", "1")) == 2 * BAND + 1


def test_lifo(q: OwnQueue) -> None:
    ids = q.add(*[row("a", "", "{}", lifo=True) for _ in range(3)])
    assert q.job("1")["lifo"] == "1"
    assert q.redis("LRANGE", "lifo", 0, -1) == ids
    assert [job.id for job in q.fetch(3)] == ids[::-1]


def test_ttl(q: OwnQueue) -> None:
    q.add_job(ttl=1_000)
    assert q.job("1")["expireAt"] == str(START + 1_000)


def test_an_empty_bulk(q: OwnQueue) -> None:
    assert q.add() == []
    assert q.key_names() == set()


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
def test_foreign_place_fails_add_before_job_exists(q: OwnQueue, suffix: str, options: dict[str, Any]) -> None:
    q.redis("SADD", suffix, "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.add_job(**options)
    assert q.key_names() <= {suffix, "id", "meta"}


@pytest.mark.parametrize(("suffix", "options"), [("scheduled", {"delay": 5}), ("lifo", {"lifo": True})])
def test_a_bulk_is_added_whole_or_not_at_all(q: OwnQueue, suffix: str, options: dict[str, Any]) -> None:
    q.redis("SADD", suffix, "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.add(row("a", "", "{}"), row("b", "", "{}", **options))
    assert q.key_names() <= {suffix, "id"}


@pytest.mark.parametrize("options", [{}, {"delay": 5}, {"priority": 5}, {"lifo": True}])
def test_foreign_wake_and_events_keys_do_not_undo_add(q: OwnQueue, options: dict[str, Any]) -> None:
    q.redis("SADD", "wake", "foreign")
    q.redis("SADD", "events", "foreign")
    assert q.add_job(**options) == "1"
    q.advance(10)
    assert q.take_one().id == "1"


# -- waking ------------------------------------------------------------------------------------------------


def test_push_outside_stream_adds_marker(q: OwnQueue) -> None:
    q.add_job()
    assert not q.redis("EXISTS", "wake")
    q.add_job(lifo=True)
    q.add_job(priority=1)
    q.add_job(delay=1_000)
    assert q.redis("XLEN", "wake") == 3


def test_only_earliest_due_time_of_a_priority_wakes(q: OwnQueue) -> None:
    q.add_job(delay=1_000)
    q.add_job(delay=2_000)
    assert q.redis("XLEN", "wake") == 1
    q.add_job(delay=2_000, priority=1)  # a later one in its own band
    assert q.redis("XLEN", "wake") == 2
    q.add_job(delay=500)
    assert q.redis("XLEN", "wake") == 3
