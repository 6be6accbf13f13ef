"""Batches: callbacks, joins of running jobs, removal, repair, cancelling, and what they leave behind."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import (
    BatchJob,
    BatchRef,
    BatchStatus,
    BulkAddError,
    ClosedError,
    Durability,
    DurabilityError,
    FairKeyFullError,
    GlideMQValidationError,
    Job,
    JobBatch,
    JobBatchFinishedError,
    JobBatchNotFoundError,
    JobOutcome,
    Middleware,
    NewJob,
    Queue,
    UnrecoverableError,
    Worker,
)
from glidemq_py._core.calls import Call
from glidemq_py._features.flows.calls import ChildOutcome, children_ended
from glidemq_py._features.job_batches.calls import PARENT
from glidemq_py._maintenance.flows import WaitingParentsTask
from glidemq_py.errors import GlideMQConnectionError
from glidemq_py.sync import Queue as BlockingQueue
from tests.server.worker_support import PATIENCE, Raw, until, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")

CALLBACKS: Any = {"on_complete": ("complete", 1), "on_success": ("success", 2), "on_failure": ("failure", 3)}


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url) as opened:
        yield opened


@pytest.fixture(params=["same", "other"])
async def target(request: pytest.FixtureRequest, url: str, queue: Queue) -> AsyncIterator[Queue]:
    """The queue of the batch's jobs: that of the batch, or another one."""
    if request.param == "same":
        yield queue
    else:
        async with Queue(f"{queue.name}-t", url) as opened:
            yield opened


class Handler:
    """Records the names of jobs; fails those named "bad" until `healthy`."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.healthy = False

    async def __call__(self, job: Job) -> None:
        self.ran.append(job.name)
        if job.name == "bad" and not self.healthy:
            raise UnrecoverableError("broken")


async def reaches(batch: JobBatch, test: Callable[[BatchStatus], object]) -> BatchStatus:
    async with asyncio.timeout(PATIENCE):
        while not test(status := await batch.get_status()):  # noqa: ASYNC110  no event
            await asyncio.sleep(0.01)
    return status


async def run_all(queue: Queue, name: str = "") -> list[str]:
    """Complete all ready jobs of a queue without a worker, and return their names."""
    names: list[str] = []
    while leases := await queue.fetch(100):
        names += [lease.job.name for lease in leases]
        await queue.complete_leases((lease, None) for lease in leases)
    return names


async def check_batches(queue: Queue) -> None:
    link = await queue._connected()
    await WaitingParentsTask(link=link, outbox_pending=lambda: None, age=0).run_once()


def counts(status: BatchStatus) -> tuple[int, int, int, int]:
    return status.pending, status.completed, status.failed, status.removed


# -- callbacks ----------------------------------------------------------------------------------------------


async def test_callbacks_of_a_batch_that_completes(url: str, queue: Queue, target: Queue) -> None:
    run = Handler()
    async with await queue.create_batch(**CALLBACKS) as batch:
        jobs = await batch.add_bulk([("a",), ("b", {"n": 1}, {"delay": 1})], queue=target)
        await batch.add("c", queue=target)
    assert (await batch.get_status()).total == 3
    async with Worker(queue.name, run, url), Worker(target.name, run, url):
        status = await reaches(batch, lambda status: status.succeeded_at)
        await until(lambda: "success" in run.ran and "complete" in run.ran)
    assert counts(status) == (0, 3, 0, 0)
    assert status.is_finished
    assert status.completed_at is not None
    assert status.failed_at is None
    assert sorted(run.ran) == ["a", "b", "c", "complete", "success"]
    assert {job async for job in batch.iter_jobs("completed")} >= {
        BatchJob(target.name, job.id, "completed") for job in jobs
    }
    assert [job async for job in batch.iter_jobs("pending")] == []
    assert [each.id async for each in queue.iter_batches()] == []


async def test_success_follows_the_retry_of_a_failed_job(url: str, queue: Queue, target: Queue) -> None:
    run = Handler()
    async with await queue.create_batch(**CALLBACKS) as batch:
        await batch.add_bulk([("a",), ("bad",)], queue=target)
    async with Worker(queue.name, run, url), Worker(target.name, run, url):
        status = await reaches(batch, lambda status: status.completed_at)
        assert counts(status) == (0, 1, 1, 0)
        assert status.succeeded_at is None
        await until(lambda: {"failure", "complete"} <= set(run.ran))
        run.healthy = True
        (failed,) = [job async for job in batch.iter_jobs("failed")]
        job = await target.get_job(failed.id)
        assert job is not None
        await job.retry()
        status = await reaches(batch, lambda status: status.succeeded_at)
        await until(lambda: "success" in run.ran)
    assert counts(status) == (0, 2, 0, 0)
    assert sorted(run.ran) == ["a", "bad", "bad", "complete", "failure", "success"]


async def test_open_batch_waits_and_an_empty_one_completes_when_it_is_closed(queue: Queue) -> None:
    batch = await queue.create_batch(on_complete=("complete",), on_success=("success",))
    await batch.add("a")
    assert await run_all(queue) == ["a"]
    status = await batch.get_status()
    assert (status.pending, status.completed, status.is_closed, status.is_finished) == (0, 1, False, False)
    await batch.add("b")  # it is still open
    await batch.close()
    assert await run_all(queue) == ["b", "complete", "success"]
    await batch.close()
    assert await run_all(queue) == []
    empty = await queue.create_batch(on_success=("success",))
    await empty.close()
    assert await run_all(queue) == ["success"]


async def test_batch_stays_open_if_its_block_fails(queue: Queue) -> None:
    with pytest.raises(ZeroDivisionError):
        async with await queue.create_batch(on_complete=("complete",)) as batch:
            raise ZeroDivisionError
    assert not (await batch.get_status()).is_closed
    assert [each.id async for each in queue.iter_batches()] == [batch.id]


async def test_callback_has_its_own_options_and_data(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url, serializer="msgpack", compression="gzip",
                     default_job_options={"attempts": 3}) as queue:  # fmt: skip
        batch = await queue.create_batch(on_success=("success", {"k": "x" * 500}, {"priority": 7, "fair_key": "t"}))
        await batch.close()
        (lease,) = await queue.fetch(1)
        assert lease.job.data == {"k": "x" * 500}
        assert (lease.job.priority, lease.job.fair_key, lease.job.opts["attempts"]) == (7, "t", 3)
        assert await lease.job.get_batch_ref() == BatchRef(queue.name, batch.id)
        await lease.complete(None)


async def test_repeated_and_late_reports_count_once(queue: Queue, raw: Raw) -> None:
    batch = await queue.create_batch(on_complete=("complete",))
    job = await batch.add("a")
    await batch.add("b")
    await batch.close()
    link = await queue._connected()
    for how in ("completed", "completed", "failed", "removed", "again"):
        end = ChildOutcome(PARENT + batch.id, link.keys.member(job.id), how, "", "")
        await link.transport.call(children_ended(link.keys.meta, [end]))
    unknown = ChildOutcome(PARENT + batch.id, link.keys.member("other"), "completed", "", "")
    gone = ChildOutcome(f"{PARENT}gone", link.keys.member(job.id), "completed", "", "")
    await link.transport.call(children_ended(link.keys.meta, [unknown, gone]))
    assert counts(await batch.get_status()) == (1, 1, 0, 0)
    assert raw.run("EXISTS", "batch:gone") == 0
    assert sorted(await run_all(queue)) == ["a", "b", "complete"]


async def test_callback_that_was_added_before_is_not_added_again(queue: Queue, raw: Raw) -> None:
    async with await queue.create_batch(on_complete=("complete",)) as batch:
        pass
    assert await run_all(queue) == ["complete"]
    raw.run("HDEL", f"batch:{batch.id}", "completeAt", "closed")  # as if the change were lost, and the job were not
    await batch.close()
    assert await run_all(queue) == []


# -- joins --------------------------------------------------------------------------------------------------


async def test_running_job_joins_others(url: str, queue: Queue, target: Queue) -> None:
    names: list[str] = []

    async def handle(job: Job) -> None:
        names.append(job.name)
        if job.name == "first":
            ref = await job.get_batch_ref()
            assert ref is not None
            found = await queue.get_batch(ref)
            await found.add_bulk([("more", n) for n in range(3)], queue=target)
            assert (await found.get_status()).is_closed

    async with await queue.create_batch(on_success=("success",)) as batch:
        await batch.add("first", queue=target)
    async with Worker(queue.name, handle, url), Worker(target.name, handle, url):
        await until(lambda: "success" in names)
    assert names == ["first", "more", "more", "more", "success"]
    with pytest.raises(JobBatchFinishedError, match="it is finished"):
        await batch.add("late", queue=target)
    with pytest.raises(JobBatchFinishedError):
        await batch.add_bulk([("late",)], queue=target)
    assert (await target.get_job_counts()).waiting == 0


async def test_unknown_batch_is_rejected(queue: Queue) -> None:
    with pytest.raises(JobBatchNotFoundError, match="batch 'none' not found"):
        await queue.get_batch("none")
    batch = JobBatch(queue, "none")
    for call in (batch.add("a"), batch.close(), batch.get_status(), batch.cancel()):
        with pytest.raises(JobBatchNotFoundError):
            await call
    with pytest.raises(GlideMQValidationError, match="must be of this queue"):
        await queue.get_batch(BatchRef("elsewhere", "b"))


async def test_batch_with_an_id_is_created_once(queue: Queue) -> None:
    batch = await queue.create_batch(batch_id="nightly", on_success=("first",))
    await batch.add("a")
    again = await queue.create_batch(batch_id="nightly", on_success=("second",))
    assert (await again.get_status()).pending == 1
    await again.close()
    assert await run_all(queue) == ["a", "first"]


async def test_id_may_be_used_again_after_its_batch_has_expired(queue: Queue, raw: Raw) -> None:
    for _ in range(2):
        async with await queue.create_batch(batch_id="nightly", on_success=("success",)) as batch:
            await batch.add("a")
        assert await run_all(queue) == ["a", "success"]
        assert 0 < raw.run("PTTL", f"batch:{batch.id}") <= 86_400_000
        assert raw.run("UNLINK", f"batch:{batch.id}") == raw.run("UNLINK", f"batch-jobs:{batch.id}") == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [("a", {"parent": ("q", "1")}), ("a", {"deduplication": {"id": "d"}}), ("", {}), ("a", {"delay": -1})],
)
async def test_invalid_job_is_rejected_and_does_not_join(queue: Queue, name: str, options: Any) -> None:
    batch = await queue.create_batch()
    with pytest.raises(GlideMQValidationError):
        await batch.add(name, **options)
    with pytest.raises(GlideMQValidationError, match=r"jobs\[1\]"):
        await batch.add_bulk([("fine",), (name, None, options)])
    assert (await batch.get_status()).total == 0
    assert (await queue.get_job_counts()).waiting == 0


async def test_error_of_one_job_names_the_option_without_an_index(url: str, queue_name: str) -> None:
    async with Queue[Any, Any](queue_name, url, default_job_options={"fair_key": "t"}) as queue:
        batch = await queue.create_batch()
        with pytest.raises(GlideMQValidationError, match=r"^option 'rank' = 5: ") as caught:
            await batch.add("a", rank=5)
        assert caught.value.option == pickle.loads(pickle.dumps(caught.value)).option == "rank"
        with pytest.raises(GlideMQValidationError, match=r"^option 'data' = "):
            await batch.add("a", object())
        with pytest.raises(GlideMQValidationError, match=r"^option 'jobs\[0\].rank' = 5: "):
            await batch.add_bulk([("a", None, {"rank": 5})])


async def test_data_that_cannot_be_stored_does_not_join(queue: Queue) -> None:
    batch = await queue.create_batch()
    with pytest.raises(GlideMQValidationError):
        await batch.add("a", object())
    assert counts(await batch.get_status()) == (0, 0, 0, 1)


class Rejecting(Middleware):
    """Raises before or after the add of a job with this name."""

    @contextmanager
    def add(self, job: NewJob) -> Iterator[None]:
        if job.name == "before":
            raise PermissionError(job.name)
        yield
        if job.name == "after":
            raise PermissionError(job.name)


async def test_job_that_a_middleware_rejects_does_not_join(url: str, queue: Queue, queue_name: str) -> None:
    await queue.add("old", job_id="taken")
    async with Queue[Any, Any](queue_name, url, middleware=[Rejecting()]) as around:
        batch = await around.create_batch()
        for name in ("before", "after"):
            with pytest.raises(PermissionError, match=name):
                await batch.add(name)
        with pytest.raises(PermissionError, match="after"):
            await batch.add("after", job_id="taken")
    assert counts(await (await queue.get_batch(batch.id)).get_status()) == (1, 0, 0, 1)
    assert sorted(await run_all(queue)) == ["after", "old"]


async def test_job_for_a_closed_queue_does_not_join(url: str, queue: Queue) -> None:
    closed = Queue[Any, Any]("closed", url)
    await closed.close()
    batch = await queue.create_batch()
    with pytest.raises(ClosedError):
        await batch.add("a", queue=closed)
    assert counts(await batch.get_status()) == (0, 0, 0, 0)


async def test_durable_jobs_of_a_batch(queue: Queue) -> None:
    batch = await queue.create_batch()
    lost = Durability(disk=False, replicas=9, timeout=1)
    with pytest.raises(DurabilityError):
        await batch.add("a", durable=lost)
    with pytest.raises(BulkAddError) as error:
        await batch.add_bulk([("b",), ("c",)], durable=lost)
    assert error.value.unconfirmed == 2
    with pytest.raises(GlideMQValidationError, match="'durable' = 'yes'"):
        await batch.add("d", durable="yes")  # type: ignore[arg-type]
    assert counts(await batch.get_status()) == (3, 0, 0, 0)


async def test_job_that_is_not_added_leaves_the_batch(queue: Queue) -> None:
    await queue.add("old", job_id="taken")
    await queue.set_fair_key_limits("full", max_backlog=1)
    async with await queue.create_batch(on_success=("success",)) as batch:
        assert (await batch.add("a", job_id="taken")).outcome is JobOutcome.DUPLICATE
        await batch.add("a", fair_key="full")
        with pytest.raises(FairKeyFullError):
            await batch.add("b", fair_key="full")
        with pytest.raises(BulkAddError) as failed:
            await batch.add_bulk([("c", None, {"fair_key": "full"}), ("d", None, {"job_id": "d"})])
    assert isinstance(failed.value.results[0], FairKeyFullError)
    assert (await batch.add("d", job_id="d")).outcome is JobOutcome.DUPLICATE  # the same add again: it stays
    assert counts(await batch.get_status()) == (2, 0, 0, 3)
    assert sorted(await run_all(queue)) == ["a", "d", "old", "success"]


async def test_concurrent_adds_of_one_id_add_one_job_of_the_batch(queue: Queue, target: Queue) -> None:
    """The job that one add has added stays in the batch, although the others found it."""
    batch = await queue.create_batch(**CALLBACKS)
    jobs = await asyncio.gather(*(batch.add("n", queue=target, job_id="same") for _ in range(8)))
    assert sorted(job.outcome for job in jobs) == ["added", *["duplicate"] * 7]
    await batch.close()
    status = await batch.get_status()
    assert (status.total, status.pending, status.removed, status.completed_at) == (1, 1, 0, None)


async def test_callback_is_added_beyond_the_backlog_of_its_key(queue: Queue) -> None:
    await queue.set_fair_key_limits("t", max_backlog=1)
    await queue.add("fill", fair_key="t")
    async with await queue.create_batch(on_complete=("done", 1, {"fair_key": "t"})) as batch:
        pass
    callback = await queue.get_job(f"{batch.id}-complete")
    assert callback is not None
    assert (callback.name, await callback.get_batch_ref()) == ("done", BatchRef(queue.name, batch.id))


async def test_invalid_arguments_are_rejected(url: str, queue: Queue) -> None:
    invalid: list[dict[str, Any]] = [
        {"on_complete": "name"}, {"on_success": ("a", None, {"job_id": "x"})}, {"batch_id": "a:b"}, {"batch_id": "7"},
        {"on_failure": ("a", None, {"depends_on": ["1"]})}, {"keep": 0}, {"on_complete": ("a", object())},
    ]  # fmt: skip
    for arguments in invalid:
        with pytest.raises(GlideMQValidationError):
            await queue.create_batch(**arguments)
    batch = await queue.create_batch()
    with pytest.raises(GlideMQValidationError, match="queue"):
        await batch.add("a", queue="emails")
    async with Queue(queue.name, url, prefix="elsewhere") as elsewhere:
        with pytest.raises(GlideMQValidationError, match="prefix"):
            await batch.add("a", queue=elsewhere)
    with pytest.raises(GlideMQValidationError, match="state"):
        [job async for job in batch.iter_jobs("done")]  # type: ignore[arg-type]
    await batch.close()


# -- removal and repair -------------------------------------------------------------------------------------


async def test_removed_job_leaves_and_an_ended_one_stays(url: str, queue: Queue, target: Queue) -> None:
    run = Handler()
    async with await queue.create_batch(on_complete=("complete",)) as batch:
        ended = await batch.add_bulk([("a",), ("bad",)], queue=target)
        removed = await batch.add_bulk([("later", None, {"delay": 3_600_000}), ("drained", None)], queue=target)
        async with Worker(queue.name, run, url), Worker(target.name, run, url):
            await reaches(batch, lambda status: status.pending == 1)
            drained = await batch.add("drained", delay=3_600_000, queue=target)
            await target.remove(removed[0].id)
            await target.drain(delayed=True)
            status = await reaches(batch, lambda status: status.removed == 2)
            assert counts(status) == (0, 2, 1, 2)
            await target.remove(ended[0].id)
            assert await target.clean(0, 100, "failed") == [ended[1].id]
            await batch.close()
            await until(lambda: "complete" in run.ran)
    assert counts(await batch.get_status()) == (0, 2, 1, 2)
    assert drained.id not in {job.id async for job in batch.iter_jobs()}


async def test_client_that_stops_before_the_add_is_repaired(
    queue: Queue, target: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await queue.create_batch(on_success=("success",))
    await batch.add("a", queue=target)
    link = await target._connected()
    call_before = link.transport.call

    async def call(given: Call[Any]) -> Any:
        if given.function == "add":
            raise GlideMQConnectionError("stopped")
        return await call_before(given)

    with monkeypatch.context() as patch:
        patch.setattr(link.transport, "call", call)
        with pytest.raises(GlideMQConnectionError):
            await batch.add("b", queue=target)
    await batch.close()
    assert (await batch.get_status()).pending == 2
    await check_batches(queue)
    assert counts(await batch.get_status()) == (1, 0, 0, 1)
    assert (await run_all(target))[0] == "a"
    status = await reaches(batch, lambda status: status.succeeded_at)
    assert counts(status) == (0, 1, 0, 1)
    await run_all(queue)


async def test_lost_reports_are_found(queue: Queue, target: Queue, raw: Raw) -> None:
    """Another library ends a job without a report; an obliterated queue loses its jobs."""
    batch = await queue.create_batch()
    ids, _ = await batch._join((await target._connected()).keys.stem, ["x", ""])
    await target.add("unreported", job_id="x")
    await batch.close()
    assert await run_all(target) == ["unreported"]
    assert (await batch.get_status()).pending == 2
    await check_batches(queue)
    assert counts(await batch.get_status()) == (0, 1, 0, 1)
    assert ids[0] == "x"


async def test_many_pending_jobs_are_checked_page_by_page(queue: Queue) -> None:
    batch = await queue.create_batch()
    await batch._join((await queue._connected()).keys.stem, [""] * 1_200)
    assert len({job.id async for job in batch.iter_jobs("pending")}) == 1_200
    await batch.close()
    await check_batches(queue)
    assert counts(await batch.get_status()) == (0, 0, 0, 1_200)


@pytest.mark.slow
async def test_consistency_check_finds_keys_without_batch(queue: Queue, raw: Raw) -> None:
    batch = await queue.create_batch()
    await batch.add("a")
    raw.run("ZREM", "batches", batch.id)
    raw.run("HSET", "batch-jobs:gone", "m", "p")
    found = {finding.subject.partition("}:")[2] for finding in (await queue.check()).findings}
    assert found == {f"batch:{batch.id}", "batch-jobs:gone"}
    assert all(finding.repaired for finding in (await queue.check(repair=True)).findings)
    assert [each.id async for each in queue.iter_batches()] == [batch.id]


async def test_cancelled_batch_ends(url: str, queue: Queue, target: Queue) -> None:
    run = Handler()
    batch = await queue.create_batch(on_complete=("complete",))
    await batch.add_bulk([("a", None, {"delay": 3_600_000}), ("b", None, {"delay": 3_600_000})], queue=target)
    assert await batch.cancel() == 2
    with pytest.raises(JobBatchFinishedError, match="it is cancelled"):
        await batch.add("c")
    async with Worker(queue.name, run, url), Worker(target.name, run, url):
        status = await reaches(batch, lambda status: status.completed_at)
        await until(lambda: run.ran == ["complete"])
    assert counts(status) == (0, 0, 2, 0)
    assert status.is_cancelled
    assert await batch.cancel() == 0


async def test_batch_is_cancelled_a_hundred_jobs_per_call(
    queue: Queue, target: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await queue.create_batch()
    later = {"delay": 3_600_000}
    await batch.add_bulk([("a", n, later) for n in range(230)])
    await batch.add_bulk([("b", n, later) for n in range(20)], queue=target)
    gone = await batch.add("gone", queue=target)
    made: list[str] = []
    link = await queue._connected()
    call = type(link.transport).call

    async def counted(transport: Any, each: Call[Any]) -> Any:
        made.append(each.function)
        if each.function == "batch_jobs" and made.count("batch_jobs") == 1:
            found = await call(transport, each)
            await gone.remove()
            return found
        return await call(transport, each)

    monkeypatch.setattr(type(link.transport), "call", counted)
    assert await batch.cancel() == 250
    assert (made.count("revoke_jobs"), made.count("revoke")) == (3 if target is queue else 4, 0)
    if target is queue:  # otherwise workers deliver the results to the batch
        status = await batch.get_status()
        assert (status.pending, status.failed, status.removed) == (0, 250, 1)


async def test_obliterate_leaves_nothing(queue: Queue, raw: Raw) -> None:
    async with await queue.create_batch(on_complete=("complete",)) as batch:
        await batch.add("a")
    await run_all(queue)
    await (await queue.create_batch()).add("b")
    await queue.obliterate(force=True)
    assert raw.resp.keys(raw.key("*")) == []


async def test_backup_keeps_batches(queue: Queue, tmp_path: Path) -> None:
    batch = await queue.create_batch(on_success=("success", {"n": 1}))
    await batch.add_bulk([("a",), ("b",)])
    await queue.backup(tmp_path)
    await queue.obliterate(force=True)
    with pytest.raises(JobBatchNotFoundError):
        await batch.get_status()
    await queue.restore(tmp_path)
    await batch.close()
    assert sorted(await run_all(queue)) == ["a", "b", "success"]
    assert counts(await batch.get_status()) == (0, 2, 0, 0)


async def test_other_features_count(url: str, queue: Queue) -> None:
    """Jobs that expire, stall, wait for others, belong to a group or are deleted when they end."""
    run = Handler()
    async with await queue.create_batch(on_complete=("complete",)) as batch:
        await batch.add("expired", ttl=1, delay=5)
        await batch.add("gone", remove_on_complete=True)
        await batch.add("bad", remove_on_fail=True)
        first = await batch.add("ordered", ordering="g", rank=5_000)
        await batch.add("waits", depends_on=[first])
    async with Worker(queue.name, run, url):
        status = await reaches(batch, lambda status: status.completed_at)
        await until(lambda: "complete" in run.ran)
    assert counts(status) == (0, 3, 2, 0)


# -- blocking -----------------------------------------------------------------------------------------------


def test_blocking_batch(url: str, queue_name: str) -> None:
    with BlockingQueue(queue_name, url) as queue:
        with queue.create_batch(on_success=("success",)) as batch:
            assert batch.add("a", queue=queue).outcome is JobOutcome.ADDED
            assert [job.name for job in batch.add_bulk([("b",)])] == ["b"]
        assert [each.id for each in queue.iter_batches()] == [batch.id]
        names: list[str] = []
        while leases := queue.fetch(10):
            names += [lease.job.name for lease in leases]
            queue.complete_leases((lease, None) for lease in leases)
        assert names == ["a", "b", "success"]
        assert queue.get_batch(batch.id).get_status().succeeded_at
        assert len(list(batch.iter_jobs("completed"))) == 2
        with pytest.raises(ZeroDivisionError), queue.create_batch() as other:
            raise ZeroDivisionError
        assert not other.get_status().is_closed


async def test_handler_in_a_thread_joins(url: str, queue: Queue) -> None:
    found: list[BatchRef | None] = []

    def handle(job: Job) -> None:
        found.append(job.blocking.get_batch_ref())

    async with await queue.create_batch() as batch:
        await batch.add("a")
    async with Worker(queue.name, handle, url):
        await with_timeout(reaches(batch, lambda status: status.completed_at))
    assert found == [BatchRef(queue.name, batch.id)]


@pytest.mark.parametrize("option", ["on_complete", "on_success", "on_failure"])
async def test_errors_of_callbacks_name_the_callback(queue: Queue, option: str) -> None:
    wrong: list[tuple[Any, str]] = [
        (("x", None, {"attempts": -1}), f"option '{option}.attempts' = -1: must be an integer from 0 to "),
        (("x", None, {"atempts": 1}), f"option '{option}.atempts' = 1: unknown option; did you mean 'attempts'"),
        (("", None), f"option '{option}.name' = '': must not be empty"),
        (5, f"option '{option}' = 5: must be a JobSpec or a tuple"),
    ]
    for given, message in wrong:
        with pytest.raises(GlideMQValidationError, match=f"^{re.escape(message)}"):
            await queue.create_batch(**{option: given})
