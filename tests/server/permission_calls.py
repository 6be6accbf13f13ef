"""One call of every public method and program: what a user of a role does, with all that it needs prepared.

`CALLS` has the names of `tools.permissions.METHODS`. A call prepares its queue with `place.admin`, who may do
everything; the method, and what cannot be separated from it, uses the role.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
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
from glidemq_py.errors import PermissionDeniedError
from glidemq_py.telemetry.prometheus import QueueCollector
from tests.inside import connected, lane_of
from tests.server.command import checked
from tests.server.gateway.script import Reader, look_up, resolved
from tests.server.worker_support import with_timeout

__all__ = ["CALLS", "HOUR_MS", "ORDERING", "Denied", "Place", "calls_of_text"]

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

    async def make(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make the call of a row, for which all is prepared."""
        return await call()

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


# -- what the calls of permission_calls.txt use ----------------------------------------------------------------


Use = Callable[..., Awaitable[Any]]
"""Makes the call with these objects; returns its result."""
HANDLERS: dict[str, Callable[[Job], Any]] = {
    "fail": fail, "succeed": succeed, "suspend": suspend, "log": lambda job: job.log("x"),
    "stream": lambda job: job.stream({"n": 1}),
}  # fmt: skip


async def queue(place: Place, use: Use, **options: Any):
    """Prepare a job."""
    await use(id=await place.add(**options))


async def job(place: Place, use: Use, **options: Any):
    """Prepare a job that the user has loaded without reading it."""
    await use(job=await place.job(**options), task=Worker(place.name).task(succeed))


async def handler(place: Place, use: Use, **options: Any):
    """Let the handler of the user's worker make the call."""
    await place.run(lambda job: use(job=job), **options)


async def lease(place: Place, use: Use):
    await place.add(attempts=2)
    (found,) = await place.queue.fetch(1, wait=1_000)
    await use(lease=found, restored=Lease.from_token(place.queue, found.token))


async def worker(place: Place, use: Use):
    async with Worker(place.name, succeed, place.admin_url, lock_duration=1_000) as served:
        await use(worker=served.consumer)


async def batch(place: Place, use: Use):
    """Prepare a batch with a job."""
    prepared = await place.admin.job_batches.create(on_complete=("callback",))
    await prepared.add("job")
    await use(id=prepared.id, batch=JobBatch(place.queue, await connected(place.queue), prepared.id))


async def dead_letter(place: Place, use: Use):
    await place.prepare(fail)
    await place.wait(place.admin.dead_letters.get_all)
    (letter,) = await place.admin.dead_letters.get_all()
    opened = await place.enter(Queue(place.name, place.url, dead_letter_queue=place.dead_letters))
    assert await use(queue=opened, id=letter.id)


async def ended(place: Place, use: Use, handler: str):
    """Prepare a job that a worker has processed."""
    job_id = await place.prepare(HANDLERS[handler])
    await use(id=job_id, job=Job(await connected(place.queue), job_id, "prepared"))


async def scheduler(place: Place, use: Use, *, paused: bool = False):
    await place.admin.schedulers.upsert("s", every=HOUR_MS, template=("n", 1))
    if paused:
        await place.admin.schedulers.pause("s")
    assert await use()


async def states(place: Place, use: Use):
    """Prepare jobs of these states."""
    await place.prepare(fail)
    for options in ({}, {"priority": 1}, {"delay": HOUR_MS}, {"ordering": ORDERING}):
        await place.add(**options)
    for state in ("waiting", "active", "delayed", "prioritized", "completed", "failed"):
        await use(state=state)


async def flow(place: Place, use: Use):
    """Prepare a flow with a budget."""
    prepared = await place.enter(FlowProducer(place.admin_url))
    tree = FlowJob("p", place.name, children=[FlowJob("c", place.name)])
    root = await prepared.add(tree, budget={"max_total_tokens": 9})
    flows = await place.enter(FlowProducer(place.url))
    assert await use(flowproducer=flows, name=place.name, id=root.job.id)


async def broadcast(place: Place, use: Use, **options: Any):
    found = await place.broadcast(**options)
    await use(broadcast=found, id=place.message_id)


async def message(place: Place, use: Use):
    """Let the handler of a subscription make the call."""
    await place.broadcast()
    await place.receive(lambda message: use(message=message), place.url)


async def dead_message(place: Place, use: Use):
    await place.broadcast()
    await place.receive(fail, place.admin_url)
    async with Broadcast(place.name, place.admin_url, dead_letter_queue=place.dead_letters) as admin:
        await place.wait(lambda: admin.get_dead_letter_jobs("s"))
        letters = await admin.get_dead_letter_jobs("s")
    assert await use(broadcast=await place.broadcast(dead_letter_queue=place.dead_letters), id=letters[0].id)


async def producer(place: Place, use: Use):
    await use(producer=await place.enter(Producer(place.name, place.url)))


async def task(place: Place, use: Use, *, running: bool = False):
    def made(url: str) -> tuple[Worker, Any]:
        worker = Worker(place.name, connection=url)

        async def double(x: int) -> int:
            return 2 * x

        return worker, worker.task(double)

    if running:
        await place.enter(made(place.admin_url)[0])
    worker, found = made(place.url)
    await use(task=found, call=found.call(1))
    await worker.close()


def calls_of_text() -> dict[str, Call]:
    """Return the calls of permission_calls.txt."""
    found: dict[str, Call] = {}
    prepare: Any = None
    options: dict[str, Any] = {}
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            section, _, rest = line[3:].partition(" ")
            prepare, options = globals()[section], dict(Reader(rest).pairs()[1])
        elif line and not line.startswith("#"):
            name, _, call = line.partition(" | ")
            if not call:
                name, _, arguments = line.partition(" ")
                owner = name.partition(".")[0].lower()
                call = f"{owner}.{name.partition('.')[2]} {arguments}"
            found[name] = partial(make_call, prepare, options, call)
    return found


async def make_call(prepare: Any, options: Mapping[str, Any], call: str, place: Place):
    """Prepare what a call uses, and make it."""
    method, _, rest = call.partition(" ")
    values, named = Reader(rest).pairs()

    async def use(**known: Any) -> Any:
        return await place.make(lambda: made({"queue": place.queue, **known}))

    async def made(known: dict[str, Any]) -> Any:
        found = look_up(known, method)(*resolved(values, known), **resolved(dict(named), known))
        if hasattr(found, "__aiter__"):
            return [each async for each in found]
        return await found if inspect.isawaitable(found) else found

    await prepare(place, use, **options)


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


async def add_and_wait(place: Place):
    async with Worker(place.name, succeed, place.admin_url):
        assert await place.queue.add_and_wait("a") == 1
        assert await place.queue.add_and_wait("a", delay=20) == 1
    try:
        await place.queue.add_and_wait("a", wait_timeout=20)
    except WaitTimeoutError:
        return
    raise AssertionError("no worker runs")


async def lease_in_block(place: Place):
    await place.add()
    async with place.queue.lease() as lease:
        assert lease is not None
    assert await place.queue.fetch(1, wait=10) == []  # waits with a connection of its own


async def obliterate(place: Place):
    await place.add(ordering=ORDERING)
    await place.add(delay=HOUR_MS)
    await place.queue.obliterate(force=True)
    await place.queue.obliterate(scan=True)


async def back_up(place: Place):
    await place.prepare(succeed)
    with TemporaryDirectory() as folder:
        assert (await place.queue.backups.create(folder, keep=1)).jobs == 1


async def run_due_backups(place: Place):
    await place.prepare(succeed)
    with TemporaryDirectory() as folder:
        assert len(await BackupSchedule([place.queue], folder).run_due()) == 1


async def restore(place: Place):
    await place.prepare(succeed)
    with TemporaryDirectory() as folder:
        async with Queue(place.name, place.admin_url) as admin:
            await admin.backups.create(folder)
            await admin.obliterate(force=True)
        assert (await place.queue.backups.restore(folder)).jobs == 1


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


async def open_flows(place: Place):
    flows = FlowProducer(place.url)
    await flows.connect()
    await flows.close()


async def read_events(place: Place):
    async with QueueEvents(place.name, place.url) as events:
        await events.wait_until_ready()
        await place.add()
        await with_timeout(anext(aiter(events)))


async def publish(place: Place):
    broadcast = await place.broadcast()
    await broadcast.publish("a", 1, attempts=2, backoff=10)
    await broadcast.publish("late", delay=20)


async def redeliver(place: Place):
    broadcast = await place.broadcast()
    await place.receive(succeed, place.admin_url)
    await broadcast.redeliver(place.message_id, "s")


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
    await admin.schedulers.upsert("s", every=HOUR_MS, immediately=True, limit=1, template=("scheduled", 1))
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

    async def completed() -> bool:
        return await root.job.get_state() == "completed"

    async with Worker(place.name, handle, place.url, log_failures=False, **settings) as worker:
        await place.wait(completed)
        await place.wait(admin.dead_letters.get_all)
        parts = lane_of(worker)
        assert parts is not None
        await parts.background.recovery.run_once()
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
        return running.done() or (job is not None and await job.get_state() == "completed")

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
        parts = lane_of(worker)
        assert parts is not None
        await parts.background.recovery.run_once()
        await parts.fetching.invalidate_pipelined()


async def drain_subscription(place: Place):
    await place.broadcast()
    await finish(place, BroadcastWorker(place.name, succeed, place.url, subscription="s"))


async def use_pool(place: Place):
    pool = ServerlessPool()
    try:
        await pool.get_producer(place.name, place.url).add("n", 1)
    finally:
        await pool.close_all()


async def schedule(place: Place):
    await place.admin.schedulers.upsert("s", every=50, template=("n", 1))
    async with Scheduler(place.queue):
        await place.wait(place.admin.count)


async def maintain(place: Place):
    await place.admin.schedulers.upsert("s", every=50, template=("n", 1))
    async with Maintenance([place.queue]):
        await place.wait(place.admin.count)


async def iterate_items(job: Job):
    async for _ in job.iterate(lambda _: [(1, "item")], checkpoint_interval=0):
        pass


async def collect(place: Place):
    def scrape():
        registry = CollectorRegistry()
        registry.register(QueueCollector([place.name], place.url))
        assert list(registry.collect())

    await asyncio.to_thread(scrape)


async def read_queue_list(place: Place):
    await place.add()
    assert place.name in await list_queues(place.url)


async def discard(place: Place):
    job_id = await place.add()
    async with Queue(place.name, place.admin_url) as admin, admin.lease():
        await place.queue.jobs.discard(job_id)


async def clean(place: Place):
    await place.add()
    assert len(await place.queue.clean(0, state="waiting")) == 1
    await place.queue.clean(0)


async def run_steps(place: Place):
    """A handler runs a step and waits for a child."""
    worker = Worker(place.name, connection=place.url)

    @worker.task("child", delay=HOUR_MS)
    async def child() -> None: ...

    async def handle(job: Job):
        if job.name == "prepared":
            await job.run("step", int)
            await job.gather([child.call()])

    await place.run(handle)
    await worker.close()


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

        async def healthy() -> bool:
            # A loaded machine can exceed the limits of a check.
            return await checked(place.name, place.url) == 0

        await place.wait(healthy)


async def remove_dependency(place: Place):
    first = await place.add()
    assert await (await place.job(depends_on=[first])).remove_dependency(first)


CALLS: dict[str, Call] = {
    **calls_of_text(),
    "Queue.lease": lease_in_block,
    "BackupSchedule.run_due": run_due_backups,
    "Queue.backups.create": back_up,
    "Queue.backups.restore": restore,
    "Queue.add": add,
    "Queue.add(deduplication={'replace': True})": replace,
    "Queue.add_and_wait": add_and_wait,
    "Queue.clean": clean,
    "Queue.close": close_queue,
    "Queue.connect": connect_queue,
    "Queue.drain": drain,
    "Queue.obliterate": obliterate,
    "Queue.jobs.discard": discard,
    "Job.iterate": lambda place: place.run(iterate_items),
    "Job.move_to_waiting_children": wait_for_children,
    "Job.run": run_steps,
    "Job.gather": run_steps,
    "Job.remove_dependency": remove_dependency,
    "FlowProducer.add": add_flow,
    "FlowProducer.add_bulk": add_flows,
    "FlowProducer.add_dag": add_dag,
    "FlowProducer.close": open_flows,
    "FlowProducer.connect": open_flows,
    "QueueEvents.close": read_events,
    "QueueEvents.wait_until_ready": read_events,
    "Broadcast.publish": publish,
    "Broadcast.redeliver": redeliver,
    "Worker.drain": drain_worker,
    "Worker.start": work,
    "BroadcastWorker.drain": drain_subscription,
    **{f"Worker.{method}": run_worker for method in ("close", "run", "wait_until_closed", "wait_until_ready")},
    **{
        f"BroadcastWorker.{method}": run_subscription
        for method in ("close", "run", "start", "wait_until_closed", "wait_until_ready")
    },
    "ServerlessPool.close_all": use_pool,
    "ServerlessPool.get_producer": use_pool,
    **{f"Maintenance.{method}": maintain for method in ("close", "run", "start")},
    **{f"Scheduler.{method}": schedule for method in ("close", "run", "start")},
    "chain": lambda place: chain(place.name, [("a", 1), ("b", 2)], place.url),
    "chord": lambda place: chord(place.name, [("a", 1), ("b", 2)], ("c", 3), place.url),
    "dag": lambda place: dag([{"name": "a", "queue": place.name}], place.url),
    "group": lambda place: group(place.name, [("a", 1), ("b", 2)], place.url),
    "get_usage_summary": lambda place: get_usage_summary(place.url, queues=[place.name]),
    "list_queues": read_queue_list,
    "telemetry.prometheus.QueueCollector": collect,
    "Spark: write": write_with_spark,
    "Spark: write, `overwrite` = `drain`": drain_with_spark,
    "Spark: read": read_with_spark,
    "python -m glidemq_py.worker --check": probe,
}
"""The call of each method, class or program."""
