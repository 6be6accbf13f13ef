"""Gateways without a URL that keep their data, their log lines, and backups of all queues."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway
from tests.server.gateway.wire import Wire, good

pytestmark = pytest.mark.slow


class Command:
    """The command as a process: ``async with Command(...) as port``."""

    def __init__(self, *arguments: str, **environment: str):
        self._arguments = arguments
        self._environment = {**os.environ, "GLIDEMQ_URL": "", "TCP_PORT": "0", **environment}

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "glidemq_py.gateway", *self._arguments, stderr=asyncio.subprocess.PIPE,
            env=self._environment,
        )  # fmt: skip

    async def __aenter__(self) -> int:
        await self.start()
        assert self.process.stderr is not None
        async with asyncio.timeout(120):
            while b"listening on" not in (line := await self.process.stderr.readline()):
                assert line
        return int(line.rpartition(b":")[2])

    async def __aexit__(self, *_: object):
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(120):
            await self.process.communicate()
        assert self.process.returncode == 0


async def failed(*arguments: str, **environment: str) -> str:
    command = Command(*arguments, **environment)
    await command.start()
    async with asyncio.timeout(120):
        _, err = await command.process.communicate()
    assert command.process.returncode == 1
    return err.decode()


async def test_jobs_are_kept_in_the_folder(tmp_path: Path):
    folder = str(tmp_path / "data")
    async with Command(DATA_PATH=folder) as port, Wire(port) as wire:
        job_id = (await good(wire, "PUSH", queue="q", data=1))["id"]
        assert "is used by another gateway" in await failed("--data-path", folder)
    async with Command("--data-path", folder) as port, Wire(port) as wire:
        assert (await good(wire, "GetJob", id=job_id))["job"]["data"] == 1
    file = tmp_path / "bunq.db"
    file.write_text("SQLite")
    assert "must be a directory, not a file" in await failed(SQLITE_PATH=str(file))
    assert "option 'SQLITE_PATH' = '/dev/null/x': cannot be used" in await failed(SQLITE_PATH="/dev/null/x")


async def test_tokens_of_the_environment(url: str):
    async with Command("--url", url, AUTH_TOKENS="a-token, other") as port, Wire(port) as wire:
        await good(wire, "Auth", token="other")


async def test_log_lines_are_json(url: str):
    command = Command("--url", url, "--max-connections", "1", LOG_FORMAT="json")
    await command.start()
    stderr = command.process.stderr
    assert stderr is not None
    async with asyncio.timeout(120):
        while "listening on" not in (first := json.loads(await stderr.readline()))["message"]:
            pass
        assert (first["level"], first["logger"]) == ("INFO", "glidemq_py.gateway")
        port = int(first["message"].rpartition(":")[2])
        async with Wire(port) as wire, Wire(port) as another:
            await good(wire, "Ping")
            assert await another.is_closed()
        assert (
            json.loads(await stderr.readline())["message"] == "gateway: rejected a connection of 127.0.0.1: 1 are open"
        )
        command.process.terminate()
        _, rest = await command.process.communicate()
        assert [json.loads(line)["message"] for line in rest.splitlines()] == ["gateway: stopping"]


async def test_log_lines_have_a_time(url: str):
    command = Command("--url", url, "--http-port", "0")
    await command.start()
    stderr = command.process.stderr
    assert stderr is not None
    async with asyncio.timeout(120):
        while b"listening on" not in (line := await stderr.readline()):
            assert line
        command.process.terminate()
        _, rest = await command.process.communicate()
    form = rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO +\[\d+\] glidemq_py\.gateway: gateway: "
    for each in (line, *rest.splitlines()):
        assert re.match(form, each), each


async def test_queues_are_backed_up(url: str, queue_name: str, tmp_path: Path):
    options: dict[str, Any] = {"prefix": queue_name, "backup": str(tmp_path), "backup_keep": 2}
    async with Queue("first", url, prefix=queue_name) as first:
        await first.add_bulk([("n", number) for number in range(20)])
        async with Gateway(url, port=0, **options), asyncio.timeout(120):
            while not (found := await first.backups.get_all(tmp_path)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert found[0].jobs == 20
        async with Queue("copy", url, prefix=queue_name) as copy:
            assert (await copy.backups.restore(tmp_path, source="first")).jobs == 20
