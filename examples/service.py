"""Web service with background jobs: queue and worker in one process.

A few lines of asyncio stand in for the web framework: open the queue and the worker where your framework opens
its resources (FastAPI's and Starlette's `lifespan`, aiohttp's `cleanup_ctx`), and add jobs in the handlers.

    POST /reports  {"year": 2025}   -> 202 {"job": "1"}
    GET  /reports/1                 -> 200 {"state": "completed", "result": ..., "progress": ...}
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from glidemq_py import GlideMQValidationError, Job, Queue, Worker
from glidemq_py.errors import ServerOutOfMemoryError


async def make_report(job: Job) -> str:
    await job.update_progress(50)
    return f"report of {job.data['year']}"


@contextlib.asynccontextmanager
async def lifespan() -> AsyncIterator[Queue]:
    """Open queue and worker while the service runs; larger services run workers in separate processes."""
    async with Queue("reports") as queue, Worker("reports", make_report, concurrency=5):
        yield queue


async def post_report(queue: Queue, body: bytes) -> tuple[int, Any]:
    try:
        job = await queue.add("report", json.loads(body), attempts=3, backoff=1_000)
    except GlideMQValidationError as error:
        return 422, {"error": str(error)}
    except ServerOutOfMemoryError:
        return 503, {"error": "too much to do; try again later"}
    return 202, {"job": job.id}


async def get_report(queue: Queue, job_id: str) -> tuple[int, Any]:
    job = await queue.get_job(job_id)
    if job is None:
        return 404, {"error": f"there is no report {job_id}"}
    return 200, {"state": job.state, "progress": job.progress, "result": job.returnvalue, "error": job.failed_reason}


# -- in place of a web framework ----------------------------------------------------------------------------


async def answer(queue: Queue, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, path, *_ = head.split()
    length = next((int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:")), 0)
    body = await reader.readexactly(length)
    if method == "POST":
        status, content = await post_report(queue, body)
    else:
        status, content = await get_report(queue, path.rpartition("/")[2])
    text = json.dumps(content).encode()
    writer.write(b"HTTP/1.1 %d -\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(text), text))
    await writer.drain()
    writer.close()


async def request(port: int, method: str, path: str, content: Any = None) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(content).encode()
    writer.write(f"{method} {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    head, _, text = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(text)


async def main() -> None:
    async with lifespan() as queue:
        server = await asyncio.start_server(lambda r, w: answer(queue, r, w), "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        status, created = await request(port, "POST", "/reports", {"year": 2025})
        print("POST /reports ->", status, created)
        job = await queue.get_job(created["job"])
        assert job is not None
        await job.wait_until_finished()
        print(f"GET /reports/{job.id} ->", *await request(port, "GET", f"/reports/{job.id}"))
        print("GET /reports/999 ->", *await request(port, "GET", "/reports/999"))
        server.close()
        await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
