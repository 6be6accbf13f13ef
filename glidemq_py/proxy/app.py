"""`create_proxy_app`: the ASGI application, and its OpenAPI document."""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, ParamSpec, Protocol, cast

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Match

from glidemq_py._client.transport import Connection, check_connection
from glidemq_py.proxy import dead_letters, flows, jobs, queues, schedulers, streams
from glidemq_py.proxy.models import Count, ResponseModel
from glidemq_py.proxy.responses import answer, refusal
from glidemq_py.proxy.routing import EventStream, Guard, endpoints
from glidemq_py.proxy.state import ProxyOptions, ProxyState

__all__ = ["create_proxy_app"]

_health_router = endpoints()
_ROUTERS: Final = (
    _health_router, jobs.router, queues.router, dead_letters.router, schedulers.router,
    queues.usage_router, flows.router,
    streams.router,
)  # fmt: skip


P = ParamSpec("P")


class _CreateApp(Protocol[P]):
    def __call__(self, connection: Connection = None, *args: P.args, **options: P.kwargs) -> FastAPI: ...


def _with_options_of(
    kind: Callable[P, ProxyOptions],
) -> Callable[[Callable[[Connection, ProxyOptions], FastAPI]], _CreateApp[P]]:
    """Return a decorator: the function takes the fields of ``kind`` as keyword arguments."""

    def decorate(create: Callable[[Connection, ProxyOptions], FastAPI]) -> _CreateApp[P]:
        @functools.wraps(create)
        def create_app(connection: Connection = None, *args: P.args, **options: P.kwargs) -> FastAPI:
            return create(connection, kind(*args, **options))

        signature = inspect.signature(create)
        first = signature.parameters["connection"].replace(default=None)
        fields = inspect.signature(kind).parameters.values()
        cast("Any", create_app).__signature__ = signature.replace(parameters=[first, *fields])
        return create_app

    return decorate


@_with_options_of(ProxyOptions)
def create_proxy_app(connection: Connection, options: ProxyOptions) -> FastAPI:
    """Create the ASGI application that serves queues over HTTP.

    Args:
        connection: as for `Queue`; one connection serves all queues.
        options: the fields of `ProxyOptions`, as keyword arguments.

    Returns:
        The application. ``app.state.proxy.begin_closing()`` ends its streams, for servers that wait for open
        responses before they end the lifespan (``python -m glidemq_py.proxy`` calls it).

    Raises:
        GlideMQValidationError: if an option is invalid.
    """
    check_connection(connection)
    state = ProxyState(connection, options)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await state.close()

    from glidemq_py import __version__

    app = FastAPI(
        title="glidemq_py proxy", version=__version__, description="A job queue over HTTP.",
        docs_url=None, redoc_url=None, routes=[route for router in _ROUTERS for route in router.routes],
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


class Health(ResponseModel):
    """The proxy's health; uptime in ms."""

    status: str
    uptime: Count
    queues: Count


@_health_router.get("/health", summary="Return the health of the proxy", response_model=Health)
async def health(request: Request) -> Response:
    state: ProxyState = request.app.state.proxy
    uptime = int((time.monotonic() - state.started) * 1_000)
    return answer({"status": "ok", "uptime": uptime, "queues": state.open_queues})
