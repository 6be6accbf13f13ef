"""Test staged writes, per function and through the whole protocol: committed once, published once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from glidemq_py._features.staged_writes import (
    Published,
    StageReply,
    Steps,
    Winner,
    WriteId,
    decide_write,
    finish_writes,
    publish_write,
)
from glidemq_py.testing import RespClient
from tests.inside import QueueKeys, fair_keys, request, row
from tests.inside import staged_writes as staging
from tests.lua.own_support import OwnQueue

TTL, KEEP = 60_000, 3_600_000
MONTH = 30 * 86_400_000


class Place:
    """Two queues, one of them the home of the write `w`."""

    def __init__(self, resp: RespClient, name: str):
        self.home, self.beside = OwnQueue(resp, name), OwnQueue(resp, name + "-b")
        self.keys, self.beside_keys = QueueKeys("glide", name), QueueKeys("glide", name + "-b")
        self.write = WriteId(id="w", home=self.keys, ttl=TTL, keep=KEEP)

    def steps(self, steps: Steps[Any]):
        reply: Any = None
        while True:
            try:
                call = steps.send(reply)
            except StopIteration as end:
                return end.value
            reply = self.run(call)

    def run(self, call: Any):
        return self.home.run(call)

    def open(self, write: WriteId | None = None, *, create: bool = True, queue: str = "") -> str:
        return str(self.home.run(staging.open_write(write or self.write, create=create, queue=queue)).state)

    def commit(self, write: WriteId, winners: Mapping[str, Sequence[Winner]]) -> Published:
        """Commit and publish a write, as Spark's driver does."""
        self.steps(decide_write(write, winners))
        published: Published = self.steps(publish_write(write))
        return published

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


def test_everything_staged_expires(place: Place):
    place.open(queue=place.beside_keys.name)
    place.stage("a", 0, "1")
    place.stage("a", 0, "2", beside=True)
    for q in (place.home, place.beside):
        assert 0 < q.redis("PTTL", "writes") <= MONTH
        for name in q.key_names() - {"writes"}:
            assert 0 < q.redis("PTTL", name) <= TTL, name


@pytest.mark.slow
def test_many_attempts_are_committed_and_deleted_in_chunks(place: Place):
    place.open()
    winners = [(f"{i}.w", 1) for i in range(1_100)]
    for i in range(1_100):
        place.stage(f"{i}.w", 0, str(i))
    for i in range(150):
        place.stage(f"{i}.l", 0, "no")
    assert place.commit(place.write, {place.keys.name: winners}) == (1_100, 0)
    assert place.jobs() == [str(i) for i in range(1_100)]
    assert place.staged_keys() == {"write:w"}


# -- several queues ------------------------------------------------------------------------------------------


def stage_in_both(place: Place):
    place.open()
    assert place.open(queue=place.beside_keys.name) == "open"
    place.stage("a", 0, "home")
    place.stage("a", 0, "beside", beside=True)
    place.stage("a", 1, "beside 2", beside=True)


def test_cleanup_planned_before_a_change_is_rejected(place: Place):
    stage_in_both(place)
    (entry,) = place.home.run(staging.writes(place.beside_keys.meta))
    place.stage("b", 0, "later", beside=True)
    reply = place.home.run(staging.abort(place.write, place.beside_keys, changes=entry.changes))
    assert reply[0] == "open"
    (entry,) = place.home.run(staging.writes(place.beside_keys.meta))
    assert place.home.run(staging.abort(place.write, place.beside_keys, changes=entry.changes))[0] == "aborted"


def test_open_write_is_aborted_after_its_time_to_live(place: Place):
    stage_in_both(place)
    assert place.steps(finish_writes(place.keys, 0)) == 0
    for q in (place.home, place.beside):
        q.advance(TTL)
    assert place.steps(finish_writes(place.keys)) == 1
    assert place.steps(finish_writes(place.beside_keys)) == 1
    assert place.staged_keys() == {"write:w"}


# -- the rest ------------------------------------------------------------------------------------------------


def test_unique_returns_existing_job(place: Place):
    place.home.add_job(job_id="mine")
    place.open()
    assert place.stage("a", 0, "1", job_id="mine", unique=True) == ("duplicate", "mine")
    assert place.stage("a", 0, "1", job_id="other", unique=True).state == "open"


def test_a_write_is_published_beyond_the_maximum_backlog_of_a_fair_key(place: Place):
    place.home.run(fair_keys.set_fair_limits(place.home.meta, "k", max_backlog=1))
    place.open()
    place.stage("a", 0, "1", "2", "3", fair_key="k")
    assert place.commit(place.write, {place.keys.name: [("a", 1)]}) == (3, 0)
    assert place.home.redis("ZCARD", "fairq:k") == 3
    assert place.home.add(row("n", "4", "{}", fair_key="k")) == [["backlog", "1"]]


def test_queue_registered_before_an_expiry_is_published(place: Place):
    """Another task may begin the write again between the registration of a queue and the first piece in it."""
    place.open(queue=place.beside_keys.name)
    place.home.redis("DEL", "write:w", "write:w:queues", "writes")
    place.open()
    place.stage("a", 0, "1")
    place.stage("b", 0, "2", beside=True)
    place.commit(place.write, {place.keys.name: [("a", 1)], place.beside_keys.name: [("b", 1)]})
    assert (place.jobs(), place.jobs(place.beside)) == (["1"], ["2"])


@pytest.mark.parametrize("beside", [False, True])
def test_commit_during_an_overwrite_starts_it_again(place: Place, beside: bool):
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
            place.commit(other, {home.name: [("a", 1)]})
        reply = place.run(call)
    assert restarts == 1
    place.steps(publish_write(place.write))
    assert (place.jobs(), place.jobs(place.beside)) == (["2"], ["2"])


def test_commit_after_an_overwrite_has_emptied_a_queue_without_rows(place: Place):
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
            place.commit(other, {place.keys.name: [("a", 1)]})
            assert place.jobs() == ["1"]
    assert restarts == 1
    place.steps(publish_write(write))
    assert (place.jobs(), place.jobs(place.beside)) == ([], ["2"])


def next_step(steps: Steps[Any], reply: Any):
    try:
        return steps.send(reply)
    except StopIteration:
        return None


def test_a_full_server_publishes_later(resp: RespClient, place: Place):
    """The functions that make jobs have no `allow-oom`; those that end writes have."""
    flags = {f[1]: f[5] for f in resp.execute("FUNCTION", "LIST", "LIBRARYNAME", "glidemq_py_*")[0][5]}
    named = {name.rpartition("_")[2]: each for name, each in flags.items()}
    assert named["publish"] == named["stage"] == named["open"] == []
    assert named["commit"] == named["abort"] == named["finished"] == named["writes"] == ["allow-oom"]
