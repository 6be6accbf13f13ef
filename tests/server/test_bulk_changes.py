"""Changes of many jobs: every step can be the last one of a process, and another one continues."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from glidemq_py import JobState, Queue, Worker
from glidemq_py._operate import action, job_actions
from tests.inside import listed_states
from tests.operating import (
    ACTIONS,
    Access,
    AccessDeniedError,
    CancelJobs,
    CleanQueue,
    DrainQueue,
    JobFilter,
    ManyAction,
    Operator,
    PromoteJobs,
    PurgeFailures,
    RemoveJobs,
    RetryFailures,
    RetryJobs,
    cancel_bulk,
    create_bulk,
    list_bulks,
    perform_bulk,
    read_bulk,
)

LATER = 3_600_000


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each step change at most twenty jobs of a filter."""
    monkeypatch.setattr(job_actions, "MAX_LISTED", 20)


async def fill(queue: Queue[Any, Any], name: str) -> None:
    """Add thirty jobs with this name to each structure of jobs that have not started."""
    kinds: list[dict[str, Any]] = [
        {}, {"lifo": True}, {"priority": 5}, {"rank": 7_000}, {"delay": LATER}, {"delay": LATER, "priority": 3},
        {"fair_key": "tenant"}, {"fair_key": "tenant", "delay": LATER}, {"ordering": {"key": "one", "concurrency": 1}},
    ]  # fmt: skip
    await queue.add_bulk([(name, {"n": n}, options) for options in kinds for n in range(30)])


async def interrupted(operator: Operator, change: ManyAction) -> tuple[int, int]:
    """Perform a change, each step by a new generator; return the number of changed jobs and of steps."""
    queue = await operator.queue(change.queue)
    done, taken, position = 0, 0, ""
    while True:
        async with aclosing(change.steps(operator, queue, position)) as steps:
            step = await anext(steps)
        assert not step.problems
        done, taken, position = done + step.done, taken + 1, step.position
        if not position:
            return done, taken


@pytest.mark.usefixtures("small_steps", "key_leaks")
@pytest.mark.parametrize("kind", [RemoveJobs, CancelJobs])
async def test_jobs_in_every_structure_are_changed_in_steps_that_can_be_interrupted(
    queue: Queue, url: str, queue_name: str, kind: type[RemoveJobs | CancelJobs]
) -> None:
    async with Operator(url) as operator:
        await fill(queue, "wanted")
        await fill(queue, "other")
        change = kind(queue=queue_name, wanted=JobFilter(name="wanted"))
        assert await change.count(operator) == 270
        done, steps = await interrupted(operator, change)
        assert done == 270
        assert steps > 10
        left = [job for state in listed_states() async for job in queue.iter_jobs(state)]
        others = [job for job in left if job.name == "other"]
        assert len(others) == 270
        assert not any(job.state is JobState.FAILED for job in others)
        changed = [job for job in left if job.name == "wanted"]
        assert len(changed) == (270 if kind is CancelJobs else 0)
        assert {job.state for job in changed} <= {JobState.FAILED}
        await queue.obliterate(force=True)


async def failed(queue: Queue[Any, Any], url: str, jobs: int) -> None:
    async def fail(job: Any) -> None:
        raise ValueError("no")

    ended = asyncio.Semaphore(0)
    await queue.add_bulk([("even" if n % 2 == 0 else "odd", n) for n in range(jobs)])
    worker = Worker(queue.name, fail, url, concurrency=50, log_failures=False)
    worker.on("failed", lambda *_: ended.release())
    async with worker, asyncio.timeout(100):
        for _ in range(jobs):
            await ended.acquire()


@pytest.mark.usefixtures("small_steps", "key_leaks")
@pytest.mark.parametrize(
    ("change", "number", "left"),
    [
        (RetryJobs(queue="", wanted=JobFilter(state="failed", data={"n": 1})), 0, 240),
        (RetryJobs(queue="", wanted=JobFilter(tags=())), 240, 0),
        (RetryJobs(queue="", wanted=JobFilter(name="odd"), completed=True), 120, 120),
        (RetryJobs(queue="", wanted=JobFilter(name="odd")), 120, 120),
        (RetryFailures(queue="", name="even"), 120, 120),
        (PurgeFailures(queue=""), 240, 0),
        (CleanQueue(queue="", state="failed", limit=30), 30, 210),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ManyAction) else "",
)
async def test_failed_jobs_are_changed_in_steps(
    queue: Queue, url: str, queue_name: str, change: ManyAction, number: int, left: int
) -> None:
    async with Operator(url) as operator:
        await failed(queue, url, 240)
        mine = replace(change, queue=queue_name)
        assert await mine.count(operator) == number
        assert (await interrupted(operator, mine))[0] == number
        assert (await queue.get_job_counts()).failed == left
        await queue.obliterate(force=True)


@pytest.mark.parametrize(
    ("criteria", "number"), [({}, 0), ({"tags": ("t",)}, 0), ({"tags": ("t",), "error": "rev"}, 2)]
)
async def test_a_filter_requeues_cancelled_jobs_only_if_it_names_them(
    queue: Queue, url: str, queue_name: str, criteria: dict[str, Any], number: int
) -> None:
    async with Operator(url) as operator:
        for job in await queue.add_bulk([("a", n, {"tags": ["t"]}) for n in range(2)]):
            await job.revoke()
        change = RetryJobs(queue=queue_name, wanted=JobFilter(state="failed", **criteria))
        assert sum([step.done async for step in change.steps(operator, queue)]) == number
        assert (await queue.get_job_counts()).failed == 2 - number


@pytest.mark.usefixtures("key_leaks")
async def test_ready_and_delayed_jobs_are_changed_in_steps(queue: Queue, url: str, queue_name: str) -> None:
    async with Operator(url) as operator:
        await fill(queue, "a")
        await queue.add_bulk([("later", n, {"delay": LATER + n}) for n in range(230)])  # those of one time are one step
        promoted = PromoteJobs(queue=queue_name, wanted=JobFilter(name="later"))
        assert await promoted.count(operator) == 230
        done, steps = await interrupted(operator, promoted)
        assert (done, steps >= 3) == (230, True)
        drained = DrainQueue(queue=queue_name)
        number = await drained.count(operator)
        assert number == 230 + 6 * 30
        assert (await interrupted(operator, drained))[0] == number
        assert (await queue.get_job_counts()).delayed == 90
        await queue.obliterate(force=True)


@pytest.mark.usefixtures("small_steps")
async def test_jobs_added_meanwhile_are_not_changed(queue: Queue, url: str, queue_name: str) -> None:
    async with Operator(url) as operator:
        await queue.add_bulk([("a", n) for n in range(50)])
        change = RemoveJobs(queue=queue_name, wanted=JobFilter(state="waiting"))
        done = 0
        async for step in change.steps(operator, await operator.queue(queue_name)):
            done += step.done
            if not step.position or done < 60:
                await queue.add_bulk([("new", n) for n in range(20)])
                # The time of the start and that of these jobs may be the same millisecond.
        assert 50 <= done <= 70
        assert (await queue.get_job_counts()).waiting >= 20


@pytest.mark.usefixtures("small_steps", "key_leaks")
async def test_bulk_change_is_stored_cancelled_and_continued(queue: Queue, url: str, queue_name: str) -> None:
    async with Operator(url) as operator:
        await queue.add_bulk([("a", n) for n in range(100)])
        wanted = JobFilter(state="waiting", data={"n": 1}, tags=("x",), name="b")
        nothing = await create_bulk(operator, RemoveJobs(queue=queue_name, wanted=wanted), "bo", "remove", 0)
        await perform_bulk(operator, nothing)
        ended = await read_bulk(operator, nothing)
        assert ended is not None
        assert (ended.state, ended.done, ended.is_over, ended.label) == ("finished", 0, True, "remove")

        change = RemoveJobs(queue=queue_name, wanted=JobFilter(name="a"))
        stopped = await create_bulk(operator, change, "bo", "remove", 100)
        begun = await read_bulk(operator, stopped)
        assert begun is not None
        assert (begun.state, begun.total, begun.done, begun.user) == ("running", 100, 0, "bo")
        assert await cancel_bulk(operator, stopped)
        assert not await cancel_bulk(operator, stopped)
        await perform_bulk(operator, stopped)
        assert (await queue.get_job_counts()).waiting == 100

        reader = await operator.with_access(Access(actions=()))
        with pytest.raises(AccessDeniedError):
            await create_bulk(reader, change, "bo", "remove", 100)
        other = await create_bulk(operator, change, "bo", "remove", 100)
        with pytest.raises(AccessDeniedError):
            await perform_bulk(reader, other)
        with pytest.raises(AccessDeniedError):
            await cancel_bulk(reader, other)
        blind = await operator.with_access(Access(queues=["none"]))
        assert await read_bulk(blind, other) is None
        assert await list_bulks(blind) == []
        mine = [each.id for each in await list_bulks(operator, 100) if each.queue == queue_name]
        assert mine == [other, stopped, nothing]
        await perform_bulk(operator, other)
        assert (await queue.get_job_counts()).waiting == 0
        await queue.obliterate(force=True)


def test_every_change_of_many_jobs_can_be_stored() -> None:
    def below(kind: type[Any]) -> set[type[Any]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    named = {kind.__name__ for kind in below(action.ManyAction) if "kind" in vars(kind)}
    assert named <= set(ACTIONS)
