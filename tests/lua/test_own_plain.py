"""The short fetch of plain jobs: it is used for them alone, and gives them what the full fetch would."""

from typing import Any

import pytest

from tests.inside import AttemptStatus, row
from tests.lua.own_support import FETCHED_FIELDS, START, Fetched, OwnQueue

PLAIN_FIELDS = FETCHED_FIELDS.index("attemptsMade")


def plain_marks(q: OwnQueue) -> list[str | None]:
    return [entry.get("plain", entry.get("chosen")) for entry in q.entries()]


@pytest.mark.parametrize(("options", "marked"), [
    ({}, True), ({"attempts": 3}, True), ({"job_id": "mine"}, True), ({"delay": 5}, False), ({"ttl": 5}, False),
    ({"priority": 1}, False), ({"fair_key": "tenant"}, False), ({"ordering": ["g", 1, 0, 0, 0, 0, 0]}, False),
])  # fmt: skip
def test_only_plain_jobs_are_marked(q: OwnQueue, options: Any, marked: bool):
    q.add_job(**options)
    assert [mark for mark in plain_marks(q) if mark] == [str(START)] * marked


def test_retried_and_released_jobs_are_not_marked(q: OwnQueue):
    q.add(row("a", "1", "{}"), row("b", "2", "{}"))
    first, second = q.fetch(2)
    q.finish(first.released(), second.failed(limit=2))
    q.advance(1)
    again = q.fetch(2)
    assert plain_marks(q) == [None, None]
    assert [(job.id, job.fields["attemptsMade"]) for job in again] == [("1", "0"), ("2", "1")]
    assert [len(job.given) > PLAIN_FIELDS for job in again] == [True, True]


def test_job_with_a_chosen_id_is_plain(q: OwnQueue):
    q.add_job("send", data="[1]", job_id="mine")
    (entry,) = q.entries()
    assert (entry["chosen"], entry.get("plain")) == (str(START), None)
    job = q.take_one()
    assert job.given == ["mine", job.entry, 1, "send", "[1]", "{}", str(START)]
    assert q.job("mine")["eid"] == job.entry
    assert q.finish(job.completed()) == [AttemptStatus.OK]


@pytest.mark.parametrize("again", [{}, {"ttl": 5}])
def test_chosen_id_that_is_used_again_in_the_same_millisecond(q: OwnQueue, again: Any):
    """A peer has removed the first job, and left its entry behind."""
    q.add_job(job_id="mine")
    q.redis("DEL", "job:mine")
    q.add_job("second", job_id="mine", **again)
    jobs = q.fetch(5)
    assert [(job.id, job.fields["name"]) for job in jobs] == [("mine", "second")]
    assert len(jobs[0].given) == 12  # under the entry of the first job it is not plain
    assert q.finish(jobs[0].completed()) == [AttemptStatus.OK]
    q.advance(10)
    assert q.fetch(5) == []
    assert q.job("mine")["state"] == "completed"


@pytest.mark.parametrize("fields", [
    {"fence": "4", "attemptsMade": "2"}, {"processedOn": str(START), "attemptsMade": "2"},
], ids=["ours", "of a peer"])  # fmt: skip
def test_a_job_that_has_run_is_read_in_full(q: OwnQueue, fields: dict[str, str]):
    job_id = q.add_job()
    q.redis("HSET", f"job:{job_id}", *[part for pair in fields.items() for part in pair])
    job = q.take_one()
    assert (job.fields["attemptsMade"], job.fence) == ("2", int(fields.get("fence", "0")) + 1)


def test_entry_of_a_removed_job_does_not_stand_for_a_later_one(q: OwnQueue):
    """A peer removes a job and leaves its entry; another job gets the id and a group without a free slot."""
    group = ["g", 1, 0, 0, 0, 0, 0]
    q.add_job(job_id="holder", ordering=group)
    assert q.take_one().id == "holder"
    job_id = q.add_job()
    q.redis("UNLINK", f"job:{job_id}")
    q.advance(1)
    assert q.add_job("other", job_id=job_id, ordering=group) == job_id
    assert q.exchange(5).jobs == []
    assert q.state(job_id) == "group-waiting"


def test_expired_job_is_not_fetched_by_the_entry_of_a_removed_one(q: OwnQueue):
    job_id = q.add_job()
    q.redis("UNLINK", f"job:{job_id}")
    q.advance(1)
    q.add_job("other", job_id=job_id, ttl=5)
    q.advance(10)
    assert q.exchange(5).jobs == []
    assert q.job(job_id)["failedReason"] == "expired"


@pytest.mark.parametrize("damage", ["gone", "no data", "foreign"])
def test_damaged_record_is_dropped(q: OwnQueue, damage: str):
    job_id = q.add_job()
    if damage == "no data":
        q.redis("HDEL", f"job:{job_id}", "data")
    else:
        q.redis("UNLINK", f"job:{job_id}")
    if damage == "foreign":
        q.redis("SET", f"job:{job_id}", "text")
    reply = q.exchange()
    reasons = {"gone": "the job is gone", "no data": "malformed", "foreign": "the job key is not a hash"}
    assert (reply.jobs, [dropped[2] for dropped in reply.dropped]) == ([], [reasons[damage]])


def test_a_plain_fetch_reads_each_record_once(q: OwnQueue):
    q.add(*[row("a", "1", "{}") for _ in range(10)])
    before = q.calls("hmget")
    assert len(q.fetch(10)) == 10
    settings = 2  # of the queue, and by the guard of the call
    assert q.calls("hmget") - before <= 10 + settings


def test_completed_rows_are_checked_as_before(q: OwnQueue):
    q.add(row("a", "1", "{}"), row("b", "2", "{}"))
    first, second = q.fetch(2)
    stale = Fetched([second.id, second.entry, second.fence + 1], second.processed_on)
    earlier = Fetched([second.id, second.entry, second.fence], second.processed_on - 1)
    assert q.finish(first.completed(), stale.completed(), earlier.completed(), second.completed()) == [0, 3, 3, 0]
    assert q.finish(first.completed()) == [1]


def pending_and_entries(q: OwnQueue) -> tuple[int, list[str]]:
    return len(q.pending()) if q.redis_groups("stream") else 0, [entry["jobId"] for entry in q.entries()]


def test_a_plain_completion_reads_the_record_once_and_four_fields(q: OwnQueue):
    q.add(*[row("a", "1", "{}") for _ in range(10)])
    jobs = q.fetch(10)
    before = q.calls("hmget")
    assert q.finish(*[job.completed('"done"') for job in jobs]) == [0] * 10
    assert q.calls("hmget") - before <= 10 + 2
    assert {q.job(job.id)["returnvalue"] for job in jobs} == {'"done"'}
    assert [event["event"] for event in q.events()][-10:] == ["completed"] * 10


def test_a_job_that_others_wait_for_tells_them(q: OwnQueue):
    """The dependency is attached while the job runs as a plain one."""
    job_id = q.add_job()
    job = q.take_one()
    waiting = q.add_job(dependencies=["wait", [q.base[7:-1], job_id]])
    assert q.state(waiting) == "waiting-children"
    assert q.finish(job.completed()) == [0]
    assert q.state(waiting) == "waiting"


@pytest.mark.parametrize("count", [3, 15, 16, 40, 120])
def test_entries_of_finished_jobs_are_deleted(q: OwnQueue, count: int):
    q.add(*[row("a", "1", "{}") for _ in range(count + 5)])
    jobs = q.fetch(count)
    assert q.finish(*[job.completed() for job in jobs]) == [0] * count
    assert pending_and_entries(q) == (0, [str(number) for number in range(count + 1, count + 6)])
    assert len(q.fetch(10)) == 5


@pytest.mark.parametrize("active", [(0,), (39,), (20,), (0, 7, 39)])
def test_entries_of_active_jobs_stay(q: OwnQueue, active: tuple[int, ...]):
    q.add(*[row("a", "1", "{}") for _ in range(45)])
    jobs = q.fetch(40)
    q.finish(*[job.completed() for place, job in enumerate(jobs) if place not in active])
    waiting = [str(number) for number in range(41, 46)]
    assert pending_and_entries(q) == (len(active), [jobs[place].id for place in active] + waiting)
    q.finish(*[jobs[place].completed() for place in active])
    assert pending_and_entries(q) == (0, waiting)


def test_entries_that_a_new_group_has_not_delivered_stay(q: OwnQueue):
    """Someone destroys the consumer group; a new one starts from the first entry."""
    q.add(*[row("a", "1", "{}") for _ in range(40)])
    jobs = q.fetch(40)
    q.resp.execute("XGROUP", "DESTROY", q.key("stream"), "workers")
    q.finish(*[job.completed() for job in jobs[20:]])
    assert pending_and_entries(q)[1] == [job.id for job in jobs[:20]]
