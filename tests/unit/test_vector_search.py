"""Vector search: the exact words of the commands, the bytes of a vector, and replies in both of their forms."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import GlideMQError, GlideMQValidationError, Queue, VectorField
from glidemq_py._core.record import _INTEGERS, _TEXTS
from glidemq_py._features import vectors
from glidemq_py.errors import LibraryError, SearchIndexError
from tests.inside import link_over, set_link

DATA_MODEL = Path(__file__).parents[2] / "docs" / "reference" / "data-model.md"


def test_no_field_of_a_job_can_be_taken_for_a_vector():
    tables: tuple[Iterable[str], ...] = (_TEXTS, _INTEGERS)
    fields = {name for table in tables for name in table} | {
        "stacktrace",
        "childFailed", "notBefore", "building", "lifo", "revoked", "groupKey", "orderingKey", "orderingSeq",
        "maxAttempts", "lastActive", "depsCompleted",
    }  # fmt: skip
    documented = DATA_MODEL.read_text(encoding="utf-8").split("## Fields of a job's record")[1].split("\n## ")[0]
    ours = [name for row in re.findall(r"^\|(.*?)\|", documented, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert {"eid", "childFailed", "stalledCount"} <= set(ours)
    assert {*fields, *ours} <= vectors.RESERVED
    for name in (*vectors.RESERVED, "", "a b", "a:b", "1a", "usage:x", 5, "x" * 129):
        with pytest.raises(GlideMQValidationError):
            vectors.check_field("field", name)


# -- a queue over a server with given replies --------------------------------------------------------------


class Server:
    """A transport that answers FT commands by functions."""

    def __init__(self, **answers: Callable[..., Any]):
        self.answers = answers
        self.requested_slots: list[tuple[Any, ...]] = []

    async def command(self, *words: Any):
        self.requested_slots.append(words)
        return self.answers[words[0].replace("FT.", "").lower()](*words[1:])


def queue_over(server: Server) -> Queue:
    queue: Queue = Queue("q")
    set_link(queue, link_over(server))
    return queue


def failing(error: GlideMQError) -> Callable[..., Any]:
    def answer(*_: Any):
        raise error

    return answer


async def test_a_prefix_without_braces_where_the_module_takes_none():
    def create(*words: Any):
        if "}" in words[5]:
            raise GlideMQError("PREFIX argument(s) must not contain a hash tag")
        return b"OK"

    server = Server(create=create)
    assert await queue_over(server).vectors.create_index(vector=VectorField(name="v", dimensions=3)) == "q-idx"
    assert [words[6] for words in server.requested_slots] == ["glide:{q}:job:", "glide:{q"]


async def test_foreign_keys_are_skipped():
    record = [b"n", b"{}", b"{}", b"completed"]
    server = Server(
        info=lambda *_: {b"attributes": [{b"attribute": b"v", b"type": b"VECTOR"}]},
        search=lambda *_: [
            5, b"glide:{q}:job:1", [b"__score", b"0.5"], b"glide:{q2}:job:9", [b"__score", b"0.1"],
            b"glide:{q}:job:1:sub:g", [b"__score", b"0.2"], b"glide:{q}:job:gone", [b"__score", b"0.3"],
            b"glide:{q}:meta", [b"__score", b"0.4"],
        ],
        hmget=lambda key, *names: (record if key.endswith(":1") else [None] * 4) + [None] * (len(names) - 4),
    )  # fmt: skip
    (match,) = await queue_over(server).vectors.search([1, 2, 3])
    assert (match.job.id, match.job.name, match.score) == ("1", "n", 0.5)
    assert server.requested_slots[1][:3] == ("FT.SEARCH", "q-idx", "*=>[KNN 10 @v $BLOB AS __score]")


async def test_errors_of_the_search_module():
    missing = GlideMQError("ERR unknown command 'FT.CREATE', with args beginning with: 'q-idx'")
    with pytest.raises(SearchIndexError, match="search module"):
        await queue_over(Server(create=failing(missing))).vectors.create_index()
    with pytest.raises(SearchIndexError, match="already exists"):
        await queue_over(Server(create=failing(GlideMQError("Index already exists")))).vectors.create_index()
    with pytest.raises(LibraryError):
        await queue_over(Server(create=failing(LibraryError("NOPERM")))).vectors.create_index()
    assert not await queue_over(Server(dropindex=failing(GlideMQError("Unknown Index name")))).vectors.drop_index()
    with pytest.raises(SearchIndexError, match="no vector field"):
        await queue_over(Server(info=lambda *_: [])).vectors.search([1])
    several = [{b"attribute": name, b"type": b"VECTOR"} for name in (b"a", b"b")]
    with pytest.raises(GlideMQValidationError, match="a, b"):
        await queue_over(Server(info=lambda *_: {b"attributes": several})).vectors.search([1])
