"""Webhooks of the gateway: a receiver that verifies signatures and recognizes repeated messages."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import secrets
import time

import msgpack

from glidemq_py import Job, Worker
from glidemq_py.gateway import Gateway

KEY = secrets.token_bytes(32)
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
PREFIX = f"hooks-{secrets.token_hex(4)}"
MAX_AGE_S = 300


def is_authentic(headers: dict[str, str], body: bytes) -> bool:
    """Check the signature of Standard Webhooks, and that the message is not an old one sent again."""
    message, sent = headers["webhook-id"], headers["webhook-timestamp"]
    if abs(time.time() - int(sent)) > MAX_AGE_S:
        return False
    signed = f"{message}.{sent}.".encode() + body
    expected = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
    return any(hmac.compare_digest(f"v1,{expected}", each) for each in headers["webhook-signature"].split())


class Receiver:
    """A minimal HTTP server. A real one is a route of your web framework."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.done = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
        status = "204 No Content" if self.accept(headers, body) else "401 Unauthorized"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    def accept(self, headers: dict[str, str], body: bytes) -> bool:
        """Process a message; return False if it is forged."""
        if not is_authentic(headers, body):
            return False
        if headers["webhook-id"] not in self.seen:  # a message may come twice
            self.seen.add(headers["webhook-id"])
            event = json.loads(body)
            print(event["event"], event["queue"], event.get("data"))
            if event["event"] == "job.completed":
                self.done.set()
        return True


async def command(port: int, **fields: object) -> dict[str, object]:
    """Send a command of bunqueue's protocol; its clients do that for you."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = msgpack.packb(fields)
    writer.write(len(payload).to_bytes(4, "big") + payload)
    answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    writer.close()
    found: dict[str, object] = msgpack.unpackb(answer)
    return found


async def add(job: Job[list[int], int]) -> int:
    return sum(job.data)


async def main() -> None:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = os.environ.get("GLIDEMQ_URL")
    # Webhooks to addresses of the own network need a permission.
    async with server, Gateway(url, port=0, prefix=PREFIX, webhook_networks=["127.0.0.0/8"]) as gateway:
        answer = await command(
            gateway.port, cmd="AddWebhook", url=f"http://127.0.0.1:{port}/jobs", queue="sums", secret=SECRET,
            events=["job.pushed", "job.completed"],
        )  # fmt: skip
        print("registered:", answer["ok"])
        async with Worker("sums", add, url, prefix=PREFIX):
            await command(gateway.port, cmd="PUSH", queue="sums", data=[1, 2, 3])
            await receiver.done.wait()
    print("forged:", is_authentic({"webhook-id": "x", "webhook-timestamp": "0", "webhook-signature": "v1,"}, b"{}"))


if __name__ == "__main__":
    asyncio.run(main())
