"""The in-memory server: clock, isolation, errors, cost of calls, cost of importing."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from glidemq_py import ClosedError, GlideMQValidationError, Job, Queue, QueueEvents, Worker
from glidemq_py.errors import ScriptError
from glidemq_py.testing import Clock, MemoryServer, TestQueue
from tests.inside import Call


async def echo(job: Job) -> Any:
    return job.data


def test_clock_only_moves_forward():
    clock = Clock(1_800_000_000_000)
    assert (clock.now(), clock.advance(5), clock.advance(timedelta(seconds=1))) == (
        1_800_000_000_000, 1_800_000_000_005, 1_800_000_001_005,
    )  # fmt: skip
    with pytest.raises(GlideMQValidationError, match="by"):
        clock.advance(-1)
    for bad in (-1, True, 1.5, "now"):
        with pytest.raises(GlideMQValidationError, match="start"):
            Clock(bad)  # type: ignore[arg-type]
    before = int(time.time() * 1000)
    assert before <= Clock(running=True).now() <= time.time() * 1000 + 1


async def test_all_times_use_the_clock():
    server = MemoryServer(Clock(1_900_000_000_000))
    async with Queue("q", server) as queue:
        job = await queue.add("n")
        assert job.timestamp == 1_900_000_000_000
        ((entry, _),) = server.execute("XRANGE", "glide:{q}:stream", "-", "+")
        assert entry.startswith(b"1900000000000-")
        server.execute("SET", "k", "v", "PX", 100)
        server.clock.advance(100)
        assert server.execute("GET", "k") == b"v"
        server.clock.advance(1)
        assert server.execute("GET", "k") is None
        assert server.execute("TIME") == [b"1900000000", b"101000"]


async def test_advancing_the_clock_wakes_workers():
    server = MemoryServer()
    async with Queue("q", server) as queue, Worker("q", echo, server):
        job = await queue.add("n", 1, delay=timedelta(days=1))
        server.clock.advance(timedelta(days=1))
        assert await job.wait_until_finished(10_000) == 1


async def test_servers_share_no_data():
    one, two = MemoryServer(), MemoryServer()
    async with Queue("q", one) as first, Queue("q", two) as second:
        await first.add("n")
        assert (await first.count(), await second.count()) == (1, 0)
        assert one.keys("*") != two.keys("*")
        one.flush()
        assert one.keys() == []


def test_threads_and_loops_can_share_a_server():
    server, failures = MemoryServer(), list[BaseException]()

    async def work(number: int):
        name = f"q{number % 2}"
        async with Queue(name, server) as queue, Worker(name, echo, server):
            assert sorted(
                await asyncio.gather(*(queue.add_and_wait("n", [number, i]) for i in range(20)))
            ) == [[number, i] for i in range(20)]  # fmt: skip

    def run(number: int):
        try:
            asyncio.run(work(number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


async def test_closing_a_connection_ends_its_waits():
    server = MemoryServer()
    transport = server.open_transport()
    read = asyncio.create_task(transport.command("XREAD", "BLOCK", "0", "STREAMS", "s", "0-0"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await transport.close()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(read, 100)


async def test_events_reach_other_threads():
    server = MemoryServer()
    async with QueueEvents("q", server) as events:
        heard = asyncio.Event()
        events.on("added", lambda _: heard.set())

        def add():
            async def one():
                async with Queue("q", server) as queue:
                    await queue.add("n")

            asyncio.run(one())

        await asyncio.to_thread(add)
        await asyncio.wait_for(heard.wait(), 100)


async def test_script_error_names_file_and_line():
    transport = MemoryServer().open_transport()
    with pytest.raises(ScriptError, match=r"lua/core/functions/(_calls|exchange)\.lua:\d+"):
        await transport.call(Call("exchange", "glide:{q}:meta", (b"\xc1",), lambda reply: reply))


@pytest.mark.slow
def test_import_is_lazy():
    program = (
        "import sys, glidemq_py, glidemq_py.testing, glidemq_py.testing.pytest_plugin\n"
        "assert not {'fakeredis', 'lupa', 'redis'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_job_costs_a_few_calls():
    """Compare the CPU time of this process with that of a bare call of the function library."""

    async def cost(step: Callable[[], Awaitable[object]]) -> float:
        start = time.process_time()
        for _ in range(50):
            await step()
        return time.process_time() - start

    async with TestQueue() as queue, queue.worker(echo) as worker:

        async def job():
            await queue.add("n", 1)
            assert await worker.run_one() is not None

        await job()
        ratios = [await cost(job) / await cost(queue.get_job_counts) for _ in range(3)]
    assert min(ratios) < 60, ratios
