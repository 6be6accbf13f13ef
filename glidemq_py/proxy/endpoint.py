"""What an endpoint is: a method, a path, what it takes and answers, and the function that does it."""

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
    """One request, read and checked for its form."""

    request: Request
    state: ProxyState
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: dict[str, Any]

    @property
    def queue(self) -> Queue[Any, Any]:
        """The queue of the path."""
        return self.state.queue(self.path["name"])

    @property
    def job_id(self) -> str:
        """The job of the path."""
        return self.path["id"]

    def needed(self, name: str) -> Any:
        """A value of the body that must be there."""
        if name not in self.body:
            raise GlideMQValidationError(name, None, "is missing")
        return self.body[name]

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number of the query; without a default it must be there."""
        text = self.query.get(name)
        if text is None:
            if default is None:
                raise GlideMQValidationError(name, None, "is missing")
            return default
        if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 16):
            raise GlideMQValidationError(name, text, "must be a whole number")
        return int(text)

    def flag(self, name: str) -> bool:
        """A boolean of the query; absent is False."""
        text = self.query.get(name, "false")
        if text not in ("true", "false"):
            raise GlideMQValidationError(name, text, "must be true or false")
        return text == "true"

    def word(self, name: str) -> str:
        """A text of the query that must be there."""
        if name not in self.query:
            raise GlideMQValidationError(name, None, "is missing")
        return self.query[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One row of a table of endpoints.

    Attributes:
        method, path: as Starlette writes them.
        summary: one line for the document.
        run: does it.
        body: schema of the request's object; None = it takes no body.
        body_needed: False where the body may be left out.
        query: schemas of the query's parameters by name; those in ``needed`` must be there.
        answers: schemas by status; None = a stream of events.
        example: a body that it takes; every endpoint that takes one has it.
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
    """True: no token is needed."""

    @property
    def streams(self) -> bool:
        """It answers with a stream of events."""
        return None in self.answers.values()

    def check_query(self, query: Mapping[str, str]) -> None:
        """Refuse parameters that mean nothing here."""
        for name, value in query.items():
            if name not in self.query:
                reject_unknown(name, value, list(self.query))

    def check_body(self, body: Mapping[str, Any]) -> None:
        """Refuse members that mean nothing here."""
        known: Mapping[str, Any] = {} if self.body is None else self.body["properties"]
        for name, value in body.items():
            if name not in known:
                reject_unknown(name, value, list(known))
