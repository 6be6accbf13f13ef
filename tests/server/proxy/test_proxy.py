"""Tests of the proxy over HTTP: jobs, queues, error responses, shutdown."""

import asyncio
import threading
import unittest.mock as mock
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import glidemq_py
from glidemq_py import GlideMQValidationError, Queue, Worker, sync
from glidemq_py.proxy import ProxyOptions, create_proxy_app, dead_letters
from glidemq_py.testing import ServerProcess
from tests.server.proxy.support import running_proxy, worked_off

TOKEN = "a-token-that-is-long-enough"


# -- jobs ------------------------------------------------------------------------------------------------------


def test_job_is_added_and_read(http: httpx.Client, base: str, queue_name: str, url: str) -> None:
    made = http.post(f"{base}/jobs", json={"name": "n", "data": {"a": 1}, "opts": {"jobId": "x", "attempts": 3}})
    assert made.status_code == 201
    assert made.json()["id"] == "x"
    assert made.json()["timestamp"] > 0
    again = http.post(f"{base}/jobs", json={"name": "n", "opts": {"jobId": "x"}})
    assert (again.status_code, again.json()) == (200, {"skipped": True})
    job = http.get(f"{base}/jobs/x").json()
    assert (job["name"], job["data"], job["state"], job["opts"]["attempts"]) == ("n", {"a": 1}, "waiting", 3)
    assert http.get(f"{base}/jobs/none").status_code == 404
    listed = http.get(f"{base}/jobs", params={"state": "waiting", "excludeData": "true"}).json()["jobs"]
    assert [each["id"] for each in listed] == ["x"]
    assert "data" not in listed[0]
    assert http.get(f"{base}/counts").json()["waiting"] == 1


def test_every_option_reaches_the_job(http: httpx.Client, base: str, queue_name: str, url: str) -> None:
    # W89: lockDuration was in no list and always refused.
    opts = {
        "delay": 60_000, "attempts": 4, "backoff": {"type": "exponential", "delay": 5, "jitter": 0.5, "maxDelay": 90},
        "timeout": 9,
        "removeOnComplete": {"age": 60, "count": 5}, "removeOnFail": True, "ttl": 90_000, "lockDuration": 2_000,
        "ordering": {"key": "k", "concurrency": 2, "rateLimit": {"max": 3, "duration": 1_000},
                     "tokenBucket": {"capacity": 9, "refillRate": 1.5}},
        "cost": 2, "deduplication": {"id": "d", "ttl": 1_000, "mode": "throttle"},
    }  # fmt: skip
    made = http.post(f"{base}/jobs", json={"name": "n", "opts": opts})
    assert made.status_code == 201, made.text
    stored = http.get(f"{base}/jobs/{made.json()['id']}").json()["opts"]
    assert stored["lockDuration"] == 2_000
    assert stored["backoff"]["jitter"] == 0.5
    assert stored["removeOnComplete"] == {"age": 60, "count": 5}
    with sync.Queue(queue_name, url) as queue:
        group = queue.get_group("k")
        assert group is not None
        assert group.limits.concurrency == 2
        assert group.limits.token_bucket == glidemq_py.TokenBucket(9, 1.5)
    assert http.post(f"{base}/jobs", json={"name": "n", "opts": {"priority": 5, "lifo": True}}).status_code in (
        201,
        400,
    )


def test_bulk_returns_one_outcome_per_position(http: httpx.Client, base: str) -> None:
    bucket = {"ordering": {"key": "g", "tokenBucket": {"capacity": 5, "refillRate": 1}}, "cost": 9}
    rows = [{"name": "a"}, {"name": "b", "opts": {"jobId": "x"}}, {"name": "c", "opts": {"jobId": "x"}},
            {"name": "d", "opts": bucket}]  # fmt: skip
    made = http.post(f"{base}/jobs/bulk", json={"jobs": rows})
    assert made.status_code == 201
    first, second, third, fourth = made.json()["jobs"]
    assert (first["name"], second["id"], third) == ("a", "x", {"skipped": True})
    assert fourth["code"] == "job_cost"
    again = http.post(f"{base}/jobs/bulk", json={"jobs": rows[1:3]})
    assert (again.status_code, again.json()["jobs"]) == (200, [{"skipped": True}] * 2)
    many = http.post(f"{base}/jobs/bulk", json={"jobs": [{"name": "n"}] * 1_001})
    assert many.status_code == 400
    bad = http.post(f"{base}/jobs/bulk", json={"jobs": [{"name": "n"}, {"name": "n", "opts": {"delay": -1}}]})
    assert bad.status_code == 400


def test_add_and_wait_returns_the_result(http: httpx.Client, base: str, queue_name: str, url: str) -> None:
    async def handle(job: glidemq_py.Job) -> Any:
        if job.data is None:
            raise ValueError("no data")
        return {"twice": job.data * 2}

    async def work() -> None:
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
        assert "no data" in failed.json()["error"]
    finally:
        stop.set()
        thread.join()
    late = http.post(f"{base}/jobs/wait", json={"name": "n", "opts": {"waitTimeout": 50}})
    assert (late.status_code, late.json()["code"]) == (504, "timeout")
    assert http.post(f"{base}/jobs/wait", json={"name": "n", "opts": {"removeOnComplete": True}}).status_code == 400


def test_job_can_be_managed(http: httpx.Client, base: str) -> None:
    job = http.post(f"{base}/jobs", json={"name": "n", "opts": {"delay": 60_000}}).json()["id"]
    at = f"{base}/jobs/{job}"
    assert http.post(f"{at}/priority", json={"priority": 3}).json() == {"priority": 3, "updated": True}
    assert http.post(f"{at}/delay", json={"delay": 90_000}).json() == {"delay": 90_000, "updated": True}
    assert http.post(f"{at}/promote").json() == {"promoted": True}
    again = http.post(f"{at}/promote")
    assert (again.status_code, again.json()["code"]) == (400, "job_state")
    assert http.post(f"{base}/jobs/none/promote").status_code == 404
    assert http.post(f"{at}/priority", json={"priority": 2_048}).status_code == 400
    assert http.post(f"{at}/priority", json={}).status_code == 400
    # It is kept: the job does not wait for it yet.
    assert http.post(f"{at}/signal", json={"name": "go", "data": 1}).json() == {"resumed": False}
    assert http.get(f"{at}/suspend").status_code == 404
    assert http.post(f"{at}/revoke").json() == {"status": "revoked"}
    assert http.post(f"{base}/jobs/none/revoke").status_code == 404
    assert http.post(f"{base}/jobs/none/signal", json={"name": "go"}).status_code == 404
    assert http.post(f"{at}/signal", json={"name": "go"}).status_code == 400


# -- queues ----------------------------------------------------------------------------------------------------


def test_queue_can_be_managed(http: httpx.Client, base: str) -> None:
    assert http.post(f"{base}/pause").json() == {"paused": True}
    assert http.get(f"{base}/counts").json()["paused"] is True
    assert http.post(f"{base}/resume").json() == {"paused": False}
    assert http.put(f"{base}/rate-limit", json={"max": 5, "duration": 100}).json()["rateLimit"]["max"] == 5
    assert http.get(f"{base}/rate-limit").json() == {"rateLimit": {"max": 5, "duration": 100}}
    assert http.delete(f"{base}/rate-limit").json() == {"removed": True, "rateLimit": None}
    assert http.get(f"{base}/rate-limit").json() == {"rateLimit": None}
    assert http.get(f"{base}/workers").json() == {"workers": []}
    found = http.get(f"{base}/metrics", params={"type": "completed"}).json()
    assert found == {"count": 0, "data": [], "meta": {"resolution": "minute"}}
    http.post(f"{base}/jobs", json={"name": "n"})
    http.post(f"{base}/jobs", json={"name": "n", "opts": {"delay": 50_000}})
    assert http.post(f"{base}/drain").json() == {"delayed": False, "drained": True}
    assert http.get(f"{base}/counts").json()["delayed"] == 1
    assert http.post(f"{base}/drain", json={"delayed": True}).json() == {"delayed": True, "drained": True}
    assert http.get(f"{base}/counts").json()["delayed"] == 0
    for count in (3, 0):
        assert http.post(f"{base}/retry", json={"count": count}).json() == {"retried": 0}
    assert http.delete(f"{base}/clean", params={"state": "failed", "age": 0}).json() == {"removed": []}
    assert http.get(f"{base}/suspended").json() == {"jobs": [], "cursor": None}
    assert http.get(f"{base}/flows/1/usage").status_code == 404
    assert http.get(f"{base}/flows/1/budget").status_code == 404
    summary = http.get("/usage/summary", params={"window": 60_000}).json()
    assert summary["bucketSizeMs"] == 60_000
    assert http.get("/health").json()["status"] == "ok"


def test_suspended_job_is_listed_and_resumed(http: httpx.Client, base: str, queue_name: str, url: str) -> None:
    async def handle(job: glidemq_py.Job) -> Any:
        if not job.signals:
            await job.suspend(reason="approval", timeout=60_000)
        return [(signal.name, signal.data) for signal in job.signals]

    job = http.post(f"{base}/jobs", json={"name": "n", "data": 1}).json()["id"]
    worked_off(url, handle, queue_name)
    info = http.get(f"{base}/jobs/{job}/suspend").json()
    assert (info["reason"], info["timeout"], info["signals"]) == ("approval", 60_000, [])
    (found,) = http.get(f"{base}/suspended", params={"excludeData": "true"}).json()["jobs"]
    assert (found["id"], found["state"], found["suspend"]) == (job, "suspended", info)
    assert "data" not in found
    assert http.post(f"{base}/jobs/{job}/signal", json={"name": "go", "data": 1}).json() == {"resumed": True}
    worked_off(url, handle, queue_name)
    assert http.get(f"{base}/jobs/{job}").json()["returnvalue"] == [["go", 1]]


def test_job_usage_is_returned(http: httpx.Client, base: str, queue_name: str, url: str) -> None:
    async def handle(job: glidemq_py.Job) -> None:
        await job.report_usage(model="m", tokens={"input": 3}, costs={"call": 0.5}, cost_unit="USD", latency=12)

    job = http.post(f"{base}/jobs", json={"name": "n"}).json()["id"]
    worked_off(url, handle, queue_name)
    used = {
        "model": "m", "provider": None, "tokens": {"input": 3}, "totalTokens": 3, "costs": {"call": 0.5},
        "totalCost": 0.5, "costUnit": "USD", "latencyMs": 12, "cached": None,
    }  # fmt: skip
    assert http.get(f"{base}/jobs/{job}").json()["usage"] == used
    (listed,) = http.get(f"{base}/jobs", params={"state": "completed"}).json()["jobs"]
    assert listed["usage"] == used
    assert http.get(f"{base}/flows/{job}/usage").json()["tokens"] == {"input": 3}


def test_dead_letter_entries_are_listed_and_replayed(http: httpx.Client, base: str, queue_name: str, url: str) -> None:
    async def handle(job: glidemq_py.Job) -> None:
        raise ValueError("no")

    for n in range(3):
        http.post(f"{base}/jobs", json={"name": "n", "data": n})
    worked_off(url, handle, queue_name, dead_letter_queue=f"{queue_name}-dead")
    found = http.get(f"{base}/dlq").json()
    assert found["count"] == 3
    first, second, third = found["jobs"]
    assert (first["data"], first["originalQueue"], first["failedReason"]) == (0, queue_name, "no")
    at = f"{base}/dlq/{first['id']}"
    assert http.get(at).json()["originalJobId"] == "1"
    assert http.delete(at).json() == {"removed": True}
    assert http.delete(at).status_code == 404
    assert http.post(f"{base}/dlq/{second['id']}/replay").json()["name"] == "n"
    assert http.post(f"{base}/dlq/{second['id']}/replay").status_code == 404
    replayed = http.post(f"{base}/dlq/replay-all", params={"count": 5}).json()
    assert (replayed["replayed"], replayed["cursor"]) == (1, None)
    assert replayed["jobs"][0]["sourceId"] == third["id"]
    assert http.get(f"{base}/counts").json()["waiting"] == 2


def test_replay_all_is_bounded_and_continues(
    http: httpx.Client, base: str, queue_name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dead_letters._DEFAULT_REPLAYED == 100
    monkeypatch.setattr(dead_letters, "_DEFAULT_REPLAYED", 4)
    with sync.Queue(queue_name, url, dead_letter_queue=f"{queue_name}-dead") as queue:
        assert queue.get_dead_letter_jobs() == []
    with sync.Queue(f"{queue_name}-dead", url) as entries:
        for i in range(7):
            # Entries of other queues and of subscriptions are skipped.
            other: dict[str, Any] = {0: {"originalQueue": "other"}, 1: {"subscription": "s"}}.get(i, {})
            envelope = {"originalQueue": queue_name, "originalJobId": "j", "data": i, "attemptsMade": 1, **other}
            entries.add("n", envelope, job_id=f"d{i}")
    first = http.post(f"{base}/dlq/replay-all").json()
    assert (first["replayed"], [job["sourceId"] for job in first["jobs"]]) == (4, [f"d{i}" for i in range(2, 6)])
    last = http.post(f"{base}/dlq/replay-all", params={"cursor": first["cursor"], "count": 4}).json()
    assert ([job["sourceId"] for job in last["jobs"]], last["cursor"]) == (["d6"], None)
    assert http.get(f"{base}/counts").json()["waiting"] == 5
    assert http.post(f"{base}/dlq/replay-all", params={"count": 1_001}).status_code == 400


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/jobs", "{"), ("/jobs", "[]"), ("/jobs", "1"), ("/jobs", ""), ("/jobs", "{}"), ("/jobs", '{"name": 1}'),
        ("/jobs", '{"name": ""}'), ("/jobs", '{"name": "n", "more": 1}'), ("/jobs", '{"name": "n", "opts": 5}'),
        ("/jobs", '{"name": "n", "opts": {"job_id": "x"}}'), ("/jobs", '{"name": "n", "opts": {"priority": "1"}}'),
        ("/jobs", '{"name": "n", "opts": {"priority": true}}'), ("/jobs", '{"name": "n", "opts": {"delay": null}}'),
        ("/jobs", '{"name": "n", "opts": {"jobId": "a:b"}}'),
        ("/jobs", '{"name": "n", "opts": null}'),
        ("/jobs", '{"name": "n", "opts": {"backoff": {"type": "fixed", "delay": null}}}'),
        ("/drain", "\r\n"), ("/jobs", '{"name": "n", "data": NaN}'), ("/jobs", '{"name": "n", "data": {"a": [1e999]}}'),
        ("/jobs", '{"name": "n", "data": -1E+0400}'), ("/jobs", '{"name": "n", "opts": {"delay": 1e999}}'),
        ("/jobs/bulk", '{"jobs": [{"name": "n", "data": %s.5}]}' % ("9" * 400)),
        ("/jobs", '{"name": "n", "opts": {"ordering": {"key": "k", "what": 1}}}'), ("/jobs/bulk", '{"jobs": 1}'),
        ("/jobs/bulk", '{"jobs": [1]}'), ("/pause", "{}"), ("/drain", '{"delayed": 1}'), ("/retry", '{"count": -1}'),
        ("/retry", ""), ("/retry", "{}"), ("/retry", '{"count": null}'),
    ],
)  # fmt: skip
def test_invalid_request_is_400(http: httpx.Client, base: str, path: str, content: str) -> None:
    found = http.post(f"{base}{path}", content=content, headers={"content-type": "application/json"})
    assert found.status_code == 400, found.text
    assert set(found.json()) == {"error", "code"}
    assert http.get(f"{base}/counts").json()["waiting"] == 0


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/jobs", {}, "option 'name' = None: is required"),
        ("/retry", {}, "option 'count' = None: is required"),
        ("/jobs", {"name": "n", "opts": {"priority": 5_000}},
         "option 'opts.priority' = 5000: must be at most 2,047"),
        ("/jobs", {"name": "n", "opts": {"job_id": "x"}},
         "option 'opts.job_id' = 'x': unknown option; did you mean 'opts.jobId'?"),
        ("/jobs", {"name": "n", "opts": {"my_token": "x"}}, "option 'opts.my_token' = ***: unknown option"),
        ("/jobs", {"name": "n", "opts": {"backoff": "x"}},
         "option 'opts.backoff' = 'x': must be a valid integer or an object"),
        ("/jobs", {"name": "n", "opts": {"backoff": {"type": "fixed", "delay": None}}},
         "option 'opts.backoff.delay' = None: must be a valid integer"),
        ("/jobs/bulk", {"jobs": [{"name": "n"}, {"name": "n", "opts": {"dleay": 1}}]},
         "option 'jobs[1].opts.dleay' = 1: unknown option; did you mean 'jobs[1].opts.delay'?"),
        ("/jobs/bulk", {"jobs": [1]}, "option 'jobs[0]' = 1: must be an object"),
    ],
)  # fmt: skip
def test_error_names_member_and_value(http: httpx.Client, base: str, path: str, body: Any, error: str) -> None:
    found = http.post(f"{base}{path}", json=body)
    assert (found.status_code, found.json()) == (400, {"error": error, "code": "invalid"})


def test_invalid_query_is_400(http: httpx.Client, base: str) -> None:
    for params in ({}, {"state": "what"}, {"state": "waiting", "start": "x"}, {"state": "waiting", "more": "1"}):
        assert http.get(f"{base}/jobs", params=params).status_code == 400
    assert http.get("/queues/a:b/counts").status_code == 400
    assert http.get(f"{base}/events", params={"lastId": "x"}).status_code == 400
    assert http.get("/nothing").status_code == 404
    refused = http.delete(f"{base}/jobs")
    assert (refused.status_code, set(refused.headers["allow"].split(", "))) == (405, {"GET", "HEAD", "POST"})


def test_status_does_not_depend_on_error_message(http: httpx.Client, base: str, queue_name: str, url: str) -> None:
    # W89: any message with "invalid" or "required" resulted in status 400.
    async def handle(job: glidemq_py.Job) -> None:
        raise ValueError("invalid: a value is required and must be a number")

    adding = threading.Thread(target=lambda: found.append(http.post(f"{base}/jobs/wait", json={"name": "n"})))
    found: list[httpx.Response] = []
    adding.start()
    with sync.Queue(queue_name, url) as queue:
        while queue.count() == 0:
            pass
    worked_off(url, handle, queue_name)
    adding.join()
    assert found[0].status_code == 500


def test_oversized_body_is_413(url: str, queue_name: str) -> None:
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


def test_other_queues_are_403(url: str, queue_name: str) -> None:
    with running_proxy(url, queues=[queue_name]) as (http, _):
        assert http.get(f"/queues/{queue_name}/counts").status_code == 200
        for path in ("counts", "events", "jobs/1", "dlq"):
            found = http.get(f"/queues/other/{path}")
            assert (found.status_code, found.json()["code"]) == (403, "forbidden")
        assert http.get("/usage/summary", params={"queues": "other"}).status_code == 403
        assert http.get("/usage/summary").json()["queues"] == [queue_name]


def test_missing_or_wrong_token_is_401(url: str, queue_name: str) -> None:
    with running_proxy(url, tokens=["another-token-for-others", TOKEN]) as (http, _):
        at = f"/queues/{queue_name}/counts"
        for wrong in (None, "Bearer", f"Basic {TOKEN}", "Bearer x", f"Bearer {TOKEN}x", "Bearer Bearer"):
            found = http.get(at, headers={} if wrong is None else {"authorization": wrong})
            assert found.status_code == 401
            assert found.headers["www-authenticate"] == "Bearer"
        assert http.get(at, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert http.get(f"/queues/{queue_name}/events").status_code == 401
        assert http.get("/health").status_code == 200
        assert http.get("/openapi.json").status_code == 401
        document = http.get("/openapi.json", headers={"authorization": f"Bearer {TOKEN}"}).json()
        assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_invalid_options_are_rejected() -> None:
    wrong: dict[str, Any]
    for wrong in (
        {"tokens": []}, {"tokens": ["short"]}, {"tokens": TOKEN}, {"hosts": ["queue.example"]},
        {"hosts": ["localhost", "*"]}, {"queues": "one"}, {"queues": ["a:b"]},
        {"prefix": "{"}, {"compression": "zip"}, {"max_body": 0}, {"keep_alive": 1}, {"events": 1},
        {"hosts": []}, {"hosts": "localhost"}, {"hosts": ["a:80"]}, {"hosts": ["http://a"]}, {"body_timeout": 1},
        {"max_response": 0}, {"on_error": 1}, {"on_error": lambda error: None},
    ):  # fmt: skip
        with pytest.raises(GlideMQValidationError) as caught:
            create_proxy_app("valkey://127.0.0.1", **wrong)
        assert TOKEN not in str(caught.value)
    assert TOKEN not in repr(ProxyOptions(tokens=[TOKEN]))


def test_invalid_connection_is_not_a_client_error(monkeypatch: pytest.MonkeyPatch) -> None:
    connection: Any
    for connection in ("http://server", 5):
        with pytest.raises(GlideMQValidationError, match="'connection' ="):
            create_proxy_app(connection)
    monkeypatch.setenv("GLIDEMQ_URL", "nonsense")
    with pytest.raises(GlideMQValidationError, match="'connection' ="):
        create_proxy_app()


def test_unreachable_server_is_503(private_server: Callable[..., ServerProcess]) -> None:
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


# -- the end ---------------------------------------------------------------------------------------------------


def test_internal_errors_are_logged_and_reported(url: str, base: str, caplog: pytest.LogCaptureFixture) -> None:
    def on_error(error: Exception, request: Any) -> None:
        received.append((repr(error), request.url.path))
        raise ValueError("it fails, too")

    received: list[tuple[str, str]] = []
    broken = mock.patch.object(Queue, "get_job_counts", side_effect=RuntimeError("a secret"))
    with running_proxy(url, on_error=on_error) as (http, _), broken:
        found = http.get(f"{base}/counts")
        assert (found.status_code, found.json()) == (500, {"error": "internal error", "code": "internal"})
        assert http.get(f"{base}/jobs/none").status_code == 404
        assert http.head(f"{base}/events").status_code == 405
    assert received == [("RuntimeError('a secret')", f"{base}/counts")]
    assert "a secret" in caplog.text
    assert "proxy: the function 'on_error' failed for " in caplog.text


async def test_closing_proxy_returns_503(url: str, queue_name: str) -> None:
    app = create_proxy_app(url)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.get(f"/queues/{queue_name}/counts")).status_code == 200
        app.state.proxy.begin_closing()
        assert (await http.get(f"/queues/{queue_name}/counts")).status_code == 503
        assert (await http.get("/health")).status_code == 503
    await app.state.proxy.close()


async def test_injected_client_stays_open(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        link = await queue._connected()
        client: Any = (await link.transport.connected()).transport._client  # type: ignore[attr-defined]
        app = create_proxy_app(client)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            assert (await http.post(f"/queues/{queue_name}/jobs", json={"name": "n"})).status_code == 201
        await app.state.proxy.close()
        assert await queue.count() == 1
