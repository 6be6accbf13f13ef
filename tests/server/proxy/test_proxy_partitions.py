"""Partitioned queues over HTTP: every route gives what it gives for a plain queue."""

import asyncio
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import RespClient
from tests.server.proxy.support import frames_of, proxy_here, running_proxy, worked_off

PARTITIONS = 3
NAMES = re.compile(r"[a-z]{2,}")
IDS = frozenset(
    (
        "id",
        "newJobId",
        "sourceId",
        "flowId",
        "lastJobId",
        "addr",
        "pid",
        "originalJobId",
        "parentId",
        "jobId",
        "activeJobs",
    )
)
VARYING = re.compile(r"(timestamp|cursor|nextRun|lastRun|.*(On|At|Time|age|Duration|latencyMs))\Z")


def make_queue(url: str, name: str, partitions: int | None, **options: Any) -> None:
    async def make() -> None:
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


def shape(value: Any, queue: str, ids: Sequence[str] = (), name: str = "") -> Any:
    """Return a response without what differs between two queues: ids, times, and the order of lists."""
    if name in IDS or VARYING.match(name):
        return type(value).__name__
    if name == "removed" and isinstance(value, list):
        return len(value)
    if isinstance(value, dict):
        return {str(key).replace(queue, "Q"): shape(each, queue, ids, key) for key, each in value.items()}
    if isinstance(value, list):
        return sorted((shape(each, queue, ids) for each in value), key=repr)
    if isinstance(value, str):
        for each in ids:
            value = value.replace(f"'{each}'", "'ID'")
        return value.replace(queue, "Q")
    return value


class Caller:
    """Calls routes for one queue, and keeps what they return."""

    def __init__(self, http: httpx.Client, queue: str) -> None:
        self.http, self.queue = http, queue
        self.routes: set[str] = set()
        self.found: list[tuple[str, int, Any]] = []

    def __call__(self, route: str, *ids: str, query: str = "", **body: Any) -> Any:
        """Call a route such as ``GET /queues/{name}/jobs/{id}``, with these ids after the name of the queue."""
        method, _, template = route.partition(" ")
        values = iter((self.queue, *ids) if template.startswith("/queues") else ids)
        path = re.sub(r"\{[a-z]+\}", lambda _: path_of(next(values)), template)
        answer = self.http.request(method, path + query, json=body or None)
        self.routes.add(route)
        found = answer.json()
        self.found.append((route, answer.status_code, shape(found, self.queue, ids)))
        return found

    def stream(self, route: str, *ids: str) -> None:
        """Read a stream of a job that has ended."""
        values = iter((self.queue, *ids))
        path = re.sub(r"\{[a-z]+\}", lambda _: path_of(next(values)), route.partition(" ")[2])
        self.routes.add(route)
        frames = [each for each in frames_of(iter(self.http.get(path).text.splitlines())) if each[0]]
        self.found.append((route, 200, [(event, shape(data, self.queue)) for _, event, data in frames]))


async def handle(job: Job) -> Any:
    if job.name == "bad":
        raise ValueError("no such user")
    if job.name == "ask":
        await job.suspend(timeout=600_000)
    await job.report_usage(model="small", tokens={"input": 2})
    await job.update_progress(50)
    await job.stream({"text": "one"})
    return {"a": 1}


def use_every_route(url: str, http: httpx.Client, queue: str) -> Caller:
    call = Caller(http, queue)
    jobs, at = "/queues/{name}/jobs", "/queues/{name}"
    one = call(f"POST {jobs}", name="one", data={"n": 0})["id"]
    first = call(f"POST {jobs}", name="order", data={"n": 9}, opts={"jobId": "order-7"})["id"]
    call(f"POST {jobs}", name="order", opts={"jobId": "order-7"})
    specs = [{"name": "some", "data": {"n": n}} for n in range(5)] + [{"name": "some", "opts": {"jobId": "order-7"}}]
    call(f"POST {jobs}/bulk", jobs=specs)
    late = [call(f"POST {jobs}", name="late", opts={"delay": 3_600_000})["id"] for _ in range(3)]
    for job_id in (one, first, "order-7", "no-such"):
        call(f"GET {jobs}/{{id}}", job_id)
        call(f"POST {jobs}/{{id}}/priority", job_id, priority=3)
    for job_id in (late[0], "no-such"):
        call(f"POST {jobs}/{{id}}/delay", job_id, delay=7_200_000)
        call(f"POST {jobs}/{{id}}/promote", job_id)
    for job_id in (late[1], "no-such"):
        call(f"POST {jobs}/{{id}}/revoke", job_id)
    for state in ("waiting", "delayed", "prioritized", "failed", "active", "group-waiting", "waiting-children"):
        call(f"GET {jobs}", query=f"?state={state}")
        call(f"GET {jobs}", query=f"?state={state}&excludeData=true&start=0&end=100")
    call(f"GET {at}/counts")

    asked = call(f"POST {jobs}", name="ask")["id"]
    bad = [call(f"POST {jobs}", name="bad")["id"] for _ in range(4)]

    async def work() -> None:
        ended = asyncio.Semaphore(0)

        async def handle_and_count(job: Job) -> Any:
            ended.release()
            return await handle(job)

        async with Worker(queue, handle_and_count, url, concurrency=5, log_failures=False), asyncio.timeout(100):
            await asyncio.to_thread(call, f"POST {jobs}/wait", name="now", data={"n": 1})
            for _ in range(14):
                await ended.acquire()
            await asyncio.to_thread(call, f"GET {at}/workers")

    asyncio.run(work())
    call(f"GET {at}/suspended")
    for job_id in (asked, one):
        call(f"GET {jobs}/{{id}}/suspend", job_id)
    for job_id in (asked, one, bad[0], late[2], "no-such"):
        call(f"POST {jobs}/{{id}}/signal", job_id, name="approved", data={"by": "ann"})
    for state in ("waiting", "completed", "failed"):
        call(f"GET {jobs}", query=f"?state={state}")
    call.stream(f"GET {jobs}/{{id}}/events", one)
    call.stream(f"GET {jobs}/{{id}}/stream", one)
    call(f"GET {at}/metrics", query="?type=completed")
    for job_id in (one, "no-such"):
        call(f"GET {at}/flows/{{id}}/usage", job_id)
        call(f"GET {at}/flows/{{id}}/budget", job_id)
    call("GET /usage/summary", query=f"?queues={queue}")

    dead = call(f"GET {at}/dlq")["jobs"]
    call(f"GET {at}/dlq", query="?start=1&end=9")
    for entry in (dead[0]["id"], "no-such"):
        call(f"GET {at}/dlq/{{id}}", entry)
        call(f"DELETE {at}/dlq/{{id}}", entry)
        call(f"POST {at}/dlq/{{id}}/replay", dead[1]["id"] if entry != "no-such" else entry)
    call(f"POST {at}/dlq/replay-all", count=1)
    call(f"POST {at}/dlq/replay-all")

    for name in ("daily", "weekly", "yearly"):
        call(f"PUT {at}/schedulers/{{scheduler}}", name, schedule={"every": 3_600_000}, template={"name": "one"})
    call(f"GET {at}/schedulers")
    for name in ("daily", "none"):
        call(f"GET {at}/schedulers/{{scheduler}}", name)
        call(f"POST {at}/schedulers/{{scheduler}}/pause", name)
        call(f"POST {at}/schedulers/{{scheduler}}/resume", name)
        call(f"DELETE {at}/schedulers/{{scheduler}}", name)

    call(f"POST {at}/retry", count=2)
    call(f"POST {at}/retry", count=0)
    call(f"DELETE {at}/clean", query="?state=completed&age=0")
    call(f"POST {at}/drain", delayed=True)
    call(f"POST {at}/pause")
    call(f"GET {at}/counts")
    call(f"POST {at}/resume")
    call(f"GET {at}/rate-limit")
    call(f"PUT {at}/rate-limit", max=30, duration=1_000)
    call(f"GET {at}/rate-limit")
    call(f"DELETE {at}/rate-limit")

    kids = [{"name": "kid", "queueName": queue, "opts": {"jobId": f"kid-{n}"}} for n in range(4)]
    tree = {"name": "top", "queueName": queue, "children": kids}
    flow = call("POST /flows", flow=tree, budget={"maxTotalTokens": 100})["flowId"]
    call("GET /flows/{flow}", flow)
    assert len(call.http.get(f"/flows/{flow}?limit=2").json()["nodes"]) == 2
    call("GET /flows/{flow}/tree", flow)
    root = call.http.get(f"/flows/{flow}").json()["roots"][0]["id"]
    call(f"GET {at}/flows/{{id}}/budget", root)
    call("DELETE /flows/{flow}", flow)
    call("GET /flows/{flow}", flow)
    nodes = [{"name": "a", "queueName": queue}, {"name": "b", "queueName": queue, "deps": ["a"]}]
    flow = call("POST /flows", dag={"nodes": nodes})["flowId"]
    worked_off(url, handle, queue)
    call("GET /flows/{flow}/tree", flow)
    call(f"GET {jobs}", query="?state=failed")
    call(f"GET {jobs}", query="?state=completed")
    return call


def compare_routes(url: str) -> Iterator[str]:
    """Use every route with a plain and a partitioned queue; yield the differences."""
    with proxy_here(url) as http:
        callers: list[Caller] = []
        for partitions in (None, PARTITIONS):
            name = f"q-{uuid.uuid4().hex[:8]}"
            make_queue(url, name, partitions, dead_letter_queue=f"{name}-dead")
            callers.append(use_every_route(url, http, name))
        plain, parted = callers
        document = http.get("/openapi.json").json()["paths"]
    known = {f"{method.upper()} {path}" for path, methods in document.items() for method in methods}
    left = {route for route in known - plain.routes if "broadcast" not in route}
    assert left == {"GET /health", "GET /queues/{name}/events"}
    for before, after in zip(plain.found, parted.found, strict=True):
        if before != after:
            yield f"{before}\n{after}"


@pytest.mark.slow
def test_every_route_is_that_of_a_plain_queue(url: str) -> None:
    assert list(compare_routes(url)) == []


def test_references_name_the_whole_queue(http: httpx.Client, url: str, parted: str, queue_name: str) -> None:
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


def pages(http: httpx.Client, path: str, member: str, limit: int) -> list[list[Any]]:
    found: list[list[Any]] = []
    cursor = ""
    while True:
        answer = http.get(f"{path}{'&' if '?' in path else '?'}limit={limit}{cursor}")
        assert answer.status_code == 200, answer.text
        found.append(answer.json()[member])
        if answer.json()["cursor"] is None:
            return found
        cursor = f"&cursor={answer.json()['cursor']}"


@pytest.mark.parametrize("limit", [1, 7, 10, 100])
def test_pages_continue_in_the_next_partition(http: httpx.Client, parted: str, limit: int) -> None:
    for size in (10, 0, 9):  # a partition each
        for options in ({}, {"delay": 3_600_000}):
            jobs = [{"name": "n", "opts": options} for _ in range(size)] or [{"name": "last", "opts": options}]
            http.post(f"{parted}/jobs/bulk", json={"jobs": jobs})
    for state in ("waiting", "delayed"):
        found = pages(http, f"{parted}/jobs?state={state}", "jobs", limit)
        assert all(len(page) == limit for page in found[:-1])
        ids = [job["id"] for page in found for job in page]
        assert len(ids) == len(set(ids)) == 20
        some = http.get(f"{parted}/jobs?state={state}&start=8&end=12").json()["jobs"]
        assert [job["id"] for job in some] == ids[8:13]
        assert http.get(f"{parted}/jobs?state={state}&start=20").json() == {"jobs": [], "cursor": None}


def test_cursor_of_a_plain_queue_continues_when_it_grows(
    http: httpx.Client, base: str, queue_name: str, url: str
) -> None:
    for n in range(5):
        http.post(f"{base}/jobs", json={"name": "n", "data": n})
    first = http.get(f"{base}/jobs?state=waiting&limit=2").json()

    async def grow() -> None:
        async with Queue(queue_name, url) as queue:
            await queue.set_partitions(PARTITIONS)

    asyncio.run(grow())
    with running_proxy(url) as (other, _):
        second = other.get(f"{base}/jobs?state=waiting&cursor={first['cursor']}").json()
    assert [job["data"] for job in (*first["jobs"], *second["jobs"])] == [0, 1, 2, 3, 4]


def test_replay_all_has_pages(http: httpx.Client, queue_name: str, url: str) -> None:
    base = f"/queues/{queue_name}"
    make_queue(url, queue_name, PARTITIONS, dead_letter_queue=f"{queue_name}-dead")
    http.post(f"{base}/jobs/bulk", json={"jobs": [{"name": "bad", "opts": {"jobId": f"bad-{n}"}} for n in range(6)]})
    worked_off(url, handle, queue_name, log_failures=False)
    found = pages(http, f"{base}/dlq", "jobs", 4)
    assert [len(page) for page in found] == [4, 2]
    origins = {job["originalJobId"] for page in found for job in page}
    assert {job_id.rpartition("||")[2] for job_id in origins} == {f"bad-{n}" for n in range(6)}
    assert {job["originalQueue"] for page in found for job in page} == {queue_name}
    first = http.post(f"{base}/dlq/replay-all?count=4").json()
    second = http.post(f"{base}/dlq/replay-all?cursor={first['cursor']}").json()
    assert (first["replayed"], second["replayed"], second["cursor"]) == (4, 2, None)
    for job in (*first["jobs"], *second["jobs"]):
        assert http.get(f"{base}/jobs/{path_of(job['id'])}").json()["state"] == "waiting"


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


def test_events_of_all_partitions_are_streamed_once(http: httpx.Client, parted: str) -> None:
    def add() -> None:
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


def test_job_events_end_with_the_job(http: httpx.Client, parted: str, queue_name: str, url: str) -> None:
    jobs = add_to_partitions(http, parted)
    custom = http.post(f"{parted}/jobs", json={"name": "n", "opts": {"jobId": "order-7"}}).json()["id"]
    found: dict[str, list[Any]] = {}

    def follow(job: str) -> None:
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


def test_stream_follows_a_queue_that_grows(
    url: str, base: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glidemq_py._api.job_queue.LAYOUT_S", 0.05)
    monkeypatch.setattr("glidemq_py.proxy.hubs._POLL_S", 0.05)

    async def grow() -> None:
        async with Queue(queue_name, url) as queue:
            await queue.set_partitions(PARTITIONS)

    ids: list[str] = []

    def grow_and_add() -> None:
        ids.append(http.post(f"{base}/jobs", json={"name": "n"}).json()["id"])
        asyncio.run(grow())
        ids.extend(add_to_partitions(http, base))

    with running_proxy(url, keep_alive=200) as (http, _):
        seen = events_of(http, f"{base}/events", 1 + PARTITIONS, grow_and_add)
        assert [data["jobId"] for _, _, data in seen[:1]] == ids[:1]
        assert sorted(data["jobId"] for _, _, data in seen) == sorted(ids)
        # An id of the plain queue is good for the partitions too.
        rest = events_of(http, f"{base}/events", PARTITIONS, lambda: None, seen[0][0])
        assert sorted(data["jobId"] for _, _, data in rest) == sorted(ids[1:])


def test_streams_leave_no_connections(http: httpx.Client, parted: str, resp: RespClient) -> None:
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
def test_invalid_event_id_is_400(http: httpx.Client, parted: str, entry: str) -> None:
    answer = http.get(f"{parted}/events", headers={"last-event-id": entry})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
