"""Vector search over partitions, with a search module of one-dimensional vectors; in memory there is none."""

import re
import struct
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Queue
from glidemq_py.errors import SearchIndexError
from glidemq_py.testing import MemoryServer, TestQueue
from tests.inside import CommandError, partition_of


class SearchServer(MemoryServer):
    """An in-memory server with indexes of the field `v`, which is a vector if the schema has it."""

    def __init__(self):
        super().__init__()
        self.indexes: dict[bytes, list[bytes]] = {}

    def command(self, args: list[bytes], *, shown: bool = True) -> Any:
        name, *words = args
        if name == b"FT.CREATE" and words[0] in self.indexes:
            raise CommandError("Index already exists")
        if name == b"FT.CREATE":
            self.indexes[words[0]] = words
            return "OK"
        if name.startswith(b"FT.") and words[0] not in self.indexes:
            raise CommandError(f"Unknown index name: {words[0].decode()}")
        if name == b"FT.DROPINDEX":
            del self.indexes[words[0]]
            return "OK"
        if name == b"FT.INFO":
            is_vector = b"v" in self.indexes[words[0]]
            return {b"attributes": [{b"attribute": b"v", b"type": b"VECTOR"}] if is_vector else []}
        return self.search(*words) if name == b"FT.SEARCH" else super().command(args, shown=shown)

    def search(self, index: bytes, query: bytes, *words: bytes) -> Any:
        prefix = self.indexes[index][self.indexes[index].index(b"PREFIX") + 2]
        found = re.search(rb"KNN (\d+) @v", query)
        assert found
        (wanted,) = struct.unpack("<f", words[words.index(b"BLOB") + 1])
        hashes = [key for key in self.keys(prefix.decode() + "*") if self.execute("TYPE", key).value == b"hash"]
        stored = [(key.encode(), self.execute("HGET", key, "v")) for key in hashes]
        near = [((struct.unpack("<f", vector)[0] - wanted) ** 2, key) for key, vector in stored if vector]
        hits = {key: {b"__score": b"%.7g" % score} for score, key in sorted(near)[: int(found[1])]}
        return [len(hits), hits]


async def test_there_is_no_search_module_in_memory():
    async with TestQueue() as queue:
        with pytest.raises(SearchIndexError, match="no search module"):
            await queue.vectors.create_index(vector={"name": "v", "dimensions": 1})


async def test_partitions_are_searched_together():
    server = SearchServer()
    async with Queue("q", server, partitions=3) as queue, Queue("q2", server, partitions=3) as other:
        with pytest.raises(SearchIndexError, match=r"'q' has no index 'q-idx'; call queue.vectors.create_index"):
            await queue.vectors.search([1])
        vector: Any = {"name": "v", "dimensions": 1, "metric": "l2"}
        for each in (queue, other):
            assert await each.vectors.create_index(vector=vector) == f"{each.name}-idx"
        assert len(server.indexes) == 6
        with pytest.raises(SearchIndexError, match="exists"):
            await queue.vectors.create_index(vector=vector)
        jobs = await queue.add_bulk([("n", at, {"job_id": f"job-{at}"}) for at in range(12)])
        for job in jobs:
            await job.store_vector("v", [job.data])
        await (await other.add("n", 3)).store_vector("v", [3])
        found = await queue.vectors.search([3.2], k=5)
        assert [match.job.data for match in found] == [3, 4, 2, 5, 1]
        assert [match.job.id for match in found] == [jobs[at].id for at in (3, 4, 2, 5, 1)]
        assert found[0].score == pytest.approx(0.04, abs=1e-5)
        assert {partition_of(match.job.id) for match in await queue.vectors.search([0], k=12)} == {0, 1, 2}
        assert len(await queue.vectors.search([0])) == 10
        with pytest.raises(GlideMQValidationError, match="'k'"):
            await queue.vectors.search([0], k=0)
        await queue.remove(jobs[3].id)
        assert [match.job.data for match in await queue.vectors.search([3.2], k=2)] == [4, 2]
        assert await queue.vectors.drop_index()
        assert not await queue.vectors.drop_index()
        assert len(server.indexes) == 3
        assert await queue.vectors.create_index(name="mine", fields={"kind": "tag"}) == "mine"
        with pytest.raises(SearchIndexError, match="no vector field"):
            await queue.vectors.search([1], name="mine")
