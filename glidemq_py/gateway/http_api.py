"""The HTTP API of a gateway: an ASGI application for the routes of `http_routes`, health, metrics; and its server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.background import BackgroundTask
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from glidemq_py._client.runtime import stop_task
from glidemq_py._web.clients import (
    LOOPBACK_HOSTS,
    BodyTooLargeError,
    ClientGoneError,
    NotAllowedError,
    check_site,
    is_authorized,
    read_body,
)
from glidemq_py._web.serving import HttpServer, accepted_hosts, server_config
from glidemq_py._web.web_socket import WebSocketProtocol
from glidemq_py.errors import GlideMQError
from glidemq_py.gateway.addresses import Address, AddressLimits, client_address
from glidemq_py.gateway.commands import execute
from glidemq_py.gateway.commands.monitoring import (
    compact,
    dashboard,
    dashboard_queues,
    heap_stats,
    jobs_of,
    stats,
    summed,
)
from glidemq_py.gateway.figures import memory_mb
from glidemq_py.gateway.http_routes import (
    EVENTS,
    SOCKET,
    HttpSession,
    Route,
    fields_of,
    find_route,
    json_text,
    json_value,
    shown,
)
from glidemq_py.gateway.listing import read_counts
from glidemq_py.gateway.names import engine_name
from glidemq_py.gateway.options import BACKLOG, GatewayOptions
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.table import Answer, CommandError, is_map
from glidemq_py.gateway.values import MAX_FRAME, UNDEFINED, Encoded
from glidemq_py.gateway.web_socket import MAX_MESSAGE, PING_S, EventStream, WebSocketSession, sent_events

_BODY_S: Final = 30.0
_READY_S: Final = 5.0
_MOST_QUERY_FIELDS: Final = 100
_METHODS: Final = "GET, POST, PUT, DELETE, OPTIONS"
_TEXT: Final = "text/plain; charset=utf-8"
_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
_STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"),
)  # fmt: skip
_ANY_HOST: Final = "; any is accepted with tokens (AUTH_TOKENS) or --allow-anonymous"
_MOST_STREAMS: Final = 1_000
"""Clients of events per process, and WebSockets."""
_LIVE: Final = ("/healthz", "/live")


class _RefusedError(Exception):
    """A request that is answered with a status and an error, before any command."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


class HttpApi:
    """The ASGI application.

    Args:
        state: The gateway.
        hosts: Accepted names in the header Host if there are no tokens; "*" accepts any.
        cors_origins: Origins of other sites whose pages may use the API; "*" accepts any.
        metrics_auth: Whether `/prometheus` needs a token.
    """

    def __init__(
        self, state: GatewayState, *, hosts: tuple[str, ...] = LOOPBACK_HOSTS, cors_origins: tuple[str, ...] = (),
        metrics_auth: bool = False,
    ) -> None:  # fmt: skip
        self._state = state
        self._hosts = hosts
        self._origins = cors_origins
        self._public = {*_LIVE, "/health", "/ready", *(() if metrics_auth else ("/prometheus",))}
        self._open: set[HttpSession] = set()
        self._clients: set[EventStream | WebSocketSession] = set()
        """Those that get events."""
        options = state.options
        self._limits: AddressLimits | None = None
        if options.rate_limit is not None:
            self._limits = AddressLimits(options.rate_limit, options.rate_limit_window / 1_000)
        self._own: Mapping[str, Callable[[HttpSession], Awaitable[Response]]] = {
            "/health": self._health, "/ready": self._ready, "/prometheus": self._prometheus,
            "/queues/summary": self._summary, **dict.fromkeys(_LIVE, self._alive),
        }  # fmt: skip
        self._figures: Mapping[str, Callable[[HttpSession, Mapping[str, str]], Awaitable[Answer]]] = {
            "GET /stats": stats, "GET /dashboard": dashboard, "GET /dashboard/queues": dashboard_queues,
            "GET /heapstats": heap_stats, "POST /gc": compact,
        }  # fmt: skip

    def begin_closing(self) -> None:
        """Answer the fetches that wait, and end the streams of events and the WebSockets."""
        for request in self._open:
            request.end_polls()
        for client in self._clients:
            client.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or one WebSocket."""
        headers = Headers(scope=scope)
        serve = self._serve_socket if scope["type"] == "websocket" else self._serve
        try:
            response = await serve(scope, headers, receive, send)
        except ClientGoneError:
            return
        except (_RefusedError, CommandError, GlideMQError) as error:
            response = _response(json_text({"ok": False, "error": str(error)}), _status_of_error(error))
        if response is not None:
            response.raw_headers[:0] = self._cors(headers)
            await response(scope, receive, send)

    async def _serve(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> Response | None:
        method, path = scope["method"], _path_of(scope)
        if method == "OPTIONS":
            return _response("", 204, None)
        self._check(path, headers, scope)
        own = self._own.get(path) if method == "GET" else None
        request = HttpSession(self._state)
        if own is not None:
            return await own(request)
        _ = self._state.transport  # raises while the gateway is not started
        figures = self._figures.get(f"{method} {path}")
        if figures is not None:
            work = figures(request, dict(_query_of(scope)))
            return _response(json_text(await self._state.deadlines.bounded(work)))
        found = find_route(method, path)
        if found is None:
            raise _RefusedError(404, "Not found")
        route, in_path = found
        if route.command == EVENTS:
            await self._stream(in_path.get("queue"), headers, receive, send)
            return None
        if route.command == SOCKET:
            raise _RefusedError(426, "WebSocket upgrade failed")
        body = await _body_of(headers, receive)
        fields = fields_of(route, in_path, _query_of(scope), body)
        answer = await self._execute(request, route, fields, receive)
        response = _response(json_text(shown(route, answer)), _status_of(route, answer))
        response.background = BackgroundTask(self._keep_fetched, answer)
        return response

    def _check(self, path: str, headers: Headers, scope: Scope) -> None:
        if path in self._public:
            return
        if self._limits is not None and not self._limits.count(self._address(headers, scope)):
            raise _RefusedError(429, "Rate limit exceeded")
        digests = self._state.digests
        if digests and not is_authorized(headers, digests):
            if "authorization" in headers:
                address = self._address(headers, scope)
                self._state.warnings.warn("token", f"gateway: rejected an invalid token of {address}")
            raise _RefusedError(401, "Unauthorized")
        origin = headers.get("origin")
        if not digests and (origin is None or ("*" not in self._origins and origin not in self._origins)):
            check_site(headers, self._hosts, _ANY_HOST)

    def _address(self, headers: Headers, scope: Scope) -> Address | None:
        """Return the address of the client."""
        peer = scope.get("client")
        forwarded = ",".join(headers.getlist("x-forwarded-for"))
        return client_address(None if peer is None else peer[0], forwarded, self._state.options.trusted_proxies)

    # -- commands --------------------------------------------------------------------------------------------

    async def _execute(self, request: HttpSession, route: Route, fields: Mapping[str, Any], receive: Receive) -> Answer:
        """Execute a command; if the client leaves meanwhile, release the jobs that it has fetched."""
        self._open.add(request)
        running: asyncio.Task[Answer] = asyncio.create_task(execute(request, route.command, fields))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise ClientGoneError  # a job that was fetched for it is released
            return running.result()
        except BaseException:
            await stop_task(running)
            request.release()
            raise
        finally:
            leaving.cancel()
            self._open.discard(request)

    async def _keep_fetched(self, answer: Answer) -> None:
        """Let the jobs of an answer that was sent stay locked: there is no connection whose end would release them."""
        jobs: list[Any] = [answer.get("job"), *(answer.get("jobs") or ())]
        for job in jobs:
            job_id = job.get("id") if is_map(job) else job.job_id if job.__class__ is Encoded else None
            held = None if job_id is None else self._state.held.find(str(job_id))
            if held is not None and isinstance(held.connection, HttpSession):
                held.is_kept = True

    # -- events ----------------------------------------------------------------------------------------------

    async def _stream(self, name: str | None, headers: Headers, receive: Receive, send: Send) -> None:
        """Send the events of a queue, or of all, until the client leaves or the gateway closes."""
        stream = EventStream(self._state, _queue_of(name), headers.get("last-event-id"))
        try:
            with self._open_client("sse", "clients of events", stream):
                await stream.start()
                sending = asyncio.create_task(self._send_events(stream, headers, send))
                leaving = asyncio.create_task(_disconnected(receive))
                try:
                    await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await stop_task(sending, leaving)
        finally:
            stream.close()

    @contextlib.contextmanager
    def _open_client(self, kind: str, shown: str, client: EventStream | WebSocketSession) -> Generator[None]:
        """Count a client that gets events, unless there are too many."""
        counts = self._state.http_clients
        if counts[kind] >= _MOST_STREAMS:
            raise _RefusedError(503, f"Too many {shown}: at most {_MOST_STREAMS}")
        self._clients.add(client)
        counts[kind] += 1
        try:
            yield
        finally:
            self._clients.discard(client)
            counts[kind] -= 1

    async def _send_events(self, stream: EventStream, headers: Headers, send: Send) -> None:
        sent = [*self._cors(headers), *_STREAM_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": sent})
        async for text in sent_events(stream):
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _serve_socket(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Serve a WebSocket until the client leaves or the gateway closes."""
        path = _path_of(scope)
        self._check(path, headers, scope)
        _ = self._state.transport
        found = find_route("GET", path)
        if found is None or found[0].command != SOCKET:
            raise _RefusedError(404, "Not found")
        session = WebSocketSession(self._state, _queue_of(found[1].get("queue")), WebSocket(scope, receive, send))
        with self._open_client("websocket", "WebSockets", session):
            await session.serve(self._cors(headers))

    # -- health and metrics ----------------------------------------------------------------------------------

    async def _alive(self, request: HttpSession) -> Response:
        return _response("OK", media_type=_TEXT)

    async def _ready(self, request: HttpSession) -> Response:
        ready = await self._is_ready()
        return _response(json_text({"ok": ready, "ready": ready}), 200 if ready else 503)

    async def _is_ready(self) -> bool:
        try:
            async with asyncio.timeout(_READY_S):
                await self._state.transport.command("TIME")
        except (GlideMQError, TimeoutError):
            return False
        return True

    async def _health(self, request: HttpSession) -> Response:
        is_healthy, clients = await self._is_ready(), self._state.http_clients
        sums = summed(await self._state.reads(read_counts).latest() or {})
        content: Answer = {
            "ok": is_healthy, "status": "healthy" if is_healthy else "degraded",
            "uptime": self._state.figures.uptime_ms // 1_000, "version": self._state.version,
            "queues": jobs_of(sums),
            "connections": {"tcp": self._state.connections, "ws": clients["websocket"], "sse": clients["sse"]},
            "memory": memory_mb(),
        }  # fmt: skip
        return _response(json_text(content), 200 if is_healthy else 503)

    async def _prometheus(self, request: HttpSession) -> Response:
        answer = await execute(request, "Prometheus", {})
        if not answer["ok"]:
            raise _RefusedError(503, str(answer["error"]))
        return _response(answer["data"]["metrics"], media_type=_PROMETHEUS)

    async def _summary(self, request: HttpSession) -> Response:
        queues = [
            {
                "name": name, "paused": counts["paused"] > 0,
                "counts": {
                    "waiting": counts["waiting"] + counts["paused"],
                    **{state: counts[state] for state in ("prioritized", "active", "completed", "failed", "delayed")},
                },
            }
            for name, counts in (await request.state.deadlines.bounded(request.state.shared(read_counts))).items()
        ]  # fmt: skip
        return _response(json_text(queues))

    def _cors(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        origin = headers.get("origin")
        if origin is None or not self._origins:
            return []
        if "*" in self._origins:
            allowed = "*"
        elif origin in self._origins:
            allowed = origin
        else:
            return [(b"vary", b"Origin")]
        return [
            (b"access-control-allow-origin", allowed.encode("latin-1")), (b"vary", b"Origin"),
            (b"access-control-allow-methods", _METHODS.encode()),
            (b"access-control-allow-headers", b"Content-Type, Authorization, Last-Event-ID"),
            (b"access-control-max-age", b"600"),
        ]  # fmt: skip


def _path_of(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1").partition("?")[0]


def _queue_of(name: str | None) -> str | None:
    """Return the name of a queue in this package."""
    return None if name is None else engine_name(name)


def _response(body: str, status: int = 200, media_type: str | None = "application/json") -> Response:
    headers = {"cache-control": "no-store"} | ({"www-authenticate": "Bearer"} if status == 401 else {})
    return Response(body, status, headers, media_type)


def _status_of_error(error: Exception) -> int:
    if isinstance(error, _RefusedError):
        return error.status
    if isinstance(error, CommandError):
        return 400
    return 403 if isinstance(error, NotAllowedError) else 503  # figures could not be read


def _status_of(route: Route, answer: Answer) -> int:
    if answer["ok"] or route.is_lenient:
        return 200
    error = str(answer["error"])
    is_absent = error.endswith("not found") or error.startswith("Job is not active")
    return 404 if is_absent and route.method in ("GET", "DELETE") else 400


async def _disconnected(receive: Receive) -> None:
    """Return when the client leaves; the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body_of(headers: Headers, receive: Receive) -> Any:
    """Return the decoded body, or `UNDEFINED` if it is empty.

    Raises:
        ClientGoneError: If the client leaves.
        _RefusedError: If the body is too long, too slow or not JSON.
    """
    try:
        content = await read_body(headers, receive, MAX_FRAME, _BODY_S)
        return json_value(content) if content.strip() else UNDEFINED
    except BodyTooLargeError:
        raise _RefusedError(413, f"Request body too large: must be at most {MAX_FRAME} bytes") from None
    except TimeoutError:
        raise _RefusedError(408, f"Request body incomplete after {_BODY_S:g} s") from None
    except ValueError:
        raise _RefusedError(400, "Invalid JSON body") from None


def _query_of(scope: Scope) -> list[tuple[str, str]]:
    text = scope.get("query_string", b"").decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_QUERY_FIELDS)
    except ValueError:
        raise _RefusedError(400, f"Too many query parameters: at most {_MOST_QUERY_FIELDS}") from None


class _Server(HttpServer):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the program: it closes the gateway, which closes this server."""
        yield


class GatewayHttpServer:
    """Serves the HTTP API until it is closed.

    Args:
        state: The gateway.
        options: Its options, with `http_port`.
        context: For TLS, or None.

    Attributes:
        port: The port it listens on.

    Raises:
        OSError: If the address cannot be used.
    """

    def __init__(self, state: GatewayState, options: GatewayOptions, context: ssl.SSLContext | None) -> None:
        assert options.http_port is not None, "opened with a port only"
        hosts = ("*",) if options.allow_anonymous else tuple(accepted_hosts(options.host, None))
        api = HttpApi(
            state, hosts=hosts or LOOPBACK_HOSTS, cors_origins=options.cors_origins, metrics_auth=options.metrics_auth
        )
        config = server_config(
            api, max_connections=options.max_connections, idle_timeout=75_000, log_config=None, access_log=False,
            lifespan="off", server_header=False, proxy_headers=False, ws=WebSocketProtocol, ws_max_size=MAX_MESSAGE,
            ws_ping_interval=PING_S, ws_ping_timeout=PING_S, ws_per_message_deflate=False,
        )  # fmt: skip
        config.load()
        config.ssl = context
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        # Connections that arrive before uvicorn accepts them wait in the backlog.
        self._socket = socket.create_server(
            (options.host, options.http_port), family=family, backlog=BACKLOG, reuse_port=options.share_port
        )
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(config, api.begin_closing)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def close(self, seconds: float) -> None:
        """Answer waiting fetches, close WebSockets, wait for running requests so many seconds, and stop listening."""
        self._server.config.timeout_graceful_shutdown = seconds  # type: ignore[assignment]  # passed to `wait_for`
        self._server.should_exit = True
        try:
            await self._serving
        finally:
            self._socket.close()
