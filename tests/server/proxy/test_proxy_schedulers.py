"""Tests of schedulers over HTTP."""

import asyncio
from typing import Any

import httpx
import pytest

from glidemq_py import Job, Worker, sync
from tests.server.proxy.support import running_proxy

YEAR_MS = 31_536_000_000


@pytest.fixture
def base(queue_name: str) -> str:
    return f"/queues/{queue_name}/schedulers"


def test_scheduler_is_created_read_updated_and_removed(http: httpx.Client, base: str) -> None:
    template = {"name": "report", "data": {"a": 1}, "opts": {"attempts": 3, "removeOnComplete": {"count": 5}}}
    schedule = {"pattern": "0 3 * * *", "tz": "Europe/Paris", "limit": 9}
    made = http.put(f"{base}/nightly", json={"schedule": schedule, "template": template})
    assert (made.status_code, made.json()) == (200, {"upserted": True})
    found = http.get(f"{base}/nightly").json()
    assert found["name"] == "nightly"
    entry = found["entry"]
    assert {name: entry[name] for name in schedule} == schedule
    assert (entry["template"]["name"], entry["template"]["data"]) == ("report", {"a": 1})
    assert entry["template"]["opts"]["attempts"] == 3
    assert entry["iterationCount"] == 0
    again = http.put(f"{base}/nightly", json={"schedule": {"every": YEAR_MS}})
    assert again.status_code == 200
    assert http.put(f"{base}/a:b", json={"schedule": {"repeatAfterComplete": 5, "startDate": 2**41}}).status_code == 200
    listed = http.get(base).json()["schedulers"]
    assert [each["name"] for each in listed] == ["a:b", "nightly"]
    assert listed[1]["entry"]["every"] == YEAR_MS
    assert "pattern" not in listed[1]["entry"]
    assert http.delete(f"{base}/nightly").json() == {"removed": True}
    assert http.delete(f"{base}/nightly").status_code == 404
    assert http.get(f"{base}/nightly").status_code == 404
    assert [each["name"] for each in http.get(base).json()["schedulers"]] == ["a:b"]


def test_scheduler_that_needs_a_worker(http: httpx.Client, base: str) -> None:
    schedule = {"every": YEAR_MS, "overlap": "skip", "skipWithoutWorker": True}
    assert http.put(f"{base}/s", json={"schedule": schedule}).status_code == 200
    entry = http.get(f"{base}/s").json()["entry"]
    assert {name: entry[name] for name in schedule} == schedule
    assert http.put(f"{base}/s", json={"schedule": {"every": YEAR_MS}}).status_code == 200
    assert "skipWithoutWorker" not in http.get(f"{base}/s").json()["entry"]
    refused = http.put(f"{base}/s", json={"schedule": {"every": YEAR_MS, "skipWithoutWorker": 1}})
    assert (refused.status_code, "skipWithoutWorker" in refused.text) == (400, True)
    refused = http.put(f"{base}/s", json={"schedule": {"repeatAfterComplete": 5, "skipWithoutWorker": True}})
    assert (refused.status_code, "skip_without_worker" in refused.text) == (400, True)


def test_scheduler_is_paused_and_resumed(http: httpx.Client, base: str) -> None:
    http.put(f"{base}/s", json={"schedule": {"every": YEAR_MS}})
    before = http.get(f"{base}/s").json()
    paused = http.post(f"{base}/s/pause")
    assert paused.status_code == 200
    assert paused.json()["entry"]["paused"] is True
    assert paused.json()["entry"]["pausedAt"] > 0
    assert "nextRun" not in paused.json()["entry"]
    assert http.get(f"{base}/s").json() == paused.json()
    assert http.post(f"{base}/s/resume").json() == before
    assert http.post(f"{base}/none/pause").status_code == 404
    assert http.post(f"{base}/none/resume").status_code == 404


def test_scheduler_fires(http: httpx.Client, base: str, queue_name: str, url: str) -> None:
    seen: list[Any] = []

    async def handle(job: Job) -> None:
        seen.append((job.name, job.data))
        done.set()

    async def work() -> None:
        async with Worker(queue_name, handle, url):
            await asyncio.wait_for(done.wait(), 100)

    body = {"schedule": {"every": YEAR_MS, "immediately": True}, "template": {"name": "n", "data": [1]}}
    assert http.put(f"{base}/once", json=body).status_code == 200
    done = asyncio.Event()
    asyncio.run(work())
    assert seen == [("n", [1])]
    entry = http.get(f"{base}/once").json()["entry"]
    assert entry["iterationCount"] == 1
    assert entry["nextRun"] >= entry["lastRun"] + YEAR_MS - 1_000


@pytest.mark.parametrize(
    "body",
    [
        {}, {"schedule": None}, {"schedule": 1}, {"schedule": {}}, {"schedule": {"every": 1, "pattern": "* * * * *"}},
        {"schedule": {"every": 0}}, {"schedule": {"every": "1"}}, {"schedule": {"every": None}},
        {"schedule": {"pattern": "what"}}, {"schedule": {"pattern": "* * * * *", "tz": "No/Where"}},
        {"schedule": {"every": 1, "endDate": 5}}, {"schedule": {"repeat_after_complete": 1}},
        {"schedule": {"every": 1, "limit": 0}}, {"schedule": {"every": 1}, "template": None},
        {"schedule": {"every": 1}, "template": {"options": {}}}, {"schedule": {"every": 1}, "more": 1},
        {"schedule": {"every": 1}, "template": {"opts": {"priority": -1}}},
    ],
)  # fmt: skip
def test_invalid_request_is_400(http: httpx.Client, base: str, queue_name: str, url: str, body: Any) -> None:
    refused = http.put(f"{base}/s", json=body)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid"), refused.text
    with sync.Queue(queue_name, url) as queue:
        assert queue.get_job_schedulers() == []


def test_too_long_name_and_other_queue_are_rejected(url: str, queue_name: str) -> None:
    with running_proxy(url, queues=[queue_name]) as (http, _):
        every = {"schedule": {"every": YEAR_MS}}
        assert http.put(f"/queues/{queue_name}/schedulers/{'x' * 257}", json=every).status_code == 400
        assert http.put("/queues/other/schedulers/s", json=every).status_code == 403
        assert http.get("/queues/other/schedulers").status_code == 403
