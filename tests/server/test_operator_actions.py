"""Promoting many jobs, removing, canceling and discarding jobs in given states, and cleaning jobs of every state."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from glidemq_py import (
    FlowJob,
    FlowProducer,
    GlideMQValidationError,
    Job,
    JobNotFoundError,
    JobState,
    JobStateError,
    Queue,
    Worker,
)
from glidemq_py.errors import SuspendError
from tests.server.worker_support import EventRecorder, Gate, Raw

HOUR = timedelta(hours=1)


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url) as queue:
        yield queue
        await queue.obliterate(force=True)


async def read_all(queue: Queue, state: str) -> list[str]:
    return [job.id async for job in queue.iter_jobs(state)]


# -- promote_jobs ------------------------------------------------------------------------------------------


async def test_promoted_jobs_keep_the_rules_of_their_order(queue: Queue):
    options: list[dict[str, Any]] = [
        {},
        {"priority": 3},
        {"rank": 5_000},
        {"rank": -7},
        {"lifo": True},
        {"priority": 1},
    ]
    jobs = await queue.add_bulk([("a", n, {"delay": HOUR, **each}) for n, each in enumerate(options)])
    assert await queue.jobs.promote_delayed() == len(jobs)
    leases = await queue.fetch(10)
    assert [lease.job.data for lease in leases] == [2, 5, 1, 4, 0, 3]
    await queue.leases.release(leases)
    assert (await queue.check()).ok


async def test_limits_hold_for_promoted_jobs(queue: Queue):
    await queue.fair_keys.set_limits("k", concurrency=1)
    ordered = {"ordering": {"key": "o"}, "delay": HOUR}
    await queue.add_bulk([("a", n, ordered) for n in range(3)])
    await queue.add_bulk([("a", n, {"fair_key": "k", "delay": HOUR}) for n in range(3)])
    assert await queue.jobs.promote_delayed() == 6
    leases = await queue.fetch(10)
    assert sorted(lease.job.data for lease in leases) == [0, 0]
    for _ in range(2):
        leases = list((await queue.leases.complete([(lease, None) for lease in leases], fetch_next=10)).leases)
    assert sorted(lease.job.data for lease in leases) == [2, 2]
    await queue.leases.complete([(lease, None) for lease in leases])
    assert (await queue.check()).ok


async def test_promotion_by_name_and_count(queue: Queue, raw: Raw):
    await queue.add_bulk([(name, n, {"delay": 60_000 + n}) for n in range(150) for name in ("a", "b")])
    assert await queue.jobs.promote_delayed(120, name="b") == 120
    waiting = [job async for job in queue.iter_jobs("waiting")]
    assert {job.name for job in waiting} == {"b"}
    assert sorted(job.data for job in waiting) == list(range(120))
    assert await queue.jobs.promote_delayed(name="b") == 30
    assert await queue.jobs.promote_delayed() == 150
    assert await queue.jobs.promote_delayed() == 0
    assert raw.run("EXISTS", "scheduled") == 0
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(GlideMQValidationError, match=f"option 'count' = {wrong}: must be .* 1"):
            await queue.jobs.promote_delayed(wrong)  # type: ignore[arg-type]
    with pytest.raises(GlideMQValidationError, match="name"):
        await queue.jobs.promote_delayed(name="")


async def test_retry_that_waits_is_promoted(queue: Queue, url: str):
    runs: list[int] = []

    async def handler(job: Job) -> int:
        runs.append(job.attempts_made)
        if len(runs) == 1:
            raise ValueError("first attempt")
        return len(runs)

    worker = Worker(queue.name, handler, url)
    events = EventRecorder(worker)
    async with worker:
        job = await queue.add("a", attempts=3, backoff=3_600_000)
        await events.wait("retrying")
        assert await job.get_state() == "delayed"
        assert await queue.jobs.promote_delayed() == 1
        assert await job.wait_until_finished(120_000) == 2
    assert runs == [0, 1]


# -- states ------------------------------------------------------------------------------------------------


async def test_jobs_are_removed_and_canceled_in_given_states(queue: Queue):
    waiting, delayed = await queue.add("a"), await queue.add("a", delay=HOUR)
    with pytest.raises(JobStateError, match=f"cannot revoke job '{delayed.id}': it is delayed") as refused:
        await queue.revoke(delayed.id, states=("waiting", JobState.ACTIVE))
    assert (refused.value.state, refused.value.action) == ("delayed", "revoke")
    with pytest.raises(JobStateError, match=r"cannot remove .* it is delayed"):
        await queue.remove(delayed.id, states="waiting")
    for action in (delayed.remove, delayed.revoke):
        with pytest.raises(JobStateError, match="it is delayed"):
            await action(states=["failed", "completed"])
    assert not await delayed.is_revoked()
    assert await waiting.revoke(states="waiting") == "revoked"
    assert await queue.remove(waiting.id, states=[JobState.FAILED]) is True
    assert await queue.remove(waiting.id, states=[JobState.FAILED]) is False
    assert await queue.revoke(waiting.id, states="failed") == "not_found"
    assert await queue.revoke(delayed.id, states=iter(("delayed",))) == "revoked"


@pytest.mark.parametrize("states", ["", "waitin", (), [1], ["waiting", "gone"], 5, {"waiting": 1}, b"waiting"])
async def test_invalid_states_are_rejected(queue: Queue, states: Any):
    job = await queue.add("a")
    for action in (job.remove, job.revoke):
        with pytest.raises(GlideMQValidationError, match="states"):
            await action(states=states)
    assert await job.get_state() == "waiting"


# -- discard -----------------------------------------------------------------------------------------------


async def test_discarded_job_is_not_retried(queue: Queue, url: str):
    gate = Gate()

    async def handler(job: Job):
        await gate(job)
        raise ValueError("on purpose")

    worker = Worker(queue.name, handler, url)
    events = EventRecorder(worker)
    async with worker:
        job = await queue.add("a", attempts=5)
        await gate.next()
        await queue.jobs.discard(job.id)
        gate.open()
        await events.wait("failed")
    assert await job.get_state() == "failed"
    failed = await queue.failures.get_attempts(job.id)
    assert [(attempt.reason, attempt.error) for attempt in failed] == [("explicit_fail", "on purpose")]
    with pytest.raises(JobStateError, match=f"cannot discard the attempts of job '{job.id}': it is failed"):
        await queue.jobs.discard(job.id)
    with pytest.raises(JobNotFoundError):
        await queue.jobs.discard("none")


# -- clean -------------------------------------------------------------------------------------------------


async def test_waiting_jobs_of_every_source_are_cleaned(queue: Queue):
    kinds: dict[str, list[dict[str, Any]]] = {
        "waiting": [{}, {"lifo": True}, {"fair_key": "a"}, {"fair_key": "b"}],
        "prioritized": [{"priority": 1}, {"priority": 9}, {"rank": 3_000}, {"rank": -5}],
        "delayed": [{"delay": HOUR}, {"delay": HOUR, "priority": 5}, {"delay": HOUR, "rank": -5},
                    {"delay": HOUR, "fair_key": "a"}],
    }  # fmt: skip
    for options in kinds.values():
        await queue.add_bulk([("a", n, each) for each in options for n in range(60)])
    await queue.pause()
    for state in kinds:
        before = set(await read_all(queue, state))
        assert len(before) == 240
        assert await queue.clean(HOUR, state=state) == []
        first = await queue.clean(0, 130, state)
        assert len(first) == 130
        rest = await queue.clean(0, state=state)
        assert sorted([*first, *rest]) == sorted(before)
        assert await read_all(queue, state) == []
    counts = await queue.get_job_counts()
    assert (counts.waiting, counts.prioritized, counts.delayed) == (0, 0, 0)
    assert (await queue.check()).ok


async def test_other_states_are_cleaned(queue: Queue, url: str, raw: Raw):
    async def handler(job: Job):
        if job.name == "suspend":
            raise SuspendError("later")

    async with FlowProducer(url) as flows:
        await queue.add_bulk([("group", n, {"ordering": {"key": f"k{n % 2}"}}) for n in range(6)])
        leases = await queue.fetch(6)
        assert len(leases) == 2
        leases += await queue.fetch(6)
        assert (await queue.get_job_counts()).group_waiting == 4
        suspended = await queue.add("suspend")
        flow = await flows.add(
            FlowJob("parent", queue.name, children=[FlowJob("c", queue.name, options={"delay": HOUR})])
        )
        worker = Worker(queue.name, handler, url)
        events = EventRecorder(worker)
        async with worker:
            await events.wait("suspended")
    assert len(await queue.clean(0, state="group-waiting")) == 4
    assert await queue.clean(0, state="suspended") == [suspended.id]
    assert await queue.clean(0, state="waiting-children") == [flow.job.id]
    assert await queue.clean(0, state="delayed") == [flow.children[0].job.id]
    assert raw.run("EXISTS", f"job:{flow.job.id}", raw.key(f"deps:{flow.job.id}")) == 0
    await queue.leases.complete([(lease, None) for lease in leases])
    assert sorted(await queue.clean(0, state="completed")) == sorted(lease.job.id for lease in leases)
    assert (await queue.check()).ok


async def test_active_jobs_are_not_cleaned(queue: Queue):
    with pytest.raises(GlideMQValidationError, match="state"):
        await queue.clean(0, state="active")
    jobs = await queue.add_bulk([("a", n) for n in range(5)])
    leases = await queue.fetch(2)
    assert sorted(await queue.clean(0, state="waiting")) == [job.id for job in jobs[2:]]
    await queue.leases.complete([(lease, None) for lease in leases])


async def test_only_old_jobs_are_cleaned(queue: Queue, raw: Raw):
    """Young jobs lie between the old ones, in each structure."""
    for options in ({}, {"lifo": True}, {"priority": 4}, {"delay": HOUR}, {"fair_key": "k"}):
        jobs = await queue.add_bulk([("a", n, options) for n in range(250)])
        old = [job.id for job in jobs if job.data % 5]
        for job_id in old:
            raw.run("HSET", f"job:{job_id}", "timestamp", "1700000000000")
        state = await jobs[0].get_state()
        assert state is not None
        assert sorted(await queue.clean(HOUR, state=state)) == sorted(old)
        assert len(await read_all(queue, state)) == 50
        assert len(await queue.clean(0, state=state)) == 50
    assert (await queue.check()).ok
