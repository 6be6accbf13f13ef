"""What a Node peer sees and does of our ready sources: the rows of the table in docs/design/ready-sources.md.

The peer calls the documented functions, and reads streams, lists and sets, as a client of glide-mq does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from glidemq_py import JobState, Queue
from glidemq_py.testing import RespClient
from tests.lua.wire_support import BAND, WireQueue, load

pytestmark = pytest.mark.usefixtures("clean_check")
HOUR_MS = 3_600_000


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url) as queue:
        yield queue


@pytest.fixture
def peer(resp: RespClient, queue_name: str) -> WireQueue:
    load(resp)
    return WireQueue(resp, queue_name)


def catch_up(peer: WireQueue) -> None:
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
    data: list[Any] = []
    while leases := await queue.fetch(100):
        data += [lease.job.data for lease in leases]
        await queue.complete_leases([(lease, None) for lease in leases])
    return data


async def test_rank_of_a_priority_is_a_priority_for_a_peer(queue: Queue, peer: WireQueue) -> None:
    low, high = await queue.add("a", rank=1), await queue.add("a", rank=2_047)
    delayed = await queue.add("a", rank=5, delay=HOUR_MS)
    assert peer.scores("scheduled")[delayed.id] // BAND == 2_043
    assert take_all(peer) == [high.id, low.id]
    assert peer.state(delayed.id) == "delayed"
    assert peer.remove(delayed.id) == 1
    assert await ours(queue) == []


async def test_lifo_within_a_priority_is_seen_while_it_is_ready(queue: Queue, peer: WireQueue) -> None:
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
async def test_peer_never_runs_promotes_or_counts_jobs_in_our_places(
    queue: Queue, peer: WireQueue, options: dict[str, Any]
) -> None:
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


async def test_changed_priority_puts_a_ranked_job_into_two_places_and_it_runs_once(
    queue: Queue, peer: WireQueue
) -> None:
    job = await queue.add("a", "x", rank=5_000)
    keys = [f"job:{job.id}", "stream", "scheduled", "events"]
    catch_up(peer)
    assert peer.call("changePriority", keys, job.id, 3, "workers") == "error:not_in_scheduled"
    # A library that does not look for the job first:
    peer.redis("ZADD", "scheduled", 3 * BAND, job.id)
    peer.redis("HSET", f"job:{job.id}", "priority", 3)
    assert (set(peer.scores("scheduled")), peer.redis("ZCARD", "ranked-above")) == ({job.id}, 1)
    assert await ours(queue) == ["x"]


async def test_priority_of_a_peer_is_a_rank(queue: Queue, peer: WireQueue) -> None:
    catch_up(peer)
    job_id = peer.add(priority=48, data='"x"')
    found = await queue.get_job(job_id)
    assert found is not None
    assert found.rank == 2_000
    await queue.add("a", "above", rank=2_001)
    await queue.add("a", "below", rank=1_999)
    assert await ours(queue) == ["above", "x", "below"]


async def test_fair_job_that_a_peer_moves_returns_to_its_key(queue: Queue, peer: WireQueue) -> None:
    await queue.set_fair_key_limits("k", concurrency=1)
    jobs = [await queue.add("a", n, fair_key="k") for n in range(3)]
    catch_up(peer)
    keys = [f"job:{jobs[2].id}", "stream", "scheduled", "events"]
    assert peer.call("changePriority", keys, jobs[2].id, 3, "workers") == "error:not_in_stream"
    peer.redis("ZADD", "scheduled", 3 * BAND, jobs[2].id)
    peer.redis("HSET", f"job:{jobs[2].id}", "state", "prioritized", "priority", 3)
    leases = await queue.fetch(10)
    assert len(leases) == 1  # the limit of the key holds
    await queue.complete_leases([(lease, None) for lease in leases])
    assert sorted([*(lease.job.data for lease in leases), *await ours(queue)]) == [0, 1, 2]


async def test_peer_completes_the_dependencies_of_our_job(queue: Queue, peer: WireQueue) -> None:
    first = await queue.add("a", "first")
    last = await queue.add("a", "last", depends_on=[first.id])
    assert peer.state(last.id) == "waiting-children"
    assert take_all(peer) == [first.id]
    assert take_all(peer) == [last.id]  # the completion has released the job, which the peer runs, too
    assert peer.state(last.id) == "completed"
