"""Test parents and children on the server: the writes of each end of a child, and the repairs of a sweep."""

from tests.inside import calls as flows
from tests.lua.own_support import OwnQueue


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
