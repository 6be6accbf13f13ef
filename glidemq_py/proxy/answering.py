"""Responses: JSON bodies and server-sent events."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from glidemq_py._core import json_text as json

__all__ = ["answer", "frame"]


def answer(content: Any, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(json.dumps(content), status, media_type="application/json")


def frame(event: str | None, data: Any, entry: str | None = None) -> str:
    """Return the text of one server-sent event."""
    lines = [f"id: {entry}"] if entry else []
    if event:
        lines.append("event: " + " ".join(event.split()))
    return "\n".join([*lines, f"data: {json.dumps(data)}", "", ""])
