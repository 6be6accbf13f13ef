"""Results of a vector search, and parsing of the search module's replies (RESP2 and RESP3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, cast

from typing_extensions import TypeVar

__all__ = ["VectorMatch", "hits_of", "vector_fields_of"]

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
