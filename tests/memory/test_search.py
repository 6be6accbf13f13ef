"""Vector search in memory: indexes, distances, filters, and rejected queries."""

import math
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, Queue, SearchIndexError, VectorField
from glidemq_py._features.partitions.layout import split_partition_id
from glidemq_py.testing import MemoryServer, TestQueue


async def named(queue: TestQueue, **vectors: list[float]) -> None:
    """Add a job per vector, with the given names."""
    for number, (name, vector) in enumerate(vectors.items()):
        job = await queue.add(name, priority=number)
        await job.store_vector("v", vector)


async def names(queue: TestQueue, embedding: list[float], **options: Any) -> list[str]:
    return [match.job.name for match in await queue.vector_search(embedding, **options)]


@pytest.mark.parametrize(
    ("metric", "distances"),
    [("cosine", {"near": 0.0, "far": 1 - 1 / math.sqrt(2), "off": 1.0}), ("l2", {"near": 1.0, "far": 1.0, "off": 2.0}),
     ("ip", {"near": -1.0, "far": 0.0, "off": 1.0})],
)  # fmt: skip
async def test_results_are_sorted_by_distance(metric: Any, distances: dict[str, float]) -> None:
    async with TestQueue() as queue:
        assert await queue.create_job_index(vector=VectorField(name="v", dimensions=2, metric=metric)) == "test-idx"
        await named(queue, near=[2, 0], far=[1, 1], off=[0, 1])
        found = {match.job.name: match.score for match in await queue.vector_search([1, 0])}
        assert found == pytest.approx(distances, abs=1e-6)
        assert list(found.values()) == sorted(found.values())
        assert len(await queue.vector_search([1, 0], k=2)) == 2


async def test_handler_can_store_a_vector() -> None:
    async def embed(job: Job) -> None:
        await job.store_vector("v", job.data)

    async with TestQueue() as queue, queue.worker(embed) as worker:
        await queue.create_job_index(vector={"name": "v", "dimensions": 2})
        await queue.add("done", [1.0, 0.0])
        await worker.run_until_idle()
        await named(queue, waiting=[1, 0])
        assert await names(queue, [1, 0], filter="@state:{completed}") == ["done"]
        found = await names(queue, [1, 0], filter="@state:{completed|prioritized|waiting}")
        assert sorted(found) == ["done", "waiting"]
        assert await names(queue, [1, 0], filter="-@state:{completed}") == ["waiting"]
        await queue.remove("1")
        assert await names(queue, [1, 0], filter="@state:{completed}") == []


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("*", "abc"), ("@name:{a|c}", "ac"), ("@name:{A}", "a"), ("@priority:[1 2]", "bc"), ("@priority:[(1 +inf]", "c"),
     ("@priority:[-inf 0] | @name:{c}", "ac"), ("@name:{a|b} @priority:[1 1]", "b"), ("-(@name:{a} | @name:{b})", "c"),
     (r"@name:{a\-b}", "")],
)  # fmt: skip
async def test_filters(expression: str, expected: str) -> None:
    async with TestQueue() as queue:
        await queue.create_job_index(vector={"name": "v", "dimensions": 1, "metric": "l2"})
        await named(queue, a=[0], b=[1], c=[2])
        assert "".join(await names(queue, [0], filter=expression)) == expected


@pytest.mark.parametrize(
    "expression", ["@name:word", "@name:{a", "(@name:{a}", "@name:{a})", "|", "-", "@priority:[1]", "@priority:[x y]",
                   "@data:{a}", "@name:[1 2]", "name"],
)  # fmt: skip
async def test_unsupported_filters_are_rejected(expression: str) -> None:
    async with TestQueue() as queue:
        await queue.create_job_index(vector={"name": "v", "dimensions": 1})
        with pytest.raises(SearchIndexError):
            await queue.vector_search([1], filter=expression)


async def test_indexes() -> None:
    server = MemoryServer()
    async with TestQueue("q", server) as queue, TestQueue("q2", server) as other:
        assert not await queue.drop_job_index()
        with pytest.raises(SearchIndexError, match="Unknown index"):
            await queue.vector_search([1])
        await queue.create_job_index(fields={"kind": "tag"})
        with pytest.raises(SearchIndexError, match="exists"):
            await queue.create_job_index()
        with pytest.raises(SearchIndexError, match="no vector field"):
            await queue.vector_search([1])
        assert await queue.drop_job_index()
        await queue.create_job_index(name="mine", vector={"name": "v", "dimensions": 1, "algorithm": "flat"})
        await named(queue, ours=[1])
        await named(other, theirs=[1])
        assert await names(queue, [1], name="mine") == ["ours"]
        with pytest.raises(SearchIndexError, match="bytes"):
            await queue.vector_search([1, 2], name="mine")
        with pytest.raises(SearchIndexError, match="does not exist"):
            await queue.vector_search([1], name="mine", field="w")
        server.flush()
        assert server.execute("FT._LIST") == []


async def test_partitions_are_searched_together() -> None:
    server = MemoryServer()
    async with Queue("q", server, partitions=3) as queue, Queue("q2", server, partitions=3) as other:
        with pytest.raises(SearchIndexError, match=r"'q' has no index 'q-idx'; call create_job_index"):
            await queue.vector_search([1])
        vector: Any = {"name": "v", "dimensions": 1, "metric": "l2"}
        for each in (queue, other):
            assert await each.create_job_index(vector=vector) == f"{each.name}-idx"
        assert len(server.execute("FT._LIST")) == 6
        with pytest.raises(SearchIndexError, match="exists"):
            await queue.create_job_index(vector=vector)
        jobs = await queue.add_bulk([("n", at, {"job_id": f"job-{at}"}) for at in range(12)])
        for job in jobs:
            await job.store_vector("v", [job.data])
        await (await other.add("n", 3)).store_vector("v", [3])
        found = await queue.vector_search([3.2], k=5)
        assert [match.job.data for match in found] == [3, 4, 2, 5, 1]
        assert [match.job.id for match in found] == [jobs[at].id for at in (3, 4, 2, 5, 1)]
        assert found[0].score == pytest.approx(0.04, abs=1e-5)
        assert {split_partition_id(match.job.id)[0] for match in await queue.vector_search([0], k=12)} == {0, 1, 2}
        assert len(await queue.vector_search([0])) == 10
        with pytest.raises(GlideMQValidationError, match="'k'"):
            await queue.vector_search([0], k=0)
        await queue.remove(jobs[3].id)
        assert [match.job.data for match in await queue.vector_search([3.2], k=2)] == [4, 2]
        await queue.set_partitions(5)
        with pytest.raises(SearchIndexError, match="call create_job_index, also after the number has grown"):
            await queue.vector_search([1])
        assert await queue.create_job_index(vector=vector) == "q-idx"
        assert [match.job.data for match in await queue.vector_search([3.2], k=2)] == [4, 2]
        assert await queue.drop_job_index()
        assert not await queue.drop_job_index()
        assert len(server.execute("FT._LIST")) == 3
        assert await queue.create_job_index(name="mine", fields={"kind": "tag"}) == "mine"
        with pytest.raises(SearchIndexError, match="no vector field"):
            await queue.vector_search([1], name="mine")
