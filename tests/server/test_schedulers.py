"""Schedulers with a clock set by the test: due times, added jobs, and the choice of the firing worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glidemq_py import GlideMQValidationError, JobSpec, Queue, Scheduler, SchedulerBusyError
from glidemq_py._features.schedulers import queue_api as schedulers
from glidemq_py._features.schedulers.entry import PAUSED
from glidemq_py.testing import RespClient
from tests.server.schedules_support import Clockwork

pytestmark = pytest.mark.usefixtures("key_leaks")


FIVE = {"key": "k", "token_bucket": {"capacity": 5, "refill_rate": 1}}


@pytest.fixture
def clock(resp: RespClient, queue_name: str) -> Iterator[Clockwork]:
    work = Clockwork(resp, queue_name)
    yield work
    work.own.delete_everything()


def entry(clock: Clockwork, name: str, home: str = "schedulers") -> dict[str, Any]:
    return dict(json.loads(clock.own.redis("HGET", home, name)))


# -- when ------------------------------------------------------------------------------------------------------


async def test_interval_fires_on_its_grid(clock: Clockwork) -> None:
    start = clock.now
    made = await clock.queue.upsert_job_scheduler("tick", every=1_000)
    assert (made.next_run, made.iteration_count) == (start + 1_000, 0)
    await clock.until(start + 3_500)
    assert clock.instants() == [start + 1_000, start + 2_000, start + 3_000]
    read = await clock.queue.get_job_scheduler("tick")
    assert read is not None
    assert (read.next_run, read.last_run, read.iteration_count) == (start + 4_000, start + 3_000, 3)


async def test_limit_ends_the_scheduler(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("tick", every=1_000, limit=2)
    await clock.until(clock.now + 10_000)
    assert len(clock.jobs()) == 2
    assert await clock.queue.get_job_schedulers() == []
    assert {"schedulers", "schedulers-due", "schedulers-ended"} & clock.own.key_names() == set()


async def test_start_date_and_end_date(clock: Clockwork) -> None:
    start = clock.now
    await clock.queue.upsert_job_scheduler("tick", every=1_000, start_date=start + 500, end_date=start + 2_600)
    await clock.until(start + 10_000)
    assert clock.instants() == [start + 500, start + 1_500, start + 2_500]
    assert await clock.queue.get_job_scheduler("tick") is None


async def test_pattern_with_seconds_and_immediately(clock: Clockwork) -> None:
    start = clock.own.advance(300)
    await clock.queue.upsert_job_scheduler("tick", pattern="*/20 * * * * *", immediately=True)
    await clock.until(start + 45_000)
    assert [at - start for at in clock.instants()] == [0, 19_700, 39_700]


async def test_pattern_fires_across_daylight_saving_changes(clock: Clockwork) -> None:
    start = round(datetime(2027, 3, 25, 12, tzinfo=UTC).timestamp() * 1000)
    clock.own.set_time(start)
    await clock.queue.upsert_job_scheduler("night", pattern="30 2 * * *", tz="Europe/Berlin")
    for _ in range(4):
        made = await clock.queue.get_job_scheduler("night")
        assert made is not None
        assert made.next_run is not None
        clock.own.set_time(made.next_run)
        await clock.fire()
    gaps = [later - earlier for earlier, later in zip(clock.instants(), clock.instants()[1:], strict=False)]
    hour = 3_600_000
    assert gaps == [24 * hour, 23 * hour + hour // 2, 23 * hour + hour // 2]


# -- missed instants -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("misfire", "fired"), [("fire_once", 1), ("fire_all", 250), ("skip", 1)])
async def test_missed_runs_after_a_restart(clock: Clockwork, misfire: Any, fired: int) -> None:
    start = clock.now
    await clock.queue.upsert_job_scheduler("tick", every=1_000, misfire=misfire)
    clock.own.set_time(start + 250_500)  # no worker was running
    duty = clock.another_duty()
    await clock.fire(duty)
    instants = clock.instants()
    assert len(instants) == fired
    if misfire == "fire_all":
        assert instants == [start + 1_000 * i for i in range(1, 251)]
    if misfire == "skip":
        assert instants[0] >= start + 245_500
    read = await clock.queue.get_job_scheduler("tick")
    assert read is not None
    assert read.next_run == start + 251_000


async def test_skip_ignores_old_missed_runs(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("hourly", every=3_600_000, misfire="skip")
    clock.own.advance(2 * 3_600_000 + 6_000)
    await clock.fire()
    assert clock.jobs() == []
    await clock.until(clock.now + 3_600_000)
    assert len(clock.jobs()) == 1


async def test_fire_all_ends_at_its_limit(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("tick", every=1_000, misfire="fire_all", limit=7)
    clock.own.advance(100_000)
    await clock.fire()
    assert len(clock.jobs()) == 7
    assert await clock.queue.get_job_scheduler("tick") is None


# -- repeat after completion -----------------------------------------------------------------------------------


async def test_repeat_after_complete_waits_for_the_last_job(clock: Clockwork) -> None:
    start = clock.now
    await clock.queue.upsert_job_scheduler("crawl", repeat_after_complete=1_000)
    await clock.fire()
    job = clock.own.take_one()
    assert clock.own.job(job.id)["schedulerName"] == "crawl"
    assert [entry.get("plain") for entry in clock.own.entries()] == [None]
    waiting = await clock.queue.get_job_scheduler("crawl")
    assert waiting is not None
    assert (waiting.next_run, waiting.last_job_id) == (None, job.id)
    clock.own.advance(30_000)
    await clock.fire()
    assert len(clock.jobs()) == 1  # it still runs
    clock.own.advance(10)
    clock.own.finish(job.completed())
    clock.own.advance(5)
    await clock.fire()
    again = await clock.queue.get_job_scheduler("crawl")
    assert again is not None
    assert again.next_run == start + 30_010 + 1_000
    await clock.until(again.next_run)
    assert len(clock.jobs()) == 2


async def end_completed(clock: Clockwork) -> None:
    clock.own.finish(clock.own.take_one().completed(keep=1))


async def end_failed(clock: Clockwork) -> None:
    clock.own.finish(clock.own.take_one().failed())


async def end_revoked(clock: Clockwork) -> None:
    (job,) = clock.jobs()
    assert clock.own.fcall("revoke", clock.own.meta, job["id"]) == "revoked"


async def end_removed(clock: Clockwork) -> None:
    (job,) = clock.jobs()
    assert clock.own.fcall("remove", clock.own.meta, job["id"]) == 1


async def end_expired(clock: Clockwork) -> None:
    clock.own.advance(20_000)
    assert clock.own.fetch() == []


@pytest.mark.parametrize("end", [end_completed, end_failed, end_revoked, end_removed, end_expired])
async def test_repeat_after_complete_continues_after_every_outcome(clock: Clockwork, end: Any) -> None:
    """W78: the original waits forever if the job ends outside of its worker's code."""
    await clock.queue.upsert_job_scheduler(
        "crawl", repeat_after_complete=1_000, template=("crawl", None, {"ttl": 10_000})
    )
    await clock.fire()
    await end(clock)
    await clock.until(clock.now + 7_000)
    read = await clock.queue.get_job_scheduler("crawl")
    assert read is not None
    assert read.iteration_count == 2


async def test_retried_job_is_not_complete(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler(
        "crawl", repeat_after_complete=1_000, template=("crawl", None, {"attempts": 2})
    )
    await clock.fire()
    clock.own.finish(clock.own.take_one().failed(limit=2, backoff=60_000))
    await clock.until(clock.now + 30_000)
    assert len(clock.jobs()) == 1


async def test_watchdog_detects_a_lost_notification(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("crawl", repeat_after_complete=1_000)
    await clock.fire()
    (job,) = clock.jobs()
    # As a peer's library ends it if its worker dies before it reports the outcome.
    clock.own.redis("HSET", f"job:{job['id']}", "state", "completed", "finishedOn", clock.now)
    await clock.until(clock.now + 6_000)
    assert len(clock.jobs()) == 2


async def test_deleted_job_added_by_a_node_client(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("crawl", repeat_after_complete=1_000)
    text = entry(clock, "crawl") | {"nextRun": 0, "lastRun": clock.now, "iterationCount": 1}
    clock.own.redis("HSET", "schedulers", "crawl", json.dumps(text))
    await clock.until(clock.now + 12_000)
    assert clock.jobs()


async def test_update_while_waiting_does_not_fire(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("crawl", repeat_after_complete=1_000)
    await clock.fire()
    changed = await clock.queue.upsert_job_scheduler("crawl", repeat_after_complete=1_000, template=("other", 1))
    assert changed.next_run is None
    await clock.until(clock.now + 20_000)
    assert len(clock.jobs()) == 1
    await end_completed(clock)
    await clock.until(clock.now + 1_000)
    assert [job["name"] for job in clock.jobs()] == ["other"]


async def test_new_times_do_not_add_a_second_job(clock: Clockwork) -> None:
    """The scheduler waits for the job that it added, then uses the new times; the count restarts."""
    await clock.queue.upsert_job_scheduler("crawl", repeat_after_complete=1_000, limit=5)
    await clock.fire()
    start = clock.now + 60_000
    changed = await clock.queue.upsert_job_scheduler("crawl", repeat_after_complete=5_000, limit=1, start_date=start)
    assert (changed.next_run, changed.iteration_count) == (None, 0)
    assert changed.last_job_id == clock.jobs()[0]["id"]
    await clock.until(clock.now + 20_000)
    assert len(clock.jobs()) == 1
    await end_completed(clock)
    await clock.until(start - 1)
    assert clock.jobs() == []
    await clock.until(start)
    assert len(clock.jobs()) == 1
    assert await clock.queue.get_job_scheduler("crawl") is None  # that was the one that `limit` allows
    other = await clock.queue.upsert_job_scheduler("crawl", repeat_after_complete=1_000)
    assert other.next_run == clock.now


# -- changing ---------------------------------------------------------------------------------------------------


async def test_same_times_keep_the_state(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("tick", every=1_000)
    await clock.until(clock.now + 2_500)
    before = await clock.queue.get_job_scheduler("tick")
    assert before is not None
    changed = await clock.queue.upsert_job_scheduler(
        "tick", every=1_000, immediately=True, template=("other", {"a": 1})
    )
    assert (changed.next_run, changed.iteration_count, changed.last_run) == (before.next_run, 2, before.last_run)
    assert (changed.job_name, changed.data) == ("other", {"a": 1})
    updated = await clock.queue.upsert_job_scheduler("tick", every=2_000)
    assert (updated.next_run, updated.iteration_count, updated.last_run) == (clock.now + 2_000, 0, None)


async def test_limit_already_reached_is_rejected(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("tick", every=1_000)
    await clock.until(clock.now + 2_500)
    with pytest.raises(GlideMQValidationError) as caught:
        await clock.queue.upsert_job_scheduler("tick", every=1_000, limit=2)
    assert caught.value.option == "limit"


async def test_scheduler_moves_between_shared_and_own_hash(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("tick", pattern="* * * * *")
    await clock.queue.upsert_job_scheduler("tick", pattern="* * * * * *")
    assert clock.own.redis("HKEYS", "schedulers") == []
    assert entry(clock, "tick", "schedulers-own")["pattern"] == "* * * * * *"
    made = await clock.queue.upsert_job_scheduler("tick", pattern="* * * * *")
    assert made.for_peers
    assert clock.own.redis("HKEYS", "schedulers-own") == []
    assert await clock.queue.remove_job_scheduler("tick") is True
    assert await clock.queue.remove_job_scheduler("tick") is False


@pytest.mark.parametrize(
    "options",
    [
        {"pattern": "0 0 * * * *"},
        {"pattern": "0 0 13 * 5", "day_match": "or"},
        {"every": 5, "misfire": "fire_all"},
        {"every": 5, "misfire": "skip"},
        {"every": 5, "template": ("a", 1, {"ordering": {"key": "k"}})},
        {"every": 5, "template": ("a", 1, {"deduplication": {"id": "k"}})},
        {"every": 5, "template": ("a", 1, {"job_id": "k"})},
        {"every": 5, "template": ("a", 1, {"delay": 5})},
    ],
)
async def test_unsupported_features_are_hidden_from_node_clients(clock: Clockwork, options: Any) -> None:
    made = await clock.queue.upsert_job_scheduler("tick", **options)
    assert not made.for_peers
    assert clock.own.redis("EXISTS", "schedulers") == 0
    assert await clock.queue.get_job_scheduler("tick") == made


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"every": 5, "template": ("", 1)}, "name"),
        ({"every": 5, "template": {"nam": "a"}}, "template.nam"),
        ({"every": 5, "template": ("a", object())}, "template.data"),
        ({"every": 5, "template": ("a", "x" * 1_048_577)}, "template.data"),
        ({"every": 5, "template": ("a", 1, {"cost": 1})}, "template.cost"),
        ({"every": 5, "template": ("a", 1, {"lifo": True, "ordering": {"key": "k"}})}, "lifo"),
        ({"every": 5, "template": ("a", 1, {"run_at": datetime(2030, 1, 1, tzinfo=UTC)})}, "template.run_at"),
        ({"every": 5, "template": ("a", 1, {"cost": 6, "ordering": FIVE})}, "template.cost"),
        ({"every": 5, "end_date": 5}, "end_date"),
        ({"pattern": "0 0 31 2 *"}, "pattern"),
    ],
)
async def test_invalid_options_are_rejected_before_any_write(clock: Clockwork, options: Any, named: str) -> None:
    with pytest.raises(GlideMQValidationError) as caught:
        await clock.queue.upsert_job_scheduler("tick", **options)
    assert caught.value.option == named
    assert clock.own.key_names() == set()


@pytest.mark.parametrize("name", ["", "x" * 257, 5, None])
async def test_invalid_names_are_rejected(clock: Clockwork, name: Any) -> None:
    for method in (clock.queue.get_job_scheduler, clock.queue.remove_job_scheduler):
        with pytest.raises(GlideMQValidationError):
            await method(name)
    with pytest.raises(GlideMQValidationError):
        await clock.queue.upsert_job_scheduler(name, every=5)


# -- pausing ----------------------------------------------------------------------------------------------------


async def test_paused_scheduler_adds_no_jobs(clock: Clockwork) -> None:
    made = await clock.queue.upsert_job_scheduler("s", every=60_000)
    paused = await clock.queue.pause_job_scheduler("s")
    assert paused is not None
    assert (paused.paused, paused.paused_since, paused.next_run) == (True, clock.now, None)
    assert paused.preview(1) == []
    assert not paused.for_peers
    assert clock.own.redis("HEXISTS", "schedulers", "s") == 0
    clock.own.advance(600_000)
    await clock.fire()
    assert (await clock.queue.get_job_counts()).waiting == 0
    resumed = await clock.queue.resume_job_scheduler("s")
    assert resumed is not None
    assert (resumed.paused, resumed.paused_since, resumed.for_peers) == (False, None, True)
    assert made.next_run is not None
    assert resumed.next_run == made.next_run + 600_000  # the next due time of its grid: no run is made up
    assert "paused" not in str(entry(clock, "s"))
    await clock.until(resumed.next_run)
    assert (await clock.queue.get_job_counts()).waiting == 1


async def test_pause_and_resume_write_events(clock: Clockwork) -> None:
    def written() -> list[tuple[str, str, str]]:
        entries: Any = clock.own.redis("XRANGE", "events", "-", "+")
        found = [dict(zip(pairs[::2], pairs[1::2], strict=True)) for _, pairs in entries]
        return [(each["event"], each["jobId"], each["scheduler"]) for each in found if "scheduler" in each]

    await clock.queue.upsert_job_scheduler("s", every=60_000)
    await clock.queue.upsert_job_scheduler("s", every=50_000)
    assert written() == []
    await clock.queue.pause_job_scheduler("s")
    await clock.queue.pause_job_scheduler("s")
    assert written() == [("scheduler-paused", "0", "s")]
    await clock.queue.resume_job_scheduler("s")
    await clock.queue.resume_job_scheduler("s")
    assert written()[1:] == [("scheduler-resumed", "0", "s")]


async def test_resume_before_the_next_run_changes_nothing(clock: Clockwork) -> None:
    made = await clock.queue.upsert_job_scheduler("s", pattern="0 3 * * *", tz="Europe/Berlin")
    await clock.queue.pause_job_scheduler("s")
    await clock.queue.pause_job_scheduler("s")
    assert await clock.queue.resume_job_scheduler("s") == made
    assert await clock.queue.resume_job_scheduler("s") == made


@pytest.mark.parametrize(
    ("misfire", "catch_up", "jobs"),
    [
        ("fire_once", None, 0), ("fire_once", False, 0), ("fire_once", True, 1),
        ("fire_all", None, 10), ("fire_all", False, 0), ("fire_all", True, 10),
        ("skip", None, 0), ("skip", True, 0),
    ],
)  # fmt: skip
async def test_runs_missed_by_a_pause(clock: Clockwork, misfire: Any, catch_up: bool | None, jobs: int) -> None:
    await clock.queue.upsert_job_scheduler("s", every=60_000, misfire=misfire)
    await clock.queue.pause_job_scheduler("s")
    clock.own.advance(630_000)
    await clock.queue.resume_job_scheduler("s", catch_up=catch_up)
    await clock.fire()
    assert (await clock.queue.get_job_counts()).waiting == jobs


async def test_update_keeps_the_pause(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("s", every=60_000)
    await clock.queue.pause_job_scheduler("s")
    began = clock.now
    clock.own.advance(1_000)
    same = await clock.queue.upsert_job_scheduler("s", every=60_000, template=("other", 1))
    assert (same.paused, same.paused_since, same.job_name) == (True, began, "other")
    changed = await clock.queue.upsert_job_scheduler("s", every=5_000, immediately=True)
    assert (changed.paused, changed.paused_since, changed.for_peers) == (True, began, False)
    clock.own.advance(100_000)
    await clock.fire()
    assert (await clock.queue.get_job_counts()).waiting == 0
    resumed = await clock.queue.resume_job_scheduler("s")
    assert resumed is not None
    assert resumed.next_run is not None
    assert 0 < resumed.next_run - clock.now <= 5_000


@pytest.mark.parametrize("ends_while_paused", [True, False])
async def test_pause_of_a_scheduler_that_waits_for_its_job(clock: Clockwork, ends_while_paused: bool) -> None:
    await clock.queue.upsert_job_scheduler("s", repeat_after_complete=60_000)
    await clock.fire()
    await clock.queue.pause_job_scheduler("s")
    if ends_while_paused:
        await end_completed(clock)
        ended = clock.now
        await clock.fire()
        clock.own.advance(10_000)
        await clock.fire()
        resumed = await clock.queue.resume_job_scheduler("s")
        assert resumed is not None
        assert resumed.next_run == ended + 60_000
    else:
        resumed = await clock.queue.resume_job_scheduler("s")
        assert resumed is not None
        assert resumed.next_run is None
        await end_completed(clock)
        ended = clock.now
    await clock.fire()
    assert (await clock.queue.get_job_counts()).waiting == 0
    await clock.until(ended + 60_000)
    assert (await clock.queue.get_job_counts()).waiting == 1


async def test_pause_past_the_delay_of_a_repeating_scheduler(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("s", repeat_after_complete=60_000)
    await clock.fire()
    await clock.queue.pause_job_scheduler("s")
    await end_completed(clock)
    await clock.fire()
    clock.own.advance(600_000)
    resumed = await clock.queue.resume_job_scheduler("s")
    assert resumed is not None
    assert resumed.next_run == clock.now
    await clock.fire()
    assert (await clock.queue.get_job_counts()).waiting == 1


async def test_resume_after_the_end_deletes_the_scheduler(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("s", every=60_000, end_date=clock.now + 300_000)
    await clock.queue.pause_job_scheduler("s")
    clock.own.advance(600_000)
    assert await clock.queue.resume_job_scheduler("s") is None
    assert await clock.queue.get_job_scheduler("s") is None


async def test_pause_and_resume_of_a_missing_scheduler(clock: Clockwork) -> None:
    assert await clock.queue.pause_job_scheduler("s") is None
    assert await clock.queue.resume_job_scheduler("s") is None
    with pytest.raises(GlideMQValidationError, match="catch_up"):
        await clock.queue.resume_job_scheduler("s", catch_up="yes")  # type: ignore[arg-type]


async def test_index_of_a_paused_scheduler_is_restored(clock: Clockwork) -> None:
    """A version that cannot pause reads the entries too: it must not find one that is due."""
    await clock.queue.upsert_job_scheduler("s", every=60_000)
    await clock.queue.pause_job_scheduler("s")
    clock.own.redis("DEL", "schedulers-due")
    clock.own.advance(600_000)
    await clock.fire()
    assert int(clock.own.redis("ZSCORE", "schedulers-due", "s")) == PAUSED
    assert entry(clock, "s", "schedulers-own")["nextRun"] == PAUSED
    assert (await clock.queue.get_job_counts()).waiting == 0


# -- last runs --------------------------------------------------------------------------------------------------


async def test_last_runs_are_kept(clock: Clockwork) -> None:
    made = await clock.queue.upsert_job_scheduler("s", every=60_000)
    assert made.last_runs == ()
    assert made.next_run is not None
    for _ in range(25):
        clock.own.advance(60_000)
        await clock.fire()
    found = await clock.queue.get_job_scheduler("s")
    assert found is not None
    assert [at for at, _ in found.last_runs] == [made.next_run + n * 60_000 for n in range(5, 25)]
    assert [job_id for _, job_id in found.last_runs] == [str(n) for n in range(6, 26)]
    changed = await clock.queue.upsert_job_scheduler("s", every=5_000)
    assert changed.last_runs == found.last_runs
    paused = await clock.queue.pause_job_scheduler("s")
    assert paused is not None
    assert paused.last_runs == found.last_runs


async def test_runs_that_add_no_job_are_not_listed(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("s", every=60_000, template=("n", 1, {"job_id": "one"}))
    for _ in range(3):
        clock.own.advance(60_000)
        await clock.fire()
    found = await clock.queue.get_job_scheduler("s")
    assert found is not None
    assert [job_id for _, job_id in found.last_runs] == ["one"]


@pytest.mark.parametrize("runs", [None, 5, "x", [5], [[1]], [["1", "2"]], [[1, 2]], [[1, "2", 3]]])
async def test_invalid_runs_are_skipped(clock: Clockwork, runs: Any) -> None:
    await clock.queue.upsert_job_scheduler("s", every=60_000)
    text = entry(clock, "s") | {"runs": runs}
    clock.own.redis("HSET", "schedulers", "s", json.dumps(text))
    found = await clock.queue.get_job_scheduler("s")
    assert found is not None
    assert found.last_runs == ()
    clock.own.advance(60_000)
    await clock.fire()
    found = await clock.queue.get_job_scheduler("s")
    assert found is not None
    assert len(found.last_runs) == 1


# -- templates --------------------------------------------------------------------------------------------------


async def test_every_option_of_a_template_is_applied(clock: Clockwork) -> None:
    """W79: the original stores ordering, cost, deduplication and compression, and does not go by them."""
    options = {
        "attempts": 4, "backoff": {"type": "exponential", "delay": 50}, "ttl": 60_000, "timeout": 500,
        "ordering": {"key": "k", "concurrency": 2, "token_bucket": {"capacity": 5, "refill_rate": 1}}, "cost": 2,
        "remove_on_complete": 5, "deduplication": {"id": "d", "mode": "simple"}, "delay": 100, "priority": 3,
    }  # fmt: skip
    template = JobSpec("full", {"a": [1, 2.5, None, "žluť"]}, options)
    await clock.queue.upsert_job_scheduler("tick", every=1_000, template=template)
    added = await clock.another_queue(events=True)._connected()
    assert added is not None
    await clock.until(clock.now + 1_000)
    (job,) = clock.jobs()
    by_hand = Clockwork(clock.own.resp, clock.own.base.partition("{")[2].rstrip("}") + "-hand")
    by_hand.own.set_time(clock.now)
    from glidemq_py._core.calls.adding import encode_row

    (job_id,) = by_hand.own.add(encode_row(by_hand.link(), template.name, template.data, template.options))
    hand = by_hand.own.job(job_id)
    assert {key: value for key, value in job.items() if key != "scheduledFor"} == hand
    assert clock.own.redis("HGET", "group:k", "tbCapacity") == "5000"
    # The second run meets the first one, which waits.
    await clock.until(clock.now + 1_000)
    assert len(clock.jobs()) == 1
    by_hand.own.delete_everything()


def test_scheduler_requires_a_queue() -> None:
    with pytest.raises(GlideMQValidationError, match="must be a Queue, not str"):
        Scheduler("reports")  # type: ignore[arg-type]


async def test_without_a_template_a_job_is_named_after_its_scheduler(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("tick", every=1_000)
    await clock.until(clock.now + 1_000)
    (job,) = clock.jobs()
    assert (job["name"], job["data"], job["opts"]) == ("tick", "{}", "{}")


async def test_queue_defaults_and_compression_apply(resp: RespClient, queue_name: str) -> None:
    clock = Clockwork(resp, queue_name, default_job_options={"attempts": 7}, compression="gzip", events=False)
    await clock.queue.upsert_job_scheduler("tick", every=1_000, template=("a", {"b": 1}))
    await clock.until(clock.now + 1_000)
    (job,) = clock.jobs()
    assert (job["maxAttempts"], job["data"][:3]) == ("7", "gz:")
    clock.own.delete_everything()


async def test_data_in_another_serializer(clock: Clockwork) -> None:
    from glidemq_py import MSGPACK_SERIALIZER
    from glidemq_py._core.payload import decode_data

    clock.queue._link = clock.link(serializer=MSGPACK_SERIALIZER)
    made = await clock.queue.upsert_job_scheduler("tick", every=1_000, template=("a", {"b": b"\x00\xff"}))
    assert made.data == {"b": b"\x00\xff"}
    duty = clock.another_duty(serializer=MSGPACK_SERIALIZER)
    clock.own.advance(1_000)
    await clock.fire(duty)
    (job,) = clock.jobs()
    assert decode_data(job["data"], MSGPACK_SERIALIZER) == {"b": b"\x00\xff"}


async def test_job_that_costs_too_much_is_reported(clock: Clockwork) -> None:
    # The group has a bucket that the template does not set.
    await clock.queue.set_group_limits("k", token_bucket={"capacity": 1, "refill_rate": 1})
    template = ("a", None, {"ordering": "k", "cost": 5})
    await clock.queue.upsert_job_scheduler("tick", every=1_000, template=template)
    errors: list[BaseException] = []
    clock.duty._on_error = errors.append
    await clock.until(clock.now + 1_000)
    assert clock.jobs() == []
    assert "token bucket" in str(errors[0])


# -- junk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["junk", "[]", "5", "{}", '{"pattern":"99 * * * *","nextRun":1}', '{"every":-5,"nextRun":1}',
             '{"every":"x","pattern":[],"nextRun":{}}', '{"every":1000,"nextRun":"soon"}']
)  # fmt: skip
async def test_invalid_entry_is_kept_and_skipped(clock: Clockwork, text: str) -> None:
    clock.own.redis("HSET", "schedulers", "junk", text)
    await clock.queue.upsert_job_scheduler("tick", every=1_000)
    await clock.until(clock.now + 2_000)
    assert [job["name"] for job in clock.jobs() if job["name"] == "tick"] == ["tick", "tick"]
    assert clock.own.redis("HEXISTS", "schedulers", "junk") == 1
    assert "tick" in [each.name for each in await clock.queue.get_job_schedulers()]
    assert await clock.queue.remove_job_scheduler("junk") is True


# -- many processes ---------------------------------------------------------------------------------------------


async def test_concurrent_processes_fire_once(clock: Clockwork) -> None:
    """All workers read, compute and fire concurrently, in every order: exactly one adds the job."""
    for name in ("a", "b", "c"):
        await clock.queue.upsert_job_scheduler(name, every=1_000, misfire="fire_all")
    await clock.fire()
    duties = [clock.another_duty() for _ in range(10)]
    for _ in range(20):
        clock.own.advance(1_000)
        clock.own.redis("DEL", "lock:schedules")  # which only spares work
        rows = [await duty._link.transport.call(_due(clock, duty)) for duty in duties if _free(clock)]
        for duty, reply in zip(duties, rows, strict=True):
            await duty._link.transport.call(_fire(clock, duty, reply))
    assert len(clock.jobs()) == 60
    assert len(set(zip([job["name"] for job in clock.jobs()], clock.instants(), strict=True))) == 60


def _free(clock: Clockwork) -> bool:
    clock.own.redis("DEL", "lock:schedules")
    return True


def _due(clock: Clockwork, duty: Any) -> Any:
    from glidemq_py._features.schedulers.entry import schedulers_due

    return schedulers_due(clock.own.meta, duty._holder)


def _fire(clock: Clockwork, duty: Any, reply: Any) -> Any:
    from glidemq_py._features.schedulers.entry import schedulers_fire

    return schedulers_fire(clock.own.meta, duty._holder, [duty._plan(row, reply.now) for row in reply.rows], False)


async def test_leader_fires_and_others_stand_by(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("tick", every=1_000)
    first, second = clock.another_duty(), clock.another_duty()
    clock.own.advance(1_000)
    await clock.fire(first)
    await clock.fire(second)
    assert (first._leads, second._leads) == (True, False)


async def test_entries_of_many_schedulers_are_found_in_pages(clock: Clockwork) -> None:
    start = clock.now
    for i in range(120):
        text = {"every": 60_000, "iterationCount": 0, "nextRun": start + 1_000 + i}
        clock.own.redis("HSET", "schedulers", f"s{i}", json.dumps(text))
    await clock.until(start + 2_000)
    assert len(clock.jobs()) == 120
    assert len(await clock.queue.get_job_schedulers()) == 120


# -- beside a Node peer -------------------------------------------------------------------------------------------


class NodeTick:
    """A peer's tick: under its lock it reads all entries, and adds and writes back in one MULTI."""

    def __init__(self, clock: Clockwork) -> None:
        self.clock = clock
        self.read: dict[str, dict[str, Any]] = {}

    def lock(self) -> bool:
        lock = self.clock.own.redis("SET", "schedulers:lock:__tick__", "0123456789abcdef", "NX", "PX", 5_000)
        return lock == "OK"

    def begin(self) -> None:
        self.read = {k: json.loads(v) for k, v in self.clock.own.resp.hash(self.clock.own.key("schedulers")).items()}

    def commit(self) -> None:
        run, now = self.clock.own.redis, self.clock.now
        for name, found in self.read.items():
            if 0 < found["nextRun"] <= now:
                job_id = self.clock.own.put_job(
                    str(run("INCR", "id")), name=name, by="node", scheduledFor=found["nextRun"]
                )
                self.clock.own.push_entry(job_id, name)
                late = (now - found["nextRun"]) // found["every"] + 1
                again = {"nextRun": found["nextRun"] + late * found["every"], "lastRun": now}
                run(
                    "HSET",
                    "schedulers",
                    name,
                    json.dumps(found | again | {"iterationCount": found["iterationCount"] + 1}),
                )

    def unlock(self) -> None:
        self.clock.own.redis("DEL", "schedulers:lock:__tick__")


async def test_nothing_is_fired_while_a_node_client_holds_the_lock(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("tick", every=1_000)
    node = NodeTick(clock)
    clock.own.advance(1_000)
    assert node.lock()
    node.begin()
    assert await clock.duty.fire() < 100
    assert clock.jobs() == []
    node.commit()
    assert await clock.duty.fire() < 100
    node.unlock()
    await clock.fire()
    assert len(clock.jobs()) == 1


async def test_node_client_takes_the_lock_between_read_and_fire(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("tick", every=1_000)
    clock.own.advance(1_000)
    reply = clock.own.run(_due(clock, clock.duty))
    node = NodeTick(clock)
    node.lock()
    node.begin()
    assert clock.own.run(_fire(clock, clock.duty, reply)).outcomes == ["busy"]
    node.commit()
    node.unlock()
    assert clock.own.run(_fire(clock, clock.duty, reply)).outcomes == ["changed"]
    assert len(clock.jobs()) == 1


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["ours", "lock", "begin", "commit", "unlock", "time"]), min_size=20, max_size=60))
def test_python_and_node_clients_fire_once_in_any_order(clock: Clockwork, steps: list[str]) -> None:
    asyncio.run(_both(clock, steps))


async def _both(clock: Clockwork, steps: list[str]) -> None:
    clock.own.delete_everything()
    clock.own.set_time(1_800_000_000_000)
    await clock.queue.upsert_job_scheduler("tick", every=1_000)
    node, state = NodeTick(clock), "unlock"
    following = {"unlock": "lock", "lock": "begin", "begin": "commit", "commit": "unlock"}
    for step in steps:
        if step == "time":
            clock.own.advance(700)
        elif step == "ours":
            await clock.duty.fire()
        elif following[state] == step:
            getattr(node, step)()
            state = step
    instants = clock.instants()
    assert len(instants) == len(set(instants))


async def test_scheduler_of_a_node_client_is_noticed(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("ours", every=3_600_000)
    await clock.fire()
    at = clock.now + 6_000
    clock.own.redis("HSET", "schedulers", "node", json.dumps({"every": 60_000, "iterationCount": 0, "nextRun": at}))
    await clock.until(at)
    assert [(job["name"], job["scheduledFor"]) for job in clock.jobs()] == [("node", str(at))]


async def test_shared_entry_wins_over_own_entry(clock: Clockwork) -> None:
    await clock.queue.upsert_job_scheduler("tick", pattern="* * * * * *")
    text = {"every": 60_000, "iterationCount": 0, "nextRun": clock.now + 60_000}
    clock.own.redis("HSET", "schedulers", "tick", json.dumps(text))
    read = await clock.queue.get_job_scheduler("tick")
    assert read is not None
    assert read.schedule.every == 60_000
    assert [each.schedule.every for each in await clock.queue.get_job_schedulers()] == [60_000]
    await clock.until(clock.now + 12_000)
    assert clock.own.redis("EXISTS", "schedulers-own") == 0


async def test_held_lock_raises_scheduler_busy_error(clock: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "_TRIES", 3)
    clock.own.redis("SET", "schedulers:lock:__tick__", "theirs", "PX", 60_000)
    with pytest.raises(SchedulerBusyError) as caught:
        await clock.queue.upsert_job_scheduler("tick", every=1_000)
    assert caught.value.name == "tick"
    clock.own.redis("HSET", "schedulers", "tick", json.dumps({"every": 5, "nextRun": 1}))
    with pytest.raises(SchedulerBusyError):
        await clock.queue.remove_job_scheduler("tick")
    clock.own.redis("DEL", "schedulers:lock:__tick__")


async def test_concurrent_updates(clock: Clockwork) -> None:
    """The slower one finds another text, and changes that."""
    one, two = clock.another_queue(), clock.another_queue()
    await asyncio.gather(one.upsert_job_scheduler("tick", every=1_000), two.upsert_job_scheduler("tick", every=2_000))
    assert len(await clock.queue.get_job_schedulers()) == 1


# -- nothing is left ----------------------------------------------------------------------------------------------


async def test_obliterate_deletes_schedulers(url: str, resp: RespClient, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.upsert_job_scheduler("tick", every=1_000, immediately=True)
        await queue.upsert_job_scheduler("own", pattern="* * * * * *")
        await queue.obliterate(force=True)
        assert await queue.get_job_schedulers() == []
    assert resp.keys(f"glide:{{{queue_name}}}:*") == []


async def test_queue_without_schedulers_has_no_keys(clock: Clockwork) -> None:
    assert await clock.fire() == 5_000
    assert clock.own.key_names() == set()
