"""A worker that serves several queues: order, weights, wake-ups, and what each queue is promised."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from glidemq_py import GlideMQError, GlideMQValidationError, Job, JobFailedError, Queue, Worker
from glidemq_py.testing import RespClient
from tests.conftest import SERVER_AND_CLUSTER
from tests.inside import (
    QueueKeys,
    around,
    connected,
    keys_of,
    lane,
    opened,
    partition_names,
    wake,
    wake_channel,
)
from tests.inside import queues as maintaining
from tests.server.test_partitions import keyed
from tests.server.worker_support import StartServer, WorkerFor, until, with_timeout
from tests.wire_library.support import WireQueue, load

NEVER_S = 3_600.0


async def echo(job: Job):
    """Return the data."""
    return job.data


@pytest.fixture
def names(queue_name: str) -> list[str]:
    """Names of three queues."""
    return [f"{queue_name}-{letter}" for letter in "abc"]


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch):
    """Queues are polled once an hour: what arrives in time was brought by a message."""
    monkeypatch.setattr(wake_channel, "POLL_S", NEVER_S)


async def registered(resp: RespClient, name: str, count: int = 1):
    """Wait until so many idle workers have registered their channels with the queue."""
    await with_timeout(until(lambda: resp.execute("ZCARD", f"glide:{{{name}}}:wake-channels") == count))


@pytest.mark.usefixtures("without_polling")
async def test_jobs_of_all_queues_run(core_url: str, core_resp: RespClient, names: list[str]):
    ran: list[tuple[str, Any]] = []

    async def handle(job: Job):
        ran.append((job.queue_name, job.data))
        return job.data

    async with Worker(names, handle, core_url, concurrency=2):
        for at, name in enumerate(names):
            await registered(core_resp, name)
            async with Queue(name, core_url) as queue:
                assert await queue.add_and_wait("n", at) == at
    assert ran == [(name, at) for at, name in enumerate(names)]


async def test_list_is_a_strict_order(url: str, names: list[str]):
    ran: list[str] = []

    async def handle(job: Job):
        ran.append(job.queue_name)

    for name in names:
        async with Queue(name, url) as queue:
            await queue.add_bulk([("n", None)] * 20)
    worker = Worker(list(reversed(names)), handle, url)
    await worker.start()
    await worker.drain()
    assert ran == [name for name in reversed(names) for _ in range(20)]


async def test_earlier_queue_gets_a_slot_before_a_backlog(url: str, names: list[str]):
    first, _, last = names
    backlog = 1_000  # a busy machine runs many of them before it reads the message of the added job
    ran: list[str] = []
    begun, go = asyncio.Event(), asyncio.Event()

    async def handle(job: Job):
        ran.append(job.queue_name)
        begun.set()
        await go.wait()

    async with Queue(first, url) as early, Queue(last, url) as late:
        await late.add_bulk([("n", None)] * backlog)
        worker = Worker([first, last], handle, url)
        await worker.start()
        await begun.wait()
        await early.add("n")
        go.set()
        await worker.drain()
    assert ran.index(first) < backlog / 2
    assert Counter(ran) == {first: 1, last: backlog}


@pytest.mark.parametrize(("concurrency", "jobs"), [(1, 1_500), (4, 400), (50, 10_000)])
async def test_weights_share_the_slots(url: str, names: list[str], concurrency: int, jobs: int):
    """A queue may be a turn ahead, which is several hundred of these jobs with 50 slots."""
    ran: list[str] = []

    async def handle(job: Job):
        ran.append(job.queue_name)
        await asyncio.sleep(0.001 if concurrency > 1 else 0)

    for name in names:
        async with Queue(name, url) as queue:
            await queue.add_bulk([("n", None)] * jobs)
    worker = Worker(dict(zip(names, (6, 3, 1), strict=True)), handle, url, concurrency=concurrency)
    await worker.start()
    await with_timeout(until(lambda: len(ran) >= jobs))
    await worker.close()
    shares = Counter(ran[:jobs])
    for name, share in zip(names, (0.6, 0.3, 0.1), strict=True):
        assert shares[name] / jobs == pytest.approx(share, abs=0.1 if concurrency > 1 else 0.08)


async def test_cancel_job_names_the_queue_of_equal_ids(url: str, names: list[str]):
    running: dict[str, asyncio.Event] = {name: asyncio.Event() for name in names}

    async def handle(job: Job):
        running[job.queue_name].set()
        await asyncio.Event().wait()

    a, b, c = names
    worker = Worker(names, handle, url, concurrency=3)
    assert not worker.cancel_job("7")
    async with Queue(a, url) as first, Queue(b, url) as second, worker:
        one, two = await first.add("n", job_id="7"), await second.add("n", job_id="7")
        await with_timeout(asyncio.gather(running[a].wait(), running[b].wait()))
        with pytest.raises(GlideMQValidationError, match=rf"'queue'.*'7'.*{re.escape(repr(a))}, {re.escape(repr(b))}"):
            worker.cancel_job("7")
        with pytest.raises(GlideMQValidationError, match="'queue' = 'other'"):
            worker.cancel_job("7", queue="other")
        assert worker.active_count == 2
        assert not worker.cancel_job("7", queue=c)
        assert worker.cancel_job("7", queue=b)
        with pytest.raises(JobFailedError, match="revoked"):
            await two.wait_until_finished(timeout=10_000)
        assert await one.get_state() == "active"
        assert worker.cancel_job("7")
        with pytest.raises(JobFailedError, match="revoked"):
            await one.wait_until_finished(timeout=10_000)


@pytest.mark.parametrize("core_server", SERVER_AND_CLUSTER, indirect=True)
@pytest.mark.parametrize("partitions", [None, 3])
@pytest.mark.parametrize("count", [1, 2])
async def test_each_queue_is_drained_once(core_url: str, names: list[str], partitions: int | None, count: int):
    """Also if a call that reports its last jobs asks for no others, and when all of its partitions are."""
    drained: list[str] = []
    arrived, added = asyncio.Semaphore(0), asyncio.Event()

    async def handle(_: Job):
        await added.wait()

    def listen(name: str):
        drained.append(name)
        arrived.release()

    async with AsyncExitStack() as stack:
        used = names[:count]
        queues = [await stack.enter_async_context(Queue(name, core_url, partitions=partitions)) for name in used]
        served: Any = dict.fromkeys(used, 1) if count > 1 else used[0]
        worker = Worker(served, handle, core_url, concurrency=4)
        worker.on("drained", listen)
        await stack.enter_async_context(worker)
        for turn in range(1, 4):
            added.clear()
            for queue in queues:
                await queue.add_bulk([("n", None, {"fair_key": str(n)}) for n in range(20)])
            added.set()
            for _ in used:
                await with_timeout(arrived.acquire())
            assert sorted(drained) == sorted(used * turn)


@pytest.mark.usefixtures("without_polling")
async def test_a_queue_is_not_drained_before_the_wake_up_for_its_last_job(
    worker_for: WorkerFor, url: str, resp: RespClient, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """Messages do not arrive, as if they were late: a job in another partition was added while the first one ran."""
    events: Any = []
    begun, added, arrived = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(job: Job):
        begun.set()
        await added.wait()
        events.append(job.data)

    def drained():
        events.append("drained")
        arrived.set()

    async with Queue(queue_name, url, partitions=3) as queue:
        worker = worker_for(handle, concurrency=2)
        worker.on("drained", drained)
        async with worker:
            for name in partition_names(queue_name, 3):
                await registered(resp, name)
            await queue.add("n", 1, fair_key=keyed(1, 3))
            await with_timeout(begun.wait())
            monkeypatch.setattr(wake.ChannelWake, "woken", lambda _: None)
            await queue.add("n", 2, fair_key=keyed(2, 3))
            added.set()
            await with_timeout(arrived.wait())
            assert events == [1, 2, "drained"]


async def test_tasks_of_the_worker_run(url: str, names: list[str]):
    worker = Worker(names, None, url)

    @worker.task
    async def double(n: int) -> int:
        return 2 * n

    async with worker, Queue(names[1], url) as queue:
        assert await queue.add_and_wait("double", {"n": 4}) == 8
    with pytest.raises(GlideMQError, match="several queues"):
        _ = worker.queue


async def test_processes_of_a_sandboxed_handler_run_the_jobs_of_all_queues(url: str, names: list[str]):
    handler = "tests.server.sandboxed_handlers:of_queue"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Worker(names, handler, url, sandbox={"max_workers": 1}))
        queues = [await stack.enter_async_context(Queue(name, url)) for name in names]
        found = [await queue.add_and_wait("n", timeout=60_000) for queue in queues]
        assert [(name, state) for name, _, state in found] == [(name, "active") for name in names]
        assert len({process for _, process, _ in found}) == 1
        for queue in queues:
            (job,) = await queue.get_jobs("completed")
            assert (await queue.get_job_logs(job.id)).logs == ["ran"]


@pytest.mark.parametrize("end", ["generators", "bare"])
def test_subscription_is_closed_with_its_event_loop(private_server: StartServer, end: str):
    server = private_server()

    def subscriptions() -> int:
        with server.client() as resp:
            return str(resp.execute("CLIENT", "LIST")).count(" psub=1 ")

    async def start():
        await Worker(["a", "b"], echo, server.url).start()
        assert subscriptions() == 1

    loop = asyncio.new_event_loop()
    loop.run_until_complete(start())
    if end == "generators":
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()

    async def use():
        async with Queue("a", server.url) as queue:  # finds the loop that was closed
            await queue.count()
        async with asyncio.timeout(20):
            while subscriptions():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(use())


async def _eventually(check: Callable[[], Awaitable[bool]]) -> bool:
    for _ in range(1_000_000):  # the caller has a time limit
        if await check():
            return True
        await asyncio.sleep(0.01)
    return False


async def test_list_job_that_a_dead_peer_popped_is_recovered_in_an_idle_queue(
    url: str, resp: RespClient, names: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wake_channel, "ROUND_S", 0.1)
    async with Queue(names[1], url) as queue:
        job = await queue.add("n", 5, lifo=True)
        _pop(resp, names[1])
        async with Worker(names, echo, url, lock_duration=1_000, stalled_interval=1_000):
            assert await job.wait_until_finished(timeout=30_000) == 5


def _pop(resp: RespClient, name: str):
    load(resp)
    assert WireQueue(resp, name).call("popLists", ["priority", "lifo"], 1) == ["1"]


async def test_failed_subscription_to_wake_ups_is_tried_again(
    private_server: StartServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(wake_channel, "_RETRY_S", 0.05)
    server = private_server()
    with server.client() as resp:
        resp.execute("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "resetchannels")
        async with Worker(["a", "b"], echo, f"valkey://app:pw@{server.host}:{server.port}"):
            await with_timeout(until(lambda: "subscribing to wake-up channels failed" in caplog.text))
            resp.execute("ACL", "SETUSER", "app", "allchannels")
            await with_timeout(until(lambda: "messages arrive on wake-up channels" in caplog.text))


@pytest.mark.parametrize("owed", ["delayed job", "own scheduler", "popped job"])
async def test_keys_of_a_queue_that_is_served_later_are_checked_at_once(
    url: str, resp: RespClient, names: list[str], owed: str, monkeypatch: pytest.MonkeyPatch
):
    """A partition that a running worker gets may have jobs of a worker that died."""
    monkeypatch.setattr(wake_channel, "ROUND_S", 1_000.0)
    monkeypatch.setattr(wake_channel, "POLL_S", 0.01)
    async with Queue(names[0], url) as first, Queue(names[1], url) as second:
        if owed == "delayed job":
            await second.add("n", 1, delay=3_600_000)
        elif owed == "own scheduler":  # Node does not read its key
            await second.schedulers.upsert("s", every=3_600_000, misfire="skip")
        else:  # its worker died before it counted the job
            await second.add("n", 1, lifo=True)
            _pop(resp, names[1])
        transport = (await connected(first)).transport
        channels = wake_channel.WakeChannels()
        sleepers = [Checked(number, keys_of(queue), transport) for number, queue in enumerate((first, second), 1)]
        for sleeper in sleepers:
            await channels.add(sleeper)
            await with_timeout(until(lambda: sleeper.exists))  # noqa: B023 - it is awaited here
        assert [sleeper.exists for sleeper in sleepers] == [[False], [True]]
        for sleeper in sleepers:
            await channels.remove(sleeper)


class Checked:
    """A queue that waits for wake-ups, and remembers the checks of its keys."""

    position = "0"

    def __init__(self, number: int, keys: QueueKeys, transport: Any):
        self.number, self.keys, self.transport = number, keys, transport
        self.exists: list[bool] = []

    def woken(self): ...

    def called(self): ...

    def found(self): ...

    def checked(self, exists: bool):
        self.exists.append(exists)


@pytest.mark.slow
async def test_tasks_of_an_empty_queue_stop_and_start_again(
    url: str, names: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wake_channel, "ROUND_S", 0.1)
    monkeypatch.setattr(lane, "QUIET_S", 0.0)
    async with Worker(names, echo, url) as worker, Queue(names[1], url) as queue:
        parts: Any = opened(worker)
        first, second, _ = parts.lanes
        delayed = await queue.add("n", 1, delay=3_600_000)
        await with_timeout(until(lambda: second.background is not None))
        await delayed.remove()
        await with_timeout(until(lambda: second.background is None))
        assert first.background is None
        assert worker.consumer in [each.id for each in await queue.get_workers()]
        await queue.add("n", 1, delay=3_600_000)
        await with_timeout(until(lambda: second.background is not None))
        assert await queue.add_and_wait("n", 2) == 2


@pytest.mark.slow
async def test_failure_policy_of_an_idle_queue_is_executed(url: str, names: list[str], monkeypatch: pytest.MonkeyPatch):
    """Its jobs have failed before the worker started, so the queue has nothing else to maintain."""
    monkeypatch.setattr(wake_channel, "ROUND_S", 0.1)
    monkeypatch.setattr(lane, "QUIET_S", 0.0)
    monkeypatch.setattr(wake_channel, "EXAMINED_S", 0.02)
    runs: Any = []

    async def handle(job: Job):
        runs.append(job.data)
        if len(runs) == 1:
            raise ValueError("failed")

    async with Queue(names[1], url) as queue:
        await queue.add("n", 1)
        async with Worker(names[1], handle, url), asyncio.timeout(60):
            await until(lambda: runs)
        async with Worker(names, handle, url, stalled_interval=1_000) as worker:
            parts: Any = opened(worker)
            assert parts.lanes[1].background is None
            await queue.failures.set_policy(retry_interval=1_000)
            await with_timeout(until(lambda: len(runs) == 2))
            await queue.failures.remove_policy()
            await with_timeout(until(lambda: parts.lanes[1].background is None))
    assert runs == [1, 1]


async def test_resuming_goes_once_through_the_queues(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    """Each look at all queues takes a time that grows with their number."""
    weights = {f"{queue_name}-{number}": 1 + number % 3 for number in range(60)}
    async with Worker(weights, echo, url, concurrency=100) as worker:
        pool = opened(worker).shared.pool
        await with_timeout(until(lambda: pool.free == 100))
        looks: list[None] = []

        def counted(able: Any) -> Any:
            looks.append(None)
            return able()

        around(monkeypatch, pool, "_able", counted)
        worker.pause()
        worker.resume()
        assert len(looks) == 1


async def test_start_of_the_tasks_that_follows_a_stop_is_awaited(
    url: str, names: list[str], monkeypatch: pytest.MonkeyPatch
):
    async with Worker(names, echo, url) as worker:
        parts: Any = opened(worker)
        lane = parts.lanes[0]
        begin = lane._start_background
        begin()
        await with_timeout(until(lambda: lane._changing is None))
        stopping, starting, started, go = (asyncio.Event() for _ in range(4))
        stop, start = maintaining.Background.stop, maintaining.Background.start

        async def slow_stop(self: maintaining.Background, limit: float = 5.0):
            stopping.set()
            await stop(self, limit)

        async def slow_start(self: maintaining.Background):
            starting.set()
            await go.wait()
            await start(self)
            started.set()

        monkeypatch.setattr(maintaining.Background, "stop", slow_stop)
        monkeypatch.setattr(maintaining.Background, "start", slow_start)
        lane._begin_stop()
        await with_timeout(stopping.wait())
        begin()
        await with_timeout(starting.wait())
        closing = asyncio.create_task(worker.close())
        go.set()
        await with_timeout(closing)
        assert started.is_set()


async def test_jobs_of_a_producer_that_knows_no_channels_are_found(url: str, resp: RespClient, names: list[str]):
    """As those of a Node client: the function library of the peer pushes to the stream and publishes nothing."""
    async with Worker(names, echo, url), Queue(names[1], url) as queue:
        await registered(resp, names[1])
        tag = f"glide:{{{names[1]}}}:"
        fields = ("id", "7", "name", "n", "data", "3", "opts", "{}", "timestamp", "1", "attemptsMade", "0", "state",
                  "waiting")  # fmt: skip
        resp.execute("HSET", f"{tag}job:7", *fields)
        resp.execute("XADD", f"{tag}stream", "*", "jobId", "7", "name", "n")
        job = await queue.get_job("7")
        assert job is not None
        assert await job.wait_until_finished(timeout=20_000) == 3


async def test_close_releases_jobs_and_registrations(url: str, resp: RespClient, names: list[str]):
    started = asyncio.Event()

    async def handle(_: Job):
        started.set()
        await asyncio.Event().wait()

    worker = Worker(names, handle, url, concurrency=2)
    await worker.start()
    async with Queue(names[1], url) as queue:
        await queue.add("n")
        await started.wait()
        assert worker.active_count == 1
        await worker.close(timeout=10)
        counts = await queue.get_job_counts()
        assert (counts.waiting, counts.active) == (1, 0)
        assert (await queue.check(recheck_after=50)).ok
    for name in names:
        assert resp.execute("ZCARD", f"glide:{{{name}}}:wake-channels") == 0


@pytest.mark.usefixtures("without_polling")
async def test_add_wakes_one_of_two_workers(private_server: StartServer, names: list[str]):
    server = private_server()
    async with (
        Worker(names, echo, server.url), Worker(names, echo, server.url), Queue(names[0], server.url) as queue,
    ):  # fmt: skip
        with server.client() as resp:
            await registered(resp, names[0], 2)
            await queue.pause()
            resp.execute("CONFIG", "RESETSTAT")
            await queue.add("n", 1)
            assert "cmdstat_publish:calls=1," in str(resp.execute("INFO", "commandstats"))


@pytest.mark.usefixtures("without_polling")
async def test_busy_worker_passes_the_wake_up_on(url: str, resp: RespClient, names: list[str]):
    go, running = asyncio.Event(), asyncio.Event()

    async def wait(job: Job) -> str:
        if job.name == "long":
            running.set()
            await go.wait()
        return job.name

    a, b, c = names
    async with Queue(a, url) as first, Queue(b, url) as second, Worker([a, b], wait, url):
        await registered(resp, b)
        long = await first.add("long")
        await running.wait()
        async with Worker([b, c], wait, url):
            assert [await second.add_and_wait("n") for _ in range(3)] == ["n"] * 3
        go.set()
        assert await long.wait_until_finished(timeout=10_000) == "long"


async def test_hundred_idle_queues_need_few_clients_and_commands(
    private_server: StartServer, monkeypatch: pytest.MonkeyPatch
):
    server = private_server()
    monkeypatch.setattr(wake_channel, "REGISTERED_S", NEVER_S)
    async with Worker([f"q{number}" for number in range(100)], echo, server.url), Queue("q42", server.url) as queue:
        assert await queue.add_and_wait("n", 1) == 1
        with server.client() as resp:
            assert len(re.findall(r"^id=", str(resp.execute("CLIENT", "LIST")), re.MULTILINE)) - 1 <= 6


async def test_idle_workers_of_one_queue_share_the_calls_of_a_list(private_server: StartServer):
    """The first two of a process wait in blocking reads; the others send no heartbeats while their queues are idle."""
    server = private_server()
    names = [f"q{number}" for number in range(30)]
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(Worker(name, echo, server.url)) for name in names]
        others: Any = [opened(worker) for worker in workers[2:]]
        for name, worker in zip(names, workers, strict=True):
            queue = await stack.enter_async_context(Queue(name, server.url))
            await with_timeout(_eventually(partial(_lists, queue, worker)))
        assert [lane.background for parts in others for lane in parts.lanes] == [None] * 28
        assert len({parts.shared.channels for parts in others}) == 1
        assert await queue.workers.ping(workers[-1].consumer, timeout=20_000) == [workers[-1].consumer]
        assert await queue.workers.quiet(timeout=20_000) == [workers[-1].consumer]
        assert workers[-1].is_paused
        await with_timeout(_eventually(partial(_is_listed_as_paused, queue)))
        with server.client() as resp:
            assert len(re.findall(r"^id=", str(resp.execute("CLIENT", "LIST")), re.MULTILINE)) - 1 <= 6


async def _lists(queue: Queue, worker: Worker) -> bool:
    return worker.consumer in [each.id for each in await queue.get_workers()]


async def _is_listed_as_paused(queue: Queue) -> bool:
    return [each.paused for each in await queue.get_workers()] == [True]


async def test_failing_polls_are_logged_once_per_streak(
    private_server: StartServer, names: list[str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    monkeypatch.setattr(wake_channel, "POLL_S", 0.01)
    monkeypatch.setattr(wake_channel, "_RETRY_S", 0.01)
    calls, broken = 0, True

    async def read(*_: Any) -> set[str]:
        nonlocal calls
        calls += 1
        if broken:
            raise GlideMQError("not permitted")
        return set()

    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]

    monkeypatch.setattr(wake_channel, "_read", read)
    async with Worker(names, echo, private_server().url):
        await with_timeout(until(lambda: calls >= 5))
        (line,) = [each for each in warnings() if "polling" in each]
        assert repr(names[0]) in line
        assert "not permitted" in line
        broken = False
        await with_timeout(until(lambda: calls >= 8))
        broken = True
        await with_timeout(until(lambda: len([each for each in warnings() if "polling" in each]) == 2))


async def test_worker_closed_during_a_poll_leaves_the_others_polled(
    url: str, names: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The poll may use the connection of the worker that closes."""
    monkeypatch.setattr(wake_channel, "POLL_S", 0.01)
    read, polls, polled = wake_channel._read, 0, asyncio.Event()
    first, second = (Worker(some, echo, url) for some in (names[:2], names[1:]))

    async def read_while_closing(*arguments: Any) -> set[str]:
        nonlocal polls
        polls += 1
        if polls == 1:
            await first.close()
        found = await read(*arguments)
        polled.set()
        return found

    async with first, second:
        monkeypatch.setattr(wake_channel, "_read", read_while_closing)
        await with_timeout(polled.wait())
    assert polls > 1
    assert "polling" not in caplog.text


@pytest.mark.usefixtures("without_polling")
@pytest.mark.parametrize("weights", [False, True], ids=["list", "mapping"])
async def test_list_of_one_queue_is_the_same_as_its_name(url: str, resp: RespClient, queue_name: str, weights: bool):
    drained: asyncio.Queue[str] = asyncio.Queue()
    running, go = asyncio.Event(), asyncio.Event()

    async def handle(jobs: list[Job]) -> list[Any]:
        running.set()
        await go.wait()
        return [job.data for job in jobs]

    served: Any = {queue_name: 3} if weights else [queue_name]
    async with Worker(served, handle, url, batch={"size": 2}) as worker:
        worker.on("drained", lambda queue: drained.put_nowait(queue))
        assert worker.queue_names == (queue_name,)
        assert repr(worker) == f"<Worker of queue {queue_name!r}>"
        job = await worker.queue.add("n", 5)
        await with_timeout(running.wait())
        assert resp.execute("ZCARD", f"glide:{{{queue_name}}}:wake-channels") == 0
        with pytest.raises(GlideMQValidationError, match=r"queue.*'other'"):
            worker.cancel_job(job.id, queue="other")
        assert not worker.cancel_job("unknown", queue=queue_name)
        go.set()
        assert await job.wait_until_finished(timeout=10_000) == 5
        assert await with_timeout(drained.get()) == queue_name


def test_dead_letter_queue_must_not_be_one_of_the_queues():
    with pytest.raises(GlideMQValidationError, match=r"'b'.*one of the worker's queues"):
        Worker(["a", "b"], echo, dead_letter_queue="b")
    with pytest.raises(GlideMQValidationError, match=r"'b'.*the queue itself"):
        Worker("b", echo, dead_letter_queue="b")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], r"\[\].*at least one"), ({}, "{}.*at least one"), (["a", "a"], "'a'.*twice"),
        ({"a": 0}, r"queue_name\['a'\].*0"),
        ({"a": 1.5}, "1.5"), ({"a": "2"}, "queue_name"), ({"a": True}, "queue_name"), ({"a": 1_001}, "1001|1,001"),
        (["a", ""], r"queue_name\[1\]"), ([1], r"queue_name\[0\]"), (5, "queue_name.*5"), (b"a", "queue_name"),
    ],
)  # fmt: skip
def test_invalid_queues_are_rejected(value: Any, problem: str):
    with pytest.raises(GlideMQValidationError, match=problem):
        Worker(value, echo)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch": {"size": 2}}, "'batch' = .*: use a worker per queue"),
        ({"token_limiter": {"max_tokens": 1, "duration": 1_000, "scope": "worker"}}, "token_limiter"),
    ],
)  # fmt: skip
def test_options_that_need_one_queue_are_rejected(options: Any, named: str):
    with pytest.raises(GlideMQValidationError, match=named):
        Worker(["a", "b"], **{"handler": echo, **options})
