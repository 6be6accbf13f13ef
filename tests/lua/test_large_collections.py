"""Collections that one call does not read as a whole: later calls continue, and nothing is lost or done twice."""

import json

import pytest

from tests.inside import administration, broadcast, outbox, usage, working
from tests.inside import calls as flows
from tests.lua.own_support import START, OwnQueue
from tests.wire_library.support import GROUP, WireQueue

pytestmark = pytest.mark.slow

PARENTS = 1_300
RUN_ALL = "for _, command in ipairs(cjson.decode(ARGV[1])) do redis.call(unpack(command)) end"


def run_all(q: OwnQueue | WireQueue, commands: list[tuple[str, ...]]):
    """Run commands on keys of the queue, without a round trip for each."""
    q.resp.execute("EVAL", RUN_ALL, 1, q.key("meta"), json.dumps(commands))


def add_parents(q: OwnQueue | WireQueue, child: str, count: int = PARENTS) -> list[str]:
    """Parents that wait for this child only."""
    parents = [f"p{number}" for number in range(count)]
    commands: list[tuple[str, ...]] = []
    for parent in parents:
        fields = ("id", parent, "name", "p", "data", "1", "opts", "{}", "state", "waiting-children")
        commands += [
            ("HSET", q.key(f"job:{parent}"), *fields, "timestamp", str(q.now)),
            ("SADD", q.key(f"deps:{parent}"), q.key(child)),
        ]
    run_all(q, commands)
    q.redis("ZADD", "waiting-children", *(text for parent in parents for text in (str(q.now), parent)))
    for start in range(0, count, 500):
        q.redis("SADD", f"parents:{child}", *(q.key(parent) for parent in parents[start : start + 500]))
    q.redis("HSET", f"job:{child}", "parentIds", json.dumps(parents[:2]), "parentQueues", "[]")
    return parents


def states(q: OwnQueue | WireQueue, ids: list[str]) -> set[str | None]:
    return {q.state(job_id) for job_id in ids}


def notify_all(q: OwnQueue) -> int:
    """Number of calls until all parents are notified."""
    for number in range(1, 100):
        if not q.run(flows.notify_parents(q.meta)):
            return number
    raise AssertionError("the calls do not end")


@pytest.mark.parametrize("keep", [0, 1], ids=["kept", "deleted"])
def test_parents_of_a_completed_child_are_notified_by_later_calls(q: OwnQueue, keep: working.Keep):
    child = q.add_job()
    parents = add_parents(q, child)
    assert q.finish(q.take_one().completed("7", keep)) == [working.AttemptStatus.OK]
    entries = q.run(outbox.outbox(q.meta, "holder", 1000, "", [])).entries
    assert [(entry.kind, entry.fields["to"]) for entry in entries] == [("parents", q.base + ":")]
    assert 2 < notify_all(q) < 6
    assert states(q, parents) == {"waiting"}
    assert {q.redis("HGET", f"job:{parent}", "depsCompleted") for parent in parents} == {"1"}
    assert q.redis("HGET", f"depvals:{parents[0]}", q.key(child)) == "v7"
    assert (q.redis("EXISTS", f"parents-left:{child}"), q.redis("EXISTS", "parents-left")) == (0, 0)
    assert q.redis("SCARD", f"parents:{child}") == (0 if keep else PARENTS)
    assert sorted(job.id for job in [*q.fetch(1000), *q.fetch(1000)]) == sorted(parents)


def test_results_of_a_retried_child_stay_in_order(q: OwnQueue):
    child = q.add_job(opts='{"onFailure":"ignore"}')
    parents = add_parents(q, child)
    for parent in parents:  # another child stays open
        q.redis("SADD", f"deps:{parent}", q.key("other"))
    q.finish(q.take_one().failed())
    q.run(flows.notify_parents(q.meta))
    assert q.run(administration.requeue_job(q.meta, child)) == "ok"
    q.finish(q.take_one().completed("7"))
    notify_all(q)
    assert {q.redis("HGET", f"depvals:{parent}", q.key(child)) for parent in parents} == {"v7"}
    assert {q.redis("HGET", f"job:{parent}", "depsCompleted") for parent in parents} == {"1"}
    assert states(q, parents) == {"waiting-children"}


def test_parent_of_a_foreign_type_does_not_stop_the_others(q: OwnQueue):
    child = q.add_job()
    parents = add_parents(q, child)
    q.redis("UNLINK", f"job:{parents[0]}")
    q.redis("SET", f"job:{parents[0]}", "junk")
    q.finish(q.take_one().completed())
    notify_all(q)
    assert states(q, parents[1:]) == {"waiting"}


def test_foreign_type_at_the_parents_to_be_notified_is_replaced(q: OwnQueue):
    child, other = q.add_job(), q.add_job()
    q.redis("SET", f"parents-left:{child}", "junk")
    parents = add_parents(q, child)
    for fetched in q.fetch(2):
        q.finish(fetched.completed())
    assert other != child
    notify_all(q)
    assert states(q, parents) == {"waiting"}


@pytest.mark.parametrize("key", ["parents-left:{child}", "parents-left"])
def test_foreign_type_that_appears_while_parents_are_notified_stops_nothing(q: OwnQueue, key: str):
    child = q.add_job()
    add_parents(q, child)
    q.finish(q.take_one().completed())
    key = key.format(child=child)
    q.redis("UNLINK", key)
    q.redis("SET", key, "junk")
    assert notify_all(q) == 1


@pytest.mark.parametrize("key", ["parents-left:{child}", "parents-left"])
def test_foreign_type_at_the_parents_does_not_stop_the_promotion_of_a_peer(wire: WireQueue, key: str):
    child = wire.add()
    add_parents(wire, child)
    job_id, entry = wire.take_id()
    keys = ["stream", "completed", "events", f"job:{job_id}", "metrics:completed"]
    wire.call("complete", keys, job_id, entry, "7", wire.now, GROUP, "false", 0, 0, "", "", 0)
    key = key.format(child=child)
    assert wire.redis("EXISTS", key) == 1
    wire.redis("UNLINK", key)
    wire.redis("SET", key, "junk")
    delayed = wire.add(delay=1)
    wire.now += 10
    wire.promote()
    assert wire.state(delayed) == "waiting"


def test_calls_of_a_peer_notify_the_parents(wire: WireQueue):
    child = wire.add()
    parents = add_parents(wire, child)
    job_id, entry = wire.take_id()
    keys = ["stream", "completed", "events", f"job:{job_id}", "metrics:completed"]
    wire.call("complete", keys, job_id, entry, "7", wire.now, GROUP, "true", 0, 0, "", "", 0)
    assert wire.state(child) is None
    for _ in range(4):
        wire.promote()
    assert states(wire, parents) == {"waiting"}
    assert wire.redis("EXISTS", "parents-left") == 0


def stalled_list_jobs(wire: WireQueue, count: int) -> list[str]:
    ids = [f"l{number}" for number in range(count)]
    for job_id in ids:
        wire.redis("HSET", f"job:{job_id}", "id", job_id, "name", "a", "data", "1", "opts", "{}", "state", "active",
                   "lifo", 1, "src", "l", "lastActive", START, "processedOn", START)  # fmt: skip
    wire.redis("SADD", "list-active-ids", *ids)
    wire.redis("SET", "list-active", count)
    return ids


def test_all_stalled_list_jobs_are_recovered_in_several_calls(wire: WireQueue):
    ids = stalled_list_jobs(wire, 900)
    wire.now += 60_000
    handled = [wire.recover_list_jobs() for _ in range(12)]
    assert sum(handled) == 900
    assert max(handled) <= 600
    assert sorted(wire.redis("LRANGE", "lifo", 0, -1)) == sorted(ids)
    assert (wire.list_active(), wire.redis("EXISTS", "search-cursors")) == (0, 0)


def test_heal_continues_over_members_that_have_ended(wire: WireQueue):
    ids = stalled_list_jobs(wire, 900)
    for job_id in ids[100:]:
        wire.redis("HSET", f"job:{job_id}", "state", "completed")
    drifts = [wire.call("healListActive", ["id"]) for _ in range(12)]
    assert sum(drifts) == 800
    assert (wire.list_active(), wire.redis("SCARD", "list-active-ids")) == (100, 100)
    assert set(wire.call("getActiveListJobIds", ["id"])) == set(ids[:100])


def test_healthy_entries_do_not_hide_stalled_ones(wire: WireQueue):
    wire.make_group()
    for number in range(700):
        wire.redis("HSET", f"job:{number}", "id", number, "name", "a", "data", "1", "opts", "{}", "state", "active",
                   "lastActive", START + 60_000 if number < 690 else START)  # fmt: skip
        wire.redis("XADD", "stream", "*", "jobId", number, "name", "a")
    wire.read(700)
    wire.now += 60_000
    for _ in range(4):
        wire.recover_stalled(min_idle=0, max_stalled=5)
    assert {wire.state(str(number)) for number in range(690, 700)} == {"waiting"}


def test_drain_passes_active_jobs(wire: WireQueue):
    ids = [wire.add() for _ in range(1_300)]
    wire.read(600)
    drained = [
        wire.call("drain", ["stream", "scheduled", "events", "id", "lifo", "priority"], 1, GROUP) for _ in range(3)
    ]
    assert sum(drained) == 700
    assert drained[-1] == 0
    assert {entry["jobId"] for entry in wire.entries()} == set(ids[:600])


def test_drain_deletes_up_to_two_thousand_plain_jobs(wire: WireQueue):
    keys = ["stream", "scheduled", "events", "id", "lifo", "priority"]
    for number in range(2_100):
        wire.add(delay=1_000 if number % 3 == 0 else 0, lifo=int(number % 3 == 1))
    assert [wire.call("drain", keys, 1, GROUP) for _ in range(3)] == [2_000, 100, 0]
    assert not wire.entries()


def test_obliterate_deletes_parents_to_be_notified(q: OwnQueue):
    child = q.add_job()
    add_parents(q, child)
    q.finish(q.take_one().completed())
    assert q.redis("EXISTS", f"parents-left:{child}") == 1
    assert q.obliterate(force=True)[-1][0] == "done"
    assert q.key_names() == set()


def test_usage_of_minutes_with_many_names(q: OwnQueue):
    minute = START - START % 60_000
    for number in range(8):
        fields = [text for name in range(990) for text in (f"tokens:{name}", "1")]
        q.redis("HSET", f"usage:{minute + 60_000 * number}", "jobCount", 1, "totalTokens", 990, *fields)
    first = q.run(usage.usage_minutes(q.meta, minute, 8))
    assert 0 < first.minutes < 8
    rest = q.run(usage.usage_minutes(q.meta, minute + 60_000 * first.minutes, 8 - first.minutes))
    assert (first.jobs + rest.jobs, first.minutes + rest.minutes) == (8, 8)
    assert first.tokens["7"] + rest.tokens["7"] == 8


def test_totals_of_a_minute_with_too_many_names(q: OwnQueue):
    minute = START - START % 60_000
    fields = [text for name in range(5_000) for text in (f"tokens:{name}", "1")]
    q.redis("HSET", f"usage:{minute}", "jobCount", 3, "totalTokens", 5_000, "costUnit", "EUR", *fields)
    sums = q.run(usage.usage_minutes(q.meta, minute, 1))
    assert (sums.jobs, sums.total_tokens, sums.unit) == (3, 5_000, "EUR")
    assert 900 < len(sums.tokens) < 2_500


def test_subscriptions_are_read_in_pages(q: OwnQueue):
    names = {f"s{number}" for number in range(250)}
    for name in names:
        q.run(broadcast.subscribe(q.meta, name, "$"))
    pages: list[list[str]] = []
    cursor = ""
    for _ in range(5):
        page = q.run(broadcast.subscriptions(q.meta, cursor))
        pages.append([row.name for row in page.rows])
        cursor = page.cursor
        if not cursor:
            break
    assert len(pages) == 3
    assert sorted(name for page in pages for name in page) == sorted(names)


def test_page_of_a_list_finds_a_job_that_has_moved(q: OwnQueue):
    ids = [q.add_job(lifo=True) for _ in range(30)]
    page = q.run(administration.page(q.meta, "waiting", "l:0@", 10, ["name"]))
    q.redis("LREM", "lifo", 1, ids[2])
    rest = q.run(administration.page(q.meta, "waiting", page.cursor, 30, ["name"]))
    assert [row[0] for row in [*page.rows, *rest.rows]][:30] == ids
