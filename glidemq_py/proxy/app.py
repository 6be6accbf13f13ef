"""`create_proxy_app`: builds the ASGI application from the tables of endpoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from glidemq_py._client.connect import Connection, check_connection
from glidemq_py._core import json_text as json
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression
from glidemq_py._core.times import Milliseconds
from glidemq_py.errors import ClosedError, GlideMQValidationError
from glidemq_py.proxy.answering import answer
from glidemq_py.proxy.broadcasts import BROADCASTS
from glidemq_py.proxy.endpoint import Endpoint, Exchange
from glidemq_py.proxy.flows import FLOWS
from glidemq_py.proxy.guard import Guard
from glidemq_py.proxy.jobs import JOBS
from glidemq_py.proxy.openapi import document
from glidemq_py.proxy.operations import OPERATIONS
from glidemq_py.proxy.options import LOOPBACK_HOSTS, OnError, ProxyOptions
from glidemq_py.proxy.refusals import refusal
from glidemq_py.proxy.schedulers import SCHEDULERS
from glidemq_py.proxy.schemas import COUNT, TEXT, record
from glidemq_py.proxy.state import ProxyState
from glidemq_py.proxy.streams import STREAMS

__all__ = ["create_proxy_app"]

_Serve = Callable[[Request], Awaitable[Response]]


def create_proxy_app(
    connection: Connection = None,
    *,
    prefix: str = DEFAULT_PREFIX,
    queues: Iterable[str] | None = None,
    compression: Compression = "none",
    events: bool = True,
    tokens: Iterable[str] | None = None,
    max_body: int = 1_048_576,
    keep_alive: Milliseconds = 5_000,
    on_error: OnError | None = None,
    hosts: Iterable[str] = LOOPBACK_HOSTS,
    body_timeout: Milliseconds = 30_000,
    max_response: int = 4_194_304,
) -> Starlette:
    """Create the ASGI application that serves queues over HTTP.

    Args:
        connection: as for `Queue`; one connection serves all queues.
        prefix: first part of every key.
        queues: names of the queues that clients may use; None = all.
        compression: "gzip" stores job data compressed.
        events: False leaves out the `added` events.
        tokens: accepted bearer tokens; every request except ``GET /health`` needs one. None = no authentication.
        max_body: maximum size of a request body, bytes.
        keep_alive: interval of the comments on an idle stream, ms or timedelta.
        on_error: called with each internal error (status 500, code ``internal``) and its request; it is also logged.
        hosts: accepted names in the header Host, without port; "*" accepts any. Default: the names of this machine
            (localhost, 127.0.0.1, [::1]).
        body_timeout: maximum time to receive a request body, ms or timedelta.
        max_response: maximum size of a page of a listing, bytes; a single job is returned whole.

    Returns:
        The application. ``app.state.proxy.begin_closing()`` ends its streams, for servers that wait for open
        responses before they end the lifespan (``python -m glidemq_py.proxy`` calls it).

    Raises:
        GlideMQValidationError: if an option is invalid.
    """
    options = ProxyOptions(
        prefix=prefix, queues=queues, compression=compression, events=events, tokens=tokens, max_body=max_body,
        keep_alive=keep_alive, on_error=on_error, hosts=hosts, body_timeout=body_timeout, max_response=max_response,
    )  # fmt: skip
    check_connection(connection)
    state = ProxyState(connection, options)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        await state.close()

    endpoints = (*JOBS, *OPERATIONS, *SCHEDULERS, *FLOWS, *BROADCASTS, *STREAMS, _HEALTH)
    from glidemq_py import __version__

    text = json.dumps(document(endpoints, version=__version__, secured=options.tokens is not None))

    async def openapi(_: Request) -> Response:
        return Response(text, media_type="application/json")

    routes = [
        Route(endpoint.path, _served(endpoint, state), methods=[endpoint.method], name=endpoint.run.__name__)
        for endpoint in endpoints
    ]
    routes.append(Route("/openapi.json", openapi, methods=["GET"]))
    app = Starlette(
        routes=_merged(routes), lifespan=lifespan, exception_handlers={HTTPException: _refused},
        middleware=[Middleware(Guard, options=options)],
    )  # fmt: skip
    app.state.proxy = state
    return app


def _merged(routes: list[Route]) -> list[Route]:
    """Return one route per path, so that the response to an unsupported method lists all allowed methods."""
    by_path: dict[str, dict[str, _Serve]] = {}
    for route in routes:
        for method in route.methods or ():
            by_path.setdefault(route.path, {})[method] = route.endpoint
    found: list[Route] = []
    for path, methods in by_path.items():
        found.append(Route(path, _by_method(methods), methods=sorted(methods)))
    return found


def _by_method(methods: dict[str, _Serve]) -> _Serve:
    async def serve(request: Request) -> Response:
        return await methods[request.method](request)

    return serve


async def _refused(_: Request, error: Exception) -> Response:
    return refusal(error)


def _served(endpoint: Endpoint, state: ProxyState) -> _Serve:
    async def serve(request: Request) -> Response:
        try:
            if endpoint.streams and request.method == "HEAD":
                # The response to HEAD would have to wait for the end of the stream.
                raise HTTPException(405, headers={"Allow": "GET"})
            if state.closing.is_set():
                raise ClosedError("the proxy is closing")
            if "name" in request.path_params:
                state.check_allowed(request.path_params["name"])
            endpoint.check_query(request.query_params)
            body = _object(await request.body(), endpoint)
            if not endpoint.open:
                await state.connect()
            exchange = Exchange(
                request=request, state=state, path=request.path_params, query=request.query_params, body=body
            )
            return await endpoint.run(exchange)
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        except Exception as error:
            state.report(error, request)
            return refusal(error)

    return serve


def _object(content: bytes, endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.body is None:
        if content:
            raise GlideMQValidationError("body", None, "is not accepted by this endpoint")
        return {}
    if not content:
        if endpoint.body_needed:
            raise GlideMQValidationError("body", None, "is required: must be a JSON object")
        return {}
    value = json.loads(content, "body")
    if not isinstance(value, dict):
        raise GlideMQValidationError("body", value, "must be a JSON object")
    endpoint.check_body(value)  # pyright: ignore[reportUnknownArgumentType]
    return value  # pyright: ignore[reportUnknownVariableType]


async def _health(exchange: Exchange) -> Response:
    state = exchange.state
    uptime = int((time.monotonic() - state.started) * 1_000)
    return answer({"status": "ok", "uptime": uptime, "queues": state.open_queues})


_HEALTH: Final = Endpoint(
    method="GET", path="/health", summary="Return the health of the proxy", run=_health, open=True,
    answers={200: record(status=TEXT, uptime=COUNT, queues=COUNT)},
)  # fmt: skip
