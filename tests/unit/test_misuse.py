"""Mistakes of callers: unknown names, options in the wrong place, invalid connections and events."""

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glidemq_py
from glidemq_py import (
    Broadcast,
    BroadcastWorker,
    ConnectionOptions,
    EventLoopError,
    FailureLogOptions,
    FlowProducer,
    GlideMQValidationError,
    JobOptions,
    Producer,
    Queue,
    QueueEvents,
    UnknownOptionError,
    Worker,
    sync,
)
from glidemq_py._client.event_reader import QUEUE_EVENTS
from glidemq_py._core.misuse import CONNECTION_OPTIONS, FOREIGN_NAMES
from tests.inside import WORKER_EVENTS, JobOptionsDict

ROOT = Path(__file__).parent.parent.parent
Create = Callable[..., Any]


def handle(_: object): ...


def worker(**options: Any) -> Worker:
    return Worker("q", handle, **options)


def broadcast_worker(**options: Any) -> BroadcastWorker:
    return BroadcastWorker("q", handle, subscription="s", **options)


def named(cls: Any) -> Create:
    def create(**options: Any):
        return cls("q", **options)

    return create


OWNERS = (Queue, Producer, Broadcast, QueueEvents, sync.Queue, sync.Producer, sync.Broadcast, sync.QueueEvents)
NAMED = [named(cls) for cls in OWNERS]
CREATE: list[Create] = [*NAMED, FlowProducer, sync.FlowProducer, worker, broadcast_worker]
IDS = [
    "Queue", "Producer", "Broadcast", "QueueEvents", "sync.Queue", "sync.Producer", "sync.Broadcast",
    "sync.QueueEvents", "FlowProducer", "sync.FlowProducer", "Worker", "BroadcastWorker",
]  # fmt: skip
EVERY_CLASS = pytest.mark.parametrize("create", CREATE, ids=IDS)


@EVERY_CLASS
@pytest.mark.parametrize("name", ["prefx", "prefiX", "Prefix"])
def test_unknown_argument_is_rejected_with_the_nearest_name(create: Create, name: str):
    with pytest.raises(UnknownOptionError, match="did you mean 'prefix'") as caught:
        create(**{name: "x"})
    assert (caught.value.option, caught.value.suggestion) == (name, "prefix")


@EVERY_CLASS
def test_unknown_argument_without_a_similar_name(create: Create):
    with pytest.raises(UnknownOptionError, match=r"unknown option$"):
        create(zzzzzz=1)


@EVERY_CLASS
@pytest.mark.parametrize("name", ["broker_url", "redis", "host"])
def test_other_names_of_the_connection(create: Create, name: str):
    with pytest.raises(UnknownOptionError, match="use 'connection'"):
        create(**{name: "redis://localhost"})


@EVERY_CLASS
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("attempts", "'attempts' is an option of jobs"),
        ("removeOnComplete", "'remove_on_complete' is an option of jobs"),
        ("max_retries", "use 'attempts'"),
        ("job_timeout", "use 'timeout'"),
    ],
)
def test_job_options_belong_to_jobs(create: Create, name: str, answer: str):
    with pytest.raises(UnknownOptionError, match=answer) as caught:
        create(**{name: 3})
    assert "default_job_options" in str(caught.value)


@pytest.mark.parametrize("create", CREATE, ids=IDS)
@pytest.mark.parametrize("name", ["allow_eviction", "requestTimeout", "tls"])
def test_connection_options_belong_to_the_connection(create: Create, name: str):
    with pytest.raises(UnknownOptionError, match=r"connection=ConnectionOptions\(.*, or .* URL") as caught:
        create(**{name: True})
    assert caught.value.suggestion == "connection"


def test_all_connection_options_are_known():
    assert set(inspect.signature(ConnectionOptions).parameters) == CONNECTION_OPTIONS


@pytest.mark.parametrize("create", NAMED, ids=IDS[: len(NAMED)])
def test_worker_options_belong_to_workers(create: Create):
    with pytest.raises(UnknownOptionError, match="it is an option of Worker"):
        create(concurrency=3)


@pytest.mark.parametrize("create", [worker, broadcast_worker])
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("prefetch", "up to 'concurrency' jobs"),
        ("max_jobs", "use 'concurrency'"),
        ("blockTimeout", "idle workers are woken up"),
        ("queue_class", "not needed"),
        ("on_startup", "use 'lifespan'"),
        ("autorun", r"worker\.run\(\)"),
    ],
)
def test_names_of_other_workers(create: Create, name: str, answer: str):
    with pytest.raises(UnknownOptionError, match=answer):
        create(**{name: 1})


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("countdown", "delay"), ("eta", "run_at"), ("expires", "ttl"), ("max_retries", "attempts"),
        ("retry", "attempts"), ("time_limit", "timeout"), ("job_timeout", "timeout"), ("at_front", "lifo"),
        ("_defer_by", "delay"), ("_defer_until", "run_at"), ("_job_id", "job_id"), ("_expires", "ttl"),
        ("result_ttl", "remove_on_complete"), ("failure_ttl", "remove_on_fail"), ("removeOnFail", "remove_on_fail"),
        ("failParentOnFailure", "on_failure"), ("min_backoff", "backoff"), ("link", "parent"),
    ],
)  # fmt: skip
def test_names_of_other_job_options(name: str, suggestion: str):
    for reject in (
        lambda: JobOptions.parse({name: 1}),
        lambda: Queue("q", default_job_options={name: 1}),
        lambda: Worker("q").task("t", **{name: 1}),  # type: ignore[call-overload]
    ):
        with pytest.raises(UnknownOptionError) as caught:
            reject()
        assert (caught.value.option, caught.value.suggestion) == (name, suggestion)
        assert suggestion in str(caught.value)


def test_constructors_of_options_reject_unknown_names():
    with pytest.raises(UnknownOptionError, match="use 'delay'"):
        JobOptions(countdown=1)  # type: ignore[call-arg]
    with pytest.raises(UnknownOptionError, match="did you mean 'retries'"):
        FailureLogOptions(retrys=True)  # type: ignore[call-arg]


def test_options_have_signatures_and_can_be_copied():
    options = JobOptions(attempts=3, backoff=5, remove_on_fail=False)
    assert set(inspect.signature(JobOptions).parameters) == set(JobOptionsDict.__annotations__)
    assert pickle.loads(pickle.dumps(options)) == copy.deepcopy(options) == dataclasses.replace(options) == options
    assert hash(copy.copy(options)) == hash(options)
    assert dataclasses.replace(options, attempts=4) == JobOptions(attempts=4, backoff=5, remove_on_fail=False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.delay = 5  # type: ignore[misc]


def test_override_keeps_the_other_options():
    worker = Worker("q", handle, log_failures=False, retry_on=ValueError)
    worker.override(concurrency=7, prefix="other")
    assert (worker.options.concurrency, worker.options.log_failures) == (7, None)
    assert worker.options.retry_on == (ValueError,)
    with pytest.raises(GlideMQValidationError, match="concurrency"):
        worker.override(concurrency=0)


@pytest.mark.parametrize("make", [Queue, sync.Queue])
@pytest.mark.parametrize(
    ("method", "given", "name", "suggestion"),
    [
        ("upsert_job_scheduler", ("s",), "cron", "pattern"),
        ("upsert_job_scheduler", ("s",), "patern", "pattern"),
        ("upsert_job_scheduler", ("s",), "startDate", "start_date"),
        ("upsert_job_scheduler", ("s",), "data", "template"),
        ("upsert_job_scheduler", ("s",), "attempts", "template"),
        ("clean", (0,), "limt", "limit"),
        ("clean", (0,), "count", "limit"),
        ("get_jobs", ("failed",), "star", "start"),
        ("get_jobs", ("failed",), "excludeData", "exclude_data"),
        ("search_jobs", (), "nam", "name"),
        ("iter_search_jobs", (), "tag", "tags"),
        ("set_fair_key_limits", ("k",), "rateLimit", "rate_limit"),
        ("pause", (), "force", None),
    ],
)
async def test_unknown_arguments_of_methods(make: Any, method: str, given: Any, name: str, suggestion: str | None):
    async def call():
        result = getattr(make("q"), method)(*given, **{name: 5})
        if make is Queue:
            await result

    with pytest.raises(UnknownOptionError) as caught:
        await call()
    assert (caught.value.option, caught.value.value, caught.value.suggestion) == (name, 5, suggestion)
    assert str(caught.value).startswith(f"option {name!r} = 5: unknown option")
    if suggestion is not None:
        assert suggestion in str(caught.value)


@pytest.mark.parametrize("make", [Queue, sync.Queue])
def test_signatures_of_methods_are_kept(make: Any):
    assert list(inspect.signature(make.clean).parameters) == ["self", "grace", "limit", "state"]
    assert "pattern" in inspect.signature(make.upsert_job_scheduler).parameters


def test_secrets_are_not_shown():
    with pytest.raises(UnknownOptionError) as caught:
        Queue("q", password="hunter2")  # type: ignore[call-arg]
    assert "hunter2" not in str(caught.value)


def test_signatures_are_kept():
    names = list(inspect.signature(Queue).parameters)
    assert names[:3] == ["name", "connection", "prefix"]
    assert list(inspect.signature(sync.Queue).parameters) == names
    assert "concurrency" in inspect.signature(Worker).parameters


def test_foreign_names_are_not_ours():
    ours = {
        "job": set(JobOptionsDict.__annotations__),
        "queue": set(inspect.signature(Queue).parameters),
        "worker": set(inspect.signature(Worker).parameters),
    }
    for place, names in FOREIGN_NAMES.items():
        assert not ours[place] & names.keys()
        for name, hint in names.items():
            assert re.fullmatch(r"[a-z_]+", name)
            assert hint[0].islower()


def test_hints_use_names_that_exist():
    known = {
        *JobOptionsDict.__annotations__,
        *inspect.signature(Queue).parameters,
        *inspect.signature(Worker).parameters,
    }
    examples = {"type", "exponential", "delay", "max_delay", "age", "count", "completed", "failed", "debounce"}
    policies = {"fail_parent", "ignore", "remove", "timeout"}
    for names in FOREIGN_NAMES.values():
        for hint in names.values():
            assert set(re.findall(r"'([a-z_]+)'", hint)) <= known | examples | policies, hint


MIGRATION = {
    "dramatiq": ("max_retries", "min_backoff", "max_age", "time_limit", "throws", "store_results", "pipe_target"),
    "celery": ("countdown", "eta", "expires", "max_retries", "time_limit", "soft_time_limit", "ignore_result"),
    "rq": ("at_front", "job_timeout", "result_ttl", "failure_ttl", "is_async", "on_success", "meta"),
    "arq": ("_defer_by", "_defer_until", "_expires", "max_tries", "keep_result", "max_jobs", "on_startup", "functions"),
    "glide-mq": ("prefetch", "blockTimeout", "promotionInterval", "globalConcurrency"),
    "bullmq": ("failParentOnFailure", "ignoreDependencyOnFailure", "autorun", "keepLogs"),
}


@pytest.mark.parametrize("system", MIGRATION)
def test_migration_pages_have_the_names(system: str):
    page = (ROOT / f"docs/migrate/from-{system}.md").read_text(encoding="utf-8")
    for name in MIGRATION[system]:
        assert name in page
        plain = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().strip("_")
        assert any(plain in names for names in FOREIGN_NAMES.values()), name


# -- options in the wrong place ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "example"),
    [({"attempts": 3}, "attempts=..."), ({"removeOnComplete": True}, "remove_on_complete=..."), (5, "attempts=3")],
)
async def test_options_as_a_dict_are_explained(given: Any, example: str):
    queue: Any = Queue("q")
    producer: Any = Producer("q")
    broadcast: Any = Broadcast("q")
    for add in (queue.add, queue.add_and_wait, producer.add, broadcast.publish):
        with pytest.raises(GlideMQValidationError, match="must be keyword arguments") as caught:
            await add("name", {}, given)
        assert example in str(caught.value)
    blocking: Any = sync.Queue("q")
    with pytest.raises(GlideMQValidationError, match="must be keyword arguments"):
        blocking.add("name", {}, given)


@pytest.mark.parametrize("cls", [Queue, Producer, Broadcast, QueueEvents, sync.Queue, sync.QueueEvents])
def test_too_many_positional_arguments(cls: Any):
    with pytest.raises(GlideMQValidationError, match="options are keywords, such as"):
        cls("q", None, {"prefix": "x"})


@EVERY_CLASS
@pytest.mark.parametrize("connection", [5, {"host": "localhost"}, b"valkey://localhost", object(), ["valkey://x"]])
def test_invalid_connection_is_rejected_by_the_constructor(create: Create, connection: Any):
    with pytest.raises(GlideMQValidationError, match="must be a URL, ConnectionOptions or a GLIDE client"):
        create(connection=connection)


@EVERY_CLASS
def test_invalid_url_is_rejected_by_the_constructor(create: Create):
    with pytest.raises(GlideMQValidationError, match="connection"):
        create(connection="localhost:6379")


def test_options_of_a_worker_in_third_place_are_explained():
    with pytest.raises(GlideMQValidationError, match="pass options as keyword arguments"):
        Worker("q", handle, {"concurrency": 5})  # type: ignore[arg-type]


def test_override_checks_the_connection():
    with pytest.raises(GlideMQValidationError, match="connection"):
        Worker("q", handle).override(connection=5)  # type: ignore[arg-type]


# -- blocks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("create", "name"), [*zip(CREATE, IDS, strict=True)], ids=IDS)
async def test_wrong_kind_of_block_is_explained(create: Create, name: str):
    made = create()
    if name.startswith("sync."):
        with pytest.raises(EventLoopError, match="use 'with' instead of 'async with'") as caught:
            async with made:
                raise AssertionError
    else:
        with pytest.raises(EventLoopError, match="use 'async with' instead of 'with'") as caught, made:
            raise AssertionError
    assert isinstance(caught.value, RuntimeError)
    assert name.removeprefix("sync.") in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# -- events -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [named(QueueEvents), named(sync.QueueEvents), worker])
def test_unknown_event_is_rejected_with_all_events(make: Create):
    with pytest.raises(GlideMQValidationError, match="did you mean 'completed'") as caught:
        make().on("complete", handle)
    for event in WORKER_EVENTS if make is worker else QUEUE_EVENTS:
        assert event in str(caught.value) or event == "budget_exceeded"


def test_every_event_of_the_library_is_known():
    """Compare the names in the code and in the documentation."""
    found: set[str] = set()
    for path in (ROOT / "lua").rglob("*.lua"):
        found |= set(re.findall(r"emit\([^,()]+, '([a-z-]+)'", path.read_text(encoding="utf-8")))
    assert len(found) > 15
    assert found <= set(QUEUE_EVENTS)
    page = (ROOT / "docs/learn/events.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([a-z-]+)`", "\n".join(row.split("|")[1] for row in page.splitlines() if "|" in row)))
    assert set(QUEUE_EVENTS) <= listed
    for event in QUEUE_EVENTS:
        QueueEvents("q").on(event, handle)


def test_exported():
    assert glidemq_py.UnknownOptionError is UnknownOptionError
