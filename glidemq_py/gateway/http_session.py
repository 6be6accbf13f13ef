"""Sessions of the HTTP API, which have no connection of the TCP protocol."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from glidemq_py.gateway.session import Session
from glidemq_py.gateway.slices import JSON_PARTS, large_content
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.values import LargeAnswer, is_too_deep, plain

__all__ = ["HttpSession", "json_text", "json_value"]


class HttpSession(Session):
    """The session of a request, whose token has been checked.

    Args:
        state: The gateway.
    """

    def __init__(self, state: GatewayState) -> None:
        super().__init__(state)
        self.is_authenticated = True
        self.parts = JSON_PARTS

    def ends_poll(self, fetching: asyncio.Future[Any]) -> bool:
        """See `Session`."""
        return self._is_ending and not self.state.deadlines.has_ended(fetching)


def json_text(value: Any) -> str:
    """Return an answer as JSON."""
    if value.__class__ is LargeAnswer:
        return b"".join(large_content(value, JSON_PARTS)).decode()
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
