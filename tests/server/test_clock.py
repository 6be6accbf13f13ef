"""The clock of a real server is set back or ahead (tests/contract/transcripts/clock/steps.txt has the table)."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError, Queue, Worker
from glidemq_py.testing import ServerProcess
from tests.chaos.rows import clocks
from tests.server.worker_support import Raw, StartServer, WorkerFor, until, with_timeout


@pytest.fixture
def moving(private_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ServerProcess, Path]:
    """Return a server whose clock has the offset that is in a file."""
    if reason := clocks.missing("server"):
        pytest.skip(reason)
    offset = tmp_path / "offset"
    offset.write_text("+0")
    with monkeypatch.context() as patch:
        for name, value in (clocks.follow(offset) | {"FAKETIME_NO_CACHE": "1"}).items():
            patch.setenv(name, value)
        return private_server("valkey-9.1"), offset


@pytest.mark.slow
@pytest.mark.parametrize("step", ["-10s", "-3600s", "-3456000s"])
async def test_work_goes_on(moving: tuple[ServerProcess, Path], step: str):
    server, offset = moving
    ran: Counter[str] = Counter()
    ready = asyncio.Event()

    async def handle(job: Job):
        ran[job.name] += 1
        if job.name == "retry" and not job.attempts_made:
            ready.set()
            raise ValueError("for the test")
        if job.name == "suspended":
            job.suspend(timeout=1_500)

    options: Any = {"lock_duration": 1_000, "stalled_interval": 1_000}
    async with Queue("clock", server.url) as queue, asyncio.timeout(90):
        lost = await queue.add("lost")
        with server.client() as raw:  # a worker that dies at once
            group = ("GROUP", "workers", "py-dead", "STREAMS", "glide:{clock}:stream", ">")
            raw.execute("XGROUP", "CREATE", "glide:{clock}:stream", "workers", "0")
            assert raw.execute("XREADGROUP", *group)
            raw.execute("ZADD", "glide:{clock}:workers", time.time_ns() // 1_000_000, "py-dead")
            raw.execute("SET", "glide:{clock}:w:py-dead", "{}", "PX", 3_000)
        async with Worker("clock", handle, server.url, concurrency=20, **options):
            suspended = await queue.add("suspended")
            delayed = await queue.add("delayed", delay=1_500)
            retried = await queue.add("retry", attempts=2, backoff=1_500)
            for name, how in (("every", {"every": 200}), ("after", {"repeat_after_complete": 200})):
                await queue.schedulers.upsert(name, template={"name": name}, **how)  # type: ignore[arg-type]
            await ready.wait()
            offset.write_text(step)
            for job in (lost, delayed, retried):
                await job.wait_until_finished()
            with pytest.raises(JobFailedError, match="Suspend timeout"):
                await suspended.wait_until_finished()
            before = ran.copy()
            while min(ran[name] - before[name] for name in ("every", "after")) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            while len(await queue.get_workers()) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


FORTY_DAYS_S = 40 * 86_400


async def test_channels_of_idle_workers_do_not_expire_at_the_jump(
    worker_for: WorkerFor, url: str, queue_name: str, raw: Raw
):
    """Without them a job that is delayed wakes no idle worker: it is found in the next round, up to 30 s later."""
    async with Queue(queue_name, url, partitions=2) as queue, worker_for(lambda _: None):
        await queue.add("x")
        await with_timeout(until(lambda: raw.run("ZCARD", "wake-channels") == 1))
        assert raw.run("TTL", "wake-channels") > FORTY_DAYS_S
