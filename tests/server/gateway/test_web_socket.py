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
from glidemq_py._web.serving import server_config
from glidemq_py._web.web_socket import WebSocketProtocol
from glidemq_py.gateway import Gateway, http_server
from glidemq_py.gateway.session import MAX_RUNNING
from glidemq_py.gateway.web_socket import MAX_MESSAGE

TOKEN = "a-long-token"
MINUTE = 60.0


class Socket:
    """Sends commands; events that arrive before an answer are kept."""

    def __init__(self, session: httpx_ws.AsyncWebSocketSession) -> None:
        self.session = session
        self.events: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any]:
        received: dict[str, Any] = json.loads(await self.session.receive_text(MINUTE))
        return received

    async def send(self, cmd: str, **fields: Any) -> None:
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


async def test_commands(gateway: Gateway, queue_name: str) -> None:
    async with connected(gateway, f"/ws/queues/{queue_name}") as one:
        assert (await one.call("Unsubscribe"))["subscribed"] == []  # commands only
        added = await one.call("PUSH", queue=queue_name, data={"n": 1}, reqId="a")
        assert (added["ok"], added["reqId"]) == (True, "a")
        pulled = await one.call("PULL", queue=queue_name, owner="me", reqId=7)
        assert (pulled["job"]["id"], pulled["job"]["data"], pulled["reqId"]) == (added["id"], {"n": 1}, 7)
        assert await one.call("ACK", id=added["id"], token=pulled["token"], result=[1]) == {"ok": True}
        assert (await one.call("GetResult", id=added["id"]))["result"] == [1]
        assert await open_sockets(gateway) == 1


@pytest.mark.parametrize(
    ("text", "error", "has_id"),
    [
        ("{", "Invalid JSON", False),
        ("null", "Invalid JSON", False),
        ("NaN", "Invalid JSON", False),
        ("[" * 1_000 + "]" * 1_000, "Invalid JSON", False),
        ("[1]", "Invalid command", False),
        ("{}", "Invalid command", False),
        ('{"reqId": "x"}', "Invalid command", True),
        ('{"cmd": 5, "reqId": "x"}', "Invalid command", True),
        ('{"cmd": "Nothing", "reqId": "x"}', "Unknown command: Nothing", True),
        ('{"cmd": "SubscribeEvents", "queue": "q", "reqId": "x"}', "Unknown command: SubscribeEvents", True),
        ('{"cmd": "PULL", "queue": "q", "timeout": "x", "reqId": "x"}', "timeout must be a number", True),
        ('{"cmd": "Subscribe", "reqId": "x"}', "events must be a non-empty array", True),
        ('{"cmd": "Subscribe", "events": [], "reqId": "x"}', "events must be a non-empty array", True),
        ('{"cmd": "Subscribe", "events": ["job:*", "bad", "*:*", 5], "reqId": "x"}', "Invalid: bad, *:*, 5", True),
    ],
)
async def test_bad_messages(gateway: Gateway, text: str, error: str, has_id: bool) -> None:
    async with connected(gateway, "/ws/queues/q") as one:
        for send in (one.session.send_text, lambda text: one.session.send_bytes(text.encode())):
            await send(text)
            expected = {"ok": False, "error": error} | ({"reqId": "x"} if has_id else {})
            assert await one.answer() == expected
        assert (await one.call("Ping"))["ok"]


@pytest.mark.slow
async def test_first_form_of_events(gateway: Gateway, queue: Queue) -> None:
    async with connected(gateway, f"/ws/queues/{queue.name}") as one, connected(gateway) as other:
        await one.call("PUSH", queue=f"{queue.name}-2", data=1)
        job = await queue.add("n", 1)
        event = await one.event()
        assert (event["eventType"], event["queue"]) == ("pushed", queue.name)
        assert event["jobId"].endswith(job.id)
        assert set(event) == {"eventType", "queue", "jobId", "timestamp"}
        pulled = await one.call("PULL", queue=queue.name)
        await one.call("ACK", id=pulled["job"]["id"], result={"r": 1})
        while (event := await one.event())["eventType"] != "completed":
            pass
        assert event["data"] == {"r": 1}
        while (event := await other.event())["queue"] != queue.name:
            pass
        assert event["eventType"] == "pushed"


async def test_named_events(gateway: Gateway, queue: Queue) -> None:
    async with connected(gateway, f"/ws/queues/{queue.name}") as one:
        names = ["job:completed", "queue:*", "job:completed"]
        assert await one.call("Subscribe", events=names, reqId="s") == {
            "ok": True, "subscribed": ["job:completed", "queue:*"], "reqId": "s"
        }  # fmt: skip
        await queue.add("n", 1)
        pulled = await one.call("PULL", queue=queue.name)
        await one.call("ACK", id=pulled["job"]["id"])
        completed = await one.event()
        assert (completed["event"], set(completed)) == ("job:completed", {"event", "ts", "data"})
        assert completed["data"] == {"queue": queue.name, "jobId": pulled["job"]["id"]}
        await queue.pause()
        paused = await one.event()
        assert (paused["event"], paused["data"]) == ("queue:paused", {"queue": queue.name})
        assert (await one.call("Subscribe", events=["*"]))["subscribed"] == ["job:completed", "queue:*", "*"]
        assert (await one.call("Unsubscribe", events=["queue:*", "job:none"]))["subscribed"] == ["job:completed", "*"]
        await queue.resume()
        assert [(await one.event())["event"] for _ in range(2)] == ["queue:resumed", "job:resumed"]


async def test_no_events_without_names(gateway: Gateway, queue: Queue) -> None:
    async with connected(gateway, f"/ws/queues/{queue.name}") as one:
        assert await one.call("Unsubscribe") == {"ok": True, "subscribed": []}
        await queue.add("n", 1)
        assert (await one.call("Subscribe", events=["job:pushed"]))["ok"]
        second = await queue.add("n", 2)
        assert (await one.event())["data"]["jobId"].endswith(second.id)


async def test_refused_connections(url: str) -> None:
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


async def test_too_many_connections(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glidemq_py.gateway.http_api._MOST_STREAMS", 1)
    async with connected(gateway, "/ws/queues/q"):
        assert await refused(gateway, "/ws/queues/q") == (503, "Too many WebSockets: at most 1")


async def test_rate_limit(url: str, queue_name: str) -> None:
    options: dict[str, Any] = {"rate_limit": 2, "rate_limit_window": 3_600_000}
    async with (
        Gateway(url, port=0, http_port=0, **options) as gateway,
        connected(gateway, f"/ws/queues/{queue_name}") as one,
    ):
        assert [(await one.call("Ping", reqId=number))["ok"] for number in range(3)] == [True, True, False]
        assert await one.call("Ping", reqId="x") == {"ok": False, "error": "Rate limit exceeded", "reqId": "x"}


async def test_jobs_of_a_closed_connection_are_released(gateway: Gateway, queue: Queue) -> None:
    await queue.add("n", 1)
    async with connected(gateway, f"/ws/queues/{queue.name}") as one:
        pulled = await one.call("PULL", queue=queue.name, owner="me")
        assert pulled["job"]
    async with connected(gateway, f"/ws/queues/{queue.name}") as other:
        again = await other.call("PULL", queue=queue.name, timeout=60_000)
    assert (again["job"]["id"], again["job"]["attempts"]) == (pulled["job"]["id"], 0)


async def test_commands_of_a_connection_that_run_at_a_time(gateway: Gateway, queue: Queue) -> None:
    async with connected(gateway, f"/ws/queues/{queue.name}") as one:
        await one.call("Unsubscribe")
        for number in range(MAX_RUNNING):
            await one.send("PULL", queue=queue.name, timeout=60_000, reqId=number)
        await one.send("Ping", reqId="ping")
        await queue.add("n", 1)
        first = await one.answer()  # a place is free
        assert first["job"]["data"] == 1
        assert (await one.answer())["reqId"] == "ping"


async def test_connection_is_closed_after_its_commands_when_the_gateway_closes(url: str, queue_name: str) -> None:
    gateway = Gateway(url, port=0, http_port=0)
    await gateway.start()
    async with connected(gateway, f"/ws/queues/{queue_name}") as one:
        await one.send("PULL", queue=queue_name, timeout=60_000, reqId="pull")
        assert (await one.call("Ping"))["ok"]
        closing = asyncio.create_task(gateway.close())
        assert await one.answer() == {"ok": True, "job": None, "reqId": "pull"}
        assert await closed(one) == 1001
    await closing


async def test_long_messages(gateway: Gateway, queue_name: str) -> None:
    async with connected(gateway, f"/ws/queues/{queue_name}") as one:
        await one.call("Unsubscribe")
        data = "x" * (MAX_MESSAGE - 1_000)
        added = await one.call("PUSH", queue=queue_name, data=data)
        job = await one.call("GetJob", id=added["id"])
        assert job["job"]["data"] == data
        await one.session.send_text("x" * (MAX_MESSAGE + 1))
        assert await closed(one) == 1009


async def test_text_that_is_not_utf_8(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(gateway, "/ws/queues/q") as one:
        stream = cast(Any, one.session).stream
        await stream.write(b"\x81\x82\0\0\0\0\xff\xff")  # a masked text of two bytes
        with pytest.raises(httpx_ws.WebSocketNetworkError):
            await one.next()  # the connection was closed
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_connection_outlives_the_time_for_headers(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "server_config", partial(server_config, header_timeout=300))
    async with (
        Gateway(url, port=0, http_port=0) as gateway,
        connected(gateway, f"/ws/queues/{queue_name}") as one,
    ):
        assert (await one.call("PULL", queue=queue_name, timeout=900))["job"] is None
        assert (await one.call("Ping"))["ok"]


async def test_client_that_does_not_read(
    gateway: Gateway, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Its events are not collected in memory, other clients get theirs, and its connection is closed."""
    monkeypatch.setattr(WebSocketProtocol, "write_timeout_s", 0.5)
    told: list[int] = []
    pause = WebSocketProtocol.pause_writing

    def paused(self: WebSocketProtocol) -> None:
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


async def test_lost_connection(gateway: Gateway, queue: Queue) -> None:
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
