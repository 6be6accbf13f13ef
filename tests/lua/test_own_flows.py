"""Test parents and children on the server: the writes of each end of a child, and the repairs of a sweep."""

from tests.inside import AttemptStatus as S
from tests.inside import administration, row, waiting_children
from tests.inside import calls as flows
from tests.lua.own_support import OwnQueue


def parent_of(q: OwnQueue) -> str:
    """Add a job that waits for two children in its queue."""
    q.add_job("parent")
    parent = q.take_one()
    name = q.name
    q.add(*[row("child", "{}", "{}", parent=[parent.id, name]) for _ in range(2)])
    assert q.finish(waiting_children(*parent.token)) == [S.WAITING_CHILDREN]
    return parent.id


def test_parent_waits_for_a_failed_child_until_it_is_retried_or_released(q: OwnQueue):
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


def test_add_of_a_child_that_its_parent_waits_for_lists_the_feature(q: OwnQueue):
    q.put_job("p", state="waiting-children")
    name = q.name
    q.add(row("child", "{}", '{"onFailure":"ignore"}', parent=["p", name]))
    assert q.redis("HGET", "meta", "features") is None
    q.add(row("child", "{}", '{"onFailure":"wait"}', parent=["p", name]))
    assert q.redis("HGET", "meta", "features") == "dependencies:0.2.0"


def test_a_chain_of_failing_parents_is_bounded_in_one_call(q: OwnQueue):
    name = q.name
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


def test_the_sweep(q: OwnQueue):
    parent = parent_of(q)
    # A Node peer released one parent; another one lost its children without a word.
    q.put_job("released", state="waiting")
    q.push_entry("released")
    q.redis("ZADD", "waiting-children", 1, "released")
    q.put_job("stuck", state="waiting-children")
    q.redis("ZADD", "waiting-children", 1, "stuck")
    q.recover_stalled()
    assert q.redis("ZRANGE", "waiting-children", 0, -1) == [parent]
    assert q.state("stuck") == "waiting"


def waiting(q: OwnQueue, *ids: str, children: int = 2, at: int | None = None):
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
        reply = q.run(flows.watch_children(q.meta, age, 500, age, 500))
        for parent, members in reply.rows:
            assert not found.setdefault(parent, set()) & set(members) or len(members) > 100
            found[parent] |= set(members)
        if not reply.more:
            return found
    raise AssertionError("it does not come to an end")


def test_all_long_waiting_parents_are_checked(q: OwnQueue):
    ids = [f"p{i}" for i in range(130)]
    waiting(q, *ids, at=q.now - 5_000)  # all in one millisecond
    waiting(q, "young")
    found = all_watched(q)
    assert set(found) == set(ids)
    assert all(len(members) == 2 for members in found.values())
    # It pauses, then starts again.
    assert q.run(flows.watch_children(q.meta, 1_000, 500, 1_000, 500)) == ([], 0, 0, 0)
    q.advance(500)
    assert set(all_watched(q)) == set(ids)


def test_beside_peers_parents_are_checked_earlier_and_more_often(q: OwnQueue):
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


def test_parent_with_many_children_is_checked_in_pages(q: OwnQueue):
    waiting(q, "before", "p", children=1_000, at=1)
    first = q.run(flows.watch_children(q.meta, 1_000, 500, 1_000, 500))
    assert first.more
    assert sum(len(members) for _, members in first.rows) < 400
    found = all_watched(q)
    assert len(found["p"]) == 1_000


def test_watch_continues_after_cursor_parent_is_deleted(q: OwnQueue):
    waiting(q, *(f"p{i:03}" for i in range(60)), children=10, at=1)
    seen = {parent for parent, _ in q.run(flows.watch_children(q.meta, 1_000, 500, 1_000, 500)).rows}
    last = max(seen)
    q.redis("ZREM", "waiting-children", last)
    assert seen | set(all_watched(q)) == {f"p{i:03}" for i in range(60)}
