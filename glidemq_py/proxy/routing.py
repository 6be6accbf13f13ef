"""What surrounds every endpoint: checks of origin, token and body; strict JSON; errors as JSON responses."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from http import HTTPStatus
from typing import Any, Final, NotRequired, TypeVar, cast, get_type_hints
from urllib.parse import quote, unquote

from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glidemq_py._api.job_queue import Queue
from glidemq_py._core import json_text
from glidemq_py._core.checks import reject_unknown, snake_case
from glidemq_py._operate.access import Role
from glidemq_py._operate.action import Action
from glidemq_py._web.clients import (
    BodyTooLargeError,
    ClientGoneError,
    UnauthorizedError,
    check_site,
    digest,
    is_authorized,
    read_body,
)
from glidemq_py.errors import ClosedError, GlideMQValidationError, SerializationError, show_value
from glidemq_py.proxy.models import Error, FlowId, JobId, QueueName, SchedulerName
from glidemq_py.proxy.responses import (
    RequestError,
    answer,
    page_of,
    refusal,
)
from glidemq_py.proxy.schemas import Schema, checked, is_required, schema_of, text_value, typed_dict
from glidemq_py.proxy.state import ProxyOptions, ProxyState

HEALTH: Final = "/health"
"""The path that needs neither a token nor a connection."""


class Guard:
    """ASGI middleware that rejects foreign, unauthorized, oversized and half-sent requests, and reads their bodies.

    Args:
        app: the application behind it.
        options: the proxy's options.
    """

    def __init__(self, app: ASGIApp, options: ProxyOptions) -> None:
        self._app = app
        self._options = options
        self._tokens = None if options.tokens is None else [digest(token.encode()) for token in options.tokens]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            check_site(headers, self._options.hosts)
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            if self._tokens is not None and path != HEALTH and not is_authorized(headers, self._tokens):
                raise UnauthorizedError("a valid bearer token is required")
            check_media_type(scope["method"], headers)
            body = await self._body(headers, receive)
        except ClientGoneError:
            return
        except Exception as error:
            await refusal(error)(scope, receive, send)
            return
        raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        # Still encoded, so that a slash in an id separates nothing; `Endpoint` decodes its parts.
        encoded = raw.decode(errors="replace").partition("?")[0]
        unread = [body]

        async def receive_read() -> Message:
            """Give the body to whoever reads it, such as a tracer of the application around the endpoint."""
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        await self._app({**scope, "path": encoded}, receive_read, send)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        most, seconds = self._options.max_body, self._options.body_timeout / 1_000
        try:
            return await read_body(headers, receive, most, seconds)
        except BodyTooLargeError as error:
            what = "too long" if error.size is None else f"of {error.size} bytes"
            raise RequestError(413, "too_large", f"request body {what}: must be at most {most} bytes") from None
        except TimeoutError:
            raise RequestError(408, "timeout", f"request body incomplete after {seconds:g} s") from None


def check_media_type(method: str, headers: Headers) -> None:
    """Reject bodies that are not JSON; a page of another site can send only other types without a preflight.

    Raises:
        RequestError: if the content type is not application/json, or missing although there is a body.
    """
    given = headers.get("content-type")
    if given is None:
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            return
    elif method in ("GET", "HEAD") or given.partition(";")[0].strip().lower() == "application/json":
        return
    raise RequestError(415, "media_type", f"header Content-Type = {show_value(given)}: must be 'application/json'")


_ERRORS: Final = {
    400: "The request is invalid; `error` names the member and the reason.",
    401: "The bearer token is missing or wrong.",
    403: "The queue is not available through the proxy, or the request comes from another site.",
    404: "The object does not exist.",
    405: "The path does not support the method.",
    408: "The body was not complete in time.",
    409: "A job with this id already exists.",
    413: "The body, or the stored job, is too large.",
    415: "The content type is not application/json.",
    500: "The awaited job failed, or an internal error occurred.",
    503: "The server is unreachable or out of memory, the proxy is closing, or the scheduler is locked.",
    504: "The wait timed out.",
}

# Numbers such as 1e999 are read as infinity. Only texts with a long exponent or many digits can contain one.
_MAYBE_INFINITE: Final = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{200}").search


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise SerializationError("body", text, "is not a finite number")
    return number


_FINITE: Final = json.JSONDecoder(parse_float=_finite)


def _json_object(content: bytes) -> dict[str, Any]:
    """Return a body, which must be a JSON object without NaN, Infinity and numbers beyond a double."""
    value = json_text.loads(content, "body")
    if _MAYBE_INFINITE(content) is not None:
        _FINITE.decode(content.decode())
    if not isinstance(value, dict):
        raise GlideMQValidationError("body", value, "must be a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]


class EventStream(StreamingResponse):
    """A response of server-sent events."""

    media_type = "text/event-stream"


_PARTS: Final = {"name": QueueName, "id": JobId, "scheduler": SchedulerName, "flow": FlowId}
"""The types of the parts of paths."""

CallT = TypeVar("CallT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation of the proxy: how it is called, what it answers, and its entry in the OpenAPI document.

    Attributes:
        method: of HTTP.
        path: with the names of its parts in braces.
        call: the coroutine function that returns the content of the response, or the response itself. Its docstring is
            the summary. A parameter has the value of its name: `queue`, the open one of the path; `proxy`; `request`;
            `body`; `page`; a part of the path; a parameter of the query.
        wanted: the names of these parameters.
        answers: the types of responses by status, that of the content first.
        query: the schemas of the query's parameters; those with a default may be omitted.
        body: the schema of the body. None = it must be empty.
        example: of the body.
        role: the least role whose clients may call it.
    """

    method: str
    path: str
    call: Callable[..., Any]
    wanted: Collection[str]
    answers: Mapping[int, Any]
    query: Mapping[str, Schema]
    body: Schema | None
    example: Mapping[str, Any]
    role: Role

    def route(self) -> Route:
        """Return its route."""
        route = Route(self.path, self._respond, methods=[self.method])
        if EventStream in self.answers.values():
            # The response to HEAD would have to wait for the end of the stream.
            route.methods = {self.method}
        return route

    async def _respond(self, request: Request) -> Response:
        proxy: ProxyState = request.app.state.proxy
        try:
            return await self._called(request, proxy)
        except Exception as error:
            proxy.report(error, request)
            return refusal(error)

    async def _called(self, request: Request, proxy: ProxyState) -> Response:
        if proxy.closing.is_set():
            raise ClosedError("the proxy is closing")
        proxy.check_role(self.role)
        values: dict[str, Any] = {name: unquote(text) for name, text in request.path_params.items()}
        if "name" in values:
            proxy.check_allowed(values["name"])
        query = self._query_of(request.query_params)
        values |= {**query, "body": self._body_of(await request.body()), "proxy": proxy, "request": request}
        if self.path != HEALTH:
            await proxy.connect()
        if "queue" in self.wanted:
            values["queue"] = proxy.queue(values["name"])
        if "page" in self.wanted:
            values["page"] = page_of(query)
        content = await self.call(**{name: values[name] for name in self.wanted})
        return content if isinstance(content, Response) else answer(content, next(iter(self.answers)))

    def _query_of(self, given: QueryParams) -> dict[str, Any]:
        for name, value in given.items():
            if name not in self.query:
                reject_unknown(name, value, self.query)
        return {
            snake_case(name): text_value(name, given.get(name), schema) for name, schema in self.query.items()
        }  # fmt: skip

    def _body_of(self, content: bytes) -> Any:
        if self.body is None:
            if content:
                raise GlideMQValidationError("body", None, "is not accepted by this endpoint")
            return None
        if not content and is_required(self.body):
            raise GlideMQValidationError("body", None, "is required")
        return checked("", _json_object(content) if content else {}, self.body)

    # -- the OpenAPI document -------------------------------------------------------------------------------

    def operation(self, *, secured: bool) -> dict[str, Any]:
        """Return its entry in the OpenAPI document; ``secured``: requests need a token."""
        parts = {name: schema_of(kind) for name, kind in _PARTS.items() if f"{{{name}}}" in self.path}
        found: dict[str, Any] = {
            "summary": (self.call.__doc__ or "").removesuffix("."), "operationId": self.call.__name__,
            "parameters": [
                *({"name": name, "in": "path", "required": True, "schema": schema} for name, schema in parts.items()),
                *({"name": name, "in": "query", "required": "default" not in schema, "schema": _shown(schema)}
                  for name, schema in self.query.items()),
            ],
            "responses": {
                str(status): {"description": text, "content": _content(kind)}
                for status, text, kind in (
                    *((status, HTTPStatus(status).phrase, kind) for status, kind in self.answers.items()),
                    *((status, text, Error) for status, text in _ERRORS.items()),
                )
            },
        }  # fmt: skip
        if self.body is not None:
            content = {"application/json": {"schema": self.body, "example": self.example}}
            found["requestBody"] = {"required": is_required(self.body), "content": content}
        if secured and self.path != HEALTH:
            found["security"] = [{"token": []}]
        return found


def _shown(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if value is not None}


def _content(kind: Any) -> dict[str, Any]:
    if kind is EventStream:
        return {EventStream.media_type: {"schema": {"type": "string"}}}
    return {"application/json": {"schema": schema_of(kind)}}


def endpoint_of(action: type[Action]) -> Endpoint:
    """Return the endpoint that makes a change of a queue, as its action declares it: a POST request."""
    path, reply = cast("tuple[str, dict[str, Any]]", action.route)
    hints = get_type_hints(action)
    given = {each.name: each.default for each in fields(action) if each.name != "queue"}
    parts = [name for name in given if f"{{{name}}}" in path]
    members = {
        name: hints[name] if default is MISSING else NotRequired[hints[name]]
        for name, default in given.items() if name not in parts
    }  # fmt: skip

    async def call(queue: Queue, name: str, body: dict[str, Any] | None, **of: str) -> dict[str, Any]:
        result = await action(queue=name, **of, **(body or {})).make(queue)
        for problem in () if result is None else result.problems:
            raise RequestError(404, "not_found", f"{action.subject} {problem.id!r} {problem.error}")
        return reply

    summary = (action.__doc__ or "").partition("\n")[0]
    call.__doc__, call.__name__ = summary, path.rpartition("/")[2]
    done = typed_dict(f"{action.__name__}Done", summary, {name: type(value) for name, value in reply.items()})
    body = schema_of(typed_dict(action.__name__, summary, members)) if members else None
    at = f"/queues/{{name}}{path}"
    return Endpoint("POST", at, call, ("queue", "name", "body", *parts), {200: done}, {}, body, {}, action.role)


class Endpoints(list[Endpoint]):
    """The endpoints of a module, which its decorated functions are.

    Args:
        prefix: first part of their paths.
    """

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    def __call__(
        self, method: str, path: str, answers: Any = None, *, query: Mapping[str, Schema] | None = None,
        body: Any = None, role: Role | None = None, **example: Any,
    ) -> Callable[[CallT], CallT]:  # fmt: skip
        """Return the decorator of a function; see `Endpoint`.

        ``answers`` may be the type with the status 200, by default that of the function; ``body`` is by default that of
        its parameter. ``role``: by default, GET is of observers, others of operators.
        """

        def declare(call: CallT) -> CallT:
            hints = get_type_hints(call, include_extras=True)
            found, kind = answers or hints["return"], body or hints.get("body")
            by_status: Mapping[int, Any] = found if isinstance(found, Mapping) else {200: found}  # pyright: ignore[reportUnknownVariableType]
            at, wanted, schema = self._prefix + path, inspect.signature(call).parameters, kind and schema_of(kind)
            needed: Role = role or ("observer" if method == "GET" else "operator")
            self.append(Endpoint(method, at, call, wanted, by_status, query or {}, schema, example, needed))
            return call

        return declare
