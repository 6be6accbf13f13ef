"""Queues, producers and events for code that blocks: every method on a real server, in threads, after a fork."""

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import _exit
from typing import Any

import pytest

import glidemq_py
from glidemq_py import (
    ClosedError,
    ConnectionOptions,
    GlideMQValidationError,
    WaitTimeoutError,
    Worker,
    sync,
)
from tests.inside import client_of, connected, drive, tasks_of_portal
from tests.server.worker_support import StartServer


async def handle(job: glidemq_py.Job):
    if job.name == "fail":
        raise ValueError("no")
    await job.log("seen")
    return job.data


@contextmanager
def worker_of(name: str, url: str) -> Iterator[None]:
    """A worker in an event loop of another thread."""
    started, ended = threading.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def work():
        loops.append(asyncio.get_running_loop())
        stop = asyncio.Event()
        stops.append(stop)
        async with Worker(name, handle, url, concurrency=5):
            started.set()
            await stop.wait()
        ended.set()

    stops: list[asyncio.Event] = []
    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    try:
        assert started.wait(100)
        yield
    finally:
        if loops:
            loops[0].call_soon_threadsafe(stops[0].set)
        thread.join(100)


# -- a queue ---------------------------------------------------------------------------------------------------


def test_many_threads_wait_for_results_of_one_queue(url: str, queue_name: str):
    with sync.Queue(queue_name, url) as queue, worker_of(queue_name, url), ThreadPoolExecutor(20) as threads:
        found = threads.map(lambda n: queue.add_and_wait("n", n, wait_timeout=20_000), range(100))
        assert list(found) == list(range(100))
        assert tasks_of_portal().count(f"glidemq-results-{queue_name}") == 1


def test_many_threads_add_to_one_queue(url: str, queue_name: str):
    # None of them has connected it: that happens once.
    with sync.Queue(queue_name, url) as queue:
        pass
    queue = sync.Queue(queue_name, url)
    together = threading.Barrier(16)

    def add(n: int) -> list[str]:
        together.wait()
        return [queue.add("n", n).id for _ in range(50)]

    with ThreadPoolExecutor(16) as threads:
        ids = [each for found in threads.map(add, range(16)) for each in found]
    assert len(set(ids)) == 800
    assert queue.count() == 800
    assert len(list(queue.iter_jobs("waiting"))) == 800
    queue.close()


def test_closing_while_threads_are_inside(url: str, queue_name: str):
    # GLIDE frees its client when it is closed, so no call may be running then.
    queue = sync.Queue(queue_name, url)
    begun = threading.Barrier(9)

    def add() -> int:
        begun.wait()
        for n in range(100_000):
            try:
                queue.add("n")
            except ClosedError:
                return n
        return -1

    with ThreadPoolExecutor(8) as threads:
        adding = [threads.submit(add) for _ in range(8)]
        begun.wait()
        while queue.get_job_counts().waiting < 100:
            pass
        queue.close()
        done = sum(each.result(100) for each in adding)
    with sync.Queue(queue_name, url) as other:
        assert other.count() == done


async def test_a_client_of_the_user_is_rejected(url: str, queue_name: str) -> None:
    async with glidemq_py.Queue(queue_name, url) as other:
        link = await connected(other)
        client = client_of((await link.transport.connected()).transport)  # type: ignore[attr-defined]
        for kind in (sync.Queue, sync.QueueEvents, sync.Producer):
            with pytest.raises(GlideMQValidationError, match=r"makes its own.*ConnectionOptions"):
                kind(queue_name, client)


async def test_blocking_queue_in_a_running_event_loop(url: str, queue_name: str):
    # It blocks the loop, which is the caller's choice (a notebook, a debugger); it must not fail.
    with sync.Queue(queue_name, url) as queue:
        queue.add_bulk([("n", i) for i in range(1_000)])
        assert len(list(queue.iter_jobs("waiting"))) == 1_000
        with pytest.raises(WaitTimeoutError):
            queue.add("n").wait_until_finished(20)


def test_the_first_call_writes_nothing_to_stderr(private_server: StartServer, capfd: pytest.CaptureFixture[str]):
    with sync.Queue("q", private_server().url) as queue:
        queue.add("n")
    assert capfd.readouterr().err == ""


def test_the_embedded_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GLIDEMQ_URL", raising=False)
    with sync.Queue("q") as queue:
        assert queue.add("n").id == "1"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork(url: str, queue_name: str, tmp_path: Any):
    # As in a preforking web server: made and used before, used after, in both.
    with sync.Queue(queue_name, url) as queue:
        queue.add("before")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for n in range(20):
                    queue.add("child", n)
                queue.add("last").wait_until_finished(30)
            except WaitTimeoutError:
                code = 0
            finally:
                _exit(code)
        for n in range(20):
            queue.add("parent", n)
        assert os.waitpid(child, 0)[1] == 0
        names = [job.name for job in queue.iter_jobs("waiting")]
        assert (len(names), names.count("child"), names.count("parent")) == (42, 20, 20)


def test_asynchronous_waits_are_rejected():
    with pytest.raises(RuntimeError, match="event loop"):
        drive(_asks_for_a_loop())


async def _asks_for_a_loop():
    class Never:
        def __await__(self) -> Iterator[None]:
            yield

    await Never()  # type: ignore[misc]


# -- producers -------------------------------------------------------------------------------------------------


def test_the_pool(url: str, queue_name: str):
    pool = sync.ServerlessPool()
    one = pool.get_producer(queue_name, url)
    assert pool.get_producer(queue_name, ConnectionOptions.from_url(url)) is one
    assert pool.get_producer(queue_name, url, events=False) is not one
    assert len(pool) == 2
    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda _: pool.get_producer(queue_name, url).add("n"), range(100)))
    assert len(set(ids)) == 100
    assert len(pool) == 2
    pool.close_all()
    assert one.is_closed
    assert len(pool) == 0
    assert len(sync.serverless_pool) == 0


# -- jobs of handlers ------------------------------------------------------------------------------------------
