"""A job that kills its process, and a deploy that kills every process: neither fails any other job."""

import os
import re
import signal
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from glidemq_py import Queue
from glidemq_py.testing import RespClient
from tests.server.command import Command
from tests.server.worker_support import Raw, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("clean_check"),
    pytest.mark.parametrize("core_server", ["valkey-9.1", "cluster"], indirect=True),
]

APPLICATION = """
    import asyncio, os, signal
    from pathlib import Path
    from glidemq_py import Worker

    GATE = Path(__file__).parent / "gate"

    def say(line):
        os.write(1, f"{line}\\n".encode())  # in one piece: the processes share the pipe

    async def run(job):
        if job.name == "poison":
            say(f"poison {job.id} in {os.getpid()}")
            await asyncio.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0.5)
        return job.id

    async def long(job):
        say(f"began {job.id} in {os.getpid()}")
        while not GATE.exists():
            await asyncio.sleep(0.1)
        if job.name == "poison":
            return await run(job)

    # A lock must outlast the pauses of a busy machine: a living job that loses its lock while it runs alone is charged.
    QUICK = {"lock_duration": 4_000, "stalled_interval": 1_000}
    poisoned = Worker(os.environ["QUEUE"], run, concurrency=20, **QUICK)
    deployed = Worker(os.environ["QUEUE"], long, concurrency=101, **QUICK)
"""


def bound(concurrency: int) -> int:
    """Return the largest number of deaths of a poison job: the halvings, one death alone, `max_stalled_count` more."""
    return concurrency.bit_length() - 1 + 1 + 1


Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path, core_url: str, queue_name: str) -> Start:
    (tmp_path / "application.py").write_text(textwrap.dedent(APPLICATION))
    environment: dict[str, str | None] = {"GLIDEMQ_URL": core_url, "QUEUE": queue_name}
    return lambda *arguments: Command(tmp_path, "glidemq_py.worker", *arguments, env=environment)


@pytest.mark.timeout(1_000)
async def test_a_poison_job_fails_alone(start: Start, core_url: str, core_resp: RespClient, queue_name: str):
    raw = Raw(core_resp, queue_name)
    async with Queue(queue_name, core_url) as queue:
        jobs = await queue.add_bulk([("poison" if n == 40 else "good", n) for n in range(161)])
        poison = jobs[40]
        with start("application:poisoned", "--processes", "3") as command:
            await until(lambda: raw.run("ZCARD", "completed") == 160 and raw.run("ZCARD", "failed") == 1)
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0
        assert await poison.get_state() == "failed"
        failed = await queue.get_job(poison.id)
        assert failed is not None
        assert failed.failed_reason == "job stalled more than maxStalledCount"
        deaths = len(re.findall(r"^poison", command.text, re.MULTILINE))
        assert 1 < deaths <= bound(20)
    assert [job.id for job in jobs if job is not poison and raw.job(job.id).get("stalledCount")] == []
    assert raw.run("ZCARD", "suspects") == 0


@pytest.mark.timeout(1_000)
async def test_a_deploy_that_kills_every_process_charges_no_job(
    start: Start, tmp_path: Path, core_url: str, core_resp: RespClient, queue_name: str
):
    """All 201 jobs are suspects at once, one of them is poison. Half run again at the same time; the 200 complete."""
    raw = Raw(core_resp, queue_name)
    async with Queue(queue_name, core_url) as queue:
        jobs = await queue.add_bulk([("poison" if n == 120 else "long", n) for n in range(201)])
        poison = jobs[120]
        with start("application:deployed", "--processes", "2") as command:
            began = await command.printed(r"began (\d+) in (\d+)", times=201)
            before = {int(match[2]) for match in began}
            assert len(before) == 2
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            again = (await command.printed(r"began (\d+) in (\d+)", times=301))[201:]
            assert len({match[1] for match in again[:100]}) == 100
            assert raw.run("ZCARD", "completed") == raw.run("ZCARD", "failed") == 0
            (tmp_path / "gate").touch()
            await until(lambda: raw.run("ZCARD", "completed") == 200 and raw.run("ZCARD", "failed") == 1)
            command.signal(signal.SIGTERM)
            assert await command.ends() == 0
        failed = await queue.get_job(poison.id)
        assert failed is not None
        assert failed.failed_reason == "job stalled more than maxStalledCount"
        deaths = len(re.findall(r"^poison", command.text, re.MULTILINE)) + 1  # the deploy is the first
        assert 1 < deaths <= bound(101)
    assert [job.id for job in jobs if job is not poison and raw.job(job.id).get("stalledCount")] == []
    assert raw.run("ZCARD", "suspects") == 0
