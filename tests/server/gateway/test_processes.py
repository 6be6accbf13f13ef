"""Tests of several gateway processes on one port."""

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

from glidemq_py._client.embedded import free_port
from tests.server.gateway.wire import Wire, good


class Address:
    """What `Wire` needs of a gateway."""

    def __init__(self, port: int) -> None:
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


async def run(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "glidemq_py.gateway", *arguments, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.slow
async def test_processes_share_the_port_and_a_crashed_one_is_replaced(url: str, queue_name: str) -> None:
    port = free_port()
    process = await run("--url", url, "--port", str(port), "--processes", "2")
    gateway: Any = Address(port)
    try:
        async with asyncio.timeout(120):
            lines = await started(process, 2)
            children = [int(line.split("child ")[1].split()[0]) for line in lines if "has started" in line]
            async with Wire(gateway) as first, Wire(gateway) as second:
                job_id = (await good(first, "PUSH", queue=queue_name, data=1))["id"]
                assert (await good(second, "GetJob", id=job_id))["job"]["data"] == 1
            os.kill(children[0], signal.SIGKILL)
            await started(process, 1)
            async with Wire(gateway) as third:
                assert (await good(third, "GetState", id=job_id))["state"] == "waiting"
            process.send_signal(signal.SIGTERM)
            await process.communicate()
            assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow
async def test_processes_without_a_url_share_a_private_server(queue_name: str) -> None:
    port = free_port()
    process = await run("--port", str(port), "--processes", "2", GLIDEMQ_URL="")
    gateway: Any = Address(port)
    try:
        async with asyncio.timeout(120):
            await started(process, 2)
            async with Wire(gateway) as wire:
                job_id = (await good(wire, "PUSH", queue=queue_name, data=1))["id"]
            for _ in range(8):  # connections to either process
                async with Wire(gateway) as wire:
                    assert (await good(wire, "GetState", id=job_id))["state"] == "waiting"
            process.send_signal(signal.SIGTERM)
            await process.communicate()
            assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
