"""Durable steps: `Job.run`, `sleep`, `wait_for_signal` with a timeout, `gather`, and what is stored of them."""

import asyncio
import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from glidemq_py import GlideMQError, GlideMQValidationError, Job, JobFailedError, JobState, Worker
from glidemq_py.errors import (
    SignalTimeout,
    StaleAttemptError,
    StepChangedError,
    StepError,
    StepLimitError,
    StepsRefusedError,
)
from glidemq_py.records import FindingKind, StepState
from tests.contract.api import Queue
from tests.contract.observe import Raw, SetClock
from tests.server.worker_support import EventRecorder, WorkerFor, with_timeout

DAYS = timedelta(days=1)
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@dataclass
class Charge:
    """A typed result."""

    id: str
    at: datetime


class Effects:
    """Functions of steps, and how often each was called."""

    def __init__(self):
        self.count: Counter[str] = Counter()
        self.keys: list[str] = []

    async def charge(self, customer: int) -> Charge:
        self.count["charge"] += 1
        return Charge(f"c{customer}", NOON)

    def plain(self, number: int) -> set[int]:
        self.count["plain"] += 1
        return {number}

    async def failing(self) -> None:
        self.count["failing"] += 1
        raise ValueError("out of money")

    async def failing_twice(self) -> str:
        self.count["failing_twice"] += 1
        if self.count["failing_twice"] <= 2:
            raise ValueError("not yet")
        return "done"


@pytest.fixture
def effects() -> Effects:
    return Effects()


async def test_a_result_is_stored_once_and_returned_by_later_runs(
    queue: Queue, worker_for: WorkerFor, effects: Effects
):  # fmt: skip
    seen: list[Any] = []

    async def handle(job: Job):
        charge = await job.run("charge", effects.charge, 7)
        numbers = await job.run("plain", functools.partial(effects.plain, number=3))
        seen.append((charge, numbers))
        if job.attempts_made < 2:
            raise RuntimeError("after the steps")
        return charge.id

    async with worker_for(handle):
        job = await queue.add("n", attempts=3)
        assert await job.wait_until_finished() == "c7"
    assert seen == 3 * [(Charge("c7", NOON), {3})]  # the first run has the types of the later ones
    assert effects.count == {"charge": 1, "plain": 1}
    charge, plain = await job.get_steps()
    assert (charge.name, charge.ordinal, charge.function, charge.state, charge.attempts) == (
        "charge", 1, "Effects.charge", StepState.DONE, 1
    )  # fmt: skip
    assert (plain.function, plain.result) == ("Effects.plain", "[3]")


async def test_steps_of_plain_handlers_run_in_their_thread(queue: Queue, worker_for: WorkerFor, effects: Effects):
    threads: list[tuple[int, int]] = []

    def note() -> int:
        threads.append((threading.get_ident(), here))
        return effects.plain(1).pop()

    here = 0

    def handle(job: Job):
        nonlocal here
        here = threading.get_ident()
        charge = job.blocking.run("charge", effects.charge, 1)
        number = job.blocking.run("note", note)
        job.blocking.run("timed", effects.plain, 2, timeout=10_000)
        key = job.blocking.idempotency_key("charge")
        effects.keys.append(key)
        job.blocking.sleep("a while", 30)
        if not job.attempts_made:
            raise RuntimeError("after the steps")
        return [charge.id, number]

    async with worker_for(handle):
        job = await queue.add("n", attempts=2)
        assert await job.wait_until_finished() == ["c1", 1]
    assert effects.count == {"charge": 1, "plain": 2}
    ((ran_in, handler_in),) = threads
    assert ran_in == handler_in
    assert len(set(effects.keys)) == 1


async def test_a_failing_step_has_attempts_of_its_own(queue: Queue, worker_for: WorkerFor, effects: Effects):
    async def handle(job: Job):
        return await job.run("s", effects.failing_twice, attempts=3, backoff=5)

    async with worker_for(handle):
        job = await queue.add("n", attempts=1)
        assert await job.wait_until_finished() == "done"
    assert effects.count == {"failing_twice": 3}
    (step,) = await job.get_steps()
    assert (step.attempts, step.state) == (3, StepState.DONE)


async def test_a_failed_step_fails_the_job_unless_it_is_caught(
    queue: Queue, worker_for: WorkerFor, effects: Effects
):  # fmt: skip
    causes: list[type[Any]] = []

    async def handle(job: Job):
        try:
            return await job.run("s", effects.failing, attempts=2)
        except StepError as error:
            if job.data != "caught":
                raise
            causes.append(type(error.__cause__))
            if not job.attempts_made:
                raise RuntimeError("again") from None
            return str(error)

    async with worker_for(handle):
        job = await queue.add("n", attempts=5)
        with pytest.raises(
            JobFailedError, match="step 's' failed after 2 attempts: ValueError: out of money"
        ) as failed:
            await job.wait_until_finished()
        assert failed.value.failed_type == "StepError"
        assert effects.count.pop("failing") == 2
        caught = await queue.add("n", "caught", attempts=2)
        assert await caught.wait_until_finished() == "step 's' failed after 2 attempts: ValueError: out of money"
        assert effects.count.pop("failing") == 2
        assert causes == [ValueError, type(None)]  # the second run raises the stored error
        (step,) = await caught.get_steps()
        assert step.state is StepState.FAILED
        assert "out of money" in (step.traceback or "")


async def test_retry_clears_failed_steps_and_requeue_all(queue: Queue, worker_for: WorkerFor, effects: Effects):
    async def handle(job: Job):
        effects.keys.append(job.idempotency_key("charge"))
        await job.run("charge", effects.charge, 1)
        return await job.run("s", effects.failing_twice)

    async with worker_for(handle):
        job = await queue.add("n")
        for calls in (1, 2):
            with pytest.raises(JobFailedError):
                await job.wait_until_finished()
            assert effects.count == {"charge": 1, "failing_twice": calls}
            await (job.retry() if calls == 1 else queue.retry_jobs())
        assert await job.wait_until_finished() == "done"
        assert effects.count == {"charge": 1, "failing_twice": 3}
        await job.requeue()
        assert await job.wait_until_finished() == "done"
        assert effects.count == {"charge": 2, "failing_twice": 4}
    assert len(effects.keys) == 4
    assert len(set(effects.keys)) == 2  # a retry keeps the key, as what has failed may have had its effect


async def test_a_long_pause_of_a_step_holds_no_slot(
    clock: SetClock, queue: Queue, worker_for: WorkerFor, effects: Effects
):  # fmt: skip
    async def handle(job: Job):
        return await job.run(
            "s", effects.failing_twice, attempts=4, backoff={"type": "exponential", "delay": 3_600_000}
        )

    now = 1_800_000_000_000
    clock.set(now)
    job = await queue.add("n")
    for calls, hours in ((1, 1), (2, 2)):
        async with worker_for(handle) as worker:
            recorded = EventRecorder(worker)
            await recorded.wait("delayed")
        assert await job.get_state() is JobState.DELAYED
        assert effects.count["failing_twice"] == calls
        clock.advance(hours * 3_600_000)
    async with worker_for(handle):
        assert await job.wait_until_finished() == "done"
    await job.reload()
    assert job.attempts_made == 0


async def test_sleep_is_stored_once_and_survives_days(clock: SetClock, queue: Queue, worker_for: WorkerFor):
    runs = 0

    async def handle(job: Job):
        nonlocal runs
        runs += 1
        await job.sleep("cooling off", 3 * DAYS)
        await job.sleep("cooling off", DAYS)
        return "cold"

    clock.set(1_800_000_000_000)
    job = await queue.add("n", ttl=60_000)
    for days, runs_then in ((2, 1), (1, 2), (1, 3)):
        async with worker_for(handle) as worker:
            recorded = EventRecorder(worker)
            if runs_then == 2:
                await job.promote()  # a sleep ends at its time all the same
            await recorded.wait("delayed")
            assert runs == runs_then
        assert await job.get_state() is JobState.DELAYED
        clock.advance(days * 86_400_000)
    async with worker_for(handle):
        assert await job.wait_until_finished() == "cold"
    assert [(step.name, step.ordinal, step.state) for step in await job.get_steps()] == [
        ("cooling off", 1, StepState.SLEEPING), ("cooling off", 2, StepState.SLEEPING),
    ]  # fmt: skip


async def waiting(job: Job):
    """Wait for a decision and then for a second one."""
    try:
        first: Any = (await job.wait_for_signal("go", timeout=2 * DAYS)).data
    except SignalTimeout as error:
        first = str(error)
    await job.sleep("between", DAYS)
    second = (await job.wait_for_signal("go")).data
    return [first, second, job.attempts_made]


def plain_waiting(job: Job):
    try:
        first: Any = job.blocking.wait_for_signal("go", timeout=2 * DAYS).data
    except SignalTimeout as error:
        first = str(error)
    job.blocking.sleep("between", DAYS)
    second = job.blocking.wait_for_signal("go").data
    return [first, second, job.attempts_made]


@pytest.mark.parametrize("handler", [waiting, plain_waiting])
@pytest.mark.parametrize("options", [{}, {"lifo": True}, {"priority": 2}, {"ordering": "k"}, {"rank": 5}])
async def test_a_signal_wakes_the_job_that_waits_for_it(
    clock: SetClock, queue: Queue, worker_for: WorkerFor, handler: Callable[..., Any], options: Any
):
    clock.set(1_800_000_000_000)
    job = await queue.add("n", **options)
    async with worker_for(handler) as worker:
        recorded = EventRecorder(worker)
        await recorded.wait("suspended")
        assert await job.get_state() is JobState.DELAYED
        info = await queue.jobs.get_suspend_info(job.id)
        assert info is not None
        assert (info.reason, info.timeout) == ("signal go", 2 * 86_400_000)
        assert (await queue.check()).ok
        assert await queue.signal(job.id, "other")
        assert await job.get_state() is JobState.DELAYED
        assert await queue.signal(job.id, "go", 1)
        await recorded.wait("delayed")
        assert await queue.jobs.get_suspend_info(job.id) is None
    clock.advance(86_400_000)
    async with worker_for(handler) as worker:
        recorded = EventRecorder(worker)
        await recorded.wait("suspended")
        assert await queue.signal(job.id, "go", 2)
        assert await job.wait_until_finished() == [1, 2, 0]


@pytest.mark.parametrize("handler", [waiting, plain_waiting])
async def test_a_wait_that_has_expired_stays_expired(
    clock: SetClock, queue: Queue, worker_for: WorkerFor, handler: Callable[..., Any]
):
    clock.set(1_800_000_000_000)
    job = await queue.add("n", timeout=60_000)
    async with worker_for(handler) as worker:
        await EventRecorder(worker).wait("suspended")
    clock.advance(2 * 86_400_000)
    async with worker_for(handler) as worker:
        await EventRecorder(worker).wait("delayed")
        assert [step.state for step in await job.get_steps()] == [StepState.EXPIRED, StepState.SLEEPING]
        assert await queue.signal(job.id, "go", "late")
    clock.advance(86_400_000)
    async with worker_for(handler):
        assert await job.wait_until_finished() == ["signal 'go' has not come within 172800000 ms", "late", 0]


async def test_an_early_signal_needs_no_wait(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        if not sent.is_set():
            await queue.signal(job.id, "go", 1)
            sent.set()
        return (await job.wait_for_signal("go", timeout=DAYS)).data

    sent = asyncio.Event()
    async with worker_for(handle):
        job = await queue.add("n")
        assert await job.wait_until_finished() == 1
    assert await job.get_steps() == []


@pytest.fixture
def tasks(url: Any, queue_name: str):
    """Return a worker with a task that gathers others, and those, of two queues."""
    worker = Worker(queue_name, connection=url, concurrency=5)
    other = Worker(f"{queue_name}-other", connection=url)

    @worker.task
    async def square(n: int) -> Charge:
        if n == 13:
            raise ValueError("unlucky")
        return Charge(str(n * n), NOON)

    @other.task
    def text(n: int) -> str:
        return f"text {n}"

    @worker.task(attempts=3)
    async def parent(job: Job, /, numbers: list[int]) -> list[str]:
        squares = await job.gather([square.call(n) for n in numbers])
        assert all(isinstance(each, Charge) for each in squares)
        texts = await job.gather([text.call(n) for n in numbers], name="texts")
        if not job.attempts_made and job.data.get("fails"):
            raise RuntimeError("again")
        return [each.id for each in squares] + texts

    return worker, other, parent, square


async def test_gather_runs_tasks_of_several_queues_as_children(tasks: Any, queue: Queue):
    worker, other, parent, _ = tasks
    async with worker, other:
        job = await parent.add([1, 2, 3])
        assert await job.wait_until_finished() == ["1", "4", "9", "text 1", "text 2", "text 3"]
        empty = await parent.add([])
        assert await empty.wait_until_finished() == []
        failed = await parent.add([2, 13])
        with pytest.raises(JobFailedError, match="unlucky"):
            await failed.wait_until_finished()
        await job.requeue()
        assert await job.wait_until_finished() == ["1", "4", "9", "text 1", "text 2", "text 3"]
        assert (await queue.get_job_counts()).completed == 2 + 3 + 3 + 1  # a requeue runs other children
    steps = [(step.name, step.children) for step in await (await queue.get_job(job.id)).get_steps()]  # type: ignore[union-attr]
    assert steps == [("gather", 3), ("texts", 3)]


async def test_children_belong_to_one_life_of_one_parent(url: Any, queue: Queue, queue_name: str):
    """Parents with one id, in two queues or one after the other, and after a requeue, have children of their own."""
    worker, again = Worker(queue_name, connection=url, concurrency=5), Worker(f"{queue_name}-2", connection=url)

    @worker.task
    async def child(of: str) -> str:
        return f"child of {of}"

    async def parent(job: Job, /, of: str) -> list[str]:
        return await job.gather([child.call(of)])

    worker.task(parent)
    again.task(parent)
    async with worker, again, Queue(f"{queue_name}-2", url) as other:
        for each in (queue, other):
            job = await each.add("parent", {"of": each.name}, job_id="mine")
            assert await job.wait_until_finished() == [f"child of {each.name}"]
        await job.remove()
        job = await other.add("parent", {"of": "the second"}, job_id="mine")
        assert await job.wait_until_finished() == ["child of the second"]
        await job.requeue()
        assert await job.wait_until_finished() == ["child of the second"]
    assert (await queue.get_job_counts()).completed == 1 + 4


async def test_a_child_without_a_result_fails_its_parent(queue: Queue, tasks: Any):
    worker, other, parent, _ = tasks
    async with worker, other:
        job = await parent.add([1, 13])
        for _ in range(2):
            with pytest.raises(JobFailedError, match="unlucky"):
                await job.wait_until_finished()
            await job.retry()
        with pytest.raises(JobFailedError, match="unlucky"):
            await job.wait_until_finished()


async def test_a_caught_signal_ends_the_attempt_nevertheless(
    queue: Queue, worker_for: WorkerFor, effects: Effects, caplog: pytest.LogCaptureFixture
):
    async def handle(job: Job):
        try:
            await job.sleep("cooling off", 30)
        except Exception:
            effects.count["caught"] += 1
        if job.data == "goes on":
            await job.run("charge", effects.charge, 1)
        return "shipped"

    async def in_group(job: Job):
        async with asyncio.TaskGroup():
            await job.sleep("cooling off", 30)
        return "shipped"

    async with worker_for(handle):
        for data in ("goes on", "returns"):
            job = await queue.add("n", data)
            assert await job.wait_until_finished() == "shipped"
            assert (await job.get_steps())[0].state is StepState.SLEEPING
    assert effects.count == {"caught": 2, "charge": 1}
    assert "caught DelayedError" in caplog.text
    async with worker_for(in_group):
        assert await (await queue.add("n")).wait_until_finished() == "shipped"


async def test_steps_end_with_their_attempt(queue: Queue, worker_for: WorkerFor, effects: Effects):
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def endless() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def handle(job: Job):
        await asyncio.gather(job.run("endless", endless), job.run("s", effects.failing))

    def plain(job: Job):
        job.cancelled.wait()
        job.blocking.run("charge", effects.charge, 1)

    async with worker_for(handle):
        with pytest.raises(JobFailedError):
            await (await queue.add("n")).wait_until_finished()
        await with_timeout(asyncio.gather(began.wait(), cancelled.wait()))
    async with worker_for(plain):
        with pytest.raises(JobFailedError):
            await (await queue.add("n", timeout=20)).wait_until_finished()
    assert effects.count == {"failing": 1}


@pytest.mark.exclude("partitioned", reason="the id of a child and its ordering key would choose different partitions")
async def test_what_gather_rejects(queue: Queue, worker_for: WorkerFor, tasks: Any):
    *_, square = tasks
    found: list[str] = []

    async def handle(job: Job):
        for calls in ([square.options(ordering="k").call(1)], [1]):
            try:
                await job.gather(calls)  # type: ignore[arg-type]
            except GlideMQValidationError as error:
                found.append(str(error))
        return found

    async with worker_for(handle):
        job = await queue.add("n", ordering="k")
        ordering, kind = await job.wait_until_finished()
    assert "option 'parent' = '1': a job with its ordering key waits for it, so it would never run" in ordering
    assert "option 'calls[0]' = 1: must be made by the method `call` of a task" in kind


async def test_steps_run_at_the_same_time(queue: Queue, worker_for: WorkerFor):
    both = asyncio.Barrier(2)

    async def meet(number: int) -> int:
        await both.wait()
        return number

    async def handle(job: Job):
        found = await asyncio.gather(job.run("a", meet, 1), job.run("b", meet, 2))
        if not job.attempts_made:
            raise RuntimeError("again")
        return found

    async with worker_for(handle):
        job = await queue.add("n", attempts=2)
        assert await job.wait_until_finished() == [1, 2]
    assert {step.name for step in await job.get_steps()} == {"a", "b"}


async def test_steps_that_are_stored_together_fail_alone(queue: Queue, worker_for: WorkerFor, raw: Raw):
    jobs, count = asyncio.Barrier(40), Counter[str]()

    async def number_of(job: Job) -> int:
        await jobs.wait()
        if job.data in (7, 30):  # two of them belong to another attempt now
            raw.run("HINCRBY", f"job:{job.id}", "fence", 1)
        return job.data

    async def handle(job: Job):
        try:
            for name in ("first", "second"):
                assert await job.run(name, number_of, job) == job.data
                count[name] += 1
        except StaleAttemptError:
            count["stale"] += 1
            await jobs.wait()
            raise

    async with worker_for(handle, concurrency=40):
        added = await queue.add_bulk([("n", number) for number in range(40)])
        lives = [job for job in added if job.data not in (7, 30)]
        await asyncio.gather(*(job.wait_until_finished() for job in lives))
        await asyncio.gather(*(job.remove() for job in added if job not in lives))
    assert count == {"first": 38, "second": 38, "stale": 2}
    for job in lives:
        assert [(step.name, step.value()) for step in await job.get_steps()] == [
            ("first", job.data),
            ("second", job.data),
        ]


async def test_only_the_handler_ends_its_attempt(queue: Queue, worker_for: WorkerFor):
    found: list[str] = []

    async def end(job: Job) -> None:
        try:
            await job.sleep("s", 1_000)
        except GlideMQError as error:
            found.append(str(error))

    async def handle(job: Job):
        await asyncio.create_task(end(job))
        await job.run("step", end, job)

    async with worker_for(handle):
        await (await queue.add("n")).wait_until_finished()
    assert [text.partition(": ")[2] for text in found] == [
        "call it in the handler's own task, not in one that it has started",
        "call it in the handler, not in the function of a step",
    ]


async def test_a_step_with_another_function_is_rejected(queue: Queue, worker_for: WorkerFor, effects: Effects):
    async def handle(job: Job):
        if job.attempts_made:
            await job.run("s", effects.failing)
        await job.run("s", effects.charge, 1)
        raise RuntimeError("again")

    async with worker_for(handle):
        job = await queue.add("n", attempts=2)
        with pytest.raises(JobFailedError, match=r"stored by Effects.charge, not by Effects.failing") as failed:
            await job.wait_until_finished()
    assert failed.value.failed_type == StepChangedError.__name__


async def test_a_step_that_is_not_asked_for_any_more_is_logged_once(
    queue: Queue, worker_for: WorkerFor, effects: Effects, caplog: pytest.LogCaptureFixture
):
    async def handle(job: Job):
        await job.run("other", effects.plain, 1)
        if not job.attempts_made:
            await job.run(f"old of {queue.name}", effects.plain, 1)
            raise RuntimeError("again")

    async with worker_for(handle):
        for _ in range(2):
            await (await queue.add("n", attempts=2)).wait_until_finished()
    logged = [each for each in caplog.records if "no longer runs the stored step" in each.getMessage()]
    assert len(logged) == 1
    assert f"step 'old of {queue.name}'" in logged[0].getMessage()
    assert logged[0].levelno == logging.WARNING


async def test_invalid_arguments(queue: Queue, worker_for: WorkerFor, effects: Effects):
    found: list[str] = []

    async def handle(job: Job):
        async def unserializable() -> Any:
            return object()

        fast: Any = "fast"

        def local() -> "Missing":  # type: ignore[name-defined]  # noqa: F821
            return 1

        calls: list[Callable[[], Any]] = [
            lambda: job.run("", effects.failing), lambda: job.run("x" * 257, effects.failing),
            lambda: job.run("s", 5),  # type: ignore[call-overload]
            lambda: job.run("s", effects.failing, attempts=0), lambda: job.run("s", effects.failing, backoff=-1),
            lambda: job.run("s", effects.failing, backoff=fast), lambda: job.run("s", effects.failing, timeout=0),
            lambda: job.run("s", effects.failing, backoff={"type": "own", "delay": 1}), lambda: job.run("s", local),
            lambda: job.sleep("s", 0), lambda: job.wait_for_signal("s", timeout=0),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(GlideMQValidationError) as raised:
                await call()
            found.append(raised.value.option)
        assert await job.get_steps() == []
        with pytest.raises(StepError, match="SerializationError: option 'result of step s'"):
            await job.run("s", unserializable, attempts=5)

    async with worker_for(handle):
        await (await queue.add("n")).wait_until_finished()
    assert found == [
        "name", "name", "function", "attempts", "backoff", "backoff", "timeout", "backoff", "function", "duration",
        "timeout",
    ]  # fmt: skip
    assert effects.count == {}


async def test_a_step_has_a_timeout(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        await job.run("slow", asyncio.Event().wait, timeout=10, attempts=2)

    async with worker_for(handle):
        job = await queue.add("n")
        with pytest.raises(
            JobFailedError, match="step 'slow' failed after 2 attempts: TimeoutError: no result within 10"
        ):
            await job.wait_until_finished()


async def test_limits(queue: Queue, worker_for: WorkerFor):
    def large() -> str:
        return "x" * 600_000

    async def handle(job: Job):
        for number in range(3):
            await job.run(f"large {number}", large)

    async def many(job: Job):
        for _ in range(1_001):
            await job.run("one", int)

    for handler, steps in ((handle, 2), (many, 1_000)):
        async with worker_for(handler):
            job = await queue.add("n")
            with pytest.raises(JobFailedError, match=r"was not run: the job has") as failed:
                await job.wait_until_finished()
            assert failed.value.failed_type == StepLimitError.__name__
            assert len(await job.get_steps()) == steps


async def test_a_stale_attempt_stores_nothing(queue: Queue, worker_for: WorkerFor, raw: Raw, effects: Effects):
    raised: list[type[BaseException]] = []

    async def handle(job: Job):
        raw.run("HINCRBY", f"job:{job.id}", "fence", 1)
        try:
            await job.run("charge", effects.charge, 1)
        except StaleAttemptError as error:
            raised.append(type(error))
            raise
        finally:
            ended.set()

    ended = asyncio.Event()
    worker = worker_for(handle)
    async with worker:
        job = await queue.add("n")
        await with_timeout(ended.wait())
    assert raised == [StaleAttemptError]
    assert await job.get_steps() == []
    await job.remove()


@pytest.mark.exclude("partitioned", reason="the peer is registered with one part")
async def test_no_first_step_while_a_node_worker_is_registered(
    queue: Queue, worker_for: WorkerFor, raw: Raw, effects: Effects, caplog: pytest.LogCaptureFixture
):
    async def handle(job: Job):
        return job.data or (await job.run("charge", effects.charge, 1)).id

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        await (await queue.add("first", "none")).wait_until_finished()
        raw.resp.execute("XGROUP", "CREATECONSUMER", raw.key("stream"), "workers", "worker-1-a")
        raw.run("SET", "w:worker-1-a", "{}")
        job = await queue.add("n")
        await recorded.wait("delayed")
        assert isinstance(recorded.of("delayed")[0][1], StepsRefusedError)
        assert await job.get_state() is JobState.DELAYED
    assert effects.count == {}
    assert "a worker of glide-mq for Node is registered" in caplog.text
    assert (await queue.check()).findings == ()  # no job has steps
    raw.run("DEL", "w:worker-1-a")
    await job.promote()
    async with worker_for(handle):
        assert await job.wait_until_finished() == "c1"
    await job.reload()
    assert job.attempts_made == 0
    raw.run("SET", "w:worker-1-a", "{}")
    (finding,) = (await queue.check(repair=True, recheck_after=0)).findings
    assert (finding.kind, finding.repaired) == (FindingKind.NODE_WORKER, False)
    assert "would run them from their start" in str(finding)
    raw.run("DEL", "w:worker-1-a")


async def test_steps_of_batches_and_leases(url: Any, queue: Queue, effects: Effects, worker_for: WorkerFor):
    refused: list[str] = []

    async def handle(jobs: list[Job]):
        charges = [await job.run("charge", effects.charge, 1) for job in jobs]
        with pytest.raises(GlideMQError, match="not supported in batch handlers and for leases") as raised:
            await jobs[0].sleep("s", 1_000)
        refused.append(str(raised.value))
        return [charge.id for charge in charges]

    async with worker_for(handle, batch={"size": 5}):
        job = await queue.add("n")
        assert await job.wait_until_finished() == "c1"
    assert len(refused) == 1
    job = await queue.add("n")
    for number in range(2):
        (lease,) = await queue.fetch()
        assert await lease.job.run("charge", effects.charge, 2) == Charge("c2", NOON)
        assert await lease.job.run("plain", effects.plain, 2) == {2}
        await (lease.complete("c2") if number else lease.release())
    assert await job.wait_until_finished() == "c2"
    assert effects.count == {"charge": 2, "plain": 1}
