"""The search module of an in-memory server: the subset of FT.* that a queue's job index uses, by a scan of all keys.

Distances are exact for every index algorithm. Supported filters: tags, numeric ranges, juxtaposition (and), ``|`` (or),
``-`` (not) and parentheses; other filters raise an error that quotes them.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from glidemq_py._client.memory.store import CommandError

__all__ = ["SearchModule"]

Record = dict[bytes, bytes]
Test = Callable[[Record], bool]

_KNN: Final = re.compile(rb"(?P<among>.*)=>\[KNN (?P<k>\d+) @(?P<field>\w+) \$BLOB AS (?P<score>\w+)\]", re.DOTALL)
_TOKEN: Final = re.compile(
    rb"\s*(?:(?P<sign>[()|*-])|@(?P<tag>\w+):\{(?P<words>(?:[^}\\]|\\.)*)\}|@(?P<number>\w+):\[(?P<bounds>[^\]]*)\])",
    re.DOTALL,
)


@dataclass(slots=True)
class _Index:
    prefix: bytes
    fields: dict[bytes, str]
    dimensions: int = 0
    metric: str = "COSINE"

    def read(self, vector: bytes) -> tuple[float, ...] | None:
        """Unpack a vector of this index; return None for any other value."""
        return struct.unpack(f"<{self.dimensions}f", vector) if len(vector) == 4 * self.dimensions else None


class SearchModule:
    """Indexes of the hashes of an in-memory server.

    Args:
        execute: runs a plain command on the server.
    """

    def __init__(self, execute: Callable[[bytes, list[bytes]], Any]) -> None:
        self._execute = execute
        self._indexes: dict[bytes, _Index] = {}

    def answer(self, name: bytes, args: list[bytes]) -> Any:
        """Run an FT command and return its reply in GLIDE's types. Raises CommandError."""
        known: dict[bytes, Callable[[list[bytes]], Any]] = {
            b"FT.CREATE": self._create, b"FT.DROPINDEX": self._drop, b"FT.INFO": self._info, b"FT.SEARCH": self._search,
            b"FT._LIST": lambda _: list(self._indexes),
        }  # fmt: skip
        if name not in known:
            raise CommandError(f"ERR unknown command '{name.decode()}'")
        return known[name](args)

    def forget(self) -> None:
        """Delete all indexes, after all keys were deleted."""
        self._indexes.clear()

    def _create(self, args: list[bytes]) -> str:
        if args[0] in self._indexes:
            raise CommandError("Index already exists")
        at = args.index(b"SCHEMA")
        index = _Index(prefix=args[args.index(b"PREFIX") + 2], fields={})
        schema = iter(args[at + 1 :])
        for field in schema:
            kind = next(schema).decode().upper()
            index.fields[field] = kind
            if kind == "VECTOR":
                next(schema)  # algorithm
                words = [next(schema) for _ in range(int(next(schema)))]
                given = dict(zip(words[::2], words[1::2], strict=True))
                index.dimensions, index.metric = int(given[b"DIM"]), given[b"DISTANCE_METRIC"].decode()
        self._indexes[args[0]] = index
        return "OK"

    def _drop(self, args: list[bytes]) -> str:
        self._index(args[0])
        del self._indexes[args[0]]
        return "OK"

    def _index(self, name: bytes) -> _Index:
        if name not in self._indexes:
            raise CommandError(f"Unknown index name: {name.decode()}")
        return self._indexes[name]

    def _info(self, args: list[bytes]) -> dict[bytes, Any]:
        index = self._index(args[0])
        attributes = [
            {b"identifier": field, b"attribute": field, b"type": kind.encode()} for field, kind in index.fields.items()
        ]
        count = sum(1 for _ in self._records(index))
        return {b"index_name": args[0], b"attributes": attributes, b"num_docs": count}

    def _records(self, index: _Index) -> Iterator[tuple[bytes, Record]]:
        for key in self._execute(b"KEYS", [b"*"]):
            if key.startswith(index.prefix):
                try:
                    flat = self._execute(b"HGETALL", [key])
                except CommandError:
                    continue  # not a hash
                yield key, dict(zip(flat[::2], flat[1::2], strict=True))

    def _search(self, args: list[bytes]) -> list[Any]:
        index, query = self._index(args[0]), _KNN.fullmatch(args[1])
        if query is None:
            raise CommandError("the in-memory server supports vector search only")
        field, blob = query["field"], args[args.index(b"PARAMS") + 3]
        if index.fields.get(field) != "VECTOR":
            raise CommandError(f"index field `{field.decode()}` does not exist or is not a vector")
        wanted = index.read(blob)
        if wanted is None:
            raise CommandError(f"vector of {len(blob)} bytes: the index requires {4 * index.dimensions}")
        test = _Filter(query["among"], index.fields).test
        measure = _METRICS[index.metric]
        near: list[tuple[float, bytes]] = []
        for key, record in self._records(index):
            vector = index.read(record.get(field, b""))
            if vector is not None and test(record):
                near.append((measure(wanted, vector), key))
        near.sort()
        hits = {key: {query["score"]: b"%.7g" % distance} for distance, key in near[: int(query["k"])]}
        return [len(hits), hits]


def _product(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _cosine(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    lengths = math.hypot(*a) * math.hypot(*b)
    return 1.0 - _product(a, b) / lengths if lengths else 1.0


_METRICS: Final[dict[str, Callable[[tuple[float, ...], tuple[float, ...]], float]]] = {
    "COSINE": _cosine,
    "L2": lambda a, b: math.dist(a, b) ** 2,
    "IP": lambda a, b: 1.0 - _product(a, b),
}


class _Filter:
    """The filter part of a query, parsed into a test for records."""

    def __init__(self, text: bytes, fields: dict[bytes, str]) -> None:
        self._text = text
        self._fields = fields
        self._tokens = list(self._split(text.strip()))
        self._at = 0
        self.test = self._any()
        if self._at < len(self._tokens):
            raise self._refusal()

    def _refusal(self) -> CommandError:
        return CommandError(f"filter {self._text.decode()!r} is not supported by the in-memory server; supported: "
                            "@field:{tag|tag}, @field:[from to], '|', '-' and parentheses")  # fmt: skip

    def _split(self, text: bytes) -> Iterator[re.Match[bytes]]:
        at = 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None:
                raise self._refusal()
            yield token
            at = token.end()

    def _sign(self) -> bytes | None:
        """Return the next sign; b"" if a condition follows, None at the end."""
        return (self._tokens[self._at]["sign"] or b"") if self._at < len(self._tokens) else None

    def _any(self) -> Test:
        tests = [self._all()]
        while self._sign() == b"|":
            self._at += 1
            tests.append(self._all())
        return lambda record: any(test(record) for test in tests)

    def _all(self) -> Test:
        tests = [self._one()]
        while self._sign() not in (None, b"|", b")"):
            tests.append(self._one())
        return lambda record: all(test(record) for test in tests)

    def _one(self) -> Test:
        sign = self._sign()
        if sign is None or sign in (b"|", b")"):
            raise self._refusal()
        token = self._tokens[self._at]
        self._at += 1
        if sign == b"*":
            return lambda _: True
        if sign == b"-":
            test = self._one()
            return lambda record: not test(record)
        if sign == b"(":
            inner = self._any()
            if self._sign() != b")":
                raise self._refusal()
            self._at += 1
            return inner
        return self._tagged(token) if token["tag"] else self._between(token)

    def _field(self, name: bytes, kind: str) -> bytes:
        if self._fields.get(name) != kind:
            raise CommandError(f"index field `{name.decode()}` does not exist or is not {kind}")
        return name

    def _tagged(self, token: re.Match[bytes]) -> Test:
        field = self._field(token["tag"], "TAG")
        words = {re.sub(rb"\\(.)", rb"\1", word).strip().lower() for word in token["words"].split(b"|")}
        return lambda record: not words.isdisjoint(tag.strip().lower() for tag in record.get(field, b"").split(b","))

    def _between(self, token: re.Match[bytes]) -> Test:
        field = self._field(token["number"], "NUMERIC")
        bounds = [bound for bound in re.split(rb"[\s,]+", token["bounds"].strip()) if bound]
        if len(bounds) != 2:
            raise self._refusal()
        try:
            low, high = (float(bound.lstrip(b"(")) for bound in bounds)
        except ValueError:
            raise self._refusal() from None
        open_low, open_high = (bound.startswith(b"(") for bound in bounds)

        def test(record: Record) -> bool:
            try:
                number = float(record.get(field, b""))
            except ValueError:
                return False
            return (low < number if open_low else low <= number) and (number < high if open_high else number <= high)

        return test
