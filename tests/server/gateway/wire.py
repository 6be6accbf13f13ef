"""A client of the gateway that sends frames as they are given."""

import asyncio
import json
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import httpx
import httpx_ws
import msgpack

from glidemq_py.gateway import Gateway


def packed(value: Any) -> bytes:
    payload: bytes = msgpack.packb(value)
    return framed(payload)


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


class Wire:
    """One connection: ``async with Wire(gateway) as wire``; also with the port of a gateway in another process."""

    def __init__(self, gateway: Gateway | int):
        self._port = gateway if isinstance(gateway, int) else gateway.port

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ):
        self.writer.close()

    def send(self, data: bytes):
        self.writer.write(data)

    async def put(self, frame: Any):
        """Send a command."""
        self.send(packed(frame))

    async def put_raw(self, content: bytes):
        """Send a frame with any content."""
        self.send(framed(content))

    async def close(self):
        """Close the connection."""
        self.writer.close()
        await self.writer.wait_closed()

    async def receive(self) -> dict[str, Any]:
        """Return the next answer, within a minute."""
        async with asyncio.timeout(60):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            answer: dict[str, Any] = msgpack.unpackb(await self.reader.readexactly(size), strict_map_key=False)
            return answer

    async def is_closed(self) -> bool:
        """Wait until the gateway closes the connection; return True if nothing else was received."""
        async with asyncio.timeout(60):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def call(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        await self.put({"cmd": cmd, "reqId": "1", **fields})
        return await self.receive()


class SocketWire(Wire):
    """The same by a WebSocket for a queue, or for all queues."""

    def __init__(self, gateway: Gateway, queue: str | None):
        super().__init__(gateway)
        self._path = "/ws" if queue is None else f"/ws/queues/{queue}"
        self._client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}", timeout=60)

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        session = httpx_ws.aconnect_ws(
            self._path, await self._stack.enter_async_context(self._client), keepalive_ping_interval_seconds=None,
            session_class=httpx_ws.AsyncWebSocketSession,
        )  # fmt: skip
        self.session = await self._stack.enter_async_context(session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ):
        await self.close()

    async def put(self, frame: Any):
        await self.session.send_text(json.dumps(frame))

    async def put_raw(self, content: Any):
        await self.session.send_text(content)

    async def receive(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await self.session.receive_text(60))
        return answer

    async def close(self):
        await self._stack.aclose()


async def good(wire: Wire, cmd: str, **fields: Any) -> dict[str, Any]:
    answer = await wire.call(cmd, **fields)
    assert answer["ok"] is True, answer
    return answer


async def failure(wire: Wire, cmd: str, **fields: Any) -> str:
    answer = await wire.call(cmd, **fields)
    assert answer["ok"] is False, answer
    error: str = answer["error"]
    return error


async def state_of(wire: Wire, job_id: str) -> str:
    found: str = (await good(wire, "GetState", id=job_id))["state"]
    return found
