"""The unmodified npm client `bunqueue` under `bun`, installed once into the cache of the benchmarks, else skipped."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py.gateway import Gateway
from tests.bench.bunqueue import BunqueuePackages, find_bunqueue
from tests.bench.install import PeerMissingError

CLIENT = Path(__file__).with_name("npm_client.mjs")
EXAMPLE = Path(__file__).parents[3] / "examples" / "gateway_npm_client.py"


@pytest.fixture(scope="session")
def packages() -> BunqueuePackages:
    """Return the installed packages."""
    try:
        return find_bunqueue()
    except PeerMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(params=[1, 4], ids=["plain", "partitioned"])
async def gateway(url: str, queue_name: str, request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    """A gateway; its queue has one or four partitions."""
    async with Queue(queue_name, url, partitions=request.param), Gateway(url, port=0) as gateway:
        yield gateway


async def run(packages: BunqueuePackages, gateway: Gateway, what: str, queue: str) -> list[object]:
    """Run the client; return the JSON values that it printed, one a line."""
    process = await asyncio.create_subprocess_exec(
        packages.bun, CLIENT, what, str(gateway.port), queue, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "BUNQUEUE_CLIENT": str(packages.client)},
    )  # fmt: skip
    try:
        async with asyncio.timeout(90):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, err.decode()
    return [json.loads(line) for line in out.decode().splitlines()]


async def test_client_adds_and_processes(packages: BunqueuePackages, gateway: Gateway, queue_name: str):
    printed = await run(packages, gateway, "both", queue_name)
    assert printed == [{"doubled": 42}, "completed"]


@pytest.mark.parametrize(("report", "state"), [(("ack", "--result", "7"), "completed"), (("fail",), "delayed")])
async def test_command_line_reports_a_job(
    packages: BunqueuePackages, gateway: Gateway, queue_name: str, report: tuple[str, ...], state: str
):
    async def command(*arguments: str) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            packages.bun, packages.server, "-p", str(gateway.port), "--json", *arguments,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        answer: dict[str, Any] = json.loads(out)
        assert answer["ok"], answer
        return answer

    await command("push", queue_name, "{}")
    job_id = (await command("pull", queue_name))["job"]["id"]
    await command(report[0], job_id, *report[1:])
    assert (await command("job", "state", job_id))["state"] == state


async def test_values_that_json_would_lose(packages: BunqueuePackages, gateway: Gateway, queue_name: str):
    printed = await run(packages, gateway, "values", queue_name)
    assert printed == [["Date", 1_767_225_600_000, [0, 255], {"1": "one"}, True, 2**40]] * 3


async def test_python_worker_processes_jobs_of_the_client(
    packages: BunqueuePackages, gateway: Gateway, url: str, queue_name: str
):
    async def handler(job: Job) -> object:
        return {"doubled": job.data["n"] * 2}

    async with Worker(queue_name, handler, url):
        assert await run(packages, gateway, "add", queue_name) == ["completed", {"doubled": 42}]


async def test_client_processes_jobs_of_python(packages: BunqueuePackages, gateway: Gateway, url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        good = await queue.add("double", {"n": 4})
        bad = await queue.add("fail", {"n": 5})
        printed = await run(packages, gateway, "work", queue_name)
        assert printed == [2]
        assert await good.wait_until_finished() == {"doubled": 8}
        found = await queue.get_job(bad.id)
        assert found is not None
        assert (found.state, found.failed_reason) == ("failed", "on purpose")


async def test_example_of_javascript_and_python(packages: BunqueuePackages):
    process = await asyncio.create_subprocess_exec(
        sys.executable, EXAMPLE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "BUN": str(packages.bun), "BUNQUEUE_CLIENT": str(packages.client)},
    )  # fmt: skip
    async with asyncio.timeout(90):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "npm client got: sent to ada@example.org" in out.decode()
    assert "npm worker completed: yearly" in out.decode()
    assert "Python got: {'pages': 26}" in out.decode()
