"""What surrounds every endpoint: checks of origin, token and body; strict JSON; errors as JSON responses."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, cast
from urllib.parse import quote, unquote

from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, APIRouter
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glidemq_py._core import json_text
from glidemq_py._core.checks import nearest_option, reject_unknown
from glidemq_py._web.clients import UnauthorizedError, check_site, digest, is_authorized
from glidemq_py.errors import ClosedError, GlideMQError, GlideMQValidationError, SerializationError
from glidemq_py.errors.base import show_value
from glidemq_py.proxy.models import Error
from glidemq_py.proxy.responses import BodyTimeoutError, BodyTooLargeError, MediaTypeError, refusal
from glidemq_py.proxy.state import ProxyOptions

IS_HEAD: Final = "glidemq.is_head"
"""Key of the scope: a HEAD request, which endpoints serve as GET; servers omit the body of the response."""

_WITHOUT_TOKEN: Final = "/health"


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
            if self._tokens is not None and path != _WITHOUT_TOKEN and not is_authorized(headers, self._tokens):
                raise UnauthorizedError("a valid bearer token is required")
            check_media_type(scope["method"], headers)
            body = await self._body(headers, receive)
        except _ClientGoneError:
            return
        except Exception as error:
            await refusal(error)(scope, receive, send)
            return
        unread = [body]

        async def receive_read() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        # Still encoded, so that a slash in an id separates nothing; ProxyRoute decodes its parts.
        scope = {**scope, "path": raw.decode(errors="replace").partition("?")[0]}
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET", IS_HEAD: True}
        await self._app(scope, receive_read, send)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        most, seconds = self._options.max_body, self._options.body_timeout / 1_000
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > most:
            raise BodyTooLargeError(f"request body of {length} bytes: must be at most {most}")
        content = bytearray()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGoneError
                    content += message.get("body", b"")
                    if len(content) > most:
                        raise BodyTooLargeError(f"request body too long: must be at most {most} bytes")
                    if not message.get("more_body", False):
                        return bytes(content)
        except TimeoutError:
            raise BodyTimeoutError(f"request body incomplete after {seconds:g} s") from None


class _ClientGoneError(Exception):
    """The client disconnected before its request was complete."""


def check_media_type(method: str, headers: Headers) -> None:
    """Reject bodies that are not JSON; a page of another site can send only other types without a preflight.

    Raises:
        MediaTypeError: if the content type is not application/json, or missing although there is a body.
    """
    given = headers.get("content-type")
    if given is None:
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            return
    elif method in ("GET", "HEAD") or given.partition(";")[0].strip().lower() == "application/json":
        return
    raise MediaTypeError(f"header Content-Type = {show_value(given)}: must be 'application/json'")


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
_SUBJECT: Final = re.compile(r"^(Value error, |\w+ should )")
_BOUND: Final = re.compile(r"(less|greater) than or equal to (-?\d+)\b(?!\.\d)")
_BOUNDS: Final = {"less": "at most", "greater": "at least"}


class EventStream(StreamingResponse):
    """A response of server-sent events."""

    media_type = "text/event-stream"


def with_example(**body: Any) -> dict[str, Any]:
    """Return the part of an operation in the OpenAPI document that has an example of its body."""
    return {"requestBody": {"content": {"application/json": {"example": body}}}}


def endpoints(prefix: str = "") -> APIRouter:
    """Return a router for endpoints, whose ids in the OpenAPI document are their names."""
    return APIRouter(
        prefix=prefix, route_class=ProxyRoute, generate_unique_id_function=lambda route: route.name,
        responses={status: {"model": Error, "description": text} for status, text in _ERRORS.items()},
    )  # fmt: skip


# Numbers such as 1e999 are read as infinity. Only texts with a long exponent or many digits can contain one.
_MAYBE_INFINITE: Final = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{200}").search


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise SerializationError("body", text, "is not a finite number")
    return number


_FINITE: Final = json.JSONDecoder(parse_float=_finite)


class _JsonRequest(Request):
    async def json(self) -> Any:
        """Return the body, which must be a JSON object without NaN, Infinity and numbers beyond a double."""
        value = json_text.loads(await self.body(), "body")
        if _MAYBE_INFINITE(await self.body()) is not None:
            _FINITE.decode((await self.body()).decode())
        if not isinstance(value, dict):
            raise GlideMQValidationError("body", value, "must be a JSON object")
        return cast("dict[str, Any]", value)


class ProxyRoute(APIRoute):
    """Rejects unknown query parameters and unexpected bodies; turns errors into responses by their type.

    The path in the scope is still encoded (see `Guard`).
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route serves a request, and its part of the scope, with decoded parameters."""
        match, child = super().matches(scope)
        parameters = child.get("path_params", {})
        for name in self.param_convertors.keys() & parameters:
            parameters[name] = unquote(parameters[name])
        return match, child

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        handle = super().get_route_handler()
        known = list(_query_names(self.dependant))

        async def serve(given: Request) -> Response:
            request, state = _JsonRequest(given.scope, given.receive), given.app.state.proxy
            try:
                if request.scope.get(IS_HEAD) and self.response_class is EventStream:
                    # The response to HEAD would have to wait for the end of the stream.
                    raise HTTPException(405, headers={"Allow": "GET"})
                if state.closing.is_set():
                    raise ClosedError("the proxy is closing")
                for name, value in request.query_params.items():
                    if name not in known:
                        reject_unknown(name, value, known)
                if self.body_field is None and await request.body():
                    raise GlideMQValidationError("body", None, "is not accepted by this endpoint")
                return await handle(request)
            except RequestValidationError as error:
                return refusal(self._invalid(error, request))
            except Exception as error:
                # The framework wraps errors of the JSON parser.
                cause = error.__cause__ if isinstance(error, HTTPException) else None
                found = cause if isinstance(cause, GlideMQError) else error
                state.report(found, request)
                return refusal(found)

        return serve

    def _invalid(self, error: RequestValidationError, request: Request) -> GlideMQValidationError:
        """Return the error that names the most deeply nested invalid member."""
        found: dict[str, list[str]] = {}
        values: dict[str, Any] = {}
        for each in error.errors():
            where, *path = each["loc"]
            missing = each["type"] == "missing"
            names, value = _member(path, error.body if where == "body" else {path[-1]: each["input"]}, missing)
            name = ".".join(names) or "body"
            if each["type"] == "extra_forbidden":
                known = _known(request.app.openapi(), self, names[:-1])
                near = nearest_option(names[-1], known)
                return _unknown(name, value, [] if near is None else [".".join([*names[:-1], near])])
            problem = "is required" if missing else _problem(each["msg"])
            found.setdefault(name, []).append(problem)
            values[name] = None if missing else value
        # Of the alternatives of a member, the one that went furthest is meant.
        name = max(found, key=lambda each: each.count("."))
        return GlideMQValidationError(
            name, values[name], " or ".join(dict.fromkeys(found[name])).replace(" or must be ", " or ")
        )


def _problem(message: str) -> str:
    text = _SUBJECT.sub("", message).replace("a valid dictionary", "an object").replace(" after validation", "")
    text = _BOUND.sub(lambda found: f"{_BOUNDS[found[1]]} {int(found[2]):,}", text)
    return text if text.startswith(("must ", "is ")) else f"must {text}"


def _unknown(name: str, value: Any, known: list[str]) -> GlideMQValidationError:
    try:
        reject_unknown(name, value, known)
    except GlideMQValidationError as error:
        return error


def _query_names(dependant: Dependant) -> Iterable[str]:
    for field in dependant.query_params:
        yield field.alias
    for each in dependant.dependencies:
        yield from _query_names(each)


def _member(path: list[str | int], body: Any, missing: bool) -> tuple[list[str], Any]:
    """Return the names on the path to a member, and its value; the path also has the names of alternative types."""
    names: list[str] = []
    value: Any = body
    for i, part in enumerate(path):
        try:
            found: Any = value[part]
        except (KeyError, IndexError, TypeError):  # missing, or the name of a type
            if not (missing and i == len(path) - 1):
                continue
            found = None
        if isinstance(part, int) and names:
            names[-1] += f"[{part}]"
        else:
            names.append(str(part))
        value = found
    return names, value


def _known(document: dict[str, Any], route: APIRoute, names: list[str]) -> list[str]:
    """Return the members of an object in the body of this route, by the OpenAPI document."""

    def alternatives(schema: dict[str, Any]) -> Iterable[dict[str, Any]]:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        yield schema
        for each in schema.get("anyOf", ()):
            yield from alternatives(each)

    (method,) = route.methods or ("",)
    body = document["paths"][route.path][method.lower()]["requestBody"]["content"]["application/json"]["schema"]
    schemas = list(alternatives(body))
    for name in names:
        member, *indexes = name.split("[")
        schemas = [schema["properties"][member] for schema in schemas if member in schema.get("properties", ())]
        schemas = [each for schema in schemas for each in alternatives(schema)]
        for _ in indexes:
            schemas = [each for schema in schemas if "items" in schema for each in alternatives(schema["items"])]
    return [name for schema in schemas for name in schema.get("properties", ())]
