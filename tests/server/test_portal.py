"""The portal: what runs there, and what an interruption of a thread leaves."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from glidemq_py import Middleware, Worker, sync
from glidemq_py.errors import EventLoopError
from tests.inside import adds_are_under_way, heartbeat, portal, tasks_of_portal, threads
from tests.server.worker_support import StartServer


class Noting:
    """Notes the names of the threads in which code of the user runs."""

    def __init__(self):
        self.threads: dict[str, set[str]] = {}

    def note(self, what: str):
        self.threads.setdefault(what, set()).add(threading.current_thread().name)


class NotingSerializer:
    def __init__(self, noting: Noting):
        self.noting = noting

    def serialize(self, value: Any) -> str:
        self.noting.note("dumps")
        return repr(value)

    def deserialize(self, text: str) -> Any:
        self.noting.note("loads")
        return int(text)


class NotingMiddleware(Middleware):
    def __init__(self, noting: Noting):
        self.noting = noting

    @contextmanager
    def add(self, job: Any) -> Generator[None]:
        self.noting.note("add")
        yield
        self.noting.note("added")

    @contextmanager
    def add_bulk(self, jobs: Any) -> Generator[None]:
        self.noting.note("add_bulk")
        yield

    @contextmanager
    def run(self, job: Any) -> Generator[None]:
        self.noting.note("run")
        yield


class Data:
    """Data whose text is made by the application."""

    def __init__(self, noting: Noting):
        self.noting = noting

    def __repr__(self) -> str:
        self.noting.note("repr")
        return "7"


def test_no_code_of_the_user_runs_in_the_portal(url: str, queue_name: str):
    noting = Noting()
    options: Any = {"serializer": NotingSerializer(noting), "middleware": [NotingMiddleware(noting)]}
    with sync.Queue[Any, Any](queue_name, url, **options) as queue, sync.QueueEvents(queue_name, url) as events:
        heard = threading.Event()

        def listener(event: Any):
            noting.note("listener")
            heard.set()

        events.on("added", listener)
        queue.add("n", Data(noting))
        queue.add("n", 8, durable=None, delay=1)
        queue.add_bulk([("n", number) for number in range(600)])
        with queue.lease() as lease:
            assert lease is not None
            assert lease.job.data == 7
        assert queue.get_jobs("completed")[0].data == 7
        assert heard.wait(60)
    assert set(noting.threads) == {"dumps", "loads", "add", "added", "add_bulk", "run", "repr", "listener"}
    here = {threading.current_thread().name}
    assert noting.threads.pop("listener") == {f"glidemq-events-{queue_name}"}
    assert noting.threads == dict.fromkeys(noting.threads, here)


def test_an_interruption_ends_a_wait_at_once(url: str, queue_name: str):
    main = threading.get_ident()
    assert threading.main_thread().ident == main
    with sync.Queue[Any, Any](queue_name, url) as queue:
        job = queue.add("n")

        def interrupt():
            while f"glidemq-results-{queue_name}" not in tasks_of_portal():
                time.sleep(0.01)
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            job.wait_until_finished(60_000)
        thread.join()
        assert tasks_of_portal().count("glidemq-entered") == 1  # which counts them
        assert queue.add("n").id == "2"


def test_a_result_that_an_interrupted_thread_has_not_taken_is_passed_on():
    """So a fetch that is interrupted returns its jobs to the queue at once."""

    async def seven() -> int:
        return 7

    found, passed = list[int](), threading.Event()
    entry = portal().enter(threads.Work(portal(), seven(), found.append))
    while not entry.done():
        time.sleep(0.001)
    portal().call(entry.cancel)
    portal().call(passed.set)
    assert passed.wait(60)
    assert found == [7]


def test_the_portal_does_not_wait_for_itself():
    async def ours() -> str:
        return "nothing is run"

    async def wait_here() -> str:
        return portal().run(ours())

    with pytest.raises(EventLoopError, match="cannot wait for itself"):
        portal().run(wait_here())


SIGNALS = """
import random, signal, sys, threading, time
from glidemq_py.sync import Queue
queue = Queue(name, url)
queue.add("n")
raises, inside, count = {raises}, False, 0
def handler(*_):
    global inside, count
    if inside:
        return
    if raises:
        inside = True
        raise KeyboardInterrupt
    inside = True
    queue.add("from a handler")
    count += 1
    inside = False
signal.signal(signal.SIGALRM, handler)
end = time.monotonic() + 2
while time.monotonic() < end or count <= 100 and time.monotonic() < end + 60:
    inside = False
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, 0.0006))
        for _ in range(10):
            queue.add("n")
    except KeyboardInterrupt:
        count += 1
    finally:
        inside = True
        signal.setitimer(signal.ITIMER_REAL, 0)
done = []
thread = threading.Thread(target=lambda: done.append(queue.add("n")), daemon=True)
thread.start()
thread.join(60)
assert done and count > 100, count
"""
PROGRAMS = {
    "interruptions": SIGNALS.format(raises=True),
    "adds of a signal handler": SIGNALS.format(raises=False),
    "an iteration that has not ended": """
from glidemq_py.sync import Queue, QueueEvents
events = iter(QueueEvents(name, url, last_event_id="0"))
Queue(name, url).add("n")
next(events)
""",
    "a finalizer that closes": """
from glidemq_py.sync import Queue
class Holder:
    def __init__(self):
        self.queue = Queue(name, url)
        self.queue.add("n")
        self.itself = self
    def __del__(self):
        self.queue.close()
holder = Holder()
""",
    "green threads that wait and add": """
import gevent.monkey
gevent.monkey.patch_all()
import gevent, time
from glidemq_py import WaitTimeoutError
from glidemq_py.sync import Queue
queue = Queue(name, url)
job = queue.add("n")
def wait():
    try:
        job.wait_until_finished(20_000)
    except WaitTimeoutError:
        pass
waiting = gevent.spawn(wait)
gevent.sleep(0.5)
began = time.monotonic()
queue.add("n")
assert time.monotonic() - began < 10
waiting.kill(block=False)
import os
os._exit(0)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_ends(url: str, queue_name: str, program: str):
    code = f"name, url = {queue_name!r}, {url!r}\n{PROGRAMS[program]}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr


def test_loops_that_run_on_until_the_process_exits_are_not_of_uvloop():
    """Of 135 programs that ended on a busy machine, 9 crashed in a callback of uvloop, after the interpreter ended."""
    assert isinstance(portal().loop, asyncio.SelectorEventLoop)


def test_an_interrupted_add_is_not_sent_later(private_server: StartServer):
    server = private_server()
    with sync.Queue[Any, Any]("q", server.url) as queue:
        queue.add("before")
        server.pause()
        under_way = threading.Thread(target=queue.add, args=("under way",))
        under_way.start()
        while not adds_are_under_way(queue):
            time.sleep(0.01)
        main = threading.get_ident()

        def interrupt():
            time.sleep(0.5)  # nothing tells that the main thread waits
            signal.pthread_kill(main, signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            queue.add("interrupted")
        server.resume()
        interrupting.join()
        under_way.join()
        queue.add("after")
        assert [job.name for job in queue.get_jobs("waiting")] == ["before", "under way", "after"]


async def test_a_worker_without_a_thread_for_heartbeats_does_not_start(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    async def handle(job: Any): ...

    start = threading.Thread.start

    def refuse(thread: threading.Thread):
        if thread.name == "glidemq-heartbeats":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(heartbeat.heartbeats, "_thread", None)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        async with Worker(queue_name, handle, url):
            pass
