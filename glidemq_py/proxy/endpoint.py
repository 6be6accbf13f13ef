"""Declaration of an endpoint: method, path, schemas of request and responses, handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from glidemq_py._core.checks import reject_unknown
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._api.queue import Queue
    from glidemq_py.proxy.state import ProxyState

__all__ = ["Endpoint", "Exchange", "Schema"]

Schema = Mapping[str, Any]
"""A JSON Schema (2020-12), as OpenAPI 3.1 uses it."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One parsed and validated request."""

    request: Request
    state: ProxyState
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: dict[str, Any]

    @property
    def queue(self) -> Queue[Any, Any]:
        """Return the queue named in the path."""
        return self.state.queue(self.path["name"])

    @property
    def job_id(self) -> str:
        """Return the job id in the path."""
        return self.path["id"]

    def needed(self, name: str) -> Any:
        """Return a required member of the body."""
        if name not in self.body:
            raise GlideMQValidationError(name, None, "is required")
        return self.body[name]

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer query parameter; it is required if there is no default."""
        text = self.query.get(name)
        if text is None:
            if default is None:
                raise GlideMQValidationError(name, None, "is required")
            return default
        if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 16):
            raise GlideMQValidationError(name, text, "must be an integer")
        return int(text)

    def flag(self, name: str) -> bool:
        """Return a boolean query parameter; False if absent."""
        text = self.query.get(name, "false")
        if text not in ("true", "false"):
            raise GlideMQValidationError(name, text, "must be true or false")
        return text == "true"

    def word(self, name: str) -> str:
        """Return a required query parameter."""
        if name not in self.query:
            raise GlideMQValidationError(name, None, "is required")
        return self.query[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One row of a table of endpoints.

    Attributes:
        method: HTTP method.
        path: in Starlette's syntax.
        summary: one line for the OpenAPI document.
        run: the handler.
        body: schema of the request object; None = no body is accepted.
        body_needed: False if the body is optional.
        query: schemas of the query parameters by name.
        needed: names of the required query parameters.
        answers: response schemas by status; None = a stream of events.
        example: an example body; required if there is a body.
    """

    method: str
    path: str
    summary: str
    run: Callable[[Exchange], Awaitable[Response]]
    body: Schema | None = None
    body_needed: bool = True
    query: Mapping[str, Schema] = field(default_factory=dict[str, Schema])
    needed: tuple[str, ...] = ()
    answers: Mapping[int, Schema | None] = field(default_factory=dict[int, "Schema | None"])
    example: Mapping[str, Any] | None = None
    open: bool = False
    """True if no token is required."""

    @property
    def streams(self) -> bool:
        """Return whether the response is a stream of events."""
        return None in self.answers.values()

    def check_query(self, query: Mapping[str, str]) -> None:
        """Reject unknown query parameters."""
        for name, value in query.items():
            if name not in self.query:
                reject_unknown(name, value, list(self.query))

    def check_body(self, body: Mapping[str, Any]) -> None:
        """Reject unknown members of the body."""
        known: Mapping[str, Any] = {} if self.body is None else self.body["properties"]
        for name, value in body.items():
            if name not in known:
                reject_unknown(name, value, list(known))
