"""Usage: reported by handlers, read with the job, summed over flows and queues."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, get_usage_summary
from glidemq_py.records import FlowUsage, JobUsage
from glidemq_py.testing import RespClient
from tests.contract.api import Queue, QueueEvents
from tests.server.worker_support import WorkerFor, with_timeout


async def test_plain_handler_can_report(queue: Queue, worker_for: WorkerFor):
    def handler(job: Job):
        job.blocking.report_usage(tokens={"input": 3})

    async with worker_for(handler):
        job = await queue.add("task")
        await job.wait_until_finished()
        read = await queue.get_job(job.id)
        assert read is not None
        assert read.usage == JobUsage(tokens={"input": 3}, total_tokens=3)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"tokens": {"input": float("inf")}}, "tokens.input"),
        ({"total_cost": float("nan")}, "total_cost"),
        ({"latency": timedelta(seconds=-1)}, "latency"),
    ],
)
async def test_invalid_reports_are_rejected(url: Any, queue: Queue, given: Any, option: str):
    job = await queue.add("task")
    with pytest.raises(GlideMQValidationError) as raised:
        await job.report_usage(**given)
    assert raised.value.option == option
    read = await queue.get_job(job.id)
    assert read is not None
    assert read.usage is None


async def test_usage_event_is_emitted(url: Any, queue: Queue, queue_name: str):
    async with QueueEvents(queue_name, url) as events:
        received: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        events.on("usage", received.set_result)
        await events.wait_until_ready()
        job = await queue.add("task")
        await job.report_usage(tokens={"input": 3})
        event = await with_timeout(received)
        assert (event.job_id, event.fields["data"]) == (
            job.id, '{"totalTokens":3,"totalCost":0,"tokens":{"input":3}}',
        )  # fmt: skip


async def test_token_limiter_counts_reported_usage(parts: int, queue: Queue, worker_for: WorkerFor):
    begun: list[str] = []

    async def handler(job: Job):
        begun.append(job.id)
        await job.report_tokens(1)
        await job.report_usage(tokens={"input": 50})

    rows: Any = [("task", None, {"fair_key": "k"})] * 2
    jobs = await queue.add_bulk(rows)
    limiter = {"max_tokens": 50 * parts, "duration": 3_600_000, "scope": "queue"}
    async with worker_for(handler, token_limiter=limiter):
        await jobs[0].wait_until_finished()
        await queue.add_bulk(rows)
    assert begun == [jobs[0].id]


async def test_usage_summary_covers_several_queues(url: Any, queue_name: str):
    prefix = f"usage-{queue_name}"
    other = f"{queue_name}-other"
    async with Queue(queue_name, url, prefix=prefix) as queue, Queue(other, url, prefix=prefix) as second:
        for each, tokens in ((queue, 5), (queue, 6), (second, 7)):
            job = await each.add("task")
            await job.report_usage(model="m", tokens={"input": tokens}, costs={"x": 0.5}, cost_unit="EUR")
        summary = await queue.usage.get_summary()
        assert (summary.queues, summary.job_count, summary.total_tokens, summary.total_cost, summary.cost_unit) == (
            (queue_name, other), 3, 18, 1.5, "EUR",
        )  # fmt: skip
        assert (summary.tokens, summary.models, summary.bucket_size) == ({"input": 18}, {"m": 3}, 60_000)
        assert {name: usage.total_tokens for name, usage in summary.per_queue.items()} == {queue_name: 11, other: 7}
        assert summary.end_time - summary.start_time == 3_600_000
        only = await get_usage_summary(url, prefix=prefix, queues=[other], window=timedelta(days=2))
        assert (only.queues, only.total_tokens) == ((other,), 7)
        before = await queue.usage.get_summary(end=datetime(2020, 1, 1, tzinfo=UTC))
        assert (before.job_count, before.per_queue) == (0, {})
        # An obliterated queue is not in the summary; a later report adds it again.
        await second.obliterate()
        assert (await queue.usage.get_summary()).queues == (queue_name,)
        job = await second.add("task")
        await job.report_usage(total_tokens=1)
        assert (await queue.usage.get_summary()).queues == (queue_name, other)
        for each in (queue, second):
            await each.obliterate()


@pytest.mark.exclude("partitioned", reason="each partition counts as a queue")
async def test_usage_summary_limits_and_invalid_arguments(url: Any, queue: Queue, queue_name: str):
    far = await queue.usage.get_summary([queue_name], window=timedelta(days=100))
    assert far.end_time - far.start_time == 30 * 86_400_000  # no longer than it is kept
    with pytest.raises(GlideMQValidationError, match="at most 100000; use a shorter window"):
        await queue.usage.get_summary([f"q{i}" for i in range(3)], window=timedelta(days=30))
    with pytest.raises(GlideMQValidationError, match="queues"):
        await queue.usage.get_summary(queue_name)
    now = datetime.now(UTC)
    with pytest.raises(GlideMQValidationError, match="window"):
        await queue.usage.get_summary(start=now, window=5)
    with pytest.raises(GlideMQValidationError, match="later than 'end'"):
        await queue.usage.get_summary(start=now, end=now - timedelta(hours=1))


@pytest.mark.exclude("partitioned", reason="the relations are written to one part")
async def test_flow_usage_includes_remote_children(url: Any, resp: RespClient, queue: Queue, queue_name: str):
    other = f"{queue_name}-other"
    async with Queue(other, url) as elsewhere:
        parent = await queue.add("parent")
        near = await queue.add("child")
        far = await elsewhere.add("child")
        silent = await elsewhere.add("child")
        for base, job in ((queue_name, near), (other, far), (other, silent)):
            resp.execute("SADD", f"glide:{{{queue_name}}}:deps:{parent.id}", f"glide:{{{base}}}:{job.id}")
        await parent.report_usage(model="a", tokens={"input": 1}, costs={"x": 0.5}, cost_unit="USD")
        await near.report_usage(model="a", tokens={"input": 2, "output": 4})
        await far.report_usage(model="b", total_tokens=10)
        usage = await queue.usage.get_flow(parent.id)
        assert usage == FlowUsage(
            job_count=3, tokens={"input": 3, "output": 4}, total_tokens=17, costs={"x": 0.5}, total_cost=0.5,
            cost_unit="USD", models={"a": 2, "b": 1},
        )  # fmt: skip
        assert await queue.usage.get_flow("none") == FlowUsage()
        for each in (queue, elsewhere):
            await each.obliterate(force=True)
