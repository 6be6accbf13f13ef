"""One call of every public method and program: what a user of a role does, with all that it needs prepared.

`CALLS` has the names of `tools.permissions.METHODS`. A call prepares its queue with `place.admin`, who may do
everything; the method, and what cannot be separated from it, uses the role.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from glidemq_py import (
    BackupSchedule,
    Broadcast,
    BroadcastWorker,
    FlowJob,
    FlowProducer,
    Job,
    JobBatch,
    Lease,
    Maintenance,
    Message,
    PermissionDeniedError,
    Producer,
    Queue,
    QueueEvents,
    Scheduler,
    ServerlessPool,
    WaitTimeoutError,
    Worker,
    chain,
    chord,
    dag,
    get_usage_summary,
    group,
    list_queues,
)
from glidemq_py.telemetry.prometheus import QueueCollector
from tests.inside import connected, opened
from tests.server.command import arguments_of_check, check_health
from tests.server.worker_support import with_timeout

__all__ = ["CALLS", "Denied", "Place"]

HOUR_MS = 3_600_000
ORDERING: Any = {"key": "k", "concurrency": 2}


class Denied(Exception):  # noqa: N818  # an outcome
    """A background task was denied a command; it logs that, and tries again later."""


class Place:
    """A queue of its own, opened by an administrator and by the user of a role.

    Attributes:
        name: of the queue.
        url, admin_url: the server for the user, and for the administrator.
        admin, queue: the queue of the administrator, and of the user.
    """

    def __init__(self, name: str, url: str, admin_url: str, is_denied: Callable[[], bool], stack: AsyncExitStack):
        self.name, self.url, self.admin_url, self._is_denied, self._stack = name, url, admin_url, is_denied, stack
        self.message_id = ""
        self.dead_letters = f"{name}-dead"
        self.admin: Queue = Queue(name, admin_url, dead_letter_queue=self.dead_letters)
        self.queue: Queue = Queue(name, url)

    async def open(self) -> Place:
        for queue in (self.admin, self.queue):
            await self.enter(queue)
        return self

    async def enter(self, context: Any):
        return await self._stack.enter_async_context(context)

    async def add(self, name: str = "prepared", **options: Any) -> str:
        """Add a job as the administrator; return its id."""
        return (await self.admin.add(name, {"x": 1}, **options)).id

    async def wait(self, reached: Callable[[], Awaitable[object]]):
        """Poll until the condition is true; raise `Denied` if the server has denied the user a command."""
        async with asyncio.timeout(60):
            while not await reached():
                if self._is_denied():
                    raise Denied
                await asyncio.sleep(0.01)

    async def job(self, **options: Any) -> Job:
        """Return a prepared job that the user has loaded without reading it."""
        return Job(await connected(self.queue), await self.add(**options), "prepared")

    async def prepare(self, handler: Any, **options: Any) -> str:
        """Let a worker of the administrator process one job; return its id."""
        job_id = await self.add(**options)
        await process(self.name, self.admin_url, handler, dead_letter_queue=self.dead_letters)
        return job_id

    async def run(self, handler: Any, *, settings: dict[str, Any] | None = None, **options: Any):
        """Let a worker of the user process one job."""
        await self.add(**options)
        await process(self.name, self.url, handler, **(settings or {}))

    async def broadcast(self, **options: Any) -> Broadcast:
        """Return the user's broadcast. It has a subscription `s` and a message `1-0` or later."""
        prepared = await self.enter(Broadcast(self.name, self.admin_url, dead_letter_queue=self.dead_letters))
        await prepared.subscribe("s", "0-0")
        self.message_id = str(await prepared.publish("a.b", 1))
        return await self.enter(Broadcast(self.name, self.url, **options))

    async def receive(self, handler: Any, url: str):
        """Let a worker of the subscription `s` process one message."""
        letters = self.dead_letters if url == self.admin_url else None
        await process(self.name, url, handler, BroadcastWorker, subscription="s", dead_letter_queue=letters)


async def process(name: str, url: str, handler: Any, kind: Any = Worker, **settings: Any):
    """Process at least one job. Raises the denial of a permission, wherever it occurs."""
    ended, denied = asyncio.Event(), list[PermissionDeniedError]()

    def note(error: Exception):
        if isinstance(error, PermissionDeniedError):
            denied.append(error)
            ended.set()

    async def run(job: Any):
        try:
            return await handler(job)
        except PermissionDeniedError as error:
            note(error)
            raise
        finally:
            ended.set()

    worker = kind(name, run, url, log_failures=False, **settings)
    worker.on("error", note)
    async with worker:
        await with_timeout(ended.wait())
    if denied:
        raise denied[0]


async def succeed(_: Any) -> int:
    return 1


async def fail(_: Any):
    raise ValueError("x")


async def suspend(job: Job):
    job.suspend(timeout=HOUR_MS)


Call = Callable[[Place], Awaitable[object]]


def of_queue(method: str, *args: Any, **options: Any) -> Call:
    """Return the call of a method of the queue that needs no preparation but a waiting job."""

    async def run(place: Place):
        await place.add()
        await getattr(place.queue, method)(*args, **options)

    return run


def of_job(method: str, *args: Any, **options: Any) -> Call:
    """Return the call of a method of a waiting job."""

    async def run(place: Place):
        await getattr(await place.job(), method)(*args, **options)

    return run


def of_job_id(method: str, *args: Any, **options: Any) -> Call:
    """Return the call of a method of the queue whose first argument is a job, prepared with these options."""

    async def run(place: Place):
        await getattr(place.queue, method)(await place.add(**options), *args)

    return run


def in_handler(attempt: Callable[[Job], Any], **options: Any) -> Call:
    """Return a call that a handler makes in the user's worker."""

    async def handle(job: Job):
        found = attempt(job)
        if asyncio.iscoroutine(found):
            await found

    return lambda place: place.run(handle, **options)


async def consume(found: Any) -> list[Any]:
    return [each async for each in found]


# -- Queue ----------------------------------------------------------------------------------------------------


async def add(place: Place):
    queue = place.queue
    every: list[dict[str, Any]] = [
        {}, {"delay": 50}, {"priority": 3}, {"lifo": True}, {"ttl": 60_000}, {"job_id": "mine"}, {"job_id": "mine"},
        {"job_id": "77"}, {"attempts": 3, "backoff": 10}, {"ordering": ORDERING},
        {"ordering": {"key": "r", "rate_limit": {"max": 1, "duration": 1_000}}},
        {"ordering": {"key": "t", "token_bucket": {"capacity": 5, "refill_rate": 1}}, "cost": 2},
        *({"delay": 10_000, "deduplication": {"id": mode, "mode": mode, "ttl": 60_000}}
          for mode in ("simple", "throttle", "debounce") for _ in range(2)),
    ]  # fmt: skip
    for options in every:
        await queue.add("a", {"x": 1}, **options)


async def replace(place: Place):
    for options in ({}, {"lifo": True}, {"ordering": ORDERING}, {"delay": 10_000}, {"priority": 3}, {}):
        await place.queue.add("a", deduplication={"id": "r", "replace": True}, **options)


async def get_deduplication_job(place: Place):
    job = await place.admin.add("a", deduplication={"id": "d"})
    found = await place.queue.get_deduplication_job("d")
    assert found is not None
    assert found.id == job.id


async def add_and_wait(place: Place):
    async with Worker(place.name, succeed, place.admin_url):
        assert await place.queue.add_and_wait("a") == 1
        assert await place.queue.add_and_wait("a", delay=20) == 1
    try:
        await place.queue.add_and_wait("a", wait_timeout=20)
    except WaitTimeoutError:
        return
    raise AssertionError("no worker runs")


async def resume_fair_key(place: Place):
    await place.admin.pause_fair_key("k")
    await place.queue.resume_fair_key("k")


async def iterate_fair_keys(place: Place):
    assert await consume(place.queue.iter_fair_keys()) == []


async def iterate_streams(place: Place):
    job_id = await place.prepare(lambda job: job.stream({"n": 1}))
    assert await consume(place.queue.stream(job_id))


async def read_stream(place: Place):
    job_id = await place.prepare(lambda job: job.stream({"n": 1}))
    assert await place.queue.read_stream(job_id, block=1_000)


def of_lease(use: Callable[[Queue, Any], Awaitable[Any]]) -> Call:
    """Return a call that uses a lease of the user."""

    async def run(place: Place):
        await place.add(attempts=2)
        (lease,) = await place.queue.fetch(1, wait=1_000)
        await use(place.queue, lease)

    return run


def of_worker(use: Callable[[Queue, str], Awaitable[Any]]) -> Call:
    """Return the call of a command to a worker."""

    async def run(place: Place):
        async def handle(_: Job):
            return None

        async with Worker(place.name, handle, place.admin_url, lock_duration=1_000) as worker:
            await use(place.queue, worker.consumer)

    return run


def of_batch(use: Callable[[Queue, JobBatch], Awaitable[Any]]) -> Call:
    """Return the call of a method of a batch with a job, or of its queue."""

    async def run(place: Place):
        prepared = await place.admin.create_batch(on_complete=("callback",))
        await prepared.add("job")
        await use(place.queue, JobBatch(place.queue, prepared.id))

    return run


async def lease_in_block(place: Place):
    await place.add()
    async with place.queue.lease() as lease:
        assert lease is not None
    assert await place.queue.fetch(1, wait=10) == []  # waits with a connection of its own


async def dead_letter(place: Place) -> str:
    await place.prepare(fail)
    await place.wait(place.admin.get_dead_letter_jobs)
    return (await place.admin.get_dead_letter_jobs())[0].id


def of_dead_letter(use: Callable[[Queue, str], Awaitable[Any]]) -> Call:
    async def run(place: Place):
        letter = await dead_letter(place)
        queue = await place.enter(Queue(place.name, place.url, dead_letter_queue=place.dead_letters))
        assert await use(queue, letter)

    return run


def of_ended(handler: Any, use: Callable[[Queue, str], Awaitable[Any]]) -> Call:
    """Return a call that uses a job that a worker has processed."""

    async def run(place: Place):
        await use(place.queue, await place.prepare(handler))

    return run


def with_scheduler(use: Callable[[Queue], Awaitable[Any]], *, paused: bool = False) -> Call:
    async def run(place: Place):
        await place.admin.upsert_job_scheduler("s", every=HOUR_MS, template=("n", 1))
        if paused:
            await place.admin.pause_job_scheduler("s")
        assert await use(place.queue)

    return run


async def obliterate(place: Place):
    await place.add(ordering=ORDERING)
    await place.add(delay=HOUR_MS)
    await place.queue.obliterate(force=True)
    await place.queue.obliterate(scan=True)


async def budget(place: Place):
    flows = await place.enter(FlowProducer(place.admin_url))
    root = await flows.add(
        FlowJob("p", place.name, children=[FlowJob("c", place.name)]), budget={"max_total_tokens": 9}
    )
    assert await place.queue.get_flow_budget(root.job.id)


async def flow_usage(place: Place):
    flows = await place.enter(FlowProducer(place.admin_url))
    root = await flows.add(FlowJob("p", place.name, children=[FlowJob("c", place.name)]))
    await place.queue.get_flow_usage(root.job.id)


async def back_up(place: Place):
    await place.prepare(succeed)
    with TemporaryDirectory() as folder:
        assert (await place.queue.backup(folder, keep=1)).jobs == 1


async def run_due_backups(place: Place):
    await place.prepare(succeed)
    with TemporaryDirectory() as folder:
        assert len(await BackupSchedule([place.queue], folder).run_due()) == 1


async def restore(place: Place):
    await place.prepare(succeed)
    with TemporaryDirectory() as folder:
        async with Queue(place.name, place.admin_url) as admin:
            await admin.backup(folder)
            await admin.obliterate(force=True)
        assert (await place.queue.restore(folder)).jobs == 1


async def check(place: Place):
    await place.add(ordering=ORDERING)
    assert (await place.queue.check(recheck_after=0)).ok


async def close_queue(place: Place):
    async with Queue(place.name, place.url) as queue:
        await queue.close()


async def connect_queue(place: Place):
    queue = Queue(place.name, place.url)
    await queue.connect()
    await queue.close()


async def drain(place: Place):
    for options in ({}, {"priority": 1}, {"ordering": ORDERING}, {"delay": HOUR_MS}):
        await place.add(**options)
    await place.queue.drain(delayed=True)


# -- flows, events, broadcasts --------------------------------------------------------------------------------


async def add_flow(place: Place):
    flows = await place.enter(FlowProducer(place.url))
    for children in (2, 250):  # a single call, and several calls with a flow record
        tree = FlowJob(
            "p", place.name, children=[FlowJob("c", f"{place.name}{n % 2 or ''}", n) for n in range(children)]
        )
        assert len((await flows.add(tree)).children) == children
        assert (await flows.add(tree, budget={"max_total_tokens": 100})).children


async def add_flows(place: Place):
    flows = await place.enter(FlowProducer(place.url))
    await flows.add_bulk([FlowJob("p", place.name, children=[FlowJob("c", place.name)])] * 2)


async def add_dag(place: Place):
    flows = await place.enter(FlowProducer(place.url))
    node = {"queue": place.name, "data": 1}
    deps: dict[str, list[str]] = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
    await flows.add_dag([{"name": name, **node, "deps": each} for name, each in deps.items()])


async def get_flow(place: Place):
    prepared = await place.enter(FlowProducer(place.admin_url))
    root = await prepared.add(FlowJob("p", place.name, children=[FlowJob("c", place.name)]))
    flows = await place.enter(FlowProducer(place.url))
    assert await flows.get_flow(place.name, root.job.id)


async def open_flows(place: Place):
    flows = FlowProducer(place.url)
    await flows.connect()
    await flows.close()


async def read_events(place: Place):
    async with QueueEvents(place.name, place.url) as events:
        await events.wait_until_ready()
        await place.add()
        await with_timeout(anext(aiter(events)))


async def bounded_publish(place: Place):
    broadcast = await place.broadcast(max_messages=5, max_age=60_000)
    await broadcast.publish_bulk([("a", n) for n in range(20)])


async def publish(place: Place):
    broadcast = await place.broadcast()
    await broadcast.publish("a", 1, attempts=2, backoff=10)
    await broadcast.publish("late", delay=20)


async def publish_bulk(place: Place):
    await (await place.broadcast()).publish_bulk([("a", n) for n in range(3)])


def of_broadcast(method: str, *args: Any) -> Call:
    async def run(place: Place):
        await getattr(await place.broadcast(), method)(*args)

    return run


async def get_delivery(place: Place):
    assert await (await place.broadcast()).get_delivery(place.message_id, "s")


async def redeliver(place: Place):
    broadcast = await place.broadcast()
    await place.receive(succeed, place.admin_url)
    await broadcast.redeliver(place.message_id, "s")


def of_dead_message(use: Callable[[Broadcast, str], Awaitable[Any]]) -> Call:
    async def run(place: Place):
        await place.broadcast()
        await place.receive(fail, place.admin_url)
        async with Broadcast(place.name, place.admin_url, dead_letter_queue=place.dead_letters) as admin:
            await place.wait(lambda: admin.get_dead_letter_jobs("s"))
            letters = await admin.get_dead_letter_jobs("s")
        assert await use(await place.broadcast(dead_letter_queue=place.dead_letters), letters[0].id)

    return run


async def close_broadcast(place: Place):
    await (await place.broadcast()).close()


def in_message_handler(attempt: Callable[[Message], Any]) -> Call:
    async def handle(message: Message):
        found = attempt(message)
        if asyncio.iscoroutine(found):
            await found

    async def run(place: Place):
        await place.broadcast()
        await place.receive(handle, place.url)

    return run


# -- workers, producers, schedulers, programs -----------------------------------------------------------------


async def work(place: Place):
    """Every feature of a worker: retries, limits, groups, dead letters, schedules, retention, recovery."""

    async def handle(job: Job) -> int:
        if job.name == "fails":
            raise ValueError("x")
        return 1

    settings: Any = {
        "concurrency": 3, "lock_duration": 1_000, "stalled_interval": 1_000, "dead_letter_queue": place.dead_letters,
        "limiter": {"max": 1_000, "duration": 1_000},
    }  # fmt: skip
    admin = place.admin
    await admin.upsert_job_scheduler("s", every=HOUR_MS, immediately=True, limit=1, template=("scheduled", 1))
    options: list[dict[str, Any]] = [
        {}, {"priority": 2}, {"lifo": True}, {"delay": 20}, {"ordering": ORDERING}, {"timeout": 5_000},
        {"remove_on_complete": True}, {"remove_on_complete": {"count": 1, "age": 60}}, {"ttl": 60_000},
        {"ordering": {"key": "t", "token_bucket": {"capacity": 5, "refill_rate": 1}}},
    ]  # fmt: skip
    for each in options:
        await admin.add("a", 1, **each)
    await admin.add("fails", attempts=2, backoff=10, remove_on_fail={"count": 5})
    flows = await place.enter(FlowProducer(place.admin_url))
    root = await flows.add(
        FlowJob("p", place.name, children=[FlowJob("c", place.name)]), budget={"max_total_tokens": 9}
    )
    async with Worker(place.name, handle, place.url, log_failures=False, **settings) as worker:
        await place.wait(root.job.is_completed)
        await place.wait(admin.get_dead_letter_jobs)
        parts = opened(worker)
        assert parts is not None
        await parts.recovery.run_once()
        await parts.fetching.invalidate_pipelined()


async def finish(place: Place, worker: Worker | BroadcastWorker):
    await worker.start()
    draining = asyncio.ensure_future(worker.drain())

    async def drained() -> bool:
        return draining.done()

    try:
        await place.wait(drained)
    except Denied:
        await worker.close(force=True)
        raise
    await draining


async def drain_worker(place: Place):
    await place.add()
    await finish(place, Worker(place.name, succeed, place.url))


async def run_worker(place: Place):
    job_id = await place.add()
    worker = Worker(place.name, succeed, place.url)
    running = asyncio.ensure_future(worker.run())

    async def completed() -> bool:
        job = await place.admin.get_job(job_id)
        return running.done() or (job is not None and await job.is_completed())

    try:
        await place.wait(completed)
    except Denied:
        await worker.close()
        await asyncio.wait({running})  # a worker that is closed while it starts raises ClosedError
        raise
    await worker.close()
    await running


async def run_subscription(place: Place):
    """Every feature of a subscription's worker: retries, delayed messages, recovery."""
    await place.broadcast()
    repeated = asyncio.Event()

    async def handle(message: Message):
        if message.attempts_made:
            repeated.set()
        elif message.name == "fails":
            raise ValueError("x")

    async def done() -> bool:
        return repeated.is_set()

    async with Broadcast(place.name, place.admin_url) as messages:
        await messages.publish("fails", attempts=2, backoff=10)
        await messages.publish("late", delay=20)
    options: Any = {"lock_duration": 1_000, "concurrency": 3, "dead_letter_queue": place.dead_letters}
    worker = BroadcastWorker(place.name, handle, place.url, subscription="s", log_failures=False, **options)
    async with worker:
        await place.wait(done)
        parts = opened(worker)
        assert parts is not None
        await parts.recovery.run_once()
        await parts.fetching.invalidate_pipelined()


async def drain_subscription(place: Place):
    await place.broadcast()
    await finish(place, BroadcastWorker(place.name, succeed, place.url, subscription="s"))


def of_producer(method: str, *args: Any) -> Call:
    async def run(place: Place):
        await getattr(await place.enter(Producer(place.name, place.url)), method)(*args)

    return run


async def use_pool(place: Place):
    pool = ServerlessPool()
    try:
        await pool.get_producer(place.name, place.url).add("n", 1)
    finally:
        await pool.close_all()


async def schedule(place: Place):
    await place.admin.upsert_job_scheduler("s", every=50, template=("n", 1))
    async with Scheduler(place.queue):
        await place.wait(place.admin.count)


async def maintain(place: Place):
    await place.admin.upsert_job_scheduler("s", every=50, template=("n", 1))
    async with Maintenance([place.queue]):
        await place.wait(place.admin.count)


def task_of(place: Place, url: str) -> tuple[Worker, Any]:
    worker = Worker(place.name, connection=url)

    async def double(x: int) -> int:
        return 2 * x

    return worker, worker.task(double)


def use_task(use: Callable[[Any], Awaitable[Any]]) -> Call:
    async def run(place: Place):
        worker, task = task_of(place, place.url)
        try:
            await use(task)
        finally:
            await worker.close()

    return run


async def iterate_items(job: Job):
    async for _ in job.iterate(lambda _: [(1, "item")], checkpoint_interval=0):
        pass


async def wait_for_task(place: Place):
    async with task_of(place, place.admin_url)[0]:
        await use_task(lambda task: task.add_and_wait(1))(place)


async def collect(place: Place):
    def scrape():
        registry = CollectorRegistry()
        registry.register(QueueCollector([place.name], place.url))
        assert list(registry.collect())

    await asyncio.to_thread(scrape)


def summarize(place: Place) -> Awaitable[Any]:
    return get_usage_summary(place.url, queues=[place.name])


async def read_queue_list(place: Place):
    await place.add()
    assert place.name in await list_queues(place.url)


STATES = ("waiting", "active", "delayed", "prioritized", "completed", "failed")


def read_states(use: Callable[[Queue, str], Awaitable[Any]]) -> Call:
    async def run(place: Place):
        await place.prepare(fail)
        for options in ({}, {"priority": 1}, {"delay": HOUR_MS}, {"ordering": ORDERING}):
            await place.add(**options)
        for state in STATES:
            await use(place.queue, state)

    return run


async def promote(place: Place):
    await (await place.job(delay=HOUR_MS)).promote()


async def promote_jobs(place: Place):
    await place.add(delay=HOUR_MS)
    assert await place.queue.promote_jobs() == 1


async def discard(place: Place):
    job_id = await place.add()
    async with Queue(place.name, place.admin_url) as admin, admin.lease():
        await place.queue.discard(job_id)


async def clean(place: Place):
    await place.add()
    assert len(await place.queue.clean(0, state="waiting")) == 1
    await place.queue.clean(0)


async def requeue(place: Place):
    job_id = await place.prepare(succeed)
    await Job(await connected(place.queue), job_id, "prepared").requeue()


async def retry(place: Place):
    job_id = await place.prepare(fail)
    await Job(await connected(place.queue), job_id, "prepared").retry()


async def wait_for_result(place: Place):
    job_id = await place.prepare(succeed)
    assert await Job(await connected(place.queue), job_id, "prepared").wait_until_finished() == 1


async def wait_for_children(place: Place):
    """A handler adds a child and waits for it."""

    async def handle(job: Job):
        if job.name == "prepared":
            await place.admin.add("child", parent={"queue": place.name, "id": job.id}, delay=HOUR_MS)
            await job.move_to_waiting_children(next_step="second")

    await place.run(handle)


async def use_spark(place: Place, use: Callable[[Any, dict[str, str]], object]):
    """Call what a driver and its tasks call, without a Spark session."""
    pytest.importorskip("pyspark")
    pytest.importorskip("pyarrow")
    from tests.server import spark_calls

    await asyncio.to_thread(use, spark_calls, {"queue": place.name, "url": place.url})


def _write_once(guarantee: str, spark: Any, options: dict[str, str]):
    spark.write({**options, "guarantee": guarantee})


def _read_view(view: str, spark: Any, options: dict[str, str]):
    spark.read(options, view)


async def write_with_spark(place: Place):
    for guarantee in ("append", "atomic"):
        await use_spark(place, partial(_write_once, guarantee))


async def drain_with_spark(place: Place):
    await use_spark(place, lambda spark, options: spark.write({**options, "overwrite": "drain"}, overwrite=True))


async def read_with_spark(place: Place):
    await place.prepare(succeed)
    for view in ("jobs", "writes"):
        await use_spark(place, partial(_read_view, view))
    await use_spark(place, lambda spark, options: spark.read_events(options))


async def probe(place: Place):
    async with Worker(place.name, succeed, place.admin_url):
        arguments = arguments_of_check(queue=place.name, url=place.url)

        async def healthy() -> bool:
            # A loaded machine can exceed the limits of a check.
            return await asyncio.to_thread(check_health, arguments) == 0

        await place.wait(healthy)


async def remove_dependency(place: Place):
    first = await place.add()
    assert await (await place.job(depends_on=[first])).remove_dependency(first)


CALLS: dict[str, Call] = {
    **{
        f"Queue.{name}": of_queue(name)
        for name in (
            "count",
            "get_event_retention",
            "get_result_retention",
            "get_features",
            "get_global_limits",
            "get_stalled_policy",
            "get_attempt_history",
            "get_failure_policy",
            "get_fair_key_defaults",
            "get_partitions",
            "get_job_counts",
            "get_rank_counts",
            "get_usage_summary",
            "get_workers",
            "is_paused",
            "pause",
            "remove_global_rate_limit",
            "remove_stalled_policy",
            "remove_failure_policy",
            "resume",
            "set_timeline",
            "set_metrics_by_name",
            "get_metrics_by_name",
            "get_metrics_by_name_setting",
            "get_timeline_setting",
        )
    },
    "Queue.get_group": of_queue("get_group", "k"),
    "Queue.get_fair_key": of_queue("get_fair_key", "k"),
    "Queue.pause_fair_key": of_queue("pause_fair_key", "k"),
    "Queue.rate_limit_group": of_queue("rate_limit_group", "k", 1_000),
    "Queue.remove_deduplication": of_queue("remove_deduplication", "d"),
    "Queue.set_event_retention": of_queue("set_event_retention", 5_000),
    "Queue.set_result_retention": of_queue("set_result_retention", 5_000),
    "Queue.set_global_concurrency": of_queue("set_global_concurrency", 5),
    "Queue.set_global_rate_limit": of_queue("set_global_rate_limit", 5, 1_000),
    "Queue.get_name_limits": of_queue("get_name_limits", "n"),
    **{
        f"Job.{name}": of_job(name)
        for name in (
            "get_batch_ref",
            "get_children_failures",
            "get_children_values",
            "get_cursor",
            "get_timeline",
            "get_failed_attempts",
            "get_dependencies",
            "get_open_children",
            "get_parents",
            "get_state",
            "is_active",
            "is_completed",
            "is_delayed",
            "is_failed",
            "is_revoked",
            "is_waiting",
            "logs",
            "reload",
            "remove",
            "revoke",
        )
    },
    "Job.change_delay": of_job("change_delay", 50),
    "Job.change_priority": of_job("change_priority", 5),
    "Job.update_progress": of_job("update_progress", 5),
    "Job.change_rank": of_job("change_rank", -5),
    "Job.log": of_job("log", "x"),
    "Job.store_vector": of_job("store_vector", "embedding", [0.5]),
    "Job.stream": of_job("stream", {"n": 1}),
    "Job.stream_chunk": of_job("stream_chunk", "text", "x"),
    "Job.update_data": of_job("update_data", {"y": 1}),
    **{
        f"Broadcast.{name}": of_broadcast(name)
        for name in ("get_subscriptions", "is_paused", "pause", "remove_global_rate_limit", "resume")
    },
    "Broadcast.get_subscription": of_broadcast("get_subscription", "s"),
    "Broadcast.remove_subscription": of_broadcast("remove_subscription", "s"),
    "Broadcast.set_global_rate_limit": of_broadcast("set_global_rate_limit", 5, 1_000),
    "Broadcast.subscribe": of_broadcast("subscribe", "t"),
    "Queue.fetch": of_lease(lambda _, lease: lease.release()),
    "Queue.lease": lease_in_block,
    "Queue.complete_leases": of_lease(lambda queue, lease: queue.complete_leases([(lease, 1)], fetch_next=1)),
    "Queue.fail_leases": of_lease(lambda queue, lease: queue.fail_leases([(lease, "no")])),
    "Queue.extend_leases": of_lease(lambda queue, lease: queue.extend_leases([lease], 5_000)),
    "Queue.release_leases": of_lease(lambda queue, lease: queue.release_leases([lease])),
    "Queue.release_owner": of_lease(lambda queue, _: queue.release_owner()),
    "Lease.complete": of_lease(lambda _, lease: lease.complete(1)),
    "Lease.fail": of_lease(lambda queue, lease: Lease.from_token(queue, lease.token).fail("no")),
    "Lease.extend": of_lease(lambda _, lease: lease.extend(5_000)),
    "Lease.release": of_lease(lambda _, lease: lease.release()),
    "Queue.cancel_on_worker": of_worker(lambda queue, worker: queue.cancel_on_worker("1", worker)),
    "Queue.inspect_workers": of_worker(lambda queue, worker: queue.inspect_workers(worker)),
    "Queue.ping_workers": of_worker(lambda queue, worker: queue.ping_workers(worker)),
    "Queue.quiet_workers": of_worker(lambda queue, worker: queue.quiet_workers(worker)),
    "Queue.resize_workers": of_worker(lambda queue, worker: queue.resize_workers(2, worker)),
    "Queue.resume_workers": of_worker(lambda queue, worker: queue.resume_workers(worker)),
    "Queue.create_batch": of_queue("create_batch", on_success=("callback",)),
    "Queue.get_batch": of_batch(lambda queue, batch: queue.get_batch(batch.id)),
    "Queue.iter_batches": of_batch(lambda queue, _: consume(queue.iter_batches())),
    "JobBatch.add": of_batch(lambda _, batch: batch.add("job")),
    "JobBatch.add_bulk": of_batch(lambda _, batch: batch.add_bulk([("job",), ("job",)])),
    "JobBatch.cancel": of_batch(lambda _, batch: batch.cancel()),
    "JobBatch.close": of_batch(lambda _, batch: batch.close()),
    "JobBatch.get_status": of_batch(lambda _, batch: batch.get_status()),
    "JobBatch.iter_jobs": of_batch(lambda _, batch: consume(batch.iter_jobs())),
    "BackupSchedule.run_due": run_due_backups,
    "Queue.backup": back_up,
    "Queue.restore": restore,
    "Queue.add": add,
    "Queue.add(deduplication={'replace': True})": replace,
    "Queue.add_and_wait": add_and_wait,
    "Queue.add_bulk": of_queue("add_bulk", [("b", 1), ("c", 2, {"delay": 50}), ("d", 1, {"ordering": ORDERING})]),
    "Queue.change_delay": of_job_id("change_delay", 50, delay=HOUR_MS),
    "Queue.change_priority": of_job_id("change_priority", 5, priority=3),
    "Queue.change_rank": of_job_id("change_rank", 5_000, rank=3_000),
    "Queue.check": check,
    "Queue.check(repair=True)": of_queue("check", repair=True, recheck_after=0),
    "Queue.clean": clean,
    "Queue.close": close_queue,
    "Queue.connect": connect_queue,
    "Queue.drain": drain,
    "Queue.get_dead_letter_job": of_dead_letter(lambda queue, letter: queue.get_dead_letter_job(letter)),
    "Queue.get_dead_letter_jobs": of_dead_letter(lambda queue, _: queue.get_dead_letter_jobs()),
    "Queue.get_flow_budget": budget,
    "Queue.get_flow_usage": flow_usage,
    "Queue.get_deduplication_job": get_deduplication_job,
    "Queue.get_failure_stats": of_ended(fail, lambda queue, _: queue.get_failure_stats()),
    "Queue.get_failures": of_ended(fail, lambda queue, _: queue.get_failures()),
    "Queue.iter_failures": of_ended(fail, lambda queue, _: consume(queue.iter_failures())),
    "Queue.get_job_attempts": of_ended(fail, lambda queue, job_id: queue.get_job_attempts(job_id)),
    "Queue.purge_failures": of_ended(fail, lambda queue, _: queue.purge_failures()),
    "Queue.retry_failures": of_ended(fail, lambda queue, _: queue.retry_failures()),
    "Queue.reset_failure_stats": of_ended(fail, lambda queue, _: queue.reset_failure_stats()),
    "Queue.resume_fair_key": resume_fair_key,
    "Queue.get_job": of_job_id("get_job"),
    "Queue.get_job_logs": of_ended(lambda job: job.log("x"), lambda queue, job_id: queue.get_job_logs(job_id)),
    "Queue.get_job_scheduler": with_scheduler(lambda queue: queue.get_job_scheduler("s")),
    "Queue.get_job_schedulers": with_scheduler(lambda queue: queue.get_job_schedulers()),
    "Queue.get_metrics": of_ended(succeed, lambda queue, _: queue.get_metrics("completed")),
    "Queue.get_suspend_info": of_ended(suspend, lambda queue, job_id: queue.get_suspend_info(job_id)),
    "Queue.get_suspended_jobs": of_ended(suspend, lambda queue, _: queue.get_suspended_jobs()),
    "Queue.iter_dead_letter_jobs": of_dead_letter(lambda queue, _: consume(queue.iter_dead_letter_jobs())),
    "Queue.get_jobs": read_states(lambda queue, state: queue.get_jobs(state)),
    "Queue.iter_fair_keys": iterate_fair_keys,
    "Queue.iter_jobs": read_states(lambda queue, state: consume(queue.iter_jobs(state))),
    "Queue.iter_search_jobs": read_states(lambda queue, state: consume(queue.iter_search_jobs(state, name="prepared"))),
    "Queue.obliterate": obliterate,
    "Queue.promote": of_job_id("promote", delay=HOUR_MS),
    "Queue.promote_jobs": promote_jobs,
    "Queue.discard": discard,
    "Queue.read_stream": read_stream,
    "Queue.remove": of_job_id("remove"),
    "Queue.remove_dead_letter_job": of_dead_letter(lambda queue, letter: queue.remove_dead_letter_job(letter)),
    "Queue.pause_job_scheduler": with_scheduler(lambda queue: queue.pause_job_scheduler("s")),
    "Queue.resume_job_scheduler": with_scheduler(lambda queue: queue.resume_job_scheduler("s"), paused=True),
    "Queue.remove_job_scheduler": with_scheduler(lambda queue: queue.remove_job_scheduler("s")),
    "Queue.replay_dead_letter_job": of_dead_letter(lambda queue, letter: queue.replay_dead_letter_job(letter)),
    "Queue.requeue_completed": of_ended(succeed, lambda queue, _: queue.requeue_completed()),
    "Queue.retry_jobs": of_ended(fail, lambda queue, _: queue.retry_jobs()),
    "Queue.revoke": of_job_id("revoke"),
    "Queue.search_jobs": read_states(lambda queue, state: queue.search_jobs(state, data={"x": 1})),
    "Queue.set_group_limits": of_queue("set_group_limits", "k", concurrency=2),
    "Queue.get_job_timeline": of_job_id("get_job_timeline"),
    "Queue.set_attempt_history": of_queue("set_attempt_history", max_attempts=3),
    "Queue.set_failure_policy": of_queue("set_failure_policy", max_entries=3),
    "Queue.set_name_limits": of_queue("set_name_limits", "n", concurrency=2),
    "Queue.set_fair_key_limits": of_queue("set_fair_key_limits", "k", concurrency=2),
    "Queue.set_fair_key_defaults": of_queue("set_fair_key_defaults", concurrency=2),
    "Queue.set_stalled_policy": of_queue("set_stalled_policy", max_stalled_count=3),
    "Queue.signal": of_ended(suspend, lambda queue, job_id: queue.signal(job_id, "go")),
    "Queue.stream": iterate_streams,
    "Queue.upsert_job_scheduler": of_queue("upsert_job_scheduler", "s", pattern="* * * * *", template=("n", 1)),
    "Job.discard": in_handler(lambda job: job.discard()),
    "Job.iterate": in_handler(iterate_items),
    "Job.move_to_delayed": in_handler(lambda job: job.move_to_delayed(HOUR_MS, next_step="second")),
    "Job.move_to_failed": in_handler(lambda job: job.move_to_failed("x")),
    "Job.move_to_waiting_children": wait_for_children,
    "Job.promote": promote,
    "Job.rate_limit_group": in_handler(lambda job: job.rate_limit_group(HOUR_MS), ordering=ORDERING),
    "Job.remove_dependency": remove_dependency,
    "Job.report_tokens": in_handler(lambda job: job.report_tokens(5)),
    "Job.report_usage": of_job("report_usage", tokens={"input": 5}),
    "Job.requeue": requeue,
    "Job.retry": retry,
    "Job.suspend": in_handler(lambda job: job.suspend(timeout=HOUR_MS)),
    "Job.wait_for_signal": in_handler(lambda job: job.wait_for_signal("go", timeout=HOUR_MS)),
    "Job.wait_until_finished": wait_for_result,
    "FlowProducer.add": add_flow,
    "FlowProducer.add_bulk": add_flows,
    "FlowProducer.add_dag": add_dag,
    "FlowProducer.close": open_flows,
    "FlowProducer.connect": open_flows,
    "FlowProducer.get_flow": get_flow,
    "QueueEvents.close": read_events,
    "QueueEvents.wait_until_ready": read_events,
    "Broadcast.close": close_broadcast,
    "Broadcast.get_dead_letter_jobs": of_dead_message(lambda each, _: each.get_dead_letter_jobs("s")),
    "Broadcast.get_delivery": get_delivery,
    "Broadcast.publish": publish,
    "Broadcast.publish(max_messages=...)": bounded_publish,
    "Broadcast.publish_bulk": publish_bulk,
    "Broadcast.redeliver": redeliver,
    "Broadcast.remove_dead_letter_job": of_dead_message(lambda each, letter: each.remove_dead_letter_job(letter, "s")),
    "Broadcast.replay_dead_letter_job": of_dead_message(lambda each, letter: each.replay_dead_letter_job(letter, "s")),
    "Worker.close": run_worker,
    "Worker.drain": drain_worker,
    "Worker.run": run_worker,
    "Worker.start": work,
    "Worker.wait_until_closed": run_worker,
    "Worker.wait_until_ready": run_worker,
    "BroadcastWorker.close": run_subscription,
    "BroadcastWorker.drain": drain_subscription,
    "BroadcastWorker.run": run_subscription,
    "BroadcastWorker.start": run_subscription,
    "BroadcastWorker.wait_until_closed": run_subscription,
    "BroadcastWorker.wait_until_ready": run_subscription,
    "Message.discard": in_message_handler(lambda message: message.discard()),
    "Message.log": in_message_handler(lambda message: message.log("x")),
    "Message.logs": in_message_handler(lambda message: message.logs()),
    "Message.move_to_delayed": in_message_handler(lambda message: message.move_to_delayed(HOUR_MS)),
    "Message.move_to_failed": in_message_handler(lambda message: message.move_to_failed("x")),
    "Message.reload": in_message_handler(lambda message: message.reload()),
    "Message.report_tokens": in_message_handler(lambda message: message.report_tokens(5)),
    "Message.report_usage": in_message_handler(lambda message: message.report_usage(tokens={"input": 5})),
    "Message.store_vector": in_message_handler(lambda message: message.store_vector("embedding", [0.5])),
    "Message.stream": in_message_handler(lambda message: message.stream({"n": 1})),
    "Message.stream_chunk": in_message_handler(lambda message: message.stream_chunk("text", "x")),
    "Message.update_progress": in_message_handler(lambda message: message.update_progress(5)),
    "Producer.add": of_producer("add", "n", 1),
    "Producer.add_bulk": of_producer("add_bulk", [("n", 1), ("m", 2)]),
    "Producer.close": of_producer("add", "n", 1),
    "ServerlessPool.close_all": use_pool,
    "ServerlessPool.get_producer": use_pool,
    "Maintenance.close": maintain,
    "Maintenance.run": maintain,
    "Maintenance.start": maintain,
    "Scheduler.close": schedule,
    "Scheduler.run": schedule,
    "Scheduler.start": schedule,
    "Task.add": use_task(lambda task: task.add(1)),
    "Task.add_and_wait": wait_for_task,
    "Task.add_bulk": use_task(lambda task: task.add_bulk([task.spec(1)])),
    "chain": lambda place: chain(place.name, [("a", 1), ("b", 2)], place.url),
    "chord": lambda place: chord(place.name, [("a", 1), ("b", 2)], ("c", 3), place.url),
    "dag": lambda place: dag([{"name": "a", "queue": place.name}], place.url),
    "group": lambda place: group(place.name, [("a", 1), ("b", 2)], place.url),
    "get_usage_summary": summarize,
    "list_queues": read_queue_list,
    "telemetry.prometheus.QueueCollector": collect,
    "Spark: write": write_with_spark,
    "Spark: write, `overwrite` = `drain`": drain_with_spark,
    "Spark: read": read_with_spark,
    "python -m glidemq_py.worker --check": probe,
}
"""The call of each method, class or program."""
