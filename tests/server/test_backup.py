"""Backups: every kind of job survives a restore, under traffic, into the same or another queue, from any store."""

import asyncio
import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import msgpack
import pytest

from glidemq_py import BackupSchedule, FlowProducer, GlideMQValidationError, Job, JobBatch, Queue, Worker
from glidemq_py import backup as command
from glidemq_py._features.backup import creating, manifest, records
from glidemq_py._features.backup.store import BackupStore
from glidemq_py.errors import BackupError, JobBatchNotFoundError, QueueNotEmptyError
from glidemq_py.records import BackupInfo
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.testing import RespClient
from tests.inside import around, connected, runtime
from tests.server.worker_support import Raw, WorkerFor, until, with_timeout

Reading, Throttle = creating._Reading, creating._Throttle


@pytest.fixture
async def copy(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(f"{queue_name}-copy", url) as queue:
        yield queue


async def record_of(queue: Queue, job_id: str) -> dict[str, Any]:
    job = await queue.get_job(job_id)
    assert job is not None
    return {"name": job.name, "data": job.data, "opts": job.opts, "state": await job.get_state()}


async def order_of(queue: Queue, url: str, count: int) -> list[str]:
    """Run the ready jobs one by one and return their ids in the order of their starts."""
    started: list[str] = []

    async def handle(job: Job):
        started.append(job.id)

    async with Worker(queue.name, handle, url, concurrency=1):
        await until(lambda: len(started) == count)
    return started


def rows_of(folder: Path, info: BackupInfo, kind: str) -> list[list[Any]]:
    """Return the rows of one kind in a backup's parts, in their chunks."""
    found: list[list[Any]] = []
    for part in info.parts:
        unpacker = msgpack.Unpacker(raw=False, unicode_errors="surrogateescape", strict_map_key=False)
        unpacker.feed(gzip.decompress((folder / info.queue / info.id / part.name).read_bytes()))
        found += [rows for each, rows in unpacker if each == kind]
    return found


# -- every kind of job --------------------------------------------------------------------------------------


async def test_every_state_is_restored(queue: Queue, copy: Queue, worker_for: WorkerFor, tmp_path: Path):
    async def handle(job: Job):
        if job.name == "fail":
            raise ValueError("no")
        if job.name == "retry" and job.attempts_made == 0:
            raise ValueError("again")
        if job.name == "suspend":
            await job.suspend(reason="approval", timeout=3_600_000)
        return {"n": job.data}

    async with worker_for(handle):
        done = await queue.add("done", 1)
        failed = await queue.add("fail", 2)
        waiting_for_retry = await queue.add("retry", 3, attempts=2, backoff={"type": "fixed", "delay": 3_600_000})
        suspended = await queue.add("suspend", 4)
        await until_state(queue, done.id, "completed")
        await until_state(queue, failed.id, "failed")
        await until_state(queue, waiting_for_retry.id, "delayed")
        await until_state(queue, suspended.id, "suspended")
    plain = await queue.add("plain", {"text": "ä"}, attempts=3)
    urgent = await queue.add("urgent", None, priority=1)
    later = await queue.add("later", None, delay=3_600_000)
    lifo = await queue.add("lifo", None, lifo=True)
    ordered = [await queue.add("ordered", n, ordering={"key": "customer"}) for n in range(3)]
    unique = await queue.add("unique", None, deduplication={"id": "u"})
    await queue.schedulers.upsert("nightly", pattern="0 3 * * *", template={"name": "report"})
    await plain.log("a line")
    ids = [job.id for job in (done, failed, waiting_for_retry, suspended, plain, urgent, later, lifo, unique, *ordered)]

    info = await queue.backups.create(tmp_path)
    assert (info.jobs, info.queue, info.last_id) == (len(ids), queue.name, len(ids))
    report = await copy.backups.restore(tmp_path, source=queue.name)
    assert (report.jobs, report.existing, report.resumed) == (len(ids), 0, False)

    for each in set(ids) - {job.id for job in ordered}:
        assert await record_of(copy, each) == await record_of(queue, each)
    restored = await copy.get_job(done.id)
    assert restored is not None
    assert restored.returnvalue == {"n": 1}
    retried = await copy.get_job(waiting_for_retry.id)
    assert retried is not None
    assert (retried.attempts_made, retried.failed_reason) == (1, "again")
    assert (await copy.get_job_logs(plain.id)).logs == ["a line"]
    assert [each.name for each in await copy.schedulers.get_all()] == ["nightly"]
    assert (await copy.check()).findings == ()
    again = await copy.add("unique", None, deduplication={"id": "u"})
    assert again.outcome == "skipped"
    assert int((await copy.add("new", None)).id) > len(ids)


async def until_state(queue: Queue, job_id: str, state: str):
    async def reached() -> bool:
        job = await queue.get_job(job_id)
        return job is not None and await job.get_state() == state

    async with asyncio.timeout(60):
        while not await reached():  # noqa: ASYNC110  the job may have ended before
            await asyncio.sleep(0.01)


async def test_the_order_of_jobs_is_restored(queue: Queue, copy: Queue, url: str, tmp_path: Path):
    plain = await queue.add_bulk([("plain", n) for n in range(120)])
    lifo = await queue.add_bulk([("lifo", n, {"lifo": True}) for n in range(30)])
    urgent = await queue.add_bulk([("urgent", n, {"priority": 3 - n % 3}) for n in range(30)])
    above = await queue.add_bulk([("above", n, {"rank": 9_000 - n}) for n in range(20)])
    below = await queue.add_bulk([("below", n, {"rank": -1, "lifo": n > 9}) for n in range(20)])
    late = await queue.add("late", None, rank=-1, delay=3_600_000)
    await queue.backups.create(tmp_path)
    await copy.backups.restore(tmp_path, source=queue.name)
    assert [job.id for job in await copy.get_jobs("delayed", 0, 10)] == [late.id]
    expected = sorted(urgent, key=lambda job: (job.opts["priority"], int(job.id)))
    order = [job.id for job in (*above, *expected, *reversed(lifo), *plain, *reversed(below[10:]), *below[:10])]
    assert await order_of(copy, url, len(order)) == order


async def test_ordering_groups_go_on(queue: Queue, copy: Queue, worker_for: WorkerFor, url: str, tmp_path: Path):
    """A group's running job returns first, gaps left by finished jobs are closed, and the order holds."""
    release = asyncio.Event()
    running: list[str] = []

    async def handle(job: Job):
        running.append(job.id)
        if job.data >= 2:
            await release.wait()

    async with worker_for(handle, concurrency=10):
        for n in range(6):
            for key in ("a", "b"):
                await queue.add("step", n, ordering={"key": key})
        await until(lambda: len(running) == 6)
        await queue.backups.create(tmp_path)
        release.set()
        await until(lambda: len(running) == 12)
    await copy.backups.restore(tmp_path, source=queue.name)
    assert (await copy.check()).findings == ()
    seen: dict[str, list[int]] = {"a": [], "b": []}

    async def record(job: Job):
        seen[job.opts["ordering"]["key"]].append(job.data)

    async with Worker(copy.name, record, url, concurrency=10):
        await until(lambda: sum(map(len, seen.values())) == 8)
    assert seen == {"a": [2, 3, 4, 5], "b": [2, 3, 4, 5]}
    assert (await copy.check()).findings == ()


@pytest.mark.parametrize("is_active", [True, False])
async def test_a_group_goes_on_if_its_counter_was_read_early(
    queue: Queue, copy: Queue, worker_for: WorkerFor, url: str, resp: RespClient, tmp_path: Path, is_active: bool
):
    """A backup under traffic reads the counter of sequences before the record of the group, and jobs in between."""
    raw, begun, over = Raw(resp, queue.name), asyncio.Event(), asyncio.Event()

    async def handle(job: Job):
        if job.data == 8:
            begun.set()
            await over.wait()

    jobs = [("step", n, {"ordering": {"key": "k"}, "remove_on_complete": True}) for n in range(1, 10)]
    async with worker_for(handle):
        await queue.add_bulk(jobs)
        await with_timeout(begun.wait())
        raw.run("HSET", "ordering", "k", "4")
        raw.run("HSET", "group:k", "nextSeq", "5")
        if not is_active:
            raw.run("UNLINK", "job:8")
        await queue.backups.create(tmp_path)
        over.set()

    report = await copy.backups.restore(tmp_path, source=queue.name)
    left = ["8", "9"] if is_active else ["9"]
    assert report.placed == len(left)
    assert (await copy.check(recheck_after=0)).findings == ()
    assert await order_of(copy, url, len(left)) == left


async def test_active_jobs_come_back_waiting(
    queue: Queue, copy: Queue, worker_for: WorkerFor, url: str, tmp_path: Path
):
    started, release = asyncio.Event(), asyncio.Event()

    async def handle(job: Job):
        started.set()
        await release.wait()

    async with worker_for(handle):
        job = await queue.add("slow")
        leased = await queue.add("leased", None, delay=0)
        await started.wait()
        await queue.backups.create(tmp_path)
        release.set()
    await copy.backups.restore(tmp_path, source=queue.name)
    assert (await copy.get_job_counts()).waiting == 2
    restored = await copy.get_job(job.id)
    assert restored is not None
    assert (restored.processed_on, restored.attempts_made, leased.id != job.id) == (None, 0, True)
    assert sorted(await order_of(copy, url, 2)) == sorted([job.id, leased.id])


async def test_a_flow_goes_on(queue: Queue, copy: Queue, worker_for: WorkerFor, url: str, tmp_path: Path):
    """Some children have ended and were removed when the backup is made: the parent gets their results, too."""

    async def handle(job: Job):
        if job.name == "parent":
            return sorted((await job.get_children_values()).values())
        return job.data

    options = {"remove_on_complete": True}
    async with FlowProducer(url) as flows:
        tree = await flows.add({
            "name": "parent", "queue": queue.name,
            "children": [
                {"name": "child", "queue": queue.name, "data": n, "options": {**options, "priority": 1 + n}}
                for n in range(4)
            ],
        })  # fmt: skip
    started: list[str] = []

    async def two(job: Job):
        started.append(job.id)
        if len(started) > 2:
            await asyncio.sleep(3_600)
        return job.data

    worker = worker_for(two, concurrency=1)
    async with worker:
        await until(lambda: len(started) == 3)
        await queue.backups.create(tmp_path)
        await worker.close(force=True)
    report = await copy.backups.restore(tmp_path, source=queue.name)
    assert report.jobs == 3
    assert (await copy.check()).findings == ()
    async with Worker(copy.name, handle, url):
        parent = await copy.get_job(tree.job.id)
        assert parent is not None
        assert await with_timeout(parent.wait_until_finished()) == [0, 1, 2, 3]


@pytest.mark.slow
async def test_a_record_with_thousands_of_fields(
    queue: Queue, copy: Queue, worker_for: WorkerFor, url: str, tmp_path: Path
):
    """A parent whose children have ended has a field for each; its record is read in pages."""
    async with FlowProducer(url) as flows:
        tree = await flows.add({
            "name": "parent", "queue": queue.name,
            "children": [{"name": "child", "queue": queue.name, "data": n} for n in range(2_500)]
            + [{"name": "last", "queue": queue.name, "options": {"delay": 3_600_000}}],
        })  # fmt: skip

    async def handle(job: Job):
        return job.data if job.name == "child" else sum(v or 0 for v in (await job.get_children_values()).values())

    async with worker_for(handle, concurrency=100):
        await with_timeout(reach_completed(queue, 2_500))
        info = await queue.backups.create(tmp_path)
        assert info.jobs == 2_502
        report = await copy.backups.restore(tmp_path, source=queue.name)
    assert (report.jobs, report.existing) == (2_502, 0)
    assert (await copy.check()).findings == ()
    await copy.promote(tree.children[-1].job.id)
    async with Worker(copy.name, handle, url):
        parent = await copy.get_job(tree.job.id)
        assert parent is not None
        assert await with_timeout(parent.wait_until_finished()) == sum(range(2_500))


class Names:
    """Handles jobs, and records their names."""

    def __init__(self):
        self.ran: list[str] = []

    async def __call__(self, job: Job):
        self.ran.append(job.name)


async def test_job_batches_of_a_copy_end(queue: Queue, copy: Queue, url: str, tmp_path: Path):
    async with Queue(f"{queue.name}-other", url) as other:
        batch = await queue.job_batches.create(on_complete=("complete", 1), on_success=("success", 2))
        first, second = await batch.add("first"), await batch.add("second")
        elsewhere = await batch.add("elsewhere", queue=other)
        for lease in [*await other.fetch(1), *await queue.fetch(1)]:
            await lease.complete()
        await batch.close()
        assert (await elsewhere.get_state(), await first.get_state()) == ("completed", "completed")
        await queue.backups.create(tmp_path)
        await queue.obliterate(force=True)
        await copy.backups.restore(tmp_path, source=queue.name)
    restored = await copy.job_batches.get(batch.id)
    status = await restored.get_status()
    assert (status.total, status.pending, status.completed) == (3, 1, 2)
    job = await copy.get_job(second.id)
    assert job is not None
    joined = await job.get_batch_ref()
    assert joined is not None
    assert joined.queue == copy.name
    handler = Names()
    async with Worker(copy.name, handler, url):
        await with_timeout(until(lambda: len(handler.ran) == 3))
    assert sorted(handler.ran) == ["complete", "second", "success"]
    assert (await copy.check()).findings == ()


async def test_a_copy_has_no_batches_with_unfinished_jobs_of_other_queues(
    queue: Queue, copy: Queue, url: str, tmp_path: Path
):
    async with Queue(f"{queue.name}-other", url) as other:
        batch = await queue.job_batches.create(on_complete=("complete", 1))
        await batch.add("own")
        await batch.add("elsewhere", queue=other)
        await batch.close()
        joined = await other.job_batches.create(on_complete=("complete", 1))
        await joined.add("joined", queue=queue)
        await queue.backups.create(tmp_path)
        await copy.backups.restore(tmp_path, source=queue.name)
        with pytest.raises(JobBatchNotFoundError):
            await copy.job_batches.get(batch.id)
        handler = Names()
        async with Worker(copy.name, handler, url):
            await with_timeout(until(lambda: len(handler.ran) == 2))
        assert (await copy.get_job_counts()).completed == 2
        assert [(await each.get_status()).pending for each in (batch, joined)] == [2, 1]
    assert sorted(handler.ran) == ["joined", "own"]
    assert (await copy.check()).findings == ()


@pytest.mark.parametrize("ends_after", ["batches", "batch:", "batch-jobs:"])
@pytest.mark.parametrize("is_copy", [True, False], ids=["copy", "same name"])
async def test_a_batch_whose_last_job_ends_during_the_backup_ends(
    queue: Queue, copy: Queue, url: str, resp: RespClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    is_copy: bool, ends_after: str,
):  # fmt: skip
    batch = await queue.job_batches.create(on_complete=("complete", 1), keep=10_000)
    await batch.add("job")
    await batch.close()
    leases = await queue.fetch(1)

    async def read_one_by_one(read_keys: Any, reading: Any, suffixes: list[str], **options: Any):
        for suffix in sorted(suffixes, key=lambda suffix: not suffix.startswith(ends_after)):
            await read_keys(reading, [suffix], **options)
            if suffix.startswith(ends_after):
                while leases:
                    await leases.pop().complete()

    around(monkeypatch, Reading, "_read_keys", read_one_by_one)
    await queue.backups.create(tmp_path)
    assert not leases
    target = copy if is_copy else queue
    if not is_copy:
        await queue.obliterate(force=True)
    await target.backups.restore(tmp_path, source=queue.name)
    restored = await target.job_batches.get(batch.id)
    if (await restored.get_status()).pending:
        assert resp.execute("PTTL", f"glide:{{{target.name}}}:batch:{batch.id}") == -1
        assert [each.id async for each in target.job_batches.iter()] == [batch.id]
    assert (await target.check(recheck_after=0)).findings == ()
    handler = Names()
    async with Worker(target.name, handler, url):
        await with_timeout(until(lambda: "complete" in handler.ran))
        await with_timeout(ends(restored))
    assert handler.ran.count("complete") == 1
    assert (await target.check()).findings == ()


async def ends(batch: JobBatch):
    while (await batch.get_status()).pending:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def reach_completed(queue: Queue, count: int):
    while (await queue.get_job_counts()).completed < count:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


# -- the same name ------------------------------------------------------------------------------------------


async def test_ids_of_removed_jobs_are_not_issued_again(queue: Queue, copy: Queue, tmp_path: Path):
    jobs = await queue.add_bulk([("n", n) for n in range(5)])
    await queue.remove(jobs[-1].id)
    assert (await queue.backups.create(tmp_path)).last_id == 5
    await copy.backups.restore(tmp_path, source=queue.name)
    assert (await copy.add("n")).id == "6"


@pytest.mark.parametrize("how", ["waiting", "completed", "scheduler", "parked by a peer"])
async def test_a_queue_in_use_is_refused(
    queue: Queue, copy: Queue, resp: RespClient, url: str, how: str, tmp_path: Path
):
    await queue.add("n")
    await queue.backups.create(tmp_path)
    if how == "scheduler":
        await copy.schedulers.upsert("s", every=3_600_000)
    elif how == "parked by a peer":
        Raw(resp, copy.name).run("HSET", "job:x", "state", "group-waiting", "name", "n")
    else:
        await copy.add("n")
    if how == "completed":
        await order_of(copy, url, 1)
        await until_state(copy, "1", "completed")
    before = await copy.get_job_counts()
    with pytest.raises(QueueNotEmptyError, match=r"cannot be restored: it has jobs.*obliterate it"):
        await copy.backups.restore(tmp_path, source=queue.name)
    assert await copy.get_job_counts() == before
    assert Raw(resp, copy.name).run("EXISTS", "restore") == 0


async def test_an_interrupted_restore_is_continued(
    queue: Queue, copy: Queue, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It fails once at each call in turn: in the end every job is there once, in order."""
    jobs = await queue.add_bulk([("n", n) for n in range(230)])
    done = [job.id for job in await queue.add_bulk([("done", n, {"delay": 3_600_000}) for n in range(20)])]
    await jobs[0].log("line")
    await queue.backups.create(tmp_path)
    link = await connected(copy)
    call, budget = link.transport.call, 0

    async def limited(request: Any):
        nonlocal budget
        if request.function.startswith("restore"):
            if budget == 0:
                raise ConnectionError("gone")
            budget -= 1
        return await call(request)

    monkeypatch.setattr(link.transport, "call", limited)
    for allowed in range(40):
        budget = allowed
        try:
            report = await copy.backups.restore(tmp_path, source=queue.name)
        except ConnectionError:
            continue
        break
    monkeypatch.undo()
    assert allowed > 5
    assert (report.resumed, report.jobs + report.existing) == (True, 250)
    assert (await copy.get_job_logs(jobs[0].id)).logs == ["line"]
    assert (await copy.get_job_counts()).delayed == len(done)
    assert await order_of(copy, url, 230) == [job.id for job in jobs]
    assert (await copy.check()).findings == ()


async def test_a_repeated_restore_runs_no_job_again(
    queue: Queue, copy: Queue, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Jobs that were placed before the interruption run, write a log and are removed before the restore is repeated."""
    jobs = await queue.add_bulk([("n", n, {"remove_on_complete": True}) for n in range(250)])
    kept = await queue.add("kept", None, delay=3_600_000)
    await kept.log("one")
    await queue.backups.create(tmp_path)
    link = await connected(copy)
    call, placings = link.transport.call, 0

    async def failing(request: Any):
        nonlocal placings
        placings += request.function == "restore_place"
        if placings == 2:
            raise ConnectionError("gone")
        return await call(request)

    monkeypatch.setattr(link.transport, "call", failing)
    with pytest.raises(ConnectionError):
        await copy.backups.restore(tmp_path, source=queue.name)
    monkeypatch.undo()
    first = await order_of(copy, url, 100)
    log = await copy.get_job(kept.id)
    assert log is not None
    await log.log("two")
    report = await copy.backups.restore(tmp_path, source=queue.name)
    assert (report.resumed, report.jobs, report.keys) == (True, 0, 0)
    assert first + await order_of(copy, url, 150) == [job.id for job in jobs]
    assert (await copy.get_job_logs(kept.id)).logs == ["one", "two"]
    assert (await copy.check()).findings == ()


async def test_a_paused_queue_stays_paused(queue: Queue, copy: Queue, resp: RespClient, tmp_path: Path):
    await queue.add("n")
    await queue.pause()
    await queue.resume()
    await queue.backups.create(tmp_path)
    await copy.pause()
    await copy.backups.restore(tmp_path, source=queue.name)
    assert await copy.is_paused()
    assert Raw(resp, copy.name).run("EXISTS", "restore") == 0


async def test_another_backup_does_not_continue_a_restore(queue: Queue, copy: Queue, resp: RespClient, tmp_path: Path):
    await queue.add("n")
    await queue.backups.create(tmp_path)
    Raw(resp, copy.name).run("HSET", "restore", "backup", "another", "phase", "writing")
    with pytest.raises(QueueNotEmptyError, match="the restore of backup 'another' into it was interrupted"):
        await copy.backups.restore(tmp_path, source=queue.name)
    await copy.obliterate(force=True)
    assert (await copy.backups.restore(tmp_path, source=queue.name)).jobs == 1


async def test_a_repair_of_an_interrupted_restore_places_no_job_twice(
    queue: Queue, copy: Queue, url: str, tmp_path: Path
):
    jobs = await queue.add_bulk([("n", n) for n in range(5)])
    info = await queue.backups.create(tmp_path)
    link = await connected(copy)
    await link.transport.call(manifest.restore_begin(link.keys.meta, info.id, "", 5))
    for rows in rows_of(tmp_path, info, "jobs"):
        await link.transport.call(manifest.restore_jobs(link.keys.meta, info.id, rows))
    report = await copy.check(repair=True, recheck_after=0)
    assert report.ok
    assert len([each for each in report.findings if each.kind == "lost_job"]) == 5
    assert (await copy.backups.restore(tmp_path, source=queue.name)).placed == 0
    assert sorted(await order_of(copy, url, 5)) == sorted(job.id for job in jobs)
    assert (await copy.check()).findings == ()


# -- under traffic ------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_jobs_that_live_throughout_are_in_the_backup_once(
    queue: Queue, copy: Queue, worker_for: WorkerFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Workers run, retry, delay and remove jobs, and producers add, while the backup reads in small steps."""
    monkeypatch.setattr(records, "MOST_RECORDS", 5)
    lasting = [
        job.id
        for job in await queue.add_bulk(
            [("keep", n, {"delay": 1 + n % 7, "attempts": 1_000_000, "backoff": 5}) for n in range(500)]
            + [("keep", n, {"ordering": {"key": f"k{n % 20}", "concurrency": 2}}) for n in range(200)]
        )
    ]
    stop = asyncio.Event()

    async def handle(job: Job):
        if job.name == "keep" and not job.opts.get("ordering"):
            raise ValueError("again")

    async def produce():
        while not stop.is_set():
            await queue.add_bulk([("short", n, {"remove_on_complete": True}) for n in range(20)])
            await asyncio.sleep(0)

    async with worker_for(handle, concurrency=50, log_failures=False):
        producing = asyncio.create_task(produce())
        info = await queue.backups.create(tmp_path, max_server_cpu=0.5)
        stop.set()
        await producing
    ids = [row[0] for rows in rows_of(tmp_path, info, "jobs") for row in rows]
    assert len(ids) == len(set(ids)) == info.jobs
    assert set(lasting) <= set(ids)
    report = await copy.backups.restore(tmp_path, source=queue.name)
    assert report.jobs == info.jobs
    assert (await copy.check()).findings == ()
    states = ("waiting", "delayed", "completed", "group-waiting", "active")
    assert {each.id for state in states for each in await copy.get_jobs(state)} >= set(lasting)


@pytest.mark.parametrize("kind", ["job", "log"])
async def test_a_job_that_a_failover_brings_back_is_in_the_backup(
    queue: Queue, copy: Queue, resp: RespClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """A key is deleted after SCAN has returned it; the new primary does not have the deletion."""
    jobs = await queue.add_bulk([("n", n) for n in range(5)])
    await jobs[2].log("line")
    link = await connected(queue)
    raw, key, times = Raw(resp, queue.name), f"{kind}:{jobs[2].id}", 0

    async def racing(read: Any, reading: Any, *, all_: bool = False):
        nonlocal times
        times += 1
        if times == 1:
            raw.run("RENAME", key, raw.key("elsewhere"))
        await read(reading, all_=all_)
        if times == 2:
            raw.run("RENAME", "elsewhere", raw.key(key))
            link.transport.interruptions.record()

    around(monkeypatch, Reading, "_read_full", racing)
    info = await queue.backups.create(tmp_path)
    assert info.jobs == 5
    report = await copy.backups.restore(tmp_path, source=queue.name)
    assert report.jobs == 5
    assert (await copy.get_job_logs(jobs[2].id)).logs == ["line"]
    assert (await copy.check()).findings == ()


async def test_an_interruption_is_noticed_after_an_earlier_one(
    queue: Queue, copy: Queue, resp: RespClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The connection was interrupted shortly before the backup, and again a while before the end of the scan."""
    jobs = await queue.add_bulk([("n", n) for n in range(5)])
    link = await connected(queue)
    raw, key, times, clock, last = Raw(resp, queue.name), f"job:{jobs[2].id}", 0, 100.0, 99.9

    async def racing(read: Any, reading: Any, *, all_: bool = False):
        nonlocal times, clock, last
        times += 1
        if times == 1:
            raw.run("RENAME", key, raw.key("elsewhere"))
        await read(reading, all_=all_)
        if times == 2:
            raw.run("RENAME", "elsewhere", raw.key(key))
            clock, last = 102.0, 101.0

    around(monkeypatch, Reading, "_read_full", racing)
    monkeypatch.setattr(creating, "time", SimpleNamespace(monotonic=lambda: clock), raising=False)
    monkeypatch.setattr(type(link.transport.interruptions), "age_s", lambda self, tag: clock - last)
    assert (await queue.backups.create(tmp_path)).jobs == 5
    assert (await copy.backups.restore(tmp_path, source=queue.name)).jobs == 5


async def test_reading_is_throttled(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The pauses are in proportion to the CPU time that the server reports."""
    await queue.add_bulk([("n", n) for n in range(2_000)])
    used, slept = 0.0, 0.0
    count = Throttle.used

    async def counted(self: Any, microseconds: float):
        nonlocal used
        used += microseconds
        await count(self, microseconds)

    async def sleep(seconds: float):
        nonlocal slept
        slept += seconds

    monkeypatch.setattr(Throttle, "used", counted)
    monkeypatch.setattr(creating, "asyncio", SimpleNamespace(sleep=sleep))
    await queue.backups.create(tmp_path, max_server_cpu=0.1)
    assert used > creating.SCAN_US * 2
    assert slept >= 0.9 * (9 * used / 1_000_000 - 0.002)


# -- stores -------------------------------------------------------------------------------------------------


async def test_damage_is_found_before_anything_is_written(queue: Queue, copy: Queue, resp: RespClient, tmp_path: Path):
    await queue.add_bulk([("n", n) for n in range(50)])
    info = await queue.backups.create(tmp_path)
    folder = tmp_path / queue.name / info.id
    part, manifest = folder / info.parts[0].name, folder / "manifest.json"
    content, text = part.read_bytes(), manifest.read_text()

    async def refused(message: str):
        with pytest.raises(BackupError, match=message):
            await queue.backups.verify(tmp_path)
        with pytest.raises(BackupError, match=message):
            await copy.backups.restore(tmp_path, source=queue.name)
        assert Raw(resp, copy.name).run("EXISTS", "restore", "id") == 0

    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    await refused(rf"part {part.name} of backup '{info.id}' is damaged: its checksum differs")
    part.unlink()
    await refused(f"cannot read '.*{part.name}'")
    part.write_bytes(content)
    manifest.write_text(text.replace('"jobs": 50', '"jobs": 49'))
    await refused("the manifest of backup '.*' is damaged: its checksum differs")
    manifest.write_text(text.replace('"format": 1', '"format": 3'))
    await refused("has format 3; this release reads formats 1 and 2")
    manifest.write_text("{")
    await refused("the manifest of backup .* is damaged")
    manifest.unlink()
    await refused("no complete backup of queue")
    manifest.write_text(text)
    assert await queue.backups.verify(tmp_path) == info


async def test_backups_are_listed_and_the_oldest_deleted(queue: Queue, tmp_path: Path):
    made = [await queue.backups.create(tmp_path) for _ in range(3)]
    assert await queue.backups.get_all(tmp_path) == made
    fourth = await queue.backups.create(tmp_path, keep=2)
    assert await queue.backups.get_all(tmp_path) == [made[2], fourth]
    assert sorted(each.name for each in (tmp_path / queue.name).iterdir()) == [made[2].id, fourth.id]
    assert (await queue.backups.verify(tmp_path, backup_id=made[2].id)) == made[2]
    with pytest.raises(BackupError, match=rf"backup '{made[0].id}' of queue .* does not exist in .*; the newest are"):
        await queue.backups.verify(tmp_path, backup_id=made[0].id)


@pytest.mark.parametrize("letter", ["x", "%3A", "é"])
async def test_queue_with_a_long_name(queue_name: str, url: str, tmp_path: Path, letter: str):
    """Escaped, it is longer than a file name may be; ``%3A`` is the colon of a client of a gateway."""
    name = f"{queue_name}{letter * 256}"[:256]
    async with Queue(name, url) as queue:
        await queue.add("n", 1)
        first, second, third = [await queue.backups.create(tmp_path, keep=2) for _ in range(3)]
        assert await queue.backups.get_all(tmp_path) == [second, third]
        await queue.obliterate()
        assert (await queue.backups.restore(tmp_path)).jobs == 1
        await queue.obliterate()
    (folder,) = os.listdir(tmp_path)
    assert sorted(os.listdir(tmp_path / folder)) == sorted([second.id, third.id])
    assert first.id not in (second.id, third.id)


async def test_any_queue_name_has_a_folder_of_its_own(tmp_path: Path):
    from obstore.store import MemoryStore

    backup = "20260102T030405.006Z-00000000"
    names = [
        ".", "..", "...", "=.", "%2E", "%2e%2e", "a/b", "a%2Fb", "a=b", " ", "~", "a" * 255, "a" * 256, "%3A" * 80,
        "é" * 256, "😀" * 256, "a" * 119 + "é" * 40, "a" * 119 + "é" * 41,
    ]  # fmt: skip
    for destination in (tmp_path, MemoryStore()):
        store = BackupStore(destination, None, runtime.ASYNC_RUNTIME, writes=True)
        for name in names:
            assert await store.backups(name) == []
            await store.put(store.manifest_path(name, backup), name.encode())
        for name in names:
            assert await store.backups(name) == [backup]
            assert await store.is_complete(name, backup)
            assert (await store.get(store.manifest_path(name, backup))).decode() == name
        await store.delete("..", backup)
        assert (await store.backups(".."), await store.backups(".")) == ([], [backup])
    assert len(os.listdir(tmp_path)) == len(names) - 1


@pytest.mark.parametrize("name", ["a:b", "a" * 255, "é" * 150])
async def test_names_whose_folders_fit_have_kept_them(name: str):
    """Object stores had those of up to 1,024 bytes, with the prefix and the rest of the path."""
    from obstore.store import MemoryStore, S3Store

    store = BackupStore(MemoryStore(), None, runtime.ASYNC_RUNTIME)
    assert store.manifest_path(name, "x") == f"{quote(name)}/x/manifest.json"
    prefixed = BackupStore(S3Store("b", prefix="p" * 200, region="r"), None, runtime.ASYNC_RUNTIME)
    assert (prefixed.manifest_path(name, "x") == f"{quote(name)}/x/manifest.json") == (len(quote(name)) <= 1_024 - 253)


async def test_panic_of_obstore_is_a_backup_error(queue: Queue):
    """The endpoint of a store is not checked by obstore, whose library panics, and PanicException is no Exception."""
    from obstore.store import S3Store

    store = S3Store("b", endpoint="foo", access_key_id="a", secret_access_key="b", region="r")
    with pytest.raises(BackupError, match=r"cannot write .* in S3Store: .*InvalidUri"):
        await queue.backups.create(store)


async def test_damaged_manifests_do_not_hide_other_backups(
    queue: Queue, copy: Queue, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    first, damaged, later, last = [await queue.backups.create(tmp_path) for _ in range(4)]
    manifests = {each.id: tmp_path / queue.name / each.id / "manifest.json" for each in (first, damaged, later, last)}
    wrong_id = damaged.id[:-1] + ("0" if damaged.id[-1] != "0" else "1")
    manifests[damaged.id].write_text(manifests[damaged.id].read_text().replace(damaged.id, wrong_id))
    manifests[later.id].write_text(manifests[later.id].read_text().replace('"format": 1', '"format": 3'))
    reasons = {
        damaged.id: f"the manifest of backup {damaged.id!r} is damaged: its checksum differs",
        later.id: f"backup {later.id!r} has format 3; this release reads formats 1 and 2",
    }
    assert await queue.backups.get_all(tmp_path) == [first, last]
    logged = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert logged == [f"queue {queue.name!r}: {reason}" for reason in reasons.values()]
    for backup_id, reason in reasons.items():
        with pytest.raises(BackupError, match=reason):
            await queue.backups.verify(tmp_path, backup_id=backup_id)
        with pytest.raises(BackupError, match=reason):
            await copy.backups.restore(tmp_path, backup_id=backup_id, source=queue.name)
    assert await asyncio.to_thread(command.main, ["list", str(tmp_path), queue.name, copy.name]) == 1
    printed = capsys.readouterr()
    assert [line.split()[2].rstrip(",") for line in printed.out.splitlines()] == [first.id, last.id]
    assert printed.err.splitlines() == [
        f"python -m glidemq_py.backup: queue {queue.name!r}: {reason}" for reason in reasons.values()
    ]


async def test_a_store_that_fails_lists_no_part_of_the_backups(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await queue.backups.create(tmp_path)

    async def fail(_: Any, path: str) -> bytes:
        raise BackupError(f"cannot read {path!r}")

    monkeypatch.setattr(BackupStore, "get", fail)
    with pytest.raises(BackupError, match="cannot read"):
        await queue.backups.get_all(tmp_path)


async def test_empty_backups_do_not_replace_the_last_one_with_jobs(
    queue: Queue, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    await queue.add("n")
    full = await queue.backups.create(tmp_path, keep=2)
    await queue.obliterate(force=True)
    empty = [await queue.backups.create(tmp_path, keep=2) for _ in range(3)]
    assert await queue.backups.get_all(tmp_path) == [full, *empty[1:]]
    assert (
        f"queue {queue.name!r}: the newest backup is empty, the one before with jobs ({full.id}) has 1" in caplog.text
    )


async def test_reading_needs_no_server_and_creates_nothing(queue: Queue, tmp_path: Path):
    info = await queue.backups.create(tmp_path)
    unreachable: Queue = Queue(queue.name, "valkey://127.0.0.1:1")
    assert await unreachable.backups.get_all(tmp_path) == [info]
    assert await unreachable.backups.verify(tmp_path) == info
    with pytest.raises(GlideMQValidationError, match=r"option 'destination' = .*: does not exist"):
        await unreachable.backups.get_all(tmp_path / "missing")


async def test_incomplete_backups_are_deleted_after_a_day(queue: Queue, tmp_path: Path):
    old, recent = "20200101T000000.000Z-00000000", (await queue.backups.create(tmp_path)).id
    for name in (old, "not a backup"):
        (tmp_path / queue.name / name).mkdir()
        (tmp_path / queue.name / name / "part-00001.msgpack.gz").write_bytes(b"x")
    unfinished = recent[:-8] + "ffffffff"
    (tmp_path / queue.name / unfinished).mkdir()
    (tmp_path / queue.name / unfinished / "part-00001.msgpack.gz").write_bytes(b"x")
    last = await queue.backups.create(tmp_path, keep=5)
    assert [each.id for each in await queue.backups.get_all(tmp_path)] == [recent, last.id]
    left = {each.name for each in (tmp_path / queue.name).iterdir() if list(each.iterdir())}
    assert left == {recent, last.id, unfinished, "not a backup"}


async def test_an_s3_store(queue: Queue, copy: Queue, s3: dict[str, str]):
    await queue.add_bulk([("n", {"n": n}) for n in range(300)])
    info = await queue.backups.create("s3://backups/production", storage_options=s3, keep=1)
    assert await queue.backups.get_all("s3://backups/production", storage_options=s3) == [info]
    report = await copy.backups.restore("s3://backups/production", source=queue.name, storage_options=s3)
    assert report.jobs == 300
    second = await queue.backups.create("s3://backups/production", storage_options=s3, keep=1)
    assert await queue.backups.get_all("s3://backups/production", storage_options=s3) == [second]
    with pytest.raises(BackupError, match=r"cannot write .* in s3://missing"):
        await queue.backups.create("s3://missing", storage_options=s3)


@pytest.fixture(scope="module")
def s3():
    """Return the storage options of a local S3 server with the bucket ``backups``."""
    import urllib.request

    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/backups", method="PUT"), timeout=30).close()
    yield {
        "endpoint": endpoint, "access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1",
        "allow_http": "true",
    }  # fmt: skip
    server.stop()


# -- schedule and command -----------------------------------------------------------------------------------


async def test_a_schedule_creates_backups_that_are_due(queue: Queue, copy: Queue, tmp_path: Path):
    await queue.add("n")
    schedule = BackupSchedule([queue, copy], tmp_path, every=60_000, keep=2)
    first = await schedule.run_due()
    assert [(each.queue, each.jobs) for each in first] == [(queue.name, 1), (copy.name, 0)]
    assert await schedule.run_due() == []
    aged = "20200101T000000.000Z-00000000"
    (tmp_path / queue.name / first[0].id).rename(tmp_path / queue.name / aged)
    assert [each.queue for each in await schedule.run_due()] == [queue.name]


async def test_one_of_several_schedules_backs_up_a_queue(queue: Queue, url: str, tmp_path: Path):
    await queue.add("n")
    async with Queue(queue.name, url) as same:
        schedules = [BackupSchedule([each], tmp_path) for each in (queue, same)]
        created = await asyncio.gather(*(each.run_due() for each in schedules))
    assert sum(map(len, created)) == 1
    assert len(await queue.backups.get_all(tmp_path)) == 1


async def test_a_running_schedule_logs_a_failure(queue: Queue, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / queue.name).write_text("in the way")
    async with BackupSchedule([queue], tmp_path):
        await until(lambda: any("could not back up the queue" in each.getMessage() for each in caplog.records))
    assert f"queue {queue.name!r}: could not back up the queue: cannot " in caplog.text


async def test_the_command(queue: Queue, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    async def run(*arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(command.main, [*arguments, "--url", url])
        found = capsys.readouterr()
        return code, found.out + found.err

    await queue.add_bulk([("n", n) for n in range(1_200)])
    code, text = await run("create", str(tmp_path), queue.name, "--keep", "3")
    (info,) = await queue.backups.get_all(tmp_path)
    assert code == 0
    assert text.startswith(f"queue {queue.name!r}: created {info.id}, ")
    assert text.endswith(f" UTC: 1,200 jobs, {info.size:,} bytes\n")
    assert f"queue {queue.name!r}: {info.id}" in (await run("list", str(tmp_path), queue.name))[1]
    assert f"queue {queue.name!r}: intact {info.id}" in (await run("verify", str(tmp_path), queue.name))[1]
    code, text = await run("restore", str(tmp_path), queue.name)
    assert (code, "cannot be restored: it has jobs" in text) == (1, True)
    assert await asyncio.to_thread(command.main, ["list", str(tmp_path), queue.name]) == 0  # without a server
    assert capsys.readouterr().out.count(info.id) == 1
    copy = f"{queue.name}-copy"
    code, text = await run("restore", str(tmp_path), copy, "--source", queue.name)
    assert (code, text) == (0, f"queue {copy!r}: restored 1,200 jobs from {info.id}\n")


async def test_the_command_rejects_a_queue_that_was_never_used(
    url: str, queue: Queue, queue_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for arguments in (["create", str(tmp_path), queue_name], ["run", str(tmp_path), queue_name]):
        assert await asyncio.to_thread(command.main, [*arguments, "--url", url]) == 1
        assert capsys.readouterr().err == (
            f"python -m glidemq_py.backup: queue {queue_name!r} has never been used on this server with the prefix "
            "'glide'; check the name, --url and --prefix, or use --allow-empty\n"
        )
    assert await queue.backups.get_all(tmp_path) == []
    arguments = ["create", str(tmp_path), queue_name, "--allow-empty", "--url", url]
    assert await asyncio.to_thread(command.main, arguments) == 0
    assert " 0 jobs, " in capsys.readouterr().out


# -- mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"destination": 5}, "option 'destination' = 5: must be a directory, a URL"),
        ({"destination": "nowhere://x"}, "option 'destination' = 'nowhere://x': "),
        ({"keep": 0}, "option 'keep' = 0: "),
        ({"max_server_cpu": 0}, "option 'max_server_cpu' = 0: must be a number from 0.001 to 1"),
        ({"destination": ""}, "option 'destination' = '': must name a directory"),
        ({"destination": __file__}, "option 'destination' = .*: is not a directory"),
        ({"storage_options": ["x"]}, "option 'storage_options' = .*: must be a mapping of text to text"),
        ({"destination": "s3://b", "storage_options": {"region": 5}}, "option 'storage_options' = "),
        ({"destination": "s3://b", "storage_options": {"regoin": "x"}}, r"option 'storage_options' = \*\*\*: .*regoin"),
        ({"max_server_cpu": 1.5}, "option 'max_server_cpu' = 1.5: "),
        ({"storage_options": {"region": "x"}}, "option 'storage_options' = .*: a directory has no options"),
    ],
)
async def test_invalid_arguments_are_rejected(queue: Queue, tmp_path: Path, arguments: Any, message: str):
    with pytest.raises(GlideMQValidationError, match=message):
        await queue.backups.create(**{"destination": tmp_path, **arguments})


async def test_a_broadcast_is_rejected(queue: Queue, url: str, tmp_path: Path):
    from glidemq_py import Broadcast

    async with Broadcast(queue.name, url) as broadcast:
        await broadcast.subscribe("mail")
        with pytest.raises(BackupError, match="is a broadcast; only queues can be backed up"):
            await queue.backups.create(tmp_path)
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


def test_backups_in_a_shared_directory_are_private(url: str, queue_name: str, tmp_path: Path):
    tmp_path.chmod(0o755)
    mask = os.umask(0o022)
    try:
        with BlockingQueue(queue_name, url) as queue:
            queue.add("n", 1)
            queue.backups.create(tmp_path)
    finally:
        os.umask(mask)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()} == {0o700}
