"""Vectors of jobs and the index over them: what may be given, and the bytes and words that the server takes.

Nothing is sent here. Spec: api section 4.3; a vector is stored as little-endian float32 (data-model section 4).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, cast

from glidemq_py._core.checks import check_choice, check_int, check_mapping
from glidemq_py.errors import GlideMQValidationError

__all__ = ["IndexFieldType", "VectorField", "VectorFieldDict", "check_field", "create_arguments", "encode_vector",
           "search_arguments"]  # fmt: skip

MAX_DIMENSIONS: Final = 65_536
MAX_K: Final = 1_000
MAX_FILTER: Final = 10_000
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

RESERVED: Final = frozenset({
    "id", "name", "data", "opts", "timestamp", "attemptsMade", "delay", "priority", "maxAttempts", "state", "groupKey",
    "orderingSeq", "orderingKey", "cost", "expireAt", "lifo", "parentId", "parentQueue", "parentIds", "parentQueues",
    "schedulerName", "processedOn", "lastActive", "finishedOn", "returnvalue", "failedReason", "stalledCount",
    "suspectLimit", "progress", "revoked", "depsCompleted", "suspendedAt", "suspendReason", "suspendTimeout", "signals",
    "fallbackIndex", "budgetKey", "tpmTokens", "flowId", "eid", "fence", "slot", "takenBy", "failedType", "stacktrace",
    "src", "orderdone", "usage", "depdone", "childFailed", "notBefore", "building", "scheduledFor",
})  # fmt: skip
"""Fields of a job's record; a vector must not take the place of one."""

_INDEXED: Final = ("name", "TAG", "state", "TAG", "timestamp", "NUMERIC", "priority", "NUMERIC")
IndexFieldType = Literal["tag", "numeric", "text"]


class _VectorFieldNeeded(TypedDict):
    name: str
    dimensions: int


class VectorFieldDict(_VectorFieldNeeded, total=False):
    """`VectorField` written as a mapping."""

    algorithm: Literal["hnsw", "flat"]
    metric: Literal["cosine", "l2", "ip"]
    m: int
    ef_construction: int
    ef_runtime: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorField:
    """The field of a job index that holds embeddings.

    Args:
        name: of the field, as in `Job.store_vector`.
        dimensions: numbers in each vector, 1..65_536.
        algorithm: "hnsw" (approximate, fast) or "flat" (exact).
        metric: distance: "cosine", "l2" or "ip".
        m, ef_construction, ef_runtime: of "hnsw"; None = the server's defaults.

    Raises:
        GlideMQValidationError: names the option and the value.
    """

    name: str
    dimensions: int
    algorithm: Literal["hnsw", "flat"] = "hnsw"
    metric: Literal["cosine", "l2", "ip"] = "cosine"
    m: int | None = None
    ef_construction: int | None = None
    ef_runtime: int | None = None

    def __post_init__(self) -> None:
        check_field("vector.name", self.name)
        check_int("vector.dimensions", self.dimensions, 1, MAX_DIMENSIONS)
        check_choice("vector.algorithm", self.algorithm, ("hnsw", "flat"))
        check_choice("vector.metric", self.metric, ("cosine", "l2", "ip"))
        for option in ("m", "ef_construction", "ef_runtime"):
            value = getattr(self, option)
            if value is None:
                continue
            if self.algorithm != "hnsw":
                raise GlideMQValidationError(f"vector.{option}", value, "is for the algorithm 'hnsw'")
            check_int(f"vector.{option}", value, 1, 4_096)

    @classmethod
    def parse(cls, given: object) -> VectorField:
        """A vector field from what was given."""
        if isinstance(given, VectorField):
            return given
        fields = check_mapping("vector", given, tuple(cls.__dataclass_fields__))
        for needed in ("name", "dimensions"):
            if needed not in fields:
                raise GlideMQValidationError(f"vector.{needed}", None, "is needed")
        return cls(**fields)

    def to_schema(self) -> list[str]:
        """Its words in the schema of FT.CREATE."""
        words = ["TYPE", "FLOAT32", "DIM", str(self.dimensions), "DISTANCE_METRIC", self.metric.upper()]
        for word, value in (("M", self.m), ("EF_CONSTRUCTION", self.ef_construction), ("EF_RUNTIME", self.ef_runtime)):
            if value is not None:
                words += [word, str(value)]
        return [self.name, "VECTOR", self.algorithm.upper(), str(len(words)), *words]


def check_field(option: str, name: object) -> str:
    """A field name that may be indexed: a letter or underscore, then letters, digits, underscores; none of ours."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise GlideMQValidationError(option, name, "must be 1 to 128 letters, digits and underscores")
    if name in RESERVED:
        raise GlideMQValidationError(option, name, "is a field of the job's record")
    return name


def encode_vector(option: str, embedding: Iterable[float]) -> bytes:
    """The numbers as little-endian float32. Raises GlideMQValidationError for what float32 cannot hold."""
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
        raise GlideMQValidationError(option, numbers, "holds a number beyond float32") from None
    if not all(abs(number) < float("inf") for number in numbers):
        raise GlideMQValidationError(option, numbers, "holds a number that is not finite")
    return text


def create_arguments(index: str, prefix: str, fields: object, vector: object) -> list[str]:
    """The words of FT.CREATE."""
    words = ["FT.CREATE", index, "ON", "HASH", "PREFIX", "1", prefix, "SCHEMA", *_INDEXED]
    if fields is not None and not isinstance(fields, Mapping):
        raise GlideMQValidationError("fields", fields, "must be a mapping of names to 'tag', 'numeric' or 'text'")
    given = cast("Mapping[object, Any]", fields or {})
    for name, kind in given.items():
        check_choice(f"fields[{name!r}]", kind, ("tag", "numeric", "text"))
        words += [check_field("fields", name), kind.upper()]
    field = _PLACEHOLDER if vector is None else VectorField.parse(vector)
    if field.name in given:
        raise GlideMQValidationError("fields", field.name, "is the name of the vector field already")
    return [*words, *field.to_schema()]


_PLACEHOLDER: Final = VectorField(name="_vec", dimensions=2, algorithm="flat")
"""The search module makes no index without a vector."""


def search_arguments(
    index: str, field: str, blob: bytes, k: int, expression: str, score_field: str
) -> list[str | bytes]:
    """The words of FT.SEARCH for the ``k`` nearest."""
    among = "*" if expression == "*" else f"({expression})"
    query = f"{among}=>[KNN {k} @{field} $BLOB AS {score_field}]"
    return ["FT.SEARCH", index, query, "PARAMS", "2", "BLOB", blob, "RETURN", "1", score_field, "LIMIT", "0", str(k),
            "DIALECT", "2"]  # fmt: skip
