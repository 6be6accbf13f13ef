"""`create_proxy_app`: the ASGI application, and its OpenAPI document."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Match

from glidemq_py._client.connect import Connection, check_connection
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression
from glidemq_py._core.times import Milliseconds
from glidemq_py.proxy import flows, jobs, streams
from glidemq_py.proxy import queues as queues_
from glidemq_py.proxy import response_models as shown
from glidemq_py.proxy.guard import Guard
from glidemq_py.proxy.responses import answer, refusal
from glidemq_py.proxy.routing import EventStream, endpoints
from glidemq_py.proxy.state import LOOPBACK_HOSTS, OnError, ProxyOptions, ProxyState

__all__ = ["create_proxy_app"]

_health_router = endpoints()


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
) -> FastAPI:
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
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await state.close()

    from glidemq_py import __version__

    routers = (
        _health_router, jobs.router, queues_.router, queues_.usage_router, flows.router, streams.router,
    )  # fmt: skip
    app = FastAPI(
        title="glidemq_py proxy", version=__version__, description="A job queue over HTTP.",
        docs_url=None, redoc_url=None, routes=[route for router in routers for route in router.routes],
        lifespan=lifespan, middleware=[Middleware(Guard, options=options)],
        exception_handlers={HTTPException: _refused},
    )  # fmt: skip
    app.state.proxy = state
    _complete_document(app, secured=options.tokens is not None)
    return app


def _complete_document(app: FastAPI, *, secured: bool) -> None:
    """Extend the OpenAPI document of the framework by what `Guard` and `ProxyRoute` do: tokens, the status 400."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            operations = [each for methods in document["paths"].values() for each in methods.values()]
            for operation in operations:
                operation["responses"].pop("422", None)  # ProxyRoute returns 400
                if secured and operation["operationId"] != health.__name__:
                    operation["security"] = [{"token": []}]
            components = document["components"]
            for name in ("HTTPValidationError", "ValidationError"):
                components["schemas"].pop(name, None)
            if secured:
                components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        return generate()

    app.openapi = openapi  # type: ignore[method-assign]  # as the framework documents it


async def _refused(request: Request, error: Exception) -> Response:
    """Return the response to a request without an endpoint; with 405, it lists all methods of the path."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        found: set[str] = set()
        for route in request.app.routes:
            if route.matches(request.scope)[0] is not Match.NONE:
                found |= route.methods
                if "GET" in route.methods and getattr(route, "response_class", None) is not EventStream:
                    found.add("HEAD")
        error.headers = {"Allow": ", ".join(sorted(found))}
    return refusal(error)


@_health_router.get("/health", summary="Return the health of the proxy", response_model=shown.Health)
async def health(request: Request) -> Response:
    state: ProxyState = request.app.state.proxy
    uptime = int((time.monotonic() - state.started) * 1_000)
    return answer({"status": "ok", "uptime": uptime, "queues": state.open_queues})
