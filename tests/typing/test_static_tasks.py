"""What mypy and pyright see of tasks. Both check this file; pytest runs it too, so that it is true at run time."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, assert_type, cast

from glidemq_py import BlockingJob, DagNode, FlowJob, FlowProducer, Job, JobOptions, JobSpec, Queue, Task, Worker, chord
from glidemq_py.options import JobOptionsDict
from glidemq_py.records import JobNode, TaskCall


@dataclass
class Image:
    path: str
    width: int = 100


@dataclass
class Receipt:
    number: int


worker = Worker("typing")


@worker.task("welcome")
async def welcome(to: str, times: int = 1) -> Receipt:
    return Receipt(len(to) * times)


@worker.task
def shrink(image: Image, *, factor: float = 0.5) -> Image:
    return Image(image.path, int(image.width * factor))


@worker.task()
async def inspect_it(job: Job, /, image: Image) -> dict[str, int]:
    return {job.id: image.width}


@worker.task("resize", attempts=3)
def resize(job: Job[str, int, None], image: Image) -> Image:
    return image


@worker.task
async def nothing() -> None: ...


# mypy needs the slash above, or a job without Any in it, to see which parameters are left; without, it lets pass.
@worker.task
def unslashed(job: Job, image: Image) -> Image:
    return image


RETRIES: JobOptionsDict = {"attempts": 5, "backoff": 1_000}
MISTAKEN: JobOptionsDict = {"atempts": 5}  # type: ignore[typeddict-unknown-key] # pyright: ignore[reportAssignmentType]
URGENT = JobOptions(priority=1, ttl=None)


@worker.task(**RETRIES)
async def retried(to: str) -> None: ...


@worker.task("urgent", **URGENT)
async def urgent(to: str) -> None: ...


async def sharing(queue: Queue) -> None:
    await queue.add("a", **RETRIES)
    await queue.add("a", **URGENT)
    await queue.add_bulk(
        [("a", 1, RETRIES), ("a", 1, URGENT), JobSpec("a", 1, URGENT), {"name": "a", "options": URGENT}]
    )
    await retried.options(**URGENT).add("a")
    FlowJob("a", "q", 1, URGENT)


async def adding() -> None:
    """Never run: the tools read it."""
    assert_type(await welcome.add("a@b.c", times=2), Job[dict[str, Any], Receipt])
    assert_type(await welcome.add_and_wait("a@b.c"), Receipt)
    assert_type(await (await welcome.add("a@b.c")).wait_until_finished(), Receipt)
    assert_type(await welcome.options(delay=5_000, attempts=3, job_id="x").add("a"), Job[dict[str, Any], Receipt])
    assert_type(await welcome.options(wait_timeout=1_000).add_and_wait("a"), Receipt)
    assert_type(await welcome.add_bulk([welcome.call("a"), welcome.call("b", 2)]), list[Job[dict[str, Any], Receipt]])
    assert_type(await shrink.add_and_wait(Image("x"), factor=0.1), Image)
    assert_type(await inspect_it.add_and_wait(Image("x")), dict[str, int])
    assert_type(await resize.add_and_wait(image=Image("x")), Image)
    assert_type(await nothing.add(), Job[dict[str, Any], None])
    await unslashed.add(Image("x"))
    assert_type(welcome.call("a"), TaskCall[Receipt])

    await welcome.add()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    await welcome.add(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await welcome.add("a", timez=1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    await welcome.add_and_wait("a", "b")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    welcome.options(dealy=1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    shrink.call(Image("x"), 0.1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    inspect_it.call()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    inspect_it.call("x")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    nothing.call(1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


def adding_from_blocking_code() -> None:
    assert_type(welcome.blocking.add("a@b.c", times=2), BlockingJob[dict[str, Any], Receipt])
    assert_type(welcome.blocking.add_and_wait("a@b.c"), Receipt)
    assert_type(shrink.blocking.options(delay=5).add(Image("x")).wait_until_finished(), Image)
    assert_type(inspect_it.blocking.add_bulk([inspect_it.call(Image("x"))])[0].returnvalue, dict[str, int] | None)
    welcome.blocking.add()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    welcome.blocking.add(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    welcome.blocking.options(dealy=1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    welcome.add_bulk([shrink.call(Image("x"))])  # type: ignore[list-item, unused-coroutine] # pyright: ignore[reportArgumentType, reportUnusedCoroutine]


async def flows(job: Job, producer: FlowProducer) -> None:
    tree = FlowJob(welcome.call("a"), children=[shrink.call(Image("x")), FlowJob(inspect_it.call(Image("x")))])
    assert_type(tree, FlowJob[Receipt])
    node = await producer.add(tree)
    assert_type(node, JobNode[Receipt])
    assert_type(await node.job.wait_until_finished(), Receipt)
    assert_type(node.job.blocking.wait_until_finished(), Receipt)
    assert_type(await producer.add(welcome.call("a")), JobNode[Receipt])
    assert_type(await producer.add(FlowJob("a", "q", 1)), JobNode[Any])
    assert_type(await producer.add({"name": "a", "queue": "q"}), JobNode[Any])
    assert_type(await chord(None, [shrink.call(Image("x"))], welcome.call("a")), JobNode[Receipt])
    first = DagNode(welcome.call("a"))
    await producer.add_dag([first, DagNode(shrink.call(Image("x")), deps=[first, "welcome"], node="small")])
    assert_type(await job.get_children_results(welcome), list[Receipt])
    assert_type(job.blocking.get_children_results(shrink), list[Image])
    assert_type(job.blocking.get_children_results(shrink.blocking), list[Image])
    FlowJob(welcome.call("a"), "queue")  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]
    DagNode(welcome.call("a"), data=5)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]


async def calling(job: Job) -> None:
    called: Coroutine[Any, Any, Receipt] = welcome("a", times=2)
    await called
    assert_type(await welcome("a"), Receipt)
    assert_type(shrink(Image("x")), Image)
    assert_type(await inspect_it(job, Image("x")), dict[str, int])
    assert_type(resize(job, Image("x")), Image)
    resize(Image("x"))  # type: ignore[call-arg, arg-type] # pyright: ignore[reportCallIssue]


def takes_task(task: Task[[str], Receipt]) -> JobSpec:
    return task.call("a")


def takes_any_task(task: Task) -> str:
    return task.name


def test_what_was_checked_runs() -> None:
    assert takes_task(worker.task("one")(_one)).data == {"to": "a"}
    assert takes_any_task(welcome) == "welcome"
    assert cast("JobSpec", retried.call("a")).options == JobOptions(**RETRIES)
    assert dict(**cast("JobSpec", urgent.call("a")).options) == {"priority": 1, "ttl": None}
    assert unslashed.call(Image("x")).data == {"image": Image("x")}
    assert shrink(Image("x")) == Image("x", 50)


async def _one(to: str) -> Receipt:
    return Receipt(len(to))
