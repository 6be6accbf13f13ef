"""Starlette: queues and a worker that open and close with the application, and routes that add jobs.

In production, `uvicorn with_starlette:app`. Here the requests are sent to the application in this process.
"""

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from glidemq_py import Job, Queue, Worker
from glidemq_py.integrations.fastapi import AppQueues


async def send(job: Job) -> str:
    return f"sent to {job.data['to']}"


queues = AppQueues([Queue("emails")], workers=[Worker("emails", send, concurrency=5)])


async def welcome(request: Request) -> JSONResponse:
    """Add the job and return its id at once."""
    job = await request.state.queues["emails"].add("welcome", {"to": request.path_params["name"]}, attempts=3)
    return JSONResponse({"job": job.id}, 202)


async def get_job(request: Request) -> JSONResponse:
    """Return the state and the result when the job has ended, after at most 30 seconds."""
    job = await request.state.queues["emails"].get_job(request.path_params["id"])
    if job is None:
        return JSONResponse({"error": "no such job"}, 404)
    await job.wait_until_finished(timeout=30_000)
    await job.reload()
    return JSONResponse({"state": job.state, "result": job.returnvalue})


app = Starlette(
    routes=[Route("/welcome/{name}", welcome, methods=["POST"]), Route("/jobs/{id}", get_job)],
    lifespan=queues.lifespan,
)


async def main() -> None:
    async with queues.lifespan(app) as state:
        # A server gives the state of the lifespan to each request.
        async def served(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "state": dict(state)}, receive, send)

        transport = httpx.ASGITransport(served)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as web:
            for method, path in (("POST", "/welcome/ada"), ("GET", "/jobs/1"), ("GET", "/jobs/999")):
                answer = await web.request(method, path)
                print(method, path, "->", answer.status_code, answer.json())


if __name__ == "__main__":
    asyncio.run(main())
