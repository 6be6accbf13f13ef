"""Test groups and limits in our own library: order per key, slots, rate windows, token buckets, global limits."""

from __future__ import annotations

from typing import Any

from glidemq_py._core.calls import Call, administration, pack, unpack, working
from glidemq_py._core.calls.adding import row
from glidemq_py._core.calls.working import ExchangeRequest
from glidemq_py._features.limits import queue_api as limiting
from tests.lua.own_support import Fetched, OwnQueue


def add(q: OwnQueue, *rows: list[Any]) -> list[Any]:
    return q.run(Call("add", q.meta, (pack((rows, False)),), unpack))[1]


def member(key: str, concurrency: int = 1, *, rate: tuple[int, int] = (0, 0), bucket: tuple[int, int] = (0, 0),
           cost: int = 0, name: str = "a") -> list[Any]:  # fmt: skip
    ordering = [key, concurrency, *rate, *bucket, cost]
    return [name, "null", "{}", "", False, 0, False, 0, 0, False, ordering]


def fetch(q: OwnQueue, want: int, *finished: Any, limiter: Any = False) -> tuple[list[Fetched], Any]:
    request = ExchangeRequest("py-1", want, finished, False, False, limiter=limiter)
    reply = q.run(Call("exchange", q.meta, (request.packed(),), unpack))
    return [Fetched(job, reply[0]) for job in reply[2]], reply


def ids(jobs: list[Fetched]) -> list[str]:
    return [job.id for job in jobs]


def test_one_at_a_time_and_in_order(q: OwnQueue) -> None:
    assert add(q, *[member("k") for _ in range(5)]) == ["1", "2", "3", "4", "5"]
    done = []
    jobs, _ = fetch(q, 10)
    while jobs:
        assert len(jobs) == 1
        done += ids(jobs)
        jobs, _ = fetch(q, 10, jobs[0].completed())
    assert done == ["1", "2", "3", "4", "5"]
    assert q.redis("HMGET", "group:k", "active", "nextSeq") == ["0", "6"]
    assert q.pending() == []
    assert q.counts()["active"] == 0


def test_groups_run_concurrently(q: OwnQueue) -> None:
    add(q, *[member(f"k{i % 3}") for i in range(9)])
    jobs, _ = fetch(q, 100)
    assert ids(jobs) == ["1", "2", "3"]
    jobs, _ = fetch(q, 100, *[job.completed() for job in jobs])
    assert sorted(ids(jobs)) == ["4", "5", "6"]


def test_group_runs_up_to_its_concurrency(q: OwnQueue) -> None:
    add(q, *[member("k", 3) for _ in range(7)])
    jobs, _ = fetch(q, 100)
    assert ids(jobs) == ["1", "2", "3"]
    jobs, _ = fetch(q, 100, jobs[1].completed())
    assert ids(jobs) == ["4"]


def test_a_retried_job_keeps_its_turn(q: OwnQueue) -> None:
    add(q, member("k"), member("k"))
    (first,), _ = fetch(q, 5)
    jobs, _ = fetch(q, 5, first.failed(limit=3, backoff=50))
    assert jobs == []
    q.advance(50)
    (again,), _ = fetch(q, 5)
    assert again.id == "1"
    (second,), _ = fetch(q, 5, again.failed(limit=0))
    assert second.id == "2"
    fetch(q, 0, second.completed())
    assert q.redis("HGET", "group:k", "active") == "0"


def test_released_job_is_first_in_its_group(q: OwnQueue) -> None:
    add(q, member("k"), member("k"))
    (first,), _ = fetch(q, 5)
    jobs, _ = fetch(q, 5, first.released())
    assert ids(jobs) == ["1"]
    assert q.redis("HGET", "group:k", "active") == "1"


def test_removed_and_expired_jobs_do_not_stop_the_group(q: OwnQueue) -> None:
    from glidemq_py._core.calls.administration import remove

    add(q, *[member("k") for _ in range(4)])
    q.redis("HSET", "job:3", "expireAt", "1")
    assert q.run(remove(q.meta, "2")) is True
    (first,), _ = fetch(q, 5)
    (last,), _ = fetch(q, 5, first.completed())
    assert last.id == "4"
    assert q.state("3") == "failed"


def test_removing_a_running_job_frees_its_slot(q: OwnQueue) -> None:
    from glidemq_py._core.calls.administration import remove

    add(q, member("k"), member("k"))
    fetch(q, 5)
    q.run(remove(q.meta, "1"))
    jobs, _ = fetch(q, 5)
    assert ids(jobs) == ["2"]


def test_a_rate_window_stops_the_group_until_it_ends(q: OwnQueue) -> None:
    add(q, *[member("k", 10, rate=(2, 1000)) for _ in range(5)])
    jobs, reply = fetch(q, 10)
    assert ids(jobs) == ["1", "2"]
    assert reply[3] == 1000
    jobs, _ = fetch(q, 10, *[job.completed() for job in jobs])
    assert jobs == []
    q.advance(1000)
    jobs, _ = fetch(q, 10)
    assert ids(jobs) == ["3", "4"]


def test_token_bucket_is_charged_by_cost(q: OwnQueue) -> None:
    add(q, *[member("k", 10, bucket=(3_000, 1_000), cost=2_000) for _ in range(3)])
    jobs, reply = fetch(q, 10)
    assert ids(jobs) == ["1"]
    assert reply[3] == 1000
    q.advance(1000)
    jobs, _ = fetch(q, 10)
    assert ids(jobs) == ["2"]
    assert add(q, member("k", 10, cost=4_000)) == [["cost", ""]]


def test_externally_limited_group_waits(q: OwnQueue) -> None:
    add(q, member("k"), member("j"))
    q.redis("ZADD", "ratelimited", str(q.now + 500), "k")
    jobs, reply = fetch(q, 10)
    assert ids(jobs) == ["2"]
    assert reply[3] == 500
    q.advance(500)
    jobs, _ = fetch(q, 10)
    assert ids(jobs) == ["1"]


def test_global_concurrency_holds_in_every_batch(q: OwnQueue) -> None:
    q.redis("HSET", "meta", "globalConcurrency", "3")
    add(q, *[["a", "null", "{}"] for _ in range(5)], ["a", "null", "{}", "", False, 0, False, 1])
    jobs, reply = fetch(q, 10)
    assert len(jobs) == 3
    more, reply = fetch(q, 10)
    assert more == []
    assert reply[4] == 4
    more, _ = fetch(q, 10, jobs[0].completed(), jobs[1].completed())
    assert len(more) == 2


def test_rate_limit_is_consumed_by_fetched_jobs(q: OwnQueue) -> None:
    add(q, *[["a", "null", "{}"] for _ in range(5)])
    jobs, _ = fetch(q, 2, limiter=(3, 1000))
    assert len(jobs) == 2
    jobs, reply = fetch(q, 5, limiter=(3, 1000))
    assert len(jobs) == 1
    jobs, reply = fetch(q, 5, limiter=(3, 1000))
    assert (jobs, reply[3], reply[4]) == ([], 1000, 4)
    q.redis("HSET", "meta", "rateLimitMax", "1", "rateLimitDuration", "100")
    q.advance(1000)
    jobs, _ = fetch(q, 5, limiter=(3, 1000))
    assert len(jobs) == 1


def dedup(mode: str, ttl: int = 0, delay: int | bool = False) -> list[Any]:
    return ["a", "null", "{}", "", delay, 0, 0 if delay else False, 0, 0, False, False, ["d", ttl, mode]]


def test_simple_deduplication_lasts_as_long_as_the_job(q: OwnQueue) -> None:
    assert add(q, dedup("simple"), dedup("simple")) == ["1", ["skipped", "1"]]
    (job,), _ = fetch(q, 1)
    fetch(q, 0, job.completed())
    assert isinstance(add(q, dedup("simple"))[0], str)


def test_throttle_counts_from_the_last_add(q: OwnQueue) -> None:
    assert add(q, dedup("throttle", 100), dedup("throttle", 100)) == ["1", ["skipped", "1"]]
    q.advance(100)
    assert isinstance(add(q, dedup("throttle", 100))[0], str)


def test_debounce_replaces_jobs_not_started(q: OwnQueue) -> None:
    (first, second) = add(q, dedup("debounce", 0, 1000), dedup("debounce", 0, 1000))
    assert first == "1"
    assert second == ["replaced", "2"]
    assert q.redis("EXISTS", "job:1") == 0
    assert q.redis("ZRANGE", "scheduled", 0, -1) == ["2"]


def test_debounce_respects_ttl(q: OwnQueue) -> None:
    row = dedup("debounce", 100, 1000)
    assert add(q, row)[0] == "1"
    q.advance(99)
    assert add(q, row)[0] == ["replaced", "2"]
    q.advance(100)
    assert add(q, row)[0] == "3"  # another burst
    assert q.redis("ZRANGE", "scheduled", 0, -1) == ["2", "3"]
    q.advance(50)
    assert add(q, row)[0] == ["replaced", "4"]
    assert q.redis("EXISTS", "job:2") == 1


def test_expired_parked_jobs_free_their_slot(q: OwnQueue) -> None:
    """A recovered job keeps its slot; when it expires, the jobs behind it start immediately."""
    ordering: list[object] = ["k", 1, 0, 0, 0, 0, 0]
    for ttl in (50, 50, 0):
        q.add(row("task", "{}", "{}", ttl=ttl, ordering=ordering))
    fetched = q.take_one()
    q.fetch(3)
    q.advance(30_000)
    q.let_idle(fetched.entry, 30_000)
    q.run(working.recover_stalled(q.meta, "py-2", 1, 30_000, 1, False, ""))
    assert [q.state(str(n)) for n in (1, 2, 3)] == ["failed", "failed", "waiting"]
    assert q.take_one().id == "3"


def test_add_with_higher_concurrency_starts_parked_jobs(q: OwnQueue) -> None:
    q.add(*(row("task", "{}", "{}", ordering=["k", 1, 0, 0, 0, 0, 0]) for _ in range(3)))
    assert [job.id for job in q.fetch(3)] == ["1"]
    q.add(row("task", "{}", "{}", ordering=["k", 3, 0, 0, 0, 0, 0]))
    assert [job.id for job in q.fetch(5)] == ["2", "3"]


def test_requeued_job_without_turn_gets_new_sequence(q: OwnQueue) -> None:
    ordering: list[object] = ["k", 1, 0, 0, 0, 0, 0]
    q.add(*(row("task", "{}", "{}", ordering=ordering) for _ in range(3)))
    first = q.take_one()
    assert q.run(administration.revoke(q.meta, "3")) == "revoked"
    assert q.redis("HGET", "group:k", "skip:3") == "1"
    assert q.run(administration.requeue_job(q.meta, "3")) == "ok"
    ran = []
    fetched = q.exchange(1, [first.completed()]).jobs
    while fetched:
        ran.append(fetched[0][0])
        fetched = q.exchange(1, [Fetched(fetched[0], q.now).completed()]).jobs
    assert ran == ["2", "3"]
    assert not [field for field in q.resp.hash(q.key("group:k")) if field.startswith("skip:")]


DAY = 86_400_000


def sweep(q: OwnQueue) -> None:
    q.run(working.recover_stalled(q.meta, "py-2", 1, 30_000, 1, False, ""))


def test_group_unused_for_a_day_is_deleted(q: OwnQueue) -> None:
    q.add(*(row("task", "{}", "{}", ordering=[key, 2, 0, 0, 0, 0, 0]) for key in ("idle", "busy", "held", "limited")))
    q.finish(*(job.completed() for job in q.fetch(4)))
    q.run(limiting.limit_group(q.meta, "limited", 5, False, False))
    q.run(limiting.block_group(q.meta, "held", 10 * DAY, False))
    q.add(row("task", "{}", "{}", ordering=["busy", 2, 0, 0, 0, 0, 0], delay=9 * DAY))
    sweep(q)
    q.advance(DAY - 1)
    sweep(q)
    assert q.redis("HLEN", "ordering") == 4
    q.advance(1)
    sweep(q)
    assert sorted(q.redis("HKEYS", "ordering")) == ["busy", "held", "limited"]
    assert not q.redis("EXISTS", "group:idle")
    assert q.add(row("task", "{}", "{}", ordering=["idle", 1, 0, 0, 0, 0, 0]))
    assert q.resp.hash(q.key("group:idle")) == {"maxConcurrency": "1", "nextSeq": "1"}


def test_a_group_that_was_used_meanwhile_is_kept_for_another_day(q: OwnQueue) -> None:
    def use() -> None:
        q.add(row("task", "{}", "{}", ordering=["k", 1, 0, 0, 0, 0, 0]))
        q.finish(q.take_one().completed())

    use()
    sweep(q)
    q.advance(DAY // 2)
    use()
    q.advance(DAY // 2)
    sweep(q)
    q.advance(DAY // 2)
    sweep(q)
    assert q.redis("EXISTS", "group:k") == 1
    q.advance(DAY)
    sweep(q)
    assert not q.redis("EXISTS", "ordering")


def test_a_failed_job_that_outlived_its_group_is_retried_in_order(q: OwnQueue) -> None:
    def add_one() -> str:
        return str(q.add(row("task", "{}", "{}", ordering=["k", 1, 0, 0, 0, 0, 0]))[0])

    for _ in range(3):
        add_one()
    for _ in range(3):
        q.finish(q.take_one().failed())
    for _ in range(2):
        sweep(q)
        q.advance(DAY)
    assert not q.redis("EXISTS", "group:k")
    assert q.run(administration.requeue_job(q.meta, "3")) == "ok"
    assert q.run(administration.requeue_job(q.meta, "2")) == "ok"
    new = add_one()
    ran: list[str] = []
    while fetched := q.fetch(4):
        assert len(fetched) == 1
        ran.append(fetched[0].id)
        q.finish(fetched[0].completed())
    assert sorted(ran) == ["2", "3", new]
    assert q.redis("HGET", "group:k", "active") == "0"


def test_many_groups_are_swept_page_by_page(q: OwnQueue) -> None:
    for at in range(0, 1_500, 500):
        q.add(*(row("task", "{}", "{}", ordering=[f"k{at + n}", 1, 0, 0, 0, 0, 0]) for n in range(500)))
    while jobs := q.fetch(500):
        q.finish(*(job.completed(keep=1) for job in jobs))
    for _ in range(20):
        sweep(q)
    q.advance(DAY)
    for _ in range(30):
        sweep(q)
    assert not q.redis("EXISTS", "ordering")
    assert not [key for key in q.key_names() if key.startswith("group:")]


def test_successor_of_expired_job_is_fetched_in_same_call(q: OwnQueue) -> None:
    """The worker has a free slot, and an entry pushed after it read the stream would wake up no worker."""
    add(q, *(row("task", "{}", "{}", ttl=10, ordering=["k", 1, 0, 0, 0, 0, 0]) for _ in range(3)))
    last = q.put_job("4", groupKey="k", orderingSeq=4, priority=1)
    q.redis("HSET", "ordering", "k", 4)
    q.redis("LPUSH", "priority", last)
    q.advance(20)
    assert [job.id for job in q.fetch(5)] == [last]
