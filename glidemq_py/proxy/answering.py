"""Responses: JSON bodies and server-sent events."""

from __future__ import annotations

import json as stdlib_json
from collections.abc import Mapping
from typing import Any, Final, cast

from starlette.responses import Response

from glidemq_py._core import json_text as json
from glidemq_py.errors import SerializationError

__all__ = ["answer", "encode", "frame"]

_PAYLOADS: Final = frozenset(("data", "returnvalue", "progress", "result"))
"""Members of responses that hold values of users."""

_RESERVE: Final = 10
"""Levels that are kept free in each response, so that the limit for payloads does not depend on the endpoint."""


def answer(content: Any, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(encode(content), status, media_type="application/json")


def encode(content: Any) -> bytes:
    """Return the JSON of a response; payloads that are nested too deeply become text, listed in ``asText``."""
    try:
        return _dumps_below(_RESERVE, content).encode()
    except SerializationError:
        return json.dumps(_with_texts(content)).encode()


def _dumps_below(levels: int, content: Any) -> str:
    for _ in range(levels):
        content = [content]
    return json.dumps(content)[levels:-levels]


def _with_texts(content: Any) -> Any:
    if isinstance(content, (list, tuple)):
        return [_with_texts(each) for each in cast("list[Any]", content)]
    if not isinstance(content, Mapping):
        return content
    members = dict(cast("Mapping[str, Any]", content))
    texts: list[str] = list(members.get("asText", ()))
    for name, value in members.items():
        if name not in _PAYLOADS:
            members[name] = _with_texts(value)
        elif not _fits(value):
            members[name] = _text_of(value)
            texts.append(name)
    return {**members, "asText": texts} if texts else members


def _fits(payload: Any) -> bool:
    try:
        _dumps_below(2 * _RESERVE, payload)
    except SerializationError:
        return False
    return True


def _text_of(payload: Any) -> str:
    try:
        return stdlib_json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    except (RecursionError, TypeError, ValueError):
        return "nested too deeply"


def frame(event: str | None, data: Any, entry: str | None = None) -> str:
    """Return the text of one server-sent event."""
    lines = [f"id: {entry}"] if entry else []
    if event:
        lines.append("event: " + " ".join(event.split()))
    return "\n".join([*lines, f"data: {encode(data).decode()}", "", ""])
