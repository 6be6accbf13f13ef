"""`Queue.check` on consistent, damaged and busy queues."""

import asyncio
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job
from glidemq_py.records import FindingKind
from tests.contract.api import Queue, own_id
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, WorkerFor


async def test_consistent_queue_has_no_findings(url: Any, queue: Queue):
    assert (await queue.check()).ok
    await queue.add_bulk([("n", n, {"priority": n % 3, "delay": 1_000 * (n % 2)}) for n in range(600)])
    report = await queue.check()
    assert report.ok
    assert (report.jobs, report.looks) == (600, 1)


async def test_findings_are_reported_and_repaired(raw: Raw, queue: Queue, worker_for: WorkerFor):
    job = await queue.add("n")
    for base in raw.bases:
        raw.resp.execute("XTRIM", f"{base}:stream", "MAXLEN", 0)
    raw.run("RPUSH", "log:gone", "line")
    report = await queue.check(recheck_after=1)
    assert not report.ok
    assert report.counts == {FindingKind.LOST_JOB: 1, FindingKind.ORPHAN_KEY: 1}
    assert f"lost_job: {own_id(job)}: is waiting, but no stream, list or set contains it" in str(report)
    report = await queue.check(repair=True, recheck_after=1)
    assert report.ok
    assert str(report).count("(repaired)") == 2
    assert (await queue.check()).findings == ()

    async def handle(job: Job) -> str:
        return job.id

    async with worker_for(handle):
        assert await job.wait_until_finished() == job.id


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recheck_after": -1}, r"option 'recheck_after' = -1: "),
    ],
)
async def test_invalid_arguments_are_rejected(url: Any, queue: Queue, arguments: Any, message: str):
    with pytest.raises(GlideMQValidationError, match=message):
        await queue.check(**arguments)


@pytest.mark.slow
async def test_busy_queue_has_no_findings(queue: Queue, worker_for: WorkerFor):
    """Workers fetch, retry and complete jobs during the checks. Nothing is reported, and repairs touch nothing."""
    failed_once: set[str] = set()

    async def handle(job: Job):
        await asyncio.sleep(0)
        if job.name == "fails" and job.id not in failed_once:
            failed_once.add(job.id)
            raise ValueError("once")

    options: list[dict[str, Any]] = [
        {}, {"priority": 2}, {"lifo": True}, {"delay": 5}, {"ordering": "a"},
        {"ordering": {"key": "b", "concurrency": 3}},
    ]  # fmt: skip
    async with worker_for(handle, concurrency=20) as worker:
        recorded = EventRecorder(worker)
        reports = []
        for round_ in range(6):
            await queue.add_bulk(
                [("fails" if n % 7 == 0 else "n", n, {"attempts": 2, **options[n % 6]}) for n in range(300)]
            )
            reports.append(await queue.check(repair=round_ % 2 == 1, recheck_after=20))
        await recorded.wait("completed", 1_800)
        reports.append(await queue.check())
        assert [str(report) for report in reports if report.findings] == []
        assert (await queue.get_job_counts()).completed == 1_800
