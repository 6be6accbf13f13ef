"""Jobs of restored queues are found by their ids, also on a server whose queues have other numbers."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway import Gateway, RestoredIds, restore_ids
from glidemq_py.gateway.job_ids import queue_number
from glidemq_py.testing import ServerProcess
from tests.inside import connected
from tests.server.gateway.wire import Wire, good

PREFIX = "shop"


async def push(url: str, queues: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Add jobs through a gateway; return their ids."""
    async with Gateway(url, port=0, prefix=PREFIX) as gateway, Wire(gateway) as wire:
        return [
            (await good(wire, "PUSH", queue=name, **job))["id"] for name, jobs in queues.items() for job in jobs
        ]  # fmt: skip


async def move(old: str, new: str, names: list[str], folder: Path):
    for name in names:
        async with Queue(name, old, prefix=PREFIX) as source, Queue(name, new, prefix=PREFIX) as target:
            await source.backups.create(folder)
            await target.backups.restore(folder)


async def states(url: str, ids: list[str]) -> list[str]:
    async with Gateway(url, port=0, prefix=PREFIX) as gateway, Wire(gateway) as wire:
        return [(await good(wire, "GetState", id=job_id))["state"] for job_id in ids]


@pytest.fixture
def servers(private_server: Callable[..., ServerProcess]) -> tuple[str, str]:
    return private_server().url, private_server().url


async def test_jobs_are_found_on_another_server(servers: tuple[str, str], tmp_path: Path):
    old, new = servers
    pushed: dict[str, list[dict[str, Any]]] = {
        "first": [{"data": 1}], "second": [{"data": 1}, {"data": 2, "jobId": "mine"}, {"data": 3, "jobId": "17"}],
    }  # fmt: skip
    ids = await push(old, pushed)
    # There, another queue has the number of "first".
    async with Queue("n", new, prefix=PREFIX) as queue:
        transport = (await connected(queue)).transport
        number = str(queue_number(ids[0]))
        await transport.command("HSET", f"{PREFIX}:gateway:queues", f"n:{number}", "other", "q:other", number)
    (other,) = await push(new, {"other": [{"data": 1}]})
    await move(old, new, ["second", "first"], tmp_path)
    async with Queue("second", new, prefix=PREFIX) as queue:
        await queue.add("n")
    assert await states(new, ids[2:]) == ["unknown"] * 2
    assert await restore_ids(new, prefix=PREFIX, queues=["second", "first"]) == [
        RestoredIds(queue="second", made=1, chosen=2, taken=0), RestoredIds(queue="first", made=0, chosen=0, taken=1),
    ]  # fmt: skip
    assert await states(new, [other, *ids]) == ["waiting", "unknown", "waiting", "waiting", "waiting"]
    assert await states(new, [f"first:{ids[0]}"]) == ["waiting"]
    await restore_ids(new, prefix=PREFIX)
    assert await states(new, [other, *ids[1:]]) == ["waiting"] * 4
    (third,) = await push(new, {"third": [{"data": 1}]})
    assert await states(new, [third, *ids[1:]]) == ["waiting"] * 4


async def test_an_id_of_another_queue_is_not_taken_from_it(servers: tuple[str, str], tmp_path: Path):
    old, new = servers
    await push(old, {"first": [{"data": 1, "jobId": "mine"}]})
    await push(new, {"other": [{"data": 1, "jobId": "mine"}]})
    await move(old, new, ["first"], tmp_path)
    assert await restore_ids(new, prefix=PREFIX, queues=["first"]) == [
        RestoredIds(queue="first", made=0, chosen=0, taken=1)
    ]
    async with Gateway(new, port=0, prefix=PREFIX) as gateway, Wire(gateway) as wire:
        assert (await good(wire, "GetJob", id="mine"))["job"]["queue"] == "other"


async def test_unknown_queue_is_named(servers: tuple[str, str]):
    with pytest.raises(GlideMQValidationError, match=r"'queues' = 'nothing': does not exist \(prefix 'shop'\)"):
        await restore_ids(servers[0], prefix=PREFIX, queues=["nothing"])
    with pytest.raises(GlideMQValidationError, match=r"'queues' = 'a:b': does not exist, nor does 'a%3Ab' \(prefix"):
        await restore_ids(servers[0], prefix=PREFIX, queues=["a:b"])


async def test_queue_may_have_the_name_of_clients(servers: tuple[str, str]):
    await push(servers[0], {"mail:out": [{"data": 1}]})
    for name in ("mail:out", "mail%3Aout"):
        assert await restore_ids(servers[0], prefix=PREFIX, queues=[name]) == [
            RestoredIds(queue="mail%3Aout", made=1, chosen=0, taken=0)
        ]


@pytest.mark.slow
async def test_command(servers: tuple[str, str]):
    await push(servers[0], {"first": [{"data": 1}, {"data": 2, "jobId": "mine"}]})

    async def run(*arguments: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "glidemq_py.gateway", "--restore-ids", *arguments, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await process.communicate()
        return process.returncode, errors.decode()

    name = "python -m glidemq_py.gateway"
    url = ("--url", f"{servers[0]}?allow_no_aof=true", "--prefix", PREFIX)
    assert await run(*url) == (0, f"{name}: queue 'first': restored the ids of 2 jobs\n")
    assert await run("no", *url) == (2, f"{name}: option 'queues' = 'no': does not exist (prefix 'shop')\n")
    assert await run() == (2, f"{name}: --restore-ids needs --url or GLIDEMQ_URL\n")
