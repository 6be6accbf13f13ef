"""WebSockets of the HTTP API, with a client of httpx-ws."""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, cast

import httpx
import httpx_ws
import pytest

from glidemq_py import Queue
from glidemq_py._web.web_socket import WebSocketProtocol
from glidemq_py.gateway import Gateway, http_api
from glidemq_py.gateway.connection import MAX_RUNNING
from glidemq_py.gateway.web_socket import MAX_MESSAGE
from tests.inside import server_config

TOKEN = "a-long-token"
MINUTE = 60.0


class Socket:
    """Sends commands; events that arrive before an answer are kept."""

    def __init__(self, session: httpx_ws.AsyncWebSocketSession):
        self.session = session
        self.events: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any]:
        received: dict[str, Any] = json.loads(await self.session.receive_text(MINUTE))
        return received

    async def send(self, cmd: str, **fields: Any):
        await self.session.send_text(json.dumps({"cmd": cmd, **fields}))

    async def answer(self) -> dict[str, Any]:
        while "ok" not in (received := await self.next()):
            self.events.append(received)
        return received

    async def call(self, cmd: str, **fields: Any) -> dict[str, Any]:
        await self.send(cmd, **fields)
        return await self.answer()

    async def event(self) -> dict[str, Any]:
        return self.events.pop(0) if self.events else await self.next()


@contextlib.asynccontextmanager
async def connected(gateway: Gateway, path: str = "/ws", **headers: str) -> AsyncIterator[Socket]:
    url = f"http://127.0.0.1:{gateway.http_port}"
    async with (
        httpx.AsyncClient(base_url=url, headers=headers, timeout=MINUTE) as client,
        httpx_ws.aconnect_ws(
            path, client, keepalive_ping_interval_seconds=None, session_class=httpx_ws.AsyncWebSocketSession
        ) as session,
    ):
        yield Socket(session)


async def refused(gateway: Gateway, path: str, **headers: str) -> tuple[int, str]:
    """Return status and error of a request that is refused."""
    upgrade = {
        "connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
        "sec-websocket-key": "MDAwMDAwMDAwMDAwMDAwMA==",
    }  # fmt: skip
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}", timeout=MINUTE) as client:
        response = await client.get(path, headers={**upgrade, **headers})
    return response.status_code, response.json()["error"]


async def closed(socket: Socket) -> int:
    """Return the code with which the gateway closes the connection; what it sends before is skipped."""
    try:
        while True:
            await socket.next()
    except httpx_ws.WebSocketDisconnect as disconnect:
        return disconnect.code


async def open_sockets(gateway: Gateway) -> int:
    async with httpx.AsyncClient(timeout=MINUTE) as client:
        health = await client.get(f"http://127.0.0.1:{gateway.http_port}/health")
    number: int = health.json()["connections"]["ws"]
    return number


@pytest.fixture
async def gateway(url: str) -> AsyncIterator[Gateway]:
    async with Gateway(url, port=0, http_port=0) as gateway:
        yield gateway


async def test_refused_connections(url: str):
    origin = "https://pages.example"
    async with Gateway(url, port=0, http_port=0, tokens=[TOKEN], rate_limit=100) as guarded:
        assert await refused(guarded, "/ws") == (401, "Unauthorized")
        assert await refused(guarded, f"/ws?token={TOKEN}") == (401, "Unauthorized")
        authorization = f"Bearer {TOKEN}"
        assert await refused(guarded, "/ws/none", authorization=authorization) == (404, "Not found")
        assert (await refused(guarded, "/ws/queues/%00", authorization=authorization))[0] == 400
        async with connected(guarded, "/ws", authorization=authorization) as one:
            assert (await one.call("Ping"))["ok"]
    async with Gateway(url, port=0, http_port=0) as gateway:
        assert (await refused(gateway, "/ws", origin=origin))[0] == 403
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}") as client:
            assert (await client.get("/ws")).status_code == 426
    async with (
        Gateway(url, port=0, http_port=0, cors_origins=[origin]) as gateway,
        connected(gateway, "/ws", origin=origin) as one,
    ):
        assert (await one.call("Ping"))["ok"]


async def test_too_many_connections(gateway: Gateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("glidemq_py.gateway.http_api._MOST_STREAMS", 1)
    async with connected(gateway, "/ws/queues/q"):
        assert await refused(gateway, "/ws/queues/q") == (503, "Too many WebSockets: at most 1")


async def test_commands_of_a_connection_that_run_at_a_time(gateway: Gateway, queue: Queue):
    async with connected(gateway, f"/ws/queues/{queue.name}") as one:
        await one.call("Unsubscribe")
        for number in range(MAX_RUNNING):
            await one.send("PULL", queue=queue.name, timeout=60_000, reqId=number)
        await one.send("Ping", reqId="ping")
        await queue.add("n", 1)
        first = await one.answer()  # a place is free
        assert first["job"]["data"] == 1
        assert (await one.answer())["reqId"] == "ping"


async def test_connection_is_closed_after_its_commands_when_the_gateway_closes(url: str, queue_name: str):
    gateway = Gateway(url, port=0, http_port=0)
    await gateway.start()
    async with connected(gateway, f"/ws/queues/{queue_name}") as one:
        await one.send("PULL", queue=queue_name, timeout=60_000, reqId="pull")
        assert (await one.call("Ping"))["ok"]
        closing = asyncio.create_task(gateway.close())
        assert await one.answer() == {"ok": True, "job": None, "reqId": "pull"}
        assert await closed(one) == 1001
    await closing


async def test_long_messages(gateway: Gateway, queue_name: str):
    async with connected(gateway, f"/ws/queues/{queue_name}") as one:
        await one.call("Unsubscribe")
        data = "x" * (MAX_MESSAGE - 1_000)
        added = await one.call("PUSH", queue=queue_name, data=data)
        job = await one.call("GetJob", id=added["id"])
        assert job["job"]["data"] == data
        await one.session.send_text("x" * (MAX_MESSAGE + 1))
        assert await closed(one) == 1009


async def test_text_that_is_not_utf_8(gateway: Gateway, caplog: pytest.LogCaptureFixture):
    async with connected(gateway, "/ws/queues/q") as one:
        await one.session.send_bytes(b'{"cmd": "Ping"}')
        assert (await one.answer())["ok"]
        stream = cast(Any, one.session).stream
        await stream.write(b"\x81\x82\0\0\0\0\xff\xff")  # a masked text of two bytes
        with pytest.raises(httpx_ws.WebSocketNetworkError):
            await one.next()  # the connection was closed
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_connection_outlives_the_time_for_headers(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_api, "server_config", partial(server_config, header_timeout=300))
    async with (
        Gateway(url, port=0, http_port=0) as gateway,
        connected(gateway, f"/ws/queues/{queue_name}") as one,
    ):
        assert (await one.call("PULL", queue=queue_name, timeout=900))["job"] is None
        assert (await one.call("Ping"))["ok"]


async def test_client_that_does_not_read(
    gateway: Gateway, queue: Queue, monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    """Its events are not collected in memory, other clients get theirs, and its connection is closed."""
    monkeypatch.setattr(WebSocketProtocol, "write_timeout_s", 0.5)
    told: list[int] = []
    pause = WebSocketProtocol.pause_writing

    def paused(self: WebSocketProtocol):
        pause(self)
        told.append(self.transport.get_write_buffer_size())

    monkeypatch.setattr(WebSocketProtocol, "pause_writing", paused)
    listener = socket.create_connection(("127.0.0.1", cast(int, gateway.http_port)))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    listener.setblocking(False)
    request = (
        f"GET /ws/queues/{queue.name} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        f"sec-websocket-version: 13\r\nsec-websocket-key: MDAwMDAwMDAwMDAwMDAwMA==\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(listener, request.encode())
    assert (await loop.sock_recv(listener, 12)).endswith(b"101")
    large = "x" * 100_000
    async with connected(gateway, f"/ws/queues/{queue.name}") as reading:
        count = 0
        while not told or await open_sockets(gateway) == 2:
            job = await queue.add("n", 1)
            await job.update_progress({"large": large})
            count += 1
            while (await reading.event())["eventType"] != "progress":
                pass
            assert count < 1_000, "the connection stays open"
        assert max(told) < 10 * len(large)
        assert await open_sockets(gateway) == 1
    listener.close()


async def test_lost_connection(gateway: Gateway, queue: Queue):
    async with connected(gateway, f"/ws/queues/{queue.name}") as one:
        await one.send("PULL", queue=queue.name, timeout=60_000)
        assert (await one.call("Ping"))["ok"]
        await cast(Any, one.session).stream.aclose()
        async with asyncio.timeout(MINUTE):
            while await open_sockets(gateway):
                pass
    await queue.add("n", 1)
    async with connected(gateway, f"/ws/queues/{queue.name}") as other:
        assert (await other.call("PULL", queue=queue.name, timeout=60_000))["job"]
