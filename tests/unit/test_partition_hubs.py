"""Fetches from a partitioned queue by the gateway, over hubs that need no server."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from glidemq_py.errors import ClosedError, GlideMQConnectionError, GlideMQError
from glidemq_py.gateway import partition_hubs
from glidemq_py.gateway.partition_hubs import PartitionHubs

EMPTY_S = 60.0


class FakeHub:
    """A partition with jobs; it is known to be empty once a fetch has found fewer than it wanted."""

    def __init__(self, *jobs: int):
        self.jobs = list(jobs)
        self.calls: list[int] = []
        self.released: list[int] = []
        self.failure: GlideMQError | None = None
        self.empty_until = 0.0
        self.problem = ""
        self.on_ready: Callable[[], None] | None = None
        self.gate: asyncio.Event | None = None

    def join(self, on_ready: Callable[[], None]):
        self.on_ready = on_ready

    def leave(self):
        self.on_ready = None

    def is_known_empty(self, *, waits: bool) -> bool:
        return asyncio.get_running_loop().time() < self.empty_until

    async def fetch(self, count: int, lock_ms: int, wait: float) -> list[int]:
        assert wait == 0
        self.calls.append(count)
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        found, self.jobs = self.jobs[:count], self.jobs[count:]
        if len(found) < count:
            self.empty_until = asyncio.get_running_loop().time() + EMPTY_S
        return found

    def release(self, jobs: list[int]):
        self.released += jobs

    def add(self, *jobs: int):
        """Add jobs; a message tells of them."""
        self.jobs += jobs
        self.empty_until = 0.0
        assert self.on_ready is not None
        self.on_ready()


def over(*hubs: FakeHub):
    """Return the `PartitionHubs`; their jobs are numbers here."""
    return PartitionHubs(None, cast("Any", hubs))


async def waiting(hubs: Any, count: int, seconds: float = 60.0) -> list[asyncio.Task[Any]]:
    """Start fetches of one job each, and wait until all sleep."""
    tasks = [asyncio.create_task(hubs.fetch(1, 1_000, seconds)) for _ in range(count)]
    await asleep(hubs, count)
    return tasks


async def asleep(hubs: Any, count: int):
    while len(hubs._sleeping) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_a_fetch_asks_the_partitions_until_it_has_all():
    first, second, third = FakeHub(1, 2), FakeHub(3), FakeHub(4, 5, 6)
    hubs = over(first, second, third)
    assert len(await hubs.fetch(4, 1_000, 0)) == 4
    assert len(await hubs.fetch(9, 1_000, 0)) == 2
    before = [len(hub.calls) for hub in (first, second, third)]
    assert await hubs.fetch(9, 1_000, 0) == []
    assert [len(hub.calls) for hub in (first, second, third)] == before  # all are known to be empty


async def test_partitions_have_turns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(partition_hubs, "_TURN_S", 0.0)
    parts = [FakeHub(*range(10)) for _ in range(3)]
    hubs = over(*parts)
    for _ in range(9):
        await hubs.fetch(1, 1_000, 0)
    assert [len(hub.jobs) for hub in parts] == [7, 7, 7]


async def test_one_failing_partition_does_not_hide_the_others():
    broken, other = FakeHub(), FakeHub(1)
    broken.failure = GlideMQConnectionError("gone")
    hubs = over(broken, other)
    assert await hubs.fetch(5, 1_000, 0) == [1]
    with pytest.raises(GlideMQConnectionError):
        await hubs.fetch(5, 1_000, 0)
    broken.failure = GlideMQError("damaged")
    with pytest.raises(GlideMQError, match="damaged"):
        await hubs.fetch(5, 1_000, 60)


async def test_a_fetch_that_waits_tries_again_while_the_server_is_gone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(partition_hubs, "_RETRY_S", 0.01)
    hub = FakeHub(1)
    hub.failure = GlideMQConnectionError("gone")
    hubs = over(hub)
    task = asyncio.create_task(hubs.fetch(1, 1_000, 60))
    while len(hub.calls) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    hub.failure = None
    assert await task == [1]
    hub.failure, hub.empty_until, count = GlideMQConnectionError("gone"), 0.0, len(hub.calls)
    with pytest.raises(GlideMQConnectionError):
        await hubs.fetch(1, 1_000, 0.1)
    assert len(hub.calls) - count <= 12  # it pauses


async def test_one_job_wakes_one_fetch():
    hub, other = FakeHub(), FakeHub()
    hubs = over(hub, other)
    tasks = await waiting(hubs, 100)
    calls = len(hub.calls)
    hub.add(1)
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [[1]]
    await asleep(hubs, 99)
    assert len(hub.calls) - calls <= 4  # it wakes two others, in case there are more jobs, and the timer one
    hub.add(*range(99))  # one message for all
    rest = await asyncio.gather(*(task for task in tasks if task not in done))
    assert sorted(job for jobs in rest for job in jobs) == list(range(99))


async def test_a_cancelled_fetch_releases_its_jobs_and_passes_its_wake_up_on():
    blocked, ready = FakeHub(), FakeHub(1)
    hubs = over(blocked, ready)
    blocked.gate = asyncio.Event()
    task = asyncio.create_task(hubs.fetch(5, 1_000, 60))
    while not blocked.calls:  # noqa: ASYNC110
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (ready.jobs, ready.released) == ([], [1])
    one, two = await waiting(over_again := over(FakeHub(), sleeping := FakeHub()), 2)
    sleeping.add(7)
    one.cancel()  # it was woken
    assert await two == [7]
    over_again.close()


async def test_a_fetch_ends_after_its_time_and_when_the_gateway_closes():
    hubs = over(FakeHub(), FakeHub())
    assert await hubs.fetch(1, 1_000, 0.01) == []
    (task,) = await waiting(hubs, 1)
    hubs.close()
    assert await task == []
    with pytest.raises(ClosedError):
        await hubs.fetch(1, 1_000, 0)


async def test_partitions_are_asked_again_when_they_may_have_changed():
    hub = FakeHub()
    hubs = over(hub)
    (task,) = await waiting(hubs, 1)
    hub.jobs.append(1)  # without a message
    hub.empty_until = asyncio.get_running_loop().time() + 0.02
    hubs._set_timer()
    assert await task == [1]


async def test_other_partitions_are_asked_from_now_on():
    old, new = FakeHub(), FakeHub(1)
    hubs = over(old)
    (task,) = await waiting(hubs, 1)
    hubs.use("layout", cast("Any", [new]))
    assert await task == [1]
    assert old.on_ready is None
    assert hubs.partitions == "layout"
