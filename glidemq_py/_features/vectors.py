"""Vectors: storing embeddings with jobs, and searching jobs by them (``lua/features/vectors``)."""

from __future__ import annotations

import builtins
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Literal, TypedDict, cast

from typing_extensions import TypeVar

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import call
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._core.checks import OptionValue, check_choice, check_int, check_text, option, parse_nested
from glidemq_py._core.misuse import known_methods
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import Area, ConnectedQueue
from glidemq_py.errors import GlideMQError, GlideMQValidationError, SearchIndexError

MAX_DIMENSIONS: Final = 65_536
MAX_K: Final = 1_000
MAX_FILTER: Final = 10_000
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

RESERVED: Final = frozenset({
    "id", "name", "data", "opts", "timestamp", "attemptsMade", "delay", "priority", "maxAttempts", "state", "groupKey",
    "orderingSeq", "orderingKey", "cost", "expireAt", "lifo", "parentId", "parentQueue", "parentIds", "parentQueues",
    "schedulerName", "processedOn", "lastActive", "finishedOn", "returnvalue", "failedReason", "stalledCount",
    "suspectLimit", "progress", "revoked", "depsCompleted", "suspendedAt", "suspendReason", "suspendTimeout", "signals",
    "fallbackIndex", "budgetKey", "tpmTokens", "flowId", "eid", "fence", "slot", "takenBy",
    "restored", "failedType", "stacktrace",
    "lease", "src", "orderdone", "usage", "depdone", "childFailed", "notBefore", "building", "scheduledFor",
    "resultSeq", "failedAttempts", "failureReason", "autoRetries", "readyAt", "timeline", "dependency", "stagedBehind",
    "cursor", "discarded", "progressMessage", "appended", "generation", "parentGeneration", "ownKeys",
    "rank", "rankedAs", "fairKey", "jobBatch", "steps", "awaits", "requeues",
})  # fmt: skip
"""Fields of a job hash, which a vector must not overwrite."""

_INDEXED: Final = ("name", "TAG", "state", "TAG", "timestamp", "NUMERIC", "priority", "NUMERIC")
IndexFieldType = Literal["tag", "numeric", "text"]


class _RequiredKeys(TypedDict):
    name: str
    dimensions: int


class VectorFieldDict(_RequiredKeys, total=False):
    """`VectorField` as a mapping."""

    algorithm: Literal["hnsw", "flat"]
    metric: Literal["cosine", "l2", "ip"]
    m: int
    ef_construction: int
    ef_runtime: int


def check_field(option: str, name: object) -> str:
    """Return a valid field name: a letter or underscore, then letters, digits, underscores; not reserved."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problem = "must be 1 to 128 letters, digits and underscores, and not start with a digit"
        raise GlideMQValidationError(option, name, problem)
    if name in RESERVED:
        raise GlideMQValidationError(option, name, "is reserved: the job hash has a field of that name")
    return name


_hnsw_number = partial(check_int, minimum=1, maximum=4_096)


class VectorField(OptionValue, prefix="vector", kw_only=True):
    """The vector field of a job index.

    Args:
        name: name of the field, as in `Job.store_vector`.
        dimensions: number of dimensions, 1..65_536.
        algorithm: "hnsw" (approximate, fast) or "flat" (exact).
        metric: distance metric: "cosine", "l2" or "ip".
        m: HNSW parameter M, 1..4_096; None = the server's default.
        ef_construction: HNSW parameter EF_CONSTRUCTION, 1..4_096; None = the server's default.
        ef_runtime: HNSW parameter EF_RUNTIME, 1..4_096; None = the server's default.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    name: str = option(check_field)
    dimensions: int = option(check_int, minimum=1, maximum=MAX_DIMENSIONS)
    algorithm: Literal["hnsw", "flat"] = option(check_choice, default="hnsw", choices=("hnsw", "flat"))
    metric: Literal["cosine", "l2", "ip"] = option(check_choice, default="cosine", choices=("cosine", "l2", "ip"))
    m: int | None = option(_hnsw_number, default=None)
    ef_construction: int | None = option(_hnsw_number, default=None)
    ef_runtime: int | None = option(_hnsw_number, default=None)

    def _check_given(self) -> None:
        for name in ("m", "ef_construction", "ef_runtime"):
            if getattr(self, name) is not None and self.algorithm != "hnsw":
                raise GlideMQValidationError(f"vector.{name}", getattr(self, name), "requires algorithm 'hnsw'")

    @classmethod
    def parse(cls, given: object) -> VectorField:
        """Return a `VectorField` from one or from a mapping of its fields."""
        return parse_nested("vector", given, cls)

    def to_schema(self) -> list[str]:
        """Return the schema arguments of FT.CREATE."""
        words = ["TYPE", "FLOAT32", "DIM", str(self.dimensions), "DISTANCE_METRIC", self.metric.upper()]
        for word, value in (("M", self.m), ("EF_CONSTRUCTION", self.ef_construction), ("EF_RUNTIME", self.ef_runtime)):
            if value is not None:
                words += [word, str(value)]
        return [self.name, "VECTOR", self.algorithm.upper(), str(len(words)), *words]


def encode_vector(option: str, embedding: Iterable[float]) -> bytes:
    """Encode the numbers as little-endian float32; raise GlideMQValidationError if they are out of range."""
    if isinstance(embedding, (str, bytes, bytearray)):
        raise GlideMQValidationError(option, embedding, "must be a list of numbers")
    try:
        numbers = [float(number) for number in embedding]
    except (TypeError, ValueError, OverflowError) as error:
        raise GlideMQValidationError(option, embedding, f"must be numbers: {error}") from None
    if not 1 <= len(numbers) <= MAX_DIMENSIONS:
        raise GlideMQValidationError(option, numbers, f"must be 1 to {MAX_DIMENSIONS} numbers")
    try:
        text = struct.pack(f"<{len(numbers)}f", *numbers)
    except OverflowError:
        raise GlideMQValidationError(option, numbers, "must contain only numbers in the range of float32") from None
    if not all(abs(number) < float("inf") for number in numbers):
        raise GlideMQValidationError(option, numbers, "must contain only finite numbers")
    return text


def create_arguments(index: str, prefix: str, fields: object, vector: object) -> list[str]:
    """Return the FT.CREATE command."""
    words = ["FT.CREATE", index, "ON", "HASH", "PREFIX", "1", prefix, "SCHEMA", *_INDEXED]
    if fields is not None and not isinstance(fields, Mapping):
        raise GlideMQValidationError("fields", fields, "must be a mapping of names to 'tag', 'numeric' or 'text'")
    given = cast("Mapping[object, Any]", fields or {})
    for name, kind in given.items():
        check_choice(f"fields[{name!r}]", kind, ("tag", "numeric", "text"))
        words += [check_field("fields", name), kind.upper()]
    field = _PLACEHOLDER if vector is None else VectorField.parse(vector)
    if field.name in given:
        raise GlideMQValidationError("fields", field.name, "is already the name of the vector field")
    return [*words, *field.to_schema()]


_PLACEHOLDER: Final = VectorField(name="_vec", dimensions=2, algorithm="flat")
"""Vector field of an index without embeddings: the search module requires one."""


def search_arguments(
    index: str, field: str, blob: bytes, k: int, expression: str, score_field: str
) -> list[str | bytes]:
    """Return the FT.SEARCH command for the ``k`` nearest vectors."""
    prefilter = "*" if expression == "*" else f"({expression})"
    query = f"{prefilter}=>[KNN {k} @{field} $BLOB AS {score_field}]"
    return ["FT.SEARCH", index, query, "PARAMS", "2", "BLOB", blob, "RETURN", "1", score_field, "LIMIT", "0", str(k),
            "DIALECT", "2"]  # fmt: skip


JobT = TypeVar("JobT", default=Any)


@dataclass(frozen=True, slots=True)
class VectorMatch(Generic[JobT]):
    """A job whose embedding is near the query vector.

    Attributes:
        job: the job, read after the search.
        score: distance in the metric of the index; lower is nearer.
    """

    job: JobT
    score: float


def _text(value: object) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _pairs(value: object) -> Iterator[tuple[str, object]]:
    """Yield the names and values of a map, or of a flat list of them."""
    if isinstance(value, Mapping):
        for name, item in cast("Mapping[object, object]", value).items():
            yield _text(name), item
    elif isinstance(value, list):
        items = cast("list[object]", value)
        for i in range(0, len(items) - 1, 2):
            yield _text(items[i]), items[i + 1]


def hits_of(reply: object, score_field: str) -> list[tuple[str, float]]:
    """Return keys and scores of an FT.SEARCH reply, lowest score first.

    The reply is ``[count, {key: {field: value}}]`` or ``[count, key, [...], ...]``.
    """
    items = cast("list[object]", reply) if isinstance(reply, list) else []
    rest: object = items[1:]
    if len(items) == 2 and isinstance(items[1], Mapping):
        rest = cast("object", items[1])
    found: list[tuple[str, float]] = []
    for key, fields in _pairs(rest):
        score = next((value for name, value in _pairs(fields) if name == score_field), None)
        if score is not None:
            found.append((key, float(_text(score))))
    return sorted(found, key=lambda hit: hit[1])


def vector_fields_of(reply: object) -> list[str]:
    """Return the names of the vector fields in an FT.INFO reply."""
    attributes = next((value for name, value in _pairs(reply) if name == "attributes"), None)
    names: list[str] = []
    for attribute in cast("list[object]", attributes) if isinstance(attributes, list) else []:
        fields = dict(_pairs(attribute))
        if _text(fields.get("type", "")).upper() == "VECTOR":
            names.append(_text(fields.get("attribute") or fields.get("identifier")))
    return names


@call("store_vector", repeatable=True)
def _store(id: str, field: str, bytes: builtins.bytes, fence: int, processed_on: int) -> AttemptStatus:
    """Write the bytes of a vector to a field of the hash of an existing job."""
    ...


async def store_vector(
    link: QueueLink[JobTransport], job_id: str, token: tuple[int, int], field: str, embedding: Iterable[float]
) -> AttemptStatus:
    """Store an embedding with a job, given the fencing token of its attempt."""
    return await link.call(_store, job_id, check_field("field", field), encode_vector("embedding", embedding), *token)


_MISSING: Final = re.compile(r"unknown command", re.IGNORECASE)
_HASH_TAG: Final = re.compile(r"hash[\s_-]?tag", re.IGNORECASE)
_EXISTS: Final = re.compile(r"\bexists\b", re.IGNORECASE)
NO_INDEX: Final = re.compile(r"unknown index|no such index|index.*not found|not found.*index", re.IGNORECASE)
"""The error of a search module if an index does not exist."""


async def nearest(
    self: ConnectedQueue, embedding: Iterable[float], *, k: int, filter: str, field: str | None, name: str | None,
    score_field: str,
) -> list[tuple[float, QueueLink, str]]:  # fmt: skip
    """Return scores, parts and ids of the jobs that `Queue.vectors.search` finds: the nearest of those of each part."""
    blob, most = encode_vector("embedding", embedding), check_int("k", k, 1, MAX_K)
    check_text("filter", filter, maximum=MAX_FILTER)
    check_field("score_field", score_field)

    async def search(link: QueueLink) -> list[tuple[float, QueueLink, str]]:
        index = _index(link, name)
        try:
            of = await _vector_field(link, index) if field is None else check_field("field", field)
            hits = hits_of(
                await _command(link, search_arguments(index, of, blob, most, filter, score_field)), score_field
            )
        except SearchIndexError as error:
            if link.parts == 1 or NO_INDEX.search(str(error)) is None:
                raise
            problem = f"{error}: partition {link.keys.name!r} has no index {index!r}"
            raise SearchIndexError(f"{problem}; call queue.vectors.create_index") from error
        found = ((score, link, key.removeprefix(link.keys.job_prefix), key) for key, score in hits)
        # The index may contain keys of other queues, and other keys of jobs.
        return [(score, link, job_id) for score, link, job_id, key in found if job_id != key and ":" not in job_id]

    hits = [hit for found in await self._each(search) for hit in found]
    return sorted(hits, key=lambda hit: hit[0])[:most]


def _index(link: QueueLink, name: str | None) -> str:
    """Return the name of a part's index, which must differ from those of the others on one server."""
    return _index_name(link.queue_name, name) + link.keys.name.removeprefix(link.queue_name)


def _index_name(queue: str, name: str | None) -> str:
    return f"{queue}-idx" if name is None else check_text("name", name, maximum=256)


async def _vector_field(link: QueueLink, index: str) -> str:
    names = vector_fields_of(await _command(link, ["FT.INFO", index]))
    if not names or names == ["_vec"]:
        raise SearchIndexError(f"index {index!r} has no vector field")
    if len(names) > 1:
        problem = f"is required: index {index!r} has the vector fields {', '.join(sorted(names))}"
        raise GlideMQValidationError("field", None, problem)
    return names[0]


async def _command(link: QueueLink, words: list[Any]) -> Any:
    try:
        return await link.command(*words)
    except GlideMQError as error:
        if type(error) is not GlideMQError:
            raise
        if _MISSING.search(str(error)):
            raise SearchIndexError(
                "the server has no search module; vector search requires valkey-search, or Redis with its query engine"
            ) from error
        raise SearchIndexError(str(error)) from error


@known_methods
class JobIndexes(Area):
    """Search indexes over the jobs of a queue."""

    __slots__ = ()

    async def create_index(
        self,
        *,
        name: str | None = None,
        vector: VectorField | VectorFieldDict | None = None,
        fields: Mapping[str, IndexFieldType] | None = None,
    ) -> str:
        """Create a search index over the jobs of this queue.

        It covers ``name``, ``state``, ``timestamp`` and ``priority``, an embedding, and the given fields of the job
        hash. Existing jobs are indexed too.

        Args:
            name: name of the index; ``<queue>-idx`` by default.
            vector: the field of the embeddings: a `VectorField` or a mapping of its fields; None = no embeddings.
            fields: more fields to index: their type "tag", "numeric" or "text" by name.

        Returns:
            The name of the index.

        Raises:
            SearchIndexError: the server has no search module.
            SearchIndexError: the server rejects the index, for example because its name is already used.
            GlideMQValidationError: an argument is invalid.
        """

        async def create(link: QueueLink) -> SearchIndexError | None:
            words = create_arguments(_index(link, name), link.keys.job_prefix, fields, vector)
            try:
                try:
                    await _command(link, words)
                except SearchIndexError as error:
                    if not _HASH_TAG.search(str(error)):
                        raise
                    # valkey-search rejects braces in a prefix. This one covers other keys, too; results are filtered.
                    words[words.index(link.keys.job_prefix)] = link.keys.base.removesuffix("}")
                    await _command(link, words)
            except SearchIndexError as error:
                if _EXISTS.search(str(error)) is None:
                    raise
                return error
            return None

        refused = await self._queue._each(create, fresh=True)
        if None not in refused:  # otherwise the index is in all parts now
            raise next(filter(None, refused))
        return _index_name(self._queue.name, name)

    async def drop_index(self, name: str | None = None) -> bool:
        """Delete an index, but not its jobs. Raises the errors of `vectors.create_index`.

        Args:
            name: name of the index; ``<queue>-idx`` by default.

        Returns:
            True if the index was deleted; False if it did not exist.
        """

        async def drop(link: QueueLink) -> bool:
            try:
                await _command(link, ["FT.DROPINDEX", _index(link, name)])
            except SearchIndexError as error:
                if NO_INDEX.search(str(error)):
                    return False
                raise
            return True

        return any(await self._queue._each(drop, fresh=True))
