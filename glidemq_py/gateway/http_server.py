"""The HTTP server of a gateway: uvicorn on a socket of its own, in the event loop of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator

from glidemq_py._web.clients import LOOPBACK_HOSTS
from glidemq_py._web.serving import HttpServer, accepted_hosts, server_config
from glidemq_py._web.web_socket import WebSocketProtocol
from glidemq_py.gateway.http_api import HttpApi
from glidemq_py.gateway.options import BACKLOG, GatewayOptions
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.web_socket import MAX_MESSAGE, PING_S

__all__ = ["GatewayHttpServer"]


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
        api = self._api = HttpApi(
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
            await self._api.close()
        finally:
            self._socket.close()
