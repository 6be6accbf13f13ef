"""Test limits set while a queue runs, delayed attempts, rate limited groups, and token windows."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_py._core.calls import Call, administration, pack, unpack, working
from glidemq_py._core.calls.adding import row
from glidemq_py._core.calls.working import AttemptStatus, ExchangeFlags, ExchangeReply
from glidemq_py._features.limits import queue_api as limiting
from tests.lua.own_support import BAND, Fetched, OwnQueue
from tests.lua.test_own_groups import add, fetch, ids, member


def exchange(q: OwnQueue, want: int, *finished: Any, tokens: Any = None, limiter: Any = None) -> ExchangeReply:
    return q.run(working.exchange(q.meta, "py-1", want, finished, False, False, limiter, tokens))


def delayed(job: Fetched, delay: int = 0, until: int = 0, data: str | None = None) -> working.Finished:
    return working.delayed(*job.token, delay, until, data)


def limited(job: Fetched, ms: int = 1000, *, replace: bool = False, how: str = "front", keep: working.Keep = 0) -> Any:
    return working.group_limited(*job.token, ms, replace, how, keep)


def group(q: OwnQueue, key: str = "k") -> limiting.GroupReply:
    found = q.run(limiting.group_info(q.meta, key))
    assert found is not None
    return found


def limit(q: OwnQueue, key: str = "k", *, concurrency: Any = False, rate: Any = False, bucket: Any = False) -> None:
    assert q.run(limiting.limit_group(q.meta, key, concurrency, rate, bucket)) == 1


def hold(q: OwnQueue, ms: int, *, key: str = "k", replace: bool = False) -> int:
    return q.run(limiting.block_group(q.meta, key, ms, replace))


def plain(q: OwnQueue, count: int) -> None:
    add(q, *[["a", "null", "{}"] for _ in range(count)])


# -- the queue ---------------------------------------------------------------------------------------------------


def test_global_concurrency_can_be_set_kept_and_removed(q: OwnQueue) -> None:
    q.run(limiting.limit_queue(q.meta, 2, False))
    plain(q, 5)
    jobs, _ = fetch(q, 10)
    assert len(jobs) == 2
    q.run(limiting.limit_queue(q.meta, False, (1, 1000)))
    assert q.redis("HMGET", "meta", "globalConcurrency", "rateLimitMax", "rateLimitDuration") == ["2", "1", "1000"]
    q.run(limiting.limit_queue(q.meta, 0, 0))
    assert q.redis("HMGET", "meta", "globalConcurrency", "rateLimitMax", "rateLimitDuration") == [None] * 3
    assert len(fetch(q, 10)[0]) == 3


def limits(q: OwnQueue) -> tuple[int, ...]:
    return tuple(q.run(limiting.queue_limits(q.meta)))[:5]


def test_use_of_the_rate_is_that_of_the_current_window(q: OwnQueue) -> None:
    def use() -> tuple[int, int]:
        found = q.run(limiting.queue_limits(q.meta))
        return found.rate_used, found.rate_wait

    plain(q, 9)
    assert use() == (0, 0)
    q.run(limiting.limit_queue(q.meta, False, (3, 1000)))
    assert use() == (0, 0)  # a fetch begins the window
    fetch(q, 2)
    q.advance(400)
    assert use() == (2, 600)
    fetch(q, 2)
    assert use() == (3, 600)
    q.advance(600)
    assert use() == (0, 0)
    fetch(q, 1)
    q.run(limiting.limit_queue(q.meta, False, 0))
    assert use() == (0, 0)


def test_limit_with_a_time_to_live_gives_way_to_the_one_before(q: OwnQueue) -> None:
    q.run(limiting.limit_queue(q.meta, 4, (9, 1000)))
    q.run(limiting.limit_queue(q.meta, 1, False, 500))
    q.advance(100)
    q.run(limiting.limit_queue(q.meta, False, (1, 2000), 1000))
    plain(q, 20)
    assert limits(q) == (1, 1, 2000, 400, 1000)
    reply = exchange(q, 10)
    assert (len(reply.jobs), reply.next_due, bool(reply.flags & ExchangeFlags.LIMITED)) == (1, 400, True)
    q.advance(400)
    assert limits(q) == (4, 1, 2000, -1, 600)  # over before anything was written
    reply = exchange(q, 10)
    assert (len(reply.jobs), reply.next_due) == (0, 600)
    assert q.redis("HMGET", "meta", "globalConcurrency", "rateLimitMax") == ["4", "1"]
    q.advance(600)
    assert limits(q) == (4, 9, 1000, -1, -1)
    assert len(exchange(q, 10).jobs) == 3
    assert q.redis("HMGET", "meta", "rateLimitMax", "rateLimitDuration", "temporaryLimits") == ["9", "1000", None]


def test_later_settings_of_a_temporary_limit(q: OwnQueue) -> None:
    q.run(limiting.limit_queue(q.meta, 4, False))
    q.run(limiting.limit_queue(q.meta, 1, False, 500))
    q.run(limiting.limit_queue(q.meta, 2, False, 900))  # keeps the limit before the first one
    assert limits(q) == (2, 0, 0, 900, -1)
    q.advance(900)
    q.run(limiting.limit_queue(q.meta, 3, False, 100))
    q.advance(100)
    assert limits(q)[0] == 4
    q.run(limiting.limit_queue(q.meta, 3, False, 100))
    q.run(limiting.limit_queue(q.meta, 5, False))  # for good
    assert q.redis("HGET", "meta", "temporaryLimits") is None
    q.advance(100)
    assert limits(q) == (5, 0, 0, -1, -1)
    q.run(limiting.limit_queue(q.meta, 0, False, 100))  # temporarily none
    assert limits(q) == (0, 0, 0, 100, -1)
    q.advance(100)
    plain(q, 9)
    assert len(exchange(q, 9).jobs) == 5


def test_unusable_temporary_limits_are_ignored(q: OwnQueue) -> None:
    q.run(limiting.limit_queue(q.meta, 2, False))
    q.redis("HSET", "meta", "temporaryLimits", "soon")
    plain(q, 3)
    assert limits(q) == (2, 0, 0, -1, -1)
    assert len(exchange(q, 3).jobs) == 2


def test_higher_limit_wakes_idle_workers(q: OwnQueue) -> None:
    q.run(limiting.limit_queue(q.meta, 1, False))
    plain(q, 3)
    fetch(q, 1)
    assert exchange(q, 1).flags & ExchangeFlags.LIMITED
    before = q.redis("XLEN", "wake")
    q.run(limiting.limit_queue(q.meta, 2, False))
    assert q.redis("XLEN", "wake") > before


def test_permits_are_consumed_only_by_fetched_jobs(q: OwnQueue) -> None:
    add(q, *[["a", "null", "{}", "", 0, 0, 0, 0, 1] for _ in range(3)])
    plain(q, 4)
    q.advance(10)  # the first three have expired: they are met and set aside
    reply = exchange(q, 5, limiter=(4, 1000))
    assert [job[0] for job in reply.jobs] == ["4", "5", "6", "7"]
    assert q.redis("HGET", "rate", "count") == "4"
    exchange(q, 5, limiter=(4, 1000))
    assert q.redis("HGET", "rate", "count") == "4"


# -- groups ------------------------------------------------------------------------------------------------------


def test_unknown_group_has_no_info(q: OwnQueue) -> None:
    assert q.run(limiting.group_info(q.meta, "k")) is None


def test_group_info_returns_state_and_limits(q: OwnQueue) -> None:
    add(q, *[member("k", 2, rate=(5, 1000), bucket=(7000, 500)) for _ in range(4)])
    fetch(q, 10)
    assert group(q) == limiting.GroupReply(2, 2, 3, 2, 5, 1000, 7000, 500, 0)
    hold(q, 400)
    assert group(q).limited_until == q.now + 400


def test_group_limits_can_be_set_kept_and_removed(q: OwnQueue) -> None:
    limit(q, concurrency=3, rate=(2, 1000), bucket=(4000, 1000))
    assert group(q) == limiting.GroupReply(0, 0, 1, 3, 2, 1000, 4000, 1000, 0)
    limit(q, concurrency=4)
    assert group(q)[3:8] == (4, 2, 1000, 4000, 1000)
    limit(q, rate=0)
    assert group(q)[3:8] == (4, 0, 0, 4000, 1000)
    limit(q, bucket=0)
    assert group(q)[3:8] == (4, 0, 0, 0, 0)
    assert q.redis("HGET", "group:k", "tbTokens") is None
    limit(q, concurrency=0)
    add(q, *[member("k", 0) for _ in range(3)])  # which say nothing themselves
    assert len(fetch(q, 10)[0]) == 3


def test_new_group_has_concurrency_one_by_default(q: OwnQueue) -> None:
    limit(q, rate=(9, 1000))
    assert group(q).concurrency == 1


def test_higher_group_concurrency_starts_parked_jobs(q: OwnQueue) -> None:
    add(q, *[member("k", 0) for _ in range(4)])
    fetch(q, 1)
    fetch(q, 10)
    assert group(q).parked == 3
    limit(q, concurrency=3)
    assert len(fetch(q, 10)[0]) == 2
    assert group(q).active == 3


def test_removed_rate_limit_takes_effect_immediately(q: OwnQueue) -> None:
    add(q, *[member("k", 10, rate=(1, 60_000)) for _ in range(3)])
    assert len(fetch(q, 10)[0]) == 1
    limit(q, rate=0)
    assert len(fetch(q, 10)[0]) == 2
    assert q.redis("EXISTS", "ratelimited") == 0


def test_hold_stays_when_limits_change(q: OwnQueue) -> None:
    add(q, *[member("k", 10, rate=(1, 60_000)) for _ in range(3)])
    fetch(q, 10)
    hold(q, 5000, replace=True)
    limit(q, rate=0, concurrency=0)
    assert fetch(q, 10)[0] == []
    q.advance(5000)
    assert len(fetch(q, 10)[0]) == 2


def test_hold_affects_only_its_group(q: OwnQueue) -> None:
    add(q, member("k"), member("j"), member("k"))
    assert hold(q, 500) == q.now + 500
    jobs, reply = fetch(q, 10)
    assert ids(jobs) == ["2"]
    assert reply[3] == 500
    assert q.events()[-1] == {
        "event": "group-rate-limited", "jobId": "", "groupKey": "k", "duration": "500", "resumeAt": str(q.now + 500),
    }  # fmt: skip
    q.advance(500)
    assert ids(fetch(q, 10)[0]) == ["1"]


def test_later_hold_stays_unless_replaced(q: OwnQueue) -> None:
    assert hold(q, 500) == q.now + 500
    assert hold(q, 100) == q.now + 500
    assert hold(q, 100, replace=True) == q.now + 100
    assert hold(q, 900) == q.now + 900


def test_returning_job_waits_for_held_group(q: OwnQueue) -> None:
    add(q, member("k"), member("k"))
    (first,), _ = fetch(q, 5)
    fetch(q, 5, first.failed(limit=3, backoff=10))
    hold(q, 500)
    q.advance(10)
    assert fetch(q, 5)[0] == []
    assert group(q)[:2] == (1, 2)  # it keeps its slot
    q.advance(490)
    assert ids(fetch(q, 5)[0]) == ["1"]
    assert group(q)[:2] == (1, 1)


def test_released_job_keeps_its_place_in_group(q: OwnQueue) -> None:
    add(q, member("k"), member("k"), member("k"))
    (first,), _ = fetch(q, 1)
    fetch(q, 0, first.released())  # by a worker that fetches nothing
    done = []
    jobs, _ = fetch(q, 1)
    while jobs:
        done += ids(jobs)
        jobs, _ = fetch(q, 1, jobs[0].completed())
    assert done == ["1", "2", "3"]
    assert group(q)[:3] == (0, 0, 4)


def test_full_bucket_does_not_accumulate(q: OwnQueue) -> None:
    add(q, *[member("k", 10, bucket=(2000, 1000)) for _ in range(6)])
    q.advance(60_000)
    assert len(fetch(q, 10)[0]) == 2
    q.advance(1)
    assert fetch(q, 10)[0] == []
    q.advance(999)
    assert len(fetch(q, 10)[0]) == 1


def test_too_costly_job_does_not_block_its_group(q: OwnQueue) -> None:
    add(q, *[member("k", 1, bucket=(5000, 1000), cost=4000), member("k", 1)])
    limit(q, bucket=(1000, 1000))
    assert ids(fetch(q, 10)[0]) == ["2"]
    assert q.job("1")["failedReason"] == "cost exceeds token bucket capacity"
    assert group(q)[:2] == (1, 0)


# -- later -------------------------------------------------------------------------------------------------------


def test_delay_does_not_count_an_attempt(q: OwnQueue) -> None:
    plain(q, 1)
    (job,) = q.fetch(1)
    q.redis("HSET", "job:1", "stalledCount", "1")
    reply = exchange(q, 1, delayed(job, 300))
    assert reply.statuses == [AttemptStatus.DELAYED]
    assert reply.next_due == 300
    record = q.job("1")
    assert (record["state"], record["delay"], record["attemptsMade"]) == ("delayed", "300", "0")
    assert "stalledCount" not in record
    assert q.redis("ZSCORE", "scheduled", "1") == str(q.now + 300)
    assert (q.pending(), q.counts()["active"]) == ([], 0)
    assert q.events("1")[-1] == {"event": "delay-changed", "jobId": "1", "delay": "300"}
    q.advance(300)
    assert q.take_one().id == "1"


@pytest.mark.parametrize("ahead", [5000, -5000])
def test_delay_until_past_time_is_due_now(q: OwnQueue, ahead: int) -> None:
    plain(q, 1)
    (job,) = q.fetch(1)
    q.finish(delayed(job, 0, q.now + ahead))
    assert q.job("1")["delay"] == str(max(0, ahead))


def test_delay_can_replace_data(q: OwnQueue) -> None:
    plain(q, 1)
    (job,) = q.fetch(1)
    q.finish(delayed(job, 0, 0, '{"step":"two"}'))
    assert q.take_one().fields["data"] == '{"step":"two"}'


def test_list_job_can_be_delayed(q: OwnQueue) -> None:
    q.add_job(priority=4)
    job = q.take_one()
    assert job.entry == ""
    assert q.finish(delayed(job, 50)) == [AttemptStatus.DELAYED]
    assert q.redis("ZSCORE", "scheduled", "1") == str(4 * BAND + q.now + 50)
    assert q.redis("GET", "list-active") == "0"
    assert q.redis("ZCARD", "list-active-ids") == 0
    q.advance(50)
    assert q.take_one().id == "1"


def test_repeated_delay_is_already_and_late_one_is_stale(q: OwnQueue) -> None:
    plain(q, 1)
    (job,) = q.fetch(1)
    q.finish(delayed(job, 50))
    assert q.finish(delayed(job, 50)) == [AttemptStatus.ALREADY]
    q.advance(50)
    again = q.take_one()
    assert q.finish(delayed(job, 50)) == [AttemptStatus.STALE]
    q.redis("UNLINK", "job:1")
    assert q.finish(delayed(again, 50)) == [AttemptStatus.GONE]


def test_delayed_ordered_job_keeps_its_slot(q: OwnQueue) -> None:
    add(q, member("k"), member("k"))
    (first,), _ = fetch(q, 5)
    fetch(q, 5, delayed(first, 100))
    assert fetch(q, 5)[0] == []
    q.advance(100)
    (first,), _ = fetch(q, 5)
    assert first.id == "1"
    assert ids(fetch(q, 5, first.completed())[0]) == ["2"]


# -- the group later -----------------------------------------------------------------------------------------------


def test_job_rate_limits_its_group(q: OwnQueue) -> None:
    add(q, member("k"), member("k"), member("j"))
    (first, other), _ = fetch(q, 5)
    assert (first.id, other.id) == ("1", "3")
    jobs, reply = fetch(q, 5, limited(first, 700))
    assert (jobs, reply[1], reply[3]) == ([], [AttemptStatus.LIMITED], 700)
    assert q.state("1") == "group-waiting"
    assert group(q)[:2] == (1, 2)
    assert q.pending() == [(other.entry, "py-1")]
    assert q.events("1")[-1]["event"] == "group-rate-limited"
    q.advance(700)
    (first,), _ = fetch(q, 5)
    assert (first.id, q.job("1")["attemptsMade"]) == ("1", "0")
    assert ids(fetch(q, 5, first.completed())[0]) == ["2"]


def test_rate_limited_job_can_go_to_the_back(q: OwnQueue) -> None:
    add(q, *[member("k") for _ in range(3)])
    (first,), _ = fetch(q, 5)
    fetch(q, 5, limited(first, 100, how="back"))
    assert group(q).active == 0
    q.advance(100)
    done = []
    jobs, _ = fetch(q, 5)
    while jobs:
        done += ids(jobs)
        jobs, _ = fetch(q, 5, jobs[0].completed())
    assert done == ["2", "3", "1"]
    assert group(q)[:3] == (0, 0, 4)


def test_rate_limited_job_can_fail(q: OwnQueue) -> None:
    add(q, member("k"), member("k"))
    (first,), _ = fetch(q, 5)
    jobs, reply = fetch(q, 5, limited(first, 100, how="fail"))
    assert (jobs, reply[1]) == ([], [AttemptStatus.FAILED])
    record = q.job("1")
    assert (record["failedReason"], record["failedType"]) == ("group rate limited", "GroupRateLimitError")
    assert q.redis("ZRANGE", "failed", 0, -1) == ["1"]
    assert q.metric("failed")["c"] == 1
    assert group(q)[:2] == (0, 1)
    q.advance(100)
    assert ids(fetch(q, 5)[0]) == ["2"]


def test_rate_limited_job_that_fails_can_be_removed(q: OwnQueue) -> None:
    add(q, member("k"))
    (first,), _ = fetch(q, 5)
    q.finish(limited(first, 100, how="fail", keep=1))
    assert q.redis("EXISTS", "job:1", q.key("failed")) == 0


def test_repeated_and_late_rate_limit_reports(q: OwnQueue) -> None:
    add(q, member("k"))
    (first,), _ = fetch(q, 5)
    assert q.finish(limited(first, 100)) == [AttemptStatus.LIMITED]
    at = group(q).limited_until
    q.advance(50)
    assert q.finish(limited(first, 100)) == [AttemptStatus.ALREADY]
    assert group(q).limited_until == at
    q.advance(50)
    fetch(q, 5)
    assert q.finish(limited(first, 100)) == [AttemptStatus.STALE]


def test_parked_job_with_slot_can_be_removed(q: OwnQueue) -> None:
    add(q, member("k"), member("k"))
    (first,), _ = fetch(q, 5)
    fetch(q, 5, limited(first, 100))
    q.run(administration.remove(q.meta, "1"))
    assert group(q)[:2] == (0, 1)
    q.advance(100)
    assert ids(fetch(q, 5)[0]) == ["2"]


def test_parked_job_with_slot_can_expire(q: OwnQueue) -> None:
    add(q, member("k"), member("k"))
    (first,), _ = fetch(q, 5)
    fetch(q, 5, limited(first, 100))
    q.redis("HSET", "job:1", "expireAt", "1")
    q.advance(100)
    assert ids(fetch(q, 5)[0]) == ["2"]
    assert q.state("1") == "failed"


# -- tokens --------------------------------------------------------------------------------------------------------


MINUTE = 60_000


def window(q: OwnQueue, duration: int) -> str:
    return f"tpm:{q.now // duration}"


def test_tokens_are_counted_when_jobs_end(q: OwnQueue) -> None:
    plain(q, 4)
    jobs = q.fetch(2)
    reply = exchange(q, 1, jobs[0].completed(), jobs[1].failed(), tokens=(100, MINUTE, [30, 60]))
    assert len(reply.jobs) == 1
    assert q.redis("GET", window(q, MINUTE)) == "90"
    assert 0 < q.redis("PTTL", window(q, MINUTE)) <= MINUTE
    last = Fetched(reply.jobs[0], reply.now)
    reply = exchange(q, 1, last.completed(), tokens=(100, MINUTE, [10]))
    assert (reply.jobs, bool(reply.flags & ExchangeFlags.LIMITED)) == ([], True)
    assert reply.next_due == MINUTE - q.now % MINUTE
    q.advance(reply.next_due)
    assert len(exchange(q, 1, tokens=(100, MINUTE, [])).jobs) == 1


def test_token_check_creates_no_counter(q: OwnQueue) -> None:
    plain(q, 1)
    exchange(q, 1, tokens=(100, 1000, []))
    assert q.redis("EXISTS", window(q, 1000)) == 0


def test_repeated_report_counts_tokens_once(q: OwnQueue) -> None:
    plain(q, 1)
    job = q.take_one()
    for _ in range(2):
        exchange(q, 0, job.completed(), tokens=(100, 1000, [30]))
    assert q.redis("GET", window(q, 1000)) == "30"


def test_reported_tokens_are_written_to_the_job(q: OwnQueue) -> None:
    plain(q, 1)
    job = q.take_one()
    assert q.run(administration.record_tokens(q.meta, "1", 42, job.token[2:])) == AttemptStatus.OK
    assert q.job("1")["tpmTokens"] == "42"
    q.finish(job.completed())
    assert q.run(administration.record_tokens(q.meta, "1", 43, job.token[2:])) == AttemptStatus.STALE


# -- adding --------------------------------------------------------------------------------------------------------


def test_job_without_limits_keeps_group_limits(q: OwnQueue) -> None:
    add(q, member("k", 4, rate=(3, 500), bucket=(9000, 1000)), member("k", 0))
    assert group(q)[3:8] == (4, 3, 500, 9000, 1000)
    add(q, member("k", 2, rate=(1, 100)))
    assert group(q)[3:8] == (2, 1, 100, 9000, 1000)


def test_skipped_add_issues_no_id(q: OwnQueue) -> None:
    row = ["a", "null", "{}", "", False, 0, False, 0, 0, False, False, ["d", 0, "simple"]]
    assert add(q, row, row, ["a", "null", "{}"]) in (["1", ["skipped", "1"], "2"], ["2", ["skipped", "2"], "1"])
    assert q.redis("GET", "id") == "2"


def test_expired_dedup_entries_are_deleted(q: OwnQueue) -> None:
    row = ["a", "null", "{}", "", False, 0, False, 0, 0, False, False, ["d", 0, "simple"]]
    add(q, row)
    job = q.take_one()
    for _ in range(2):
        q.advance(3_600_000)
        q.run(Call("recover_stalled", q.meta, (pack(("h", 1, 7_200_001, 1, False, "", "worker-")),), unpack))
        if q.redis("HEXISTS", "dedup", "d"):
            q.redis("DEL", "lock:recover")
            q.finish(job.completed())
    assert q.redis("EXISTS", "dedup", q.key("dedup-expiry")) == 0


def test_new_dedup_entries_delete_expired_ones(q: OwnQueue) -> None:
    def unique(prefix: str, count: int) -> list[str]:
        return add(q, *[["a", "null", "{}", "", 0, 0, 0, 0, 0, False, False, [f"{prefix}{i}", 0, "simple"]]
                        for i in range(count)])  # fmt: skip

    waiting = unique("waiting", 1)
    for job_id in unique("old", 300):
        q.redis("DEL", f"job:{job_id}")
    assert q.redis("HLEN", "dedup") == 301
    unique("early", 10)
    assert q.redis("HLEN", "dedup") == 311  # nothing has expired
    q.advance(3_600_000)
    for job_id in unique("new", 150):
        q.redis("DEL", f"job:{job_id}")
    assert q.redis("HLEN", "dedup") <= 150 + 10 + 1 + 11  # each of 150 has looked at two
    unique("newer", 10)
    assert q.redis("HLEN", "dedup") == 150 + 10 + 10 + 1  # the waiting job and the ten early ones are still there
    assert q.redis("HEXISTS", "dedup", "waiting0") == 1
    assert waiting == ["1"]


def test_a_round_of_recovery_deletes_a_thousand_dedup_entries(q: OwnQueue) -> None:
    q.redis("HSET", "dedup", *[part for i in range(2_500) for part in (f"d{i}", f"gone{i}:5")])
    q.redis("ZADD", "dedup-expiry", *[part for i in range(2_500) for part in (5, f"d{i}")])
    for left in (1_500, 500, 0):
        q.redis("DEL", "lock:recover")
        q.run(Call("recover_stalled", q.meta, (pack(("h", 1, 7_200_001, 1, False, "", "worker-")),), unpack))
        assert q.redis("HLEN", "dedup") == q.redis("ZCARD", "dedup-expiry") == left


def test_hold_of_missing_group_stays_when_limits_change(q: OwnQueue) -> None:
    """A peer's, and one that came before the group."""
    q.run(limiting.block_group(q.meta, "new", 20_000, False))
    q.redis("ZADD", "ratelimited", q.now + 20_000, "theirs")
    for key in ("new", "theirs"):
        q.add(row("task", "{}", "{}", ordering=[key, 1, 0, 0, 0, 0, 0]))
        q.run(limiting.limit_group(q.meta, key, False, (5, 100), (9_000, 1_000)))
    assert q.fetch(5) == []
    q.advance(20_000)
    assert len(q.fetch(5)) == 2
