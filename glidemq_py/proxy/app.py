"""`create_proxy_app`: the ASGI application, and its OpenAPI document."""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, ParamSpec, Protocol, TypedDict, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from glidemq_py._client.transport import Connection, check_connection
from glidemq_py._operate.actions import ACTIONS
from glidemq_py.proxy import dead_letters, flows, jobs, queues, streams
from glidemq_py.proxy.models import Count
from glidemq_py.proxy.responses import answer, refusal
from glidemq_py.proxy.routing import HEALTH, Endpoints, Guard, endpoint_of
from glidemq_py.proxy.schemas import SCHEMAS
from glidemq_py.proxy.state import ProxyOptions, ProxyState

_health = Endpoints()

P = ParamSpec("P")


class _CreateApp(Protocol[P]):
    def __call__(self, connection: Connection = None, *args: P.args, **options: P.kwargs) -> Starlette: ...


def _with_options_of(
    kind: Callable[P, ProxyOptions],
) -> Callable[[Callable[[Connection, ProxyOptions], Starlette]], _CreateApp[P]]:
    """Return a decorator: the function takes the fields of ``kind`` as keyword arguments."""

    def decorate(create: Callable[[Connection, ProxyOptions], Starlette]) -> _CreateApp[P]:
        @functools.wraps(create)
        def create_app(connection: Connection = None, *args: P.args, **options: P.kwargs) -> Starlette:
            return create(connection, kind(*args, **options))

        signature = inspect.signature(create)
        first = signature.parameters["connection"].replace(default=None)
        fields = inspect.signature(kind).parameters.values()
        cast("Any", create_app).__signature__ = signature.replace(parameters=[first, *fields])
        return create_app

    return decorate


@_with_options_of(ProxyOptions)
def create_proxy_app(connection: Connection, options: ProxyOptions) -> Starlette:
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
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        await state.close()

    from glidemq_py import __version__

    document = _document(__version__, secured=options.tokens is not None)

    async def openapi(request: Request) -> Response:
        root = request.scope.get("root_path")
        return answer({**document, "servers": [{"url": root}]} if root else document)

    app = Starlette(
        routes=[*(each.route() for each in _ENDPOINTS), Route("/openapi.json", openapi)], lifespan=lifespan,
        middleware=[Middleware(Guard, options=options)], exception_handlers={HTTPException: _refused},
    )  # fmt: skip
    app.state.proxy = state
    return app


def _document(version: str, *, secured: bool) -> dict[str, Any]:
    """Return the OpenAPI document of the endpoints; ``secured``: requests need a token."""
    paths: dict[str, dict[str, Any]] = {}
    for each in _ENDPOINTS:
        paths.setdefault(each.path, {})[each.method.lower()] = each.operation(secured=secured)
    schemes = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if secured else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "glidemq_py proxy", "description": "A job queue over HTTP.", "version": version},
        "paths": paths, "components": {"schemas": SCHEMAS, **schemes},
    }  # fmt: skip


async def _refused(request: Request, error: Exception) -> Response:
    """Return the response to a request without an endpoint; with 405, it lists all methods of the path."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        found = {
            method
            for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE
            for method in route.methods
        }  # fmt: skip
        error.headers = {"Allow": ", ".join(sorted(found))}
    return refusal(error)


class Health(TypedDict):
    """The proxy's health; uptime in ms."""

    status: str
    uptime: Count
    queues: Count


@_health("GET", HEALTH)
async def health(proxy: ProxyState) -> Health:
    """Return the health of the proxy."""
    uptime = int((time.monotonic() - proxy.started) * 1_000)
    return {"status": "ok", "uptime": uptime, "queues": proxy.open_queues}


_derived: Final = [endpoint_of(action) for action in ACTIONS.values() if action.route is not None]
_ENDPOINTS: Final = (
    *_health, *_derived, *jobs.endpoints, *queues.endpoints, *dead_letters.endpoints,
    *queues.usage_endpoints, *flows.endpoints, *streams.endpoints,
)  # fmt: skip
