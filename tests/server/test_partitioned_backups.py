"""Backups of partitioned queues: all partitions in one, restored to the same or another queue; also on a cluster."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import FlowJob, FlowProducer, GlideMQConnectionError, GlideMQValidationError, Job, Queue, Worker
from glidemq_py.errors import BackupError, QueueNotEmptyError, QueuePartitionsError
from tests.conftest import SERVER_AND_CLUSTER
from tests.contract.test_backup import KEYS, check_that_all_run, contents, fill, work
from tests.inside import Call, link_of
from tests.server.test_partitions import id_in, keyed
from tests.server.worker_support import PATIENCE

pytestmark = pytest.mark.parametrize("core_server", SERVER_AND_CLUSTER, indirect=True)

PARTITIONS = 3


@pytest.mark.parametrize(("partitions", "target"), [(PARTITIONS, 4), (PARTITIONS, 2), (None, PARTITIONS)])
async def test_a_queue_with_another_number_of_partitions_is_rejected(
    core_url: str, queue_name: str, tmp_path: Path, partitions: int | None, target: int
):
    async with Queue(queue_name, core_url, partitions=partitions) as queue:
        await queue.add("n")
        await queue.backups.create(tmp_path)
    async with Queue(f"{queue_name}-c", core_url, partitions=target) as copy:
        with pytest.raises(QueuePartitionsError) as raised:
            await copy.backups.restore(tmp_path, source=queue_name)
        assert (raised.value.stored, raised.value.wanted) == (target, partitions or 1)
        assert await copy.count() == 0


async def test_a_queue_without_partitions_that_has_had_jobs_is_rejected(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await queue.add("n")
        await queue.backups.create(tmp_path)
    async with Queue(f"{queue_name}-c", core_url) as copy:
        await (await copy.add("n")).remove()
        with pytest.raises(QueueNotEmptyError, match="has had jobs"):
            await copy.backups.restore(tmp_path, source=queue_name)
        await copy.obliterate()
        assert (await copy.backups.restore(tmp_path, source=queue_name)).jobs == 1


async def test_a_backup_of_a_change_that_an_earlier_version_had_begun(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await queue.add("n")
        info = await queue.backups.create(tmp_path)
        changed = replace(info, counts=(1, PARTITIONS))
        (tmp_path / queue_name / info.id / "manifest.json").write_bytes(changed.to_json())
        await queue.obliterate()
    async with Queue(queue_name, core_url) as queue:
        with pytest.raises(BackupError, match=r"was being changed; restore it with the version that has written it"):
            await queue.backups.restore(tmp_path)


async def test_nothing_is_written_if_one_partition_has_jobs(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await fill(queue, core_url)
        await queue.backups.create(tmp_path)
    for at in range(PARTITIONS):
        async with Queue(f"{queue_name}-{at}", core_url, partitions=PARTITIONS) as copy:
            job = await copy.add("n", ordering={"key": keyed(at, PARTITIONS)})
            with pytest.raises(QueueNotEmptyError):
                await copy.backups.restore(tmp_path, source=queue_name)
            assert (await copy.get_job_counts()).unfinished == 1
            await job.remove()
            await copy.obliterate()
            assert (await copy.backups.restore(tmp_path, source=queue_name)).resumed is False


@pytest.mark.parametrize(
    ("function", "number"),
    [("restore_begin", 2), ("restore_jobs", 2), ("restore_place", 1), ("restore_end", 2)],
)
async def test_an_interrupted_restore_continues(
    core_url: str, queue_name: str, tmp_path: Path, function: str, number: int, monkeypatch: pytest.MonkeyPatch
):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await fill(queue, core_url)
        before = await contents(queue)
        await queue.backups.create(tmp_path)
    async with Queue(f"{queue_name}-c", core_url) as copy:
        await copy.connect()
        transport, left = type(link_of(copy).transport), [number]
        call: Callable[..., Any] = transport.call

        async def failing(self: Any, given: Call[Any]):
            if given.function == function:
                left[0] -= 1
                if not left[0]:
                    raise GlideMQConnectionError("interrupted")
            return await call(self, given)

        with monkeypatch.context() as patched:
            patched.setattr(transport, "call", failing)
            with pytest.raises(GlideMQConnectionError):
                await copy.backups.restore(tmp_path, source=queue_name)
        assert left == [0]
    async with Queue(f"{queue_name}-c", core_url) as copy:
        assert (await copy.backups.restore(tmp_path, source=queue_name)).resumed
        assert await contents(copy) == before
        await check_that_all_run(copy, core_url)


async def test_damaged_parts_and_formats_are_rejected(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await queue.add_bulk([("n", at, {"job_id": f"job-{at}"}) for at in range(30)])
        info = await queue.backups.create(tmp_path)
        folder = tmp_path / queue_name / info.id
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["format"] == 2  # earlier releases would restore all partitions into one
        assert [part.name for part in info.parts] == [f"partition-{at:03}-part-00001.msgpack.gz" for at in range(3)]
        (folder / info.parts[1].name).write_bytes(b"x")
        with pytest.raises(BackupError, match="partition-001-part-00001"):
            await queue.backups.verify(tmp_path)


async def test_a_client_that_knows_no_partitions(core_url: str, queue_name: str, tmp_path: Path):
    """The backup contains those that another client has added, and a restore serves them."""
    async with Queue(queue_name, core_url) as queue:
        await queue.count()
        async with Queue(queue_name, core_url, partitions=PARTITIONS) as creator:
            await creator.add_bulk([("n", at, {"job_id": id_in(at, PARTITIONS)}) for at in range(PARTITIONS)])
        info = await queue.backups.create(tmp_path)
        assert (info.jobs, len(info.partitions)) == (PARTITIONS, PARTITIONS)


# -- another number of partitions -----------------------------------------------------------------------------------


async def fill_without_links(queue: Queue, url: str):
    """Add jobs of many kinds that have no relation to one another; some of them end, and one leaves a log."""

    async def handle(job: Job):
        await job.log(f"line of {job.name}")
        if job.name == "bad":
            raise ValueError("no")
        return job.data

    await queue.add_bulk([("done", at, {"job_id": f"done-{at}"}) for at in range(6)])
    await queue.add_bulk([("done", at) for at in range(6, 12)])
    await queue.add("bad", "bad", attempts=1)
    async with Worker(queue.name, handle, url) as worker:
        await worker.drain()
    await queue.add_bulk([("ordered", [key, at], {"ordering": {"key": key}}) for at in range(5) for key in KEYS])
    await queue.add_bulk([("fair", [key, at], {"fair_key": key}) for at in range(3) for key in KEYS])
    await queue.add_bulk([("urgent", at, {"priority": 1 + at % 2}) for at in range(4)])
    await queue.add_bulk([("unique", at, {"deduplication": {"id": f"u-{at}"}}) for at in range(6)])
    await queue.add_bulk([("plain", at) for at in range(20)])
    await queue.add_bulk([("later", at, {"delay": 3_600_000}) for at in range(4)])


def fail_after(function: str, queue: Queue, patched: pytest.MonkeyPatch):
    """Let calls of this function fail although they were executed."""
    transport = type(link_of(queue).transport)
    call: Callable[..., Any] = transport.call

    async def failing(self: Any, given: Call[Any]):
        reply = await call(self, given)
        if given.function == function:
            raise GlideMQConnectionError("interrupted")
        return reply

    patched.setattr(transport, "call", failing)


async def contents_without_ids(queue: Queue) -> list[str]:
    return sorted(map(repr, (await contents(queue)).values()))


@pytest.mark.parametrize(("before", "after"), [(None, 3), (3, 2), (3, 1)])
@pytest.mark.parametrize("interrupted", [None, "restore_jobs", "restore_place"])
async def test_jobs_are_divided_among_another_number_of_partitions(
    core_url: str, queue_name: str, tmp_path: Path, before: int | None, after: int, interrupted: str | None,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    async with Queue(queue_name, core_url, partitions=before) as queue, Queue(f"{queue_name}-c", core_url) as copy:
        await fill_without_links(queue, core_url)
        await queue.backups.create(tmp_path)
        if interrupted is not None:
            with monkeypatch.context() as patched:
                await copy.connect()
                fail_after(interrupted, copy, patched)
                with pytest.raises(GlideMQConnectionError):
                    await copy.backups.restore(tmp_path, source=queue_name, partitions=after)
        report = await copy.backups.restore(tmp_path, source=queue_name, partitions=after)
        assert report.jobs + report.existing == report.backup.jobs
        assert report.not_kept == {}
        assert len((await copy.settings.get_partitions()).names) == after
        assert await contents_without_ids(copy) == await contents_without_ids(queue)
        assert str(await copy.check()).startswith(f"queue {copy.name!r}: consistent")
        places = {each.rpartition("||")[0] or "0" for each in await contents(copy)}
        assert places == set(map(str, range(after)))
        done = await copy.get_job("done-3")
        assert done is not None
        assert (done.returnvalue, await done.logs()) == (3, ["line of done"])
        assert [str((await copy.add("done", job_id="done-4")).outcome)] == ["duplicate"]
        unique = [await copy.add("unique", deduplication={"id": f"u-{at}"}) for at in range(6)]
        assert {str(job.outcome) for job in unique} == {"skipped"}
        await check_order(copy, core_url)


async def check_order(queue: Queue, url: str):
    """Run the jobs, and add one more for each key meanwhile: those of a key run in order, in one partition."""
    order: defaultdict[str, list[int]] = defaultdict(list)

    async def handle(job: Job):
        if job.name == "ordered":
            order[job.data[0]].append(job.data[1])

    added = [await queue.add("ordered", [key, 5], ordering={"key": key}) for key in KEYS]
    async with Worker(queue.name, handle, url, concurrency=6):
        for job in added:
            await job.wait_until_finished()
        async with asyncio.timeout(PATIENCE):
            while (await queue.get_job_counts()).unfinished > 4:  # noqa: ASYNC110  the others are due in an hour
                await asyncio.sleep(0.05)
    assert order == {key: [0, 1, 2, 3, 4, 5] for key in KEYS}
    counts = await queue.get_job_counts()
    assert (counts.unfinished, counts.failed) == (4, 1)


async def test_links_are_not_kept_with_another_number(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue, Queue(f"{queue_name}-c", core_url) as copy:
        await queue.schedulers.upsert("tick", every=3_600_000)
        await queue.add("plain")
        async with FlowProducer(core_url) as flows:
            leaves = [FlowJob("leaf", queue.name, at) for at in range(2)]
            await flows.add(FlowJob("root", queue.name, children=leaves))
        await queue.backups.create(tmp_path)
        with pytest.raises(BackupError, match=r"3 unfinished jobs \(.*\) have a parent, children") as raised:
            await copy.backups.restore(tmp_path, source=queue_name, partitions=2)
        assert "let workers serve both queues" in str(raised.value)
        assert (
            await copy.settings.get_partitions() == await Queue(f"{queue_name}-c", core_url).settings.get_partitions()
        )
        async with Worker(queue.name, work, core_url) as worker:
            await worker.drain()
        await queue.add("plain")
        await queue.backups.create(tmp_path)
        report = await copy.backups.restore(tmp_path, source=queue_name, partitions=2)
        assert report.not_kept == {"job links": 3, "schedulers": 1}
        root = next(job for job in await copy.get_jobs("completed") if job.name == "root")
        assert len(root.returnvalue or ()) == 2
        assert await root.get_children_values() == {}
        assert await copy.schedulers.get_all() == []


async def test_another_number_needs_another_name(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await queue.add("n")
        await queue.backups.create(tmp_path)
        await queue.obliterate()
    async with Queue(queue_name, core_url) as queue:
        with pytest.raises(GlideMQValidationError, match="'partitions' = 2: must be that of the backup, 3, under the"):
            await queue.backups.restore(tmp_path, partitions=2)
        with pytest.raises(GlideMQValidationError, match="'partitions' = 257"):
            await queue.backups.restore(tmp_path, partitions=257)
        assert (await queue.backups.restore(tmp_path, partitions=PARTITIONS)).jobs == 1
    async with Queue(f"{queue_name}-c", core_url, partitions=4) as copy:
        for wanted in (1, 2):
            with pytest.raises(QueuePartitionsError) as raised:
                await copy.backups.restore(tmp_path, source=queue_name, partitions=wanted)
            assert (raised.value.stored, raised.value.wanted) == (4, wanted)
