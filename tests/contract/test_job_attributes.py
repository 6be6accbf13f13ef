"""Attributes of a job equal its record, for each way to obtain the job, or raise JobNotLoadedError."""

import inspect
from typing import Any

import pytest

from glidemq_py import BroadcastWorker, Job, JobNotFoundError, JobRef, JobState, Message
from glidemq_py._job.message_twin import BlockingMessage
from glidemq_py.errors import JobNotLoadedError, SuspendError
from tests.contract.api import Broadcast, FlowProducer, Queue
from tests.contract.test_broadcast import working
from tests.contract.test_broadcast_extras import TARGET
from tests.server.worker_support import EventRecorder, WorkerFor

ATTRIBUTES = sorted(
    {name for name, value in inspect.getmembers(Job) if not name.startswith("_") and not callable(value)}
    | {"id", "name"} - {"blocking", "cancelled"}
)
OF_THE_OBJECT = {"outcome", "blocking", "cancelled", "context", "discarded"}
"""Not in any record."""


def picture(job: Job) -> dict[str, Any]:
    """Return every attribute; JobNotLoadedError for attributes that are not loaded."""
    found: Any = {}
    for name in ATTRIBUTES:
        if name in OF_THE_OBJECT:
            continue
        try:
            found[name] = getattr(job, name)
        except JobNotLoadedError as error:
            assert name == error.attribute  # noqa: PT017  one of many
            found[name] = JobNotLoadedError
    return found


async def in_hand(queue: Queue, job: Job) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A handler's job, the same after `reload`, and what `get_job` reads meanwhile."""
    before = picture(job)
    read = await queue.get_job(job.id)
    assert read is not None
    await job.reload()
    return before, picture(job), picture(read)


def assert_true(before: Any, after: Any, read: Any):
    visible = {name: value for name, value in before.items() if value is not JobNotLoadedError and name != "usage"}
    assert visible == {name: read[name] for name in visible}
    after.pop("usage")
    read.pop("usage")
    assert after == read


JOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "priority": {"priority": 3},
    "delayed": {"delay": 1},
    "retried": {"attempts": 3, "backoff": 1},
    "in a group": {"ordering": {"key": "k", "token_bucket": {"capacity": 10, "refill_rate": 10}}, "cost": 2},
    "ordered": {"ordering": {"key": "o", "concurrency": 1}, "ttl": 60_000},
    "fallbacks": {"attempts": 2, "fallbacks": [{"model": "small"}]},
    "lifo": {"lifo": True, "timeout": 10_000, "remove_on_complete": 5},
}


@pytest.mark.parametrize("kind", list(JOBS))
async def test_attributes_after_reload_match_the_record(queue: Queue, worker_for: WorkerFor, kind: str):
    options = JOBS[kind]
    pictures: Any = []

    async def handle(job: Job):
        if options.get("attempts") and not job.attempts_made:
            raise KeyError("first")
        pictures.append(await in_hand(queue, job))
        if options.get("attempts"):
            assert (job.failed_type, len(job.stacktrace)) == ("KeyError", 1)

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        added = await queue.add("n", {"a": 1}, **options)
        await recorded.wait("completed")
        assert_true(*pictures[0])
        assert pictures[0][0]["state"] is JobState.ACTIVE
        assert (added.delay, added.priority) == (options.get("delay", 0), options.get("priority", 0))


async def test_flow_jobs_have_parents_after_reload(
    worker_for: WorkerFor, flows: FlowProducer, queue: Queue, queue_name: str
):
    pictures: Any = {}

    async def handle(job: Job):
        pictures[job.name] = await in_hand(queue, job)

    async with (
        worker_for(handle) as worker,
    ):
        recorded = EventRecorder(worker)
        tree = await flows.add(
            {"name": "root", "queue": queue_name, "children": [{"name": "leaf", "queue": queue_name}]},
            budget={"max_total_tokens": 1_000},
        )
        await recorded.wait("completed", 2)
        for each in pictures.values():
            assert_true(*each)
        leaf = tree.children[0].job
        assert await leaf.get_parents() == [JobRef(queue_name, tree.job.id)]


async def test_a_suspended_and_a_scheduled_job(queue: Queue, worker_for: WorkerFor):
    pictures: Any = {}

    async def handle(job: Job):
        if job.name == "waits":
            await job.wait_for_signal("go")
        pictures[job.name] = await in_hand(queue, job)

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("waits")
        await recorded.wait("suspended")
        await queue.signal(job.id, "go", 1)
        await queue.schedulers.upsert("again", repeat_after_complete=60_000, template={"name": "again"})
        await recorded.wait("completed", 2)
    for each in pictures.values():
        assert_true(*each)
    before, after, _ = pictures["again"]
    assert before["scheduled_for"] is JobNotLoadedError
    assert after["scheduled_for"] > 0


async def test_jobs_of_lists_and_adds(url: Any, queue: Queue):
    added = await queue.add("n", 1, attempts=3, ttl=60_000, delay=5)
    assert added.opts == {"attempts": 3, "ttl": 60_000, "delay": 5}
    (listed,) = await queue.get_jobs("delayed")
    for job in (added, listed):
        with pytest.raises(JobNotLoadedError, match=r"reload"):
            _ = job.scheduled_for
        assert getattr(job, "scheduled_for", "unknown") == "unknown"
        await job.reload()
        assert (job.scheduled_for, job.delay, await job.get_parents()) == (None, 5, [])
    await queue.add("n", 1, job_id="mine", delay=5)
    twice = await queue.add("n", 1, job_id="mine", delay=70)
    with pytest.raises(JobNotLoadedError):
        _ = twice.delay  # that is the other's to say
    await added.remove()
    with pytest.raises(JobNotFoundError):
        await listed.reload()


@pytest.mark.slow
async def test_plain_functions_and_sandboxes_reload(queue: Queue, worker_for: WorkerFor):
    def handle(job: Job):
        job.blocking.reload()
        return [job.delay, job.scheduled_for is None]

    for handler in (handle, f"{TARGET}:reloaded"):
        async with worker_for(handler):
            assert await queue.add_and_wait("n", ttl=60_000) == [0, True]


async def test_message_keeps_state_of_its_subscription(url: Any, queue_name: str):
    found: Any = []

    async def handle(message: Message):
        if not message.attempts_made:
            raise KeyError("first")
        before = (message.attempts_made, message.failed_type, message.failed_reason, len(message.stacktrace))
        await message.reload()
        found.append(before)
        found.append((message.attempts_made, message.failed_type, message.failed_reason, len(message.stacktrace)))

    worker = BroadcastWorker(queue_name, handle, url, subscription="s")
    async with Broadcast(queue_name, url) as broadcast, working(worker) as recorded:
        await broadcast.publish("x", 1, attempts=2, ttl=60_000)
        await recorded.wait("completed")
    assert found == [(1, "KeyError", "'first'", 1)] * 2


# -- on_resume in a process that could never call it -------------------------------------------------------------------


@pytest.mark.parametrize("function", ["suspends", "raises_suspend"])
@pytest.mark.slow
async def test_on_resume_is_rejected_in_sandboxes(queue: Queue, worker_for: WorkerFor, function: str):
    worker = worker_for(f"{TARGET}:{function}")
    async with worker:
        recorded = EventRecorder(worker)
        await queue.add("n")
        await recorded.wait("failed")
        assert type(recorded.of("failed")[0][1]).__name__ == "GlideMQValidationError"


def test_messages_have_only_the_methods_that_they_support():
    of_jobs_only = {
        "change_delay", "change_priority", "get_children_values", "get_state", "move_to_waiting_children", "promote",
        "rate_limit_group", "remove", "retry", "revoke", "suspend", "update_data", "wait_for_signal",
        "wait_until_finished",
    }  # fmt: skip
    assert of_jobs_only <= set(dir(Job))
    assert not of_jobs_only & set(dir(Message))
    assert not of_jobs_only & set(dir(BlockingMessage))
    assert not issubclass(Message, Job)


async def test_signals_that_messages_do_not_support_fail_them(url: Any, queue_name: str):
    async def handle(message: Message):
        raise SuspendError

    worker = BroadcastWorker(queue_name, handle, url, subscription="s")
    async with Broadcast(queue_name, url) as broadcast, working(worker) as recorded:
        await broadcast.publish("x")
        await recorded.wait("failed")
    assert "SuspendError is not supported for messages" in str(recorded.of("failed")[0][1])
