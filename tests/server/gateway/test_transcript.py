"""One script of the npm client against bunqueue and against two gateways: the answers differ only as documented."""

import asyncio
import contextlib
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py.gateway import Gateway
from tests.bench.bunqueue import BunqueuePackages, find_bunqueue
from tests.bench.install import PeerMissingError

METHODS = Path(__file__).with_name("npm_methods.mjs")

# docs/learn/gateway.md, "Differences"
DIFFERENCES: dict[str, tuple[Any, Any]] = {
    "getCountsPerPriorityAsync": ({"0": 5, "5": 1, "9": 1}, {"0": 4, "5": 1, "9": 1}),  # delayed jobs are not ready
    "events": (
        ["active", "completed", "duplicated", "failed", "paused", "progress", "removed", "resumed", "waiting"],
        ["completed", "delayed", "failed", "paused", "progress", "removed", "resumed", "waiting"],
    ),
}
"""The answers of bunqueue and the gateway by call."""
OPTIONAL_EVENTS = {"active", "stalled"}
"""Some jobs are fetched with an event of the queue, others without one."""


@pytest.fixture(scope="module")
def packages() -> BunqueuePackages:
    try:
        return find_bunqueue()
    except PeerMissingError as error:
        pytest.skip(str(error))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def bunqueue(packages: BunqueuePackages, folder: Path) -> AsyncIterator[int]:
    """Run bunqueue in memory; yield its port."""
    port = free_port()
    environment = {"TCP_PORT": str(port), "HTTP_PORT": str(free_port()), "HOST": "127.0.0.1"}
    process = await asyncio.create_subprocess_exec(
        packages.bun, packages.server, "start", cwd=folder, env={**os.environ, **environment},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.05)
        yield port
    finally:
        process.kill()
        await process.wait()


async def answers(packages: BunqueuePackages, port: int) -> list[tuple[str, Any]]:
    """Run the script; return the answer of each call."""
    process = await asyncio.create_subprocess_exec(
        packages.bun, METHODS, str(port), f"transcript-{secrets.token_hex(6)}", stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "BUNQUEUE_CLIENT": str(packages.client)},
    )  # fmt: skip
    try:
        async with asyncio.timeout(200):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, err.decode()
    return [tuple(json.loads(line)) for line in out.decode().splitlines()]


async def test_methods_of_the_client(
    packages: BunqueuePackages, gateways: tuple[Gateway, Gateway], tmp_path: Path
) -> None:
    async with bunqueue(packages, tmp_path) as port:
        expected = await answers(packages, port)
    found = await answers(packages, gateways[0].port)
    assert len(expected) > 90
    assert [label for label, _ in found] == [label for label, _ in expected]
    different: dict[str, tuple[Any, Any]] = {}
    for (label, theirs), (_, ours) in zip(expected, found, strict=True):
        if label == "events":
            ours = [event for event in ours if event not in OPTIONAL_EVENTS]
        if theirs != ours:
            different[label] = (theirs, ours)
    assert different == DIFFERENCES
