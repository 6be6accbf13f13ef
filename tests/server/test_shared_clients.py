"""One client per event loop and server, shared by queues, workers and flow producers."""

import asyncio
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from glidemq_py import ConnectionOptions, FlowProducer, GlideMQValidationError, Job, Queue, QueueEvents, Worker
from glidemq_py.errors import ClosedError
from glidemq_py.testing import ServerProcess
from tests.inside import connections_of, heartbeat, link_of, read_events, reserved_reads, shared_clients
from tests.server.worker_support import StartServer


async def echo(job: Job) -> object:
    """Return the data."""
    return job.data


def clients_of(server: ServerProcess) -> int:
    """Return the number of clients besides the test's own."""
    with server.client() as resp:
        return len(re.findall(r"^id=", str(resp.execute("CLIENT", "LIST")), re.MULTILINE)) - 1


async def test_queues_share_one_client(private_server: StartServer):
    server = private_server()
    async with AsyncExitStack() as stack:
        for number in range(20):
            queue = await stack.enter_async_context(Queue(f"q{number}", server.url))
            await queue.add("n", number)
        await stack.enter_async_context(FlowProducer(server.url))
        assert clients_of(server) == 2  # of GLIDE, and for direct calls


def clients_here(loop: asyncio.AbstractEventLoop | None = None) -> dict[Any, Any]:
    """Return the clients that this event loop, or another one, shares."""
    return {**shared_clients._by_loop[loop or asyncio.get_running_loop()]}


async def test_workers_share_clients_for_calls_and_heartbeats(private_server: StartServer):
    server = private_server()
    async with AsyncExitStack() as stack:
        for number in range(5):
            await stack.enter_async_context(Worker(f"q{number}", echo, server.url))
        queue = await stack.enter_async_context(Queue("q3", server.url))
        assert await queue.add_and_wait("n", 7) == 7
        kinds = [type(each) for each in clients_here().values()]
        assert len(kinds) == 1
        assert len(clients_here(heartbeat.heartbeats().loop)) == 1
    assert not clients_here()
    assert not clients_here(heartbeat.heartbeats().loop)


async def test_last_user_closes_the_client(private_server: StartServer):
    server = private_server()
    first, second = Queue("a", server.url), Queue("b", server.url)
    await asyncio.gather(first.add("n"), second.add("n"))
    assert clients_of(server) == 2
    await first.close()
    await first.close()
    with pytest.raises(ClosedError):
        await first.add("n")
    await second.add("n")
    assert clients_of(server) == 2
    await second.close()
    assert not clients_here()


async def test_closed_transport_rejects_calls_while_others_use_the_client(url: str, queue_name: str):
    async with Queue(queue_name, url) as kept:
        other = Queue(queue_name, url)
        await asyncio.gather(kept.connect(), other.connect())
        connection = await link_of(other).transport.connected()
        transport = connection.transport
        assert transport is not None
        await other.close()
        with pytest.raises(ClosedError):
            await transport.command("PING")
        assert (await kept.add("n")).id == "1"


async def test_objects_with_different_options_do_not_share(private_server: StartServer):
    server = private_server()
    options = ConnectionOptions([(server.host, server.port)])
    async with (
        Queue("a", options) as a,
        Queue("b", options.with_changes(client_name="b")) as b,
        Queue("c", server.url) as c,
    ):
        await asyncio.gather(a.add("n"), b.add("n"), c.add("n"))
        assert clients_of(server) == 4


async def test_sharing_can_be_disabled(private_server: StartServer):
    server = private_server()
    url = f"{server.url}?share_clients=false"
    async with Queue("a", url) as a, Queue("b", url) as b:
        await asyncio.gather(a.add("n"), b.add("n"))
        assert clients_of(server) == 4
    with pytest.raises(GlideMQValidationError, match="share_clients"):
        ConnectionOptions(share_clients="no")  # type: ignore[arg-type]


async def test_failed_connection_is_not_kept(private_server: StartServer):
    server = private_server()
    server.stop()
    queue = Queue("a", server.url)
    with pytest.raises(Exception, match="connect"):
        await queue.add("n")
    assert not clients_here()
    server.start()
    await queue.add("n")
    await queue.close()


async def test_each_event_loop_has_its_own_connections(private_server: StartServer):
    server = private_server()
    queue = Queue("a", server.url)
    await queue.add("n")
    assert clients_of(server) == 2  # of GLIDE, and direct

    async def in_thread() -> int:
        async with Queue("b", server.url) as other:
            await other.add("n")
            return clients_of(server)

    async def in_another_loop() -> int:
        return await asyncio.to_thread(asyncio.run, in_thread())

    assert await in_another_loop() == 4
    await queue.close()
    assert await in_another_loop() == 2


async def test_shared_client_reconnects_for_all(restartable_server: StartServer):
    server = restartable_server()
    async with Queue("a", server.url) as a, Queue("b", server.url) as b:
        await asyncio.gather(a.add("n"), b.add("n"))
        await asyncio.to_thread(server.restart, kill=True)
        await asyncio.gather(a.add("n"), b.add("n"))
        assert [(await each.get_job_counts()).waiting for each in (a, b)] == [2, 2]


def _setter(event: asyncio.Event) -> Callable[[object], None]:
    return lambda _: event.set()


async def test_readers_of_many_queues_need_six_clients(private_server: StartServer):
    server = private_server()
    names = [f"q{number}" for number in range(20)]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Worker("q0", echo, server.url))
        await stack.enter_async_context(Worker(names[1:], echo, server.url))
        queues = [await stack.enter_async_context(Queue(name, server.url)) for name in names]
        completed: dict[str, asyncio.Event] = {name: asyncio.Event() for name in names}
        for name in names:
            events = QueueEvents(name, server.url)
            events.on("completed", _setter(completed[name]))
            await stack.enter_async_context(events)
        assert await asyncio.gather(*(queue.add_and_wait("n", queue.name) for queue in queues)) == names
        async with asyncio.timeout(20):
            await asyncio.gather(*(each.wait() for each in completed.values()))
        fetches = [asyncio.create_task(queue.fetch(1, wait=5_000)) for queue in queues]
        await asyncio.sleep(0)
        assert await asyncio.gather(*(queue.count() for queue in queues)) == [0] * len(queues)
        assert clients_of(server) <= 6
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)


async def test_readers_share_one_blocking_read(private_server: StartServer):
    """Events, waits for results and readers of job streams of many queues: no polling, and one connection."""
    server = private_server()
    async with AsyncExitStack() as stack:
        names = [f"q{number}" for number in range(20)]
        queues = [await stack.enter_async_context(Queue(name, server.url)) for name in names]
        await stack.enter_async_context(Worker(names, echo, server.url, concurrency=20))
        several = [await stack.enter_async_context(QueueEvents(name, server.url)) for name in names[:10]]
        seen: dict[str, asyncio.Event] = {name: asyncio.Event() for name in names[:10]}
        for events in several:
            events.on("completed", _setter(seen[events.name]))
        async with asyncio.timeout(60):
            assert await asyncio.gather(*(queue.add_and_wait("n", queue.name) for queue in queues)) == names
            await asyncio.gather(*(each.wait() for each in seen.values()))
        readers: Any = [connections_of(each)[-1] for each in several]
        assert len({each._line for each in readers}) == 1
        assert not any(each.is_polled for each in readers)
    assert not reserved_reads()


async def test_stream_of_a_wrong_type_does_not_delay_other_readers(private_server: StartServer):
    server = private_server()
    async with QueueEvents("bad", server.url) as bad, QueueEvents("good", server.url) as good:
        with server.client() as resp:
            resp.execute("SET", "glide:{bad}:events", "text")
        failing = asyncio.create_task(read_events(bad))
        try:
            async with Queue("good", server.url) as queue:
                for _ in range(3):
                    await queue.add("n")
                    async with asyncio.timeout(20):
                        found: list[str] = []
                        while not found:
                            found = [event.event for event in await read_events(good)]
                    assert found == ["added"]
        finally:
            failing.cancel()


async def test_readers_need_no_permission_to_unblock(private_server: StartServer):
    server = private_server()
    with server.client() as resp:
        resp.execute("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-client|unblock")
    url = f"valkey://app:pw@{server.host}:{server.port}"
    async with QueueEvents("a", url) as a, QueueEvents("b", url) as b, Queue("b", url) as queue:
        reading = asyncio.create_task(read_events(a))
        await queue.add("n")
        async with asyncio.timeout(20):
            while not await read_events(b):
                pass
        assert await reading == []


async def test_closing_ends_polled_iteration(private_server: StartServer):
    server = private_server()
    async with AsyncExitStack() as stack:
        for number in range(3):
            await stack.enter_async_context(QueueEvents(f"q{number}", server.url))
        events = QueueEvents("q", server.url)
        queue = await stack.enter_async_context(Queue("q", server.url))

        async def first() -> str:
            async for event in events:
                return event.event
            return "ended"

        await events.wait_until_ready()
        reading = asyncio.create_task(first())
        await queue.add("n")
        assert await reading == "added"
        events = QueueEvents("q", server.url)
        await events.wait_until_ready()
        reading = asyncio.create_task(first())
        await asyncio.sleep(0)
        await events.close()
        assert await asyncio.wait_for(reading, 20) == "ended"


async def test_many_workers_need_six_clients(private_server: StartServer):
    server = private_server()
    async with AsyncExitStack() as stack:
        for number in range(12):
            await stack.enter_async_context(Worker(f"q{number}", echo, server.url))
        for number in range(12):
            queue = await stack.enter_async_context(Queue(f"q{number}", f"{server.url}?share_clients=false"))
            await queue.add("n", number)
            async with asyncio.timeout(100):
                while (await queue.get_job_counts()).completed < 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await queue.close()
        assert clients_of(server) <= 6


async def test_workers_that_add_durably_need_six_clients(private_server: StartServer):
    """A durable add claims the connection of a worker, which waits for its wake-up channel from then on."""
    server = private_server(durable=True)
    ended = asyncio.Event()

    async def wait(job: Job) -> object:
        await ended.wait()
        return job.data

    async with AsyncExitStack() as stack:
        for number in range(4):
            await stack.enter_async_context(Worker(f"q{number}", wait, server.url))
        queues = [await stack.enter_async_context(Queue(f"q{number}", server.url)) for number in range(4)]
        running = [asyncio.create_task(queue.add_and_wait("n", 1)) for queue in queues]
        for queue in queues:
            async with asyncio.timeout(100):
                while (await queue.get_job_counts()).active < 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await queues[3].add("durable", 2, durable=True)
        ended.set()
        assert await asyncio.gather(*running) == [1] * 4
        async with asyncio.timeout(100):
            while clients_of(server) > 6:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for _ in range(3):
            assert await asyncio.gather(*(queue.add_and_wait("n", 3) for queue in queues)) == [3] * 4
        assert clients_of(server) <= 6
        for queue in queues:
            assert len(await queue.get_workers()) == 1
