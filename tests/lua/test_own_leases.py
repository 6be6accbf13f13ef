"""Test leases: deadlines, expiry, timeouts, extension, release, and peers that judge by `lastActive`."""

import json
from typing import Any

import pytest

from glidemq_py._features.leases.tokens import CONSUMER, Leased, end_leases, extend_leases, release_leases
from tests.inside import AttemptStatus as S
from tests.inside import FindingKind, administration, working
from tests.lua.check_support import assert_repairs, check
from tests.lua.own_support import START, Fetched, OwnQueue
from tests.lua.test_beside_documented import SOURCE, Peer
from tests.wire_library import support as wire_support
from tests.wire_library.support import WireQueue

LOCK = 30_000
DAY = 86_400_000


def leasing(
    q: OwnQueue, want: int = 10, finished: Any = (), lock: int = LOCK, expiry: working.Expiry = working.Expiry.STALL,
    limits: Any = (), owner: str = "me",
) -> tuple[list[int], list[Fetched]]:  # fmt: skip
    call = working.exchange(
        q.meta, CONSUMER, want, finished, False, False, leasing=working.Leasing(owner, lock, expiry, limits)
    )
    reply = q.run(call)
    return list(reply.statuses), [Fetched(job, reply.now) for job in reply.jobs]


def lease(q: OwnQueue, **options: Any) -> Fetched:
    _, (job,) = leasing(q, 1, **options)
    return job


def extend(q: OwnQueue, job: Fetched, ms: int, limit: int = 0) -> tuple[list[int], list[int]]:
    reply = q.run(extend_leases(q.meta, ms, [Leased(*job.token, limit)]))
    return reply.statuses, reply.deadlines


def leases(q: OwnQueue) -> list[str]:
    return list(q.redis("ZRANGE", "leases", 0, -1))


def test_deadline_is_in_the_record_and_in_the_set(q: OwnQueue):
    job_id = q.add_job()
    job = lease(q)
    record = q.job(job_id)
    assert record["lastActive"] == str(START + LOCK)
    assert record["lease"] == f"1|{START}|{START + LOCK}|0|0|{job.entry}|me"
    assert q.redis("ZRANGE", "leases", 0, -1, "WITHSCORES") == [job_id, str(START + LOCK)]
    assert q.redis("HGET", "meta", "features") == "leases:0.2.0"
    assert leasing(q, 0, [job.completed()])[0] == [S.OK]
    assert leases(q) == []


@pytest.mark.parametrize("place", [{}, {"lifo": True}, {"priority": 3}], ids=["stream", "list", "priority"])
def test_a_lease_is_recovered_at_its_deadline_and_not_before(q: OwnQueue, place: Any):
    job_id = q.add_job(**place)
    job = lease(q, lock=5 * LOCK)
    q.advance(5 * LOCK - 1)
    if job.entry:
        q.let_idle(job.entry, 5 * LOCK, CONSUMER)
    assert q.recover_stalled().recovered == []
    assert leasing(q)[1] == []
    q.advance(1)
    assert q.recover_stalled().recovered == [job_id]
    assert (q.job(job_id)["stalledCount"], leases(q)) == ("1", [])
    assert q.take_one().id == job_id
    assert q.finish(job.completed()) == [S.STALE]


def end(q: OwnQueue) -> tuple[list[str], list[str]]:
    reply = q.run(end_leases(q.meta, False))
    return reply.recovered, reply.failed


def stalled_attempt(q: OwnQueue) -> Fetched:
    job = lease(q, expiry=working.Expiry.STALLED_ATTEMPT)
    q.advance(LOCK)
    return job


@pytest.mark.parametrize("place", [{}, {"lifo": True}, {"priority": 3}], ids=["stream", "list", "priority"])
def test_stalled_attempt_runs_again_at_once_until_its_last_one(q: OwnQueue, place: Any):
    job_id = q.add_job(opts=json.dumps({"attempts": 2, "backoff": {"type": "fixed", "delay": 60_000}}), **place)
    first = stalled_attempt(q)
    assert end(q) == ([job_id], [])
    record = q.job(job_id)
    assert (record["attemptsMade"], record["stalledCount"]) == ("1", "1")
    assert q.event_names(job_id)[-1] == "stalled"
    assert leasing(q, 0, [first.completed()])[0] == [S.STALE]
    assert stalled_attempt(q).id == job_id
    assert end(q) == ([], [job_id])
    record = q.job(job_id)
    assert (record["state"], record["attemptsMade"], record["stalledCount"]) == ("failed", "2", "2")
    assert record["failedReason"] == "Lock expired (max attempts reached)"
    assert record["failureReason"].startswith("max_attempts_exceeded|")
    lines = [json.loads(line) for line in record["failedAttempts"].splitlines()]
    assert [line[0] for line in lines] == [1, 2]
    assert leases(q) == []


@pytest.mark.parametrize(("policy", "stalls"), [(None, 3), (0, 1), (1, 1), (2, 2)])
def test_stalled_attempts_end_at_the_maximum_of_stalls(q: OwnQueue, policy: int | None, stalls: int):
    job_id = q.add_job(opts=json.dumps({"attempts": 100}))
    if policy is not None:
        q.redis("HSET", "meta", "maxStalledCount", policy)
    for _ in range(stalls - 1):
        stalled_attempt(q)
        assert end(q) == ([job_id], [])
    stalled_attempt(q)
    assert end(q) == ([], [job_id])
    record = q.job(job_id)
    assert (record["failedReason"], record["attemptsMade"]) == ("Lock expired (max stalls reached)", str(stalls))
    assert record["failureReason"].startswith("stalled|")


def test_stalled_attempt_of_a_discarded_job_is_its_last(q: OwnQueue):
    job_id = q.add_job(opts=json.dumps({"attempts": 100}))
    job = lease(q, expiry=working.Expiry.STALLED_ATTEMPT)
    q.redis("HSET", f"job:{job_id}", "discarded", "1")
    assert extend(q, job, LOCK)[0] == [S.OK]  # it keeps the kind of expiry
    q.advance(LOCK)
    assert end(q) == ([], [job_id])


def test_stalled_attempt_is_recovered_by_a_worker(q: OwnQueue):
    job_id = q.add_job(opts=json.dumps({"attempts": 2}))
    job = stalled_attempt(q)
    q.let_idle(job.entry, LOCK, CONSUMER)
    assert q.recover_stalled().recovered == [job_id]
    assert (q.job(job_id)["attemptsMade"], q.job(job_id)["stalledCount"]) == ("1", "1")


def test_timeout_rejects_a_late_result(q: OwnQueue):
    job_id = q.add_job(opts=json.dumps({"timeout": 10_000}))
    job = lease(q)
    limit = START + 10_000
    assert q.job(job_id)["lastActive"] == str(limit)
    q.advance(9_000)
    assert extend(q, job, 60_000, limit) == ([S.OK], [limit])
    q.advance(1_000)
    assert leasing(q, 0, [job.completed("1")], limits=[limit])[0] == [S.STALE]
    record = q.job(job_id)
    assert (record["state"], record["failedType"]) == ("failed", "JobTimeoutError")
    assert record["failedReason"] == "timed out after 10000 ms"


def test_release_of_an_owner_skips_nothing_when_others_report_between_two_pages(q: OwnQueue):
    for _ in range(1_500):
        q.add_job()
    others = [job for _ in range(2) for job in leasing(q, 500, owner="other")[1]]
    mine = leasing(q, 500, owner="gone", lock=LOCK + 1)[1]
    assert (len(others), len(mine)) == (1_000, 500)
    first = q.run(release_leases(q.meta, "gone", "", False))
    assert leasing(q, 0, [job.completed() for job in others[:400] + others[800:]])[0] == [S.OK] * 600
    released, cursor = first.released, first.cursor
    while cursor:
        reply = q.run(release_leases(q.meta, "gone", cursor, False))
        released, cursor = released + reply.released, reply.cursor
    assert (released, len(leases(q))) == (500, 400)
    assert check(q).findings == ()


def test_a_fetch_after_a_mass_expiry_is_full(q: OwnQueue):
    for _ in range(100):
        q.add_job()
    assert len(leasing(q, 100)[1]) == 100
    q.advance(LOCK)
    assert len(leasing(q, 100)[1]) == 100


@pytest.mark.parametrize("place", [{}, {"lifo": True}], ids=["stream", "list"])
def test_leases_that_are_over_are_ended_without_a_fetch(q: OwnQueue, place: Any):
    assert q.run(end_leases(q.meta, False)) == ([], [], -1, 0)
    again = q.add_job(**place)
    assert len(leasing(q, 1)[1]) == 1
    failing = q.add_job(opts=json.dumps({"timeout": 20_000}), **place)
    assert len(leasing(q, 1)[1]) == 1
    later = q.add_job(**place)
    assert len(leasing(q, 1, lock=LOCK * 2)[1]) == 1
    assert q.run(end_leases(q.meta, False)) == ([], [], 20_000, 0)
    q.advance(20_000)
    assert q.run(end_leases(q.meta, False)) == ([], [failing], 10_000, 0)
    q.advance(10_000)
    assert q.run(end_leases(q.meta, False)) == ([again], [], 30_000, 0)
    assert [q.state(each) for each in (again, failing, later)] == ["waiting", "failed", "active"]
    assert check(q).findings == ()


def test_few_leases_are_ended_per_call(q: OwnQueue):
    for _ in range(101):
        q.add_job()
    leasing(q, 101)
    q.advance(LOCK)
    first, second = q.run(end_leases(q.meta, False)), q.run(end_leases(q.meta, False))
    assert (len(first.recovered), first.wait) == (100, 0)
    assert (len(second.recovered), second.wait) == (1, -1)


def test_a_suspect_is_leased_alone(q: OwnQueue):
    suspect, others = q.add_job(), [q.add_job(), q.add_job()]
    job = q.take_one()
    q.redis("HSET", f"job:{suspect}", "suspectLimit", "2")
    q.finish(job.released())
    assert [job.id for job in leasing(q)[1]] == [suspect]
    assert sorted(job.id for job in leasing(q)[1]) == others


def test_stale_members_are_removed_after_their_deadline(q: OwnQueue):
    job_id = q.add_job()
    lease(q)
    q.run(administration.remove(q.meta, job_id))
    assert leases(q) == [job_id]
    assert check(q).findings == ()
    q.advance(LOCK)
    q.recover_stalled()
    assert leases(q) == []


def test_check_repairs_the_set(q: OwnQueue):
    job_id = q.add_job()
    lease(q)
    q.redis("UNLINK", "leases")
    assert_repairs(q, (FindingKind.LOST_JOB, job_id))
    assert leases(q) == [job_id]


@pytest.mark.parametrize("score", ["+inf", "9e99", str(START + 10 * DAY)])
def test_unusable_deadlines_are_repaired(q: OwnQueue, score: str):
    job_id = q.add_job()
    lease(q)
    q.redis("ZADD", "leases", score, job_id)
    q.advance(LOCK)
    q.recover_stalled()
    assert q.state(job_id) == "waiting"


# -- peers ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["wire", "documented"])
def peer(request: pytest.FixtureRequest, q: OwnQueue) -> WireQueue:
    """Return a peer that calls the wire library, or one that calls a library as Node peers have it."""
    name = q.name
    if request.param == "wire":
        wire_support.load(q.resp)
        return WireQueue(q.resp, name)
    q.resp.execute_everywhere("FUNCTION", "LOAD", "REPLACE", SOURCE)
    return Peer(q.resp, name)


@pytest.mark.parametrize("place", [{}, {"lifo": True}], ids=["stream", "list"])
def test_no_peer_takes_a_leased_job_early(q: OwnQueue, peer: WireQueue, place: Any):
    job_id = q.add_job(**place)
    job = lease(q, lock=10 * LOCK)
    q.advance(10 * LOCK - 1)
    peer.now = q.now
    recover = peer.recover_list_jobs if place else peer.recover_stalled
    if job.entry:
        q.let_idle(job.entry, 10 * LOCK, CONSUMER)
    recover()
    assert q.state(job_id) == "active"
    assert q.recover_stalled().recovered == []
    assert leasing(q, 0, [job.completed("1")])[0] == [S.OK]
    assert check(q).findings == ()


def test_a_peer_recovers_an_abandoned_lease(q: OwnQueue, peer: WireQueue):
    job_id = q.add_job()
    job = lease(q)
    q.advance(3 * LOCK)
    peer.now = q.now
    q.let_idle(job.entry, 3 * LOCK, CONSUMER)
    assert peer.recover_stalled() == 1
    assert q.state(job_id) == "waiting"
    taken, entry = peer.take_id()
    assert taken == job_id
    assert leasing(q, 0, [job.completed("1")])[0] == [S.STALE]
    assert leasing(q)[1] == []  # the peer's attempt is not a lease
    assert q.state(job_id) == "active"
    peer.complete(job_id, entry, "2")
    assert q.job(job_id)["returnvalue"] == "2"


def test_late_result_of_an_expired_lease_is_applied_while_nobody_has_the_job(q: OwnQueue):
    q.add_job()
    job = lease(q)
    q.advance(2 * LOCK)
    assert leasing(q, 0, [job.completed("1")])[0] == [S.OK]


def test_a_worker_s_attempt_cannot_be_extended_as_a_lease(q: OwnQueue):
    q.add_job()
    assert extend(q, q.take_one(), LOCK) == ([S.STALE], [0])


def test_release_of_an_owner_is_paged(q: OwnQueue):
    for _ in range(700):
        q.add_job()
    leasing(q, 700, owner="gone")
    for _ in range(20):
        q.add_job(lifo=True)
    leasing(q, 5, owner="other")
    leasing(q, 15, owner="gone")
    first = q.run(release_leases(q.meta, "gone", "", False))
    assert (first.released <= 500, first.cursor != "") == (True, True)
    second = q.run(release_leases(q.meta, "gone", first.cursor, False))
    assert (first.released + second.released, second.cursor, len(leases(q))) == (715, "", 5)
    assert check(q).findings == ()
