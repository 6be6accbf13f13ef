"""Tests of several gateway processes on one port."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest

from glidemq_py.testing import ServerProcess
from tests.inside import embedded
from tests.server.gateway.wire import Wire, good


class Address:
    """What `Wire` needs of a gateway."""

    def __init__(self, port: int):
        self.port = port


async def started(process: asyncio.subprocess.Process, count: int) -> list[str]:
    """Read the log until `count` processes listen; return its lines."""
    assert process.stderr is not None
    lines: list[str] = []
    while sum("has started" in line for line in lines) < count:
        line = (await process.stderr.readline()).decode()
        assert line, lines
        lines.append(line)
    return lines


@asynccontextmanager
async def run(*arguments: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a gateway, which ends without a fault within four minutes."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "glidemq_py.gateway", *arguments, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )  # fmt: skip
    try:
        async with asyncio.timeout(240):
            yield process
            process.send_signal(signal.SIGTERM)
            await process.communicate()
            assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow
async def test_processes_share_the_port_and_a_crashed_one_is_replaced(url: str, queue_name: str):
    port = embedded.free_port()
    gateway: Any = Address(port)
    async with run("--url", url, "--port", str(port), "--processes", "2") as process:
        lines = await started(process, 2)
        children = [int(line.split("child ")[1].split()[0]) for line in lines if "has started" in line]
        async with Wire(gateway) as first, Wire(gateway) as second:
            job_id = (await good(first, "PUSH", queue=queue_name, data=1))["id"]
            assert (await good(second, "GetJob", id=job_id))["job"]["data"] == 1
        os.kill(children[0], signal.SIGKILL)
        await started(process, 1)
        async with Wire(gateway) as third:
            assert (await good(third, "GetState", id=job_id))["state"] == "waiting"


@pytest.mark.slow
async def test_processes_without_a_url_share_a_private_server(queue_name: str):
    port = embedded.free_port()
    gateway: Any = Address(port)
    async with run("--port", str(port), "--processes", "2", GLIDEMQ_URL="") as process:
        await started(process, 2)
        async with Wire(gateway) as wire:
            job_id = (await good(wire, "PUSH", queue=queue_name, data=1))["id"]
        for _ in range(8):  # connections to either process
            async with Wire(gateway) as wire:
                assert (await good(wire, "GetState", id=job_id))["state"] == "waiting"


@pytest.mark.slow
async def test_processes_wait_for_the_server(restartable_server: Callable[..., ServerProcess], queue_name: str):
    server, port, http_port = restartable_server(), embedded.free_port(), embedded.free_port()
    server.kill()
    arguments = ("--url", server.url, "--port", str(port), "--http-port", str(http_port), "--processes", "2")
    async with run(*arguments, "--log-format", "json") as process:
        lines: list[dict[str, Any]] = []

        async def line() -> dict[str, Any]:
            assert process.stderr is not None
            return cast("dict[str, Any]", json.loads(await process.stderr.readline()))

        async def printed(text: str, times: int = 1) -> list[str]:
            """Read the log until so many messages contain a text; return these."""
            while len(found := [line["message"] for line in lines if text in line["message"]]) < times:
                lines.append(await line())
            return found

        async def status(path: str) -> int:
            async with httpx.AsyncClient() as http:  # a connection per request: of either process
                return (await http.get(f"http://127.0.0.1:{http_port}{path}", timeout=60)).status_code

        async def kill_waiting_children(count: int):
            killed: set[int] = set()
            for _ in range(count):
                lines.clear()
                while not lines or "cannot start yet" not in lines[-1]["message"] or lines[-1]["process"] in killed:
                    lines.append(await line())
                killed.add(lines[-1]["process"])
                os.kill(lines[-1]["process"], signal.SIGKILL)

        await printed("cannot start yet", 2)
        assert [await status(path) for path in ("/live", "/ready", "/stats", "/health")] == [200, 503, 503, 503]
        await kill_waiting_children(6)  # more than may crash during their start
        server.start()
        children = [int(line.split()[1]) for line in await printed("has started", 2)]
        assert await status("/ready") == 200
        server.kill()
        os.kill(children.pop(), signal.SIGKILL)
        await kill_waiting_children(1)
        server.start()
        await printed("has started")
        async with Wire(Address(port)) as wire:  # type: ignore[arg-type]
            await good(wire, "PUSH", queue=queue_name, data=1)
