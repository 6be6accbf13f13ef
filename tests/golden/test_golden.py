"""We read and process jobs of Node glide-mq 0.15, and write ours in the same format.

The golden files were recorded with a Node worker that wrote one progress and one log line a job and failed each job
of kind `attempts` once; the handler here does the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import RespClient
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.golden.snapshot import comparable, load, restore, snapshot
from tests.inside import decode_data

KINDS = ("plain", "attempts", "customId", "customIdDup", "gzip", "timeout", "ttl", "prioritized", "lifo",
         "removeOnComplete", "ordering", "group", "groupRate", "tokenBucket", "dedupSimple", "dedupThrottle",
         "dedupDebounce")  # fmt: skip
WRITTEN = (*KINDS, "delayed", "delayedPriority")


def job_data(golden: dict[str, Any], queue: str, i: int) -> Any:
    """The data of the i-th golden job: non-ASCII text, nesting, null and a float on purpose."""
    jobs = [value["value"] for key, value in sorted(golden["added"].items()) if f"{{{queue}}}:job:" in key]
    return decode_data(jobs[min(i, len(jobs) - 1)]["data"])


def options(kind: str, i: int) -> dict[str, Any]:
    """The options that the Node producer gave the i-th job of a kind."""
    by_kind: dict[str, dict[str, Any]] = {
        "attempts": {"attempts": 3, "backoff": {"type": ("fixed", "exponential")[i % 2], "delay": 50}},
        "customId": {"job_id": f"custom-a-{i}"},
        "customIdDup": {"job_id": "dup-a"},
        "timeout": {"timeout": 5000},
        "ttl": {"ttl": 1 if i == 0 else 60_000},
        "prioritized": {"priority": 3 - i},
        "lifo": {"lifo": True},
        "delayed": {"delay": 60_000 + 50 * i},
        "delayedPriority": {},
        "ordering": {"ordering": {"key": "ord-A"}},
        "group": {"ordering": {"key": f"grp-{i % 2}", "concurrency": 2}},
        "groupRate": {"ordering": {"key": "grl", "concurrency": 5, "rate_limit": {"max": 1, "duration": 200}}},
        "tokenBucket": {
            "ordering": {"key": "tb", "concurrency": 5, "token_bucket": {"capacity": 2, "refill_rate": 10}},
            "cost": 1,
        },
        "dedupSimple": {"deduplication": {"id": "d-simple", "mode": "simple"}},
        "dedupThrottle": {"deduplication": {"id": "d-throttle", "mode": "throttle", "ttl": 2000}},
        "dedupDebounce": {"delay": 300, "deduplication": {"id": "d-debounce", "mode": "debounce", "ttl": 300}},
    }
    return by_kind.get(kind, {})


class NodeLikeHandler:
    """Process a job like the recording Node worker."""

    def __init__(self):
        self.failed: set[str] = set()

    async def __call__(self, job: Job) -> dict[str, Any]:
        if job.name == "attempts" and job.id not in self.failed:
            self.failed.add(job.id)
            raise RuntimeError("planned failure 1")
        await job.update_progress({"pct": 50, "by": "node"})
        await job.log("line from node")
        return {"by": "node", "id": job.id, "name": job.name, "echo": job.data}


@pytest.fixture(params=("server", "cluster"))
def place(request: pytest.FixtureRequest) -> GlideMQServer:
    """One server, and a cluster: the protocol is the same."""
    place: GlideMQServer = request.getfixturevalue(request.param)
    return place


@pytest.fixture
def url(place: GlideMQServer) -> str:
    return place.url


@pytest.fixture
def resp(place: GlideMQServer) -> Iterator[RespClient]:
    with RespClient.from_url(place.url) as client:
        yield client


@pytest.fixture
def golden_queue(kind: str, url: str, resp: RespClient) -> Iterator[str]:
    """The queue's name of a golden file, with nothing in it before and after."""
    queue = kind.lower()
    for _ in resp.keys(f"glide:{{{queue}}}:*"):
        pytest.fail(f"queue {queue!r} is not empty: golden names are for these tests alone")
    yield queue
    for key in resp.keys(f"glide:{{{queue}}}:*"):
        resp.execute("DEL", key)


async def run_until_idle(url: str, queue: str, count: int):
    """A worker of ours works on the queue until ``count`` jobs have ended."""
    ended = asyncio.Semaphore(0)
    worker = Worker(queue, NodeLikeHandler(), url, concurrency=2)
    worker.on("completed", lambda *_: ended.release())
    async with worker, asyncio.timeout(120):
        for _ in range(count):
            await ended.acquire()


@pytest.mark.parametrize("kind", KINDS)
async def test_node_jobs_are_processed_like_node(kind: str, golden_queue: str, url: str, resp: RespClient):
    golden, queue = load(kind), golden_queue
    restore(resp, golden["added"], expire_in=60_000)
    expired = 1 if kind == "ttl" else 0
    jobs = sum(":job:" in key for key in golden["added"]) - expired
    await run_until_idle(url, queue, jobs)
    ours, theirs = comparable(snapshot(resp, queue)), comparable(golden["finished"])
    if kind == "removeOnComplete":
        # Their removal leaves the log (W69); ours deletes all keys.
        assert theirs.pop("log:1")
    forget_active_events(ours, theirs)
    assert ours == theirs


def forget_active_events(ours: dict[str, Any], theirs: dict[str, Any]):
    """`active` is emitted for list jobs; by Node only if one call completed a job and fetched the next."""
    for side in (ours, theirs):
        kind, ttl, events = side["events"]
        side["events"] = (kind, ttl, {e: n for e, n in events.items() if ("event", "active") not in e})


@pytest.mark.parametrize("kind", KINDS)
async def test_jobs_of_node_are_read(kind: str, golden_queue: str, url: str, resp: RespClient):
    golden = load(kind)
    restore(resp, golden["finished"])
    async with Queue(golden_queue, url) as queue:
        left = {finding.subject for finding in (await queue.check()).findings}
        # Their removal leaves the log (W69).
        assert left == ({"glide:{removeoncomplete}:log:1"} if kind == "removeOnComplete" else set())
        jobs = [job async for job in queue.iter_jobs("completed")]
        ids = {member for member, _ in golden["finished"][f"glide:{{{golden_queue}}}:completed"]["value"]}
        assert {job.id for job in jobs} == ids
        for job in jobs:
            index = int(job.id) - 1 if job.id.isdigit() else int(job.id[-1]) if kind == "customId" else 0
            assert job.data == job_data(golden, golden_queue, index)
            assert job.returnvalue is not None
            assert job.returnvalue["echo"] == job.data
            assert job.progress == {"pct": 50, "by": "node"}
            assert await job.logs() == ["line from node"]
            assert job.finished_on is not None
            assert job.processed_on is not None


@pytest.mark.parametrize("kind", WRITTEN)
async def test_our_jobs_match_node_format(kind: str, golden_queue: str, url: str, resp: RespClient):
    golden, name = load(kind), golden_queue
    stored = kind in ("delayedPriority", "removeOnComplete")
    async with Queue(name, url, compression="gzip" if kind == "gzip" else "none") as queue:
        returned = []
        for i in range(3):
            given = golden_options(golden, name, i) if stored else options(kind, i)
            job = await queue.add(kind, job_data(golden, name, i), **given)
            returned.append(job.id if job.outcome in ("added", "replaced") else None)
    assert returned == golden["returned"]
    assert comparable(snapshot(resp, name)) == comparable(golden["added"])


def golden_options(golden: dict[str, Any], queue: str, i: int) -> dict[str, Any]:
    """Options in our words, from the stored ones of the i-th golden job."""
    stored = json.loads(golden["added"][f"glide:{{{queue}}}:job:{i + 1}"]["value"]["opts"])
    names = {"removeOnComplete": "remove_on_complete", "delay": "delay", "priority": "priority"}
    return {names[key]: value for key, value in stored.items()}


# -- schedulers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["scheduler"])
async def test_our_schedulers_match_node_format(kind: str, golden_queue: str, url: str, resp: RespClient):
    entries = load(kind)["added"]["glide:{scheduler}:schedulers"]["value"]
    theirs = {name: json.loads(text) for name, text in entries.items()}
    templates = {name: (each["template"]["name"], each["template"]["data"]) for name, each in theirs.items()}
    async with Queue(golden_queue, url) as queue:
        await queue.schedulers.upsert("s-every", every=400, limit=3, template=templates["s-every"])
        await queue.schedulers.upsert(
            "s-cron", pattern="*/10 * * * *", tz="Europe/Prague", template=templates["s-cron"]
        )
    written = {name: json.loads(text) for name, text in resp.hash("glide:{scheduler}:schedulers").items()}
    for side in (theirs, written):
        for each in side.values():
            assert type(each["nextRun"]) is int
            each["nextRun"] = "<time>"
    assert written == theirs
    assert [key for key in comparable(snapshot(resp, golden_queue)) if key != "meta"] == ["schedulers"]


@pytest.mark.parametrize("kind", ["scheduler"])
async def test_node_schedulers_are_fired_like_node(kind: str, golden_queue: str, url: str, resp: RespClient):
    golden, key = load(kind), "glide:{scheduler}:schedulers"
    cron = json.loads(golden["added"][key]["value"]["s-cron"])
    seconds, _ = resp.execute("TIME")
    golden["added"][key]["value"]["s-cron"] = json.dumps(cron | {"nextRun": (int(seconds) + 60) * 1000})
    restore(resp, golden["added"])
    async with Queue(golden_queue, url) as queue:
        read = {each.name: each for each in await queue.schedulers.get_all()}
        assert (read["s-every"].schedule.every, read["s-every"].schedule.limit) == (400, 3)
        assert read["s-cron"].schedule.tz == "Europe/Prague"
        assert read["s-cron"].data == cron["template"]["data"]
    await run_until_idle(url, golden_queue, 3)
    ours, theirs = comparable(snapshot(resp, golden_queue)), comparable(golden["finished"])
    assert ours.pop("schedulers")[2].keys() == theirs.pop("schedulers")[2].keys() == {"s-cron"}
    forget_active_events(ours, theirs)
    assert ours == theirs
