"""Tags of jobs: adding, reading, and listing jobs by tags."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import FlowJob, GlideMQValidationError, Job, JobOptions
from tests.contract.api import FlowProducer, Queue
from tests.contract.observe import Raw
from tests.server.worker_support import WorkerFor


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url, default_job_options={"tags": ["default"]}) as queue:
        yield queue
        await queue.obliterate(force=True)


async def found(queue: Queue, *args: Any, **options: Any) -> list[Any]:
    return [job.data for job in await queue.get_jobs(*args, **options)]


async def test_tags_are_read_everywhere(
    queue: Queue,
    worker_for: WorkerFor,
):
    seen: list[tuple[str, ...]] = []

    async def handler(job: Job):
        seen.append(job.tags)
        if job.attempts_made == 0:
            raise ValueError("again")

    job = await queue.add("a", tags=["invoice", "eu", "invoice"], attempts=2)
    assert job.tags == ("invoice", "eu")
    async with worker_for(handler):
        await job.wait_until_finished(120_000)
    assert seen == [("invoice", "eu")] * 2
    read = await queue.get_job(job.id)
    assert read is not None
    assert read.tags == ("invoice", "eu")
    assert (await queue.add("a")).tags == ("default",)
    assert (await queue.add("a", tags=[])).tags == ()


@pytest.mark.exclude("partitioned", reason="the lists of partitions follow each other")
async def test_jobs_are_listed_by_tags(queue: Queue):
    tags: tuple[list[str], ...] = (["a"], ["a", "b"], ["b"], ["ab"], [], ['"'], ["\u00fc \\ b"])
    await queue.add_bulk([("n", n, {"tags": tags[n % len(tags)]}) for n in range(700)])
    assert await found(queue, "waiting", tags="a") == [n for n in range(700) if n % 7 in (0, 1)]
    assert await found(queue, "waiting", tags=["b", "a"]) == list(range(1, 700, 7))
    assert await found(queue, "waiting", 2, 4, tags="b") == [8, 9, 15]
    assert await found(queue, "waiting", tags='"') == list(range(5, 700, 7))
    assert await found(queue, "waiting", tags="\u00fc \\ b") == list(range(6, 700, 7))
    assert await found(queue, "waiting", tags="none") == []
    assert await found(queue, "completed", tags="a") == []
    assert [job.data async for job in queue.iter_jobs("waiting", tags=("ab",))] == list(range(3, 700, 7))
    assert len(await queue.search_jobs(tags=["a"], limit=1_000)) == 200
    assert [job.data for job in await queue.search_jobs(tags="a", limit=3, exclude_data=False)] == [0, 1, 7]
    assert await queue.search_jobs("waiting", "other", tags="a") == []


@pytest.mark.parametrize(
    "options", [{"delay": 60_000}, {"priority": 4}, {"lifo": True}, {"fair_key": "k"}, {"rank": -1}]
)
async def test_jobs_of_every_source_are_listed_by_tags(queue: Queue, options: Any):
    await queue.add_bulk([("n", n, {"tags": [f"t{n % 3}"], **options}) for n in range(30)])
    jobs = await queue.search_jobs(tags="t1")
    assert sorted(job.data for job in jobs) == list(range(1, 30, 3))
    assert {job.tags for job in jobs} == {("t1",)}


async def test_other_texts_in_the_options_are_not_tags(queue: Queue, raw: Raw):
    job = await queue.add("a", tags=["x"], headers={"y": "z"})
    assert raw.job(job.id)["opts"] == '{"headers":{"y":"z"},"tags":["x"]}'
    for text in ("y", "z", "tags", "headers"):
        assert await queue.search_jobs(tags=text) == []
    assert [each.id for each in await queue.search_jobs(tags="x")] == [job.id]


@pytest.mark.parametrize(
    "stored", ['{"tags":"a"}', '{"tags":{"a":"b"}}', '{"tags":[1,null]}', '{"tags":["a"', "[]", '"a"']
)
async def test_foreign_tags_are_ignored(queue: Queue, raw: Raw, stored: str):
    job = await queue.add("a", 1)
    raw.run("HSET", f"job:{job.id}", "opts", stored)
    (read,) = await queue.get_jobs("waiting")
    assert read.tags == ()
    assert await queue.search_jobs(tags="a") == []


async def test_tags_in_flows_and_backups(queue: Queue, url: str, flows: FlowProducer, tmp_path: Path):
    child = FlowJob("c", queue.name, options={"tags": ["child"]})
    await flows.add(FlowJob("p", queue.name, children=[child], options={"tags": ["parent"]}))
    assert [job.name for job in await queue.search_jobs(tags="child")] == ["c"]
    assert [job.name for job in await queue.search_jobs("waiting-children", tags="parent")] == ["p"]
    await queue.backup(tmp_path)
    async with Queue(f"{queue.name}-copy", url) as copy:
        await copy.restore(tmp_path, source=queue.name)
        assert [job.tags for job in await copy.search_jobs(tags="child")] == [("child",)]
        await copy.obliterate(force=True)


@pytest.mark.parametrize(
    "tags", ["text", b"x", {"a": 1}, 5, [1], [""], ["x" * 65], ["a\n"], [str(n) for n in range(21)]]
)
async def test_invalid_tags_are_rejected(queue: Queue, tags: Any):
    with pytest.raises(GlideMQValidationError, match="tags"):
        await queue.add("a", tags=tags)
    with pytest.raises(GlideMQValidationError, match="tags"):
        JobOptions(tags=tags)
    if tags != "text":
        with pytest.raises(GlideMQValidationError, match="tags"):
            await queue.get_jobs("waiting", tags=tags)
    assert await queue.count() == 0
