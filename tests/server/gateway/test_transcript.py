"""One script of the npm client against bunqueue and against two gateways: the answers differ only as documented."""

import asyncio
import json
import os
import secrets
from pathlib import Path
from typing import Any

from glidemq_py.gateway import Gateway
from tests.bench.bunqueue import BunqueuePackages
from tests.server.gateway.peer import bunqueue

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
    async with bunqueue(packages, tmp_path) as (port, _):
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
