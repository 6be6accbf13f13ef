"""Values that are rejected before a connection is opened."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from glidemq_py import Broadcast, FlowProducer, GlideMQValidationError, Producer, Queue, validate_dag
from glidemq_py.telemetry import set_tracer
from glidemq_py.telemetry.prometheus import ProcessMetrics, QueueCollector
from tests.inside import check_iterable


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
