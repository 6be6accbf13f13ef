"""Backups of partitioned queues: all partitions in one, restored to the same or another queue; also on a cluster."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import (
    BackupError,
    BackupInfo,
    BackupSchedule,
    FlowJob,
    FlowProducer,
    GlideMQConnectionError,
    Job,
    Queue,
    QueueNotEmptyError,
    Worker,
    sync,
)
from glidemq_py import backup as command
from glidemq_py._core.calls import Call
from glidemq_py._features.partitions.layout import split_partition_id
from glidemq_py.testing import RespClient
from tests.conftest import SERVER_AND_CLUSTER
from tests.server.test_partitions import id_in, keyed
from tests.server.worker_support import with_timeout

pytestmark = pytest.mark.parametrize("core_server", SERVER_AND_CLUSTER, indirect=True)

PARTITIONS = 3
KEYS = [f"customer-{number}" for number in range(6)]


async def fill(queue: Queue, url: str) -> None:
    """Add jobs of many kinds, and let some of them end."""
    await queue.add_bulk([("done", at, {"job_id": f"done-{at}"}) for at in range(6)])
    async with Worker(queue.name, work, url) as worker:
        await worker.drain()
    await queue.add_bulk([("ordered", [key, at], {"ordering": {"key": key}}) for at in range(5) for key in KEYS])
    needed = [await queue.add("needed", job_id=id_in(at, PARTITIONS)) for at in range(PARTITIONS)]
    await queue.add("last", job_id="last", depends_on=needed)
    await queue.add_bulk([("later", None, {"delay": 3_600_000})] * 4)
    await queue.set_global_concurrency(30)
    async with FlowProducer(url) as flows:
        leaves = [FlowJob("leaf", queue.name, at, {"job_id": f"leaf-{at}"}) for at in range(6)]
        await flows.add(FlowJob("root", queue.name, options={"job_id": "root"}, children=leaves))


async def work(job: Job) -> Any:
    return sorted(await job.get_children_values()) or job.data


async def contents(queue: Queue) -> dict[str, tuple[Any, ...]]:
    """Return what is compared of each job."""
    found: dict[str, tuple[Any, ...]] = {}
    states = ("waiting", "delayed", "completed", "failed", "group-waiting", "waiting-children", "prioritized", "active")
    for state in states:
        async for job in queue.iter_jobs(state):
            shown = "waiting" if state == "group-waiting" else state  # a restore starts one job per ordering key
            found[job.id] = (job.name, job.data, shown, job.returnvalue)
    return found


async def check_that_all_run(queue: Queue, url: str) -> None:
    """Run the jobs: relations hold, and the order of keys."""
    order: defaultdict[str, list[int]] = defaultdict(list)

    async def handle(job: Job) -> Any:
        if job.name == "ordered":
            order[job.data[0]].append(job.data[1])
        return await work(job)

    async with Worker(queue.name, handle, url, concurrency=6):
        last, root = await queue.get_job("last"), await queue.get_job("root")
        assert last is not None
        assert root is not None
        needed = [split_partition_id(id_in(at, PARTITIONS)) for at in range(PARTITIONS)]
        values = await last.wait_until_finished()
        assert [name.rpartition("||")[2].rpartition(":")[2] for name in values] == sorted(own for _, own in needed)
        assert all(name.startswith(f"glide:{{{queue.name}}}:") for name in values)
        assert len(await root.wait_until_finished()) == 6
        for number, key in enumerate(KEYS):
            probe = await queue.add("ordered", [key, 5], ordering={"key": key})
            assert (await queue.get_group(key)) is not None, number
            await probe.wait_until_finished()
    assert order == {key: [0, 1, 2, 3, 4, 5] for key in KEYS}


async def test_a_restored_queue_is_as_before(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await fill(queue, core_url)
        before = await contents(queue)
        info = await queue.backup(tmp_path)
        assert (info.queue, info.jobs, len(info.partitions)) == (queue_name, len(before), PARTITIONS)
        assert sum(each.jobs for each in info.partitions) == info.jobs
        assert [each.id for each in await queue.get_backups(tmp_path)] == [info.id]
        assert await queue.verify_backup(tmp_path) == info
        await queue.obliterate(force=True)
    async with Queue(queue_name, core_url) as queue:
        report = await queue.restore(tmp_path)
        assert (report.jobs, report.queue, report.resumed) == (len(before), queue_name, False)
        assert (await queue.get_partitions()).names == tuple(each.name for each in info.partitions)
        assert await contents(queue) == before
        assert await queue.get_global_concurrency() == 30
        assert (await queue.check()).ok
        duplicate = await queue.add("done", job_id="done-3")
        assert str(duplicate.outcome) == "duplicate"
        await check_that_all_run(queue, core_url)


async def test_a_copy_under_another_name_keeps_its_relations(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue, Queue(f"{queue_name}-c", core_url) as copy:
        await fill(queue, core_url)
        await queue.backup(tmp_path)
        report = await copy.restore(tmp_path, source=queue_name)
        assert report.queue == copy.name
        assert await contents(copy) == await contents(queue)
        assert (await copy.check()).ok
        await check_that_all_run(copy, core_url)
        assert (await queue.get_job_counts()).waiting_children == 2
        with pytest.raises(QueueNotEmptyError, match="has jobs") as raised:
            await copy.restore(tmp_path, source=queue_name)
        assert raised.value.queue == copy.name


async def test_the_layout_of_a_change_is_restored(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url) as queue:
        await queue.add("n", job_id="early")
        await queue.set_partitions(4)
        await queue.add("n", job_id="late")
        info = await queue.backup(tmp_path)
        assert info.counts == (1, 4)
        await queue.obliterate(force=True)
    async with Queue(queue_name, core_url, partitions=7) as other:
        assert (await other.restore(tmp_path)).jobs == 2
        state = await other.get_partitions()
        assert (state.count, state.is_settled) == (4, False)
        outcomes = [str((await other.add("n", job_id=job_id)).outcome) for job_id in ("early", "late", "new")]
        assert outcomes == ["duplicate", "duplicate", "added"]


async def test_the_backup_of_a_plain_queue_is_restored_into_partitions(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url) as plain:
        await plain.add_bulk([("n", [key, at], {"ordering": {"key": key}}) for at in range(3) for key in KEYS])
        await plain.backup(tmp_path)
    async with Queue(f"{queue_name}-c", core_url, partitions=PARTITIONS) as queue:
        assert (await queue.restore(tmp_path, source=queue_name)).jobs == 18
        order: defaultdict[str, list[int]] = defaultdict(list)

        async def handle(job: Job) -> None:
            order[job.data[0]].append(job.data[1])

        await queue.add_bulk([("n", [key, 3], {"ordering": {"key": key}}) for key in KEYS])
        async with Worker(queue.name, handle, core_url, concurrency=4) as worker:
            await with_timeout(worker.drain())
        assert order == {key: [0, 1, 2, 3] for key in KEYS}
        await queue.clean(0, 100)
        assert (await queue.set_partitions(PARTITIONS)).is_settled


async def test_nothing_is_written_if_one_partition_has_jobs(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await fill(queue, core_url)
        await queue.backup(tmp_path)
    for at in range(PARTITIONS):
        async with Queue(f"{queue_name}-{at}", core_url, partitions=PARTITIONS) as copy:
            job = await copy.add("n", ordering={"key": keyed(at, PARTITIONS)})
            with pytest.raises(QueueNotEmptyError):
                await copy.restore(tmp_path, source=queue_name)
            assert (await copy.get_job_counts()).unfinished == 1
            await job.remove()
            await copy.obliterate()
            assert (await copy.restore(tmp_path, source=queue_name)).resumed is False


@pytest.mark.parametrize(
    ("function", "number"),
    [("restore_begin", 2), ("restore_jobs", 2), ("restore_place", 1), ("restore_end", 2), ("set_layout", 1)],
)
async def test_an_interrupted_restore_continues(
    core_url: str, queue_name: str, tmp_path: Path, function: str, number: int, monkeypatch: pytest.MonkeyPatch
):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await fill(queue, core_url)
        before = await contents(queue)
        await queue.backup(tmp_path)
    async with Queue(f"{queue_name}-c", core_url) as copy:
        await copy.connect()
        transport, left = type(copy._transport), [number]
        call: Callable[..., Any] = transport.call

        async def failing(self: Any, given: Call[Any]) -> Any:
            if given.function == function:
                left[0] -= 1
                if not left[0]:
                    raise GlideMQConnectionError("interrupted")
            return await call(self, given)

        with monkeypatch.context() as patched:
            patched.setattr(transport, "call", failing)
            with pytest.raises(GlideMQConnectionError):
                await copy.restore(tmp_path, source=queue_name)
        assert left == [0]
    async with Queue(f"{queue_name}-c", core_url) as copy:
        assert (await copy.restore(tmp_path, source=queue_name)).resumed
        assert await contents(copy) == before
        await check_that_all_run(copy, core_url)


async def test_damaged_parts_and_formats_are_rejected(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await queue.add_bulk([("n", at, {"job_id": f"job-{at}"}) for at in range(30)])
        info = await queue.backup(tmp_path)
        folder = tmp_path / queue_name / info.id
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["format"] == 2  # earlier releases would restore all partitions into one
        assert [part.name for part in info.parts] == [f"partition-{at:03}-part-00001.msgpack.gz" for at in range(3)]
        (folder / info.parts[1].name).write_bytes(b"x")
        with pytest.raises(BackupError, match="partition-001-part-00001"):
            await queue.verify_backup(tmp_path)


async def test_schedules_and_retention(core_url: str, queue_name: str, tmp_path: Path, core_resp: RespClient):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await queue.add("n")
        kept: list[BackupInfo] = [await queue.backup(tmp_path, keep=2) for _ in range(3)]
        assert [each.id for each in await queue.get_backups(tmp_path)] == [each.id for each in kept[1:]]
        other = tmp_path / "scheduled"
        async with BackupSchedule([queue], other, every=60_000):
            for _ in range(200):
                if await queue.get_backups(other):
                    break
                await asyncio.sleep(0.05)
        assert [each.jobs for each in await queue.get_backups(other)] == [1]


async def test_a_blocking_queue_is_backed_up(core_url: str, queue_name: str, tmp_path: Path):
    def run() -> tuple[int, int]:
        with sync.Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
            queue.add_bulk([("n", at) for at in range(300)])
            info = queue.backup(tmp_path)
        with sync.Queue(f"{queue_name}-c", core_url) as copy:
            return info.jobs, copy.restore(tmp_path, source=queue_name).jobs

    assert await with_timeout(asyncio.to_thread(run)) == (300, 300)


async def test_the_command(core_url: str, queue_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    async def run(*arguments: str) -> str:
        code = await asyncio.to_thread(command.main, [*arguments, "--url", core_url])
        found = capsys.readouterr()
        assert code == 0, found
        return found.out

    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await queue.add_bulk([("n", at, {"job_id": id_in(at, PARTITIONS)}) for at in range(PARTITIONS)])
        assert f" UTC: {PARTITIONS} jobs, " in await run("create", str(tmp_path), queue_name)
        assert "intact" in await run("verify", str(tmp_path), queue_name)
        copy = f"{queue_name}-copy"
        assert f"restored {PARTITIONS} jobs" in await run("restore", str(tmp_path), copy, "--source", queue_name)


async def test_a_client_that_knows_no_partitions(core_url: str, queue_name: str, tmp_path: Path):
    """The backup contains those that another client has added, and a restore serves them."""
    async with Queue(queue_name, core_url) as queue, Queue(queue_name, core_url) as operator:
        await queue.count()
        await operator.set_partitions(PARTITIONS)
        await operator.add_bulk([("n", at, {"job_id": id_in(at, PARTITIONS)}) for at in range(PARTITIONS)])
        info = await queue.backup(tmp_path)
        assert (info.jobs, len(info.partitions)) == (PARTITIONS, PARTITIONS)


# -- settings of a plain backup --------------------------------------------------------------------------------


async def test_settings_of_a_plain_backup_apply_to_all_partitions(core_url: str, queue_name: str, tmp_path: Path):
    group = keyed(2, PARTITIONS)
    async with Queue(queue_name, core_url, dead_letter_queue=f"{queue_name}-dead") as plain:
        await plain.add("n")
        await plain.set_global_concurrency(9)
        await plain.set_global_rate_limit(300, 1_000)
        await plain.set_name_limits("slow", concurrency=6)
        await plain.set_fair_key_defaults(concurrency=2)
        await plain.set_fair_key_limits(group, concurrency=4)
        await plain.set_group_limits(group, concurrency=5)
        await plain.set_failure_policy(max_age=60_000)
        await plain.set_attempt_history(max_attempts=8)
        await plain.pause()
        await plain.backup(tmp_path)
    async with Queue(f"{queue_name}-c", core_url, partitions=PARTITIONS) as queue:
        await queue.set_attempt_history(max_attempts=7)  # of the target: the backup's setting applies
        await queue.restore(tmp_path, source=queue_name)
        assert queue._partitions is not None
        parts = queue._partitions.queues
        assert [await part.get_global_concurrency() for part in parts] == [3] * PARTITIONS
        rates = [await part.get_global_rate_limit() for part in parts]
        assert [rate and rate.max for rate in rates] == [100] * PARTITIONS
        assert [(await part.get_name_limits("slow")).concurrency for part in parts] == [2] * PARTITIONS
        for part in parts:
            assert await part.is_paused()
            assert (await part.get_fair_key_defaults()).concurrency == 2
            assert await part.get_failure_policy() == await queue.get_failure_policy()
            assert (await part.get_attempt_history()).max_attempts == 8
            dead = await queue._transport.command("HGET", part._keys.meta, "deadLetterQueueName")
            assert dead == f"{queue_name}-dead".encode()
        assert (await parts[2].get_fair_key(group)).concurrency == 4
        found = await parts[2].get_group(group)
        assert found is not None
        assert found.limits.concurrency == 5
        assert (await queue.get_global_limits()).concurrency == 9
        assert {"partitions", "fair-keys"} <= set(await queue.get_features())
        await queue.resume()
        assert not any([await part.is_paused() for part in parts])
        assert (await queue.set_partitions(PARTITIONS)).is_settled


async def test_a_limit_that_cannot_be_divided_is_rejected(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url) as plain:
        await plain.add("n")
        await plain.set_global_concurrency(2)
        await plain.backup(tmp_path)
    async with Queue(f"{queue_name}-c", core_url, partitions=PARTITIONS) as queue:
        with pytest.raises(BackupError, match=r"limit 'concurrency' is 2; call Queue.set_partitions"):
            await queue.restore(tmp_path, source=queue_name)
        assert await queue.count() == 0
        await queue.set_partitions(2)
        assert (await queue.restore(tmp_path, source=queue_name)).jobs == 1
        assert await queue.get_global_concurrency() == 2


async def test_schedulers_that_choose_a_partition_are_rejected(core_url: str, queue_name: str, tmp_path: Path):
    async with Queue(queue_name, core_url) as plain:
        await plain.upsert_job_scheduler("s", every=60_000, template={"options": {"ordering": {"key": "k"}}})
        await plain.backup(tmp_path)
    async with Queue(f"{queue_name}-c", core_url, partitions=PARTITIONS) as queue:
        with pytest.raises(BackupError, match="a scheduler creates jobs with 'ordering'"):
            await queue.restore(tmp_path, source=queue_name)
        assert await queue.get_job_schedulers() == []
