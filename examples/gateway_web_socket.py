"""A worker over one WebSocket of a gateway: it hears of new jobs, fetches and completes them."""

import asyncio
import itertools
import json
import os
import secrets
from typing import Any

import httpx
import httpx_ws

from glidemq_py import Queue
from glidemq_py.gateway import Gateway

PREFIX = f"socket-{secrets.token_hex(4)}"
TOKEN = secrets.token_urlsafe(32)
JOBS = 3


class Client:
    """Sends commands and collects the events that arrive before their answers."""

    def __init__(self, socket: httpx_ws.AsyncWebSocketSession) -> None:
        self.socket = socket
        self.numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    async def call(self, cmd: str, **fields: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        number = next(self.numbers)
        await self.socket.send_json({"cmd": cmd, "reqId": number, **fields})
        while (received := await self._received()).get("reqId") != number:
            self.events.append(received)
        if not received["ok"]:
            raise RuntimeError(f"{cmd}: {received['error']}")
        return received

    async def event(self, name: str) -> dict[str, Any]:
        """Return the next event of this name."""
        while True:
            event = self.events.pop(0) if self.events else await self._received()
            if event["event"] == name:
                return event

    async def _received(self) -> dict[str, Any]:
        received: dict[str, Any] = json.loads(await self.socket.receive_text())
        return received


async def work(client: Client) -> None:
    for _ in range(JOBS):
        pulled = await client.call("PULL", queue="sums", owner="socket", timeout=60_000)
        job = pulled["job"]
        await client.call("ACK", id=job["id"], token=pulled["token"], result=sum(job["data"]))
        event = await client.event("job:completed")
        print("completed:", event["data"]["jobId"] == job["id"])


async def main() -> None:
    url = os.environ.get("GLIDEMQ_URL")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        Gateway(url, port=0, http_port=0, prefix=PREFIX, tokens=[TOKEN]) as gateway,
        Queue[list[int], int]("sums", url, prefix=PREFIX) as queue,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}", headers=headers, timeout=60) as http,
        httpx_ws.aconnect_ws("/ws/queues/sums", http, session_class=httpx_ws.AsyncWebSocketSession) as socket,
    ):
        client = Client(socket)
        print("subscribed:", (await client.call("Subscribe", events=["job:completed"]))["subscribed"])
        jobs = [await queue.add("sum", list(range(number))) for number in (3, 4, 5)]
        await work(client)
        print("results:", [await job.wait_until_finished(60_000) for job in jobs])


if __name__ == "__main__":
    asyncio.run(main())
