"""Tags of jobs: adding, reading, and listing jobs by tags."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from glidemq_py import FlowJob
from tests.contract.api import FlowProducer, Queue


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url, default_job_options={"tags": ["default"]}) as queue:
        yield queue
        await queue.obliterate(force=True)


async def test_tags_in_flows_and_backups(queue: Queue, url: str, flows: FlowProducer, tmp_path: Path):
    child = FlowJob("c", queue.name, options={"tags": ["child"]})
    await flows.add(FlowJob("p", queue.name, children=[child], options={"tags": ["parent"]}))
    assert [job.name for job in await queue.search_jobs(tags="child")] == ["c"]
    assert [job.name for job in await queue.search_jobs("waiting-children", tags="parent")] == ["p"]
    await queue.backups.create(tmp_path)
    async with Queue(f"{queue.name}-copy", url) as copy:
        await copy.backups.restore(tmp_path, source=queue.name)
        assert [job.tags for job in await copy.search_jobs(tags="child")] == [("child",)]
        await copy.obliterate(force=True)
