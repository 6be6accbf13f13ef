"""Programs of test_event_loops.py: each runs in a separate process, because a defect would keep it from ending.

``python -m tests.server.loop_programs <name> <url> <queue> [uvloop]`` prints one line of JSON.
"""

import asyncio
import atexit
import contextlib
import gc
import importlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from os import _exit
from typing import Any

import glide
from asgiref.sync import async_to_sync, sync_to_async

from glidemq_py import (
    Broadcast,
    ClosedError,
    ConnectionOptions,
    FlowProducer,
    Job,
    Producer,
    Queue,
    QueueEvents,
    Worker,
    sync,
)
from glidemq_py._client.portal import portal
from glidemq_py._job.waiting import ResultWaiter
from glidemq_py.errors import EventLoopError
from tests.inside import config_of, connected

PROGRAMS: dict[str, Callable[[str, str], Any]] = {}


def program(function: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    PROGRAMS[function.__name__] = function
    return function


def refused(work: Coroutine[Any, Any, Any]) -> str:
    """Return the message of the EventLoopError raised by ``work`` in a new loop; '' if it raises none."""

    async def run() -> str:
        try:
            async with asyncio.timeout(120):
                await work
        except EventLoopError as error:
            return str(error)
        return ""

    return asyncio.run(run())


def close_bare(loop: asyncio.AbstractEventLoop):
    """Close a loop without the shutdown that `asyncio.run` does."""
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


@program
def two_runs(url: str, name: str):
    queue, producer, flows = Queue(name, url), Producer(name, url), FlowProducer(url)
    broadcast = Broadcast(f"{name}-broadcast", url)

    async def add() -> Job:
        await producer.add("b")
        await flows.add({"name": "c", "queue": name})
        await broadcast.publish("d")
        await asyncio.gather(*(queue.add("e") for _ in range(10)))
        return await queue.add("a")

    jobs = [asyncio.run(add()) for _ in range(3)]

    async def look() -> list[str]:
        states = [str(await job.get_state()) for job in jobs]
        try:
            await jobs[0].wait_until_finished(50)
        except TimeoutError:
            states.append("waited")
        return [*states, str((await queue.get_job_counts()).waiting)]

    return asyncio.run(look())


@program
def loop_of_a_thread(url: str, name: str):
    queue = Queue(name, url)

    async def add() -> str:
        return (await queue.add("a")).id

    async def main() -> list[str]:
        first = await add()
        others = await asyncio.gather(*(asyncio.to_thread(asyncio.run, add()) for _ in range(4)))
        return [first, *others, await add()]

    return sorted(map(int, asyncio.run(main())))


@program
def loop_per_call(url: str, name: str):
    """Use a new loop per call in many threads, as asgiref's `async_to_sync` does."""
    queue = Queue(name, url)

    def call(_: int) -> int:
        async def add() -> int:
            return int((await queue.add("a")).id)

        return asyncio.run(add())

    with ThreadPoolExecutor(6) as threads:
        return sorted(threads.map(call, range(60)))


@program
def asgiref_calls(url: str, name: str):
    """Use asgiref as Django does: in threads of blocking views, and nested in async code."""
    queue = Queue(name, url)

    async def add() -> int:
        return int((await queue.add("a")).id)

    async def nested() -> list[int]:
        return [await add(), await sync_to_async(async_to_sync(add))(), await add()]

    with ThreadPoolExecutor(4) as threads:
        ids = list(threads.map(lambda _: async_to_sync(add)(), range(20)))
    ids += async_to_sync(nested)()
    return sorted([*ids, *asyncio.run(nested()), async_to_sync(add)()])


def log_of_checks() -> list[str]:
    """Return a list that collects the log lines of checks of the server's configuration that had no reply."""
    lines: list[str] = []
    logger = logging.getLogger("glidemq_py._client.async_client")
    logger.setLevel(logging.DEBUG)

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord):
            if "not checked" in record.getMessage():
                lines.append(record.getMessage())

    logger.addHandler(Collect())
    return lines


@program
def stopped_loop(url: str, name: str):
    """Check a loop that is not running, such as a fixture's: it used to receive all of GLIDE's replies."""
    queue, first, second = Queue(name, url), asyncio.new_event_loop(), asyncio.new_event_loop()
    unchecked = log_of_checks()

    async def add() -> int:
        return int((await queue.add("a")).id)

    ids = [loop.run_until_complete(add()) for loop in (first, second, first, second)]
    return [*ids, *unchecked]


@program
def busy_loop(url: str, name: str):
    """Check a loop that received GLIDE's replies, is blocked, and then ends."""
    queue, held, release = Queue(name, url), threading.Event(), threading.Event()
    unchecked = log_of_checks()

    async def block():
        await queue.add("a")
        held.set()
        release.wait(60)

    thread = threading.Thread(target=asyncio.run, args=(block(),))
    thread.start()
    held.wait(60)

    async def add() -> list[Any]:
        ids = [int((await queue.add("a")).id)]
        release.set()
        await asyncio.to_thread(thread.join)
        return [*ids, int((await queue.add("a")).id), *unchecked]

    return asyncio.run(add())


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@program
def leaks(url: str, name: str):
    """Count connections at the server, and open files, after loops that ended without closing anything."""
    queue, counting = Queue(name, url), Queue("counting", url)

    async def count() -> tuple[int, int]:
        transport = (await connected(counting)).transport
        clients: bytes = await transport.command("CLIENT", "LIST")
        return clients.count(b"\n"), _open_files()

    async def use(ended: list[Worker]):
        await queue.add("a", {"x": 1})
        await queue.read_stream("1", block=1)
        worker = Worker(name, handled, url)
        await worker.start()
        ended.append(worker)
        await queue.add_and_wait("b", wait_timeout=20_000)

    async def handled(_: Job): ...

    def after_cycles(files: int) -> tuple[int, int]:
        # A heartbeat thread detects the end of its loop at its next beat; GLIDE frees sockets in its own thread.
        deadline = time.monotonic() + 120
        while True:
            clients, now = asyncio.run(count())
            if (clients <= 2 and now <= files) or time.monotonic() > deadline:
                return clients, now
            time.sleep(0.2)

    kept: list[Worker] = []
    asyncio.run(use(kept))
    first = after_cycles(10_000)
    for _ in range(3):
        asyncio.run(use(kept))
    second = after_cycles(first[1])
    for loop in [asyncio.new_event_loop() for _ in range(5)]:
        loop.run_until_complete(queue.add("a"))
        close_bare(loop)
    return [first, second, after_cycles(first[1])]


@program
def loop_closed_with_pending_tasks(url: str, name: str):
    queue = Queue(name, url)

    async def add() -> int:
        return int((await queue.add("a")).id)

    ids = list[int]()
    for _ in range(3):
        loop = asyncio.new_event_loop()
        ids.append(loop.run_until_complete(add()))
        loop.close()
    ids.append(asyncio.run(add()))
    gc.collect()
    return ids


@program
def forked(url: str, name: str):
    queue = Queue(name, url)

    async def add() -> int:
        return int((await queue.add("a")).id)

    ids = [asyncio.run(add())]
    for _ in range(2):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, str(asyncio.run(add())).encode())
            _exit(0)
        os.waitpid(child, 0)
        ids += [int(os.read(reading, 100)), asyncio.run(add())]
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()
    process = context.Process(target=lambda: results.put(asyncio.run(add())))
    process.start()
    ids.append(results.get())
    process.join()
    return ids


@program
def forked_with_locks_held(url: str, name: str):
    """Fork while another thread holds the locks of a pool and of a queue that waits for results."""
    queue, pool = sync.Queue(name, url), sync.ServerlessPool()
    producer = pool.get_producer(name, url)
    job = queue.add("a")
    with contextlib.suppress(TimeoutError):
        job.wait_until_finished(50)
    locks: Any = [pool._cache._lock, portal._starting]
    held, release = threading.Event(), threading.Event()

    def hold():
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        found = [len(pool), pool.get_producer(name, url).add("b")]
        try:
            job.wait_until_finished(50)
        except TimeoutError:
            found.append("waited")
        os.write(writing, json.dumps(found).encode())
        _exit(0)
    os.close(writing)
    answer = os.read(reading, 1000).decode()
    os.waitpid(child, 0)
    release.set()
    thread.join()
    producer.close()
    return [len(locks), json.loads(answer or "null")]


@program
def forked_inside_a_loop(url: str, name: str):
    queue = Queue(name, url)

    async def main() -> list[Any]:
        await queue.add("a")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                await queue.add("a")
            except EventLoopError as error:
                os.write(writing, str(error).encode())
            _exit(0)
        os.waitpid(child, 0)  # noqa: ASYNC222
        return [os.read(reading, 1000).decode(), int((await queue.add("a")).id)]

    return asyncio.run(main())


@program
def bound_objects(url: str, name: str):
    """Check that objects of one loop raise an error in another loop."""

    async def handled(_: Job): ...

    worker, events = Worker(name, handled, url), QueueEvents(name, url)

    async def main() -> dict[str, str]:
        config: Any = config_of(ConnectionOptions.from_url(url))
        client = await glide.GlideClient.create(config)
        queue = Queue(name, client)
        await queue.add("a")
        await worker.start()
        await events.wait_until_ready()
        found: dict[str, str] = {}
        calls: tuple[tuple[str, Any], ...] = (
            ("client", queue.add("a")), ("start", worker.start()), ("close", worker.close()),
            ("ready", worker.wait_until_ready()), ("events", anext(aiter(events))),
        )  # fmt: skip
        for what, work in calls:
            found[what] = await asyncio.to_thread(refused, work)
        await asyncio.to_thread(worker.pause)
        await asyncio.to_thread(worker.resume)
        await queue.add_and_wait("b", wait_timeout=20_000)
        await worker.close()
        await asyncio.to_thread(asyncio.run, worker.close())
        await client.close()
        return found

    found = asyncio.run(main())
    found["ended"] = refused(events.wait_until_ready())
    return found


@program
def closed_from_another_loop(url: str, name: str):
    """Check that `close` ends waits in other loops."""
    queue = Queue(name, url)
    waiting = threading.Event()
    outcome: list[str] = []

    async def wait():
        job = await queue.add("a")
        waiting.set()
        try:
            await job.wait_until_finished(100_000)
        except Exception as error:
            outcome.append(type(error).__name__)

    thread = threading.Thread(target=asyncio.run, args=(wait(),))
    thread.start()
    waiting.wait(60)
    asyncio.run(queue.close())
    thread.join(60)
    return [*outcome, thread.is_alive()]


@program
def closed_while_other_loops_end(url: str, name: str):
    """Check that `close` is not cancelled by the end of the loops that it closes connections in."""
    ended: list[str] = []

    def add_until_closed(ready: threading.Barrier, queue: Queue[Any, Any]):
        async def add():
            await queue.add("n")
            await asyncio.to_thread(ready.wait)
            with contextlib.suppress(ClosedError):
                while True:
                    await queue.add("n")

        asyncio.run(add())

    async def close(ready: threading.Barrier, queue: Queue[Any, Any]):
        await queue.add("n")
        await asyncio.to_thread(ready.wait)
        try:
            await queue.close()
        except BaseException as error:
            ended.append(type(error).__name__)

    for _ in range(10):
        ready, queue = threading.Barrier(4), Queue[Any, Any](name, url)
        threads = [threading.Thread(target=add_until_closed, args=(ready, queue)) for _ in range(3)]
        for thread in threads:
            thread.start()
        asyncio.run(close(ready, queue))
        for thread in threads:
            thread.join(60)
    return ended


@program
def blocking_jobs(url: str, name: str):
    """Run two workers in two loops, whose handlers are plain functions; the later one ends first."""
    queue = Queue(name, url)
    other = Queue(f"{name}-other", url)
    started, release = threading.Event(), threading.Event()

    def handle(job: Job) -> list[str]:
        job.blocking.log("one")
        started.set()
        release.wait(60)
        job.blocking.log("two")
        return job.blocking.logs()

    def quick(job: Job) -> list[str]:
        job.blocking.log("three")
        return job.blocking.logs()

    async def first() -> list[str]:
        async with Worker(name, handle, url):
            result: list[str] = await queue.add_and_wait("a", wait_timeout=60_000)
            return result

    async def second() -> list[str]:
        async with Worker(f"{name}-other", quick, url):
            result: list[str] = await other.add_and_wait("a", wait_timeout=60_000)
            return result

    async def main() -> list[list[str]]:
        running = asyncio.create_task(asyncio.to_thread(asyncio.run, first()))
        await asyncio.to_thread(started.wait, 60)
        there = await asyncio.to_thread(asyncio.run, second())
        release.set()
        return [await running, there]

    return asyncio.run(main())


@program
def blocking_job_of_an_ended_loop(url: str, name: str):
    """Check that a handler's thread that outlives its worker's loop does not wait forever."""
    queue, started, ended, notified = (
        Queue(name, url),
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )
    outcome: list[str] = []

    def handle(job: Job):
        started.set()
        ended.wait(60)
        try:
            job.blocking.log("late")
        except EventLoopError as error:
            outcome.append(str(error))
        notified.set()

    async def main():
        await Worker(name, handle, url).start()
        await queue.add("a")
        await asyncio.to_thread(started.wait, 60)

    asyncio.run(main())
    ended.set()
    notified.wait(60)
    return outcome


@program
def jobs_of_a_closing_loop(url: str, name: str):
    """End a loop whose worker was not closed while one handler waits in a thread and another in a task."""
    queue, returned, records = Queue(name, url), threading.Event(), list[logging.LogRecord]()
    outcome: list[str] = []
    log = logging.getLogger("glidemq_py.failures")
    log.addHandler(handler := logging.Handler())
    handler.emit = records.append  # type: ignore[method-assign,assignment]

    def in_thread(job: Job):
        try:
            job.blocking.wait_until_finished(100_000)
        except BaseException as error:
            outcome.append(type(error).__name__)
            raise
        finally:
            returned.set()

    async def in_task(_: Job):
        await asyncio.Event().wait()

    async def main():
        plain, other = Worker(name, in_thread, url), Worker(f"{name}-task", in_task, url)
        await plain.start()
        await other.start()
        await queue.add("a")
        async with Queue(f"{name}-task", url) as second:
            await second.add("b")
        while not (  # noqa: ASYNC110
            other.active_count and any(w._waiting for w in gc.get_objects() if isinstance(w, ResultWaiter))
        ):
            await asyncio.sleep(0.01)

    asyncio.run(main())
    returned.wait(60)

    async def look() -> list[str]:
        states: list[str] = []
        for each in (name, f"{name}-task"):
            async with Queue(each, url) as found:
                job = await found.get_job("1")
                assert job is not None
                states += [str(await job.get_state()), str(job.attempts_made), str(job.failed_reason)]
        return states

    return [*outcome, asyncio.run(look()), [record.getMessage() for record in records]]


@program
def at_exit(url: str, name: str) -> list[str]:
    blocking = sync.Queue(name, url)
    blocking.add("first")
    outcome: list[str] = []

    def add():
        outcome.append(blocking.add("last").id)
        outcome.append(refused(Queue(name, url).add("too late")))
        print(json.dumps(outcome))

    atexit.register(add)
    sys.exit()


@program
def under_gevent(url: str, name: str) -> list[str]:
    importlib.import_module("gevent.monkey").patch_all()
    with sync.Queue(name, url) as blocking:
        return [blocking.add("a").id, refused(Queue(name, url).add("b"))]


if __name__ == "__main__":
    if sys.argv[4:] == ["uvloop"]:
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    print(json.dumps(PROGRAMS[sys.argv[1]](sys.argv[2], sys.argv[3])))
