"""Tests of web endpoints that add jobs, for FastAPI, Flask and Django: `pytest examples/test_endpoints.py`.

The jobs are added to a server in the test's process: the extra `testing` is enough.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Annotated

import pytest
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.test import RequestFactory, override_settings
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from flask import Flask

from glidemq_py import Queue
from glidemq_py.integrations.django import close_queues, get_queue
from glidemq_py.integrations.fastapi import AppQueues
from glidemq_py.integrations.flask import GlideMQ
from glidemq_py.testing import MemoryServer, TestQueue

# -- yours: an endpoint in each framework -------------------------------------------------------------------------

queues = AppQueues([Queue("emails")])
fast = FastAPI(lifespan=queues.lifespan)


@fast.post("/welcome", status_code=202)
async def welcome(to: str, emails: Annotated[Queue, Depends(queues.get("emails"))]) -> dict[str, str]:
    return {"job": (await emails.add("welcome", {"to": to})).id}


mq = GlideMQ()
flask = Flask("shop")
mq.init_app(flask)


@flask.post("/welcome")
def flask_welcome() -> dict[str, str]:
    return {"job": mq.queue("emails").add("welcome", {"to": "ann"}).id}


if not settings.configured:
    settings.configure()


def django_welcome(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"job": get_queue("emails").add("welcome", {"to": "ann"}).id})


# -- the tests ----------------------------------------------------------------------------------------------------


@pytest.fixture
def emails(glidemq_endpoints: Callable[[AppQueues], dict[str, TestQueue]]) -> TestQueue:
    return glidemq_endpoints(queues)["emails"]


@pytest.mark.parametrize("address", ["ann", "bob"])
def test_fastapi(emails: TestQueue, address: str) -> None:
    with TestClient(fast) as client:
        assert client.post("/welcome", params={"to": address}).status_code == 202
    asyncio.run(emails.assert_enqueued("welcome", {"to": address}, count=1))


@pytest.fixture
def flask_on_memory(glidemq_memory: MemoryServer) -> Iterator[Flask]:
    flask.config["GLIDEMQ_URL"] = glidemq_memory
    yield flask
    mq.close(flask)


def test_flask(flask_on_memory: Flask, glidemq_memory: MemoryServer) -> None:
    assert flask_on_memory.test_client().post("/welcome").status_code == 200
    asyncio.run(TestQueue("emails", glidemq_memory).assert_enqueued("welcome", {"to": "ann"}, count=1))


@pytest.fixture
def django_on_memory(glidemq_memory: MemoryServer) -> Iterator[None]:
    with override_settings(GLIDEMQ={"CONNECTION": glidemq_memory}):
        yield
    close_queues()


@pytest.mark.usefixtures("django_on_memory")
def test_django(glidemq_memory: MemoryServer) -> None:
    assert django_welcome(RequestFactory().post("/welcome")).status_code == 200
    asyncio.run(TestQueue("emails", glidemq_memory).assert_enqueued("welcome", {"to": "ann"}, count=1))
