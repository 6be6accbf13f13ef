"""Results, progress, log lines and data of handlers, and retention of ended jobs."""

from dataclasses import dataclass
from typing import Any

import pytest

from glidemq_py import (
    Job,
    JobFailedError,
    JobNotFoundError,
    KeepJobs,
    PayloadTooLargeError,
    Queue,
    QueueEvents,
    Worker,
)  # fmt: skip
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder, Gate, Raw, with_timeout


@dataclass
class Point:
    x: int
    y: int


def nested(depth: int) -> Any:
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
async def test_results_come_back_as_they_were_returned(url: str, queue_name: str, result: Any, read: Any):
    async def handle(job: Job) -> Any:
        return result

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
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
    url: str, queue_name: str, result: Any, kind: str, reason: str, plain: bool
):
    async def handle(job: Job) -> Any:
        return result

    async with (
        Queue(queue_name, url) as queue,
        Worker(queue_name, (lambda job: result) if plain else handle, url) as worker,
    ):
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        with pytest.raises(JobFailedError) as caught:
            await with_timeout(job.wait_until_finished())
        assert caught.value.failed_type == kind
        assert reason in caught.value.failed_reason
        await recorded.wait("failed")


async def test_result_of_the_maximum_size(url: str, queue_name: str):
    async def handle(job: Job) -> str:
        return "x" * (1_048_576 - 2)  # with its quotes

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        assert len(await queue.add_and_wait("n")) == 1_048_574


async def test_a_serializer_that_fails_fails_the_job(url: str, queue_name: str):
    class Fussy:
        def serialize(self, value: Any, /) -> str:
            if value == "bad":
                raise TypeError("not this one")
            return repr(value)

        def deserialize(self, text: str, /) -> Any:
            return text

    async def handle(job: Job) -> str:
        return "bad"

    async with Queue(queue_name, url, serializer=Fussy()) as queue, Worker(queue_name, handle, url, serializer=Fussy()):
        with pytest.raises(JobFailedError, match="not this one"):
            await queue.add_and_wait("n", "fine")


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_updates_of_a_job_by_its_handler(core_url: str, core_resp: RespClient, queue_name: str, kind: str):
    async def write(job: Job) -> Any:
        await job.update_progress(25)
        await job.log("first")
        await job.log("sécond")
        await job.update_progress({"step": 2})
        await job.update_data({"changed": True})
        return [job.progress, job.data, await job.logs(), await job.get_state()]

    def write_blocking(job: Job) -> Any:
        job.blocking.update_progress(25)
        job.blocking.log("first")
        job.blocking.log("sécond")
        job.blocking.update_progress({"step": 2})
        job.blocking.update_data({"changed": True})
        return [job.progress, job.data, job.blocking.logs(), job.blocking.get_state()]

    handler = write if kind == "async" else write_blocking
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handler, core_url):
        job = await queue.add("n", {"changed": False})
        expected = [{"step": 2}, {"changed": True}, ["first", "sécond"], "active"]
        assert await job.wait_until_finished() == expected
        stored = await queue.get_job(job.id)
        assert stored is not None
        assert [stored.progress, stored.data, await stored.logs()] == expected[:3]
        news = [event["data"] for event in Raw(core_resp, queue_name).events(job.id) if event["event"] == "progress"]
        assert news == ["25", '{"step":2}']


async def test_next_attempt_gets_updated_data(url: str, queue_name: str):
    async def handle(job: Job) -> Any:
        if job.attempts_made == 0:
            await job.update_data([*job.data, "second"])
            raise ValueError
        return job.data

    async with Queue(queue_name, url, compression="gzip") as queue, Worker(queue_name, handle, url, compression="gzip"):
        assert await queue.add_and_wait("n", ["first"], attempts=2) == ["first", "second"]


async def test_log_lines_are_bounded(url: str, queue_name: str):
    async def handle(job: Job) -> None:
        for n in range(12):
            await job.log(str(n), keep=5)
        with pytest.raises(PayloadTooLargeError):
            await job.log("x" * 1_048_577)

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        job = await queue.add("n")
        await job.wait_until_finished()
        assert await job.logs() == ["7", "8", "9", "10", "11"]


async def test_writing_onto_a_removed_job_makes_no_ghost(core_url: str, core_resp: RespClient, queue_name: str):
    gate, refused = Gate(), []

    async def handle(job: Job) -> None:
        await gate(job)
        for write in (job.log("x"), job.update_progress(1), job.update_data(1)):
            with pytest.raises(JobNotFoundError):
                await write
            refused.append(1)

    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handle, core_url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await gate.next()
        assert await queue.remove(job.id)
        gate.open()
        await recorded.wait("error")
        assert len(refused) == 3
        raw = Raw(core_resp, queue_name)
        assert not raw.job(job.id)
        assert raw.run("EXISTS", f"log:{job.id}") == 0
        assert raw.run("ZCARD", "completed") == 0


async def test_only_operators_can_change_a_finished_job(url: str, queue_name: str):
    """A handler's late write is refused; a job object that was read writes without a token."""

    async def handle(job: Job) -> None: ...

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        job = await queue.add("n")
        await job.wait_until_finished()
        stored = await queue.get_job(job.id)
        assert stored is not None
        await stored.log("by hand")
        assert await stored.logs() == ["by hand"]


@pytest.mark.parametrize(
    ("keep", "left"),
    [(True, 0), (0, 0), (False, 10), (None, 10), (4, 4), ({"count": 3}, 3), (KeepJobs(count=2, age=3600), 2),
     ({"age": 3600}, 10)],
)  # fmt: skip
@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_how_many_finished_jobs_are_kept(
    url: str, resp: RespClient, queue_name: str, keep: Any, left: int, end: str
):
    async def handle(job: Job) -> None:
        await job.log("a line")
        if end == "failed":
            raise ValueError

    name = "remove_on_complete" if end == "completed" else "remove_on_fail"
    option: dict[str, Any] = {} if keep is None else {name: keep}
    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        # Ids of one length: those that end in one millisecond are in the order of their ids.
        jobs = await queue.add_bulk([("n", n, {"job_id": f"job-{n}", **option}) for n in range(10)])
        await recorded.wait(end, 10)
        raw = Raw(resp, queue_name)
        assert raw.run("ZRANGE", end, 0, -1) == [job.id for job in jobs[10 - left :]]
        hashes = {key.rpartition(":")[2] for key in resp.keys(f"{raw.base}:job:*")}
        logs = {key.rpartition(":")[2] for key in resp.keys(f"{raw.base}:log:*")}
        assert hashes == logs == {job.id for job in jobs[10 - left :]}
        assert raw.metric(end) == 10


async def test_finished_jobs_are_removed_by_age(url: str, resp: RespClient, queue_name: str):
    async def handle(job: Job) -> None: ...

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        old = await queue.add("n")
        await recorded.wait("completed")
        raw = Raw(resp, queue_name)
        raw.run("ZADD", "completed", 1, old.id)  # long ago
        new = await queue.add("n", remove_on_complete={"age": 60})
        await recorded.wait("completed", 2)
        assert raw.run("ZRANGE", "completed", 0, -1) == [new.id]
        assert not raw.job(old.id)


async def test_a_quiet_worker_writes_no_events_and_no_metrics(url: str, resp: RespClient, queue_name: str):
    async def handle(job: Job) -> None:
        if job.attempts_made == 0:
            raise ValueError

    async with (
        Queue(queue_name, url, events=False) as queue,
        Worker(queue_name, handle, url, events=False, metrics=False) as worker,
    ):
        recorded = EventRecorder(worker)
        await queue.add("n", attempts=2)
        await recorded.wait("completed")
        assert recorded.count["retrying"] == 1
    raw = Raw(resp, queue_name)
    assert raw.run("EXISTS", "events") == 0
    assert raw.metric("completed") == 0


async def test_every_job_has_one_event_of_each_kind(url: str, queue_name: str):
    async def handle(job: Job) -> int:
        return job.data

    async with (
        QueueEvents(queue_name, url) as events,
        Queue(queue_name, url) as queue,
        Worker(queue_name, handle, url, concurrency=20),
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
