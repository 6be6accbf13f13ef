"""One script of the npm client against bunqueue and gateways: the answers differ only as documented."""

import asyncio
import json
import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway
from glidemq_py.testing import ServerProcess, server_binary
from tests.bench.bunqueue import BunqueuePackages
from tests.server.gateway.peer import bunqueue
from tests.server.gateway.spread import balanced

METHODS = Path(__file__).with_name("npm_methods.mjs")
MORE = Path(__file__).with_name("npm_more_methods.mjs")

# docs/learn/gateway.md, "Differences"
DIFFERENCES: dict[str, tuple[Any, Any]] = {
    "getCountsPerPriorityAsync": ({"0": 5, "5": 1, "9": 1}, {"0": 4, "5": 1, "9": 1}),  # delayed jobs are not ready
    "events": (
        ["active", "completed", "duplicated", "failed", "paused", "progress", "removed", "resumed", "waiting"],
        [
            "active",
            "completed",
            "delayed",
            "duplicated",
            "failed",
            "paused",
            "progress",
            "removed",
            "resumed",
            "waiting",
        ],
    ),
}
"""The answers of bunqueue and the gateway by call."""
MORE_DIFFERENCES: dict[str, tuple[Any, Any]] = {
    "data above sizeLimit": ("added", "jobs[0]: data has 26 bytes, more than sizeLimit 10"),
    "debounce again": ("another", "debounce"),
    "failing children": (
        [["fail", "failed", [], []], ["ignore", "completed", [], []], ["remove", "completed", [], []]],
        [["fail", "failed", [], ["child"]], ["ignore", "completed", ["child"], []], ["remove", "completed", [], []]],
    ),
}
OPTIONAL_EVENTS = {"stalled"}


Answers = list[tuple[str, Any]]


async def answers(
    packages: BunqueuePackages, port: int, connections: int, script: Path = METHODS, queue: str | None = None
) -> Answers:
    """Run a script on a queue, or a new one; return the answer of each call."""
    process = await asyncio.create_subprocess_exec(
        packages.bun, script, str(port), queue or f"transcript-{secrets.token_hex(6)}", str(connections),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "BUNQUEUE_CLIENT": str(packages.client)},
    )  # fmt: skip
    try:
        async with asyncio.timeout(200):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, err.decode()
    return [tuple(json.loads(line)) for line in out.decode().splitlines()]


@pytest.fixture(scope="module")
def expected(packages: BunqueuePackages, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The answers of bunqueue."""

    async def run() -> Answers:
        async with bunqueue(packages, tmp_path_factory.mktemp("bunqueue")) as (port, _):
            return await answers(packages, port, 1)

    found = asyncio.run(run())
    assert len(found) > 90
    return found


def compare(
    found: Answers, expected: Answers, differences: Mapping[str, tuple[Any, Any]] = DIFFERENCES,
    without: Collection[str] = (),
):  # fmt: skip
    """Compare the answers, without those of some calls."""
    assert [label for label, _ in found] == [label for label, _ in expected]
    different: dict[str, tuple[Any, Any]] = {}
    for (label, theirs), (_, ours) in zip(expected, found, strict=True):
        if label == "events":
            ours = [event for event in ours if event not in OPTIONAL_EVENTS]
        if theirs != ours and label not in without:
            different[label] = (theirs, ours)
    assert different == differences


async def test_methods_of_the_client(packages: BunqueuePackages, gateways: tuple[Gateway, Gateway], expected: Answers):
    compare(await answers(packages, gateways[0].port, 1), expected)


async def test_connections_spread_over_two_gateways(
    packages: BunqueuePackages, gateways: tuple[Gateway, Gateway], expected: Answers
):
    taken: list[int] = []
    async with balanced(gateways, taken) as port:
        compare(await answers(packages, port, 4), expected)
    assert min(taken.count(0), taken.count(1)) > 1


async def test_partitioned_queue(
    packages: BunqueuePackages, gateways: tuple[Gateway, Gateway], url: str, queue_name: str, expected: Answers
):
    async with Queue(queue_name, url, partitions=3), balanced(gateways) as port:
        found = await answers(packages, port, 4, queue=queue_name)
    compare(found, expected)


async def test_cluster(packages: BunqueuePackages, cluster_url: str, expected: Answers):
    async with (
        Gateway(cluster_url, port=0) as first,
        Gateway(cluster_url, port=0) as second,
        balanced((first, second)) as port,
    ):
        compare(await answers(packages, port, 4), expected)


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 3])
async def test_more_methods(packages: BunqueuePackages, tmp_path: Path, queue_name: str, partitions: int):
    """Durable adds need a server with an append-only file."""
    async with bunqueue(packages, tmp_path) as (port, _):
        expected = await answers(packages, port, 1, MORE)
    assert len(expected) > 50
    with ServerProcess(server_binary("valkey-9.1"), config={"appendonly": "yes"}) as server:
        async with (
            Queue(queue_name, server.url, partitions=partitions),
            Gateway(server.url, port=0) as first,
            Gateway(server.url, port=0) as second,
            balanced((first, second)) as port,
        ):
            found = await answers(packages, port, 4, MORE, queue_name)
            # Order holds within a partition, and a limit must be at least the number of partitions.
            compare(found, expected, MORE_DIFFERENCES, ("lifo", "rateLimit") if partitions > 1 else ())
