"""A proxy under uvicorn on a free port, in its own thread, and its HTTP client."""

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import httpx

from glidemq_py import Worker
from glidemq_py._web.serving import HttpServer, server_config
from glidemq_py.proxy import create_proxy_app


@cache
def _tls() -> ssl.SSLContext:
    """Return what httpx would load for each client again, although these clients use no TLS."""
    return ssl.create_default_context()


def client_of(base_url: str) -> httpx.Client:
    """Return a client whose paths are relative to `base_url`."""
    return httpx.Client(base_url=base_url, timeout=20, verify=_tls())


@contextlib.contextmanager
def running_proxy(
    connection: Any, *, limits: Mapping[str, Any] = MappingProxyType({}), **options: Any
) -> Iterator[tuple[httpx.Client, HttpServer]]:
    """Yield a client of a running proxy; its paths are relative to the proxy.

    Args:
        connection: that of the proxy.
        limits: options of `server_config`.
        options: options of `create_proxy_app`.
    """
    app = create_proxy_app(connection, **options)
    listener = socket.create_server(("127.0.0.1", 0))
    started = threading.Event()

    class Announced(HttpServer):
        async def startup(self, sockets: Any = None):
            await super().startup(sockets)
            started.set()

    server = Announced(server_config(app, log_level="warning", **limits), app.state.proxy.begin_closing)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    assert started.wait(100)
    try:
        with client_of(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            yield client, server
    finally:
        server.should_exit = True
        thread.join(100)
        assert not thread.is_alive()


class _InThisProcess(httpx.BaseTransport):
    """Calls an application in an event loop of its own, without a socket, which delays each call by 40 ms."""

    def __init__(self, app: Any):
        self._app = httpx.ASGITransport(app)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(100)

    async def _sent(self, request: httpx.Request) -> httpx.Response:
        response = await self._app.handle_async_request(request)
        return httpx.Response(response.status_code, headers=response.headers, content=await response.aread())

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.run(self._sent(request))

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(100)
        self._loop.close()


@contextlib.contextmanager
def proxy_here(connection: Any, **options: Any) -> Iterator[httpx.Client]:
    """Yield a client of a proxy in this process. It returns streams when they have ended."""
    app = create_proxy_app(connection, **options)
    transport = _InThisProcess(app)
    with httpx.Client(transport=transport, base_url="http://localhost", timeout=20) as client:
        yield client
        transport.run(app.state.proxy.close())


def worked_off(url: str, handler: Any, *queues: str, **options: Any):
    """Run workers with these options until the queues are empty."""

    async def work():
        async with contextlib.AsyncExitStack() as stack:
            workers = [await stack.enter_async_context(Worker(name, handler, url, **options)) for name in queues]
            for worker in workers:
                await worker.drain()

    asyncio.run(work())


def frames_of(lines: Iterator[str]) -> Iterator[tuple[str | None, str | None, Any]]:
    """Yield (id, event, data) of each server-sent event; comments are (None, None, text)."""
    entry = event = None
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            entry = value
        elif name == "event":
            event = value
        elif name == "data":
            yield entry, event, json.loads(value)
            entry = event = None
        elif line.startswith(":"):
            yield None, None, line[2:]


__all__ = ["client_of", "frames_of", "proxy_here", "running_proxy", "worked_off"]
