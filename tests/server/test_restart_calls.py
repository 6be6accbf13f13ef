"""Every call that a handler can make, in flight while the server is killed: no job fails, and nothing is done twice."""

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from glidemq_py import Broadcast, BroadcastWorker, Job, Queue, UnrecoverableError, Worker
from glidemq_py.errors import JobSignal
from tests.server.permission_calls import CALLS, HOUR_MS, ORDERING, Place, calls_of_text
from tests.server.test_faults_lost_replies import SECOND_EFFECT
from tests.server.worker_support import EventRecorder, Raw, StartServer, until, with_timeout

pytestmark = pytest.mark.slow

READS = (
    "get_batch_ref get_children_failures get_children_values get_cursor get_dependencies "
    "get_open_children get_parents get_state get_steps is_revoked logs reload move_to_waiting_children"
)


def reading(name: str) -> Callable[[Any, int], Any]:
    return lambda job, n: getattr(job, name)()


APPENDS: dict[str, Callable[[Any, int], Any]] = {
    "log": lambda job, n: job.log(str(n), keep=0),
    "stream": lambda job, n: job.stream({"n": n}, keep=0),
}
REPEATED: dict[str, Callable[[Any, int], Any]] = {
    **{name: reading(name) for name in READS.split()},
    **APPENDS,
    "report_usage": lambda job, n: job.report_usage(tokens={"input": n}),
    "report_tokens": lambda job, n: job.report_tokens(n),
    "store_vector": lambda job, n: job.store_vector("embedding", [n]),
    "update_data": lambda job, n: job.update_data(n),
    "update_progress": lambda job, n: job.update_progress(n),
    "run": lambda job, n: job.run("step", int) if n < MOST_STEPS else job.get_state(),
    "wait_for_signal": lambda job, n: job.wait_for_signal("go") if n == 1 else job.get_state(),
}
"""Calls about the job that runs, made again and again; ``n`` counts them."""
ENDS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "discard": ("completed", lambda job: job.discard()),
    "move_to_delayed": ("delayed", lambda job: job.move_to_delayed(HOUR_MS)),
    "move_to_failed": ("failed", lambda job: job.move_to_failed("no")),
    "rate_limit_group": ("group-waiting", lambda job: job.rate_limit_group(HOUR_MS)),
    "sleep": ("delayed", lambda job: job.sleep("step", HOUR_MS)),
    "suspend": ("suspended", lambda job: job.suspend()),
}
"""Ends of an attempt: the state to which they lead."""
OF_OPERATORS = {
    "change_delay", "change_priority", "promote", "remove", "remove_dependency", "requeue", "retry",
    "revoke", "wait_until_finished",
}  # fmt: skip
"""Calls about other jobs."""
IN_MEMORY = {"gather", "get_children_results", "idempotency_key"}
"""Methods that make no call of their own: children are added and read by other methods."""
MOST_STEPS = 900
IN_FLIGHT = 100
"""Calls of a handler that appends: more than the server remembers."""
ROWS = [
    name for name in CALLS
    if name.startswith(("Broadcast.", "FlowProducer.", "Job.", "JobBatch.", "Lease.", "Message.", "Queue."))
    and not name.startswith("Queue.workers.")  # commands to workers are delivered at most once
]  # fmt: skip
UNKNOWN = {
    name for kind, names in SECOND_EFFECT.items() for name in (f"{kind}.{each}" for each in names.split())
    if name in calls_of_text() and name in ROWS and name != "Queue.fetch"  # its row releases the lease meanwhile
}  # fmt: skip
"""Rows that raise, because whether the call was made is unknown."""
ENDED = ("completed", "failed", "retrying", "delayed", "suspended")


def test_no_call_is_missing():
    """All calls of a queue are rows: test_permissions_by_role.py compares them with the class."""
    methods = {name for name, _ in inspect.getmembers(Job, inspect.isfunction) if not name.startswith("_")}
    assert methods == {*REPEATED, *ENDS, *OF_OPERATORS, *IN_MEMORY, "iterate"}
    assert {f"Job.{name}" for name in OF_OPERATORS} <= CALLS.keys()


class Handlers:
    """Handlers that make calls about their own jobs until they are told to stop."""

    def __init__(self):
        self._began, self._began_in_thread, self.over = asyncio.Event(), threading.Event(), threading.Event()
        self.begun, self.made = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        """Numbers of calls by queue and id of the job."""

    def begin(self):
        """Let the handlers make their calls."""
        self._began.set()
        self._began_in_thread.set()

    async def go_on(self):
        """Wait until all that make calls have made others."""
        before = self.made.copy()
        await with_timeout(until(lambda: all(self.made[each] > before[each] + 1 for each in self.begun)))

    def numbers(self, job: Any, most: int = 1) -> Iterator[tuple[int, range]]:
        """Yield the numbers of the calls: the first one, and ``most`` that are made together."""
        mine = job.queue_name, job.id
        while not self.over.is_set():
            first = self.begun[mine] + 1
            self.begun[mine] += most
            yield first, range(first, first + most)
            self.made[mine] += most

    async def in_task(self, job: Any):
        await self._began.wait()
        if job.name in ENDS:
            ended = ENDS[job.name][1](job)
            if inspect.isawaitable(ended):
                await ended
        elif job.name == "iterate":
            async for _ in job.iterate(lambda after: self.numbers(job), checkpoint_interval=0):
                pass
        else:
            for _, some in self.numbers(job, IN_FLIGHT if job.name in APPENDS else 1):
                await asyncio.gather(*(REPEATED[job.name](job, n) for n in some))

    def in_thread(self, job: Job):
        self._began_in_thread.wait()
        if job.name in ENDS:
            ENDS[job.name][1](job.blocking)
        elif job.name == "iterate":
            for _ in job.blocking.iterate(lambda after: self.numbers(job), checkpoint_interval=0):
                pass
        else:
            for n, _ in self.numbers(job):
                REPEATED[job.name](job.blocking, n)


class Held(Place):
    """A place whose call waits until the server is frozen; `failed` is why it failed then."""

    def hold(self, prepared: set[str], frozen: asyncio.Event):
        self._prepared, self._frozen = prepared, frozen
        self.failed: Exception | None = None

    async def make(self, call: Callable[[], Awaitable[Any]]) -> Any:
        self._prepared.add(self.name)
        await self._frozen.wait()
        try:
            return await call()
        except Exception as error:
            self.failed = error
            raise


async def make_rows(url: str, prefix: str, prepared: set[str], frozen: asyncio.Event) -> dict[str, type[Exception]]:
    """Make the calls of all rows, and note the places in ``prepared``; return the types of their errors by row."""
    errors: dict[str, type[Exception]] = {}

    async def make(name: str):
        async with AsyncExitStack() as stack:
            place = Held(f"{prefix}-{ROWS.index(name)}", url, url, lambda: False, stack)
            place.hold(prepared, frozen)
            await place.open()
            try:
                await CALLS[name](place)
            except Exception as error:
                place.failed = error
            prepared.add(place.name)
            if place.failed is not None:
                errors[name] = type(place.failed)

    await asyncio.gather(*map(make, ROWS))
    return errors


async def test_calls_in_flight_at_a_restart_are_repeated(restartable_server: StartServer, queue_name: str):
    server, handlers, recorded = restartable_server(), Handlers(), EventRecorder()
    frozen, prepared = asyncio.Event(), set[str]()
    jobs: list[Job] = []
    async with AsyncExitStack() as stack:
        for kind, handler in (("task", handlers.in_task), ("thread", handlers.in_thread)):
            queue = await stack.enter_async_context(Queue(f"{queue_name}-{kind}", server.url))
            names = [*REPEATED, *ENDS, "iterate"]
            rows: Any = [(name, None, {"ordering": {**ORDERING, "key": name}}) for name in names]
            jobs += await queue.add_bulk(rows)
            await queue.signal(jobs[names.index("wait_for_signal") - len(names)].id, "go")
            worker: Any = Worker(queue.name, handler, server.url, concurrency=len(names))
            recorded.listen(await stack.enter_async_context(worker))
        broadcast = await stack.enter_async_context(Broadcast(f"{queue_name}-broadcast", server.url))
        for subscription in ("one", "two"):
            subscribed: Any = BroadcastWorker(
                broadcast.name, handlers.in_task, server.url, subscription=subscription, concurrency=len(APPENDS)
            )
            recorded.listen(await stack.enter_async_context(subscribed))
        messages = [(broadcast.name, str(await broadcast.publish(name))) for name in APPENDS]
        started = len(jobs) + 2 * len(messages)
        await recorded.wait("active", started)
        others = asyncio.create_task(make_rows(server.url, queue_name, prepared, frozen))
        await with_timeout(until(lambda: len(prepared) == len(ROWS)))
        server.pause()
        handlers.begin()
        frozen.set()
        await asyncio.sleep(0.3)  # nothing tells when the last bytes are on their way to a frozen server
        server.restart(kill=True)
        errors = await with_timeout(others)
        for _ in range(2):  # while calls are executed, so that replies are lost
            await handlers.go_on()
            server.restart(kill=True)
        await handlers.go_on()
        handlers.over.set()
        await recorded.until(lambda seen: sum(seen.count[each] for each in ENDED) >= started)
        ends = {name: error for name, error in errors.items() if issubclass(error, JobSignal | UnrecoverableError)}
        assert errors == ends | {name: errors.get(name) for name in UNKNOWN}
        assert (recorded.count["failed"], recorded.count["retrying"]) == (2, 0)
        states = [(job.name, str(await job.get_state())) for job in jobs]
        assert states == [(name, ENDS[name][0] if name in ENDS else "completed") for name, _ in states]
    with server.client() as client:
        appended = [((job.queue_name, job.id), job.name) for job in jobs if job.name in APPENDS]
        for (name, job_id), kind in [*appended, *zip(messages, APPENDS, strict=True)]:
            raw = Raw(client, name)
            lines = raw.run("LRANGE", f"log:{job_id}", 0, -1)
            chunks = raw.run("XRANGE", f"jstream:{job_id}", "-", "+")
            numbers = sorted(int(line) for line in (lines if kind == "log" else [fields[-1] for _, fields in chunks]))
            assert numbers == list(range(1, handlers.begun[name, job_id] + 1))
