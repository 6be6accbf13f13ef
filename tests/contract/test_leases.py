"""Leases: jobs that are fetched and reported without a worker."""

import asyncio
import contextlib
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import (
    DelayedError,
    FlowJob,
    GlideMQValidationError,
    Job,
    JobFailedError,
    JobNotLoadedError,
    JobRevokedError,
    JobState,
    LeaseLostError,
    LeaseOutcome,
    StaleAttemptError,
    UnrecoverableError,
)
from glidemq_py.sync import Lease as BlockingLease
from glidemq_py.sync import Queue as BlockingQueue
from tests.contract.api import FlowProducer, Lease, Queue
from tests.server.worker_support import EventRecorder, WorkerFor, until, with_timeout

PROGRAM = """
import sys
from glidemq_py.sync import Queue
with Queue(sys.argv[2], sys.argv[1]) as queue:
    leases = queue.fetch(10, lock_duration=1_000, count_expiry=sys.argv[3] == "counts")
    print(len(leases), flush=True)
    sys.stdin.read()
"""


async def lease_one(queue: Queue, **options: Any) -> Lease:
    (lease,) = await queue.fetch(1, **options)
    return lease


async def job_of(queue: Queue, job_id: str) -> Job:
    job = await queue.get_job(job_id)
    assert job is not None
    return job


# -- one lease ---------------------------------------------------------------------------------------------


async def test_complete_stores_the_result_and_fetches_the_next(queue: Queue):
    await queue.add_bulk([("a", {"n": n}) for n in range(3)])
    first = await lease_one(queue)
    assert (first.name, first.data, first.job.attempts_made) == ("a", {"n": 0}, 0)
    second, third = await first.complete({"ok": True}, fetch_next=5)
    assert (await job_of(queue, first.id)).returnvalue == {"ok": True}
    assert await second.complete() == []
    assert (third.data, third.expires_at - (third.job.processed_on or 0)) == ({"n": 2}, 30_000)


async def test_fail_retries_after_the_backoff_and_then_fails(queue: Queue):
    added = await queue.add("a", attempts=2, backoff=60_000, remove_on_fail=False)
    lease = await lease_one(queue)
    await lease.fail(ValueError("no"))
    job = await job_of(queue, added.id)
    assert (await job.get_state(), job.attempts_made, job.failed_reason, job.failed_type) == (
        JobState.DELAYED, 1, "no", "ValueError",
    )  # fmt: skip
    assert "ValueError: no" in job.stacktrace[0]
    await queue.promote(added.id)
    again = await lease_one(queue)
    assert (again.job.attempts_made, again.job.failed_reason) == (1, "no")
    await again.fail("still no")
    job = await job_of(queue, added.id)
    assert (await job.get_state(), job.failed_reason, len(job.stacktrace)) == (JobState.FAILED, "still no", 1)


@pytest.mark.parametrize(("error", "retry"), [("x", False), (UnrecoverableError("x"), True)])
async def test_fail_without_retry(queue: Queue, error: Any, retry: bool):
    await queue.add("a", attempts=5)
    lease = await lease_one(queue)
    await lease.fail(error, retry=retry)
    assert (await queue.get_job_counts()).failed == 1


async def test_release_counts_no_attempt(queue: Queue):
    await queue.add("a")
    lease = await lease_one(queue)
    await lease.release()
    again = await lease_one(queue)
    assert (again.id, again.job.attempts_made) == (lease.id, 0)
    with pytest.raises(LeaseLostError) as caught:
        await lease.complete()
    assert isinstance(caught.value, StaleAttemptError)
    assert caught.value.job_id == lease.id


async def test_extend_returns_the_new_deadline(queue: Queue):
    await queue.add("a")
    lease = await lease_one(queue, lock_duration=timedelta(seconds=5))
    before = lease.expires_at
    assert await lease.extend(60_000) > before + 50_000
    assert lease.expires_at > before + 50_000
    await queue.revoke(lease.id)
    with pytest.raises(JobRevokedError):
        await lease.extend(60_000)
    await lease.fail(JobRevokedError("stop"))
    assert (await queue.get_job_counts()).failed == 1


async def test_lock_duration_of_the_job_shortens_the_lock(queue: Queue):
    await queue.add("a", lock_duration=5_000)
    lease = await lease_one(queue, lock_duration=60_000)
    started = lease.job.processed_on
    assert started is not None
    assert lease.expires_at == started + 5_000
    assert started + 5_000 <= await lease.extend(60_000) < started + 60_000
    await lease.release()
    short = await lease_one(queue, lock_duration=1_000)
    assert short.job.processed_on is not None
    assert short.expires_at == short.job.processed_on + 1_000
    await short.complete()


async def test_job_limits_its_traceback(
    queue: Queue,
    worker_for: WorkerFor,
):
    async def handler(job: Job):
        raise ValueError("no")

    async with worker_for(handler):
        job = await queue.add("a", stack_trace_limit=1)
        with pytest.raises(JobFailedError):
            await job.wait_until_finished()
    failed = await queue.get_jobs("failed")
    assert failed[0].stacktrace == ("ValueError: no\n",)


async def test_a_repeated_report_is_accepted(queue: Queue):
    await queue.add("a")
    lease = await lease_one(queue)
    await lease.complete(1)
    await lease.complete(2)
    assert (await job_of(queue, lease.id)).returnvalue == 1


async def test_a_lost_lease_with_fetch_next_keeps_no_job(queue: Queue):
    await queue.add("a")
    lease = await lease_one(queue)
    await queue.remove(lease.id)
    await queue.add("b")
    with pytest.raises(LeaseLostError):
        await lease.complete(fetch_next=1)
    counts = await queue.get_job_counts()
    assert (counts.waiting, counts.active) == (1, 0)


async def test_job_methods_contain_the_fencing_token(queue: Queue):
    await queue.add("a")
    lease = await lease_one(queue)
    await lease.job.update_progress(50)
    await lease.job.log("half")
    await lease.release()
    await lease_one(queue)
    with pytest.raises(StaleAttemptError):
        await lease.job.update_progress(60)


async def test_a_signal_has_the_effect_that_it_has_in_a_handler(queue: Queue):
    added = await queue.add("a")
    async with queue.lease() as lease:
        assert lease is not None
        raise DelayedError(60_000)
    assert await added.get_state() is JobState.DELAYED


# -- blocks ------------------------------------------------------------------------------------------------


async def test_block_completes_fails_or_releases(queue: Queue):
    done, failed, released = [(await queue.add("a")).id for _ in range(3)]
    async with queue.lease() as lease:
        assert lease is not None
    with pytest.raises(ValueError, match="boom"):
        async with queue.lease():
            raise ValueError("boom")
    with pytest.raises(asyncio.CancelledError):
        async with queue.lease():
            raise asyncio.CancelledError
    states = [await (await job_of(queue, each)).get_state() for each in (done, failed, released)]
    assert states == [JobState.COMPLETED, JobState.FAILED, JobState.WAITING]


async def test_block_leaves_a_report_alone_and_may_have_no_job(queue: Queue):
    done = (await queue.add("a")).id
    async with queue.lease() as lease:
        assert lease is not None
        await lease.complete(7)
    assert (await job_of(queue, done)).returnvalue == 7
    async with queue.lease() as nothing:
        assert nothing is None


# -- many --------------------------------------------------------------------------------------------------


async def test_each_lease_of_many_has_an_outcome(queue: Queue):
    await queue.add_bulk([("a", n, {"attempts": 2} if n == 2 else {}) for n in range(5)])
    leases = await queue.fetch(5)
    await queue.remove(leases[0].id)
    await leases[1].release()
    report = await queue.fail_leases([(lease, f"no {lease.id}") for lease in leases[:3]], fetch_next=1)
    assert report.outcomes == [LeaseOutcome.GONE, LeaseOutcome.LOST, LeaseOutcome.RETRYING]
    assert [outcome.applied for outcome in report.outcomes] == [False, False, True]
    assert len(report.leases) == 1
    assert await queue.extend_leases(leases[2:4], 5_000) == [LeaseOutcome.LOST, LeaseOutcome.EXTENDED]
    assert (await queue.complete_leases([(leases[3], 1)])).outcomes == [LeaseOutcome.COMPLETED]
    assert await queue.release_leases([leases[3], leases[4]]) == [LeaseOutcome.LOST, LeaseOutcome.RELEASED]


async def test_leases_of_another_queue_are_rejected(queue: Queue, url: Any, queue_name: str):
    same_name = Queue(queue_name, url, prefix="other")
    another = Queue(f"{queue_name}-b", url)
    async with same_name, another:
        for each in (queue, another, same_name):
            await each.add("a")
        theirs, own = await lease_one(queue), await lease_one(same_name)
        await another.fetch(1)
        what = f"is a lease of queue '{queue_name}'; must be one of queue '{queue_name}-b'"
        calls: list[tuple[Any, str]] = [
            (another.complete_leases([(theirs, 1)]), r"results\[0\]"),
            (another.fail_leases([(theirs, "no")]), r"failures\[0\]"),
            (another.release_leases([theirs]), r"leases\[0\]"),
            (another.extend_leases([theirs], 5_000), r"leases\[0\]"),
        ]
        for call, option in calls:
            with pytest.raises(GlideMQValidationError, match=f"option '{option}' .*{what}"):
                await call
        prefixes = r"lease of queue '.*' \(prefix 'glide'\); must be one of queue '.*' \(prefix 'other'\)"
        with pytest.raises(GlideMQValidationError, match=r"results\[1\].*" + prefixes):
            await same_name.complete_leases([(own, 1), (theirs, 2)])
        with pytest.raises(GlideMQValidationError, match=r"\(prefix 'other'\); it is one of .* \(prefix 'glide'\)"):
            Lease.from_token(same_name, theirs.token)
        counts = [(await each.get_job_counts()).active for each in (queue, another, same_name)]
        assert counts == [1, 1, 1]
        await another.obliterate(force=True)
        await same_name.obliterate(force=True)


async def test_a_report_of_no_lease_fetches(queue: Queue):
    await queue.add_bulk([("a", n) for n in range(3)])
    report = await queue.complete_leases([], fetch_next=1)
    assert (report.outcomes, [lease.data for lease in report.leases]) == ([], [0])
    (lease,) = report.leases
    assert lease.expires_at - (lease.job.processed_on or 0) == 30_000
    assert [lease.data for lease in (await queue.fail_leases([], fetch_next=5)).leases] == [1, 2]
    assert await queue.complete_leases([]) == ([], [])
    assert await queue.release_owner() == 3


async def test_more_leases_than_fit_in_a_call(queue: Queue):
    await queue.add_bulk([("a", n) for n in range(1_100)])
    leases = [lease for _ in range(3) for lease in await queue.fetch(500)]
    assert len(leases) == 1_100
    assert set(await queue.extend_leases(leases, 60_000)) == {LeaseOutcome.EXTENDED}
    report = await queue.complete_leases([(lease, lease.data) for lease in leases], fetch_next=5)
    assert (len(report.outcomes), set(report.outcomes), report.leases) == (1_100, {LeaseOutcome.COMPLETED}, [])
    assert (await queue.check()).ok


async def test_release_of_an_owner(queue: Queue):
    await queue.add_bulk([("a", n) for n in range(6)])
    await queue.fetch(2, owner="client 1")
    await queue.fetch(2, owner="client 2")
    await queue.fetch(2)
    assert await queue.release_owner("client 1") == 2
    assert await queue.release_owner("client 1") == 0
    assert await queue.release_owner() == 2
    assert (await queue.get_job_counts()).active == 2


# -- waiting -----------------------------------------------------------------------------------------------


async def test_fetch_waits_for_a_job(queue: Queue):
    assert await queue.fetch(1, wait=20) == []
    waiting = [asyncio.create_task(queue.fetch(1, wait=60_000)) for _ in range(3)]
    await asyncio.sleep(0)
    await queue.add("a")
    await queue.add("b", delay=50)
    await queue.add("c", priority=1)
    found = [lease.name for leases in await with_timeout(asyncio.gather(*waiting)) for lease in leases]
    assert sorted(found) == ["a", "b", "c"]


@pytest.mark.exclude("blocking", reason="a thread cannot be cancelled")
async def test_a_cancelled_fetch_holds_no_job(queue: Queue):
    for _ in range(10):
        waiting = asyncio.create_task(queue.fetch(1, wait=60_000))
        await queue.add("a")
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await queue.release_leases(await waiting)  # it had ended before

    async def none_is_active() -> bool:
        return (await queue.get_job_counts()).active == 0

    async with asyncio.timeout(60):
        while not await none_is_active():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    found = await queue.fetch(10, wait=5_000)
    assert len(found) == 10


@pytest.mark.exclude("blocking", reason="a thread cannot be cancelled")
async def test_a_fetch_cancelled_after_it_was_sent_releases_its_jobs(queue: Queue):
    await queue.add("a")
    fetching = asyncio.create_task(queue.fetch(1))
    await asyncio.sleep(0)  # it has sent its call
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    (lease,) = await queue.fetch(1, wait=20_000)
    await lease.complete()
    (job,) = await queue.get_jobs("completed")
    assert job.attempts_made == 0


async def test_closing_ends_a_waiting_fetch(queue: Queue, url: Any):
    other = Queue(queue.name, url)
    waiting = asyncio.create_task(other.fetch(1, wait=60_000))
    await other.get_job_counts()
    await other.close()
    (error,) = await with_timeout(asyncio.gather(waiting, return_exceptions=True))
    assert isinstance(error, Exception)


async def test_limits_and_pauses_apply(parts: int, queue: Queue):
    await queue.add_bulk([("a", n) for n in range(5)])
    await queue.set_global_concurrency(2 * parts)
    leases = await queue.fetch(5)
    assert len(leases) == 2
    assert await queue.fetch(5) == []
    await leases[0].complete()
    assert len(await queue.fetch(5)) == 1
    await queue.set_global_concurrency(0)
    await queue.pause()
    assert await queue.fetch(5) == []


async def test_a_group_leases_one_job_at_a_time(queue: Queue):
    for n in range(3):
        await queue.add("a", n, ordering={"key": "k"})
    (lease,) = await queue.fetch(5)
    assert await queue.fetch(5) == []
    (following,) = await lease.complete(fetch_next=5)
    assert following.data == 1


async def test_results_reach_parents_and_dead_letters_without_a_worker(
    queue: Queue, url: Any, flows: FlowProducer, queue_name: str
):
    async with Queue(f"{queue_name}-children", url, dead_letter_queue="dead") as children:
        root = await flows.add(FlowJob("p", queue_name, children=[FlowJob("c", children.name)]))
        child = await lease_one(children)
        await child.complete("from the child")
        (parent,) = await queue.fetch(1, wait=10_000)
        assert parent.id == root.job.id
        assert list((await parent.job.get_children_values()).values()) == ["from the child"]
        await children.add("bad")
        await (await lease_one(children)).fail("no")
        assert [entry.data["failedReason"] for entry in await children.get_dead_letter_jobs()] == ["no"]
        await children.obliterate(force=True)
    async with Queue("dead", url) as dead:
        await dead.obliterate(force=True)


# -- tokens ------------------------------------------------------------------------------------------------


async def test_a_token_reports_from_elsewhere(queue: Queue, url: Any):
    await queue.add_bulk([("a", n, {"attempts": 3, "backoff": 60_000}) for n in range(2)])
    await queue.add("removed", remove_on_complete=True)
    done, failed, removed = await queue.fetch(3)
    with BlockingQueue(queue.name, url) as other:
        BlockingLease.from_token(other, done.token).complete("yes")
    lease = Lease.from_token(queue, failed.token)
    assert (lease.id, lease.token) == (failed.id, failed.token)
    with pytest.raises(JobNotLoadedError, match=r"made from a token has no job: .* queue\.get_job\(lease\.id\)"):
        _ = lease.job
    await lease.fail("no")
    await Lease.from_token(queue, removed.token).complete()
    assert (await job_of(queue, done.id)).returnvalue == "yes"
    assert await (await job_of(queue, failed.id)).get_state() is JobState.DELAYED
    assert await queue.get_job(removed.id) is None


REPORTER = """
import sys
from glidemq_py.sync import Lease, Queue
with Queue(sys.argv[2], sys.argv[1]) as queue:
    lease = Lease.from_token(queue, sys.argv[3])
    job = queue.get_job(lease.id)
    lease.complete({"doubled": job.data["n"] * 2})
    print(lease.id, lease.ended)
"""


@pytest.mark.slow
@pytest.mark.exclude("memory", reason="needs a process")
async def test_another_process_completes_the_lease_of_a_token(queue: Queue, url: Any):
    await queue.add("double", {"n": 21})
    (lease,) = await queue.fetch(1)
    reporter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", REPORTER, f"{url}?allow_no_aof=true", queue.name, lease.token,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert await with_timeout(reporter.communicate()) == (f"{lease.id} True\n".encode(), b"")
    assert reporter.returncode == 0
    job = await job_of(queue, lease.id)
    assert (await job.get_state(), job.returnvalue) == (JobState.COMPLETED, {"doubled": 42})
    await lease.complete("late")  # the same attempt: accepted, and without effect
    assert (await job_of(queue, lease.id)).returnvalue == {"doubled": 42}
    with pytest.raises(LeaseLostError):
        await lease.extend(30_000)


@pytest.mark.exclude("blocking", reason="names the classes of asynchronous code")
async def test_a_token_of_another_queue_is_rejected(queue: Queue, url: Any):
    await queue.add("a")
    token = (await lease_one(queue)).token
    async with Queue("another", url) as other:
        with pytest.raises(
            GlideMQValidationError, match=f"must be a token of queue 'another'; it is one of queue '{queue.name}'"
        ):
            Lease.from_token(other, token)
    with pytest.raises(GlideMQValidationError, match=r"must be a glidemq_py\.Queue, not builtins\.str"):
        Lease.from_token("another", token)
    with (
        BlockingQueue(queue.name, url) as blocking,
        pytest.raises(GlideMQValidationError, match=r"must be a glidemq_py\.Queue, not glidemq_py\.sync\."),
    ):
        Lease.from_token(blocking, token)
    with pytest.raises(GlideMQValidationError, match=r"must be a glidemq_py\.sync\.Queue, not glidemq_py\._api\."):
        BlockingLease.from_token(queue, token)
    for malformed in ("", "l1.", "l1.%%%", token[:-3], f"l2{token[2:]}", None, 5):
        with pytest.raises(GlideMQValidationError, match="token"):
            Lease.from_token(queue, malformed)  # type: ignore[arg-type]


# -- invalid arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"count": 0}, "count"), ({"count": 501}, "count"), ({"count": "5"}, "count"),
        ({"lock_duration": 999}, "lock_duration"), ({"lock_duration": 43_200_001}, "lock_duration"),
        ({"wait": -1}, "wait"), ({"wait": 3_600_001}, "wait"), ({"owner": ""}, "owner"), ({"owner": 5}, "owner"),
        ({"owner": "x" * 257}, "owner"), ({"count_expiry": 1}, "count_expiry"),
    ],
)  # fmt: skip
async def test_invalid_arguments_of_fetch(queue: Queue, options: Any, option: str):
    with pytest.raises(GlideMQValidationError, match=f"'{option}' = "):
        await queue.fetch(**options)


async def test_invalid_reports(queue: Queue):
    await queue.add("a")
    lease = await lease_one(queue)
    calls: list[tuple[Any, str]] = [
        (lease.fail(5), "error"), (lease.fail("x", retry=1), "retry"),  # type: ignore[arg-type]
        (lease.complete(fetch_next=501), "fetch_next"), (lease.extend(5), "duration"),
        (queue.complete_leases([lease]), r"results\[0\]"),  # type: ignore[list-item]
        (queue.fail_leases([("x", "y")]), r"failures\[0\]"),  # type: ignore[list-item]
        (queue.release_leases("ab"), r"leases(\[0\])?"),  # type: ignore[arg-type]
        (queue.extend_leases(lease, 5_000), "leases"),  # type: ignore[arg-type]
    ]  # fmt: skip
    for call, option in calls:
        with pytest.raises(GlideMQValidationError, match=f"option '{option}'"):
            await call
    await lease.complete()


async def test_lease_given_twice_is_rejected_before_anything_is_reported(queue: Queue):
    await queue.add_bulk([("a", n) for n in range(2)])
    first, second = await queue.fetch(2)
    same = Lease.from_token(queue, first.token)
    calls: list[tuple[Any, str]] = [
        (queue.complete_leases([(first, 1), (second, 2), (same, 3)]), "results"),
        (queue.fail_leases([(first, "a"), (second, "b"), (same, "c")]), "failures"),
        (queue.release_leases([first, second, same]), "leases"),
    ]
    for call, option in calls:
        with pytest.raises(
            GlideMQValidationError, match=rf"'{option}\[2\]' = .*is the lease of {option}\[0\]; each lease"
        ):
            await call
    assert (await queue.get_job_counts()).active == 2
    # Nothing is lost if a lock is extended twice.
    assert await queue.extend_leases([first, same], 20_000) == [LeaseOutcome.EXTENDED] * 2
    report = await queue.complete_leases([(first, 1), (second, 2)])
    assert report.outcomes == [LeaseOutcome.COMPLETED] * 2


# -- the death of a lease holder ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stalls", "counts"])
@pytest.mark.exclude("memory", reason="needs a process")
async def test_a_worker_elsewhere_runs_the_jobs_of_a_killed_lease_holder(
    queue: Queue, worker_for: WorkerFor, url: Any, how: str
):
    await queue.add_bulk([("a", n, {"attempts": 2}) for n in range(4)])
    root = str(Path(__file__).parents[2])
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, url, queue.name, how,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert holder.stdout is not None
    assert await with_timeout(holder.stdout.readline()) == b"4\n"
    holder.send_signal(signal.SIGKILL)
    await with_timeout(holder.wait())
    seen: list[tuple[int, int]] = []

    async def handle(job: Job):
        seen.append((job.attempts_made, job.stalled_count))

    async with worker_for(handle, lock_duration=1_000, stalled_interval=1_000) as worker:
        await with_timeout(until(lambda: len(seen) == 4))
        await worker.drain()
    assert seen == [(1, 0) if how == "counts" else (0, 1)] * 4
    assert (await queue.check()).ok


async def test_worker_and_leases_share_a_queue(
    queue: Queue,
    worker_for: WorkerFor,
):
    ran: list[str] = []

    async def handle(job: Job):
        ran.append(job.id)

    await queue.add_bulk([("a", n) for n in range(200)])
    leased: list[str] = []

    async def lease_all():
        leases = await queue.fetch(5)
        while leases:
            leased.extend(lease.id for lease in leases)
            leases = (await queue.complete_leases([(lease, 1) for lease in leases], fetch_next=5)).leases

    async with worker_for(handle, concurrency=5) as worker:
        recorder = EventRecorder(worker)
        await asyncio.gather(lease_all(), lease_all())
        await with_timeout(until(lambda: len(ran) + len(leased) >= 200))
        await worker.drain()
    assert len(set(ran) | set(leased)) == len(ran) + len(leased) == 200
    assert recorder.count["error"] == 0
    assert (await queue.check()).ok


# -- blocking code -----------------------------------------------------------------------------------------


# -- every server ------------------------------------------------------------------------------------------
