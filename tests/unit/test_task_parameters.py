"""Tasks without a server: validation at registration, and conversion between calls and job data."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_py import GlideMQValidationError, Job, JobDataError, JobOptions, JobSpec, Queue, UnknownOptionError, Worker
from tests.inside import QueueLink

if TYPE_CHECKING:
    from collections import OrderedDict as Unseen


@pytest.fixture
def worker() -> Worker:
    return Worker("tasks")


@dataclass
class Image:
    path: str
    width: int = 100


async def welcome(to: str, times: int = 1, *, image: Image | None = None) -> str:
    return to * times


def taken(data: Any) -> Job:
    """A job as a worker has it."""
    link: Any = QueueLink.__new__(QueueLink)
    link.partition = None
    job: Job = Job(link, "7", "welcome")
    job._data = data
    return job


# -- registering ------------------------------------------------------------------------------------------------


def test_names(worker: Worker) -> None:
    assert worker.task(welcome).name == "welcome"
    assert worker.task()(Image).name == "Image"
    assert worker.task("other")(welcome).name == "other"
    assert worker.task("partial")(functools.partial(welcome, times=3)).spec("a").data == {"to": "a"}
    assert repr(worker.task("shown")(welcome)) == "<Task 'shown'>"


def test_a_task_looks_like_its_function(worker: Worker) -> None:
    task = worker.task(welcome)
    assert (task.__name__, task.__doc__, task.__wrapped__) == ("welcome", None, welcome)  # type: ignore[attr-defined]


async def test_calling_runs_the_function(worker: Worker) -> None:
    assert await worker.task(welcome)("ab", times=2) == "abab"


def star(*values: int) -> None: ...
def stars(**values: int) -> None: ...
def positional(a: int, /, b: int) -> None: ...
def generator(a: int) -> Any:
    yield a


async def async_generator(a: int) -> Any:
    yield a


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (star, "'star': must not take *args"),
        (stars, "'stars': must not take **kwargs"),
        (generator, "not a generator"),
        (async_generator, "not a generator"),
        (functools.partial(welcome), "option 'task' = None"),
        (5, "option 'task' = 5: must be a function"),
    ],
)
def test_invalid_parameters_are_rejected(worker: Worker, function: Any, message: str) -> None:
    with pytest.raises(GlideMQValidationError) as caught:
        worker.task(function)
    assert message in str(caught.value)


def test_positional_only_parameters_are_rejected_except_the_job(worker: Worker) -> None:
    task = worker.task(positional)
    with pytest.raises(GlideMQValidationError, match="positional-only"):
        task.spec(1)  # type: ignore[call-arg]

    def second(job: Job, a: int, /) -> None: ...

    with pytest.raises(GlideMQValidationError, match="positional-only"):
        worker.task(second)

    def first(job: Job, /, a: int) -> None: ...

    assert worker.task(first).spec(1).data == {"a": 1}


def test_a_name_is_given_once(worker: Worker) -> None:
    worker.task(welcome)
    with pytest.raises(GlideMQValidationError, match="'welcome': is already the name of another task"):
        worker.task(welcome)
    with pytest.raises(GlideMQValidationError, match="must"):
        worker.task("")


def test_options_are_checked_at_once(worker: Worker) -> None:
    with pytest.raises(UnknownOptionError, match="did you mean 'delay'"):
        worker.task("welcome", dealy=5)  # type: ignore[call-overload]
    with pytest.raises(GlideMQValidationError, match="the same id"):
        worker.task("welcome", job_id="x")
    task = worker.task(welcome)
    with pytest.raises(GlideMQValidationError, match="attempts"):
        task.options(attempts=-1)
    with pytest.raises(GlideMQValidationError, match="wait_timeout"):
        task.options(wait_timeout=0)


async def test_names_that_only_the_type_checker_sees(worker: Worker) -> None:
    @worker.task
    def unseen(values: Unseen[str, int]) -> None: ...

    with pytest.raises(
        GlideMQValidationError, match=r"'unseen': its annotations cannot be used: name 'Unseen'.*type checker"
    ):
        await worker.start()


# -- calls to data ----------------------------------------------------------------------------------------------


def test_data_has_the_given_arguments(worker: Worker) -> None:
    task = worker.task(welcome)
    assert task.spec("a").data == {"to": "a"}
    assert task.spec("a", 2).data == {"to": "a", "times": 2}
    assert task.spec(times=2, to="a", image=Image("x")).data == {"to": "a", "times": 2, "image": Image("x")}


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "task 'welcome': missing a required argument: 'to'"),
        ((), {"times": 1}, "missing a required argument: 'to'"),
        (("a", 1, None), {}, "too many positional arguments"),
        (("a",), {"to": "b"}, "multiple values for argument 'to'"),
        (("a",), {"self": 1}, "unexpected keyword argument 'self'"),
    ],
)
async def test_invalid_call_is_rejected(worker: Worker, args: Any, kwargs: Any, message: str) -> None:
    task: Any = worker.task(welcome)
    for method in (task.spec, task.add, task.add_and_wait):
        with pytest.raises(TypeError, match=message):
            await method(*args, **kwargs)
    # None of this opened a connection.
    assert worker._queue is None


def test_options_of_a_task_and_of_a_call(worker: Worker) -> None:
    task = worker.task("welcome", attempts=3, delay=5)(welcome)
    assert task.spec("a").options == JobOptions(attempts=3, delay=5)
    changed = task.options(delay=timedelta(seconds=1), priority=1).options(job_id="x")
    assert changed.spec("a") == JobSpec(
        "welcome", {"to": "a"}, JobOptions(attempts=3, delay=1000, priority=1, job_id="x")
    )
    assert task.spec("a").options == JobOptions(attempts=3, delay=5)


async def test_bulk_takes_its_own_specs_only(worker: Worker) -> None:
    task, other = worker.task(welcome), worker.task("other")(welcome)
    with pytest.raises(GlideMQValidationError, match=r"jobs\[1\].*must be a spec of task 'welcome'"):
        await task.add_bulk([task.spec("a"), other.spec("a")])


def test_types_unknown_to_json_are_written_by_annotation(worker: Worker) -> None:
    @worker.task
    def special(path: Path, sizes: set[int], wait: timedelta, raw: bytes, loose: Any = None) -> None: ...

    data = special.spec(Path("a"), {1}, timedelta(seconds=2), b"x", loose={2}).data
    assert data == {"path": "a", "sizes": [1], "wait": 2000, "raw": "eA==", "loose": {2}}


# -- data to calls ----------------------------------------------------------------------------------------------


async def test_data_becomes_arguments(worker: Worker) -> None:
    @worker.task
    def sized(job: Job, image: Image, more: int = 5) -> Any:
        return job.id, image, more

    route = sized.route()
    assert route.in_thread
    assert route.handler(taken({"image": {"path": "a"}})) == ("7", Image("a"), 5)
    assert await worker.task(welcome).route().handler(taken({"to": "a", "times": 2})) == "aa"


def test_which_parameter_is_the_job(worker: Worker) -> None:
    @worker.task
    def unannotated(job, a=None):
        return job, a

    @worker.task
    def named_otherwise(current: Job[Any, Any], a: int) -> Any:
        return current, a

    @worker.task
    def about_jobs(job: str) -> Any:
        return job

    job = taken({"a": 1})
    assert unannotated.route().handler(job) == (job, 1)
    assert named_otherwise.route().handler(job) == (job, 1)
    assert about_jobs.route().handler(taken({"job": "plumber"})) == "plumber"


def test_local_classes_are_found(worker: Worker) -> None:
    @dataclass
    class Inner:
        number: int

    @dataclass
    class Outer:
        inner: Inner

    @worker.task
    def local(inner: Inner) -> Any:
        return inner

    assert local.route().handler(taken({"inner": {"number": 1}})) == Inner(1)

    @worker.task
    def unseen(outer: Outer) -> Any: ...

    with pytest.raises(GlideMQValidationError, match="'unseen': its annotations cannot be used: name 'Inner'"):
        unseen.route()


def test_no_data_is_no_arguments(worker: Worker) -> None:
    @worker.task
    def nothing(a: int = 3) -> int:
        return a

    assert nothing.route().handler(taken(None)) == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"to": 5}, "task 'sync': to = 5: Expected `str`, got `int`"),
        (
            {"to": "a", "image": {"path": "b", "width": "wide"}},
            "task 'sync': image = {'path': 'b', 'width': 'wide'}: Expected `int`, got `str` - at `$.width`",
        ),
        ({"times": 1}, "task 'sync': missing arguments in the job data: 'to'"),
        (None, "task 'sync': missing arguments in the job data: 'to'"),
        ({"to": "a", "cc": "b"}, "task 'sync': cc = 'b': unknown parameter"),
        ([1], "task 'sync': data = [1]: must be an object, one key per parameter"),
    ],
)
def test_data_that_does_not_fit(worker: Worker, data: Any, message: str) -> None:
    @worker.task
    def sync(to: str, times: int = 1, image: Image | None = None) -> None: ...

    with pytest.raises(JobDataError) as caught:
        sync.route().handler(taken(data))
    assert str(caught.value) == message


def test_the_queue_is_the_workers() -> None:
    worker = Worker("tasks", prefix="p", compression="gzip")
    queue = worker.queue
    assert isinstance(queue, Queue)
    assert (queue.name, queue.options.prefix, queue.options.compression) == ("tasks", "p", "gzip")
    assert worker.queue is queue
