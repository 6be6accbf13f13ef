"""Limits per job name: concurrency and rate, in every source of ready jobs, and beside other jobs."""

from typing import Any

import pytest

from glidemq_py import Job, NameLimits, RateLimit
from glidemq_py.errors import GlideMQValidationError
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, Gate, WorkerFor


async def fetched_names(queue: Queue, count: int) -> list[str]:
    """Fetch up to ``count`` jobs, and keep them active."""
    names: list[str] = []
    while len(names) < count and (leases := await queue.fetch(count - len(names))):
        names += [lease.job.name for lease in leases]
    return names


async def test_concurrency_of_a_name(parts: int, queue: Queue):
    await queue.set_name_limits("slow", concurrency=2 * parts)
    await queue.add_bulk([("slow", i) for i in range(6)] + [("quick", i) for i in range(3)])
    leases = await queue.fetch(20)
    assert sorted(lease.job.name for lease in leases) == ["quick"] * 3 + ["slow"] * 2
    assert await queue.get_name_limits("slow") == NameLimits(
        name="slow", backlog=4, active=2, concurrency=2 * parts, rate_limit=None, limited_until=None
    )
    assert await queue.fetch(20) == []
    slow = [lease for lease in leases if lease.job.name == "slow"]
    assert [lease.job.data for lease in slow] == [0, 1]
    following = await slow[0].complete(fetch_next=20)
    assert [lease.job.data for lease in following] == [2]
    await queue.complete_leases([(slow[1], None)])
    await queue.set_name_limits("slow", concurrency=False)
    assert [lease.job.data for lease in await queue.fetch(20)] == [3, 4, 5]


async def test_rate_of_a_name(parts: int, queue: Queue):
    await queue.set_name_limits("slow", rate_limit=RateLimit(2 * parts, 3_600_000))
    await queue.add_bulk([("slow", i) for i in range(3)] + [("other", 1)])
    assert sorted(await fetched_names(queue, 10)) == ["other", "slow", "slow"]
    limits = await queue.get_name_limits("slow")
    assert (limits.backlog, limits.rate_limit) == (1, RateLimit(2 * parts, 3_600_000))
    assert limits.limited_until is not None
    await queue.set_name_limits("slow", rate_limit=False)
    assert await fetched_names(queue, 10) == ["slow"]


OPTIONS: list[dict[str, Any]] = [
    {}, {"priority": 3}, {"rank": 5_000}, {"rank": -5}, {"rank": 7, "lifo": True}, {"lifo": True},
]  # fmt: skip
IDS: Any = [
    pytest.param(each, marks=pytest.mark.exclude("partitioned", reason="it chooses another partition"))
    for each in ({"job_id": "mine"}, {"deduplication": {"id": "d"}})
]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("options", [*OPTIONS, *IDS], ids=str)
async def test_limit_holds_for_every_source_and_for_jobs_added_before(
    parts: int, queue: Queue, raw: Raw, options: Any, before: bool
):
    async def add():
        others = {name: value for name, value in options.items() if name not in ("job_id", "deduplication")}
        await queue.add_bulk([("slow", None, options), *[("slow", None, others)] * 3, ("quick",)])

    if before:
        await add()
    await queue.set_name_limits("slow", concurrency=parts)
    if not before:
        await add()
    assert sorted(await fetched_names(queue, 10)) == ["quick", "slow"]
    limits = await queue.get_name_limits("slow")
    assert (limits.active, limits.backlog) == (1, 3)
    counts = await queue.get_job_counts()
    assert (counts.waiting + counts.prioritized, counts.active) == (3, 2)
    assert raw.run("ZCARD", "fairq:\0name:slow") == 3


async def test_retries_delays_and_flows_return_to_their_name(parts: int, queue: Queue, worker_for: WorkerFor, raw: Raw):
    await queue.set_name_limits("slow", concurrency=parts)
    retried = {"attempts": 3, "backoff": 1}
    await queue.add_bulk([("slow", "fails", retried), ("slow", "later", {"delay": 5}), ("slow", "last")])
    active, most, ran = 0, 0, list[Any]()

    async def handle(job: Job):
        nonlocal active, most
        active += 1
        most = max(most, active)
        ran.append(job.data)
        try:
            await queue.get_job_counts()  # gives other jobs the chance to start
            if job.data == "fails" and job.attempts_made < 2:
                raise ValueError
        finally:
            active -= 1

    worker = worker_for(handle, concurrency=10)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("completed", 3)
    assert (most, sorted(ran)) == (1, ["fails", "fails", "fails", "last", "later"])
    assert not raw.run("EXISTS", "fair-running")
    assert not raw.run("EXISTS", "fair-active")


async def test_own_key_or_group_has_precedence(parts: int, queue: Queue):
    await queue.set_name_limits("slow", concurrency=parts)
    await queue.add_bulk([("slow", 1, {"fair_key": "tenant"})] * 3 + [("slow", 1, {"ordering": {"key": "g"}})] * 2)
    assert len(await fetched_names(queue, 10)) == 4  # one of the group
    assert [info.key async for info in queue.iter_fair_keys()] == []
    assert (await queue.get_name_limits("slow")).active == 0


async def test_keys_of_names_are_not_listed_as_fair_keys(parts: int, queue: Queue):
    await queue.set_name_limits("slow", concurrency=parts)
    await queue.add_bulk([("slow", 1), ("slow", 2), ("other", 3, {"fair_key": "name:slow"})])
    assert [info.key async for info in queue.iter_fair_keys()] == ["name:slow"]
    job = (await queue.get_jobs("waiting"))[0]
    assert job.fair_key in (None, "name:slow")
    with pytest.raises(GlideMQValidationError, match="NUL"):
        await queue.add("slow", fair_key="\0name:slow")


async def test_jobs_of_a_peer_get_the_limit_when_they_are_fetched(parts: int, queue: Queue, raw: Raw):
    await queue.set_name_limits("slow", concurrency=parts)
    for job in await queue.add_bulk([("quick", i) for i in range(3)]):
        raw.run("HSET", f"job:{job.id}", "name", "slow")  # as a peer adds it: in the stream, without a key
    assert raw.run("XLEN", "stream") == 3
    assert await fetched_names(queue, 10) == ["slow"]
    assert raw.run("XLEN", "stream") == 0
    assert (await queue.get_name_limits("slow")).backlog == 2


async def test_worker_that_waits_for_a_name_is_woken(parts: int, queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    await queue.set_name_limits("slow", concurrency=parts)
    async with worker_for(gate, concurrency=4):
        await queue.add_bulk([("slow", 1), ("slow", 2)])
        await gate.next()
        await queue.set_name_limits("slow", concurrency=2 * parts)
        await gate.next()
        gate.open()


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "at least one"), ({"concurrency": 0}, "concurrency"), ({"rate_limit": {"max": 0, "duration": 5}}, "max")],
)
async def test_invalid_limits(queue: Queue, options: Any, message: str):
    with pytest.raises(GlideMQValidationError, match=message):
        await queue.set_name_limits("slow", **options)
    with pytest.raises(GlideMQValidationError, match="name"):
        await queue.set_name_limits("", concurrency=9)
    assert "name-limits" not in await queue.get_features()


async def test_features_are_listed(parts: int, queue: Queue):
    await queue.set_name_limits("slow", concurrency=parts)
    assert set(await queue.get_features()) >= {"fair-keys", "name-limits"}
