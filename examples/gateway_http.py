"""The gateway's HTTP API: a program in any language adds jobs and follows events, and a Python worker runs the jobs."""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncGenerator
from typing import Any

import httpx

from glidemq_py import Job, Worker
from glidemq_py.gateway import Gateway

PREFIX = f"http-{secrets.token_hex(4)}"
TOKEN = secrets.token_urlsafe(32)
QUEUE = "/queues/sums"


async def add(job: Job[list[int], int]) -> int:
    return sum(job.data)


def client_of(gateway: Gateway) -> httpx.AsyncClient:
    base = f"http://127.0.0.1:{gateway.http_port}"
    return httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)


async def events(client: httpx.AsyncClient, last_id: str = "") -> AsyncGenerator[tuple[str, str, dict[str, Any]], None]:
    """Yield id, name and data of each event after the one with the last id, as the EventSource of browsers does."""
    event_id = name = ""
    headers = {"Last-Event-ID": last_id} if last_id else {}
    async with client.stream("GET", f"/events{QUEUE}", headers=headers) as response:
        async for line in response.aiter_lines():
            field, _, value = line.partition(": ")
            if field == "id":
                event_id = value
            elif field == "event":
                name = value
            elif field == "data":
                yield event_id, name, json.loads(value)


async def completed(client: httpx.AsyncClient, last_id: str) -> str:
    """Return the id of the next completed job."""
    async for _, name, data in events(client, last_id):
        if name == "job:completed":
            return str(data["jobId"])
    raise RuntimeError("the gateway has closed the stream")


async def main() -> None:
    url = os.environ.get("GLIDEMQ_URL")
    options: dict[str, Any] = {"port": 0, "http_port": 0, "prefix": PREFIX, "tokens": [TOKEN]}
    async with (
        Gateway(url, **options) as one, Gateway(url, **options) as other, client_of(one) as client,
        client_of(other) as second,
    ):  # fmt: skip
        print("ready:", (await client.get("/ready")).json()["ready"])
        stream = events(client)
        await anext(stream)  # the stream is open
        await client.post(f"{QUEUE}/jobs", json={"data": [1, 2, 3]})
        last_id, name, _ = await anext(stream)
        await stream.aclose()
        print("first event:", name)
        async with Worker("sums", add, url, prefix=PREFIX):
            job_id = await completed(second, last_id)  # the other gateway resumes the stream
        result = await second.get(f"/jobs/{job_id}/result")
        print("result:", result.json()["result"])
        stranger = await client.get("/queues", headers={"Authorization": "Bearer wrong"})
        print("without a token:", stranger.status_code)


if __name__ == "__main__":
    asyncio.run(main())
