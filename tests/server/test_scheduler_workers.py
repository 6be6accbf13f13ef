"""Schedulers by the real clock: workers that fire them, several processes, a worker that dies, lateness."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Job, Queue, Scheduler, Worker
from tests.inside import fetching_of
from tests.server.lossy_proxy import LossyProxy
from tests.server.worker_support import EventRecorder, Raw, WorkerFor, until, with_timeout

ROOT = Path(__file__).parents[2]


async def nothing(job: Job):
    """Runs at once."""


def lateness(raw: Raw, ids: list[str]) -> list[int]:
    jobs = [raw.job(each) for each in ids]
    return [int(job["timestamp"]) - int(job["scheduledFor"]) for job in jobs]


async def test_job_has_scheduled_for(queue: Queue, worker_for: WorkerFor):
    worker = worker_for(nothing)
    recorded = EventRecorder(worker)
    async with worker:
        plain = await queue.add("plain")
        made = await queue.schedulers.upsert("tick", every=20, limit=3, misfire="fire_all")
        await recorded.wait("completed", 4)
        assert made.next_run is not None
        jobs = [await queue.get_job(job_id) for job_id in recorded.job_ids("completed")]
        found = {job.id: job.scheduled_for for job in jobs if job is not None}
    assert found.pop(plain.id) is None
    assert sorted(filter(None, found.values())) == [made.next_run + 20 * i for i in range(3)]


@pytest.mark.usefixtures("without_polling")
async def test_new_scheduler_is_noticed_immediately(worker_for: WorkerFor, url: str, queue_name: str):
    worker = worker_for(nothing)
    recorded = EventRecorder(worker)
    async with worker:
        await until_idle(worker)
        async with Queue(queue_name, url) as queue:
            await queue.schedulers.upsert("tick", every=3_600_000)
            async with asyncio.timeout(120):
                await queue.schedulers.upsert("tick", every=3_500_000, immediately=True)
                await recorded.wait("completed")


async def until_idle(worker: Worker):
    fetching = fetching_of(worker)
    assert fetching is not None
    await with_timeout(fetching.idle.wait())


async def test_repeat_after_completion_follows_at_once(raw: Raw, queue: Queue, worker_for: WorkerFor):
    worker = worker_for(nothing)
    recorded = EventRecorder(worker)
    async with worker:
        await queue.schedulers.upsert("crawl", repeat_after_complete=30)
        async with asyncio.timeout(120):
            await recorded.wait("completed", 20)
        await queue.schedulers.remove("crawl")
    jobs = [raw.job(each) for each in recorded.job_ids("completed")[:20]]
    for earlier, later in itertools.pairwise(jobs):
        assert int(later["timestamp"]) >= int(earlier["finishedOn"]) + 30


@pytest.mark.parametrize("function", ["schedulers_due", "schedulers_fire"])
async def test_lost_replies_are_retried(url: str, queue_name: str, server: Any, function: str):
    """A process that did not learn of a firing neither repeats nor skips it."""
    with LossyProxy(server.url) as proxy:
        async with Queue(queue_name, url) as queue, Queue(queue_name, proxy.url) as lossy, Scheduler(lossy):
            made = await queue.schedulers.upsert("tick", every=20, limit=12, misfire="fire_all")
            proxy.lose(f"_{function}", 3)
            async with asyncio.timeout(120):
                while await queue.schedulers.get("tick") is not None:  # noqa: ASYNC110  it emits no event
                    await asyncio.sleep(0.01)
            assert proxy.lost >= 1
            found = [await queue.get_job(job.id) for job in await queue.get_jobs("waiting")]
            assert made.next_run is not None
            instants = sorted(job.scheduled_for or 0 for job in found if job is not None)
            assert instants == [made.next_run + 20 * i for i in range(12)]
            await queue.drain()


async def test_paused_worker_fires(raw: Raw, queue: Queue, worker_for: WorkerFor):
    worker = worker_for(nothing)
    worker.pause()
    await queue.schedulers.upsert("tick", every=20, limit=3)
    async with worker:
        await with_timeout(until(lambda: raw.run("XLEN", "stream") == 3))


PROCESS = """
import asyncio, sys
from glidemq_py import Queue, Scheduler, Worker
async def nothing(job): pass
async def main():
    async with Worker(sys.argv[1], nothing, sys.argv[2], concurrency=4):
        print("up", flush=True)
        await asyncio.get_running_loop().create_future()
asyncio.run(main())
"""


@pytest.mark.slow
async def test_other_processes_take_over_when_one_dies(url: str, raw: Raw, queue: Queue, queue_name: str):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for name, every in (("a", 40), ("b", 70), ("c", 110)):
        await queue.schedulers.upsert(name, every=every, misfire="fire_all")
    processes = [
        subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", PROCESS, queue_name, url], env=environment, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == b"up\n"

        async def reach(count: int):
            while (await queue.get_job_counts()).completed < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        await with_timeout(reach(60))
        processes[0].send_signal(signal.SIGKILL)
        await with_timeout(reach(120))
        processes[1].send_signal(signal.SIGKILL)
        await with_timeout(reach(200))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    schedulers = {each.name: each for each in await queue.schedulers.get_all()}
    count = int(raw.run("GET", "id"))
    jobs = [raw.job(str(i)) for i in range(1, count + 1)]
    fired = Counter((job["name"], int(job["scheduledFor"])) for job in jobs)
    assert set(fired.values()) == {1}
    for name, scheduler in schedulers.items():
        instants = sorted(at for of, at in fired if of == name)
        assert scheduler.schedule.every is not None
        # None is missing either: fire_all fires every one of them.
        assert {later - earlier for earlier, later in itertools.pairwise(instants)} == {scheduler.schedule.every}
        assert len(instants) == scheduler.iteration_count
