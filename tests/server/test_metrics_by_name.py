"""Test figures per job name with workers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, JobFailedError, MetricsByNameSetting, Queue, Worker
from glidemq_py._worker import metrics_sender
from glidemq_py.sync import Queue as BlockingQueue
from tests.server.worker_support import until, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")


async def work(job: Job) -> None:
    if job.name == "slow":
        await asyncio.sleep(0.05)
    if job.name == "bad" and job.attempts_made < job.data["failures"]:
        raise ValueError("bad")


async def test_counts_and_percentiles(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        assert await queue.get_metrics_by_name_setting() == MetricsByNameSetting()
        await queue.set_metrics_by_name(120, max_names=10)
        assert await queue.get_metrics_by_name_setting() == MetricsByNameSetting(120, 10)
        jobs = await queue.add_bulk(
            [("fast", None)] * 20 + [("slow", None)] * 3
            + [("bad", {"failures": 1}, {"attempts": 2}), ("bad", {"failures": 9}, {"attempts": 2})],
        )  # fmt: skip
        async with Worker(queue_name, work, url, concurrency=5, log_failures=False):
            for job in jobs[:-1]:
                await job.wait_until_finished()
            with pytest.raises(JobFailedError):
                await jobs[-1].wait_until_finished()
        found = {each.name: each for each in await queue.get_metrics_by_name(interval=None)}
        assert {name: (each.completed, each.failed, each.retried) for name, each in found.items()} == {
            "fast": (20, 0, 0), "slow": (3, 0, 0), "bad": (1, 1, 2),
        }  # fmt: skip
        assert (found["fast"].wait.count, found["fast"].run.count) == (20, 20)
        assert (found["bad"].wait.count, found["bad"].run.count) == (2, 4)
        run = found["slow"].run
        assert 45 <= run.p50 <= run.p95 <= run.p99
        assert run.avg >= 45
        (slow,) = await queue.get_metrics_by_name(name="slow", interval=timedelta(hours=1))
        assert (slow.name, slow.run) == ("slow", run)
        per_minute = await queue.get_metrics_by_name()
        assert sum(each.completed for each in per_minute) == 24
        assert all(each.timestamp % 60_000 == 0 for each in per_minute)
        assert await queue.get_metrics_by_name(end=datetime.now(UTC) - timedelta(hours=2)) == []
        with BlockingQueue(queue_name, url) as blocking:
            assert blocking.get_metrics_by_name() == per_minute


async def test_idle_worker_sends(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_sender, "INTERVAL_S", 0.05)
    async with Queue(queue_name, url) as queue:
        await queue.set_metrics_by_name()
        async with Worker(queue_name, work, url) as worker:
            for _ in range(2):
                await (await queue.add("fast")).wait_until_finished()
            fetching = worker._fetching
            assert fetching is not None
            await with_timeout(until(lambda: fetching.jobs_ended == 2 and fetching.by_name.is_empty))
            assert sum(each.completed for each in await queue.get_metrics_by_name()) == 2


async def test_off_for_a_worker_and_for_the_queue(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.set_metrics_by_name()
        async with Worker(queue_name, work, url, metrics=False):
            await (await queue.add("fast")).wait_until_finished()
        assert await queue.get_metrics_by_name() == []
        await queue.set_metrics_by_name(0)
        async with Worker(queue_name, work, url):
            await (await queue.add("fast")).wait_until_finished()
        assert await queue.get_metrics_by_name() == []


async def test_handlers_in_threads(url: str, queue_name: str) -> None:
    def handle(job: Job[Any, Any]) -> None: ...

    async with Queue(queue_name, url) as queue:
        await queue.set_metrics_by_name()
        async with Worker(queue_name, handle, url, concurrency=3):
            for job in await queue.add_bulk([("plain", None)] * 5):
                await job.wait_until_finished()
        assert [(each.name, each.completed) for each in await queue.get_metrics_by_name(interval=None)] == [
            ("plain", 5)
        ]


async def test_invalid_arguments(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        with pytest.raises(GlideMQValidationError, match="minutes"):
            await queue.set_metrics_by_name(-1)
        with pytest.raises(GlideMQValidationError, match="max_names"):
            await queue.set_metrics_by_name(max_names=0)
        with pytest.raises(GlideMQValidationError, match=r"interval.*must be whole minutes"):
            await queue.get_metrics_by_name(interval=90_000)
        with pytest.raises(GlideMQValidationError, match="window"):
            await queue.get_metrics_by_name(timedelta(days=31))
        with pytest.raises(GlideMQValidationError, match=r"option 'window' = 5: must be .* from 60,000 to "):
            await queue.get_metrics_by_name(5)  # minutes were meant
