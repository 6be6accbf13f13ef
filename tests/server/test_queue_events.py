"""Listening to a queue: from a fixed position, without a gap, over lost connections and restarts."""

import asyncio
import contextlib
from typing import Any

import glide
import pytest
from glide_shared.config import GlideClientConfiguration, NodeAddress, ProtocolVersion, ServerCredentials

from glidemq_py import (
    ClosedError,
    Queue,
    QueueEvents,
)
from tests.contract.test_queue_events import Heard, first
from tests.inside import connections_of
from tests.server.lossy_proxy import LossyProxy
from tests.server.worker_support import StartServer, until, with_timeout


@pytest.mark.parametrize(
    ("is_ready", "turns"), [*((False, n) for n in (0, 1, 2, 5, 10, 100, 1000)), *((True, n) for n in range(4))]
)
async def test_interrupted_connects_and_closes_leave_nothing_open(
    private_server: StartServer, is_ready: bool, turns: int
):
    """A close while it connects, and a close that is cancelled, after so many turns of the event loop."""
    server = private_server()
    events = QueueEvents("q", server.url)
    if is_ready:
        await events.wait_until_ready()
    begun = asyncio.create_task(events.close() if is_ready else events.wait_until_ready())
    for _ in range(turns):
        await asyncio.sleep(0)
    if is_ready:
        begun.cancel()
        await asyncio.gather(begun, return_exceptions=True)
    with contextlib.suppress(asyncio.CancelledError):
        await events.close()
    with contextlib.suppress(ClosedError, asyncio.CancelledError):
        await with_timeout(begun)
    assert not connections_of(events)
    with server.client() as resp:
        await with_timeout(until(lambda: resp.execute("CLIENT", "LIST").strip().count("\n") == 0))


async def test_close_ends_the_wait_for_a_server(private_server: StartServer):
    server = private_server()
    events = QueueEvents("q", server.url + "?request_timeout=300")
    await events.wait_until_ready()
    reading = asyncio.create_task(first(events, 1))
    server.kill()
    done, _ = await asyncio.wait({reading}, timeout=0.5)
    assert not done
    await events.close()
    assert await with_timeout(reading) == []


async def test_reading_continues_after_a_killed_connection(private_server: StartServer):
    server, heard = private_server(), Heard()
    async with Queue("q", server.url) as queue, QueueEvents("q", server.url) as events:
        events.on("*", heard)
        jobs = await queue.add_bulk([("n",)] * 3)
        await heard.wait(3)
        with server.client() as resp:
            for _ in range(3):
                resp.execute("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
                for i in range(20):
                    resp.execute("XADD", "glide:{q}:events", "*", "event", "mark", "jobId", str(i))
        await heard.wait(63)
    assert [event.job_id for event in heard.events] == [job.id for job in jobs] + [str(i) for i in range(20)] * 3


async def test_reading_continues_after_a_truncated_reply(server: Any, queue: Queue):
    heard = Heard()
    with LossyProxy(server.url) as proxy:
        async with QueueEvents(queue.name, proxy.url) as events:
            events.on("*", heard)
            for _ in range(3):
                proxy.lose("xread")
                await queue.add("n")
                await asyncio.to_thread(proxy.wait_lost, 1)
            await queue.add("n")
            await heard.wait(4)
    assert [event.job_id for event in heard.events] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("durable", [True, False])
async def test_a_restarted_server(restartable_server: StartServer, private_server: StartServer, durable: bool):
    """With its data, or without."""
    server, heard = restartable_server() if durable else private_server(), Heard()
    async with Queue("q", server.url) as queue, QueueEvents("q", server.url) as events:
        events.on("*", heard)
        await queue.add("n")
        await heard.wait(1)
        await asyncio.to_thread(server.restart, kill=durable)
        await queue.add("again")
        assert [event.fields["name"] for event in await heard.wait(2)] == ["n", "again"]
    assert [event.job_id for event in heard.events] == ["1", "2" if durable else "1"]


async def test_flushed_or_deleted_events(private_server: StartServer):
    server, heard = private_server(), Heard()
    async with Queue("q", server.url) as queue, QueueEvents("q", server.url) as events:
        events.on("*", heard)
        await queue.add("n")
        await heard.wait(1)
        with server.client() as resp:
            # Entry ids are the server's time: a new stream within the same millisecond would begin at the same id.
            resp.execute("DEBUG", "SLEEP", "0.003")
            resp.execute("FLUSHALL")
            await queue.add("n")
            await heard.wait(2)
            resp.execute("DEBUG", "SLEEP", "0.003")
            resp.execute("DEL", "glide:{q}:events")
        await queue.add("n")
        await heard.wait(3)


@pytest.mark.parametrize("protocol", [ProtocolVersion.RESP2, ProtocolVersion.RESP3])
async def test_client_of_the_caller_is_a_template_and_stays_open(server: Any, queue: Queue, protocol: ProtocolVersion):
    address = NodeAddress("127.0.0.1", server.port)
    credentials = None if server.password is None else ServerCredentials(server.password)
    client = await glide.GlideClient.create(
        GlideClientConfiguration([address], credentials=credentials, protocol=protocol)
    )
    try:
        events = QueueEvents(queue.name, client)
        await events.wait_until_ready()
        reading = asyncio.create_task(first(events, 1))
        # The blocking read does not block the client's other calls.
        assert await with_timeout(client.ping(), 0.9) == b"PONG"
        await queue.add("n")
        assert (await with_timeout(reading))[0].event == "added"
        await events.close()
        assert await client.ping() == b"PONG"
    finally:
        await client.close()
