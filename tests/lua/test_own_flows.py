"""Test parents and children on the server: the writes of each end of a child, and the repairs of a sweep."""

import pytest

from glidemq_py._core.calls import administration
from glidemq_py._core.calls.adding import row
from glidemq_py._core.calls.working import AttemptStatus as S
from glidemq_py._core.calls.working import ExchangeFlags, recover_stalled, waiting_children
from glidemq_py._features.flows import calls as flows
from tests.lua.own_support import OwnQueue


def parent_of(q: OwnQueue) -> str:
    """Add a job that waits for two children in its queue."""
    q.add_job("parent")
    parent = q.take_one()
    name = q.base[q.base.index("{") + 1 : -1]
    q.add(*[row("child", "{}", "{}", parent=[parent.id, name]) for _ in range(2)])
    assert q.finish(waiting_children(*parent.token)) == [S.WAITING_CHILDREN]
    return parent.id


def test_child_is_counted_in_the_same_step(q: OwnQueue) -> None:
    parent = parent_of(q)
    one, two = q.fetch(2)
    assert q.finish(one.completed('"x"')) == [S.OK]
    assert (q.state(parent), q.job(parent)["depsCompleted"]) == ("waiting-children", "1")
    # A lost reply: reported again, counted once.
    assert q.finish(one.completed('"x"')) == [S.ALREADY]
    assert q.finish(two.completed(keep=1)) == [S.OK]
    assert (q.state(parent), q.job(parent)["depsCompleted"]) == ("waiting", "2")
    assert q.redis("ZCARD", "waiting-children") == 0
    page = q.run(flows.children(q.meta, parent, "", 10))
    assert sorted(mark for _, mark in page.rows) == ['v"x"', "vnull"]


def test_parent_in_another_queue_is_notified_by_outbox(q: OwnQueue) -> None:
    q.add(row("child", "{}", "{}", parent=["7", "elsewhere"]))
    reply = q.exchange(0, [q.take_one().completed("1")])
    assert reply.flags & ExchangeFlags.OUTBOX_PENDING
    ((_, fields),) = q.redis("XRANGE", "outbox", "-", "+")
    entry = dict(zip(fields[::2], fields[1::2], strict=True))
    assert entry == {
        "kind": "child", "to": "glide:{elsewhere}:", "parent": "7", "child": q.key("1"), "how": "completed",
        "text": "1", "policy": "fail_parent",
    }  # fmt: skip


@pytest.mark.parametrize("policy", ["fail_parent", "ignore", "remove"])
def test_on_failure_policies(q: OwnQueue, policy: str) -> None:
    parent = parent_of(q)
    one, two = q.fetch(2)
    q.redis("HSET", f"job:{one.id}", "opts", f'{{"onFailure":"{policy}"}}')
    assert q.finish(one.failed("no"), two.completed()) == [S.FAILED, S.OK]
    assert q.state(parent) == ("failed" if policy == "fail_parent" else "waiting")
    assert q.redis("SCARD", f"deps:{parent}") == (1 if policy == "remove" else 2)
    if policy == "fail_parent":
        assert q.job(parent)["failedType"] == "ChildFailedError"
        assert "no" in q.job(parent)["failedReason"]
        assert q.job(parent)["failureReason"].startswith("child_failed|")


def test_parent_waits_for_a_failed_child_until_it_is_retried_or_released(q: OwnQueue) -> None:
    parent = parent_of(q)
    one, two = q.fetch(2)
    q.redis("HSET", f"job:{one.id}", "opts", '{"onFailure":"wait"}')
    q.finish(one.failed("no"), two.completed())
    assert q.state(parent) == "waiting-children"
    assert q.redis("HGET", f"depvals:{parent}", q.key(one.id)) == "fno"
    assert q.redis("HGET", "meta", "features") == "dependencies:0.2.0"
    # The policy counts after the child was deleted, too.
    q.run(flows.children_ended(q.meta, [flows.ChildOutcome(parent, q.key(one.id), "removed", "gone", "fail_parent")]))
    assert q.state(parent) == "waiting-children"
    q.run(administration.requeue_job(q.meta, one.id))
    q.finish(q.take_one().completed())
    assert q.state(parent) == "waiting"


def test_add_of_a_child_that_its_parent_waits_for_lists_the_feature(q: OwnQueue) -> None:
    q.put_job("p", state="waiting-children")
    name = q.base[q.base.index("{") + 1 : -1]
    q.add(row("child", "{}", '{"onFailure":"ignore"}', parent=["p", name]))
    assert q.redis("HGET", "meta", "features") is None
    q.add(row("child", "{}", '{"onFailure":"wait"}', parent=["p", name]))
    assert q.redis("HGET", "meta", "features") == "dependencies:0.2.0"


def test_a_chain_of_failing_parents_is_bounded_in_one_call(q: OwnQueue) -> None:
    name = q.base[q.base.index("{") + 1 : -1]
    top = None
    for i in range(15):
        q.put_job(f"p{i}", state="waiting-children", **({"parentId": top, "parentQueue": name} if top else {}))
        q.redis("ZADD", "waiting-children", 1, f"p{i}")
        if top:
            q.redis("SADD", f"deps:{top}", q.key(f"p{i}"))
        top = f"p{i}"
    q.redis("SADD", f"deps:{top}", q.key("1"))
    q.add(row("child", "{}", "{}", parent=[str(top), name]))
    q.finish(q.take_one().failed("deep"))
    failed = [i for i in range(15) if q.state(f"p{i}") == "failed"]
    assert 0 < len(failed) < 15
    assert q.redis("XLEN", "outbox") == 1


def test_the_sweep(q: OwnQueue) -> None:
    parent = parent_of(q)
    # A Node peer released one parent; another one lost its children without a word.
    q.put_job("released", state="waiting")
    q.push_entry("released")
    q.redis("ZADD", "waiting-children", 1, "released")
    q.put_job("stuck", state="waiting-children")
    q.redis("ZADD", "waiting-children", 1, "stuck")
    q.run(recover_stalled(q.meta, "py-1", 1_000, 30_000, 1, False, ""))
    assert q.redis("ZRANGE", "waiting-children", 0, -1) == [parent]
    assert q.state("stuck") == "waiting"


def waiting(q: OwnQueue, *ids: str, children: int = 2, at: int | None = None) -> None:
    """Parents that wait for children that have failed without telling them."""
    for parent in ids:
        q.put_job(parent, state="waiting-children")
        q.redis("ZADD", "waiting-children", q.now if at is None else at, parent)
        members = [f"{parent}-{i}" for i in range(children)]
        for child in members:
            q.put_job(child, state="failed", failedReason="no", opts='{"onFailure":"ignore"}')
        q.redis("SADD", f"deps:{parent}", *(q.key(child) for child in members))


def all_watched(q: OwnQueue, age: int = 1_000, pages: int = 100) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for _ in range(pages):
        reply = q.run(flows.watch_children(q.meta, age, 500))
        for parent, members in reply.rows:
            assert not found.setdefault(parent, set()) & set(members) or len(members) > 100
            found[parent] |= set(members)
        if not reply.more:
            return found
    raise AssertionError("it does not come to an end")


def test_all_long_waiting_parents_are_checked(q: OwnQueue) -> None:
    ids = [f"p{i}" for i in range(130)]
    waiting(q, *ids, at=q.now - 5_000)  # all in one millisecond
    waiting(q, "young")
    found = all_watched(q)
    assert set(found) == set(ids)
    assert all(len(members) == 2 for members in found.values())
    # It pauses, then starts again.
    assert q.run(flows.watch_children(q.meta, 1_000, 500)) == ([], 0, 0, 0)
    q.advance(500)
    assert set(all_watched(q)) == set(ids)


def test_beside_peers_parents_are_checked_earlier_and_more_often(q: OwnQueue) -> None:
    def watched() -> tuple[list[str], int]:
        reply = q.run(flows.watch_children(q.meta, 300_000, 50_000, 20_000, 8_000))
        return [parent for parent, _ in reply.rows], reply.peers

    waiting(q, "p", at=q.now - 30_000)
    assert watched() == ([], 0)
    q.advance(10_000)
    q.resp.execute("XGROUP", "CREATE", q.key("stream"), "workers", "0", "MKSTREAM")
    q.resp.execute("XGROUP", "CREATECONSUMER", q.key("stream"), "workers", "worker-1")
    q.redis("SET", "w:worker-1", "{}")
    assert watched() == (["p"], 1)  # the pause of 50 s has not passed
    assert watched() == ([], 1)
    q.redis("DEL", "w:worker-1")
    q.advance(8_000)
    assert watched() == (["p"], 1)  # it was registered during the last day
    q.advance(86_400_000)
    assert watched()[1] == 0


def test_parent_with_many_children_is_checked_in_pages(q: OwnQueue) -> None:
    waiting(q, "before", "p", children=1_000, at=1)
    first = q.run(flows.watch_children(q.meta, 1_000, 500))
    assert first.more
    assert sum(len(members) for _, members in first.rows) < 400
    found = all_watched(q)
    assert len(found["p"]) == 1_000


def test_watch_continues_after_cursor_parent_is_deleted(q: OwnQueue) -> None:
    waiting(q, *(f"p{i:03}" for i in range(60)), children=10, at=1)
    seen = {parent for parent, _ in q.run(flows.watch_children(q.meta, 1_000, 500)).rows}
    last = max(seen)
    q.redis("ZREM", "waiting-children", last)
    assert seen | set(all_watched(q)) == {f"p{i:03}" for i in range(60)}


def test_child_outcomes(q: OwnQueue) -> None:
    q.put_job("done", state="completed", returnvalue="7")
    q.put_job("failed", state="failed", failedReason="no", opts='{"onFailure":"remove"}')
    q.put_job("waits")
    reply = q.run(flows.child_outcomes(q.meta, ["done", "failed", "waits", "gone"]))
    assert reply.outbox_pending == 0
    assert reply.rows == [
        ["completed", "7", "fail_parent"], ["failed", "no", "remove"], False, ["removed", "it is gone", "fail_parent"],
    ]  # fmt: skip
    q.add(row("child", "{}", "{}", parent=["7", "elsewhere"]))
    q.finish(q.take_one().completed("1"))
    assert q.run(flows.child_outcomes(q.meta, [])).outbox_pending == 1
