"""Errors, results, strategies and listeners of the application that raise whatever they like: no slot is lost."""

import asyncio
import logging
from contextvars import ContextVar
from typing import Any

import pytest

from glidemq_py import GlideMQError, Job, JobFailedError, SerializationError, Worker
from glidemq_py.errors import BatchError
from glidemq_py.telemetry import set_tracer
from glidemq_py.testing import TestQueue
from tests.contract.api import Queue, QueueEvents
from tests.contract.deeds import (
    Hard,
    MissingKeyError,
    MockedError,
    NoClassError,
    NoNotesError,
    NoResult,
    NoTextError,
    RecursiveError,
)
from tests.server.worker_support import EventRecorder, WorkerFor, with_timeout


class NoClassOfOursError(GlideMQError):
    @property  # type: ignore[misc]
    def __class__(self):
        raise NoClassOfOursError


class Untouchable(type):
    def __getattribute__(cls, name: str):
        raise Hard

    def __hash__(cls):
        raise Hard


def hard(*args: Any):
    raise Hard


# In a list, because pytest touches the classes of a module.
UNTOUCHABLE: Any = [
    Untouchable("UntouchableError", (Exception,), {"__getattribute__": hard, "__bool__": hard, "__repr__": hard})
]


def untouchable(*args: Any):
    raise UNTOUCHABLE[0]


class Proxy:
    __getattribute__ = untouchable


class NoRepr:
    __repr__ = hard


ERRORS = {each.__name__: each for each in (MissingKeyError, RecursiveError, MockedError, NoTextError, NoNotesError)}


def _raise(name: str):
    if name == "Caused":
        raise ValueError("boom") from MissingKeyError("cause")
    if name == "Grouped":
        raise ExceptionGroup("boom", [MissingKeyError("part")])
    if name == "NoClassError":
        raise NoClassError("boom")
    if name == "NoClassOfOursError":
        raise NoClassOfOursError("boom")
    if name == "Surrogate":
        raise ValueError("\ud800")
    if name == "NoResult":
        return NoResult(a=1)
    if name == "Proxy":
        return Proxy()
    raise ERRORS[name]("boom")


def deed(job: Any):
    """Raise the error that the job names."""
    return _raise(job.name)


TYPES = {**{name: name for name in ERRORS}, "Caused": "ValueError", "Grouped": "ExceptionGroup"}


async def in_task(job: Any):
    return deed(job)


async def in_batch(jobs: list[Job]):
    return [deed(job) for job in jobs]


KINDS: Any = {
    "task": {"handler": in_task},
    "thread": {"handler": deed},
    "batch": {"handler": in_batch, "batch": {"size": 1}},
    "sandbox": {"handler": "tests.contract.test_hostile_objects:deed"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["NoClassError", "NoClassOfOursError", "NoResult", "Proxy"])
async def test_an_outcome_that_cannot_be_prepared_is_retried_and_logged(
    url: Any, queue: Queue, queue_name: str, kind: str, name: str, caplog: pytest.LogCaptureFixture
):
    async with Worker(queue_name, connection=url, **KINDS[kind]) as worker:
        job = await queue.add(name, attempts=2)
        with pytest.raises(JobFailedError, match=r"the outcome of the handler cannot be stored(: Hard|: NoClassOf|$)"):
            await with_timeout(job.wait_until_finished())
        failed = await queue.get_job(job.id)
        assert failed is not None
        assert failed.attempts_made == 2
        assert worker.active_count == 0
    assert f"job {job.id} {name!r}" in caplog.text


@pytest.mark.parametrize("hostile", [NoClassError, NoResult, Proxy, lambda: UNTOUCHABLE[0]()])
@pytest.mark.parametrize("raised", [False, True])
async def test_a_hostile_result_leaves_the_others_of_its_batch_unharmed(
    queue: Queue, worker_for: WorkerFor, hostile: Any, raised: bool, caplog: pytest.LogCaptureFixture
):
    calls: list[list[str]] = []

    async def handle(jobs: list[Job]):
        calls.append([job.name for job in jobs])
        results = [hostile() if job.name == "bad" else "fine" for job in jobs]
        if raised:
            raise BatchError(results)
        return results

    jobs = await queue.add_bulk([(name, None, {"attempts": 2}) for name in ("a", "bad", "c")])
    async with worker_for(handle, batch={"size": 3}):
        assert await with_timeout(jobs[0].wait_until_finished()) == "fine"
        with pytest.raises(JobFailedError, match="the outcome of the handler cannot be stored"):
            await with_timeout(jobs[1].wait_until_finished())
        assert await with_timeout(jobs[2].wait_until_finished()) == "fine"
    assert sorted(calls[0]) == ["a", "bad", "c"]
    assert calls[1:] == [["bad"]]
    assert caplog.text.count("cannot be stored") >= 2


async def test_the_texts_about_an_object_without_a_repr_have_a_fallback(queue: Queue):
    with pytest.raises(SerializationError, match=r"option 'data' = <tests\S+\.NoRepr object at 0x"):
        await queue.add("n", NoRepr())

    async def handle(job: Job):
        return NoRepr()

    async with TestQueue() as memory, memory.worker(handle) as worker:
        await memory.add("n")
        run = await worker.run_one()
    assert "error=<glidemq_py.errors.SerializationError object at 0x" in repr(run)
    assert ".NoRepr object at 0x" in str(run and run.error)


async def test_the_block_of_a_lease_gets_its_own_error(url: Any, queue: Queue):
    async def work(queue: Queue):
        async with queue.lease() as lease:
            assert lease is not None
            deed(lease.job)

    for name, kind in {**ERRORS, "NoClassError": NoClassError}.items():
        job = await queue.add(name)
        with pytest.raises(kind) as caught:
            await work(queue)
        assert type(caught.value) is kind
        failed = await queue.get_job(job.id)
        assert failed is not None
        assert failed.failed_type == (name if name in ERRORS else "GlideMQError")


async def test_a_span_does_not_replace_the_error(worker_for: WorkerFor, url: Any, queue_name: str):
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    set_tracer(trace.TracerProvider().get_tracer("test"))
    try:
        async with Queue(queue_name, url) as queue, worker_for(in_task):
            for name in TYPES:
                with pytest.raises(JobFailedError) as caught:
                    await with_timeout(queue.add_and_wait(name))
                assert caught.value.failed_type == TYPES[name]
    finally:
        set_tracer(None)


class Meta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        raise Hard


class PickyError(Exception, metaclass=Meta):
    pass


@pytest.mark.parametrize(
    "options",
    [
        {"backoff_strategies": {"mine": lambda failures, error: error.delay}},
        {"backoff_strategies": {"mine": lambda failures, error: exit()}},
        {"backoff_strategies": {"mine": untouchable}},
        {"backoff_strategies": {"mine": lambda failures, error: None}},
        {"backoff_strategies": {"mine": lambda failures, error: -1}},
        {"backoff_strategies": {"mine": lambda failures, error: 2.5}},
        {"backoff_strategies": {"mine": lambda failures, error: True}},
        {"backoff_strategies": {"mine": lambda failures, error: "5"}},
        {"retry_on": (PickyError,), "backoff_strategies": {"mine": lambda failures, error: 1}},
    ],
    ids=["attribute", "exit", "untouchable", "none", "negative", "float", "bool", "text", "retry_on"],
)
async def test_a_broken_decision_about_a_retry_keeps_the_delay_of_the_job(
    kind: str, queue: Queue, worker_for: WorkerFor, options: Any, caplog: pytest.LogCaptureFixture
):
    backoff: Any = {"type": "mine", "delay": 7_000_000}
    async with worker_for(in_task, **options) as worker:
        recorded = EventRecorder(worker)
        jobs = [await queue.add("MissingKeyError", attempts=2, backoff=backoff) for _ in range(9)]
        await recorded.wait("retrying", 9)
        assert {await job.get_state() for job in jobs} == {"delayed"}
    limit = 9 if kind == "partitioned" else 5  # five per minute and part
    assert caplog.text.count("using a delay of 7000000 ms") == limit


EVENTS: Any = ("active", "completed", "failed", "retrying", "drained")


def cancelled():
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    future.result()


def cancel_current():
    task: Any = asyncio.current_task()
    task.cancel()


async def fail_bad(job: Job):
    if job.name == "bad":
        raise ValueError


@pytest.mark.parametrize("deed", [exit, cancelled, cancel_current, untouchable])
@pytest.mark.parametrize("awaited", [False, True])
async def test_listeners_that_raise_anything_do_not_stop_the_worker(
    queue: Queue, worker_for: WorkerFor, deed: Any, awaited: bool, caplog: pytest.LogCaptureFixture
):
    def plain(*args: Any):
        deed()

    async def slow(*args: Any):
        deed()

    caplog.set_level(logging.ERROR)
    async with worker_for(fail_bad) as worker:
        for event in EVENTS:
            worker.on(event, slow if awaited else plain)
        recorded = EventRecorder(worker)
        for _ in range(9):
            await queue.add_bulk([("good", None), ("bad", None)])
        await recorded.until(lambda seen: seen.count["completed"] == seen.count["failed"] == 9)
        await with_timeout(worker.close())
    expected = 0 if awaited and deed in (cancelled, cancel_current) else 5  # a cancelled task is not an error
    assert caplog.text.count("listener of event 'completed' failed") == expected


async def test_queue_events_continue_after_a_listener_that_raises_anything(
    kind: str, url: Any, queue: Queue, queue_name: str, caplog: pytest.LogCaptureFixture
):
    seen: list[str] = []
    done, loop = asyncio.Event(), asyncio.get_running_loop()

    def listener(event: Any):
        seen.append(event.job_id)
        if len(seen) == 9:
            loop.call_soon_threadsafe(done.set)  # blocking events call listeners in a thread
        cancelled()

    async def slow(event: Any):
        untouchable()

    async def cancels(event: Any):
        cancel_current()

    async with QueueEvents(queue_name, url) as events:
        for each in (slow, cancels, lambda event: cancel_current(), listener):
            events.on("added", each)
        await queue.add_bulk([("n", None)] * 9)
        await with_timeout(done.wait())
        await with_timeout(events.close())
    types = 2 if kind == "blocking" else 3  # five of each type of error; in a thread there is no task
    assert caplog.text.count("listener for 'added' events failed") == 5 * types


variable: ContextVar[str] = ContextVar("variable", default="")


async def test_context_variables_of_listeners_do_not_reach_later_jobs(queue: Queue, worker_for: WorkerFor):
    found: list[str] = []

    async def handle(job: Job):
        found.append(variable.get())

    async with worker_for(handle) as worker:
        for event in ("active", "completed"):
            worker.on(event, lambda *args: variable.set("a listener"))
        recorded = EventRecorder(worker)
        for number in range(3):
            await queue.add("n")
            await recorded.wait("completed", number + 1)
    assert found == [""] * 3
