"""Invalid arguments are rejected before anything is sent: a typed error names option and value, and no key is
written.
"""

import dataclasses
from collections.abc import Iterator
from datetime import datetime
from operator import attrgetter
from typing import Any

import pytest

from glidemq_py import (
    GlideMQValidationError,
    SerializationError,
)
from tests.contract.api import Queue
from tests.contract.observe import Raw


@pytest.fixture(autouse=True)
def nothing_written(raw: Raw) -> Iterator[None]:
    before = raw.keys("*")
    yield
    assert set(raw.keys("*")) <= {*before, ":meta"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("job_id", "a:b"), ("delay", -5), ("priority", 2048), ("remove_on_complete", {"age": -1}), ("prioritty", 1),
        ("backoff", {"type": "fixed", "delay": 1, "jitter": 2}),
    ],
)  # fmt: skip
async def test_every_way_to_add_names_an_invalid_option(queue: Queue, option: str, value: Any):
    """tests/unit/tables/options.txt has the table of values."""
    options: dict[str, Any] = {option: value}
    adding = queue.add("n", **options), queue.add_and_wait("n", **options), queue.add_bulk([("n", None, options)])
    for attempt in adding:
        with pytest.raises(GlideMQValidationError) as caught:
            await attempt
        assert option in caught.value.option
        assert option in str(caught.value)


async def test_run_at_and_delay_exclude_each_other(queue: Queue):
    with pytest.raises(GlideMQValidationError, match="delay"):
        await queue.add("n", delay=1, run_at=datetime.now().astimezone())


@dataclasses.dataclass
class Holder:
    inner: Any


@pytest.mark.parametrize("data", [object(), {"a": {"b": object()}}, {1, object()}, Holder(lambda: 1), b"\xff"])
async def test_unserializable_data_is_rejected(queue: Queue, data: Any):
    with pytest.raises(SerializationError, match="data"):
        await queue.add("n", data)
    with pytest.raises(SerializationError, match=r"jobs\[1\]\.data"):
        await queue.add_bulk([("n", 1), ("n", data)])


async def test_a_bulk_with_one_bad_row_sends_none(queue: Queue):
    def rows(bad: Any) -> list[Any]:
        return [bad if i == 777 else ("n", i) for i in range(1_000)]

    refused: tuple[Any, ...] = (
        ("n", 1, {"delay": -1}),
        ("n", 1, {"atempts": 2}),
        ("n", object()),
        ("",),
        ([], 1),
        "n",
        (),
        (1, 2, {}, 4),
        5,
    )
    for bad in refused:
        with pytest.raises(GlideMQValidationError, match=r"jobs\[777\]"):
            await queue.add_bulk(rows(bad))
    assert (await queue.get_job_counts()).total == 0


@pytest.mark.parametrize("given", [None, True, 1.0, b"1", ["1"], Queue("q"), "a:b", ""])
@pytest.mark.parametrize(
    "method",
    [
        "get_job",
        "get_job_logs",
        "remove",
        "revoke",
        "promote",
        "jobs.get_suspend_info",
        "read_stream",
        "dead_letters.get",
    ],
)
async def test_invalid_job_id_is_rejected(url: Any, queue: Queue, method: str, given: Any):
    with pytest.raises(GlideMQValidationError, match="job_id"):
        await attrgetter(method)(queue)(given)
    assert await queue.get_job(7) is None  # type: ignore[arg-type]
    with pytest.raises(GlideMQValidationError, match="page"):
        await anext(queue.dead_letters.iter(page=0))
