"""`glidemq dev`: server, workers and dashboard of a project in one terminal."""

import asyncio
import fcntl
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from glidemq_py.testing import RespClient
from tests.server.command import Command, alive

pytestmark = pytest.mark.slow

JOBS = """
from glidemq_py import Worker

async def handle(job):
    print("handling", job.name)
    return "first"

worker = Worker("emails", handle)
"""

APP = """
import asyncio
from glidemq_py import Queue

async def main():
    async with Queue("emails") as queue:
        print("result", await queue.add_and_wait("welcome", {}, wait_timeout=100_000))

asyncio.run(main())
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def command(folder: Path, module: str, *arguments: str, **env: str | None) -> Command:
    return Command(folder, module, *arguments, env={"GLIDEMQ_NO_PROJECT": None, **env})


def wait_until_stopped(folder: Path):
    with (folder / ".glidemq" / "start").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def read(page: str) -> bytes:
    """Return a page; the dashboard prints no line when it is ready."""
    deadline = time.monotonic() + 100
    while True:
        try:
            with urllib.request.urlopen(page) as reply:
                return reply.read()
        except urllib.error.URLError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


async def answer(folder: Path) -> str:
    with command(folder, "app") as app:
        [found] = await app.printed("result (.*)")
        assert await app.ends() == 0
        return found[1]


async def test_programs_meet_and_workers_reload(shop: Path):
    with command(shop, "glidemq_py.cli", "dev", "jobs:worker", "--port", "0") as dev:
        await dev.printed(r"^jobs:worker \| .* working on 'emails'")
        assert await answer(shop) == "first"
        await dev.printed(r"^jobs:worker \| handling welcome")
        with command(shop, "glidemq_py.cli", "queue", "ls") as shell:
            await shell.printed(r"^emails +0 +0 +0 +1 ")
            assert await shell.ends() == 0
        (shop / "jobs.py").write_text(JOBS.replace("first", "second"))
        await dev.printed("working on 'emails'", 2)
        assert await answer(shop) == "second"
        [page] = await dev.printed(r"^dashboard +\| (http://127.0.0.1:\d+/)")
        assert b"emails" in await asyncio.to_thread(read, page[1])
        assert (shop / ".glidemq").stat().st_mode & 0o777 == 0o700
        assert (shop / ".glidemq" / ".gitignore").read_text() == "*\n"
        children = [int(found[1]) for found in await dev.printed(r"child (\d+) has started", 2)]
        dev.signal(signal.SIGINT)
        assert await dev.ends() == 0
        assert "Traceback" not in dev.text
    wait_until_stopped(shop)
    assert not any(map(alive, children))


async def test_nothing_is_left_if_it_is_killed(shop: Path):
    with command(shop, "glidemq_py.cli", "dev", "jobs:worker", "--port", "0") as dev:
        [found] = await dev.printed(r"child (\d+) has started")
        dev.signal(signal.SIGKILL)
        await dev.ends()
    wait_until_stopped(shop)
    assert not alive(int(found[1]))


async def test_a_worker_without_a_project_says_that_it_is_alone(shop: Path):
    with command(shop, "glidemq_py.cli", "worker", "jobs:worker") as worker:
        await worker.printed("no other process can reach it.* run 'glidemq dev'")
        await worker.printed("working on 'emails'")
        worker.signal(signal.SIGTERM)
        assert await worker.ends() == 0
    assert not (shop / ".glidemq").exists()


async def test_another_server_and_a_used_port(shop: Path, url: str, queue_name: str):
    (shop / "jobs.py").write_text(JOBS.replace("emails", queue_name))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with command(shop, "glidemq_py.cli", "dev", "jobs:worker", "--port", port, "--url", url) as dev:
            await dev.printed(r"^server +\| using valkey://127\.0\.0\.1:\d+$")
            [page] = await dev.printed(r"^dashboard +\| http://127.0.0.1:(\d+)/")
            assert page[1] != port
            await dev.printed("working on")
            with RespClient.from_url(url) as client:
                assert any(queue_name in key for key in client.keys("*:workers"))
            dev.signal(signal.SIGTERM)
            assert await dev.ends() == 0
    assert not (shop / ".glidemq").exists()


async def test_what_cannot_run_is_told(shop: Path):
    (shop / ".glidemq").write_text("")
    with command(shop, "glidemq_py.cli", "dev") as dev:
        await dev.printed("glidemq dev: the server cannot be used: .*must be a directory of this user")
        assert await dev.ends() == 1
    with command(shop, "glidemq_py.cli", "dev", "--url", "http://somewhere") as dev:
        await dev.printed("glidemq dev: the server cannot be used: .*http")
        assert await dev.ends() == 1
    os.unlink(shop / ".glidemq")
    with command(shop, "glidemq_py.cli", "dev", "--port", "0") as dev:
        await dev.printed("no worker runs: name some, such as glidemq dev shop.jobs:worker")
        dev.signal(signal.SIGINT)
        assert await dev.ends() == 0
    wait_until_stopped(shop)
