"""A task connects while it waits for rows, and encodes its next rows while the server works on those before."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from glidemq_py.errors import FairKeyFullError, GlideMQConnectionError, GlideMQError, StagedWriteError
from glidemq_py.spark.api import TaskFacts, np
from glidemq_py.spark.encoding import PackedRows
from glidemq_py.spark.options import WriteOptions
from glidemq_py.spark.sinks import AppendSink, Batches, Request, StagedSink, WriteOver
from tests.inside import AddReply, BlockingTransport, Call, staged_writes

WAIT_S = 100
OPTIONS = WriteOptions.parse({"queue": "q", "url": "valkey://localhost", "guarantee": "append"}, streaming=False)
TASK = TaskFacts(0, 0, "", -1)


class Server:
    """Replies to a group of calls when it is allowed to."""

    def __init__(self, *problems: GlideMQError):
        self.problems = list(problems)
        self.begun, self.allowed, self.answered = threading.Semaphore(0), threading.Semaphore(0), 0

    def call_all(self, calls: Sequence[Call[Any]]) -> list[AddReply]:
        self.begun.release()
        assert self.allowed.acquire(timeout=WAIT_S)
        self.answered += 1
        if self.problems:
            raise self.problems.pop(0)
        return [AddReply(now=1, results=["1", ["replaced", "2"], ["skipped", "3"]]) for _ in calls]


def sink_of(server: Server) -> AppendSink:
    return AppendSink(lambda: cast(BlockingTransport, server), OPTIONS, TASK)


def test_groups_are_sent_one_after_another_while_the_next_is_collected():
    server = Server()
    with sink_of(server) as sink:
        sink.send([Request("q", b"a", 1), Request("other", b"b", 1)])
        sink.send([Request("q", b"c", 1)])
        assert server.begun.acquire(timeout=WAIT_S)
        assert not server.begun.acquire(blocking=False)
        assert (server.answered, sink.counts) == (0, {})
        server.allowed.release()
        sink.send([Request("q", b"d", 1)])  # waits for the first group
        assert server.answered == 1
        assert sink.counts == {"q": (2, 1), "other": (2, 1)}
        server.allowed.release(2)
        sink.finish()
    assert (server.answered, sink.counts) == (3, {"q": (6, 3), "other": (2, 1)})


def test_connects_while_the_task_waits_for_rows():
    server, connecting, reached = Server(), threading.Event(), threading.Event()

    def connect() -> BlockingTransport:
        connecting.set()
        assert reached.wait(WAIT_S)
        return cast(BlockingTransport, server)

    with AppendSink(connect, OPTIONS, TASK) as sink:
        assert connecting.wait(WAIT_S)
        sink.send([Request("q", b"a", 1)])
        reached.set()
        server.allowed.release()
        sink.finish()
    assert sink.counts == {"q": (2, 1)}


def test_task_without_rows_fails_if_it_cannot_connect():
    def connect() -> BlockingTransport:
        raise GlideMQConnectionError("no server")

    with AppendSink(connect, OPTIONS, TASK) as sink, pytest.raises(GlideMQConnectionError, match="no server"):
        sink.finish()


class Staging:
    """Notes the calls, and replies with a state."""

    def __init__(self, state: str):
        self.state, self.functions = state, list[str]()

    def call_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        self.functions += [call.function for call in calls]
        if calls[0].function == "write_open":
            return [staged_writes.WriteStatus(self.state, "") for _ in calls]
        return [staged_writes.StageReply(self.state, "") for _ in calls]


@pytest.mark.parametrize("state", ["open", "done", "aborted"])
def test_state_of_the_write_is_checked_with_the_first_rows(state: str):
    server, write = Staging(state), staged_writes.WriteId(id="w", home=OPTIONS.keys, driver="d")
    with StagedSink(lambda: cast(BlockingTransport, server), OPTIONS, TASK, write) as sink:
        sink.begin(create=True)
        sink.send([Request("q", b"a", 1)])
        if state == "open":
            sink.finish()
        else:
            with pytest.raises(WriteOver if state == "done" else StagedWriteError):
                sink.finish()
    assert server.functions == ["write_open", "write_stage"]


def test_queues_of_a_write_that_is_over_get_no_rows():
    server, write = Staging("done"), staged_writes.WriteId(id="w", home=OPTIONS.keys, driver="d")
    with StagedSink(lambda: cast(BlockingTransport, server), OPTIONS, TASK, write) as sink:
        sink.begin(create=True)
        with pytest.raises(WriteOver):
            sink.send([Request("other", b"a", 1)])
    assert server.functions == ["write_open"]


def test_first_rows_are_sent_soon():
    server, rows = Staging("open"), PackedRows(memoryview(bytes(100)), np.arange(101, dtype=np.int32))
    sent: list[int] = []

    class Noting(AppendSink):
        def send(self, requests: Sequence[Request]):
            sent.append(len(requests))

    options = replace(OPTIONS, batch_size=1)
    with Noting(lambda: cast(BlockingTransport, server), options, TASK) as sink:
        collected = Batches(sink, options)
        collected.put("q", rows)
        collected.end()
    assert sent == [1, 2, 4, 8, 16, 32, 32, 5]


def test_full_fair_key_fails_the_task():
    class Full(Server):
        def call_all(self, calls: Sequence[Call[Any]]) -> list[AddReply]:
            super().call_all(calls)
            return [AddReply(now=1, results=["1", ["backlog", "1"]]) for _ in calls]

    server = Full()
    server.allowed.release()
    with sink_of(server) as sink:
        sink.send([Request("q", b"a", 1)])
        with pytest.raises(FairKeyFullError, match="maximum backlog"):
            sink.finish()


def test_next_group_is_not_sent_after_an_error():
    server = Server(StagedWriteError("w", "q", "full"))
    with sink_of(server) as sink:
        sink.send([Request("q", b"a", 1)])
        sink.send([Request("q", b"b", 1)])
        server.allowed.release(3)
        with pytest.raises(StagedWriteError, match="q"):
            sink.send([Request("q", b"c", 1)])
    assert server.answered == 1


def test_a_failing_task_waits_for_its_call():
    server = Server()

    def fail():
        with sink_of(server) as sink:
            sink.send([Request("q", b"a", 1)])
            assert server.begun.acquire(timeout=WAIT_S)
            threading.Timer(0.05, server.allowed.release).start()
            raise KeyError("row")

    with pytest.raises(KeyError):
        fail()
    assert server.answered == 1


@pytest.mark.parametrize(("cost_us", "least", "most"), [(4, 900, 1_000), (20, 250, 300)])
def test_group_follows_the_time_of_the_replies_before(
    monkeypatch: pytest.MonkeyPatch, cost_us: int, least: int, most: int
):
    """Other clients wait for a group: about 6 ms, whatever the server needs for a row."""
    sizes: list[int] = []

    class Slow(Server):
        def call_all(self, calls: Sequence[Call[Any]]) -> list[AddReply]:
            done = sum(sizes) * cost_us / 1e6
            monkeypatch.setattr("glidemq_py.spark.sinks._monotonic", lambda: done)
            return [AddReply(now=1, results=["1"]) for _ in calls]

    class Noting(AppendSink):
        def send(self, requests: Sequence[Request]):
            sizes.append(sum(request.rows for request in requests))
            super().send(requests)
            self.finish()

    monkeypatch.setattr("glidemq_py.spark.sinks._monotonic", lambda: 0.0)
    rows = PackedRows(memoryview(bytes(20_000)), np.arange(20_001, dtype=np.int32))
    options = replace(OPTIONS, batch_size=50)
    with Noting(lambda: cast(BlockingTransport, Slow()), options, TASK) as sink:
        collected = Batches(sink, options)
        collected.put("q", rows)
        collected.end()
    assert least <= sorted(sizes)[len(sizes) // 2] <= most
