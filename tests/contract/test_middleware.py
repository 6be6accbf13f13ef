"""Middleware around adds and runs, and the headers of jobs."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any

import pytest

from glidemq_py import (
    BulkAddError,
    ContextHeaders,
    DelayedError,
    GlideMQError,
    GlideMQValidationError,
    Job,
    JobFailedError,
    JobStateError,
    Middleware,
    NewJob,
    SerializationError,
    ServerlessPool,
    Worker,
    sync,
)
from tests.contract.api import FlowProducer, Producer, Queue
from tests.contract.observe import Raw
from tests.server.worker_support import WorkerFor

tenant: ContextVar[str | None] = ContextVar("tenant", default=None)
request_id: ContextVar[str] = ContextVar("request_id")


class Recorder(Middleware):
    """Records what it is around, and how it ended."""

    def __init__(self, name: str = "", log: list[str] | None = None):
        self.name = name
        self.log: list[str] = [] if log is None else log

    @contextmanager
    def add(self, job: NewJob) -> Generator[None]:
        yield from self._around(f"add {job.name}")

    @contextmanager
    def run(self, job: Job) -> Generator[None]:
        yield from self._around(f"run {job.name}")

    def _around(self, what: str) -> Generator[None]:
        self.log.append(f"{self.name}{what}")
        try:
            yield
        except BaseException as error:
            self.log.append(f"{self.name}{what}: {type(error).__name__}")
            raise
        self.log.append(f"{self.name}{what} ended")


async def ended(url: Any, name: str, handler: Any, count: int = 1, **options: Any):
    """Run a worker until so many jobs have ended."""
    done, left = asyncio.Event(), count

    def one(*_: object):
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    worker = Worker(name, handler, url, log_failures=False, **options)
    worker.on("completed", one)
    worker.on("failed", one)
    async with asyncio.timeout(20), worker:
        await done.wait()


# -- headers ------------------------------------------------------------------------------------------------


async def test_headers_reach_the_handler(url: Any, queue_name: str):
    seen: list[dict[str, str]] = []

    async def handle(job: Job):
        seen.append(dict(job.headers))

    async with Queue(queue_name, url, default_job_options={"headers": {"team": "a"}}) as queue:
        job = await queue.add("one", headers={"request": "7"})
        assert job.headers == {"request": "7"}
        await queue.add("two")
        stored = await queue.get_job(job.id)
        assert stored is not None
        assert stored.opts["headers"] == {"request": "7"}
    await ended(url, queue_name, handle, 2)
    assert seen == [{"request": "7"}, {"team": "a"}]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x", "option 'headers' = 'x': must be a mapping of names to texts"),
        ({1: "x"}, "option 'headers' = 1: names must be non-empty strings"),
        ({"": "x"}, "names must be non-empty strings"),
        ({"a": 1}, "option 'headers.a' = 1: must be a string, not int"),
        ({"a": None}, "option 'headers.a' = None: must be a string, not NoneType"),
        ({str(n): "" for n in range(101)}, "at most 100 headers"),
        ({"a": "x" * 16_384}, "at most 16,384 characters"),
        ({"a": "\ud800"}, "must be text that UTF-8 can encode"),
    ],
)
async def test_invalid_headers_are_rejected(url: Any, queue: Queue, value: Any, message: str):
    with pytest.raises(GlideMQValidationError, match=message):
        await queue.add("one", headers=value)
    assert (await queue.get_job_counts()).total == 0


# -- adding -------------------------------------------------------------------------------------------------


class Stamp(Middleware):
    """Changes data and headers."""

    def add(self, job: NewJob):
        job.headers["queue"] = job.queue
        job.headers.setdefault("priority", str(job.options.priority or 0))
        job.data = {"body": job.data}


async def test_middleware_changes_data_and_headers_of_every_way_to_add(url: Any, queue_name: str):
    stamp = [Stamp()]
    expected = {"queue": queue_name, "priority": "0"}

    async def check(queue: Queue, job_id: str, data: Any, headers: dict[str, str] = expected):
        job = await queue.get_job(job_id)
        assert job is not None
        assert (job.data, job.headers) == ({"body": data}, headers)

    options: Any = {"middleware": stamp, "default_job_options": {"backoff": 5}}
    async with Queue(queue_name, url, **options) as queue:
        one = await queue.add("a", 1)
        assert (one.data, one.headers) == ({"body": 1}, expected)
        await check(queue, one.id, 1)
        two, three = await queue.add_bulk([("a", 2), ("a", 3, {"priority": 4, "headers": {"own": "x"}})])
        await check(queue, two.id, 2)
        await check(queue, three.id, 3, {"own": "x", "queue": queue_name, "priority": "4"})
        assert three.priority == 4
        assert await queue.add_bulk([]) == []
        child = await queue.add("child", 4, parent=one)
        await check(queue, child.id, 4)
        async with Producer(queue_name, url, middleware=stamp) as producer:
            await check(queue, str(await producer.add("a", 5)), 5)
        async with FlowProducer(url, middleware=stamp) as flows:
            children = [{"name": "leaf", "queue": queue_name, "data": 7}]
            root = await flows.add({"name": "root", "queue": queue_name, "data": 6, "children": children})
            assert root.job.data == {"body": 6}
            await check(queue, root.job.id, 6)
            await check(queue, root.children[0].job.id, 7)
            nodes = await flows.add_dag([{"name": "n", "queue": queue_name, "data": 8}])
            await check(queue, nodes["n"].id, 8)
        batch = await queue.job_batches.create(on_complete=("all", 10), on_success=("ok", 11, {"priority": 4}))
        await batch.close()
        stored = [*await queue.get_jobs("waiting"), *await queue.get_jobs("prioritized")]
        callbacks = {job.name: job for job in stored if job.name in ("all", "ok")}
        await check(queue, callbacks["all"].id, 10)
        await check(queue, callbacks["ok"].id, 11, {"queue": queue_name, "priority": "4"})
        pool = ServerlessPool()
        producer = pool.get_producer(queue_name, url, middleware=stamp)
        assert pool.get_producer(queue_name, url, middleware=stamp) is producer
        assert pool.get_producer(queue_name, url) is not producer
        await check(queue, str(await producer.add("a", 9)), 9)
        await pool.close_all()


async def test_the_first_middleware_is_the_outermost(url: Any, queue_name: str):
    log: list[str] = []
    async with Queue(queue_name, url, middleware=[Recorder("1 ", log), Recorder("2 ", log)]) as queue:
        await queue.add("a")
    assert log == ["1 add a", "2 add a", "2 add a ended", "1 add a ended"]


async def test_middleware_sees_and_raises_errors_of_adds(url: Any, queue_name: str):
    recorder = Recorder()

    class Refuse(Middleware):
        def add(self, job: NewJob):
            if job.data == "refuse":
                raise PermissionError("not allowed")

    async with Queue(queue_name, url, middleware=[recorder, Refuse()]) as queue:
        with pytest.raises(PermissionError, match="not allowed"):
            await queue.add("a", "refuse")
        with pytest.raises(PermissionError):
            await queue.add_bulk([("b", 1), ("c", "refuse")])
        with pytest.raises(GlideMQValidationError, match=r"option 'jobs\[1\].delay'"):
            await queue.add_bulk([("b", 1), ("c", 2, {"delay": -1})])
        with pytest.raises(GlideMQValidationError, match=r"option 'jobs\[0\].data'"):
            await queue.add_bulk([("d", object())])
        with pytest.raises(BulkAddError):
            await queue.add_bulk([("e", 1, {"ordering": {"key": "k", "token_bucket": {"capacity": 1, "refill_rate": 1}},
                                            "cost": 5})])  # fmt: skip
        assert (await queue.get_job_counts()).total == 0
    assert [each for each in recorder.log if "Error" in each] == [
        "add a: PermissionError", "add c: PermissionError", "add b: PermissionError",
        "add d: SerializationError", "add e: BulkAddError",
    ]  # fmt: skip


@pytest.mark.exclude("blocking", reason="blocking code enters no such context manager")
async def test_an_asynchronous_context_manager_is_entered_by_coroutines_only(url: Any, queue_name: str):
    log: list[str] = []

    class Pooled(Middleware):
        @asynccontextmanager
        async def add(self, job: NewJob) -> AsyncGenerator[None]:
            await asyncio.sleep(0)
            log.append("add")
            yield
            log.append("added")

        @asynccontextmanager
        async def run(self, job: Job) -> AsyncGenerator[None]:
            await asyncio.sleep(0)
            log.append("run")
            yield
            log.append("ran")

    async def handle(job: Job):
        log.append("handler")

    def plain(job: Job): ...

    async with Queue(queue_name, url, middleware=[Pooled()]) as queue:
        await queue.add("a")
        await ended(url, queue_name, handle, middleware=[Pooled()])
        assert log == ["add", "added", "run", "handler", "ran"]
        job = await queue.add("b")
        await ended(url, queue_name, plain, middleware=[Pooled()])
        failed = await queue.get_job(job.id)
        assert failed is not None
        assert failed.failed_reason is not None
        assert failed.failed_reason.startswith("option 'middleware' = <class ")
        assert failed.failed_reason.endswith(
            "Pooled'>: returned an asynchronous context manager, which a handler that is a plain function cannot "
            "enter; use @contextmanager"
        )
    with (
        sync.Queue(queue_name, url, middleware=[Pooled()]) as blocking,
        pytest.raises(
            GlideMQValidationError, match=r"Pooled'>: returned an .* which the blocking API cannot enter"
        ) as caught,
    ):
        blocking.add("a")
    assert caught.value.option == "middleware"


class Broken(Middleware):
    """Its methods return values that are no context managers."""

    def add(self, job: NewJob):
        return 5

    run = add  # type: ignore[assignment]


async def test_a_forgotten_decorator_is_named(worker_for: WorkerFor, url: Any, queue_name: str):
    message = r"Broken'>: a method must return a context manager or None \(is @contextmanager missing\?\)"
    async with Queue(queue_name, url, middleware=[Broken()]) as queue:
        with pytest.raises(GlideMQValidationError, match=message):
            await queue.add("a")
    with (
        sync.Queue(queue_name, url, middleware=[Broken()]) as blocking,
        pytest.raises(GlideMQValidationError, match=message),
    ):
        blocking.add("a")
    async with Queue(queue_name, url) as queue, worker_for(lambda job: None, middleware=[Broken()]):
        with pytest.raises(JobFailedError, match=message):
            await queue.add_and_wait("a")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Stamp(), r"must be a list: \[...\]"),
        (5, "must be a list of Middleware instances"),
        ([Stamp], r"option 'middleware\[0\]' = .*: must be an instance: Stamp\(\)"),
        ([Stamp(), len], r"option 'middleware\[1\]' = .*: must be an instance of a subclass of Middleware"),
    ],
)
@pytest.mark.parametrize("owner", [Queue, Producer, Worker])
def test_invalid_middleware_is_rejected(owner: Any, value: Any, message: str):
    arguments = {"handler": print} if owner is Worker else {}
    with pytest.raises(GlideMQValidationError, match=message):
        owner("emails", middleware=value, **arguments)


class Hush(Middleware):
    @contextmanager
    def add(self, job: NewJob) -> Generator[None]:
        with suppress(GlideMQError):
            yield


@pytest.mark.parametrize("middleware", [[Hush()], [Stamp(), Hush()], [Recorder(), Hush(), Recorder()]])
async def test_a_suppressed_error_of_an_add_is_not_silent(url: Any, queue_name: str, middleware: list[Middleware]):
    message = (
        "^middleware Hush suppressed SerializationError: the jobs may not have been added; "
        ".* must not suppress the errors of an add$"
    )
    async with Queue(queue_name, url, middleware=middleware) as queue:
        with pytest.raises(GlideMQError, match=message) as caught:
            await queue.add("a", object())
        assert isinstance(caught.value.__cause__, SerializationError)
        with pytest.raises(GlideMQError, match=message):
            await queue.add_bulk([("a", object())])


async def test_a_suppressed_error_of_another_middleware_is_not_silent(url: Any, queue_name: str):
    class Strict(Middleware):
        def add(self, job: NewJob):
            raise JobStateError("1", "failed", "add")

    async with Queue(queue_name, url, middleware=[Hush(), Strict()]) as queue:
        with pytest.raises(GlideMQError, match=r"^middleware Hush suppressed JobStateError"):
            await queue.add("a")


# -- running ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
async def test_middleware_is_around_handlers(url: Any, queue: Queue, queue_name: str, plain: bool):
    recorder = Recorder()

    async def handle(job: Job):
        recorder.log.append("handler")
        if job.name == "bad":
            raise ValueError("no")

    def handle_here(job: Job):
        recorder.log.append("handler")
        if job.name == "bad":
            raise ValueError("no")

    await queue.add_bulk([("good",), ("bad",)])
    await ended(url, queue_name, handle_here if plain else handle, 2, middleware=[recorder])
    assert recorder.log == ["run good", "handler", "run good ended", "run bad", "handler", "run bad: ValueError"]


@pytest.mark.parametrize("plain", [False, True])
async def test_context_variables_go_from_the_add_to_the_handler_and_on(
    worker_for: WorkerFor, url: Any, queue_name: str, plain: bool
):
    carried = ContextHeaders({"tenant": tenant, "request-id": request_id})
    seen: list[tuple[str, str | None, str | None]] = []
    worker: Worker

    def note(job: Job):
        seen.append((job.name, tenant.get(), request_id.get(None)))

    async def handle(job: Job):
        note(job)
        if job.name == "first":
            await follow.add()

    async with Queue(queue_name, url, middleware=[carried]) as queue:
        token = tenant.set("seven")
        await queue.add("first")
        tenant.reset(token)
        await queue.add("bare")
        await queue.add("given", headers={"tenant": "eight", "other": "x"})
        done, left = asyncio.Event(), 3 if plain else 4
        worker = worker_for(note if plain else handle, middleware=[carried], log_failures=False)

        @worker.task("follow")
        async def follow():
            seen.append(("follow", tenant.get(), request_id.get(None)))

        def count(*_: object):
            nonlocal left
            left -= 1
            if left == 0:
                done.set()

        worker.on("completed", count)
        async with asyncio.timeout(20), worker:
            await done.wait()
    expected = {("first", "seven", None), ("bare", None, None), ("given", "eight", None)}
    assert set(seen) == (expected if plain else expected | {("follow", "seven", None)})
    assert tenant.get() is None


async def test_an_error_before_a_run_fails_the_attempt(url: Any, queue: Queue, queue_name: str):
    class Refuse(Middleware):
        def run(self, job: Job):
            raise PermissionError(f"tenant of {job.name} is blocked")

    calls: list[str] = []

    async def handle(job: Job):
        calls.append(job.name)

    job = await queue.add("a")
    await ended(url, queue_name, handle, middleware=[Refuse()])
    found = await queue.get_job(job.id)
    assert found is not None
    assert found.failed_reason == "tenant of a is blocked"
    assert calls == []


@pytest.mark.parametrize("own", [False, True])
async def test_batches(url: Any, queue: Queue, queue_name: str, own: bool):
    recorder = Recorder()

    class Whole(Recorder):
        @contextmanager
        def run_batch(self, jobs: Sequence[Job]) -> Generator[None]:
            yield from self._around(f"batch of {len(jobs)}")

    async def handle(jobs: list[Job]) -> list[None]:
        return [None] * len(jobs)

    recorder = Whole() if own else Recorder()
    await queue.add_bulk([("a",), ("b",)])
    await ended(url, queue_name, handle, 2, batch={"size": 2}, middleware=[recorder])
    each = ["run a", "run b", "run b ended", "run a ended"]
    assert recorder.log == (["batch of 2", "batch of 2 ended"] if own else each)


async def test_several_queues(url: Any, queue_name: str):
    recorder = Recorder()

    async def handle(job: Job): ...

    names = [f"{queue_name}-{n}" for n in range(2)]
    for name in names:
        async with Queue(name, url) as queue:
            await queue.add(name)
    done, left = asyncio.Event(), 2

    def count(*_: object):
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    worker = Worker(names, handle, url, middleware=[recorder])
    worker.on("completed", count)
    async with asyncio.timeout(20), worker:
        await done.wait()
    assert set(recorder.log) == {f"run {name}{end}" for name in names for end in ("", " ended")}


@pytest.mark.parametrize("plain", [False, True])
async def test_a_job_without_the_header_has_no_value_of_the_code_that_started_the_worker(
    url: Any, queue: Queue, queue_name: str, plain: bool
):
    seen: list[str | None] = []

    async def handle(job: Job):
        seen.append(tenant.get())

    def handle_here(job: Job):
        seen.append(tenant.get())

    await queue.add("bare")
    token = tenant.set("of the worker")
    await ended(url, queue_name, handle_here if plain else handle, middleware=[ContextHeaders({"tenant": tenant})])
    tenant.reset(token)
    assert seen == [None]


def test_variables_are_a_mapping():
    variables: Any = [tenant]
    with pytest.raises(GlideMQValidationError, match=r"option .variables. = .*: must be a mapping of names"):
        ContextHeaders(variables)


async def test_a_bulk_of_one_job_is_a_bulk(url: Any, queue_name: str):
    calls: list[int] = []

    class Count(Middleware):
        def add_bulk(self, jobs: Sequence[NewJob]):
            calls.append(len(jobs))

    async with Queue(queue_name, url, middleware=[Count()]) as queue:
        await queue.add_bulk([("a",)])
        await queue.add("b")
    assert calls == [1]


# -- leases -------------------------------------------------------------------------------------------------


@pytest.mark.exclude("blocking", reason="the adapter enters and leaves it in different threads")
async def test_middleware_is_around_the_block_of_a_lease(url: Any, queue_name: str):
    outer, inner = Recorder("1 "), Recorder("2 ")
    inner.log = outer.log
    async with Queue(queue_name, url, middleware=[outer, ContextHeaders({"tenant": tenant}), inner]) as queue:
        async with queue.lease() as nothing:
            assert nothing is None
        assert outer.log == []
        await queue.add("a", headers={"tenant": "acme"})
        outer.log.clear()
        async with queue.lease() as lease:
            assert lease is not None
            assert tenant.get() == "acme"
            outer.log.append("block")
        assert outer.log == ["1 run a", "2 run a", "block", "2 run a ended", "1 run a ended"]
        assert tenant.get() is None
        assert (await queue.get_job_counts()).completed == 1


@pytest.mark.parametrize(
    ("error", "state"), [(ValueError("no"), "failed"), (DelayedError(60_000), "delayed"), (None, "completed")]
)
async def test_middleware_sees_the_error_of_a_lease(url: Any, queue_name: str, error: Exception | None, state: str):
    recorder = Recorder()
    async with Queue(queue_name, url, middleware=[recorder]) as queue:
        job = await queue.add("a")
        recorder.log.clear()
        with pytest.raises(ValueError, match="no") if state == "failed" else nullcontext():
            async with queue.lease() as lease:
                assert lease is not None
                if error is not None:
                    raise error
                await lease.complete(5)
        assert recorder.log == ["run a", f"run a: {type(error).__name__}" if error else "run a ended"]
        assert await job.get_state() == state


class Replacing(Middleware):
    """Suppresses KeyErrors of runs; raises another error than ValueErrors, and one before jobs named "late"."""

    @contextmanager
    def run(self, job: Job) -> Generator[None]:
        if job.name == "late":
            raise DelayedError(60_000)
        try:
            yield
        except KeyError:
            pass
        except ValueError:
            raise RuntimeError("replaced") from None


def test_middleware_decides_about_the_error_of_a_lease(url: Any, queue_name: str):
    with sync.Queue(queue_name, url, middleware=[Recorder(), Replacing()]) as queue:
        for error, state, reason in ((KeyError(), "completed", None), (ValueError(), "failed", "replaced")):
            job = queue.add("a")
            with pytest.raises(RuntimeError, match="replaced") if reason else nullcontext(), queue.lease():
                raise error
            job.reload()
            assert (job.get_state(), job.failed_reason) == (state, reason)
        late = queue.add("late")
        with pytest.raises(DelayedError), queue.lease():
            pytest.fail("the block must not run")
        assert late.get_state() == "delayed"


def test_asynchronous_middleware_of_a_blocking_lease_is_rejected(url: Any, queue_name: str):
    class Async(Middleware):
        @asynccontextmanager
        async def run(self, job: Job) -> AsyncGenerator[None]:
            yield

    with sync.Queue(queue_name, url, middleware=[Async()]) as queue:
        queue.add("a")
        with pytest.raises(GlideMQValidationError, match="the blocking API cannot enter"), queue.lease():
            pytest.fail("the block must not run")
        assert queue.get_job_counts().failed == 1


async def test_foreign_headers_are_read_as_far_as_they_are_texts(url: Any, queue: Queue, raw: Raw):
    job = await queue.add("one")
    for stored, expected in (('{"a": "x", "b": 1}', {"a": "x"}), ('"x"', {}), ("null", {})):
        raw.run("HSET", f"job:{job.id}", "opts", f'{{"headers": {stored}}}')
        found = await queue.get_job(job.id)
        assert found is not None
        assert found.headers == expected
