"""Schedulers: due times by a clock that the test sets, pauses, templates, and the workers that fire them."""

import asyncio
import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, JobScheduler, JobSpec, Scheduler
from tests.contract.api import Queue, QueueEvents
from tests.contract.observe import Clockwork, Raw
from tests.server.worker_support import WorkerFor

HOUR = 3_600_000


async def read(clock: Clockwork, name: str = "tick") -> JobScheduler:
    found = await clock.queue.get_job_scheduler(name)
    assert found is not None
    return found


async def waiting(clock: Clockwork) -> int:
    return (await clock.queue.get_job_counts()).waiting


async def end_completed(queue: Queue, job: Job):
    (lease,) = await queue.fetch()
    await lease.complete()


async def end_failed(queue: Queue, job: Job):
    (lease,) = await queue.fetch()
    await lease.fail("boom")


async def end_revoked(queue: Queue, job: Job):
    assert await queue.revoke(job.id) == "revoked"


async def end_removed(queue: Queue, job: Job):
    assert await queue.remove(job.id)


# -- when ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ({"every": 1_000}, [1_000, 2_000, 3_000]),
        ({"every": 1_000, "limit": 2}, [1_000, 2_000]),
        ({"every": 1_000, "start": 500, "end": 2_600}, [500, 1_500, 2_500]),
        ({"pattern": "*/2 * * * * *", "immediately": True}, [0, 1_700]),
    ],
)
async def test_due_times(clockwork: Clockwork, options: Any, at: list[int]):
    if "pattern" in options:
        clockwork.advance(300)
    start = clockwork.now
    times = {f"{name}_date": start + options[name] for name in ("start", "end") if name in options}
    made = await clockwork.queue.upsert_job_scheduler(
        "tick", **{name: value for name, value in options.items() if name not in ("start", "end")}, **times
    )
    assert (made.next_run, made.iteration_count) == (start + at[0], 0)
    await clockwork.until(start + 3_600)
    assert await clockwork.instants() == [start + each for each in at]
    found = await clockwork.queue.get_job_scheduler("tick")
    if "limit" in options or "end" in options:
        assert found is None
    else:
        assert found is not None
        assert (found.last_run, found.iteration_count) == (start + at[-1], len(at))


async def test_pattern_fires_across_daylight_saving_changes(clockwork: Clockwork):
    clockwork.set(round(datetime(2027, 3, 25, 12, tzinfo=UTC).timestamp() * 1000))
    await clockwork.queue.upsert_job_scheduler("tick", pattern="30 2 * * *", tz="Europe/Berlin")
    for _ in range(4):
        next_run = (await read(clockwork)).next_run
        assert next_run is not None
        clockwork.set(next_run)
        await clockwork.fire()
    at = await clockwork.instants()
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert gaps == [24 * HOUR, 23 * HOUR + HOUR // 2, 23 * HOUR + HOUR // 2]


@pytest.mark.parametrize(("misfire", "fired"), [("fire_once", 1), ("fire_all", 250), ("skip", 1)])
async def test_missed_runs_after_a_restart(clockwork: Clockwork, misfire: Any, fired: int):
    start = clockwork.now
    await clockwork.queue.upsert_job_scheduler("tick", every=1_000, misfire=misfire)
    clockwork.set(start + 250_500)  # no worker was running
    await clockwork.fire()
    instants = await clockwork.instants()
    assert len(instants) == fired
    if misfire == "fire_all":
        assert sorted(instants) == [start + 1_000 * i for i in range(1, 251)]
    if misfire == "skip":
        assert instants[0] >= start + 245_500
    assert (await read(clockwork)).next_run == start + 251_000


async def test_skip_ignores_old_missed_runs(clockwork: Clockwork):
    await clockwork.queue.upsert_job_scheduler("tick", every=HOUR, misfire="skip")
    clockwork.advance(2 * HOUR + 6_000)
    await clockwork.fire()
    assert await clockwork.jobs() == []
    await clockwork.until(clockwork.now + HOUR)
    assert len(await clockwork.jobs()) == 1


async def test_fire_all_ends_at_its_limit(clockwork: Clockwork):
    await clockwork.queue.upsert_job_scheduler("tick", every=1_000, misfire="fire_all", limit=7)
    clockwork.advance(100_000)
    await clockwork.fire()
    assert len(await clockwork.jobs()) == 7
    assert await clockwork.queue.get_job_scheduler("tick") is None


# -- repeat after completion -----------------------------------------------------------------------------------


async def test_repeat_after_complete_waits_for_the_last_job(clockwork: Clockwork):
    queue, start = clockwork.queue, clockwork.now
    await queue.upsert_job_scheduler("tick", repeat_after_complete=1_000)
    await clockwork.fire()
    (lease,) = await queue.fetch(lock_duration=60_000)
    found = await read(clockwork)
    assert (found.next_run, found.last_job_id) == (None, lease.id)
    clockwork.advance(30_000)
    await clockwork.fire()
    assert len(await clockwork.jobs()) == 1  # it still runs
    clockwork.advance(10)
    await lease.complete()
    clockwork.advance(5)
    await clockwork.fire()
    assert (await read(clockwork)).next_run == start + 30_010 + 1_000
    await clockwork.until(start + 30_010 + 1_000)
    assert len(await clockwork.jobs()) == 2


async def end_expired(queue: Queue, job: Job):
    assert await queue.fetch() == []


@pytest.mark.parametrize("end", [end_completed, end_failed, end_revoked, end_removed, end_expired])
async def test_repeat_after_complete_continues_after_every_outcome(clockwork: Clockwork, end: Any):
    """W78: the original waits forever if the job ends outside of its worker's code."""
    template: Any = ("tick", None, {"ttl": 10_000})
    await clockwork.queue.upsert_job_scheduler("tick", repeat_after_complete=1_000, template=template)
    await clockwork.fire()
    if end is end_expired:
        clockwork.advance(20_000)
    await end(clockwork.queue, *await clockwork.jobs())
    await clockwork.until(clockwork.now + 7_000)
    assert (await read(clockwork)).iteration_count == 2


async def test_retried_job_is_not_complete(clockwork: Clockwork):
    template: Any = ("tick", None, {"attempts": 2, "backoff": 60_000})
    await clockwork.queue.upsert_job_scheduler("tick", repeat_after_complete=1_000, template=template)
    await clockwork.fire()
    await end_failed(clockwork.queue, *await clockwork.jobs())
    await clockwork.until(clockwork.now + 30_000)
    assert len(await clockwork.jobs()) == 1


@pytest.mark.parametrize("is_lost", [True, False], ids=["its notification is lost", "a Node client added it"])
async def test_watchdog_finds_that_the_job_has_ended(clockwork: Clockwork, raw: Raw, is_lost: bool):
    await clockwork.queue.upsert_job_scheduler("tick", repeat_after_complete=1_000)
    if is_lost:
        await clockwork.fire()
        (job,) = await clockwork.jobs()
        # As a peer's library ends it if its worker dies before it reports the outcome.
        raw.run("HSET", f"job:{job.id}", "state", "completed", "finishedOn", clockwork.now)
    else:
        entry = clockwork.stored("tick")
        assert entry is not None
        clockwork.store("tick", entry | {"nextRun": 0, "lastRun": clockwork.now, "iterationCount": 1})
    await clockwork.until(clockwork.now + 12_000)
    assert len(await clockwork.jobs()) == 1 + is_lost
    await clockwork.queue.obliterate(force=True)


async def test_update_while_waiting_does_not_fire(clockwork: Clockwork):
    await clockwork.queue.upsert_job_scheduler("tick", repeat_after_complete=1_000)
    await clockwork.fire()
    other: Any = ("other", 1)
    changed = await clockwork.queue.upsert_job_scheduler("tick", repeat_after_complete=1_000, template=other)
    assert changed.next_run is None
    await clockwork.until(clockwork.now + 20_000)
    (job,) = await clockwork.jobs()
    await end_completed(clockwork.queue, job)
    await clockwork.until(clockwork.now + 1_000)
    assert sorted(each.name for each in await clockwork.jobs()) == ["other", "tick"]


async def test_new_times_do_not_add_a_second_job(clockwork: Clockwork):
    """The scheduler waits for the job that it added, then uses the new times; the count restarts."""
    queue = clockwork.queue
    await queue.upsert_job_scheduler("tick", repeat_after_complete=1_000, limit=5)
    await clockwork.fire()
    start = clockwork.now + 60_000
    (job,) = await clockwork.jobs()
    changed = await queue.upsert_job_scheduler("tick", repeat_after_complete=5_000, limit=1, start_date=start)
    assert (changed.next_run, changed.iteration_count, changed.last_job_id) == (None, 0, job.id)
    await clockwork.until(clockwork.now + 20_000)
    assert len(await clockwork.jobs()) == 1
    await end_completed(queue, job)
    await clockwork.until(start - 1)
    assert len(await clockwork.jobs()) == 1
    await clockwork.until(start)
    assert len(await clockwork.jobs()) == 2
    assert await queue.get_job_scheduler("tick") is None  # that was the one that `limit` allows
    assert (await queue.upsert_job_scheduler("tick", repeat_after_complete=1_000)).next_run == clockwork.now


# -- changing ---------------------------------------------------------------------------------------------------


async def test_same_times_keep_the_state(clockwork: Clockwork):
    queue = clockwork.queue
    await queue.upsert_job_scheduler("tick", every=1_000)
    await clockwork.until(clockwork.now + 2_500)
    before = await read(clockwork)
    other: Any = ("other", {"a": 1})
    changed = await queue.upsert_job_scheduler("tick", every=1_000, immediately=True, template=other)
    assert (changed.next_run, changed.iteration_count, changed.last_run) == (before.next_run, 2, before.last_run)
    assert (changed.job_name, changed.data) == ("other", {"a": 1})
    with pytest.raises(GlideMQValidationError) as caught:
        await queue.upsert_job_scheduler("tick", every=1_000, limit=2)
    assert caught.value.option == "limit"
    updated = await queue.upsert_job_scheduler("tick", every=2_000)
    assert (updated.next_run, updated.iteration_count, updated.last_run) == (clockwork.now + 2_000, 0, None)


async def test_scheduler_moves_between_shared_and_own_hash(clockwork: Clockwork):
    queue = clockwork.queue
    await queue.upsert_job_scheduler("tick", pattern="* * * * *")
    await queue.upsert_job_scheduler("tick", pattern="* * * * * *")
    own = clockwork.stored("tick", "schedulers-own")
    assert own is not None
    assert (clockwork.stored("tick"), own["pattern"]) == (None, "* * * * * *")
    assert (await queue.upsert_job_scheduler("tick", pattern="* * * * *")).for_peers
    assert clockwork.stored("tick", "schedulers-own") is None
    assert await queue.remove_job_scheduler("tick") is True
    assert await queue.remove_job_scheduler("tick") is False


ORDERED = {"ordering": {"key": "k"}}


@pytest.mark.parametrize(
    "options",
    [
        {"pattern": "0 0 * * * *"},
        {"pattern": "0 0 13 * 5", "day_match": "or"},
        {"every": 5, "misfire": "fire_all"},
        {"every": 5, "misfire": "skip"},
        *({"every": 5, "template": ("a", 1, each)} for each in (ORDERED, {"deduplication": {"id": "k"}}, {"delay": 5})),
    ],
)
async def test_unsupported_features_are_hidden_from_node_clients(kind: str, clockwork: Clockwork, options: Any):
    if kind == "partitioned" and "template" in options and "delay" not in options["template"][2]:
        with pytest.raises(GlideMQValidationError):  # the option chooses a partition
            await clockwork.queue.upsert_job_scheduler("tick", **options)
        return
    made = await clockwork.queue.upsert_job_scheduler("tick", **options)
    assert not made.for_peers
    assert clockwork.stored("tick") is None
    assert await clockwork.queue.get_job_scheduler("tick") == made


FIVE = {"key": "k", "token_bucket": {"capacity": 5, "refill_rate": 1}}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"every": 5, "template": ("", 1)}, "template.name"),
        ({"every": 5, "template": {"nam": "a"}}, "template.nam"),
        ({"every": 5, "template": ("a", object())}, "template.data"),
        ({"every": 5, "template": ("a", "x" * 1_048_577)}, "template.data"),
        ({"every": 5, "template": ("a", 1, {"cost": 1})}, "template.cost"),
        ({"every": 5, "template": ("a", 1, {"lifo": True, "ordering": {"key": "k"}})}, "template.lifo"),
        ({"every": 5, "template": ("a", 1, {"run_at": datetime(2030, 1, 1, tzinfo=UTC)})}, "template.run_at"),
        pytest.param(
            {"every": 5, "template": ("a", 1, {"cost": 6, "ordering": FIVE})},
            "template.cost",
            marks=pytest.mark.exclude("partitioned", reason="jobs of its schedulers have no ordering"),
        ),
        ({"every": 5, "end_date": 5}, "end_date"),
        ({"pattern": "0 0 31 2 *"}, "pattern"),
    ],
)
async def test_invalid_options_are_rejected(queue: Queue, options: Any, named: str):
    with pytest.raises(GlideMQValidationError) as caught:
        await queue.upsert_job_scheduler("tick", **options)
    assert caught.value.option == named
    assert await queue.get_job_schedulers() == []


@pytest.mark.parametrize("name", ["", "x" * 257, 5, None])
async def test_invalid_names_are_rejected(queue: Queue, name: Any):
    for method in (queue.get_job_scheduler, queue.remove_job_scheduler):
        with pytest.raises(GlideMQValidationError):
            await method(name)
    with pytest.raises(GlideMQValidationError):
        await queue.upsert_job_scheduler(name, every=5)


# -- pausing ----------------------------------------------------------------------------------------------------


async def test_paused_scheduler_adds_no_jobs(clockwork: Clockwork):
    queue = clockwork.queue
    made = await queue.upsert_job_scheduler("tick", every=60_000)
    for _ in range(2):
        paused = await queue.pause_job_scheduler("tick")
        assert paused is not None
        assert (paused.paused, paused.paused_since, paused.next_run) == (True, clockwork.now, None)
        assert (paused.preview(1), paused.for_peers) == ([], False)
    assert clockwork.stored("tick") is None
    clockwork.advance(600_000)
    await clockwork.fire()
    assert await waiting(clockwork) == 0
    resumed = await queue.resume_job_scheduler("tick")
    assert resumed is not None
    assert (resumed.paused, resumed.paused_since, resumed.for_peers) == (False, None, True)
    assert made.next_run is not None
    assert resumed.next_run == made.next_run + 600_000  # the next due time of its grid: no run is made up
    assert "paused" not in str(clockwork.stored("tick"))
    await clockwork.until(resumed.next_run)
    assert await waiting(clockwork) == 1


async def test_resume_before_the_next_run_changes_nothing(clockwork: Clockwork):
    made = await clockwork.queue.upsert_job_scheduler("tick", pattern="0 3 * * *", tz="Europe/Berlin")
    await clockwork.queue.pause_job_scheduler("tick")
    for _ in range(2):
        assert await clockwork.queue.resume_job_scheduler("tick") == made


@pytest.mark.parametrize(
    ("misfire", "catch_up", "jobs"),
    [
        ("fire_once", None, 0), ("fire_once", False, 0), ("fire_once", True, 1),
        ("fire_all", None, 10), ("fire_all", False, 0), ("fire_all", True, 10),
        ("skip", None, 0), ("skip", True, 0),
    ],
)  # fmt: skip
async def test_runs_missed_by_a_pause(clockwork: Clockwork, misfire: Any, catch_up: bool | None, jobs: int):
    await clockwork.queue.upsert_job_scheduler("tick", every=60_000, misfire=misfire)
    await clockwork.queue.pause_job_scheduler("tick")
    clockwork.advance(630_000)
    await clockwork.queue.resume_job_scheduler("tick", catch_up=catch_up)
    await clockwork.fire()
    assert await waiting(clockwork) == jobs


async def test_update_keeps_the_pause(clockwork: Clockwork):
    queue = clockwork.queue
    await queue.upsert_job_scheduler("tick", every=60_000)
    await queue.pause_job_scheduler("tick")
    began = clockwork.now
    clockwork.advance(1_000)
    other: Any = ("other", 1)
    same = await queue.upsert_job_scheduler("tick", every=60_000, template=other)
    assert (same.paused, same.paused_since, same.job_name) == (True, began, "other")
    changed = await queue.upsert_job_scheduler("tick", every=5_000, immediately=True)
    assert (changed.paused, changed.paused_since, changed.for_peers) == (True, began, False)
    clockwork.advance(100_000)
    await clockwork.fire()
    assert await waiting(clockwork) == 0
    resumed = await queue.resume_job_scheduler("tick")
    assert resumed is not None
    assert resumed.next_run is not None
    assert 0 < resumed.next_run - clockwork.now <= 5_000


@pytest.mark.parametrize("ends_while_paused", [True, False])
async def test_pause_of_a_scheduler_that_waits_for_its_job(clockwork: Clockwork, ends_while_paused: bool):
    queue = clockwork.queue
    await queue.upsert_job_scheduler("tick", repeat_after_complete=60_000)
    await clockwork.fire()
    (job,) = await clockwork.jobs()
    await queue.pause_job_scheduler("tick")
    if ends_while_paused:
        await end_completed(queue, job)
        await clockwork.fire()
    ended = clockwork.now
    clockwork.advance(10_000 if ends_while_paused else 0)
    resumed = await queue.resume_job_scheduler("tick")
    assert resumed is not None
    assert resumed.next_run == (ended + 60_000 if ends_while_paused else None)
    if not ends_while_paused:
        await end_completed(queue, job)
    await clockwork.fire()
    assert await waiting(clockwork) == 0
    await clockwork.until(ended + 60_000)
    assert await waiting(clockwork) == 1


async def test_pause_past_the_delay_of_a_repeating_scheduler(clockwork: Clockwork):
    await clockwork.queue.upsert_job_scheduler("tick", repeat_after_complete=60_000)
    await clockwork.fire()
    await clockwork.queue.pause_job_scheduler("tick")
    await end_completed(clockwork.queue, *await clockwork.jobs())
    await clockwork.fire()
    clockwork.advance(600_000)
    resumed = await clockwork.queue.resume_job_scheduler("tick")
    assert resumed is not None
    assert resumed.next_run == clockwork.now
    await clockwork.fire()
    assert await waiting(clockwork) == 1


async def test_resume_after_the_end_deletes_the_scheduler(clockwork: Clockwork):
    await clockwork.queue.upsert_job_scheduler("tick", every=60_000, end_date=clockwork.now + 300_000)
    await clockwork.queue.pause_job_scheduler("tick")
    clockwork.advance(600_000)
    assert await clockwork.queue.resume_job_scheduler("tick") is None
    assert await clockwork.queue.get_job_scheduler("tick") is None


async def test_pause_and_resume_of_a_missing_scheduler(queue: Queue):
    assert await queue.pause_job_scheduler("tick") is None
    assert await queue.resume_job_scheduler("tick") is None
    with pytest.raises(GlideMQValidationError, match="catch_up"):
        await queue.resume_job_scheduler("tick", catch_up="yes")  # type: ignore[arg-type]


# -- last runs --------------------------------------------------------------------------------------------------


async def test_last_runs_are_kept(clockwork: Clockwork):
    queue = clockwork.queue
    made = await queue.upsert_job_scheduler("tick", every=60_000)
    assert made.last_runs == ()
    assert made.next_run is not None
    await clockwork.until(clockwork.now + 25 * 60_000)
    found = await read(clockwork)
    assert [at for at, _ in found.last_runs] == [made.next_run + n * 60_000 for n in range(5, 25)]
    assert {job_id for _, job_id in found.last_runs} <= {job.id for job in await clockwork.jobs()}
    changed = await queue.upsert_job_scheduler("tick", every=5_000)
    assert changed.last_runs == found.last_runs
    paused = await queue.pause_job_scheduler("tick")
    assert paused is not None
    assert paused.last_runs == found.last_runs


@pytest.mark.parametrize("runs", [None, 5, "x", [5], [[1]], [["1", "2"]], [[1, 2]], [[1, "2", 3]]])
async def test_invalid_runs_are_skipped(clockwork: Clockwork, runs: Any):
    await clockwork.queue.upsert_job_scheduler("tick", every=60_000)
    entry = clockwork.stored("tick")
    assert entry is not None
    clockwork.store("tick", entry | {"runs": runs})
    assert (await read(clockwork)).last_runs == ()
    clockwork.advance(60_000)
    await clockwork.fire()
    assert len((await read(clockwork)).last_runs) == 1


# -- templates --------------------------------------------------------------------------------------------------


@pytest.mark.exclude("partitioned", reason="templates choose no partition")
async def test_every_option_of_a_template_is_applied(clockwork: Clockwork, url: Any):
    """W79: the original stores ordering, cost, deduplication and compression, and does not go by them."""
    options: Any = {
        "attempts": 4, "backoff": {"type": "exponential", "delay": 50}, "ttl": 60_000, "timeout": 500,
        "ordering": {"key": "k", "concurrency": 2, "token_bucket": {"capacity": 5, "refill_rate": 1}}, "cost": 2,
        "remove_on_complete": 5, "deduplication": {"id": "d", "mode": "simple"}, "delay": 100, "priority": 3,
    }  # fmt: skip
    template = JobSpec("full", {"a": [1, 2.5, None, "žluť"]}, options)
    await clockwork.queue.upsert_job_scheduler("tick", every=1_000, template=template)
    await clockwork.until(clockwork.now + 1_000)
    (job,) = await clockwork.jobs()
    async with Queue(f"{clockwork.queue.name}-hand", url) as other:
        hand = await other.add(template.name, template.data, **options)
        (by_hand,) = await other.get_jobs("delayed")
        assert by_hand.id == hand.id
        for name in ("name", "data", "opts", "priority", "delay", "state"):
            assert getattr(job, name) == getattr(by_hand, name), name
        await other.obliterate()
    group = await clockwork.queue.get_group("k")
    assert group is not None
    assert group.limits.token_bucket is not None
    assert group.limits.token_bucket.capacity == 5
    await clockwork.until(clockwork.now + 1_000)  # the second run meets the first one, which waits
    assert (await clockwork.queue.get_job_counts()).unfinished == 1


async def test_runs_that_add_no_job_are_not_listed(clockwork: Clockwork, kind: str):
    template: Any = ("n", 1, {"job_id": "one"})
    if kind == "partitioned":
        with pytest.raises(GlideMQValidationError):
            await clockwork.queue.upsert_job_scheduler("tick", every=60_000, template=template)
        return
    await clockwork.queue.upsert_job_scheduler("tick", every=60_000, template=template)
    await clockwork.until(clockwork.now + 180_000)
    assert [job_id for _, job_id in (await read(clockwork)).last_runs] == ["one"]


def test_scheduler_requires_a_queue():
    with pytest.raises(GlideMQValidationError, match="must be a Queue, not str"):
        Scheduler("reports")  # type: ignore[arg-type]


async def test_without_a_template_a_job_is_named_after_its_scheduler(clockwork: Clockwork):
    await clockwork.queue.upsert_job_scheduler("tick", every=1_000)
    await clockwork.until(clockwork.now + 1_000)
    (job,) = await clockwork.jobs()
    assert (job.name, job.data, job.opts) == ("tick", {}, {})


async def test_queue_defaults_and_compression_apply(clockwork: Clockwork, raw: Raw, url: Any):
    async with Queue(clockwork.queue.name, url, default_job_options={"attempts": 7}, compression="gzip") as other:
        await other.upsert_job_scheduler("tick", every=1_000, template=("a", {"b": 1}))
    await clockwork.until(clockwork.now + 1_000)
    (job,) = await clockwork.jobs()
    assert (job.opts["attempts"], raw.job(job.id)["data"][:3]) == (7, "gz:")


@pytest.mark.exclude("partitioned", reason="templates choose no partition")
async def test_job_that_costs_too_much_is_logged(clockwork: Clockwork, caplog: pytest.LogCaptureFixture):
    """The group has a bucket that the template does not set."""
    await clockwork.queue.set_group_limits("k", token_bucket={"capacity": 1, "refill_rate": 1})
    template: Any = ("a", None, {"ordering": "k", "cost": 5})
    await clockwork.queue.upsert_job_scheduler("tick", every=1_000, template=template)
    await clockwork.until(clockwork.now + 1_000)
    assert await clockwork.jobs() == []
    assert "firing scheduler 'tick' failed" in caplog.text
    assert "token bucket" in caplog.text


# -- entries of others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["junk", "[]", "5", "{}", '{"pattern":"99 * * * *","nextRun":1}', '{"every":-5,"nextRun":1}',
             '{"every":"x","pattern":[],"nextRun":{}}', '{"every":1000,"nextRun":"soon"}']
)  # fmt: skip
async def test_invalid_entry_is_kept_and_skipped(clockwork: Clockwork, text: str, caplog: pytest.LogCaptureFixture):
    queue = clockwork.queue
    clockwork.store("junk", text)
    await queue.upsert_job_scheduler("tick", every=1_000)
    await clockwork.until(clockwork.now + 2_000)
    assert [job.name for job in await clockwork.jobs() if job.name == "tick"] == ["tick", "tick"]
    for _ in range(2):
        listed = [each.name for each in await queue.get_job_schedulers()]
        assert "tick" in listed
    assert caplog.text.count("scheduler 'junk' is not listed, its entry cannot be read: ") == ("junk" not in listed)
    assert await queue.remove_job_scheduler("junk") is True


async def test_entries_of_many_schedulers_are_found_in_pages(clockwork: Clockwork):
    start = clockwork.now
    for i in range(120):
        clockwork.store(f"s{i}", {"every": 60_000, "iterationCount": 0, "nextRun": start + 1_000 + i})
    await clockwork.until(start + 2_000)
    assert len(await clockwork.jobs()) == 120
    assert len(await clockwork.queue.get_job_schedulers()) == 120


async def test_scheduler_of_a_node_client_is_noticed(clockwork: Clockwork):
    await clockwork.queue.upsert_job_scheduler("tick", every=HOUR)
    await clockwork.fire()
    at = clockwork.now + 6_000
    clockwork.store("node", {"every": 60_000, "iterationCount": 0, "nextRun": at})
    await clockwork.until(at)
    assert ([job.name for job in await clockwork.jobs()], await clockwork.instants()) == (["node"], [at])


async def test_shared_entry_wins_over_own_entry(clockwork: Clockwork):
    await clockwork.queue.upsert_job_scheduler("tick", pattern="* * * * * *")
    clockwork.store("tick", {"every": 60_000, "iterationCount": 0, "nextRun": clockwork.now + 60_000})
    assert (await read(clockwork)).schedule.every == 60_000
    assert [each.schedule.every for each in await clockwork.queue.get_job_schedulers()] == [60_000]
    await clockwork.until(clockwork.now + 12_000)
    assert clockwork.stored("tick", "schedulers-own") is None


async def test_concurrent_updates(queue: Queue, url: Any):
    """The slower one finds another text, and changes that."""
    async with Queue(queue.name, url) as other:
        await asyncio.gather(
            queue.upsert_job_scheduler("tick", every=HOUR), other.upsert_job_scheduler("tick", every=2 * HOUR)
        )
    assert len(await queue.get_job_schedulers()) == 1


async def test_obliterate_deletes_schedulers(queue: Queue, raw: Raw):
    await queue.upsert_job_scheduler("tick", every=HOUR, immediately=True)
    await queue.upsert_job_scheduler("own", pattern="* * * * * *")
    await queue.obliterate(force=True)
    assert await queue.get_job_schedulers() == []
    assert raw.keys("sched*") == []


# -- workers ------------------------------------------------------------------------------------------------------


async def test_scheduler_fires(queue: Queue, worker_for: WorkerFor):
    ran: list[str] = []
    enough = asyncio.Event()

    async def note(job: Job):
        ran.append(job.name)
        if {"tick", "own", "crawl"} <= set(ran):
            enough.set()

    async with worker_for(note):
        await queue.upsert_job_scheduler("tick", every=50)
        await queue.upsert_job_scheduler("own", pattern="* * * * * *")
        await queue.upsert_job_scheduler("crawl", repeat_after_complete=50)
        async with asyncio.timeout(120):
            await enough.wait()
        names = [each.name for each in await queue.get_job_schedulers()]
        assert names == ["crawl", "own", "tick"]
        assert await queue.pause_job_scheduler("none") is None
        for name in names:
            assert await queue.remove_job_scheduler(name)
            assert not await queue.remove_job_scheduler(name)
            assert await queue.get_job_scheduler(name) is None


async def test_scheduler_is_paused_and_resumed(worker_for: WorkerFor, url: str, queue: Queue, queue_name: str):
    async with QueueEvents(queue_name, url) as events:
        ran, told = asyncio.Queue[str](), asyncio.Queue[tuple[str, str]]()
        events.on("*", lambda event: told.put_nowait((event.event, event.fields.get("scheduler", ""))))
        await events.wait_until_ready()
        await queue.upsert_job_scheduler("often", every=50)
        paused = await queue.pause_job_scheduler("often")
        assert paused is not None
        assert (paused.paused, paused.next_run) == (True, None)
        before = (await queue.get_job_counts()).waiting

        async def note(job: Job):
            ran.put_nowait(job.name)

        async with asyncio.timeout(120), worker_for(note):
            await queue.upsert_job_scheduler("sign", every=200)
            while await ran.get() != "sign":  # workers fire, but not this one
                before -= 1
            assert before == 0
            assert await queue.resume_job_scheduler("often") is not None
            while await ran.get() != "often":
                pass
            seen = [await told.get()]
            while seen[-1] != ("scheduler-resumed", "often"):
                seen.append(await told.get())
        assert ("scheduler-paused", "often") in seen
        for name in ("often", "sign"):
            assert await queue.remove_job_scheduler(name)
        await queue.obliterate(force=True)
