"""Scripts of requests and expected answers, as text: the format is described in transcripts/README.md."""

from __future__ import annotations

import ast
import http.client
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgpack

_TOKEN: Final = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>\?\w+\[\]|[^\s{}\[\],:=()"<>]+)|(?P<sign>[{}\[\],:=()<>]))'
)
_NAME: Final = re.compile(r"\$(\w+(?:\.\w+)*)")
_OUTCOME: Final = re.compile(r"(?:^|\s)(->|!)\s")
_RANGE: Final = re.compile(r"(-?[\d_.]+?)\.\.(-?[\d_.]+)")
_CONSTANTS: Final = {
    "true": True, "false": False, "null": None, "nan": math.nan, "inf": math.inf, "-inf": -math.inf
}  # fmt: skip
_NUMBERS: Final[Mapping[str, Callable[[Any], Any]]] = {"product": math.prod, "sum": sum}
ABSENT: Final = object()
"""A member that the answer does not have; as a field of a request, it is left out."""


class ScriptError(Exception):
    """A transcript cannot be read."""


@dataclass(frozen=True, slots=True)
class Variable:
    """``$name``: a value that was captured, or one of its members."""

    path: str


@dataclass(frozen=True, slots=True)
class Capture:
    """``?name`` stores the value that is found there; ``?name[]`` adds it to a list."""

    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """``<kind argument>``."""

    kind: str
    argument: Any = None


@dataclass(frozen=True, slots=True)
class Repeat:
    """``N of value`` in a list; ``$i`` counts from 0."""

    count: int
    value: Any


@dataclass(frozen=True, slots=True)
class Step:
    """One line.

    Attributes:
        line: Its number.
        text: Its text.
        head: What comes before the outcome.
        sign: ``->``, ``!`` or "".
        outcome: The expected outcome.
        rows: Steps indented below it.
    """

    line: int
    text: str
    head: str
    sign: str = ""
    outcome: str = ""
    rows: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One test of a file: a title and steps.

    Attributes:
        title: The behavior that the case shows.
        partitions: Numbers of partitions of the queue that it runs with.
        is_slow: Whether it is left out of the quick runs.
        steps: Its steps.
        excluded: Kinds of queues that it leaves out, and why; for tests that have kinds.
    """

    title: str
    partitions: Sequence[int] = (1,)
    is_slow: bool = False
    steps: list[Step] = field(default_factory=list[Step])
    excluded: Sequence[tuple[str, str]] = ()


def read_cases(path: Path) -> list[Case]:
    """Return the cases of a file."""
    cases: list[Case] = []
    lines: list[tuple[int, int, str]] = []
    default: Sequence[int] = (1,)

    def finish():
        if cases:
            cases[-1].steps.extend(_steps(lines, 0))
        lines.clear()

    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = raw.split(" # ")[0].rstrip()
        if not text or text.startswith("#"):
            continue
        if text.startswith("partitions: "):
            default = [int(each) for each in text[12:].split()]
        elif text.startswith("== "):
            finish()
            title, *tags = text[3:].split(" @")
            partitions = next(
                (list(map(int, tag.split()[1:])) for tag in tags if tag.startswith("partitions")), default
            )
            excluded = [tag.removeprefix("exclude ").partition(": ")[::2] for tag in tags if tag.startswith("exclude")]
            cases.append(Case(title, partitions, "slow" in tags, excluded=excluded))
        else:
            lines.append((len(text) - len(text.lstrip()), number, text.strip()))
    finish()
    return cases


def _steps(lines: Sequence[tuple[int, int, str]], depth: int) -> Iterator[Step]:
    at = 0
    while at < len(lines):
        _, number, text = lines[at]
        end = at + 1
        while end < len(lines) and lines[end][0] > depth:
            end += 1
        below = lines[at + 1 : end]
        rows = tuple(_steps(below, min(each[0] for each in below))) if below else ()
        found = _OUTCOME.search(text)
        if found is None:
            yield Step(number, text, text, rows=rows)
        else:
            yield Step(number, text, text[: found.start()].strip(), found[1], text[found.end() :].strip(), rows)
        at = end


class Reader:
    """Reads values and pairs of a text."""

    def __init__(self, text: str):
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ScriptError(f"cannot read {text[at:]!r}")
            self._tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            at = found.end()
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at][1] if at < len(self._tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if self.is_at_end or wanted not in ("", token):
            raise ScriptError(f"{self._text!r}: {wanted or 'a value'} expected, not {token!r}")
        self._at += 1
        return token

    def pairs(self) -> tuple[list[Any], list[tuple[str, Any]]]:
        """Read values and ``name=value`` until the end."""
        values: list[Any] = []
        named: list[tuple[str, Any]] = []
        while not self.is_at_end:
            if self.peek(1) == "=":
                name = self.take()
                self.take("=")
                named.append((name, self.value()))
            else:
                values.append(self.value())
            if self.peek() == ",":
                self.take()
        return values, named

    def value(self) -> Any:
        kind, token = self._tokens[self._at] if not self.is_at_end else ("", "")
        self.take()
        if kind == "text":
            return ast.literal_eval(token)
        if token == "<":
            return self._special()
        if token == "[":
            return self._list()
        if token == "{":
            return self._map()
        return _word(token)

    def _special(self) -> Any:
        kind = self.take()
        found: Any
        if self.peek() == "*":
            self.take()
            found = kind * int(self.take().replace("_", ""))
        elif kind == "bytes":
            found = bytes.fromhex(self.take().strip('"'))
        elif bounds := _RANGE.fullmatch(kind):
            found = Special("range", (float(bounds[1]), float(bounds[2])))
        else:
            found = Special(kind, None if self.peek() == ">" else self.value())
        self.take(">")
        return found

    def _list(self) -> list[Any]:
        found: list[Any] = []
        while self.peek() != "]":
            if self.peek(1) == "of":
                count = int(self.take().replace("_", ""))
                self.take("of")
                found.append(Repeat(count, self.value()))
            else:
                found.append(self.value())
            if self.peek() != "]":
                self.take(",")
        self.take("]")
        return found

    def _map(self) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while self.peek() != "}":
            name = self.value()
            if name != "...":
                self.take(":")
            found[name] = None if name == "..." else self.value()
            if self.peek() != "}":
                self.take(",")
        self.take("}")
        return found


def _word(token: str) -> Any:
    if token in _CONSTANTS:
        return _CONSTANTS[token]
    if _NAME.fullmatch(token):
        return Variable(token[1:])
    if token.startswith("?"):
        return Capture(token[1:])
    try:
        return int(token) if re.fullmatch(r"-?[\d_]+", token) else float(token)
    except ValueError:
        return token


def look_up(known: Mapping[str, Any], path: str) -> Any:
    """Return a captured value, or one of its members."""
    name, *parts = path.split(".")
    if name not in known:
        raise ScriptError(f"${name} is not known")
    found = known[name]
    for part in parts:
        found = member(found, part)
    return found


def member(value: Any, name: str) -> Any:
    """Return a member of an answer or an attribute of an object of Python."""
    if isinstance(value, Mapping):
        return value.get(name, ABSENT)
    if isinstance(value, list | tuple) and name.lstrip("-").isdecimal():
        return value[int(name)] if int(name) < len(value) else ABSENT
    return getattr(value, name, ABSENT)


def resolved(value: Any, known: Mapping[str, Any]) -> Any:
    """Return a value of a request with what its names stand for."""
    if isinstance(value, str):
        return _NAME.sub(lambda found: str(look_up(known, found[1])), value).replace("$$", "$")
    if isinstance(value, Variable):
        return look_up(known, value.path)
    if isinstance(value, Special):
        return _made(value, known)
    if isinstance(value, dict):
        pairs = ((resolved(name, known), resolved(each, known)) for name, each in value.items())
        return {name: each for name, each in pairs if each is not ABSENT}
    if isinstance(value, list):
        found: list[Any] = []
        for each in value:
            if isinstance(each, Repeat):
                found += [resolved(each.value, {**known, "i": number}) for number in range(each.count)]
            else:
                found.append(resolved(each, known))
        return found
    return value


def _made(special: Special, known: Mapping[str, Any]) -> Any:
    if special.kind == "absent":
        return ABSENT
    if special.kind == "nested":
        value: Any = 1
        for _ in range(special.argument):
            value = {"a": value}
        return value
    if special.kind == "date":
        return msgpack.Timestamp.from_datetime(datetime.fromisoformat(special.argument).replace(tzinfo=UTC))
    if special.kind == "choice":
        return resolved(known["random"].choice(special.argument), known)
    if special.kind == "deep":
        return "[" * special.argument + "]" * special.argument
    if special.kind == "lists":
        return b"\x91" * special.argument + b"\xc0"
    if special.kind == "tuple":
        return tuple(resolved(special.argument, known))
    if special.kind == "job":
        return _flow_job(resolved(special.argument, known), known["q"])
    if special.kind in _NUMBERS:
        return _NUMBERS[special.kind](resolved(special.argument, known))
    if special.kind == "later":  # milliseconds from the start of the case
        return float(known["now"] + special.argument)
    raise ScriptError(f"<{special.kind}> cannot be sent")


def _flow_job(fields: dict[str, Any], queue: str) -> dict[str, Any]:
    """Return a job of PUSHF as the npm client sends it."""
    job_id, parent, children = fields.pop("id"), fields.pop("parent", None), fields.pop("children", None)
    data: dict[str, Any] = {"job": job_id}
    given: dict[str, Any] = {"name": "step", "data": data, "maxAttempts": 1}
    if parent is not None:
        data["__parentId"] = given["parentId"] = parent
    if children is not None:
        data["__childrenIds"] = given["childrenIds"] = given["dependsOn"] = children
    given |= fields.pop("more", {})
    return {"id": job_id, "queue": fields.pop("queue", queue), "input": {**given, **fields}}


class MismatchError(Exception):
    """An answer differs from what is expected."""


def match(expected: Any, found: Any, known: dict[str, Any], at: str):
    """Compare a value with what is expected, and store what is to be captured.

    Raises:
        MismatchError: If they differ; the text names the member.
    """
    if isinstance(expected, Variable) or (isinstance(expected, Special) and expected.kind in _NUMBERS):
        expected = resolved(expected, known)
    if isinstance(expected, Capture):
        if expected.name.endswith("[]"):
            known.setdefault(expected.name[:-2], []).append(found)
        else:
            known[expected.name] = found
    elif isinstance(expected, Special):
        _match_special(expected, found, known, at)
    elif isinstance(expected, dict):
        _match_map(expected, found, known, at)
    elif isinstance(expected, list):
        items = [pair for each in expected for pair in _expanded(each)]
        if not isinstance(found, list | tuple) or len(found) != len(items):
            raise MismatchError(f"{at} is {_short(found)}, not {len(items)} items")
        for at_item, ((each, number), mine) in enumerate(zip(items, found, strict=True)):
            names = known if number is None else {**known, "i": number}
            match(each, mine, names, f"{at}.{at_item}")
    else:
        wanted = resolved(expected, known)
        same = wanted == found and isinstance(wanted, bool) == isinstance(found, bool)
        if not same and not (wanted != wanted and found != found):
            raise MismatchError(f"{at} is {_short(found)}, not {_short(wanted)}")


def _expanded(item: Any) -> list[tuple[Any, int | None]]:
    return [(item.value, number) for number in range(item.count)] if isinstance(item, Repeat) else [(item, None)]


def _match_map(expected: dict[Any, Any], found: Any, known: dict[str, Any], at: str):
    wanted = {resolved(name, known): value for name, value in expected.items()}
    for name, value in wanted.items():
        if name != "...":
            mine = member(found, name) if isinstance(name, str) else found.get(name, ABSENT)
            match(value, mine, known, f"{at}.{name}")
    if "..." not in wanted and isinstance(found, Mapping) and (more := found.keys() - wanted.keys()):
        raise MismatchError(f"{at} has also {sorted(map(str, more))}: {_short(found)}")


def _match_special(special: Special, found: Any, known: dict[str, Any], at: str):
    argument = special.argument
    if special.kind == "has":
        is_met = _has(argument, found, known)
    elif special.kind in _CHECKS:
        argument = resolved(argument, known)
        is_met = _CHECKS[special.kind](argument, found)
    else:
        raise ScriptError(f"<{special.kind}> cannot be expected")
    if not is_met:
        raise MismatchError(f"{at} is {_short(found)}, not <{special.kind} {_short(argument)}>")


_CHECKS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "absent": lambda _, found: found is ABSENT,
    "any": lambda _, found: found is not ABSENT,
    "ascending": lambda _, found: list(found) == sorted(found),
    "float": lambda _, found: isinstance(found, float),
    "in": lambda wanted, found: found in wanted,
    "items": lambda count, found: len(found) == count,
    "like": lambda pattern, found: re.search(pattern, found, re.MULTILINE) is not None,
    "unlike": lambda pattern, found: re.search(pattern, found, re.MULTILINE) is None,
    "lacks": lambda wanted, found: wanted not in found,
    "not": lambda wanted, found: found != wanted,
    "plus": lambda bounds, found: bounds[1] <= float(found) - bounds[0] <= bounds[2],
    "range": lambda bounds, found: isinstance(found, int | float) and bounds[0] <= found <= bounds[1],
    "sorted": lambda wanted, found: sorted(found, key=str) == sorted(wanted, key=str),
    "unique": lambda count, found: len({str(each) for each in found}) == count,
    "uuid": lambda _, found: isinstance(found, str) and UUID(found).version == 7,
}


def _has(wanted: Any, found: Any, known: dict[str, Any]) -> bool:
    if isinstance(found, str):
        return resolved(wanted, known) in found
    for each in found:
        with suppress(MismatchError):
            match(wanted, each, known, "")
            return True
    return False


def _short(value: Any) -> str:
    text = "absent" if value is ABSENT else repr(value)
    return text if len(text) <= 1_000 else f"{text[:1_000]}..."


def values_at(found: Any, path: str) -> Any:
    """Return the member at a path; ``*`` stands for the members of all items."""
    name, _, rest = path.partition(".")
    if name == "*":
        return [values_at(each, rest) if rest else each for each in found]
    value = member(found, name)
    return values_at(value, rest) if rest else value


def compare(outcome: str, found: Any, known: dict[str, Any]):
    """Compare a value with an outcome: values for the whole, and ``path=value`` for members.

    Raises:
        MismatchError: If they differ.
    """
    values, named = Reader(outcome).pairs()
    for value in values:
        match(value, found, known, "the answer")
    for path, value in named:
        match(value, values_at(found, path), known, path)


def compare_error(wanted: str, answer: Mapping[str, Any]):
    """Compare the error of an answer; ``...`` stands for more text.

    Raises:
        MismatchError: If they differ.
    """
    if answer["ok"] is not False:
        raise MismatchError(f"succeeded with {_short(answer)}, not with the error {wanted!r}")
    found = str(answer["error"])
    pattern = ".*".join(re.escape(part.strip()) for part in wanted.split("..."))
    if re.fullmatch(pattern, found, re.DOTALL) is None:
        raise MismatchError(f"failed with {found!r}, not with {wanted!r}")


def frame_of(text: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the frame of a command; the queue of the case is `q`."""
    command, _, rest = text.partition(" ")
    values, named = Reader(rest).pairs()
    fields: dict[str, Any] = {}
    for value in values:
        given = resolved(value, known)
        if isinstance(given, dict):
            fields |= given
        elif isinstance(given, str) and given.startswith("@"):
            fields["queue"] = given[1:] or known["q"]
        else:
            fields["id"] = given
    fields |= {name: resolved(value, known) for name, value in named}
    frame = {"cmd": command, "reqId": "1", **fields}
    return {name: value for name, value in frame.items() if value is not ABSENT}


def sent_request(port: int | None, method: str, text: str, known: Mapping[str, Any]) -> tuple[int, Any]:
    """Send an HTTP request; return status and body. A body in single quotes is sent as it is."""
    path, _, body = text.partition(" ")
    content = body.strip("'") if body.startswith("'") or not body else json.dumps(resolved(Reader(body).value(), known))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"content-type": "application/json"} if body else {}
        connection.request(
            method, str(resolved(path, known)).replace("|", "%7C"), content.encode() if body else None, headers
        )
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    try:
        return response.status, json.loads(answer)
    except ValueError:
        return response.status, answer.decode()
