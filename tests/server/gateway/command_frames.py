"""Frames generated from the table of commands: good, without a field, with a value of another type, extreme."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from glidemq_py.gateway.commands import COMMANDS
from glidemq_py.gateway.session import Command
from glidemq_py.gateway.table import Field, Kind
from tests.server.gateway.script import frame_of

__all__ = ["EXTREMES", "OTHER_TYPES", "bad_frames", "beyond", "named_in", "random_command", "random_value"]

_GOOD: Final = {
    line.partition(" ")[0]: line
    for line in (Path(__file__).parent / "transcripts" / "bunqueue" / "good_frames.txt")
    .read_text(encoding="utf-8")
    .splitlines()
    if line and not line.startswith("#")
}

OTHER_TYPES: Final[tuple[Any, ...]] = (True, 7, 1.5, "text", b"bytes", [], ["a"], [1], {}, {"a": 1})
_FITTING: Final[Mapping[Kind, tuple[type, ...]]] = {
    Kind.TEXT: (str,), Kind.QUEUE: (str,), Kind.STRICT_QUEUE: (str,), Kind.NUMBER: (int, float),
    Kind.INTEGER: (int,), Kind.POSITIVE: (int,), Kind.FLAG: (bool,), Kind.TEXTS: (list,), Kind.LIST: (list,),
    Kind.MAP: (dict,),
}  # fmt: skip
EXTREMES: Final[tuple[Any, ...]] = (
    0, -1, 2**31, 2**53, -(2**63), 2**64 - 1, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"), "",
    "x" * 257, "x" * 70_000, "\x00", "a\r\nb", "{a}", "é" * 128, "\U0001f600" * 128, "../..", "%3A%25", "*", b"",
    b"\xff" * 257, [None] * 2_000, [[[[[[]]]]]], {"": None}, {"__proto__": 1}, {str(n): n for n in range(500)},
)  # fmt: skip


def good_fields(command: Command, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a frame that is executed, with the queue and jobs of `values` by name."""
    if command.name in _GOOD:
        frame = frame_of(_GOOD[command.name], values)
        return {name: value for name, value in frame.items() if name not in ("cmd", "reqId")}
    return {field.name: values[field.name] for field in command.fields if field.required}


def beyond(field: Field) -> Iterator[Any]:
    """Yield values of the right type that are outside the limits of a field."""
    if field.kind in (Kind.NUMBER, Kind.INTEGER, Kind.POSITIVE):
        yield from (float("nan"), float("inf"), float("-inf"))
        if field.minimum is not None:
            yield from (field.minimum - 1, -1e300)
        if field.maximum is not None and field.maximum < 2**53:
            yield from (field.maximum + 1, 1e300, 2**64 - 1)
        if field.kind is not Kind.NUMBER:
            yield 1.5
    elif field.kind is Kind.TEXT:
        if field.minimum:
            yield ""
        if field.maximum is not None:
            yield "x" * (int(field.maximum) + 1)
    elif field.kind in (Kind.QUEUE, Kind.STRICT_QUEUE):
        yield from ("", "q" * 257, "a{b}")
        if field.kind is Kind.STRICT_QUEUE:
            yield from ("a b", "a\x00", "é")
    elif field.kind is Kind.TEXTS:
        yield from ([1], ["a", None], [["a"]])


def bad_frames(command: Command, good: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], Field]]:
    """Yield frames that must be rejected: a description, the fields, and the field that the error must name."""
    for field in command.fields:
        if field.required:
            yield f"without {field.name}", {name: value for name, value in good.items() if name != field.name}, field
            yield f"{field.name} null", {**good, field.name: None}, field
        fitting = _FITTING.get(field.kind)
        if fitting is not None:
            for value in OTHER_TYPES:
                is_flag = isinstance(value, bool)
                if is_flag != (field.kind is Kind.FLAG) or not isinstance(value, fitting):
                    yield f"{field.name} = {value!r}", {**good, field.name: value}, field
        for value in beyond(field):
            yield f"{field.name} = {str(value)[:20]}", {**good, field.name: value}, field


def named_in(error: str, field: Field) -> bool:
    """Return whether an error names a field; those of queues are recorded texts of the protocol."""
    if field.kind in (Kind.QUEUE, Kind.STRICT_QUEUE):
        return error.startswith("Queue name ")
    return field.name in error


# -- fuzzing -----------------------------------------------------------------------------------------------------


def random_value(pick: random.Random, depth: int = 0) -> Any:
    """Return any value, seldom a large one."""
    chance = pick.random()
    if chance < 0.3:
        return pick.choice(OTHER_TYPES)
    if chance < 0.5:
        return pick.choice(EXTREMES)
    if chance < 0.65:
        return pick.choice((0, 1, -1, 2, 10, 0.5, 1e12, 2**40))
    if chance < 0.8:
        return "".join(
            chr(pick.choice((pick.randrange(128), pick.randrange(0xD800)))) for _ in range(pick.randrange(12))
        )
    if depth > 3:
        return None
    if chance < 0.9:
        return [random_value(pick, depth + 1) for _ in range(pick.randrange(4))]
    return {
        pick.choice(("a", "name", "data", "id", "queue", 1, "ttl")): random_value(pick, depth + 1)
        for _ in range(pick.randrange(4))
    }


_SLOW: Final = frozenset({"timeout"})
"""Fields that may let a command wait: fuzzed frames keep their short values."""


def random_command(pick: random.Random, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a frame of a random command: good, or with some fields changed, missing or added."""
    command = pick.choice(tuple(COMMANDS.values()))
    frame: dict[str, Any] = {"cmd": command.name, **good_fields(command, values)}
    if command.name == "WaitJob":
        frame["timeout"] = 1
    for field in command.fields:
        chance = pick.random()
        if field.name in _SLOW or chance > 0.3:
            continue
        if chance < 0.05:
            frame.pop(field.name, None)
        elif chance < 0.15:
            outside = list(beyond(field))
            frame[field.name] = pick.choice(outside) if outside else random_value(pick)
        else:
            frame[field.name] = random_value(pick)
    if pick.random() < 0.05:
        frame[pick.choice(("extra", "__proto__", "toString", ""))] = random_value(pick)
    return frame
