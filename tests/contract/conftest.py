"""Every test in this folder runs with each kind of queue: the behavior of a feature is told once, for all of them.

A test uses the fixtures `url` (the value for `connection`) and `queue_name`, or `queue`, and imports `Queue`,
`FlowProducer`, `Producer` and `QueueEvents` from `tests.contract.api`. `@pytest.mark.exclude("memory", reason="...")`
leaves a kind out.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import glidemq_py
from glidemq_py.testing import MemoryServer, RespClient
from tests.contract.api import FlowProducer, Queue, Selected
from tests.contract.observe import Clockwork, Raw, SetClock, raw_client
from tests.inside import scheduler_tasks, settable_clock
from tests.server.conftest import without_polling, worker_for

__all__ = ["without_polling", "worker_for"]

KINDS = (
    "plain",
    "memory",
    pytest.param("partitioned", marks=pytest.mark.slow),
    pytest.param("cluster", marks=pytest.mark.slow),
    pytest.param("blocking", marks=pytest.mark.slow),
    pytest.param("valkey-8.1", marks=pytest.mark.nightly),
    pytest.param("redis", marks=pytest.mark.nightly),
)
"""On one server, in memory, with three partitions, on three primaries, by the blocking classes, on older servers."""
DEALT = ("partitioned", "cluster", "blocking")
"""Kinds that share the values of a parametrized test, of which "plain" and "memory" run all."""
HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    """Deselect the kinds that tests exclude, and deal the values of each test to the slow kinds."""
    excluded = [item for item in items if item.path.is_relative_to(HERE) and _is_excluded(item)]
    if excluded:
        config.hook.pytest_deselected(items=excluded)
        items[:] = [item for item in items if item not in set(excluded)]
    tests = defaultdict[str, dict[str, list[pytest.Item]]](lambda: defaultdict(list))
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.stem != "test_transcripts" and _kind(item) in DEALT:
            tests[item.nodeid.partition("[")[0]][_kind(item)].append(item)
    for kinds in tests.values():
        _deal([*kinds.values()])


def _deal(kinds: list[list[pytest.Item]]):
    """Leave the crossings of values and kinds to `nightly`, but one of each value and each kind."""
    for at, values in enumerate(kinds):
        step = min(len(kinds), len(values))
        for number, item in enumerate(values):
            if number % step != at % step:
                item.add_marker(pytest.mark.nightly)


def _is_excluded(item: pytest.Item) -> bool:
    return any(_kind(item) in mark.args and mark.kwargs["reason"] for mark in item.iter_markers("exclude"))


def _kind(item: pytest.Item) -> str:
    return getattr(item, "callspec").params["kind"]  # noqa: B009 - the attribute of parametrized functions only


@pytest.fixture(params=KINDS, autouse=True)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the kind of queue of this run of the test."""
    Selected.blocking = request.param == "blocking"
    yield request.param
    Selected.blocking = False


@pytest.fixture
def parts(kind: str) -> int:
    """Return the number of partitions, which is the least limit; the jobs of one bulk are in one partition."""
    return 3 if kind == "partitioned" else 1


@pytest.fixture
def url(kind: str, servers_by_version: Any, request: pytest.FixtureRequest):
    """Return the value for `connection`."""
    if kind == "memory":
        return MemoryServer()
    if kind in ("cluster", "valkey-8.1", "redis"):
        return servers_by_version.get(kind).url
    return request.getfixturevalue("server").url


@pytest.fixture
async def queue_name(kind: str, url: Any, glidemq_queue_name: str) -> str:
    """Return the unique name of a queue, which exists with three partitions if that is the kind."""
    if kind == "partitioned":
        async with glidemq_py.Queue(glidemq_queue_name, url, partitions=3):
            pass
    return glidemq_queue_name


@pytest.fixture
async def queue(url: Any, queue_name: str) -> AsyncIterator[Queue]:
    """Return a queue for this test; check its consistency after the test."""
    async with Queue(queue_name, url) as queue:
        yield queue
        report = await queue.check(recheck_after=50)
        assert not report.findings, str(report)


@pytest.fixture
async def flows(url: Any) -> AsyncIterator[FlowProducer]:
    """Return a producer of flows."""
    async with FlowProducer(url) as flows:
        yield flows


@pytest.fixture
def resp(url: Any) -> Iterator[RespClient]:
    """Return a raw client of the test's server."""
    with raw_client(url) as client:
        yield client


@pytest.fixture
def raw(resp: RespClient, queue_name: str) -> Raw:
    """Return the keys of the test's queue."""
    return Raw(resp, queue_name)


@pytest.fixture
def clock(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> Iterator[SetClock]:
    """Set the clock of the test's queue; the library of this test reads it."""
    settable_clock(monkeypatch)
    clock = SetClock(raw)
    yield clock
    clock.remove()


@pytest.fixture
async def clockwork(clock: SetClock, raw: Raw, queue: Queue, url: Any) -> AsyncIterator[Clockwork]:
    """Set the clock of the test's queue, and fire its schedulers."""
    async with glidemq_py.Queue(queue.name, url) as served:
        yield Clockwork(raw, queue, await scheduler_tasks(served))
