"""Test figures per job name with workers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, JobFailedError, MetricsByNameSetting, Queue, Worker
from glidemq_py._operate.operating import Operator
from glidemq_py._worker import metrics_sender
from glidemq_py.sync import Queue as BlockingQueue
from tests.server.dashboard.support import browsing
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


async def test_figures_of_partitions_are_summed(url: str, queue_name: str) -> None:
    """Percentiles are those of all durations, not means of those of the partitions."""
    async with Queue[Any, Any](queue_name, url, partitions=3) as queue:
        await queue.set_metrics_by_name(120)
        bulks = [await queue.add_bulk([("fast", n) for n in range(20)] + [("slow", 0)]) for _ in range(3)]
        jobs = [job for bulk in bulks for job in bulk]
        assert len({job.id.partition("||")[0] for job in jobs if "||" in job.id}) == 2, "all partitions have jobs"
        async with Worker(queue_name, work, url, concurrency=5):
            for job in jobs:
                await job.wait_until_finished()
        found = {each.name: each for each in await queue.get_metrics_by_name(interval=None)}
        assert {name: (each.completed, each.wait.count, each.run.count) for name, each in found.items()} == {
            "fast": (60, 60, 60), "slow": (3, 3, 3),
        }  # fmt: skip
        assert 45 <= found["slow"].run.p50 <= found["slow"].run.p99
        per_minute = await queue.get_metrics_by_name()
        assert sum(each.completed for each in per_minute) == 63
        assert len({(each.timestamp, each.name) for each in per_minute}) == len(per_minute)
        assert [each.name for each in await queue.get_metrics_by_name(name="slow", interval=None)] == ["slow"]
        with pytest.raises(GlideMQValidationError, match="whole minutes"):
            await queue.get_metrics_by_name(interval=61_000)

        def read() -> list[Any]:
            with BlockingQueue[Any, Any](queue_name, url) as blocking:
                return blocking.get_metrics_by_name()

        assert await asyncio.to_thread(read) == per_minute
        async with Operator(url) as operator:
            summed, setting = await operator.get_metrics_by_name(queue_name, 3_600_000)
            assert (sorted(each.completed for each in summed), setting.minutes) == ([3, 60], 120)
        async with browsing(url) as client:
            for page in ("queue", "metrics"):
                shown = (await client.get(f"/{page}?q={queue_name}")).text
                assert 'name%3Afast">fast</a></td><td class="num">60</td>' in shown
