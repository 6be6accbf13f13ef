"""Test staged writes, per function and through the whole protocol: committed once, published once."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from glidemq_py._core.calls.adding import request, row
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features import staged_writes as staging
from glidemq_py._features.fair_keys.queue_api import set_fair_limits
from glidemq_py._features.partitions.changing import advance_layout, replace_layout
from glidemq_py._features.partitions.layout import Layout
from glidemq_py._features.staged_writes import (
    OnceLayout,
    StageReply,
    Steps,
    WriteId,
    abort_write,
    commit_write,
    finish_writes,
    publish_write,
)
from glidemq_py.errors import StagedWriteError
from glidemq_py.testing import RespClient, RespError
from tests.lua.own_support import OwnQueue

TTL, KEEP = 60_000, 3_600_000
MONTH = 30 * 86_400_000


class Place:
    """Two queues, one of them the home of the write `w`."""

    def __init__(self, resp: RespClient, name: str) -> None:
        self.home, self.beside = OwnQueue(resp, name), OwnQueue(resp, name + "-b")
        self.keys, self.beside_keys = QueueKeys("glide", name), QueueKeys("glide", name + "-b")
        self.write = WriteId(id="w", home=self.keys, ttl=TTL, keep=KEEP)

    def steps(self, steps: Steps[Any]) -> Any:
        reply: Any = None
        while True:
            try:
                call = steps.send(reply)
            except StopIteration as end:
                return end.value
            reply = self.run(call)

    def run(self, call: Any) -> Any:
        return self.home.run(call)

    def open(self, write: WriteId | None = None, *, create: bool = True, queue: str = "") -> str:
        return str(self.home.run(staging.open_write(write or self.write, create=create, queue=queue)).state)

    def decide_alone(self, winners: Any, total: int, write: WriteId | None = None, beside: bool = False) -> str:
        """Send one call of a commit with a new ballot; return its state."""
        write = write or self.write
        ballot = self.home.run(staging.claim(write, "t", 0)).ballot
        keys = self.beside_keys if beside else self.keys
        return str(self.home.run(staging.commit(write, keys, winners, 0, total, ballot)).state)

    def stage(self, attempt: str, seq: int, *data: str, write: WriteId | None = None, **options: Any) -> StageReply:
        keys = self.beside_keys if options.pop("beside", False) else self.keys
        unique = options.pop("unique", False)
        blob = request([row("n", each, "{}", **options) for each in data], True)
        reply = self.home.run(staging.stage(write or self.write, keys, attempt, seq, blob, unique))
        assert isinstance(reply, StageReply)
        return reply

    def jobs(self, queue: OwnQueue | None = None) -> list[str]:
        q = queue or self.home
        return [q.job(entry["jobId"])["data"] for entry in q.entries()]

    def staged_keys(self) -> set[str]:
        return {
            name
            for q in (self.home, self.beside)
            for name in q.key_names()
            if name.startswith("write") and name != "write-reports"
        }


@pytest.fixture
def place(resp: RespClient, queue_name: str) -> Iterator[Place]:
    found = Place(resp, queue_name)
    yield found
    found.home.delete_everything()
    found.beside.delete_everything()


def test_winners_become_jobs_and_others_are_deleted(place: Place) -> None:
    assert place.open() == "open"
    assert place.open() == "open"
    for seq, data in enumerate(("1", "2")):
        assert place.stage("0.a", seq, data, data + "!").state == "open"
    place.stage("1.loser", 0, "no")
    place.stage("1.winner", 0, "3", job_id="mine")
    place.stage("1.winner", 1, "3", job_id="mine")
    assert place.jobs() == []
    assert place.steps(commit_write(place.write, {place.keys.name: [("0.a", 2), ("1.winner", 2)]})) == (5, 1)
    assert place.jobs() == ["1", "1!", "2", "2!", "3"]
    assert place.staged_keys() == {"write:w"}
    assert 0 < place.home.redis("PTTL", "write:w") <= KEEP
    # A late writer is rejected, and a second commit adds nothing.
    assert place.stage("2.zombie", 0, "no").state == "done"
    assert place.open() == "done"
    place.steps(commit_write(place.write, {place.keys.name: []}))
    assert len(place.jobs()) == 5


def test_repeated_piece_is_stored_once(place: Place) -> None:
    place.open()
    assert [place.stage("a", seq, str(seq)).state for seq in (0, 0, 1, 1)] == ["open"] * 4
    assert place.stage("a", 5, "x").state == "lost"
    place.steps(commit_write(place.write, {place.keys.name: [("a", 2)]}))
    assert place.jobs() == ["0", "1"]


def test_write_with_lost_piece_is_not_committed(place: Place) -> None:
    place.open()
    place.stage("a", 0, "1")
    place.stage("b", 0, "2")
    place.home.redis("DEL", "write:w:try:b")
    with pytest.raises(StagedWriteError, match="staged rows are missing"):
        place.steps(commit_write(place.write, {place.keys.name: [("a", 1), ("b", 1)]}))
    assert place.steps(abort_write(place.write)) is None
    assert (place.jobs(), place.staged_keys()) == ([], {"write:w"})
    assert place.stage("c", 0, "zombie").state == "aborted"


def test_piece_of_unopened_write_is_rejected(place: Place) -> None:
    assert place.open(create=False) == "absent"
    assert place.stage("a", 0, "1").state == "absent"
    with pytest.raises(StagedWriteError, match="expired"):
        place.steps(commit_write(place.write, {}))
    assert place.staged_keys() == set()


def test_everything_staged_expires(place: Place) -> None:
    place.open(queue=place.beside_keys.name)
    place.stage("a", 0, "1")
    place.stage("a", 0, "2", beside=True)
    for q in (place.home, place.beside):
        assert 0 < q.redis("PTTL", "writes") <= MONTH
        for name in q.key_names() - {"writes"}:
            assert 0 < q.redis("PTTL", name) <= TTL, name


@pytest.mark.slow
def test_many_attempts_are_committed_and_deleted_in_chunks(place: Place) -> None:
    place.open()
    winners = [(f"{i}.w", 1) for i in range(1_100)]
    for i in range(1_100):
        place.stage(f"{i}.w", 0, str(i))
    for i in range(150):
        place.stage(f"{i}.l", 0, "no")
    assert place.steps(commit_write(place.write, {place.keys.name: winners})) == (1_100, 0)
    assert place.jobs() == [str(i) for i in range(1_100)]
    assert place.staged_keys() == {"write:w"}


def test_crashed_publish_can_be_continued(place: Place) -> None:
    place.open()
    for seq in range(4):
        place.stage("a", seq, str(seq))
    steps = commit_write(place.write, {place.keys.name: [("a", 4)]})
    reply: Any = None
    for _ in range(4):  # the ballot, the decision, and two pieces
        reply = place.run(steps.send(reply))
    assert place.jobs() == ["0", "1"]
    assert place.steps(finish_writes(place.keys)) == 0  # another writer may be active
    place.home.advance(6_000)
    assert place.steps(finish_writes(place.keys)) == 1
    assert place.jobs() == ["0", "1", "2", "3"]
    assert place.staged_keys() == {"write:w"}
    assert place.steps(publish_write(place.write)) == (4, 0)


def test_abort_after_commit_is_rejected(place: Place) -> None:
    place.open()
    place.stage("a", 0, "1")
    assert place.decide_alone([("a", 1)], 1) == "committed"
    assert place.steps(abort_write(place.write)) == (1, 0)
    assert place.jobs() == ["1"]


# -- several queues ------------------------------------------------------------------------------------------


def stage_in_both(place: Place) -> None:
    place.open()
    assert place.open(queue=place.beside_keys.name) == "open"
    place.stage("a", 0, "home")
    place.stage("a", 0, "beside", beside=True)
    place.stage("a", 1, "beside 2", beside=True)


def both(place: Place) -> dict[str, list[tuple[str, int]]]:
    return {place.keys.name: [("a", 1)], place.beside_keys.name: [("a", 2)]}


def test_write_to_two_queues_is_committed_together(place: Place) -> None:
    stage_in_both(place)
    assert place.steps(commit_write(place.write, both(place))) == (3, 0)
    assert (place.jobs(), place.jobs(place.beside)) == (["home"], ["beside", "beside 2"])
    assert place.staged_keys() == {"write:w"}
    assert place.stage("z", 0, "zombie", beside=True).state == "done"


@pytest.mark.parametrize("stop", range(1, 10))
@pytest.mark.parametrize("first", ["home", "beside"])
def test_crash_at_any_step_publishes_all_or_nothing(place: Place, stop: int, first: str) -> None:
    stage_in_both(place)
    steps = commit_write(place.write, both(place))
    reply: Any = None
    try:
        for _ in range(stop):
            reply = place.run(steps.send(reply))
    except StopIteration:
        pass
    decided = place.open(create=False) in ("committed", "done")
    assert decided == (stop >= 3)
    for _ in range(2):
        place.home.advance(6_000)
        place.beside.advance(6_000)
        order = [place.keys, place.beside_keys]
        for keys in order if first == "home" else reversed(order):
            place.steps(finish_writes(keys))
    if decided:
        assert (place.jobs(), place.jobs(place.beside)) == (["home"], ["beside", "beside 2"])
        assert place.open(create=False) == "done"
    else:
        # Its writer may continue. If it does not, the prepared parts in other queues are discarded.
        place.steps(abort_write(place.write))
        assert (place.jobs(), place.jobs(place.beside)) == ([], [])
    assert place.staged_keys() == {"write:w"}


def test_prepared_part_of_expired_write_is_aborted(place: Place) -> None:
    stage_in_both(place)
    assert place.decide_alone([("a", 2)], 1, beside=True) == "prepared"
    assert TTL < place.beside.redis("PTTL", "write:w:try:a") <= MONTH
    place.home.redis("DEL", "write:w")  # it ran out
    place.home.advance(6_000)
    place.beside.advance(6_000)
    assert place.steps(finish_writes(place.beside_keys)) == 1
    assert place.steps(finish_writes(place.keys)) == 0
    assert place.jobs(place.beside) == []
    assert place.staged_keys() == set()
    assert place.stage("a", 2, "zombie", beside=True).state == "absent"


def test_aborted_write_can_be_repeated(place: Place) -> None:
    stage_in_both(place)
    place.steps(abort_write(place.write))
    assert place.staged_keys() == {"write:w"}
    assert place.open(create=False) == "aborted"
    assert place.open() == "open"
    assert place.stage("a", 1, "zombie").state == "lost"
    assert place.stage("a", 2, "zombie", beside=True).state == "absent"
    place.open(queue=place.beside_keys.name)
    place.stage("b", 0, "home")
    place.stage("b", 0, "beside", beside=True)
    assert place.steps(commit_write(place.write, {q: [("b", 1)] for q in both(place)})) == (2, 0)
    assert (place.jobs(), place.jobs(place.beside)) == (["home"], ["beside"])
    assert place.staged_keys() == {"write:w"}


def test_queue_with_only_losing_attempts(place: Place) -> None:
    stage_in_both(place)
    assert place.steps(commit_write(place.write, {place.keys.name: [("a", 1)]})) == (1, 0)
    assert place.jobs(place.beside) == []
    assert place.staged_keys() == {"write:w"}


def test_queue_prepared_by_a_dead_driver_is_prepared_again(place: Place) -> None:
    stage_in_both(place)
    assert place.decide_alone([("a", 2)], 1, beside=True) == "prepared"  # and its driver died
    assert place.open(queue=place.beside_keys.name) == "open"
    place.stage("b", 0, "new home")
    assert place.stage("b", 0, "new beside", beside=True).state == "open"
    assert place.steps(commit_write(place.write, {q: [("b", 1)] for q in both(place)})) == (2, 0)
    assert (place.jobs(), place.jobs(place.beside)) == (["new home"], ["new beside"])
    assert place.staged_keys() == {"write:w"}


def test_earlier_ballot_cannot_commit(place: Place) -> None:
    stage_in_both(place)
    first = place.home.run(staging.claim(place.write, "first", 0)).ballot
    second = place.home.run(staging.claim(place.write, "second", 0)).ballot
    for keys, winner in ((place.beside_keys, ("a", 2)), (place.keys, ("a", 1))):
        expected = "prepared" if keys == place.beside_keys else "committed"
        assert place.home.run(staging.commit(place.write, keys, [winner], 0, 1, second)).state == expected
        reply = place.home.run(staging.commit(place.write, keys, [winner], 0, 1, first))
        assert reply == (("fenced", second) if keys == place.beside_keys else ("committed", ""))
    assert place.steps(publish_write(place.write)) == (3, 0)


def test_ballot_of_an_undecided_driver_is_fenced_at_home(place: Place) -> None:
    stage_in_both(place)
    first = place.home.run(staging.claim(place.write, "first", 0)).ballot
    second = place.home.run(staging.claim(place.write, "second", 0)).ballot
    assert place.home.run(staging.commit(place.write, place.keys, [("a", 1)], 0, 1, first)) == ("fenced", second)
    assert place.jobs() == []


def test_rows_of_another_ballot_are_not_published(place: Place) -> None:
    """Two drivers share a write: the one that decides has no rows in the other queue."""
    stage_in_both(place)
    assert place.decide_alone([("a", 2)], 1, beside=True) == "prepared"
    place.stage("b", 0, "all")
    assert place.steps(commit_write(place.write, {place.keys.name: [("b", 1)]})) == (1, 0)
    assert (place.jobs(), place.jobs(place.beside)) == (["all"], [])
    assert place.staged_keys() == {"write:w"}


def test_abort_of_one_driver_leaves_the_rows_of_another(place: Place) -> None:
    first, second = (replace(place.write, driver=driver) for driver in ("d1", "d2"))
    for write in (first, second):
        assert place.open(write) == "open"
        assert place.open(write, create=False, queue=place.beside_keys.name) == "open"
        for beside in (False, True):
            place.stage(f"{write.driver}.0", 0, write.driver, write=write, beside=beside)
    assert place.steps(abort_write(first)) is None
    assert place.stage("d1.1", 0, "zombie", write=first).state == "aborted"
    with pytest.raises(StagedWriteError, match="aborted"):
        place.steps(commit_write(first, {place.keys.name: [("d1.0", 1)]}))
    winners = {q: [("d2.0", 1)] for q in both(place)}
    assert place.steps(commit_write(second, winners)) == (2, 0)
    assert (place.jobs(), place.jobs(place.beside)) == (["d2"], ["d2"])
    # The first driver saves again: its rows are not added.
    assert place.steps(staging.decide_write(second, winners)) is True
    assert place.steps(staging.decide_write(first, {})) is False
    assert place.staged_keys() == {"write:w"}


def test_cleanup_planned_before_a_change_is_rejected(place: Place) -> None:
    stage_in_both(place)
    (entry,) = place.home.run(staging.writes(place.beside_keys))
    place.stage("b", 0, "later", beside=True)
    reply = place.home.run(staging.abort(place.write, place.beside_keys, changes=entry.changes))
    assert reply[0] == "open"
    (entry,) = place.home.run(staging.writes(place.beside_keys))
    assert place.home.run(staging.abort(place.write, place.beside_keys, changes=entry.changes))[0] == "aborted"


def test_open_write_is_aborted_after_its_time_to_live(place: Place) -> None:
    stage_in_both(place)
    assert place.steps(finish_writes(place.keys, 0)) == 0
    for q in (place.home, place.beside):
        q.advance(TTL)
    assert place.steps(finish_writes(place.keys)) == 1
    assert place.steps(finish_writes(place.beside_keys)) == 1
    assert place.staged_keys() == {"write:w"}


def test_report_counts_jobs_by_queue(place: Place) -> None:
    stage_in_both(place)
    place.stage("b", 0, "1", job_id="mine")
    place.stage("b", 1, "2", job_id="mine")
    winners = {place.keys.name: [("a", 1), ("b", 2)], place.beside_keys.name: [("a", 2)]}
    place.steps(staging.decide_write(place.write, winners, '{"rows": 5}'))
    place.steps(publish_write(place.write))
    (report,) = place.home.run(staging.write_reports(place.keys))
    assert report[:2] == ("w", "")
    assert report[3:] == (4, 1, '{"rows": 5}', {place.keys.name: (2, 1), place.beside_keys.name: (2, 0)}, 0)
    place.home.run(staging.add_report(place.write, {place.keys.name: (0, 3)}, "{}", repeated=False))
    assert [row.others for row in place.home.run(staging.write_reports(place.keys))] == [3, 1]
    assert place.home.run(staging.write_reports(place.keys, 1, 1))[0] == report


# -- streams -------------------------------------------------------------------------------------------------


def test_micro_batch_is_published_once(place: Place) -> None:
    batches = [WriteId.of_batch(place.keys, "query", n, TTL, KEEP) for n in range(3)]
    for n, write in enumerate(batches[:2]):
        assert place.open(write) == "open"
        place.stage("a", 0, str(n), write=write)
        place.steps(commit_write(write, {place.keys.name: [("a", 1)]}))
    assert place.staged_keys() == {"write-stream:query"}
    assert [place.open(write) for write in batches] == ["done", "done", "open"]
    assert place.stage("z", 0, "zombie", write=batches[1]).state == "done"
    assert place.jobs() == ["0", "1"]


def test_failed_micro_batch_can_be_repeated(place: Place) -> None:
    write = WriteId.of_batch(place.keys, "query", 0, TTL, KEEP)
    place.open(write)
    place.open(write, queue=place.beside_keys.name)
    place.stage("old", 0, "no", write=write)
    place.stage("old", 0, "no", write=write, beside=True)
    assert place.decide_alone([("old", 1)], 2, write) == "open"  # half of the winners were named
    assert place.steps(abort_write(write)) is None
    assert place.staged_keys() == set()
    assert place.stage("old", 1, "zombie", write=write).state == "absent"
    assert place.open(write) == "open"
    place.stage("new", 0, "yes", write=write)
    place.steps(commit_write(write, {place.keys.name: [("new", 1)]}))
    assert place.jobs() == ["yes"]


def test_leftover_pieces_of_micro_batch_are_ignored(place: Place) -> None:
    write = WriteId.of_batch(place.keys, "query", 7, TTL, KEEP)
    place.open(write)
    place.stage("old", 0, "no", write=write)
    assert place.decide_alone([("old", 1)], 2, write) == "open"  # and its driver died
    assert place.open(write) == "open"
    place.stage("new", 0, "yes", write=write)
    assert place.steps(commit_write(write, {place.keys.name: [("new", 1)]})) == (1, 0)
    assert (place.jobs(), place.staged_keys()) == (["yes"], {"write-stream:query"})


# -- the rest ------------------------------------------------------------------------------------------------


def test_unique_returns_existing_job(place: Place) -> None:
    place.home.add_job(job_id="mine")
    place.open()
    assert place.stage("a", 0, "1", job_id="mine", unique=True) == ("duplicate", "mine")
    assert place.stage("a", 0, "1", job_id="other", unique=True).state == "open"


def test_a_write_is_published_beyond_the_maximum_backlog_of_a_fair_key(place: Place) -> None:
    place.home.run(set_fair_limits(place.home.meta, "k", max_backlog=1))
    place.open()
    place.stage("a", 0, "1", "2", "3", fair_key="k")
    assert place.steps(commit_write(place.write, {place.keys.name: [("a", 1)]})) == (3, 0)
    blob = request([row("n", "4", "{}", fair_key="k")], True)
    place.home.run(staging.add_once(place.keys, place.write, "0", 0, blob, piece=0))
    assert place.home.redis("ZCARD", "fairq:k") == 4
    assert place.home.add(row("n", "5", "{}", fair_key="k")) == [["backlog", "1"]]


class Once:
    """Adds rows of the sequence "0" with their numbers as data."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def add(
        self, first: int, count: int = 1, layout: OnceLayout = staging.WITHOUT_PARTITIONS, *, piece: int = 0,
        sequence: str = "0", write: WriteId | None = None,
    ) -> tuple[str, int]:  # fmt: skip
        blob = request([["n", f"{sequence}:{n}", "{}"] for n in range(first, first + count)], True)
        keys = self.place.keys
        call = staging.add_once(keys, write or self.place.write, sequence, first, blob, piece=piece, layout=layout)
        reply = self.place.home.run(call)
        return reply.status, reply.jobs

    def counts(self, write: WriteId | None = None, sequence: str = "0") -> Any:
        reply = self.place.home.run(staging.once_counts(self.place.keys, write or self.place.write, sequence))
        return reply.rows() if reply.state == "ok" else reply.state


@pytest.fixture
def once(place: Place) -> Once:
    return Once(place)


def test_add_once_adds_each_row_once(place: Place, once: Once) -> None:
    assert [once.add(first) for first in (0, 1, 0, 1, 2)] == [
        ("added", 1), ("added", 1), ("already", 0), ("already", 0), ("added", 1)
    ]  # fmt: skip
    assert once.add(0, sequence="1") == ("added", 1)
    assert once.add(7) == ("gap", 0)
    assert once.add(1, 4) == ("added", 2)  # another attempt divides the rows differently
    assert once.add(0, 5) == ("already", 0)
    assert place.jobs() == ["0:0", "0:1", "0:2", "1:0", "0:3", "0:4"]
    assert 0 < place.home.redis("PTTL", "write-once:w") <= KEEP


def test_add_once_adds_each_micro_batch_once(place: Place, once: Once) -> None:
    batches = [WriteId.of_batch(place.keys, "query", n, TTL, KEEP) for n in range(2)]
    assert [once.add(0, write=batches[n])[0] for n in (0, 1, 1)] == ["added", "added", "already"]
    assert [once.add(n, write=batches[0])[0] for n in (0, 1)] == ["already", "already"]
    assert once.counts(batches[0]) == "over"
    assert once.counts(batches[1]) == [(staging.WITHOUT_PARTITIONS, 1)]
    assert once.counts(WriteId.of_batch(place.keys, "query", 2, TTL, KEEP)) == []
    assert once.add(0, write=WriteId.of_batch(place.keys, "query", 2, TTL, KEEP)) == ("added", 1)


def test_add_once_counts_the_rows_of_each_layout(place: Place, once: Once) -> None:
    assert once.counts() == []
    once.add(0, 3)
    names = (place.keys.name, "q~p~0000", "q~p~0001", "q~p~0002")
    place.home.run(replace_layout(place.home.meta, None, Layout(5, (1, 2), names)))
    with pytest.raises(RespError, match=r"layout 5 .* the client used 0"):
        once.add(3)
    first, second = OnceLayout(5, 2, 3), OnceLayout(6, 4, 5)
    assert [once.add(0, 2, first), once.add(0, 2, first)] == [("added", 2), ("already", 0)]
    assert once.add(2, 1, OnceLayout(5, 2, 0)) == ("gap", 0)  # did not find the rows of the plain queue
    place.home.run(advance_layout(place.home.meta, Layout(6, (1, 2, 4), names)))
    assert once.add(0, 1, second) == ("added", 1)
    assert once.counts() == [(staging.WITHOUT_PARTITIONS, 3), (first, 2), (second, 1)]
    assert once.counts(sequence="1") == []
    place.home.redis("PEXPIRE", "write-once:w", "100000")
    once.counts()
    assert place.home.redis("PTTL", "write-once:w") > 100_000


def test_ledger_of_version_0_1_0_is_continued(place: Place, once: Once) -> None:
    """It counted calls: two of them had five rows."""
    place.home.redis("HSET", "write-once:w", "p0", "2")
    assert once.counts() == "unknown"
    assert [once.add(0, 3, piece=0), once.add(3, 2, piece=1), once.add(5, 2, piece=2)] == [
        ("already", 0), ("already", 0), ("added", 2)
    ]  # fmt: skip
    assert once.counts() == [(staging.WITHOUT_PARTITIONS, 7)]
    assert once.add(0, 7) == ("already", 0)
    assert place.jobs() == ["0:5", "0:6"]


def test_queue_registered_before_an_expiry_is_published(place: Place) -> None:
    """Another task may begin the write again between the registration of a queue and the first piece in it."""
    place.open(queue=place.beside_keys.name)
    place.home.redis("DEL", "write:w", "write:w:queues", "writes")
    place.open()
    place.stage("a", 0, "1")
    place.stage("b", 0, "2", beside=True)
    place.steps(commit_write(place.write, {place.keys.name: [("a", 1)], place.beside_keys.name: [("b", 1)]}))
    assert (place.jobs(), place.jobs(place.beside)) == (["1"], ["2"])


def test_overwrite_deletes_waiting_jobs(place: Place) -> None:
    for name, queue in (("old", place.keys.name), ("older", place.beside_keys.name)):
        write = WriteId(id=name, home=place.keys, ttl=TTL, keep=KEEP)
        place.open(write, queue=place.beside_keys.name)
        place.stage("a", 0, name, write=write, beside=queue == place.beside_keys.name)
        place.steps(commit_write(write, {queue: [("a", 1)]}))
    place.open(queue=place.beside_keys.name)
    place.stage("a", 0, "new")
    place.stage("b", 0, "newer", beside=True)
    winners = {place.keys.name: [("a", 1)], place.beside_keys.name: [("b", 1)]}
    assert place.steps(staging.overwrite(place.write, winners)) is True
    assert (place.jobs(), place.jobs(place.beside)) == ([], [])
    place.steps(publish_write(place.write))
    assert (place.jobs(), place.jobs(place.beside)) == (["new"], ["newer"])
    # A write that is decided deletes nothing.
    assert place.steps(staging.overwrite(place.write, winners)) is False
    assert (place.jobs(), place.jobs(place.beside)) == (["new"], ["newer"])


def test_overwrite_publishes_committed_writes_first(place: Place) -> None:
    """Otherwise their jobs would appear after the deletion."""
    other = WriteId(id="other", home=place.keys, ttl=TTL, keep=KEEP)
    place.open(other)
    place.stage("a", 0, "1", write=other)
    place.steps(staging.decide_write(other, {place.keys.name: [("a", 1)]}))
    place.open()
    place.stage("a", 0, "2")
    place.steps(staging.overwrite(place.write, {place.keys.name: [("a", 1)]}))
    place.steps(publish_write(place.write))
    place.steps(publish_write(other))
    assert place.jobs() == ["2"]


@pytest.mark.parametrize("beside", [False, True])
def test_commit_during_an_overwrite_starts_it_again(place: Place, beside: bool) -> None:
    home = place.beside_keys if beside else place.keys
    other = WriteId(id="other", home=home, ttl=TTL, keep=KEEP)
    place.home.run(staging.open_write(other, create=True))
    place.home.run(staging.stage(other, home, "a", 0, request([row("n", "1", "{}")], True), False))
    place.open(queue=place.beside_keys.name)
    place.stage("a", 0, "2")
    place.stage("a", 0, "2", beside=True)
    winners = {place.keys.name: [("a", 1)], place.beside_keys.name: [("a", 1)]}
    steps, reply, restarts = staging.overwrite(place.write, winners), None, 0
    while (call := next_step(steps, reply)) is not None:
        if isinstance(call, staging.Pause):
            restarts, reply = restarts + 1, None
            continue
        if call.function == "write_claim" and not restarts:
            place.steps(commit_write(other, {home.name: [("a", 1)]}))
        reply = place.run(call)
    assert restarts == 1
    place.steps(publish_write(place.write))
    assert (place.jobs(), place.jobs(place.beside)) == (["2"], ["2"])


def test_commit_after_an_overwrite_has_emptied_a_queue_without_rows(place: Place) -> None:
    """The commit of a write with the same home is found there, so its jobs in that queue are deleted too."""
    write, other = (WriteId(id=name, home=place.beside_keys, ttl=TTL, keep=KEEP) for name in ("w", "other"))
    place.open(other, queue=place.keys.name)
    place.stage("a", 0, "1", write=other)
    place.open(write)
    place.stage("a", 0, "2", write=write, beside=True)
    steps = staging.overwrite(write, {place.beside_keys.name: [("a", 1)]}, emptied=lambda: [place.keys.name])
    reply, drains, restarts = None, 0, 0
    while (call := next_step(steps, reply)) is not None:
        if isinstance(call, staging.Pause):
            restarts, reply = restarts + 1, None
            continue
        reply = place.run(call)
        drains += call.function == "write_drain" and call.key == place.keys.meta
        if drains == 2 and not restarts:  # the first one returns the number of commits
            place.steps(commit_write(other, {place.keys.name: [("a", 1)]}))
            assert place.jobs() == ["1"]
    assert restarts == 1
    place.steps(publish_write(write))
    assert (place.jobs(), place.jobs(place.beside)) == ([], ["2"])


def next_step(steps: Steps[Any], reply: Any) -> Any:
    try:
        return steps.send(reply)
    except StopIteration:
        return None


def test_late_deletion_of_an_overwrite_is_rejected(place: Place) -> None:
    before = place.run(staging.drain_queue(place.keys)).last_commit
    place.open()
    place.stage("a", 0, "1")
    place.steps(commit_write(place.write, {place.keys.name: [("a", 1)]}))
    assert place.run(staging.drain_queue(place.keys, before)).state == "changed"
    assert place.jobs() == ["1"]
    now = place.run(staging.drain_queue(place.keys)).last_commit
    reply = place.run(staging.drain_queue(place.keys, now))
    assert (reply.state, reply.deleted, reply.last_commit, place.jobs()) == ("ok", 1, now, [])


def test_obliterate_deletes_writes(place: Place) -> None:
    place.open()
    assert place.home.redis("EXISTS", "writes") == 1
    place.home.obliterate()
    assert place.home.key_names() == set()


def test_a_full_server_publishes_later(resp: RespClient, place: Place) -> None:
    """The functions that make jobs have no `allow-oom`; those that end writes have."""
    flags = {f[1]: f[5] for f in resp.execute("FUNCTION", "LIST", "LIBRARYNAME", "glidemq_py_*")[0][5]}
    named = {name.rpartition("_")[2] if "add_once" not in name else name[-8:]: each for name, each in flags.items()}
    assert named["publish"] == named["stage"] == named["open"] == named["add_once"] == []
    assert named["commit"] == named["abort"] == named["finished"] == named["writes"] == ["allow-oom"]
