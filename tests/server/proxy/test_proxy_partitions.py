"""Partitioned queues over HTTP: every route gives what it gives for a plain queue."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from glidemq_py import Job, Queue
from glidemq_py.testing import RespClient
from tests.server.proxy.support import frames_of, running_proxy, worked_off

PARTITIONS = 3


def make_queue(url: str, name: str, partitions: int | None, **options: Any):
    async def make():
        async with Queue(name, url, partitions=partitions, **options):
            pass

    asyncio.run(make())


@pytest.fixture
def parted(url: str, queue_name: str) -> str:
    """Return the path of the test's queue, which has three partitions."""
    make_queue(url, queue_name, PARTITIONS)
    return f"/queues/{queue_name}"


def path_of(job_id: str) -> str:
    return quote(job_id, safe="")


async def handle(job: Job) -> Any:
    if job.name == "bad":
        raise ValueError("no such user")
    if job.name == "ask":
        await job.suspend(timeout=600_000)
    await job.report_usage(model="small", tokens={"input": 2})
    await job.update_progress(50)
    await job.stream({"text": "one"})
    return {"a": 1}


def test_references_name_the_whole_queue(http: httpx.Client, url: str, parted: str, queue_name: str):
    async def add() -> tuple[list[Job], Job, Job]:
        async with Queue(queue_name, url) as queue:
            top = await queue.add("top", fair_key="h")
            others = [await queue.add("other", fair_key=key) for key in "abc"]
            return others, top, await queue.add("low", parent=top, depends_on=[each.id for each in others])

    others, top, low = asyncio.run(add())
    ids = {each.id for each in others}
    assert len({job_id.partition("||")[0] for job_id in (*ids, top.id)}) > 1
    (found,) = http.get(f"{parted}/jobs?state=waiting-children").json()["jobs"]
    assert found == http.get(f"{parted}/jobs/{path_of(low.id)}").json()
    assert (found["parentQueue"], found["parentId"]) == (queue_name, top.id)
    assert found["opts"]["parent"] == {"queue": queue_name, "id": top.id}
    assert {each if isinstance(each, str) else each["id"] for each in found["opts"]["dependsOn"]} == ids
    assert {each["queue"] for each in found["opts"]["dependsOn"] if isinstance(each, dict)} <= {queue_name}


# -- streams ---------------------------------------------------------------------------------------------------


def add_to_partitions(http: httpx.Client, base: str) -> list[str]:
    """Add a job to each partition."""
    return [http.post(f"{base}/jobs", json={"name": "n", "data": n}).json()["id"] for n in range(PARTITIONS)]


def events_of(http: httpx.Client, path: str, count: int, begin: Callable[[], object], last: str = "") -> list[Any]:
    """Return this many events of a stream, after calling `begin` when it listens."""
    headers = {"last-event-id": last} if last else {}
    with http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, response.read()
        frames = frames_of(response.iter_lines())
        assert next(frames)[2] == "connected"
        if not last:
            assert next(frames)[2] == "keep-alive"  # by then it listens
        begin()
        return [frame for _, frame in zip(range(count), (each for each in frames if each[1]), strict=False)]


def test_events_of_all_partitions_are_streamed_once(http: httpx.Client, parted: str):
    def add():
        ids.extend(add_to_partitions(http, parted))

    ids: list[str] = []
    for _ in range(2):
        seen = events_of(http, f"{parted}/events", PARTITIONS, add)
        assert [data["jobId"] for _, _, data in seen] == ids[-PARTITIONS:]
    following = ids[-PARTITIONS:]
    # A client that reconnects after any of them misses none, and receives none twice.
    for at, (entry, _, _) in enumerate(seen, 1):
        rest = events_of(http, f"{parted}/events", PARTITIONS, add, entry)
        following += ids[len(following) + PARTITIONS :]
        assert [data["jobId"] for _, _, data in rest] == following[at : at + PARTITIONS]


def test_job_events_end_with_the_job(http: httpx.Client, parted: str, queue_name: str, url: str):
    jobs = add_to_partitions(http, parted)
    custom = http.post(f"{parted}/jobs", json={"name": "n", "opts": {"jobId": "order-7"}}).json()["id"]
    found: dict[str, list[Any]] = {}

    def follow(job: str):
        found[job] = events_of(http, f"{parted}/jobs/{path_of(job)}/events", 100, listening.release, "0-0")

    listening = threading.Semaphore(0)
    threads = [threading.Thread(target=follow, args=(job,)) for job in (*jobs, "order-7")]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert listening.acquire(timeout=100)
    worked_off(url, handle, queue_name)
    for thread in threads:
        thread.join(100)
    for asked, job in zip((*jobs, "order-7"), (*jobs, custom), strict=True):
        events = [event for _, event, _ in found[asked]]
        assert (events[0], events[-2:]) == ("added", ["progress", "completed"])
        assert {data["jobId"] for _, _, data in found[asked]} == {job}
        # It has ended: everything at once, or what follows an event.
        past = list(frames_of(iter(http.get(f"{parted}/jobs/{path_of(asked)}/events").text.splitlines())))
        assert [each for each in past if each[1]] == found[asked]
        rest = events_of(http, f"{parted}/jobs/{path_of(asked)}/events", 100, lambda: None, found[asked][0][0])
        assert rest == found[asked][1:]


def test_stream_follows_a_queue_that_is_created_later(
    url: str, base: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("glidemq_py._partitions.parts.LAYOUT_S", 0.05)
    monkeypatch.setattr("glidemq_py._api.queue_events._LAYOUT_S", 0.05)

    ids: list[str] = []

    def create_and_add():
        make_queue(url, queue_name, PARTITIONS)
        ids.extend(add_to_partitions(http, base))

    with running_proxy(url, keep_alive=200) as (http, _):
        seen = events_of(http, f"{base}/events", PARTITIONS, create_and_add)
        assert sorted(data["jobId"] for _, _, data in seen) == sorted(ids)


def test_streams_leave_no_connections(http: httpx.Client, parted: str, resp: RespClient):
    def blocked() -> int:
        return sum("cmd=xread " in line for line in str(resp.execute("CLIENT", "LIST")).splitlines())

    before = blocked()
    for _ in range(2):
        events_of(http, f"{parted}/events", PARTITIONS, lambda: add_to_partitions(http, parted))
    until = time.monotonic() + 20
    while blocked() > before and time.monotonic() < until:
        http.get("/health")
    assert blocked() <= before


@pytest.mark.parametrize("entry", ["1,x", "3||5-1", ",", "1-1,"])
def test_invalid_event_id_is_400(http: httpx.Client, parted: str, entry: str):
    answer = http.get(f"{parted}/events", headers={"last-event-id": entry})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
