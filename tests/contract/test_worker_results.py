"""Results, progress, log lines and data of handlers, and retention of ended jobs."""

from dataclasses import dataclass
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError, JobNotFoundError
from glidemq_py.errors import PayloadTooLargeError
from tests.contract.api import Queue, QueueEvents
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, with_timeout


@dataclass
class Point:
    x: int
    y: int


def nested(depth: int):
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("result", "read"),
    [
        (None, None), (0, 0), ("", ""), (False, False), ([], []), ("gz:not gzip", "gz:not gzip"),
        ({"ä": [1, 2.5, None, "☃"]}, {"ä": [1, 2.5, None, "☃"]}), (Point(1, 2), {"x": 1, "y": 2}), (2**70, 2**70),
    ],
)  # fmt: skip
async def test_results_come_back_as_they_were_returned(queue: Queue, worker_for: WorkerFor, result: Any, read: Any):
    async def handle(job: Job):
        return result

    async with worker_for(handle):
        job = await queue.add("n")
        assert await job.wait_until_finished() == read
        stored = await queue.get_job(job.id)
        assert stored is not None
        assert stored.returnvalue == read


@pytest.mark.parametrize(
    ("result", "kind", "reason"),
    [
        ("x" * 1_048_577, "PayloadTooLargeError", "1,048,576"),
        (object(), "SerializationError", "object"),
        ({1, 2}, "SerializationError", "set"),
        (nested(100_000), "SerializationError", "result"),
    ],
    ids=["large", "object", "set", "nested"],
)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_unstorable_result_fails_the_job(
    queue: Queue, worker_for: WorkerFor, result: Any, kind: str, reason: str, plain: bool
):
    async def handle(job: Job):
        return result

    async with (
        worker_for((lambda job: result) if plain else handle) as worker,
    ):
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        with pytest.raises(JobFailedError) as caught:
            await with_timeout(job.wait_until_finished())
        assert caught.value.failed_type == kind
        assert reason in caught.value.failed_reason
        await recorded.wait("failed")


async def test_result_of_the_maximum_size(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job) -> str:
        return "x" * (1_048_576 - 2)  # with its quotes

    async with worker_for(handle):
        assert len(await queue.add_and_wait("n")) == 1_048_574


async def test_a_serializer_that_fails_fails_the_job(worker_for: WorkerFor, url: Any, queue_name: str):
    class Fussy:
        def serialize(self, value: Any, /) -> str:
            if value == "bad":
                raise TypeError("not this one")
            return repr(value)

        def deserialize(self, text: str, /):
            return text

    async def handle(job: Job) -> str:
        return "bad"

    async with Queue(queue_name, url, serializer=Fussy()) as queue, worker_for(handle, serializer=Fussy()):
        with pytest.raises(JobFailedError, match="not this one"):
            await queue.add_and_wait("n", "fine")


async def test_log_lines_are_bounded(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        for n in range(12):
            await job.log(str(n), keep=5)
        with pytest.raises(PayloadTooLargeError):
            await job.log("x" * 1_048_577)

    async with worker_for(handle):
        job = await queue.add("n")
        await job.wait_until_finished()
        assert await job.logs() == ["7", "8", "9", "10", "11"]


async def test_only_operators_can_change_a_finished_job(queue: Queue, worker_for: WorkerFor):
    """A handler's late write is refused; a job object that was read writes without a token."""

    async def handle(job: Job): ...

    async with worker_for(handle):
        job = await queue.add("n")
        await job.wait_until_finished()
        stored = await queue.get_job(job.id)
        assert stored is not None
        await stored.log("by hand")
        assert await stored.logs() == ["by hand"]


async def test_every_job_has_one_event_of_each_kind(worker_for: WorkerFor, url: Any, queue_name: str):
    async def handle(job: Job) -> int:
        return job.data

    async with (
        QueueEvents(queue_name, url) as events,
        Queue(queue_name, url) as queue,
        worker_for(handle, concurrency=20),
    ):
        jobs = await queue.add_bulk([("n", n) for n in range(200)])
        results: dict[str, str] = {}
        async for event in events:
            if event.event == "completed":
                assert event.job_id not in results
                results[event.job_id] = event.fields["returnvalue"]
                if len(results) == 200:
                    break
    assert results == {job.id: str(n) for n, job in enumerate(jobs)}


async def test_writing_onto_a_removed_job_makes_no_ghost(raw: Raw, queue: Queue, worker_for: WorkerFor):
    gate, refused = Gate(), []

    async def handle(job: Job):
        await gate(job)
        for write in (job.log("x"), job.update_progress(1), job.update_data(1)):
            with pytest.raises(JobNotFoundError):
                await write
            refused.append(1)

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await gate.next()
        assert await queue.remove(job.id)
        gate.open()
        await recorded.wait("error")
        assert len(refused) == 3
        assert not raw.job(job.id)
        assert raw.run("EXISTS", f"log:{job.id}") == 0
        assert raw.run("ZCARD", "completed") == 0


async def test_a_quiet_worker_writes_no_events_and_no_metrics(
    worker_for: WorkerFor, url: Any, raw: Raw, queue_name: str
):
    async def handle(job: Job):
        if job.attempts_made == 0:
            raise ValueError

    async with (
        Queue(queue_name, url, events=False) as queue,
        worker_for(handle, events=False, metrics=False) as worker,
    ):
        recorded = EventRecorder(worker)
        await queue.add("n", attempts=2)
        await recorded.wait("completed")
        assert recorded.count["retrying"] == 1
    assert raw.run("EXISTS", "events") == 0
    assert raw.metric("completed") == 0
