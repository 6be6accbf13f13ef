"""A server that accepts connections but does not reply: the event loop stays free while clients are created."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import glide
import pytest

from glidemq_py import ConnectionOptions, Durability, GlideMQError, Queue, Worker
from glidemq_py.testing import ServerProcess
from tests.inside import config_of, create_async, glide_faults
from tests.server.worker_support import StartServer, until

LONGEST_S = 1.0
"""Longest time without a tick. GLIDE blocks an event loop for five seconds here; a busy machine may do so for less."""
WAITED_S = 2.5


@pytest.fixture
def silent(private_server: StartServer) -> ServerProcess:
    return private_server(durable=True)


class Ticks:
    """Measures the longest time in which the event loop ran nothing."""

    longest = 0.0

    async def run(self):
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now


@contextlib.asynccontextmanager
async def ticking() -> AsyncIterator[Ticks]:
    ticks = Ticks()
    task = asyncio.create_task(ticks.run())
    try:
        yield ticks
    finally:
        await asyncio.sleep(0.01)  # a tick behind whatever blocked the loop
        task.cancel()


async def stays_free(work: Coroutine[Any, Any, Any]):
    """Run work for which the silent server must reply, and cancel it: the loop must run all the time."""
    async with ticking() as ticks:
        began = time.monotonic()
        with contextlib.suppress(TimeoutError, GlideMQError):
            await asyncio.wait_for(work, WAITED_S)
        assert time.monotonic() - began > WAITED_S / 2  # it has waited for the server
    assert ticks.longest < LONGEST_S


@pytest.mark.slow
@pytest.mark.parametrize("direct", ["true", "false"])
async def test_the_first_durable_add(silent: ServerProcess, direct: str):
    async with Queue("q", f"{silent.url}?direct={direct}") as queue:
        await queue.add("n")
        silent.pause()
        try:
            await stays_free(queue.add("n", durable=Durability(timeout=1_000)))
        finally:
            silent.resume()
        assert (await queue.add("n", durable=Durability(timeout=60_000))).outcome == "added"


@pytest.mark.slow
async def test_connecting_a_queue(silent: ServerProcess):
    queue = Queue("q", silent.url)
    silent.pause()
    try:
        await stays_free(queue.connect())
    finally:
        silent.resume()
        await queue.close()


@pytest.mark.slow
async def test_starting_a_worker(silent: ServerProcess):
    worker = Worker("q", lambda _: None, silent.url)
    silent.pause()
    try:
        await stays_free(worker.start())
    finally:
        silent.resume()
        await worker.close()


async def test_a_cancelled_creation_leaves_no_client(silent: ServerProcess):
    config = config_of(ConnectionOptions.from_url(silent.url))
    with silent.client() as client:
        before = connections(client.execute("CLIENT", "LIST"))
        silent.pause()
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(create_async(config), 0.5)
        finally:
            silent.resume()
        await until(lambda: connections(client.execute("CLIENT", "LIST")) == before)


def connections(reply: Any) -> int:
    return len(reply.splitlines())


async def test_the_client_is_one_of_glide(url: str):
    config = config_of(ConnectionOptions.from_url(url))
    client = await create_async(config)
    assert type(client) is glide.GlideClient
    assert await client.ping() == b"PONG"
    await client.close()


async def test_another_version_of_glide_creates_as_usual(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(glide_faults, "_REGISTRY", "missing")
    client = await create_async(config_of(ConnectionOptions.from_url(url)))
    assert await client.ping() == b"PONG"
    await client.close()
