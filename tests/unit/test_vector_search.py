"""Vector search: the exact words of the commands, the bytes of a vector, and replies in both of their forms."""

import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import (  # fmt: skip
    GlideMQError,
    GlideMQValidationError,
    LibraryError,
    Queue,
    SearchIndexError,
    VectorField,
)
from glidemq_py._features import vectors
from tests.inside import link_over, record

DATA_MODEL = Path(__file__).parents[2] / "docs" / "reference" / "data-model.md"
SCHEMA = ["SCHEMA", "name", "TAG", "state", "TAG", "timestamp", "NUMERIC", "priority", "NUMERIC"]
HEAD = ["FT.CREATE", "i", "ON", "HASH", "PREFIX", "1", "p"]


def test_the_words_of_an_index():
    plain = ["VECTOR", "FLAT", "6", "TYPE", "FLOAT32", "DIM", "2", "DISTANCE_METRIC", "COSINE"]
    assert vectors.create_arguments("i", "p", None, None) == [*HEAD, *SCHEMA, "_vec", *plain]
    vector = {"name": "v", "dimensions": 3, "metric": "l2", "m": 8, "ef_runtime": 20}
    assert vectors.create_arguments("i", "p", {"kind": "tag", "size": "numeric", "body": "text"}, vector) == [
        *HEAD, *SCHEMA, "kind", "TAG", "size", "NUMERIC", "body", "TEXT", "v", "VECTOR", "HNSW", "10",
        "TYPE", "FLOAT32", "DIM", "3", "DISTANCE_METRIC", "L2", "M", "8", "EF_RUNTIME", "20",
    ]  # fmt: skip


def test_the_words_of_a_search():
    tail = ["PARAMS", "2", "BLOB", b"xyz", "RETURN", "1", "s", "LIMIT", "0", "7", "DIALECT", "2"]
    assert vectors.search_arguments("i", "v", b"xyz", 7, "*", "s") == [
        "FT.SEARCH",
        "i",
        "*=>[KNN 7 @v $BLOB AS s]",
        *tail,
    ]
    words = vectors.search_arguments("i", "v", b"xyz", 7, "@state:{completed} @name:{a}", "s")
    assert words[2] == "(@state:{completed} @name:{a})=>[KNN 7 @v $BLOB AS s]"


def test_a_vector_is_little_endian_float32():
    assert vectors.encode_vector("e", [1, -2.5, 0]) == struct.pack("<fff", 1.0, -2.5, 0.0)
    assert vectors.encode_vector("e", (number for number in (0.1,))) == b"\xcd\xcc\xcc\x3d"


@pytest.mark.parametrize("bad", [[], None, "ab", [1, None], [float("nan")], [float("inf")], [1e39], [0.0] * 65_537, 5])
def test_invalid_vectors_are_rejected(bad: Any):
    with pytest.raises(GlideMQValidationError, match="embedding"):
        vectors.encode_vector("embedding", bad)


def test_no_field_of_a_job_can_be_taken_for_a_vector():
    tables: tuple[Iterable[str], ...] = (record._TEXTS, record._INTEGERS, record._LISTS)
    fields = {name for table in tables for name in table} | {
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


@pytest.mark.parametrize(
    "options",
    [
        {"fields": ["a"]}, {"fields": {"a": "geo"}}, {"fields": {"state": "tag"}}, {"fields": {"v": "tag"}},
        {"vector": {"name": "v"}}, {"vector": {"dimensions": 3}}, {"vector": {"name": "v", "dimensions": 0}},
        {"vector": {"name": "v", "dimensions": 3, "metric": "manhattan"}}, {"vector": 5},
        {"vector": {"name": "v", "dimensions": 3, "algorithm": "flat", "m": 5}},
        {"vector": {"name": "v", "dimensions": 3, "dims": 3}},
    ],
)  # fmt: skip
def test_invalid_indexes_are_rejected(options: Any):
    options = {"fields": None, "vector": {"name": "v", "dimensions": 3}, **options}
    with pytest.raises(GlideMQValidationError):
        vectors.create_arguments("i", "p", options["fields"], options["vector"])


FLAT = [2, b"k1", [b"__score", b"0.5", b"x", b"y"], b"k2", [b"__score", b"0.25"]]
MAPPED = [2, {b"k1": {b"__score": b"0.5"}, b"k2": {b"__score": b"0.25"}, b"k3": {}}]


@pytest.mark.parametrize("reply", [FLAT, MAPPED])
def test_hits_are_sorted_by_distance(reply: Any):
    assert vectors.hits_of(reply, "__score") == [("k2", 0.25), ("k1", 0.5)]


def test_no_hits():
    assert vectors.hits_of([0], "s") == vectors.hits_of([0, {}], "s") == vectors.hits_of(None, "s") == []


TAG = [b"identifier", b"name", b"attribute", b"name", b"type", b"TAG", b"SEPARATOR", b","]
VECTOR = [b"identifier", b"v", b"attribute", b"v", b"type", b"VECTOR", b"index", [b"dimensions", 3]]


@pytest.mark.parametrize(
    "reply",
    [
        [b"index_name", b"i", b"attributes", [TAG, VECTOR], b"num_docs", 1],
        {b"attributes": [{b"attribute": b"name", b"type": b"TAG"}, {b"attribute": b"v", b"type": b"VECTOR"}]},
    ],
)
def test_the_vector_field_of_an_index(reply: Any):
    assert vectors.vector_fields_of(reply) == ["v"]
    assert vectors.vector_fields_of(None) == []


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
    queue._link = link_over(server)
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
    assert await queue_over(server).create_job_index(vector=VectorField(name="v", dimensions=3)) == "q-idx"
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
    (match,) = await queue_over(server).vector_search([1, 2, 3])
    assert (match.job.id, match.job.name, match.score) == ("1", "n", 0.5)
    assert server.requested_slots[1][:3] == ("FT.SEARCH", "q-idx", "*=>[KNN 10 @v $BLOB AS __score]")


async def test_errors_of_the_search_module():
    missing = GlideMQError("ERR unknown command 'FT.CREATE', with args beginning with: 'q-idx'")
    with pytest.raises(SearchIndexError, match="search module"):
        await queue_over(Server(create=failing(missing))).create_job_index()
    with pytest.raises(SearchIndexError, match="already exists"):
        await queue_over(Server(create=failing(GlideMQError("Index already exists")))).create_job_index()
    with pytest.raises(LibraryError):
        await queue_over(Server(create=failing(LibraryError("NOPERM")))).create_job_index()
    assert not await queue_over(Server(dropindex=failing(GlideMQError("Unknown Index name")))).drop_job_index()
    with pytest.raises(SearchIndexError, match="no vector field"):
        await queue_over(Server(info=lambda *_: [])).vector_search([1])
    several = [{b"attribute": name, b"type": b"VECTOR"} for name in (b"a", b"b")]
    with pytest.raises(GlideMQValidationError, match="a, b"):
        await queue_over(Server(info=lambda *_: {b"attributes": several})).vector_search([1])
