"""Remote control: commands that workers read with their heartbeats."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from glidemq_py import GlideMQError, GlideMQValidationError, Job, JobFailedError, Worker
from glidemq_py.errors import WorkerCommandError, WorkerNotFoundError, WorkerTimeoutError
from glidemq_py.records import WorkerActivity
from tests.contract.api import Queue
from tests.contract.observe import Raw, wait_for_workers
from tests.server.worker_support import PATIENCE, Gate, WorkerFor, until, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")

LOCK_MS = 1_000
"""Three heartbeats per second."""
WAIT: Any = {"timeout": int(PATIENCE) * 1_000}


class Slots:
    """A handler that waits, in the event loop or in threads, and counts."""

    def __init__(self):
        self.open = threading.Event()
        self.running = self.most = self.ended = 0
        self._lock = threading.Lock()

    def _enter(self):
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)

    def _leave(self):
        with self._lock:
            self.running -= 1
            self.ended += 1

    async def __aenter__(self):
        """Release the handlers at the end, before the worker closes."""

    async def __aexit__(self, *_: object):
        self.open.set()

    async def in_loop(self, _: Job):
        self._enter()
        while not self.open.is_set():  # noqa: ASYNC110  set by any thread
            await asyncio.sleep(0.01)
        self._leave()

    def in_thread(self, _: Job):
        self._enter()
        self.open.wait(PATIENCE)
        self._leave()


async def registered(queue: Queue, worker: Worker):
    """Wait until the worker is registered: one of several queues registers shortly after its start."""
    async with asyncio.timeout(PATIENCE):
        while worker.consumer not in {found.id for found in await queue.get_workers()}:  # noqa: ASYNC110  no event
            await asyncio.sleep(0.01)


async def only(found: Awaitable[list[WorkerActivity]]) -> WorkerActivity:
    (activity,) = await found
    return activity


async def test_ping_and_inspect(worker_for: WorkerFor, queue: Queue):
    assert await queue.workers.ping() == []
    assert await queue.workers.inspect() == []
    slots = Slots()
    job = await queue.add("a")
    one, two = (worker_for(slots.in_loop, lock_duration=LOCK_MS) for _ in range(2))
    async with one, two, slots:
        await until(lambda: slots.running == 1)
        await wait_for_workers(queue, 2)
        assert await queue.workers.ping(**WAIT) == sorted([one.consumer, two.consumer])
        assert await queue.workers.ping(one.consumer, **WAIT) == [one.consumer]
        found = {each.id: each for each in await queue.workers.inspect(**WAIT)}
        busy = found.pop(one.consumer if one.active_count else two.consumer)
        (idle,) = found.values()
        assert (idle.active, idle.jobs, idle.is_paused, idle.concurrency) == (0, (), False, 1)
        (running,) = busy.jobs
        assert (running.queue, running.id, running.name, busy.active) == (queue.name, job.id, "a", 1)
        stored = await queue.get_job(job.id)
        assert stored is not None
        assert running.started_at == stored.processed_on
        slots.open.set()
    assert await queue.workers.ping() == []


@pytest.mark.parametrize("queues", [1, 2])
async def test_handlers_of_ended_attempts_occupy_stuck_slots(url: Any, queue: Queue, queues: int):
    slots = Slots()
    names: Any = {queue.name: 1, f"{queue.name}-2": 1} if queues == 2 else queue.name
    worker = Worker(names, slots.in_thread, url, concurrency=2, lock_duration=LOCK_MS)
    async with worker, slots:
        await registered(queue, worker)
        job = await queue.add("late", timeout=20)
        with pytest.raises(JobFailedError):
            await job.wait_until_finished()
        await queue.add("running")
        await with_timeout(until(lambda: slots.running == 2))
        activity = await only(queue.workers.inspect(**WAIT))
        assert (activity.active, activity.stuck, [job.name for job in activity.jobs]) == (1, 1, ["running"])
        async with asyncio.timeout(PATIENCE):
            while [(each.active_jobs, each.stuck) for each in await queue.get_workers()] != [(1, 1)]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        slots.open.set()
        await with_timeout(until(lambda: worker.active_count == 0))
        assert (await only(queue.workers.inspect(**WAIT))).stuck == 0


@pytest.mark.slow
async def test_missing_worker_and_missing_answer(worker_for: WorkerFor, queue: Queue, raw: Raw):
    with pytest.raises(WorkerNotFoundError, match="worker 'py-none' not found"):
        await queue.workers.ping("py-none")
    raw.run("SET", "w:py-dead", json.dumps({"pid": 1}), "PX", 60_000)
    raw.run("ZADD", "workers", 9_999_999_999_999, "py-dead")
    with pytest.raises(WorkerTimeoutError) as failed:
        await queue.workers.inspect("py-dead", timeout=50)
    assert (failed.value.workers, failed.value.answered) == (["py-dead"], [])
    async with worker_for(Slots().in_loop, lock_duration=LOCK_MS) as worker:
        pinged, failed_quiet = await asyncio.gather(
            queue.workers.ping(timeout=3_000), queue.workers.quiet(timeout=3_000), return_exceptions=True
        )
        assert pinged == [worker.consumer]
        assert isinstance(failed_quiet, WorkerTimeoutError)
        assert "no answer in time from 1 workers" in str(failed_quiet)
        assert failed_quiet.answered == [worker.consumer]
        assert worker.is_paused
    # Commands that nobody reads do not pile up, and the registration expires as before.
    assert 0 < raw.run("PTTL", "w:py-dead") <= 60_000
    for _ in range(200):
        raw.run("SET", "w:py-dead", raw.run("GET", "w:py-dead")[:-2] + ',"x' + "y" * 200 + '"]}', "KEEPTTL")
    with pytest.raises(WorkerNotFoundError):
        await queue.workers.ping("py-dead")
    raw.run("DEL", "w:py-dead")
    raw.run("ZREM", "workers", "py-dead")


async def test_quiet_worker_fetches_nothing_until_it_is_resumed(worker_for: WorkerFor, queue: Queue):
    slots = Slots()
    slots.open.set()
    async with worker_for(slots.in_loop, lock_duration=LOCK_MS) as worker, slots:
        assert await queue.workers.quiet(**WAIT) == [worker.consumer]
        job = await queue.add("a")
        activity = await only(queue.workers.inspect(worker.consumer, **WAIT))
        assert (activity.is_paused, activity.active) == (True, 0)
        assert (await queue.get_job_counts()).waiting == 1
        assert await queue.workers.resume(worker.consumer, **WAIT) == [worker.consumer]
        await with_timeout(job.wait_until_finished())
        assert not worker.is_paused


@pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
@pytest.mark.parametrize("several", [False, True])
async def test_resized_worker_runs_so_many_jobs(url: Any, queue: Queue, kind: str, several: bool):
    slots = Slots()
    handler: Callable[..., Any] = getattr(slots, kind)
    names: Any = {queue.name: 1, f"{queue.name}-2": 1} if several else queue.name
    worker = Worker(names, handler, url, lock_duration=LOCK_MS)
    await queue.add_bulk([("a",)] * 12)
    async with worker, slots:
        await until(lambda: slots.running == 1)
        await registered(queue, worker)
        assert await queue.workers.resize(8, **WAIT) == [worker.consumer]
        await until(lambda: slots.running == 8)
        activity = await only(queue.workers.inspect(**WAIT))
        assert (activity.concurrency, activity.active, len(activity.jobs)) == (8, 8, 8)
        await queue.workers.resize(2, worker.consumer, **WAIT)
        slots.open.set()
        await until(lambda: slots.ended == 12)
        assert slots.most == 8
        slots.open.clear()
        slots.most = 0
        await queue.add_bulk([("b",)] * 4)
        await until(lambda: slots.running == 2)
        assert (await only(queue.workers.inspect(**WAIT))).active == 2
        slots.open.set()
        await until(lambda: slots.ended == 16)
        assert slots.most == 2


async def test_worker_that_cannot_be_resized_reports_it(worker_for: WorkerFor, queue: Queue):
    async def handle(jobs: list[Job]):
        return None

    async with worker_for(handle, lock_duration=LOCK_MS, batch={"size": 5}) as worker:
        with pytest.raises(WorkerCommandError, match="batch handler") as failed:
            await queue.workers.resize(3, worker.consumer, **WAIT)
        assert failed.value.worker == worker.consumer
        with pytest.raises(GlideMQError, match="batch handler"):
            worker.set_concurrency(3)
    other = worker_for(Slots().in_loop)
    with pytest.raises(GlideMQError, match="was not started"):
        other.set_concurrency(3)


async def test_cancelled_job_fails_as_revoked(worker_for: WorkerFor, queue: Queue):
    slots = Slots()
    job = await queue.add("a", attempts=3)
    async with worker_for(slots.in_loop, lock_duration=LOCK_MS) as worker, slots:
        await until(lambda: slots.running == 1)
        assert not await queue.workers.cancel("other", worker.consumer, **WAIT)
        assert await queue.workers.cancel(job.id, worker.consumer, **WAIT)
        async with asyncio.timeout(PATIENCE):
            while await job.get_state() != "failed":  # noqa: ASYNC110  no event
                await asyncio.sleep(0.01)


async def test_worker_of_several_queues_is_reached_through_each(url: Any, queue: Queue):
    gate = Gate()

    async def handle(_: Job):
        await gate.opened.wait()

    async with Queue(f"{queue.name}-2", url) as second:
        job = await second.add("b")
        async with Worker({queue.name: 1, second.name: 1}, handle, url, lock_duration=LOCK_MS) as worker:
            await until(lambda: worker.active_count == 1)
            for each in (queue, second):
                await registered(each, worker)
                activity = await only(each.workers.inspect(worker.consumer, **WAIT))
                assert [(running.queue, running.id) for running in activity.jobs] == [(second.name, job.id)]
            assert not await queue.workers.cancel(job.id, worker.consumer, **WAIT)  # a job of the other queue
            gate.open()
            await with_timeout(job.wait_until_finished())


async def test_commands_at_the_same_time_and_malformed_ones(worker_for: WorkerFor, queue: Queue, raw: Raw):
    async with worker_for(Slots().in_loop, lock_duration=LOCK_MS) as worker:
        key = f"w:{worker.consumer}"
        about = raw.run("GET", key)
        requests = [{"request": "r", "action": "later"}, {"request": "c", "action": "cancel", "argument": None}]
        broken = ["{", "[]", "7", *map(json.dumps, [*requests, {"action": "ping"}])]
        raw.run("SET", key, about[:-1] + ',"commands":' + json.dumps(broken, separators=(",", ":")) + "}", "PX", 60_000)
        answers = await asyncio.gather(*(queue.workers.ping(**WAIT) for _ in range(5)))
        assert answers == [[worker.consumer]] * 5
        assert "no command 'later'" in raw.resp.hash(raw.key("control:r"))[worker.consumer]
        assert "invalid argument of command 'cancel'" in raw.resp.hash(raw.key("control:c"))[worker.consumer]
        assert 0 < raw.run("PTTL", "control:r") <= 60_000


async def test_invalid_arguments_are_rejected(queue: Queue):
    calls = [
        queue.workers.ping(timeout=0), queue.workers.ping(""), queue.workers.resize(0), queue.workers.resize(10_001),
        queue.workers.cancel("a:b", "w"), queue.workers.cancel("1", ""), queue.workers.inspect(7),  # type: ignore[arg-type]
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(GlideMQValidationError):
            await call
