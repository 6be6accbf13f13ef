"""Test limits set while a queue runs, delayed attempts, rate limited groups, and token windows."""

from typing import Any

from tests.inside import AttemptStatus, Call, ExchangeFlags, ExchangeReply, pack, row, unpack, working
from tests.inside import limits as limiting
from tests.lua.own_support import Fetched, OwnQueue
from tests.lua.test_own_groups import add, fetch, member


def exchange(q: OwnQueue, want: int, *finished: Any, tokens: Any = None, limiter: Any = None) -> ExchangeReply:
    return q.run(working.exchange(q.meta, "py-1", want, finished, False, False, limiter=limiter, tokens=tokens))


def delayed(job: Fetched, delay: int = 0, until: int = 0, data: str | None = None) -> working.Finished:
    return working.delayed(*job.token, delay, until, data)


def limited(job: Fetched, ms: int = 1000, *, replace: bool = False, how: str = "front", keep: working.Keep = 0):
    return working.group_limited(*job.token, ms, replace, how, keep)


def group(q: OwnQueue, key: str = "k") -> limiting.GroupReply:
    found = q.run(limiting.group_info(q.meta, key))
    assert found is not None
    return found


def limit(q: OwnQueue, key: str = "k", *, concurrency: Any = False, rate: Any = False, bucket: Any = False):
    assert q.run(limiting.limit_group(q.meta, key, concurrency, rate, bucket)) == 1


def plain(q: OwnQueue, count: int):
    add(q, *[["a", "null", "{}"] for _ in range(count)])


# -- the queue ---------------------------------------------------------------------------------------------------


def limits(q: OwnQueue) -> tuple[int, ...]:
    return tuple(q.run(limiting.queue_limits(q.meta)))[:5]


def test_use_of_the_rate_is_that_of_the_current_window(q: OwnQueue):
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


def test_limit_with_a_time_to_live_gives_way_to_the_one_before(q: OwnQueue):
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


def test_later_settings_of_a_temporary_limit(q: OwnQueue):
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


def test_unusable_temporary_limits_are_ignored(q: OwnQueue):
    q.run(limiting.limit_queue(q.meta, 2, False))
    q.redis("HSET", "meta", "temporaryLimits", "soon")
    plain(q, 3)
    assert limits(q) == (2, 0, 0, -1, -1)
    assert len(exchange(q, 3).jobs) == 2


def test_permits_are_consumed_only_by_fetched_jobs(q: OwnQueue):
    add(q, *[["a", "null", "{}", "", 0, 0, 0, 0, 1] for _ in range(3)])
    plain(q, 4)
    q.advance(10)  # the first three have expired: they are met and set aside
    reply = exchange(q, 5, limiter=(4, 1000))
    assert [job[0] for job in reply.jobs] == ["4", "5", "6", "7"]
    assert q.redis("HGET", "rate", "count") == "4"
    exchange(q, 5, limiter=(4, 1000))
    assert q.redis("HGET", "rate", "count") == "4"


# -- the group later -----------------------------------------------------------------------------------------------


def test_repeated_and_late_rate_limit_reports(q: OwnQueue):
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


# -- tokens --------------------------------------------------------------------------------------------------------


MINUTE = 60_000


def window(q: OwnQueue, duration: int) -> str:
    return f"tpm:{q.now // duration}"


def test_tokens_are_counted_when_jobs_end(q: OwnQueue):
    plain(q, 4)
    jobs = q.fetch(2)
    exchange(q, 0, tokens=(100, MINUTE, []))
    assert q.redis("EXISTS", window(q, MINUTE)) == 0
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


def test_repeated_report_counts_tokens_once(q: OwnQueue):
    plain(q, 1)
    job = q.take_one()
    for _ in range(2):
        exchange(q, 0, job.completed(), tokens=(100, 1000, [30]))
    assert q.redis("GET", window(q, 1000)) == "30"


# -- adding --------------------------------------------------------------------------------------------------------


def test_job_without_limits_keeps_group_limits(q: OwnQueue):
    add(q, member("k", 4, rate=(3, 500), bucket=(9000, 1000)), member("k", 0))
    assert group(q)[3:8] == (4, 3, 500, 9000, 1000)
    add(q, member("k", 2, rate=(1, 100)))
    assert group(q)[3:8] == (2, 1, 100, 9000, 1000)


def test_expired_dedup_entries_are_deleted(q: OwnQueue):
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


def test_new_dedup_entries_delete_expired_ones(q: OwnQueue):
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


def test_a_round_of_recovery_deletes_a_thousand_dedup_entries(q: OwnQueue):
    q.redis("HSET", "dedup", *[part for i in range(2_500) for part in (f"d{i}", f"gone{i}:5")])
    q.redis("ZADD", "dedup-expiry", *[part for i in range(2_500) for part in (5, f"d{i}")])
    for left in (1_500, 500, 0):
        q.redis("DEL", "lock:recover")
        q.run(Call("recover_stalled", q.meta, (pack(("h", 1, 7_200_001, 1, False, "", "worker-")),), unpack))
        assert q.redis("HLEN", "dedup") == q.redis("ZCARD", "dedup-expiry") == left


def test_hold_of_missing_group_stays_when_limits_change(q: OwnQueue):
    """A peer's, and one that came before the group."""
    q.run(limiting.block_group(q.meta, "new", 20_000, False))
    q.redis("ZADD", "ratelimited", q.now + 20_000, "theirs")
    for key in ("new", "theirs"):
        q.add(row("task", "{}", "{}", ordering=[key, 1, 0, 0, 0, 0, 0]))
        q.run(limiting.limit_group(q.meta, key, False, (5, 100), (9_000, 1_000)))
    assert q.fetch(5) == []
    q.advance(20_000)
    assert len(q.fetch(5)) == 2
