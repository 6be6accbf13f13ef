"""FastAPI and Starlette: queues of an application, from its start to its end."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from glidemq_py import ClosedError, GlideMQConnectionError, GlideMQValidationError, Job, Queue, Worker
from glidemq_py.integrations.fastapi import AppQueues


@contextlib.asynccontextmanager
async def running(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """Run the lifespan of an application as a server does; yield a client of it."""
    async with app.router.lifespan_context(app) as state:

        async def served(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(served)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            yield client


async def double(job: Job[int, int]) -> int:
    return job.data * 2


async def test_endpoints_get_the_queues_of_the_application(url: str, queue_name: str) -> None:
    queues = AppQueues([Queue(queue_name, url)], workers=[Worker(queue_name, double, url)])
    app = FastAPI(lifespan=queues.lifespan)
    get = queues.get(queue_name)

    @app.post("/double/{number}")
    async def endpoint(number: int, queue: Any = Depends(get)) -> int:  # noqa: B008
        return await queue.add_and_wait("double", number)

    async with running(app) as client:
        assert (await client.post("/double/21")).json() == 42
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        with pytest.raises(ClosedError, match=r"FastAPI\(lifespan="):
            await client.post("/double/21")


async def test_partitioned_queues(url: str, queue_name: str) -> None:
    queues = AppQueues([Queue(queue_name, url, partitions=3)], workers=[Worker(queue_name, double, url)])
    app = FastAPI(lifespan=queues.lifespan)

    @app.post("/double/{number}")
    async def endpoint(number: int, queue: Any = Depends(queues.get(queue_name))) -> int:  # noqa: B008
        return await queue.add_and_wait("double", number)

    async with running(app) as client:
        assert [(await client.post(f"/double/{n}")).json() for n in range(4)] == [0, 2, 4, 6]


async def test_a_test_replaces_a_queue(url: str, queue_name: str) -> None:
    queues = AppQueues([Queue(queue_name, url)])
    app = FastAPI(lifespan=queues.lifespan)
    get = queues.get(queue_name)

    @app.get("/name")
    async def endpoint(queue: Any = Depends(get)) -> str:  # noqa: B008
        return str(queue)

    app.dependency_overrides[queues.get(queue_name)] = lambda: "another"
    async with running(app) as client:
        assert (await client.get("/name")).json() == "another"


async def test_starlette_has_them_in_its_state(url: str, queue_name: str) -> None:
    async def endpoint(request: Request) -> JSONResponse:
        job = await request.state.queues[queue_name].add("a", 1)
        return JSONResponse({"job": job.id})

    queues = AppQueues([Queue(queue_name, url)])
    async with running(Starlette(routes=[Route("/", endpoint)], lifespan=queues.lifespan)) as client:
        assert (await client.get("/")).json() == {"job": "1"}


async def test_unreachable_server_ends_the_start(queue_name: str) -> None:
    queues = AppQueues([Queue(queue_name, "valkey://127.0.0.1:1")])
    with pytest.raises(GlideMQConnectionError):
        await contextlib.AsyncExitStack().enter_async_context(queues.lifespan(None))


def test_wrong_names(url: str) -> None:
    with pytest.raises(GlideMQValidationError, match="different names"):
        AppQueues([Queue("a", url), Queue("a", url)])
    with pytest.raises(GlideMQValidationError, match="must be one of a"):
        AppQueues([Queue("a", url)]).get("b")
