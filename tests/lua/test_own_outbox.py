"""Test the outbox: the call that fails a job finally adds its dead-letter entry."""

from typing import Any

import pytest

from glidemq_py.testing import RespError
from tests.inside import AttemptStatus as S
from tests.inside import ExchangeFlags, OutboxEntry, OutboxReply, dead_letter_queue, outbox, row
from tests.lua.own_support import Fetched, OwnQueue

ALL = "failed,stalled,expired,cost,revoked,malformed"
HOLD = 10_000


def declare(q: OwnQueue, on: str = ALL):
    assert q.run(dead_letter_queue(q.meta, "dlq", on)) == "dlq"


def read(q: OwnQueue, holder: str = "h", cursor: str = "", delivered: tuple[str, ...] = ()) -> OutboxReply:
    reply = q.run(outbox(q.meta, holder, HOLD, cursor, delivered))
    assert isinstance(reply, OutboxReply)
    return reply


def outbox_entries(q: OwnQueue) -> list[dict[str, str]]:
    """Return the entries without their failed attempts (test_own_failures.py)."""
    entries = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in q.redis("XRANGE", "outbox", "-", "+")]
    return [{name: text for name, text in entry.items() if name != "failedAttempts"} for entry in entries]


def only_outbox_entry(q: OwnQueue) -> dict[str, str]:
    (entry,) = outbox_entries(q)
    return entry


def take_with(q: OwnQueue, **options: Any) -> Fetched:
    q.add_job(**options)
    return q.take_one()


# -- which ends make one -----------------------------------------------------------------------------------


def test_reply_reports_whether_the_outbox_has_entries(q: OwnQueue):
    def pending(job: Fetched) -> bool:
        reply = q.exchange(0, [job.failed("no luck", limit=2)])
        return bool(reply.flags & ExchangeFlags.OUTBOX_PENDING)

    assert not pending(take_with(q))
    assert not pending(q.take_one())
    declare(q)
    job = take_with(q, name="mail", data='{"to":1}')
    assert not pending(job)
    again = q.take_one()
    assert pending(again)
    assert only_outbox_entry(q) == {
        "kind": "dead", "to": "dlq", "id": "2", "activation": "2", "why": "failed", "name": "mail",
        "data": '{"to":1}', "reason": "no luck", "attempts": "1",
    }  # fmt: skip
    # A lost reply: the attempt is reported again and adds no second entry.
    assert q.finish(again.failed("no luck", limit=2)) == [S.ALREADY]
    assert len(outbox_entries(q)) == 1


def test_stalled_job_creates_dead_letter_entry(q: OwnQueue):
    declare(q)
    job = take_with(q, data='"x"')
    q.let_idle(job.entry, 40_000)
    reply = q.recover_stalled(0)
    assert reply.failed == ["1"]
    entry = only_outbox_entry(q)
    assert (entry["why"], entry["reason"]) == ("stalled", "job stalled more than maxStalledCount")
    assert (entry["attempts"], entry["data"]) == ("0", '"x"')
    assert int(entry["activation"]) > job.fence


def test_too_costly_job_creates_dead_letter_entry(q: OwnQueue):
    declare(q)
    q.add(row("a", "{}", "{}", ordering=["g", 1, 0, 0, 5_000, 1_000, 3_000]))
    q.redis("HSET", "group:g", "tbCapacity", "1000")
    q.exchange(1)
    assert (q.state("1"), only_outbox_entry(q)["why"]) == ("failed", "cost")


def test_malformed_job_creates_dead_letter_entry(q: OwnQueue):
    declare(q)
    q.put_job("m")
    q.redis("HDEL", "job:m", "name")
    q.push_entry("m")
    q.exchange(1)
    assert (only_outbox_entry(q)["why"], only_outbox_entry(q)["name"]) == ("malformed", "")


def test_setting_of_node_peer_means_default_kinds(q: OwnQueue):
    q.redis("HSET", "meta", "deadLetterQueueName", "theirs")
    q.add_job(delay=1_000)
    q.fcall("revoke", q.meta, "1")
    q.finish(take_with(q).failed())
    assert (only_outbox_entry(q)["to"], only_outbox_entry(q)["why"]) == ("theirs", "failed")


# -- an error half-way -------------------------------------------------------------------------------------


def test_job_stays_active_if_its_dead_letter_entry_cannot_be_written(q: OwnQueue):
    declare(q)
    job = take_with(q)
    q.redis("SET", "outbox", "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.finish(job.failed())
    assert (q.state("1"), q.counts()["failed"]) == ("active", 0)
    q.redis("DEL", "outbox")
    assert q.finish(job.failed()) == [S.FAILED]
    assert len(outbox_entries(q)) == 1


def test_entries_of_one_attempt_have_one_id(q: OwnQueue):
    declare(q)
    job = take_with(q)
    q.redis("SET", "failed", "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.finish(job.failed())
    q.redis("DEL", "failed")
    assert q.finish(job.failed()) == [S.FAILED]
    assert [entry["activation"] for entry in outbox_entries(q)] == ["1", "1"]


# -- reading and crossing off ------------------------------------------------------------------------------


def fill(q: OwnQueue, count: int, data: str = '"x"'):
    declare(q)
    q.add(*[row("a", data, "{}") for _ in range(count)], quiet=True)
    q.finish(*[job.failed() for job in q.fetch(count)])


def test_entries_are_read_and_deleted(q: OwnQueue):
    fill(q, 3)
    reply = read(q)
    assert reply.held
    assert [entry.fields["id"] for entry in reply.entries] == ["1", "2", "3"]
    assert isinstance(reply.entries[0], OutboxEntry)
    assert reply.entries[0].kind == "dead"
    ids = tuple(entry.id for entry in reply.entries)
    # What could not be delivered stays, and does not keep the round from its end.
    assert read(q, cursor=ids[-1], delivered=ids[:1] + ids[2:]).entries == []
    assert [entry["id"] for entry in outbox_entries(q)] == ["2"]
    assert not q.redis("EXISTS", "lock:outbox")


def test_one_holder_at_a_time(q: OwnQueue):
    fill(q, 1)
    mine = read(q, "mine")
    assert mine.entries
    assert read(q, "yours") == OutboxReply(False, [])
    assert 0 < int(q.redis("PTTL", "lock:outbox")) <= HOLD
    assert read(q, "mine", mine.entries[0].id, (mine.entries[0].id,)) == OutboxReply(True, [])
    assert read(q, "yours") == OutboxReply(True, [])


def test_entries_added_during_a_round_are_read(q: OwnQueue):
    fill(q, 1)
    first = read(q, "mine")
    q.finish(take_with(q).failed())
    assert not read(q, "yours").held
    later = read(q, "mine", first.entries[-1].id, (first.entries[0].id,))
    assert [entry.fields["id"] for entry in later.entries] == ["2"]


def test_pages_are_bounded_in_number_and_bytes(q: OwnQueue):
    fill(q, 150)
    first = read(q)
    assert len(first.entries) == 100
    assert len(read(q, cursor=first.entries[-1].id).entries) == 50
    q.redis(
        "DEL",
        "outbox",
    )
    q.redis("DEL", "lock:outbox")
    fill(q, 5, '"' + "x" * 400_000 + '"')
    assert len(read(q).entries) == 3
