"""`Maintenance`: what workers do besides running jobs, for queues without a worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from glidemq_py import DeadLetterOptions, FlowProducer, GlideMQError, Maintenance, Queue
from glidemq_py.testing import RespClient
from tests.inside import connected
from tests.inside import queues as maintaining
from tests.server.worker_support import Raw, until, with_timeout

BUSY_S, IDLE_S = 20, 60


async def task_of(queue: Queue) -> Any:
    """Return the task that maintains a queue."""
    return maintaining._QueueTask(await connected(queue), Maintenance([queue])._options, events=True)


async def look(task: Any) -> float:
    """Let a task look at its queue, and return the seconds until it does so again."""
    pause: float = await task._run_once()
    return pause


def runs(task: Any) -> bool:
    return task._running is not None


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    letters = DeadLetterOptions(name=f"{queue_name}-dead", on=("failed", "revoked"))
    async with Queue(queue_name, url, dead_letter_queue=letters) as queue:
        yield queue


async def reach(reached: Callable[[], Awaitable[object]]):
    async with asyncio.timeout(60):
        while not await reached():  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.02)


def quick(queue: Queue) -> Maintenance:
    return Maintenance([queue], lock_duration=1_000, stalled_interval=1_000)


async def test_expired_leases_are_recovered(queue: Queue):
    await queue.add("n")
    (lease,) = await queue.fetch(1, lock_duration=1_000)
    assert (await queue.get_job_counts()).active == 1
    async with quick(queue):
        await reach(lambda: is_waiting(queue, lease.id))


async def is_waiting(queue: Queue, job_id: str) -> bool:
    job = await queue.get_job(job_id)
    return job is not None and await job.get_state() == "waiting"


async def test_the_outbox_is_delivered(queue: Queue, url: str):
    job = await queue.add("n")
    async with Queue(f"{queue.name}-dead", url) as dead:
        await queue.revoke(job.id)  # nobody delivers its entry
        async with quick(queue):
            await reach(dead.count)


@pytest.mark.slow
async def test_schedulers_fire_although_the_holder_of_the_queue_died(queue: Queue, resp: RespClient):
    await queue.schedulers.upsert("s", every=2_000, template={"name": "tick"})
    Raw(resp, queue.name).run("SET", "lock:maintenance", "dead", "PX", 30_000)
    async with Maintenance([queue]):
        await reach(lambda: counted(queue, 3))
    jobs = await queue.get_jobs("waiting")
    await asyncio.gather(*(job.reload() for job in jobs))
    times = sorted(job.scheduled_for or 0 for job in jobs)
    assert times == [*range(times[0], times[-1] + 1, 2_000)]  # no run is lost


async def counted(queue: Queue, least: int) -> bool:
    return await queue.count() >= least


async def test_a_parent_in_another_queue_goes_on(queue: Queue, url: str):
    """The child ends by a removal, which only leaves an entry in the outbox of its queue."""
    async with Queue(f"{queue.name}-parents", url) as parents, FlowProducer(url) as flows:
        tree = await flows.add({
            "name": "parent", "queue": parents.name,
            "children": [{"name": "child", "queue": queue.name, "options": {"on_failure": "ignore"}}],
        })  # fmt: skip
        await queue.revoke(tree.children[0].job.id)
        async with Maintenance([queue, parents]):
            await reach(lambda: is_waiting(parents, tree.job.id))


async def test_an_idle_queue_costs_one_command_a_minute(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    link = await connected(queue)
    sent: list[str] = []
    call = link.transport.call

    async def counting(request: Any):
        sent.append(request.function)
        return await call(request)

    monkeypatch.setattr(link.transport, "call", counting)
    task = await task_of(queue)
    assert await look(task) == IDLE_S
    # Another test may have loaded the library of Node clients, which may block groups.
    assert [each for each in sent if each != "blocked_groups"] == ["maintenance_due"]
    await task.close()


async def test_one_holder_at_a_time(queue: Queue, resp: RespClient):
    await queue.add("n")
    await queue.fetch(1)
    first, second = [await task_of(queue) for _ in range(2)]
    assert await look(first) == BUSY_S
    assert await look(second) > 50
    assert (runs(first), runs(second)) == (True, False)
    await first.close()
    assert await look(second) == BUSY_S
    Raw(resp, queue.name).run("SET", "lock:maintenance", "another")
    assert await look(second) > 50
    assert not runs(second)
    await second.close()
    assert Raw(resp, queue.name).run("GET", "lock:maintenance") == "another"


async def test_starting_twice_is_rejected(queue: Queue):
    async with Maintenance([queue]) as maintenance:
        with pytest.raises(GlideMQError, match="the maintenance was already started"):
            await maintenance.start()


async def test_a_run_that_is_cancelled_twice_leaves_no_task(url: str, queue_name: str):
    def tasks() -> list[Any]:
        return [task for task in asyncio.all_tasks() if task.get_name() == f"glidemq-maintenance-{queue_name}"]

    async with Queue(queue_name, url) as queue:
        running = asyncio.create_task(Maintenance([queue]).run())
        await with_timeout(until(tasks))
        for _ in range(2):
            running.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(running)
        await with_timeout(until(lambda: not tasks()))
