"""Test timelines with workers."""

from pathlib import Path

import pytest

from glidemq_py import Job
from glidemq_py.records import TimelineSetting
from tests.contract.api import Queue
from tests.server.worker_support import WorkerFor

pytestmark = pytest.mark.usefixtures("clean_check")


async def fail_once(job: Job):
    if not job.attempts_made:
        raise ValueError("first attempt")


async def test_from_add_to_end(queue: Queue, worker_for: WorkerFor):
    await queue.timelines.set(max_entries=20)
    assert await queue.timelines.get_setting() == TimelineSetting(1.0, 20)
    job = await queue.add("a", attempts=2, delay=1)
    async with worker_for(fail_once):
        await job.wait_until_finished()
    found = await queue.timelines.get(job.id)
    assert [entry.state.value for entry in found] == [
        "delayed", "waiting", "active", "delayed", "waiting", "active", "completed",
    ]  # fmt: skip
    assert [entry.worker != "" for entry in found] == [False, False, True, True, False, True, True]
    assert len({entry.worker for entry in found}) == 2
    times = [entry.at for entry in found]
    assert times == sorted(times)
    finished = await queue.get_job(job.id)
    assert finished is not None
    assert (times[0], times[-1]) == (finished.timestamp, finished.finished_on)
    assert await queue.timelines.get_setting() == TimelineSetting(1.0, 20)


async def test_steps_are_entries(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        await job.run("charge", int, "5")
        await job.sleep("cooling off", 1)

    await queue.timelines.set()
    job = await queue.add("a")
    async with worker_for(handle):
        await job.wait_until_finished()
    found = await queue.timelines.get(job.id)
    assert [entry.step for entry in found if entry.step] == ["charge: done", "cooling off: sleeping"]
    assert [entry.state.value for entry in found if not entry.step] == [
        "waiting", "active", "delayed", "waiting", "active", "completed",
    ]  # fmt: skip
    assert found == sorted(found, key=lambda entry: entry.at)


async def test_off(queue: Queue):
    assert await queue.timelines.get_setting() == TimelineSetting()
    await queue.timelines.set(0.5)
    assert (await queue.timelines.get_setting()).sample == 0.5
    await queue.timelines.set(0)
    assert await queue.timelines.get_setting() == TimelineSetting()
    job = await queue.add("a")
    assert await queue.timelines.get(job.id) == []
    assert await queue.timelines.get("none") == []


async def test_backup_keeps_timelines(queue: Queue, tmp_path: Path):
    await queue.timelines.set()
    job = await queue.add("a")
    found = await queue.timelines.get(job.id)
    await queue.backups.create(tmp_path / "backup")
    await queue.obliterate(force=True)
    assert await queue.timelines.get(job.id) == []
    await queue.backups.restore(tmp_path / "backup")
    assert await queue.timelines.get(job.id) == found
    assert (await queue.timelines.get_setting()).sample == 1.0
