"""`Scheduler` and `Maintenance` of partitioned queues, also of those that are created meanwhile."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_py import Maintenance, Queue, Scheduler, sync
from glidemq_py._api.partition_tasks import PartitionTasks
from glidemq_py.testing import RespClient
from tests.inside import partition_of_key, parts
from tests.inside import queues as services
from tests.server.worker_support import Raw, until, with_timeout

PARTITIONS = 3


def maintained(queue: Queue) -> Maintenance:
    return Maintenance([queue])


def maintained_by_thread(queue: sync.Queue) -> sync.Maintenance:
    return sync.Maintenance([queue])


def named(partition: int) -> str:
    return next(name for n in range(1_000) if partition_of_key(name := f"s{n}", PARTITIONS) == partition)


async def create_schedulers(queue: Queue):
    for partition in range(PARTITIONS):
        await queue.schedulers.upsert(
            named(partition), every=3_600_000, immediately=True, template={"name": named(partition)}
        )


async def all_fired(queue: Queue):
    wanted = {named(partition) for partition in range(PARTITIONS)}
    while {job.name for job in await queue.get_jobs("waiting")} != wanted:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def tasks_of(service: Scheduler | Maintenance) -> PartitionTasks:
    (tasks,) = service._tasks
    assert isinstance(tasks, PartitionTasks)
    return tasks


@pytest.mark.parametrize("give", ["plain", "cluster"])
@pytest.mark.parametrize("serve", [Scheduler, maintained], ids=["scheduler", "maintenance"])
async def test_schedulers_of_all_partitions_fire(
    serve: Callable[[Queue], Any], give: str, request: pytest.FixtureRequest, queue_name: str
):
    url: str = request.getfixturevalue("cluster_url" if give == "cluster" else "url")
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        await create_schedulers(queue)
        async with serve(queue):
            await with_timeout(all_fired(queue))


async def test_a_scheduler_finds_partitions_that_another_client_adds(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(services, "_POLL_S", 0.02)
    monkeypatch.setattr(parts, "LAYOUT_S", 0.0)
    async with (
        Queue(queue_name, url) as queue, Scheduler(queue) as service,
        Queue(queue_name, url, partitions=PARTITIONS) as operator,
    ):  # fmt: skip
        await create_schedulers(operator)
        await with_timeout(all_fired(operator))
        assert len(tasks_of(service).tasks) == PARTITIONS
        await operator.obliterate()
        await with_timeout(until(lambda: len(tasks_of(service).tasks) == 1))


async def expiring(queue: Queue):
    """Fetch a job of each partition, and let the leases expire."""
    await queue.add_bulk([("n", at, {"job_id": named(at)}) for at in range(PARTITIONS)])
    assert len(await queue.fetch(PARTITIONS, lock_duration=1_000)) == PARTITIONS


async def all_waiting(queue: Queue):
    while (await queue.get_job_counts()).waiting < PARTITIONS:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_maintenance_finds_partitions_that_another_client_adds(url: str, queue_name: str):
    queue, operator = Queue(queue_name, url), Queue(queue_name, url, partitions=PARTITIONS)
    service = Maintenance([queue], lock_duration=1_000, stalled_interval=1_000)
    async with queue, service, operator:
        await expiring(operator)
        service.wake()
        await with_timeout(all_waiting(operator))


async def test_the_call_for_partition_0_returns_the_layout(queue: Queue, url: str, queue_name: str, resp: RespClient):
    """An idle queue needs no other call to find new partitions."""
    async with Maintenance([queue]) as service:
        raw = Raw(resp, queue_name)
        await with_timeout(until(lambda: raw.run("GET", "lock:maintenance")))
        operator = Queue(queue_name, url, partitions=PARTITIONS)
        await operator.connect()
        (task,) = tasks_of(service).tasks
        task.wake()  # type: ignore[attr-defined]
        await with_timeout(until(lambda: len(tasks_of(service).tasks) == PARTITIONS))
        names = (await operator.settings.get_partitions()).names
        locks = [Raw(resp, name) for name in names]
        await with_timeout(until(lambda: all(lock.run("GET", "lock:maintenance") for lock in locks)))
        await operator.close()
    assert not any(lock.run("GET", "lock:maintenance") for lock in locks)


def reach(reached: Callable[[], object], seconds: float = 60):
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("serve", [sync.Scheduler, maintained_by_thread], ids=["scheduler", "maintenance"])
def test_blocking_code(serve: Callable[[sync.Queue], Any], url: str, queue_name: str):
    with sync.Queue(queue_name, url, partitions=PARTITIONS) as queue:
        for partition in range(PARTITIONS):
            queue.schedulers.upsert(named(partition), every=3_600_000, immediately=True)
        with serve(queue):
            reach(lambda: queue.count() == PARTITIONS)
    with sync.Queue(f"{queue_name}-2", url, partitions=2) as queue, serve(queue):
        queue.count()
        assert queue.settings.get_partitions().count == 2  # the service may be the first to open it
