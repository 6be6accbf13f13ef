"""Option values: what a field that is declared once is used for."""

import copy
import dataclasses
import inspect
import pickle
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from glidemq_py import (
    JSON_SERIALIZER,
    Address,
    Backoff,
    BatchOptions,
    Broadcast,
    Budget,
    ConnectionOptions,
    DagNode,
    DeadLetterOptions,
    Deduplication,
    FailureLogOptions,
    Fallback,
    FlowJob,
    FlowProducer,
    GlideMQValidationError,
    JobSpec,
    KeepJobs,
    MissingOptionError,
    Ordering,
    Producer,
    Queue,
    RateLimit,
    SandboxOptions,
    Schedule,
    TokenBucket,
    TokenLimiter,
    UnknownOptionError,
    VectorField,
    Worker,
    chain,
    chord,
    group,
    validate_dag,
)
from glidemq_py._features.flows.plan import plan_dag, plan_tree
from glidemq_py.telemetry import set_tracer
from glidemq_py.telemetry.prometheus import ProcessMetrics, QueueCollector
from tests.inside import OptionValue, check_iterable, parse_nested

VALUES = [
    Backoff("fixed", timedelta(seconds=1), jitter=0.5, max_delay=5_000), BatchOptions(5, 10),
    Budget(max_total_tokens=5),
    ConnectionOptions(["a:1"], tls=True, tls_cert="c", tls_key="k"), DeadLetterOptions("q", ["expired", "failed"]),
    Deduplication("i", 5, "throttle"), Fallback("m", metadata={"a": 1}),
    FlowJob("n", "q", 1, children=[FlowJob("c", "q")]),
    JobSpec("n", options={"attempts": 2}), KeepJobs(age=5), Ordering("k", rate_limit={"max": 1, "duration": 1}),
    RateLimit(5, timedelta(seconds=1)), SandboxOptions(max_workers=2), Schedule(every=5), TokenBucket(5, 0.5),
    TokenLimiter(5, 5, "queue"), VectorField(name="v", dimensions=2, m=4),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_is_frozen_and_can_be_copied(value: Any):
    assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == dataclasses.replace(value) == value
    first = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, first, None)


WITH_MAPPINGS = (
    BatchOptions, Budget, DeadLetterOptions, Deduplication, FailureLogOptions, Fallback, KeepJobs, Ordering, RateLimit,
    SandboxOptions, Schedule, TokenBucket, TokenLimiter, VectorField,
)  # fmt: skip


@pytest.mark.parametrize("kind", WITH_MAPPINGS)
def test_mapping_has_the_fields_of_the_value(kind: type[OptionValue]):
    module = vars(sys.modules[kind.__module__])
    name = kind.__name__
    mapping = module.get(f"{name}Dict") or module[f"{name.removesuffix('Options')}Dict"]
    assert [field.name for field in dataclasses.fields(cast("Any", kind))] == list(inspect.get_annotations(mapping))


def test_signature_shows_how_fields_are_given():
    assert str(inspect.signature(Backoff)) == "(type, delay=0, *, jitter=0.0, max_delay=None)"
    assert str(inspect.signature(KeepJobs)) == "(*, age=None, count=None)"


def test_wrong_arguments_are_rejected():
    with pytest.raises(UnknownOptionError, match="did you mean 'max_delay'"):
        Backoff("fixed", max_dealy=5)  # type: ignore[call-arg]
    with pytest.raises(MissingOptionError, match=r"^option 'backoff.type' = None: is required by Backoff\(\)$"):
        Backoff()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^option 'max' = None: is required by RateLimit\(\)$"):
        RateLimit(None, 1_000)  # type: ignore[arg-type]
    with pytest.raises(MissingOptionError, match=r"^option 'limiter' = \{'max': 1\}: requires 'duration'$"):
        parse_nested("limiter", {"max": 1}, RateLimit)
    with pytest.raises(TypeError, match=r"Backoff\(\) takes at most 2 positional arguments, not 3"):
        Backoff("fixed", 5, 0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values for argument 'type'"):
        Backoff("fixed", type="exponential")  # type: ignore[misc]


def test_error_names_the_place_of_the_field():
    with pytest.raises(GlideMQValidationError) as caught:
        Ordering("k", rate_limit={"max": 0, "duration": 1})
    assert caught.value.option == "ordering.rate_limit.max"
    with pytest.raises(GlideMQValidationError) as caught:
        parse_nested("budget", {"token_weights": {"a": 1}, "max_costs": None}, Budget)
    assert (caught.value.option, "at least one limit" in caught.value.problem) == ("budget", True)
    with pytest.raises(GlideMQValidationError, match=r"must be an Ordering, .* such as \{'key': ...\}"):
        Ordering.parse("ordering", 5)


def test_secrets_are_hidden():
    options = ConnectionOptions([Address("a")], username="u", password="hidden-text")
    assert "hidden-text" not in repr(options)
    with pytest.raises(GlideMQValidationError) as caught:
        ConnectionOptions(passwrd="hidden-text")  # type: ignore[call-arg]
    assert "hidden-text" not in str(caught.value)


def _nested(child: Any) -> dict[str, Any]:
    return {"name": "a", "queue": "q", "children": [{"name": "b", "queue": "q"}, {**_JOB, "children": [child]}]}


_JOB: Any = {"name": "c", "queue": "q"}


def _with(**options: Any) -> dict[str, Any]:
    return _nested({**_JOB, "options": options})


@pytest.mark.parametrize(
    ("make", "option", "value"),
    [
        (lambda: FlowJob("x", "q", children=[5]), "children[0]", 5),  # type: ignore[list-item]
        (lambda: FlowJob("x", "q", children=[_JOB, {"name": "d"}]), "children[1].queue", None),
        (lambda: FlowJob("x", "q", children=[{**_JOB, "children": [_JOB, 5]}]), "children[0].children[1]", 5),
        (lambda: FlowJob("x", "q", children="abc"), "children", "abc"),  # type: ignore[arg-type]
        (lambda: FlowJob.parse(_nested(5), "flow"), "flow.children[1].children[0]", 5),
        (lambda: FlowJob.parse(_nested({**_JOB, "nam": 1}), "flow"), "flow.children[1].children[0].nam", 1),
        (lambda: FlowJob.parse(_nested({**_JOB, "children": 3})), "flow.children[1].children[0].children", 3),
        (lambda: validate_dag([DagNode("a", "q"), 5]), "nodes[1]", 5),  # type: ignore[list-item]
        (lambda: FlowJob.parse({**_JOB, "queue": ""}), "flow.queue", ""),
        (lambda: FlowJob.parse(_nested({**_JOB, "queue": ""})), "flow.children[1].children[0].queue", ""),
        (lambda: FlowJob.parse(_nested({**_JOB, "name": ""})), "flow.children[1].children[0].name", ""),
        (lambda: FlowJob.parse(_with(priority=-1)), "flow.children[1].children[0].options.priority", -1),
        (lambda: FlowJob.parse(_with(atempts=3)), "flow.children[1].children[0].options.atempts", 3),
        (lambda: FlowJob.parse(_with(lifo=True, priority=3)), "flow.children[1].children[0].options.lifo", True),
        (lambda: FlowJob.parse(_nested({**_JOB, "options": 5})), "flow.children[1].children[0].options", 5),
        (lambda: FlowJob("x", "q", children=[{**_JOB, "options": {"delay": -1}}]), "children[0].options.delay", -1),
        (lambda: validate_dag([_JOB, {**_JOB, "queue": ""}]), "nodes[1].queue", ""),
        (lambda: validate_dag([_JOB, {**_JOB, "options": {"delay": -1}}]), "nodes[1].options.delay", -1),
        (lambda: validate_dag([_JOB, {**_JOB, "deps": "c"}]), "nodes[1].deps", "c"),
    ],
)
def test_an_invalid_job_of_a_flow_is_named_by_its_place(make: Any, option: str, value: object):
    with pytest.raises(GlideMQValidationError) as caught:
        make()
    assert (caught.value.option, caught.value.value) == (option, value)
    assert str(caught.value).startswith(f"option {option!r} = {value!r}: ")


def _link(queue: str):
    return SimpleNamespace(serializer=JSON_SERIALIZER, compression="none", payload_limit=100, keys=None, name=queue)


@pytest.mark.parametrize(
    ("data", "options", "place"),
    [({"x": {1}}, {}, "data"), ("x" * 200, {}, "data"), (1, {"cost": 2}, "options.cost")],
)
def test_a_job_of_a_flow_that_cannot_be_encoded_is_named_by_its_place(data: Any, options: Any, place: str):
    last = FlowJob("c", "q", data, options)
    tree = FlowJob("a", "q", children=[_JOB, FlowJob("b", "q", children=[_JOB, _JOB, last]), _JOB])
    with pytest.raises(GlideMQValidationError) as caught:
        plan_tree(tree, _link, "flows[3]")
    assert caught.value.option == f"flows[3].children[1].children[2].{place}"
    with pytest.raises(GlideMQValidationError) as caught:
        plan_dag([DagNode("a", "q", deps=["b"]), DagNode("b", "q", data, options)], _link)
    assert caught.value.option == f"nodes[1].{place}"


@pytest.mark.parametrize(
    ("make", "option", "value", "hint", "suggestion"),
    [
        (lambda: FlowJob.parse(_nested({**_JOB, "nme": 1})), "flow.children[1].children[0].nme", 1,
         "did you mean 'flow.children[1].children[0].name'?", "flow.children[1].children[0].name"),
        (lambda: FlowJob.parse({**_JOB, "attempts": 3}), "flow.attempts", 3,
         "'attempts' is an option of the job: use options={'attempts': ...}", "flow.options"),
        (lambda: FlowJob("a", "q", attempts=5), "attempts", 5,  # type: ignore[call-arg]
         "'attempts' is an option of the job: use options={'attempts': ...}", "options"),
        (lambda: DagNode("a", "q", removeOnComplete=5), "removeOnComplete", 5,  # type: ignore[call-arg]
         "'remove_on_complete' is an option of the job: use options={'remove_on_complete': ...}", "options"),
        (lambda: DagNode("a", "q", depends_on=["b"]), "depends_on", ["b"], "", None),  # type: ignore[call-arg]
        (lambda: FlowJob("a", "q", opts={}), "opts", {}, "did you mean 'options'?", "options"),  # type: ignore[call-arg]
        (lambda: JobSpec("a", atempts=3), "atempts", 3,  # type: ignore[call-arg]
         "'attempts' is an option of the job: use options={'attempts': ...}", "options"),
        (lambda: JobSpec.parse({"name": "a", "attempts": 3}, "jobs[0]"), "jobs[0].attempts", 3,
         "'attempts' is an option of the job: use options={'attempts': ...}", "jobs[0].options"),
        (lambda: JobSpec.parse({"name": "a", "opt": {}}, "jobs[0]"), "jobs[0].opt", {},
         "did you mean 'jobs[0].options'?", "jobs[0].options"),
        (lambda: JobSpec.parse({"name": "a", "foo": 3}, "jobs[0]"), "jobs[0].foo", 3, "", None),
    ],
)  # fmt: skip
def test_an_unknown_field_of_a_job_is_explained(
    make: Any, option: str, value: object, hint: str, suggestion: str | None
):
    with pytest.raises(UnknownOptionError) as caught:
        make()
    problem = f"unknown option; {hint}" if hint else "unknown option"
    assert (caught.value.option, caught.value.value, caught.value.problem) == (option, value, problem)
    assert caught.value.suggestion == suggestion


@pytest.mark.parametrize(
    ("add", "option"),
    [
        (lambda: chain("", [("a",)]), "queue"),
        (lambda: chain("q", []), "jobs"),
        (lambda: chain("q", [("a",), ("b", 1, {"delay": -1})]), "jobs[1].delay"),
        (lambda: group("q", [("a",), ("",)]), "jobs[1].name"),
        (lambda: group("q", [("a", 1, {"parent": ("q", "1")})]), "jobs[0].parent"),
        (lambda: chord("q", [("a",)], ("c", 1, {"delay": -1})), "callback.delay"),
        (lambda: chord("q", [("a",), {"name": "b", "dta": 1}], ("c",)), "jobs[1].dta"),
    ],
)  # fmt: skip
async def test_an_invalid_job_of_a_common_flow_is_named_by_its_place(add: Any, option: str):
    with pytest.raises(GlideMQValidationError) as caught:
        await add()
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("fair_key_preference", each) for each in (-1, 101, 1.5, True)),
        *(("limiter", each) for each in (
            {"max": 0, "duration": 1}, {"max": 1}, {"max": 1, "duration": 0.5}, {"max": 1, "duration": 1, "x": 1}, 5,
        )),
        *(("token_limiter", each) for each in (
            {"max_tokens": 0, "duration": 1}, {"duration": 1}, {"max_tokens": 1, "duration": 1, "scope": "all"},
        )),
    ],
)  # fmt: skip
def test_invalid_options_of_a_worker_are_rejected(option: str, value: Any):
    with pytest.raises(GlideMQValidationError, match=option):
        Worker("q", print, **{option: value})


def test_schedules_that_wait_for_their_job_cannot_skip_runs_without_a_worker():
    with pytest.raises(GlideMQValidationError, match="skip_without_worker"):
        Schedule(repeat_after_complete=1_000, skip_without_worker=True)


@pytest.mark.parametrize("holder", [Queue, lambda name, **options: Worker(name, print, **options)])
@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("q", "must not be the queue itself"), ("a:b", "dead_letter_queue.name"), (7, "a queue's name or a mapping"),
        ({}, "requires 'name'"),
        ({"name": "x", "on": "failed"}, "dead_letter_queue.on"), ({"name": "x", "on": ()}, "must not be empty"),
        ({"name": "x", "on": ("fail",)}, "did you mean 'failed'"), (True, "a queue's name or a mapping"),
    ],
)  # fmt: skip
def test_invalid_dead_letter_queues_are_rejected(holder: Any, value: Any, named: str):
    with pytest.raises(GlideMQValidationError, match=named):
        holder("q", dead_letter_queue=value)


def test_unknown_option_of_dead_letters_is_named():
    with pytest.raises(UnknownOptionError, match="maxRetries"):
        Queue("q", dead_letter_queue={"name": "x", "maxRetries": 1})  # type: ignore[arg-type]


def test_forms_of_a_dead_letter_queue():
    options = DeadLetterOptions("x", ("revoked", "failed"))
    assert options.kinds_text == "failed,revoked"
    assert DeadLetterOptions("x").on == ("failed", "stalled", "expired", "cost")
    for form in (options, {"name": "x", "on": ["revoked", "failed"]}):
        assert Queue("q", dead_letter_queue=form).options.dead_letter_queue == options  # type: ignore[arg-type]
    assert Queue("q", dead_letter_queue="x").options.dead_letter_queue == DeadLetterOptions("x")


# -- values that are rejected before a connection is opened ----------------------------------------


@pytest.mark.parametrize("value", [None, 5, "abc", b"abc", {"a": 1}])
def test_one_is_not_several(value: Any):
    with pytest.raises(GlideMQValidationError, match="must be an iterable of things, such as a list") as caught:
        check_iterable("option", value, "things")
    assert (caught.value.option, caught.value.value) == ("option", value)


def test_several():
    value: Any
    for value in ([], (1,), {1}, (each for each in "ab")):
        assert check_iterable("option", value, "things") is value


async def test_bulks(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue, Producer(queue_name, url) as producer, FlowProducer(url) as flows:
        for option, add in {
            "jobs": queue.add_bulk, "flows": flows.add_bulk, "nodes": flows.add_dag,
        }.items():  # fmt: skip
            for value in (None, "abc", {"name": "n"}):
                with pytest.raises(GlideMQValidationError) as caught:
                    await add(value)  # type: ignore[operator]
                assert caught.value.option == option
        with pytest.raises(GlideMQValidationError, match="'jobs' = None"):
            await producer.add_bulk(None)  # type: ignore[arg-type]
    with pytest.raises(GlideMQValidationError, match="'nodes' = 5"):
        validate_dag(5)  # type: ignore[arg-type]


async def test_a_broadcast_names_its_own_options(url: str, queue_name: str):
    async with Broadcast(queue_name, url) as broadcast:
        for subject in ("", None, 5):
            with pytest.raises(GlideMQValidationError) as caught:
                await broadcast.publish(subject)  # type: ignore[arg-type]
            assert caught.value.option == "subject"
        with pytest.raises(GlideMQValidationError, match="'messages' = 'abc'"):
            await broadcast.publish_bulk("abc")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "make"),
    [
        ("tracer", lambda: set_tracer(5)),  # type: ignore[arg-type]
        ("queues", lambda: QueueCollector(5)),  # type: ignore[arg-type]
        ("queues", lambda: QueueCollector("mails")),
        ("registry", lambda: ProcessMetrics(5)),  # type: ignore[arg-type]
        *(("buckets", lambda each=each: ProcessMetrics(CollectorRegistry(), buckets=each))
          for each in ("1", 5, [], [3, 1], [1, 1], ["1"], [0, 1], [True])),
    ],
)  # fmt: skip
def test_telemetry(option: str, make: Any):
    with pytest.raises(GlideMQValidationError) as caught:
        make()
    assert caught.value.option == option


def test_a_registry_has_the_metrics_of_a_process_once():
    registry = CollectorRegistry()
    first = ProcessMetrics(registry)
    with pytest.raises(GlideMQValidationError, match="already contains these metrics"):
        ProcessMetrics(registry)
    first.close()
    ProcessMetrics(registry).close()
