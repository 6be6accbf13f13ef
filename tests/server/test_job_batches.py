"""Batches: callbacks, joins of running jobs, removal, repair, cancelling, and what they leave behind."""

from typing import Any

import pytest

from glidemq_py import (
    Queue,
)
from glidemq_py._features.job_batches import PARENT
from glidemq_py.errors import GlideMQConnectionError
from tests.conftest import same_or_other
from tests.contract.test_job_batches import counts, reaches, run_all
from tests.inside import Call, calls, check_parents, connected
from tests.server.worker_support import Raw

pytestmark = pytest.mark.usefixtures("clean_check")


target = same_or_other
"""The queue of the batch's jobs: that of the batch, or another one."""


async def test_repeated_and_late_reports_count_once(queue: Queue, raw: Raw):
    batch = await queue.job_batches.create(on_complete=("complete",))
    job = await batch.add("a")
    await batch.add("b")
    await batch.close()
    link = await connected(queue)
    for how in ("completed", "completed", "failed", "removed", "again"):
        end = calls.ChildOutcome(PARENT + batch.id, link.keys.member(job.id), how, "", "")
        await link.transport.call(calls.children_ended(link.keys.meta, [end]))
    unknown = calls.ChildOutcome(PARENT + batch.id, link.keys.member("other"), "completed", "", "")
    gone = calls.ChildOutcome(f"{PARENT}gone", link.keys.member(job.id), "completed", "", "")
    await link.transport.call(calls.children_ended(link.keys.meta, [unknown, gone]))
    assert counts(await batch.get_status()) == (1, 1, 0, 0)
    assert raw.run("EXISTS", "batch:gone") == 0
    assert sorted(await run_all(queue)) == ["a", "b", "complete"]


async def test_callback_that_was_added_before_is_not_added_again(queue: Queue, raw: Raw):
    async with await queue.job_batches.create(on_complete=("complete",)) as batch:
        pass
    assert await run_all(queue) == ["complete"]
    raw.run("HDEL", f"batch:{batch.id}", "completeAt", "closed")  # as if the change were lost, and the job were not
    await batch.close()
    assert await run_all(queue) == []


async def test_id_may_be_used_again_after_its_batch_has_expired(queue: Queue, raw: Raw):
    for _ in range(2):
        async with await queue.job_batches.create(batch_id="nightly", on_success=("success",)) as batch:
            await batch.add("a")
        assert await run_all(queue) == ["a", "success"]
        assert 0 < raw.run("PTTL", f"batch:{batch.id}") <= 86_400_000
        assert raw.run("UNLINK", f"batch:{batch.id}") == raw.run("UNLINK", f"batch-jobs:{batch.id}") == 1


async def test_client_that_stops_before_the_add_is_repaired(
    queue: Queue, target: Queue, monkeypatch: pytest.MonkeyPatch
):
    batch = await queue.job_batches.create(on_success=("success",))
    await batch.add("a", queue=target)
    link = await connected(target)
    call_before = link.transport.call

    async def call(given: Call[Any]):
        if given.function == "add":
            raise GlideMQConnectionError("stopped")
        return await call_before(given)

    with monkeypatch.context() as patch:
        patch.setattr(link.transport, "call", call)
        with pytest.raises(GlideMQConnectionError):
            await batch.add("b", queue=target)
    await batch.close()
    assert (await batch.get_status()).pending == 2
    await check_parents(queue)
    assert counts(await batch.get_status()) == (1, 0, 0, 1)
    assert (await run_all(target))[0] == "a"
    status = await reaches(batch, lambda status: status.succeeded_at)
    assert counts(status) == (0, 1, 0, 1)
    await run_all(queue)


async def reserved(batch: Any, queue: Queue, ids: list[str]) -> Any:
    """Let jobs of a queue be in a batch that are never added."""
    return await batch._join((await connected(queue)).keys.stem, ids)


async def test_lost_reports_are_found(queue: Queue, target: Queue, raw: Raw):
    """Another library ends a job without a report; an obliterated queue loses its jobs."""
    batch = await queue.job_batches.create()
    ids, *_ = await reserved(batch, target, ["x", ""])
    await target.add("unreported", job_id="x")
    await batch.close()
    assert await run_all(target) == ["unreported"]
    assert (await batch.get_status()).pending == 2
    await check_parents(queue)
    assert counts(await batch.get_status()) == (0, 1, 0, 1)
    assert ids[0] == "x"


async def test_many_pending_jobs_are_checked_page_by_page(queue: Queue):
    batch = await queue.job_batches.create()
    await reserved(batch, queue, [""] * 1_200)
    assert len({job.id async for job in batch.iter_jobs("pending")}) == 1_200
    await batch.close()
    await check_parents(queue)
    assert counts(await batch.get_status()) == (0, 0, 0, 1_200)


@pytest.mark.slow
async def test_consistency_check_finds_keys_without_batch(queue: Queue, raw: Raw):
    batch = await queue.job_batches.create()
    await batch.add("a")
    raw.run("ZREM", "batches", batch.id)
    raw.run("HSET", "batch-jobs:gone", "m", "p")
    found = {finding.subject.partition("}:")[2] for finding in (await queue.check()).findings}
    assert found == {f"batch:{batch.id}", "batch-jobs:gone"}
    assert all(finding.repaired for finding in (await queue.check(repair=True)).findings)
    assert [each.id async for each in queue.job_batches.iter()] == [batch.id]


async def test_batch_is_cancelled_a_hundred_jobs_per_call(queue: Queue, target: Queue, monkeypatch: pytest.MonkeyPatch):
    batch = await queue.job_batches.create()
    later = {"delay": 3_600_000}
    await batch.add_bulk([("a", n, later) for n in range(230)])
    await batch.add_bulk([("b", n, later) for n in range(20)], queue=target)
    gone = await batch.add("gone", queue=target)
    made: list[str] = []
    link = await connected(queue)
    call = type(link.transport).call

    async def counted(transport: Any, each: Call[Any]):
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


async def test_obliterate_leaves_nothing(queue: Queue, raw: Raw):
    async with await queue.job_batches.create(on_complete=("complete",)) as batch:
        await batch.add("a")
    await run_all(queue)
    await (await queue.job_batches.create()).add("b")
    await queue.obliterate(force=True)
    assert raw.resp.keys(raw.key("*")) == []
