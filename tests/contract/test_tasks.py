"""Tasks on a real server: routing by name, typed arguments and results, and jobs that no worker here can run."""

import asyncio
import base64
import json
import pickle
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest

from glidemq_py import (
    ClosedError,
    DagNode,
    FlowJob,
    FlowProducer,
    GlideMQError,
    GlideMQValidationError,
    Job,
    JobFailedError,
    JobOptions,
    SerializationError,
    WaitTimeoutError,
    Worker,
    chain,
    chord,
    current_job,
)
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, WorkerFor, with_timeout
from tests.test_examples import EXAMPLES, assert_in_order, run


@dataclass
class Image:
    path: str
    made: datetime


class Receipt(pydantic.BaseModel):
    number: int
    to: str


MADE = datetime(2025, 1, 2, tzinfo=UTC)


@pytest.fixture
async def worker(url: Any, queue_name: str) -> AsyncIterator[Worker]:
    """Not started."""
    worker = Worker(queue_name, connection=url, concurrency=10)
    yield worker
    await worker.close()


async def test_async_and_plain_functions_side_by_side(worker: Worker) -> None:
    here = threading.get_ident()

    @worker.task("welcome")
    async def welcome(to: str, times: int = 1) -> Receipt:
        assert threading.get_ident() == here
        return Receipt(number=times, to=to)

    @worker.task
    def older(job: Job, /, image: Image) -> Image:
        assert threading.get_ident() != here
        running = current_job()
        assert running is not None
        assert running.id == job.id
        return Image(image.path + job.id, image.made.replace(year=2000))

    async with worker:
        assert await welcome.add_and_wait("ada", times=2) == Receipt(number=2, to="ada")
        job = await older.options(job_id="x").add(Image("a", MADE))
        assert job.data == {"image": Image("a", MADE)}
        assert await job.wait_until_finished() == Image("ax", datetime(2000, 1, 2, tzinfo=UTC))


async def test_jobs_of_other_producers(worker: Worker) -> None:
    @worker.task
    async def total(numbers: tuple[float, ...], title: str = "total") -> str:
        return f"{title}: {sum(numbers)}"

    async with worker:
        assert await worker.queue.add_and_wait("total", {"numbers": [1, 2]}) == "total: 3.0"


async def test_results_that_json_lacks(worker: Worker) -> None:
    @worker.task
    async def digest(text: bytes) -> bytes:
        return text[::-1]

    @worker.task
    def letters(text: str) -> set[str]:
        return set(text)

    async with worker:
        assert await digest.add_and_wait(b"\x00\xff") == b"\xff\x00"
        assert await letters.add_and_wait("abba") == {"a", "b"}


async def test_bulk(worker: Worker) -> None:
    @worker.task
    async def double(n: int) -> int:
        return 2 * n

    @worker.task
    async def negate(n: int) -> int:
        return -n

    async with worker:
        jobs = await double.add_bulk(double.call(n) for n in range(20))
        assert [await job.wait_until_finished() for job in jobs] == [2 * n for n in range(20)]
        mixed = await worker.queue.add_bulk([double.call(1), negate.call(1), ("negate", {"n": 2})])
        assert [await job.wait_until_finished() for job in mixed] == [2, -1, -2]


async def test_tasks_from_blocking_code(worker: Worker, raw: Raw) -> None:
    @worker.task(attempts=3, backoff=10)
    async def double(n: int) -> int:
        return 2 * n

    def add() -> tuple[str, list[int | None]]:
        task = double.blocking
        assert task.name == "double"
        with pytest.raises(TypeError, match="missing a required argument: 'n'"):
            task.add()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        added = task.options(priority=2).add(4)
        jobs = task.add_bulk(task.call(n) for n in (1, 2))
        assert task.options(wait_timeout=20_000).add_and_wait(3) == 6
        return added.id, [job.wait_until_finished() for job in jobs]

    async with worker:
        job_id, results = await asyncio.to_thread(add)
    assert results == [2, 4]
    stored = json.loads(raw.job(job_id)["opts"])
    assert stored == {"priority": 2, "attempts": 3, "backoff": {"type": "fixed", "delay": 10}}
    with pytest.raises(ClosedError):
        await asyncio.to_thread(double.blocking.add, 5)


async def test_options_shared_by_tasks(queue: Queue, queue_name: str, url: Any, raw: Raw) -> None:
    shared = JobOptions(attempts=4, priority=2)
    worker = Worker(queue_name, connection=url)

    @worker.task(**shared)
    async def one() -> None: ...

    async with worker.queue:
        jobs = [await one.add(), await queue.add("n", **shared), *await queue.add_bulk([("n", 1, shared)])]
    assert [json.loads(raw.job(job.id)["opts"]) for job in jobs] == [{"priority": 2, "attempts": 4}] * 3


async def test_a_call_belongs_to_its_task(worker: Worker) -> None:
    @worker.task
    async def one() -> None: ...

    with pytest.raises(GlideMQValidationError, match=r"calls\[0\].*must be a call of task 'one'"):
        await one.add_bulk([worker.task("two")(one).call()])
    with pytest.raises(AttributeError, match=r"no attribute 'spec'; use task\.call"):
        _ = one.spec  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


class Counted:
    """A worker with tasks of which flows are made."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

        @worker.task(attempts=2)
        async def count(text: str) -> int:
            return len(text.split())

        @worker.task
        async def day(number: int) -> datetime:
            return MADE.replace(day=number)

        @worker.task(attempts=3)
        async def report(job: Job, /, to: str) -> Receipt:
            days = await job.get_children_results(day)
            assert all(type(each) is datetime for each in days)
            return Receipt(number=sum(await job.get_children_results(count)), to=f"{to} {[each.day for each in days]}")

        self.count, self.day, self.report = count, day, report


async def test_flow_of_calls(worker: Worker, url: Any, raw: Raw) -> None:
    tasks = Counted(worker)
    tree = FlowJob(
        tasks.report.call("ada"),
        children=[
            tasks.count.call("to be"),
            FlowJob(tasks.day.options(priority=3).call(7)),
            tasks.count.call(text="or"),
        ],
    )
    async with worker, FlowProducer(url) as flows:
        node = await flows.add(tree)
        assert await node.job.wait_until_finished() == Receipt(number=3, to="ada [7]")
        assert await node.children[1].job.wait_until_finished() == MADE.replace(day=7)
        lone = (await flows.add_bulk([tasks.count.call("a b c")]))[0]
        assert await lone.job.wait_until_finished() == 3
    stored = [json.loads(raw.job(each.job.id)["opts"]) for each in (node, *node.children)]
    assert stored == [{"attempts": 3}, {"attempts": 2}, {"priority": 3}, {"attempts": 2}]


async def test_results_of_children_in_several_queues(worker: Worker, url: Any, queue_name: str) -> None:
    other = f"{queue_name}-other"
    several = Worker({queue_name: 1, other: 1}, connection=url)

    @several.task
    async def count(text: str) -> int:
        return len(text.split())

    @several.task
    async def total(job: Job, /) -> list[int]:
        return await job.get_children_results(count)

    children = [FlowJob("count", name, {"text": text}) for name, text in ((queue_name, "a b"), (other, "c"))]
    async with several, FlowProducer(url) as flows:
        node = await flows.add(FlowJob("total", queue_name, children=children))
        assert sorted(await node.job.wait_until_finished()) == [1, 2]


async def test_graph_of_calls(worker: Worker, url: Any) -> None:
    tasks = Counted(worker)
    first, second = DagNode(tasks.count.call("a b"), node="first"), DagNode(tasks.count.call("c"), node="second")
    last = DagNode(tasks.report.call("ada"), deps=[first, "second"])
    async with worker, FlowProducer(url) as flows:
        jobs = await flows.add_dag([last, second, first])
        assert set(jobs) == {"first", "second", "report"}
        assert await jobs["report"].wait_until_finished() == Receipt(number=3, to="ada []")
        assert await jobs["first"].wait_until_finished() == 2
        with pytest.raises(
            GlideMQValidationError, match="'count': is the name of two nodes; give one another by node="
        ):
            await flows.add_dag([DagNode(tasks.count.call("a")), DagNode(tasks.count.call("b"))])


async def test_shapes_of_calls_use_the_connection_of_the_tasks(worker: Worker) -> None:
    tasks = Counted(worker)
    async with worker:
        node = await chord(None, [tasks.count.call("a b"), tasks.day.call(3)], tasks.report.call("ada"))
        found = await worker.queue.get_job(node.job.id)
        assert found is not None
        assert await found.wait_until_finished() == {"number": 2, "to": "ada [3]"}
        node = await chain(None, [tasks.report.call("bob"), tasks.count.call("a")])
        found = await worker.queue.get_job(node.job.id)
        assert found is not None
        assert await found.wait_until_finished() == {"number": 1, "to": "bob []"}
        with pytest.raises(GlideMQValidationError, match=r"jobs\[1\].queue"):
            await chain(None, [tasks.count.call("a"), ("b",)])


async def test_calls_that_a_flow_rejects(worker: Worker, url: Any) -> None:
    tasks = Counted(worker)
    call = tasks.count.call("a")
    with pytest.raises(TypeError, match="takes name, queue, data and options from the call"):
        FlowJob(call, "other")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(GlideMQValidationError, match="deduplication"):
        FlowJob(tasks.count.options(deduplication={"id": "x"}).call("a"))
    async with FlowProducer(url, prefix="other") as flows:
        with pytest.raises(GlideMQValidationError, match=r"flow\.children\[0\].*another prefix or serializer"):
            await flows.add(FlowJob("a", "b", children=[call]))


async def test_results_of_deleted_children_have_no_task(worker: Worker, url: Any) -> None:
    tasks = Counted(worker)
    async with worker, FlowProducer(url) as flows:
        child = tasks.count.options(remove_on_complete=True).call("a")
        node = await flows.add(FlowJob(tasks.report.options(attempts=1).call("ada"), children=[child]))
        with pytest.raises(JobFailedError, match="was deleted, so its task is unknown: keep it until its parent ran"):
            await node.job.wait_until_finished()


async def test_batch_of_calls(worker: Worker) -> None:
    tasks = Counted(worker)
    ended = EventRecorder(worker)
    async with worker:
        async with await worker.queue.job_batches.create(on_success=tasks.count.call("a b")) as batch:
            await batch.add_bulk([tasks.day.call(2), tasks.day.call(3)])
        await ended.wait("completed", 3)
        jobs = [each async for each in worker.queue.iter_jobs("completed")]
    assert sorted(job.name for job in jobs) == ["count", "day", "day"]


async def test_schedule_of_a_call(worker: Worker, url: Any, queue_name: str) -> None:
    tasks = Counted(worker)
    made = await worker.queue.schedulers.upsert("often", every=60_000, template=tasks.count.call("a b"))
    assert (made.job_name, made.data, made.options) == ("count", {"text": "a b"}, JobOptions(attempts=2))
    async with Queue(f"{queue_name}-other", url) as other:
        rejected = f"adds to queue '{queue_name}', not to '{queue_name}-other'"
        with pytest.raises(GlideMQValidationError, match=f"'template'.*{rejected}"):
            await other.schedulers.upsert("often", every=60_000, template=tasks.count.call("a b"))
        with pytest.raises(GlideMQValidationError, match=rf"'jobs\[1\]'.*{rejected}"):
            await other.add_bulk([("a",), tasks.count.call("a b")])
        with pytest.raises(GlideMQValidationError, match=f"'on_success'.*{rejected}"):
            await other.job_batches.create(on_success=tasks.count.call("a b"))
        tasks = Counted(Worker([queue_name, other.name], connection=url))
        (job,) = await other.add_bulk([tasks.count.call("a b")])
        await job.remove()
        with pytest.raises(GlideMQError, match="has several queues: add jobs through a Queue with the name of one"):
            await FlowProducer(url).add(tasks.count.call("a b"))


async def test_a_handler_takes_the_other_names(worker_for: WorkerFor, url: Any, queue_name: str) -> None:
    async def rest(job: Job) -> str:
        return f"rest: {job.name}"

    worker = worker_for(rest, concurrency=2)

    @worker.task
    def known() -> str:
        return "known"

    async with worker, Queue(queue_name, url) as queue:
        assert await queue.add_and_wait("known") == "known"
        assert await queue.add_and_wait("unknown") == "rest: unknown"


async def test_unknown_task_name_fails(worker: Worker) -> None:
    @worker.task
    async def known() -> None: ...

    async with worker:
        with pytest.raises(JobFailedError, match="this worker has no handler for jobs named 'new'") as caught:
            await worker.queue.add_and_wait("new")
        assert caught.value.failed_type == "HandlerError"
        # Its slot is free again, and the worker lives on.
        await known.add_and_wait()
        assert worker.active_count == 0


async def test_later_attempt_runs_on_a_worker_with_the_task(
    worker: Worker, url: Any, queue: Queue, queue_name: str
) -> None:
    @worker.task
    async def old() -> None: ...

    recorded = EventRecorder(worker)
    async with worker:
        job = await queue.add("new", attempts=2, backoff=50)
        await recorded.wait("retrying")

    newer = Worker(queue_name, connection=url)

    @newer.task
    async def new(job: Job, /) -> int:
        return job.attempts_made

    async with newer:
        assert await job.wait_until_finished() == 1


async def test_data_that_does_not_fit_is_not_retried(worker: Worker) -> None:
    ran = False

    @worker.task
    async def welcome(to: str) -> None:
        nonlocal ran
        ran = True

    async with worker:
        with pytest.raises(JobFailedError, match="task 'welcome': to = 5: Expected `str`, got `int`") as caught:
            await worker.queue.add_and_wait("welcome", {"to": 5}, attempts=5)
        failed = await worker.queue.get_job(caught.value.job_id)
    assert failed is not None
    assert (failed.attempts_made, failed.failed_type, ran) == (1, "JobDataError", False)


async def test_result_of_another_type_than_annotated(worker: Worker) -> None:
    @worker.task
    async def liar() -> int:
        return "five"  # type: ignore[return-value]

    async with worker:
        with pytest.raises(SerializationError, match="'result of task liar' = 'five': Expected `int`, got `str`"):
            await liar.add_and_wait()


async def test_producers_need_no_running_worker(worker: Worker) -> None:
    @worker.task
    async def later(n: int) -> int:
        return n

    with pytest.raises(WaitTimeoutError):
        await later.options(wait_timeout=10).add_and_wait(1)
    async with worker.queue as queue:
        await later.add(2)
        assert (await queue.get_job_counts()).waiting == 2
    # Closed by its user, and created again when needed.
    assert worker.queue is not queue
    await later.add(3)
    await worker.close()
    with pytest.raises(ClosedError):
        await later.add(4)


async def test_tasks_come_before_the_start(worker: Worker) -> None:
    with pytest.raises(GlideMQValidationError, match="neither a handler nor tasks"):
        await worker.start()

    @worker.task
    async def first() -> None: ...

    async with worker:
        with pytest.raises(GlideMQError, match="'second' must be registered before the worker starts"):
            worker.task("second")(first)


class Pickled:
    """A serializer whose values come back as they were."""

    def serialize(self, value: Any, /) -> str:
        return base64.b64encode(pickle.dumps(value)).decode()

    def deserialize(self, text: str, /) -> Any:
        return pickle.loads(base64.b64decode(text))


async def test_with_a_serializer_that_keeps_types(url: Any, queue_name: str) -> None:
    worker = Worker(queue_name, connection=url, serializer=Pickled())

    @worker.task
    def same(image: Image, number: complex, names: set[str]) -> Any:
        return image, number, names

    async with worker:
        given = (Image("a", MADE), 1j, {"x"})
        assert await same.add_and_wait(*given) == given


@pytest.mark.slow
def test_the_example() -> None:
    output = run(EXAMPLES / "typed_tasks.py")
    assert_in_order(
        output,
        [
            r"called: Receipt\(to='ada@example\.org', sent=1, at=datetime\.datetime\(",
            r"sent: Receipt\(to='bob@example\.org', sent=2, at=datetime\.datetime\(",
            r"thumbnails: \['cat-80\.png', 'dog-80\.png'\]",
            r"refused: task 'welcome': missing a required argument: 'to'",
            r"failed: JobDataError: task 'welcome': to = 5: Expected `str`, got `int`",
        ],
    )


async def test_time_outs_and_cancellation_reach_tasks(worker: Worker) -> None:
    started = threading.Event()

    @worker.task
    def blocked(job: Job, /) -> None:
        started.set()
        job.cancelled.wait(30)

    async with worker:
        with pytest.raises(JobFailedError, match="timeout of 50 ms"):
            await with_timeout(blocked.options(timeout=50).add_and_wait())
    assert started.is_set()


async def test_wire_form(worker: Worker, raw: Raw) -> None:
    @worker.task("older", attempts=2)
    def older(image: Image, by: int = 1, sizes: frozenset[int] = frozenset()) -> None: ...

    job = await older.options(priority=3).add(Image("a", MADE), sizes=frozenset({5}))
    stored = raw.job(job.id)
    assert stored["name"] == "older"
    assert json.loads(stored["data"]) == {"image": {"path": "a", "made": "2025-01-02T00:00:00+00:00"}, "sizes": [5]}
    assert json.loads(stored["opts"]) == {"priority": 3, "attempts": 2}
