"""Routes of the HTTP API: each executes a command of the table, with fields of the path, the query and the body."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from glidemq_py.gateway.commands import COMMANDS
from glidemq_py.gateway.session import Command, Session
from glidemq_py.gateway.slices import JSON_PARTS
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.table import Answer, CommandError, Kind, is_map
from glidemq_py.gateway.values import UNDEFINED, LargeAnswer, is_too_deep, plain


class HttpSession(Session):
    """The session of a request, whose token has been checked.

    Args:
        state: The gateway.
    """

    def __init__(self, state: GatewayState) -> None:
        super().__init__(state)
        self.is_authenticated = True
        self.parts = JSON_PARTS

    @property
    def _is_drained(self) -> bool:
        return self._is_ending


def json_text(value: Any) -> str:
    """Return an answer as JSON."""
    if value.__class__ is LargeAnswer:
        return b"".join(JSON_PARTS.content(value)).decode()
    try:
        return json.dumps(plain(value), separators=(",", ":"))
    except RecursionError:  # data of another program
        return '{"ok":false,"error":"The answer is nested too deeply for JSON"}'


def json_value(content: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: If the text is not JSON, or nested too deeply.
    """
    try:
        value: Any = json.loads(content, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if is_too_deep(value):
        raise ValueError("nested too deeply")
    return value


def _reject_constant(name: str) -> Any:
    raise ValueError(name)


_MOST_DIGITS: Final = 20
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)
_FLAGS: Final[Mapping[str, bool]] = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    Attributes:
        method: HTTP method.
        path: Path; a segment ``{name}`` is the field of this name.
        command: Name of the command.
        wrapped: The field that a body without this name is the value of, or "".
        renamed: Fields by their other names in the body.
        is_lenient: If True, a rejected command has the status 200.
        shown: Names of the members of the answer that are returned; empty = all.
        needs_body: If True, a request without a body is rejected.
        lists: Items of the query that may be repeated and have several texts, separated by commas, with their fields.
        is_flat: If True, the members of the answer's `data` are returned in its place.
    """

    method: str
    path: str
    command: str
    wrapped: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    is_lenient: bool = False
    shown: tuple[str, ...] = ()
    is_flat: bool = False
    needs_body: bool = False
    lists: Mapping[str, str] = field(default_factory=dict[str, str])


EVENTS: Final = ""
"""In place of a command: the route sends events."""

SOCKET: Final = "WebSocket"
"""In place of a command: the route is a WebSocket."""


def _route_of(command: Command) -> Route:
    method, _, path = command.http.partition(" ")
    return Route(method, path, command.name, **command.route)


ROUTES: Final = (
    *(_route_of(command) for command in COMMANDS.values() if command.http),
    Route("GET", "/workers", "ListWorkers"),
    Route("GET", "/events", EVENTS), Route("GET", "/events/queues/{queue}", EVENTS),
    Route("GET", "/ws", SOCKET), Route("GET", "/ws/queues/{queue}", SOCKET),
)  # fmt: skip
"""All routes that execute one command; the others are in `http_api`."""


def _segments(path: str) -> list[str]:
    return path.split("/")[1:]


def _index() -> dict[tuple[str, int], list[tuple[list[str], Route]]]:
    found: dict[tuple[str, int], list[tuple[list[str], Route]]] = {}
    for route in ROUTES:
        parts = _segments(route.path)
        found.setdefault((route.method, len(parts)), []).append((parts, route))
    for routes in found.values():
        # A literal segment outranks a field: /queues/summary is no queue.
        routes.sort(key=lambda each: sum(part.startswith("{") for part in each[0]))
    return found


_BY_SHAPE: Final = _index()


def find_route(method: str, raw_path: str) -> tuple[Route, dict[str, str]] | None:
    """Return the route of a request and the fields in its path, or None.

    Args:
        method: HTTP method.
        raw_path: Path as sent: a segment is decoded after the path is split, so an id may contain ``%2F``.
    """
    given = _segments(raw_path)
    for parts, route in _BY_SHAPE.get((method, len(given)), ()):
        fields: dict[str, str] = {}
        for part, text in zip(parts, given, strict=True):
            if part.startswith("{") and text:
                fields[part[1:-1]] = unquote(text)
            elif part != text:
                break
        else:
            return route, fields
    return None


def fields_of(route: Route, in_path: Mapping[str, str], query: Sequence[tuple[str, str]], body: Any) -> dict[str, Any]:
    """Return the fields of a command.

    Precedence, highest first: path, body, query. Items of the query that the command does not have are ignored.

    Args:
        route: The route.
        in_path: Fields in the path.
        query: Names and texts of the query; texts become numbers and booleans where the field has such a type.
        body: Decoded body; `UNDEFINED` without one.

    Raises:
        CommandError: If the body is neither an object nor the value of the route's field `wrapped`.
    """
    kinds = {each.name: each.kind for each in COMMANDS[route.command].fields}
    fields: dict[str, Any] = {}
    for name, text in query:
        if name in route.lists:
            texts = [each for item in text.split(",") if (each := item.strip())]
            if texts:
                fields.setdefault(route.lists[name], []).extend(texts)
        elif name in kinds:
            fields[name] = _typed(kinds[name], text)
    if body is not UNDEFINED:
        fields |= _body_fields(route, body)
    elif route.needs_body:
        raise CommandError("Invalid JSON body")
    return {**fields, **in_path}


def shown(route: Route, answer: Answer) -> Answer:
    """Return the answer of a command as the route has it."""
    if not answer["ok"]:
        return answer
    members = answer["data"] if route.is_flat else answer
    found = {"ok": True, **{name: members[name] for name in route.shown or members}}
    return LargeAnswer(found) if answer.__class__ is LargeAnswer else found


def _body_fields(route: Route, body: Any) -> dict[str, Any]:
    if route.wrapped and not (is_map(body) and route.wrapped in body):
        return {route.wrapped: body}
    if not is_map(body):
        raise CommandError("Invalid JSON body")
    return {route.renamed.get(name, name): value for name, value in body.items()}


def _typed(kind: Kind, text: str) -> Any:
    """Return the value of a text; one of the wrong type stays a text, which the command rejects."""
    if kind in (Kind.NUMBER, Kind.INTEGER, Kind.POSITIVE) and len(text) <= _MOST_DIGITS and _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    if kind is Kind.FLAG:
        return _FLAGS.get(text, text)
    return text.split(",") if kind is Kind.TEXTS else text
