"""Queues, producers and events for code that blocks: every method on a real server, in threads, after a fork."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import glide_sync
import pytest

import glidemq_py
from glidemq_py import (
    ClosedError,
    GlideMQConnectionError,
    GlideMQValidationError,
    JobFailedError,
    JobOutcome,
    JobStateError,
    ServerOutOfMemoryError,
    UnsupportedOptionError,
    WaitTimeoutError,
    Worker,
    sync,
)
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.glide_config import config_of
from glidemq_py._client.runtime import run_immediately
from glidemq_py.testing import ServerProcess
from tests.key_leaks import KeyLeaks


async def handle(job: glidemq_py.Job) -> Any:
    if job.name == "fail":
        raise ValueError("no")
    await job.log("seen")
    return job.data


@contextmanager
def worker_of(name: str, url: str) -> Iterator[None]:
    """A worker in an event loop of another thread."""
    started, ended = threading.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
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


def test_adding_and_reading(core_url: str, queue_name: str) -> None:
    with sync.Queue(queue_name, core_url) as queue:
        job = queue.add("n", {"a": 1}, attempts=3)
        assert (job.id, job.name, job.data, job.outcome) == ("1", "n", {"a": 1}, JobOutcome.ADDED)
        assert job.get_state() == "waiting"
        assert job.is_waiting()
        jobs = queue.add_bulk(
            [("b", 1), ("c", 2, {"delay": 60_000}), ("d", 3, {"priority": 4}), ("n", 0, {"job_id": "x"})]
        )
        assert [each.name for each in jobs] == ["b", "c", "d", "n"]
        assert isinstance(jobs[0], sync.Job)
        found = queue.get_job("1")
        assert found is not None
        assert found.opts == {"attempts": 3}
        assert queue.get_job("none") is None
        assert [each.id for each in queue.iter_jobs("waiting")] == ["1", jobs[0].id, "x"]
        assert [each.id for each in queue.get_jobs("waiting", 1, 1)] == [jobs[0].id]
        assert queue.get_job_counts().delayed == 1
        assert queue.count() == 5
        assert queue.get_workers() == []
        assert [each.name for each in queue.search_jobs(name="d")] == ["d"]
        assert queue.get_metrics("completed").count == 0
        found.log("line")
        assert queue.get_job_logs("1").logs == ["line"] == found.logs()
        assert queue.name == queue_name
        assert queue.options.prefix == "glide"


def test_steering(url: str, queue_name: str, key_leaks: KeyLeaks) -> None:
    with sync.Queue(queue_name, url) as queue:
        queue.pause()
        assert queue.is_paused()
        queue.resume()
        late = queue.add("late", delay=60_000)
        queue.promote(late.id)
        queue.change_priority(late.id, 3)
        late.change_delay(5_000)
        assert late.delay == 5_000
        assert late.get_state() == "delayed"
        assert queue.revoke(late.id) == "revoked"
        for change in (queue.retry_jobs, queue.requeue_completed, queue.promote_jobs):
            with pytest.raises(
                GlideMQValidationError, match="option 'count' = 0: must be at least 1; leave it out for all"
            ):
                change(0)
        assert queue.retry_jobs() == 1
        queue.set_result_retention(5_000)
        assert queue.get_result_retention() == 5_000
        queue.set_result_retention(0)
        queue.set_event_retention(5_000)
        assert queue.get_event_retention() == 5_000
        queue.set_global_concurrency(3)
        assert queue.get_global_concurrency() == 3
        queue.set_global_concurrency(0)
        queue.set_global_rate_limit(5, 1_000)
        assert queue.get_global_rate_limit() == glidemq_py.RateLimit(5, 1_000)
        queue.remove_global_rate_limit()
        queue.set_group_limits("g", concurrency=2)
        group = queue.get_group("g")
        assert group is not None
        assert group.limits.concurrency == 2
        assert queue.rate_limit_group("g", 10) > 0
        assert queue.remove(late.id)
        queue.add_bulk([("n", i) for i in range(700)])
        assert queue.drain() == 700
        assert queue.clean(0) == []
        report = queue.check(repair=True, recheck_after=10)
        assert report.ok
        queue.add("n")
        assert queue.obliterate() == 1


def test_results(core_url: str, queue_name: str) -> None:
    with sync.Queue(queue_name, core_url) as queue, worker_of(queue_name, core_url):
        assert queue.add_and_wait("n", {"a": 1}, wait_timeout=10_000) == {"a": 1}
        job = queue.add("n", 5)
        assert job.wait_until_finished(10_000) == 5
        assert job.is_completed()
        with pytest.raises(JobFailedError, match="no"):
            queue.add_and_wait("fail", wait_timeout=10_000)
        with pytest.raises(UnsupportedOptionError):
            queue.add_and_wait("n", remove_on_complete=True)
        with pytest.raises(JobStateError):
            queue.add_and_wait("n", job_id=job.id)
        later = queue.add("n", delay=60_000)
        with pytest.raises(WaitTimeoutError):
            later.wait_until_finished(50)


def test_many_threads_wait_for_results_of_one_queue(url: str, queue_name: str) -> None:
    with sync.Queue(queue_name, url) as queue, worker_of(queue_name, url), ThreadPoolExecutor(20) as threads:
        found = threads.map(lambda n: queue.add_and_wait("n", n, wait_timeout=20_000), range(100))
        assert list(found) == list(range(100))
        readers = [thread for thread in threading.enumerate() if thread.name == f"glidemq-results-{queue_name}"]
        assert len(readers) == 1


def test_many_threads_add_to_one_queue(url: str, queue_name: str) -> None:
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


def test_dead_letters(url: str, queue_name: str) -> None:
    with (
        sync.Queue(queue_name, url, dead_letter_queue=f"{queue_name}-dead") as queue,
        sync.Queue(f"{queue_name}-dead", url) as dead,
    ):
        with worker_of(queue_name, url), pytest.raises(JobFailedError):
            queue.add_and_wait("fail", {"n": 1})
        (letter,) = queue.get_dead_letter_jobs()
        assert letter.data["originalJobId"] == "1"
        assert [each.id for each in queue.iter_dead_letter_jobs()] == [letter.id]
        assert queue.get_dead_letter_job(letter.id) is not None
        again = queue.replay_dead_letter_job(letter.id)
        assert again is not None
        assert again.data == {"n": 1}
        assert not queue.remove_dead_letter_job(letter.id)
        assert dead.count() == 0


def test_closing(url: str, queue_name: str) -> None:
    queue = sync.Queue(queue_name, url)
    queue.connect()
    queue.close()
    queue.close()
    with pytest.raises(ClosedError):
        queue.add("n")


def test_closing_while_threads_are_inside(url: str, queue_name: str) -> None:
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


def test_a_client_of_the_user_is_not_closed(url: str, queue_name: str) -> None:
    client = glide_sync.GlideClient.create(config_of(ConnectionOptions.from_url(url)))
    with sync.Queue(queue_name, client) as queue:
        queue.add("n")
        with sync.QueueEvents(queue_name, client, last_event_id="0") as events:
            assert next(iter(events)).event == "added"
    assert client.ping() == b"PONG"
    client.close()


async def test_asynchronous_client_is_rejected(url: str, queue_name: str) -> None:
    async with glidemq_py.Queue(queue_name, url) as other:
        link = await other._connected()
        client: Any = (await link.transport.connected()).transport._client  # type: ignore[attr-defined]
        with pytest.raises(GlideMQValidationError, match="valkey-glide-sync"):
            sync.Queue(queue_name, client).add("n")


async def test_blocking_queue_in_a_running_event_loop(url: str, queue_name: str) -> None:
    # It blocks the loop, which is the caller's choice (a notebook, a debugger); it must not fail.
    with sync.Queue(queue_name, url) as queue:
        queue.add_bulk([("n", i) for i in range(1_000)])
        assert len(list(queue.iter_jobs("waiting"))) == 1_000
        with pytest.raises(WaitTimeoutError):
            queue.add("n").wait_until_finished(20)


def test_unreachable_server(queue_name: str) -> None:
    with pytest.raises(GlideMQConnectionError):
        sync.Queue(queue_name, "valkey://127.0.0.1:1").add("n")


def test_reconnects_after_a_server_restart(restartable_server: Callable[..., ServerProcess]) -> None:
    server = restartable_server()
    with sync.Queue("q", f"{server.url}?request_timeout=500") as queue:
        queue.add("n")
        server.kill()
        with pytest.raises(GlideMQConnectionError):
            queue.add("n", job_id="mine")
        server.restart()
        while True:
            try:
                job = queue.add("n", job_id="mine")
                break
            except GlideMQConnectionError:
                continue
        assert job.id == "mine"
        assert queue.count() == 2


def test_the_first_call_writes_nothing_to_stderr(
    private_server: Callable[..., ServerProcess], capfd: pytest.CaptureFixture[str]
) -> None:
    with sync.Queue("q", private_server().url) as queue:
        queue.add("n")
    assert capfd.readouterr().err == ""


def test_a_full_server(private_server: Callable[..., ServerProcess]) -> None:
    server = private_server(maxmemory="64mb")
    with sync.Queue("q", server.url) as queue:
        queue.add("n")
        with server.client() as resp:
            resp.execute("CONFIG", "SET", "maxmemory", "1mb")
        with pytest.raises(ServerOutOfMemoryError):
            queue.add("n")
        assert queue.drain() == 1


def test_the_embedded_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIDEMQ_URL", raising=False)
    with sync.Queue("q") as queue:
        assert queue.add("n").id == "1"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork(url: str, queue_name: str, tmp_path: Any) -> None:
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
                os._exit(code)
        for n in range(20):
            queue.add("parent", n)
        assert os.waitpid(child, 0)[1] == 0
        names = [job.name for job in queue.iter_jobs("waiting")]
        assert (len(names), names.count("child"), names.count("parent")) == (42, 20, 20)


def test_asynchronous_waits_are_rejected() -> None:
    with pytest.raises(RuntimeError, match="event loop"):
        run_immediately(_asks_for_a_loop())


async def _asks_for_a_loop() -> None:
    class Never:
        def __await__(self) -> Iterator[None]:
            yield

    await Never()  # type: ignore[misc]


# -- producers -------------------------------------------------------------------------------------------------


def test_a_producer(url: str, queue_name: str) -> None:
    with sync.Producer(queue_name, url) as producer:
        assert producer.add("n", 1) == "1"
        assert producer.add("n", job_id="a") == "a"
        assert producer.add("n", job_id="a") is None
        assert producer.add_bulk([("n",), ("n", 1, {"job_id": "a"}), ("n",)]) == ["2", None, "3"]
        assert not producer.is_closed
    assert producer.is_closed


def test_the_pool(url: str, queue_name: str) -> None:
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


def test_flows(core_url: str, queue_name: str) -> None:
    with sync.FlowProducer(core_url) as flows, sync.Queue(queue_name, core_url) as queue:
        children = [{"name": "n", "queue": queue_name, "data": n} for n in range(3)]
        node = flows.add({"name": "sum", "queue": queue_name, "data": 9, "children": children})
        assert node.job.blocking.get_state() == "waiting-children"
        found = flows.get_flow(queue_name, node.job.id)
        assert found is not None
        assert len(found.children) == 3
        with worker_of(queue_name, core_url):
            assert node.job.blocking.wait_until_finished(10_000) == 9
        jobs = flows.add_dag([
            {"name": "a", "queue": queue_name}, {"name": "b", "queue": queue_name, "deps": ["a"]},
        ])  # fmt: skip
        assert jobs["a"].get_state() == "waiting"
        assert queue.get_job(jobs["b"].id) is not None


# -- events ----------------------------------------------------------------------------------------------------


def test_events_by_iteration(core_url: str, queue_name: str) -> None:
    events = sync.QueueEvents(queue_name, core_url)
    events.wait_until_ready()
    with sync.Queue(queue_name, core_url) as queue:
        queue.add("n")
        queue.pause()
    seen = []
    for event in events:
        seen.append((event.event, event.job_id))
        if len(seen) == 2:
            break
    assert seen[0] == ("added", "1")
    assert seen[1][0] == "paused"
    assert events.name == queue_name
    events.close()


def test_scheduler_is_paused_and_resumed(core_url: str, queue_name: str) -> None:
    with sync.Queue(queue_name, core_url) as queue:
        queue.upsert_job_scheduler("hourly", every=3_600_000, immediately=True)
        events = sync.QueueEvents(queue_name, core_url)
        events.wait_until_ready()
        paused = queue.pause_job_scheduler("hourly")
        assert paused is not None
        assert paused.paused
        with worker_of(queue_name, core_url):
            queue.add_and_wait("n", 1, timeout=100_000)
            assert {job.name for job in queue.iter_jobs("completed")} == {"n"}  # the worker has fired no scheduler
            resumed = queue.resume_job_scheduler("hourly", catch_up=True)
            assert resumed is not None
            assert not resumed.paused
            seen: list[str] = []
            for event in events:
                seen.append(event.event)
                if event.event == "added" and event.fields["name"] == "hourly":
                    break
        assert (seen[0], "scheduler-resumed" in seen) == ("scheduler-paused", True)
        events.close()
        assert queue.pause_job_scheduler("none") is None
        assert queue.remove_job_scheduler("hourly")


def test_events_by_listeners(url: str, queue_name: str) -> None:
    seen: list[str] = []
    both = threading.Event()

    def listen(event: glidemq_py.QueueEvent) -> None:
        seen.append(f"{threading.current_thread().name.startswith('glidemq-events')} {event.event} {event.job_id}")
        if len(seen) == 2:
            both.set()

    with sync.QueueEvents(queue_name, url) as events, sync.Queue(queue_name, url) as queue:
        events.on("added", listen)
        queue.add("n")
        queue.add("n")
        assert both.wait(100)
        events.off("added", listen)
    assert seen == ["True added 1", "True added 2"]


def test_another_thread_ends_an_iteration(url: str, queue_name: str) -> None:
    events = sync.QueueEvents(queue_name, url)
    events.wait_until_ready()
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(len(list(events))))
    thread.start()
    events.close()
    thread.join(100)
    assert ended == [0]


# -- jobs of handlers ------------------------------------------------------------------------------------------


async def test_blocking_job_of_a_thread_handler(url: str, queue_name: str) -> None:
    seen: list[Any] = []

    def plain(job: glidemq_py.Job) -> str:
        blocking = job.blocking
        blocking.log("one")
        blocking.update_progress(50)
        blocking.update_data({"a": 2})
        seen.append((blocking.id, blocking.name, blocking.data, blocking.get_state(), blocking.logs()))
        seen.append((blocking.is_active(), blocking.is_revoked(), blocking.progress, blocking.queue_name))
        return "done"

    async with glidemq_py.Queue(queue_name, url) as queue, Worker(queue_name, plain, url):
        job = await queue.add("n", {"a": 1})
        assert await job.wait_until_finished() == "done"
        with pytest.raises(RuntimeError):
            job.blocking.get_state()
    assert seen == [("1", "n", {"a": 2}, "active", ["one"]), (True, False, 50, queue_name)]
