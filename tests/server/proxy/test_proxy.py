"""Tests of the proxy over HTTP: jobs, queues, error responses, shutdown."""

import asyncio
import threading
import unittest.mock as mock
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import glidemq_py
from glidemq_py import GlideMQValidationError, Queue, Worker
from glidemq_py.proxy import create_proxy_app
from glidemq_py.testing import ServerProcess
from tests.inside import client_of, connected
from tests.server.proxy.support import running_proxy

TOKEN = "a-token-that-is-long-enough"


def test_add_and_wait_returns_the_result(http: httpx.Client, base: str, queue_name: str, url: str):
    async def handle(job: glidemq_py.Job) -> Any:
        if job.data is None:
            # W89: any message with "invalid" or "required" resulted in status 400.
            raise ValueError("invalid: a value is required and must be a number")
        return {"twice": job.data * 2}

    async def work():
        async with Worker(queue_name, handle, url):
            ready.set()
            await asyncio.to_thread(stop.wait)

    # GLIDE's clients of several event loops hang when the loop that connected first ends: here it is the proxy's.
    assert http.get(f"{base}/counts").status_code == 200
    ready, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    ready.wait(100)
    try:
        found = http.post(f"{base}/jobs/wait", json={"name": "n", "data": 4, "opts": {"waitTimeout": 10_000}})
        assert (found.status_code, found.json()) == (200, {"result": {"twice": 8}})
        failed = http.post(f"{base}/jobs/wait", json={"name": "n"})
        assert (failed.status_code, failed.json()["code"]) == (500, "job_failed")
        assert "invalid: a value" in failed.json()["error"]
    finally:
        stop.set()
        thread.join()


def test_oversized_body_is_413(url: str, queue_name: str):
    with running_proxy(url, max_body=2_000_000) as (http, _):
        at = f"/queues/{queue_name}/jobs"
        body = '{"name": "n", "data": "%s"}'
        http.headers["content-type"] = "application/json"
        assert http.post(at, content=body % ("x" * 2_000_000)).status_code == 413

        def pieces() -> Iterator[bytes]:
            for _ in range(30):
                yield b"x" * 100_000

        assert http.post(at, content=pieces()).status_code == 413
        assert http.post(at, content=body % ("x" * 1_100_000)).status_code == 413  # more than a job can hold
        assert http.post(at, content=body % ("x" * 900_000)).status_code == 201


def test_other_queues_are_403(url: str, queue_name: str):
    leaf = {"name": "leaf", "queueName": f"{queue_name}-other"}
    flow = {"flow": {"name": "top", "queueName": queue_name, "children": [leaf]}}
    with running_proxy(url) as (http, _):
        made = http.post("/flows", json=flow).json()
    with running_proxy(url, queues=[queue_name]) as (http, _):
        assert http.get(f"/queues/{queue_name}/counts").status_code == 200
        at = f"/flows/{made['flowId']}"
        for request in (
            *(f"GET /queues/other/{path}" for path in ("counts", "events", "jobs/1", "dlq", "schedulers")),
            "GET /usage/summary?queues=other", "GET /broadcast/other/events?subscription=s",
            f"GET {at}", f"GET {at}/tree", f"DELETE {at}",
        ):  # fmt: skip
            found = http.request(*request.split(" "))
            assert (found.status_code, found.json()["code"]) == (403, "forbidden"), request
        assert http.put("/queues/other/schedulers/s", json={"schedule": {"every": 1_000}}).status_code == 403
        assert http.post("/broadcast/other", json={"subject": "s"}).status_code == 403
        for body in (flow, {"dag": {"nodes": [leaf]}}):
            assert http.post("/flows", json=body).status_code == 403
        assert http.get("/usage/summary").json()["queues"] == [queue_name]


def test_missing_or_wrong_token_is_401(url: str, queue_name: str):
    with running_proxy(url, tokens=["another-token-for-others", TOKEN]) as (http, _):
        at = f"/queues/{queue_name}/counts"
        for wrong in (None, "Bearer", f"Basic {TOKEN}", "Bearer x", f"Bearer {TOKEN}x", "Bearer Bearer"):
            found = http.get(at, headers={} if wrong is None else {"authorization": wrong})
            assert found.status_code == 401
            assert found.headers["www-authenticate"] == "Bearer"
        assert http.get(at, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        for path in (
            f"/queues/{queue_name}/events",
            "/openapi.json",
            "/nothing",
            "/usage/summary",
            "/health/",
            "//health",
        ):
            assert http.get(path).status_code == 401
        assert http.get("/health").status_code == 200
        document = http.get("/openapi.json", headers={"authorization": f"Bearer {TOKEN}"}).json()
        assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_invalid_connection_is_not_a_client_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLIDEMQ_URL", "nonsense")
    with pytest.raises(GlideMQValidationError, match="'connection' ="):
        create_proxy_app()


def test_unreachable_server_is_503(private_server: Callable[..., ServerProcess]):
    with running_proxy("valkey://127.0.0.1:1") as (http, _):
        assert http.post("/queues/q/jobs", json={"name": "n"}).status_code == 503
        assert http.get("/health").status_code == 200
    server = private_server(maxmemory="64mb")
    with running_proxy(server.url) as (http, _):
        assert http.post("/queues/q/jobs", json={"name": "n"}).status_code == 201
        with server.client() as resp:
            resp.execute("CONFIG", "SET", "maxmemory", "1mb")
        full = http.post("/queues/q/jobs", json={"name": "n"})
        assert (full.status_code, full.json()["code"]) == (503, "server_full")


def test_internal_errors_are_logged_and_reported(url: str, base: str, caplog: pytest.LogCaptureFixture):
    def on_error(error: Exception, request: Any):
        received.append((repr(error), request.url.path))
        raise ValueError("it fails, too")

    received: list[tuple[str, str]] = []
    broken = mock.patch.object(Queue, "get_job_counts", side_effect=RuntimeError("a secret"))
    with running_proxy(url, on_error=on_error) as (http, _), broken:
        found = http.get(f"{base}/counts")
        assert (found.status_code, found.json()) == (500, {"error": "internal error", "code": "internal"})
        assert http.get(f"{base}/jobs/none").status_code == 404
        assert http.head(f"{base}/events").status_code == 405
        assert set(http.delete(f"{base}/jobs").headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert received == [("RuntimeError('a secret')", f"{base}/counts")]
    assert "a secret" in caplog.text
    assert "proxy: the function 'on_error' failed for " in caplog.text


async def test_closing_proxy_returns_503(url: str, queue_name: str):
    app = create_proxy_app(url)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.get(f"/queues/{queue_name}/counts")).status_code == 200
        app.state.proxy.begin_closing()
        assert (await http.get(f"/queues/{queue_name}/counts")).status_code == 503
        assert (await http.get("/health")).status_code == 503
    await app.state.proxy.close()


async def test_injected_client_stays_open(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        link = await connected(queue)
        app = create_proxy_app(client_of((await link.transport.connected()).transport))  # type: ignore[attr-defined]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            assert (await http.post(f"/queues/{queue_name}/jobs", json={"name": "n"})).status_code == 201
        await app.state.proxy.close()
        assert await queue.count() == 1
