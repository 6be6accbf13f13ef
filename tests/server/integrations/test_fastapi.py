"""FastAPI and Starlette: queues of an application, from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from glidemq_py import ClosedError, GlideMQConnectionError, GlideMQValidationError, Job, Queue, Worker
from glidemq_py.integrations.fastapi import AppQueues
from glidemq_py.testing import TestQueue


@contextlib.asynccontextmanager
async def running(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """Run the lifespan of an application as a server does; yield a client of it."""
    async with app.router.lifespan_context(app) as state:

        async def served(scope: Any, receive: Any, send: Any):
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(served)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            yield client


async def double(job: Job[int, int]) -> int:
    return job.data * 2


async def test_endpoints_get_the_queues_of_the_application(url: str, queue_name: str):
    queues = AppQueues([Queue(queue_name, url)], workers=[Worker(queue_name, double, url)])
    app = FastAPI(lifespan=queues.lifespan)
    get = queues.get(queue_name)

    @app.post("/double/{number}")
    async def endpoint(number: int, queue: Any = Depends(get)) -> int:  # noqa: B008
        return await queue.add_and_wait("double", number)

    async with running(app) as client:
        assert (await client.post("/double/21")).json() == 42
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        with pytest.raises(ClosedError, match=r"FastAPI\(lifespan=.*with TestClient\(app\)"):
            await client.post("/double/21")


async def test_partitioned_queues(url: str, queue_name: str):
    queues = AppQueues([Queue(queue_name, url, partitions=3)], workers=[Worker(queue_name, double, url)])
    app = FastAPI(lifespan=queues.lifespan)

    @app.post("/double/{number}")
    async def endpoint(number: int, queue: Any = Depends(queues.get(queue_name))) -> int:  # noqa: B008
        return await queue.add_and_wait("double", number)

    async with running(app) as client:
        assert [(await client.post(f"/double/{n}")).json() for n in range(4)] == [0, 2, 4, 6]


def test_an_application_starts_again(url: str, queue_name: str):
    queues = AppQueues([Queue(queue_name, url)], workers=[Worker(queue_name, double, url)])
    app = FastAPI(lifespan=queues.lifespan)

    @app.post("/double/{number}")
    async def endpoint(number: int, queue: Any = Depends(queues.get(queue_name))) -> int:  # noqa: B008
        return await queue.add_and_wait("double", number)

    for number in (1, 2):
        with TestClient(app) as client:
            assert client.post(f"/double/{number}").json() == 2 * number


@pytest.mark.parametrize("partitions", [None, 2])
def test_endpoints_with_queues_in_memory(
    glidemq_endpoints: Callable[[AppQueues], dict[str, TestQueue]], partitions: int | None
):
    options: dict[str, Any] = {"serializer": "msgpack", "default_job_options": {"priority": 3}, "durable": True}
    queues = AppQueues(
        [Queue("emails", "valkey://127.0.0.1:1", partitions=partitions, **options)],
        workers=[Worker("emails", double, "valkey://127.0.0.1:1")],
    )
    app = FastAPI(lifespan=queues.lifespan)

    @app.post("/double/{number}")
    async def endpoint(number: int, queue: Any = Depends(queues.get("emails"))) -> str:  # noqa: B008
        return (await queue.add("double", number)).id

    emails = glidemq_endpoints(queues)["emails"]
    for number in (1, 2):
        with TestClient(app) as client:
            assert client.post(f"/double/{number}").status_code == 200
    jobs = asyncio.run(emails.assert_enqueued("double", count=2, priority=3))
    assert sorted(job.data for job in jobs) == [1, 2]


async def test_starlette_has_them_in_its_state(url: str, queue_name: str):
    async def endpoint(request: Request) -> JSONResponse:
        job = await request.state.queues[queue_name].add("a", 1)
        return JSONResponse({"job": job.id})

    queues = AppQueues([Queue(queue_name, url)])
    async with running(Starlette(routes=[Route("/", endpoint)], lifespan=queues.lifespan)) as client:
        assert (await client.get("/")).json() == {"job": "1"}


async def test_unreachable_server_ends_the_start(queue_name: str):
    queues = AppQueues([Queue(queue_name, "valkey://127.0.0.1:1")])
    with pytest.raises(GlideMQConnectionError):
        await contextlib.AsyncExitStack().enter_async_context(queues.lifespan(None))


def test_wrong_names(url: str):
    with pytest.raises(GlideMQValidationError, match="different names"):
        AppQueues([Queue("a", url), Queue("a", url)])
    with pytest.raises(GlideMQValidationError, match="must be one of a"):
        AppQueues([Queue("a", url)]).get("b")


def welcoming(worker: Worker, other: Queue | None = None) -> tuple[AppQueues, FastAPI]:
    """Return an application that adds a task of the worker, and runs it if no other queue is given."""

    @worker.task(attempts=4)
    async def welcome(name: str) -> str:
        return f"hello {name}"

    @worker.task
    async def unused() -> None: ...

    queues = AppQueues([welcome, unused, *([other] if other else [])], workers=[] if other else [worker])
    app = FastAPI(lifespan=queues.lifespan)

    @app.post("/welcome/{name}")
    async def endpoint(name: str) -> str:
        return await welcome.add_and_wait(name) if other is None else (await welcome.add(name)).id

    return queues, app


def test_tasks_of_an_application_that_starts_again(url: str, queue_name: str):
    _, app = welcoming(Worker(queue_name, connection=url))
    for name in ("ada", "bob"):
        with TestClient(app) as client:
            assert client.post(f"/welcome/{name}").json() == f"hello {name}"


def test_tasks_with_queues_in_memory(glidemq_endpoints: Callable[[AppQueues], dict[str, TestQueue]]):
    worker = Worker("emails", connection="valkey://127.0.0.1:1")
    queues, app = welcoming(worker, Queue("other", "valkey://127.0.0.1:1"))
    emails = glidemq_endpoints(queues)["emails"]
    with TestClient(app) as client:
        assert client.post("/welcome/ada").json() == "1"
    (job,) = asyncio.run(emails.assert_enqueued("welcome", {"name": "ada"}, count=1))
    assert job.opts["attempts"] == 4


async def test_tasks_are_restored_after_a_test(url: str, queue_name: str):
    worker = Worker(queue_name, connection=url)
    queues, _ = welcoming(worker)
    with queues.replaced(lambda queue: TestQueue(queue.name)):
        assert isinstance(worker.queue, TestQueue)
    assert type(worker.queue) is Queue
    with pytest.raises(GlideMQValidationError, match="must have different names"):
        AppQueues([worker.task("third")(double), Queue(queue_name, url)])
