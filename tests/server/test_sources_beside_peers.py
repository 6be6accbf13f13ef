"""What a Node peer sees and does of our ready sources: the rows of the table in docs/design/ready-sources.md.

The peer calls the documented functions, and reads streams, lists and sets, as a client of glide-mq does.
"""

import asyncio
from typing import Any

import pytest

from glidemq_py import Job, JobState, Queue
from glidemq_py.testing import RespClient
from tests.server.worker_support import WorkerFor
from tests.wire_library.support import BAND, WireQueue, load

pytestmark = pytest.mark.usefixtures("clean_check")
HOUR_MS = 3_600_000


@pytest.fixture
def peer(resp: RespClient, queue_name: str) -> WireQueue:
    load(resp)
    return WireQueue(resp, queue_name)


def catch_up(peer: WireQueue):
    """Set the peer's clock to that of the server."""
    seconds, microseconds = peer.resp.execute("TIME")
    peer.now = int(seconds) * 1_000 + int(microseconds) // 1_000


def take_all(peer: WireQueue) -> list[str]:
    """Promote what is due, fetch and complete every job that the peer's worker finds; return their ids."""
    catch_up(peer)
    peer.promote()
    ids = peer.pop(100)
    for job_id in ids:
        peer.activate(job_id, "")
        peer.complete(job_id, "")
    for entry, fields in peer.read(100):
        ids.append(fields["jobId"])
        peer.activate(fields["jobId"], entry)
        peer.complete(fields["jobId"], entry)
    return ids


async def ours(queue: Queue) -> list[Any]:
    """Fetch and complete all ready jobs; return their data."""
    data: Any = []
    while leases := await queue.fetch(100):
        data += [lease.job.data for lease in leases]
        await queue.leases.complete([(lease, None) for lease in leases])
    return data


async def test_rank_of_a_priority_is_a_priority_for_a_peer(queue: Queue, peer: WireQueue):
    low, high = await queue.add("a", rank=1), await queue.add("a", rank=2_047)
    delayed = await queue.add("a", rank=5, delay=HOUR_MS)
    assert peer.scores("scheduled")[delayed.id] // BAND == 2_043
    assert take_all(peer) == [high.id, low.id]
    assert peer.state(delayed.id) == "delayed"
    assert peer.remove(delayed.id) == 1
    assert await ours(queue) == []


async def test_lifo_within_a_priority_is_seen_while_it_is_ready(queue: Queue, peer: WireQueue):
    delayed = await queue.add("a", rank=5, lifo=True, delay=HOUR_MS)
    ready = await queue.add("a", rank=5, lifo=True)
    assert set(peer.scores("scheduled")) == {ready.id}
    assert take_all(peer) == [ready.id]
    assert peer.redis("ZSCORE", "delayed-own", delayed.id) is not None
    assert peer.remove(delayed.id) == 1
    assert peer.redis("ZSCORE", "delayed-own", delayed.id) is not None  # until our next promotion
    peer.redis("ZADD", "delayed-own", "XX", 1, delayed.id)
    assert await ours(queue) == []
    assert peer.redis("EXISTS", "delayed-own") == 0


@pytest.mark.parametrize(
    "options", [{"rank": 5_000}, {"rank": -5}, {"fair_key": "k"}, {"fair_key": "k", "priority": 2}]
)
async def test_peer_never_runs_promotes_or_counts_jobs_in_our_places(queue: Queue, peer: WireQueue, options: Any):
    ready = await queue.add("a", "ready", **options)
    delayed = await queue.add("a", "delayed", **options, delay=HOUR_MS)
    places = peer.redis("XLEN", "stream"), peer.redis("ZCARD", "scheduled"), peer.redis("LLEN", "priority")
    assert places == (0, 0, 0)
    assert take_all(peer) == []
    peer.now += 2 * HOUR_MS  # a clock that is ahead promotes nothing of ours
    assert peer.promote() == 0
    expected = {"prioritized"} if "rank" in options else {"waiting"}
    assert (peer.state(ready.id), peer.state(delayed.id)) in {(state, "delayed") for state in expected}
    assert await delayed.get_state() is JobState.DELAYED
    assert peer.remove(ready.id) == 1
    await delayed.promote()
    assert await ours(queue) == ["delayed"]  # the member of the removed job was dropped


async def test_changed_priority_puts_a_ranked_job_into_two_places_and_it_runs_once(queue: Queue, peer: WireQueue):
    job = await queue.add("a", "x", rank=5_000)
    keys = [f"job:{job.id}", "stream", "scheduled", "events"]
    catch_up(peer)
    assert peer.call("changePriority", keys, job.id, 3, "workers") == "error:not_in_scheduled"
    # A library that does not look for the job first:
    peer.redis("ZADD", "scheduled", 3 * BAND, job.id)
    peer.redis("HSET", f"job:{job.id}", "priority", 3)
    assert (set(peer.scores("scheduled")), peer.redis("ZCARD", "ranked-above")) == ({job.id}, 1)
    assert await ours(queue) == ["x"]


async def test_priority_of_a_peer_is_a_rank(queue: Queue, peer: WireQueue):
    catch_up(peer)
    job_id = peer.add(priority=48, data='"x"')
    found = await queue.get_job(job_id)
    assert found is not None
    assert found.rank == 2_000
    await queue.add("a", "above", rank=2_001)
    await queue.add("a", "below", rank=1_999)
    assert await ours(queue) == ["above", "x", "below"]


async def test_fair_job_that_a_peer_moves_returns_to_its_key(queue: Queue, peer: WireQueue):
    await queue.fair_keys.set_limits("k", concurrency=1)
    jobs = [await queue.add("a", n, fair_key="k") for n in range(3)]
    catch_up(peer)
    keys = [f"job:{jobs[2].id}", "stream", "scheduled", "events"]
    assert peer.call("changePriority", keys, jobs[2].id, 3, "workers") == "error:not_in_stream"
    peer.redis("ZADD", "scheduled", 3 * BAND, jobs[2].id)
    peer.redis("HSET", f"job:{jobs[2].id}", "state", "prioritized", "priority", 3)
    leases = await queue.fetch(10)
    assert len(leases) == 1  # the limit of the key holds
    await queue.leases.complete([(lease, None) for lease in leases])
    assert sorted([*(lease.job.data for lease in leases), *await ours(queue)]) == [0, 1, 2]


async def test_peer_completes_the_dependencies_of_our_job(queue: Queue, peer: WireQueue):
    first = await queue.add("a", "first")
    last = await queue.add("a", "last", depends_on=[first.id])
    assert peer.state(last.id) == "waiting-children"
    assert take_all(peer) == [first.id]
    assert take_all(peer) == [last.id]  # the completion has released the job, which the peer runs, too
    assert peer.state(last.id) == "completed"


# -- ids that contain the separator of ids and subscriptions ------------------------------------------------

BARRED = "a||b"


async def consistent(queue: Queue) -> bool:
    return not (await queue.check(repair=True, recheck_after=1)).findings


@pytest.mark.parametrize("options", [{}, {"delay": 50}, {"delay": 50, "priority": 3}, {"lifo": 1, "delay": 50}])
async def test_ids_with_bars_are_delayed_retried_and_kept(
    worker_for: WorkerFor, queue: Queue, peer: WireQueue, options: dict[str, int]
):
    catch_up(peer)
    peer.add(id="a", delay=HOUR_MS)  # not the job that a member of the scheduled set names
    assert peer.add(id=BARRED, attempts=2, opts='{"attempts":2,"backoff":50}', **options) == BARRED
    attempts: list[str] = []

    async def handle(job: Job):
        attempts.append(job.id)
        if len(attempts) == 1:
            raise ValueError

    assert await consistent(queue)
    job = await queue.get_job(BARRED)
    assert job is not None
    async with worker_for(handle):
        await job.wait_until_finished()
    assert attempts == [BARRED, BARRED]
    assert await consistent(queue)
    assert peer.state("a") == "delayed"


async def test_ids_with_bars_are_promoted_drained_and_obliterated(queue: Queue, peer: WireQueue, resp: RespClient):
    catch_up(peer)
    for job_id in ("a", "a||b", "a||b||c", "|||"):
        peer.add(id=job_id, delay=HOUR_MS, lifo=1)
    assert await queue.jobs.promote_delayed() == 4
    for job_id in ("a||b", "a||b||c"):
        job = await queue.get_job(job_id)
        assert job is not None
        await job.change_delay(HOUR_MS)
    await queue.drain(delayed=True)
    assert (await queue.get_job_counts()).delayed == 0
    assert peer.state("a||b") is None
    peer.add(id="c||d", delay=HOUR_MS)
    await ours(queue)
    await queue.obliterate(force=True)
    assert resp.keys(peer.key("*")) == []


def test_peer_promotes_and_drains_ids_with_bars(peer: WireQueue):
    for job_id, delay in (("a", 20), ("a||b", 10), ("c||d", 20)):
        peer.add(id=job_id, delay=delay)
    peer.now += 10
    assert peer.promote() == 1
    assert [fields["jobId"] for _, fields in peer.read(5)] == ["a||b"]
    assert peer.call("drain", ["stream", "scheduled", "events", "id", "lifo", "priority"], 1, "workers") == 2
    assert (peer.state("a||b"), peer.state("c||d")) == ("waiting", None)


@pytest.mark.parametrize(
    "found",
    [(), ("SADD", "list-active-ids", "old"), ("ZADD", "list-active-ids", 5, "old")],
    ids=["nothing", "running job of a peer", "stalled job of an older build"],
)
async def test_ids_of_active_list_jobs_are_in_the_set_of_the_peers(
    worker_for: WorkerFor, resp: RespClient, queue_name: str, queue: Queue, found: Any
):
    """An older build keeps a sorted set there: pops of a peer would be lost."""
    peer, kinds, jobs = WireQueue(resp, queue_name), set[str](), list[Job]()
    ids = "list-active-ids"

    async def handle(job: Job):
        kinds.add(peer.redis("TYPE", ids))
        assert peer.redis("SISMEMBER", ids, job.id) == 1

    if found:
        running = await queue.add("a", job_id="old", lifo=True)
        peer.redis("DEL", "lifo")
        peer.redis("HSET", "job:old", "state", "active", "processedOn", "5", "lastActive", "5", "fence", "1")
        peer.redis(*found)
        peer.redis("SET", "list-active", 1)
        assert (await queue.check(recheck_after=0)).ok
        jobs += [running] if found[0] == "ZADD" else []
    async with worker_for(handle, lock_duration=1000, stalled_interval=1000):
        jobs += [await queue.add("a", lifo=True), await queue.add("a", priority=3)]
        await asyncio.gather(*(job.wait_until_finished(timeout=30_000) for job in jobs))
    assert kinds == {"set"}
    assert peer.redis("SMEMBERS", ids) == (["old"] if found[:1] == ("SADD",) else [])
    assert await queue.settings.get_features() == {"list-ids": "0.2.0"}
