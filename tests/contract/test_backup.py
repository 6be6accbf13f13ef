"""Backups of every kind of queue: a restored queue, or a copy of it, goes on where the queue was."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import FlowJob, Job, Worker
from glidemq_py.errors import QueueNotEmptyError
from tests.contract.api import FlowProducer, Queue
from tests.inside import keyed

KEYS = [f"customer-{number}" for number in range(6)]


async def fill(queue: Queue, url: str):
    """Add jobs of many kinds, and let some of them end."""
    await queue.add_bulk([("done", at, {"job_id": f"done-{at}"}) for at in range(6)])
    async with Worker(queue.name, work, url) as worker:
        await worker.drain()
    await queue.add_bulk([("ordered", [key, at], {"ordering": {"key": key}}) for at in range(5) for key in KEYS])
    needed = [await queue.add("needed", job_id=keyed(at, 3)) for at in range(3)]
    await queue.add("last", job_id="last", depends_on=needed)
    await queue.add_bulk([("later", None, {"delay": 3_600_000})] * 4)
    await queue.limits.set_concurrency(30)
    async with FlowProducer(url) as flows:
        leaves = [FlowJob("leaf", queue.name, at, {"job_id": f"leaf-{at}"}) for at in range(6)]
        await flows.add(FlowJob("root", queue.name, options={"job_id": "root"}, children=leaves))


async def work(job: Job):
    return sorted(await job.get_children_values()) or job.data


async def contents(queue: Queue) -> dict[str, tuple[Any, ...]]:
    """Return what is compared of each job."""
    found: dict[str, tuple[Any, ...]] = {}
    states = ("waiting", "delayed", "completed", "failed", "group-waiting", "waiting-children", "prioritized", "active")
    for state in states:
        async for job in queue.iter_jobs(state):
            shown = "waiting" if state == "group-waiting" else state  # a restore starts one job per ordering key
            found[job.id] = (job.name, job.data, shown, job.returnvalue)
    return found


async def check_that_all_run(queue: Queue, url: str):
    """Run the jobs: relations hold, and the order of keys."""
    order: defaultdict[str, list[int]] = defaultdict(list)

    async def handle(job: Job):
        if job.name == "ordered":
            order[job.data[0]].append(job.data[1])
        return await work(job)

    async with Worker(queue.name, handle, url, concurrency=6):
        last, root = await queue.get_job("last"), await queue.get_job("root")
        assert last is not None
        assert root is not None
        needed = sorted(keyed(at, 3) for at in range(3))
        values = await last.wait_until_finished()
        assert sorted(name.rpartition("||")[2].rpartition(":")[2] for name in values) == needed
        assert all(name.startswith(f"glide:{{{queue.name}}}:") for name in values)
        assert len(await root.wait_until_finished()) == 6
        for number, key in enumerate(KEYS):
            probe = await queue.add("ordered", [key, 5], ordering={"key": key})
            assert (await queue.groups.get(key)) is not None, number
            await probe.wait_until_finished()
    assert order == {key: [0, 1, 2, 3, 4, 5] for key in KEYS}


async def test_a_restored_queue_is_as_before(queue: Queue, url: Any, tmp_path: Path):
    await fill(queue, url)
    before = await contents(queue)
    info = await queue.backups.create(tmp_path)
    assert (info.queue, info.jobs) == (queue.name, len(before))
    assert await queue.backups.get_all(tmp_path) == [info]
    assert await queue.backups.verify(tmp_path) == info
    partitions = await queue.settings.get_partitions()
    await queue.obliterate(force=True)
    async with Queue(queue.name, url) as again:
        report = await again.backups.restore(tmp_path)
        assert (report.jobs, report.queue, report.resumed) == (len(before), queue.name, False)
        assert await again.settings.get_partitions() == partitions
        assert await contents(again) == before
        assert (await again.limits.get()).concurrency == 30
        assert str((await again.add("done", job_id="done-3")).outcome) == "duplicate"
        await check_that_all_run(again, url)


async def test_a_copy_under_another_name_keeps_its_relations(queue: Queue, url: Any, tmp_path: Path):
    async with Queue(f"{queue.name}-c", url) as copy:
        await fill(queue, url)
        await queue.backups.create(tmp_path)
        report = await copy.backups.restore(tmp_path, source=queue.name)
        assert report.queue == copy.name
        assert await contents(copy) == await contents(queue)
        assert (await copy.check()).ok
        await check_that_all_run(copy, url)
        assert (await queue.get_job_counts()).waiting_children == 2
        with pytest.raises(QueueNotEmptyError, match="has jobs") as raised:
            await copy.backups.restore(tmp_path, source=queue.name)
        assert raised.value.queue == copy.name
