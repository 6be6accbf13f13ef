"""A task encodes its next rows while the server works on those before, one group of calls at a time."""

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from glidemq_py._client.blocking_transport import ThreadTransport
from glidemq_py._core.calls import Call
from glidemq_py._core.calls.adding import AddReply
from glidemq_py.errors import FairKeyFullError, GlideMQError, StagedWriteError
from glidemq_py.spark.api import TaskFacts
from glidemq_py.spark.options import WriteOptions
from glidemq_py.spark.sinks import AppendSink

WAIT_S = 100


class Server:
    """Replies to a group of calls when it is allowed to."""

    def __init__(self, *problems: GlideMQError) -> None:
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
    options = WriteOptions.parse({"queue": "q", "url": "valkey://localhost", "guarantee": "append"}, streaming=False)
    return AppendSink(cast(ThreadTransport, server), options, TaskFacts(0, 0, "", -1))


def test_one_group_of_calls_is_in_progress() -> None:
    server = Server()
    with sink_of(server) as sink:
        sink.send([("q", b"a"), ("other", b"b")])
        assert server.begun.acquire(timeout=WAIT_S)
        assert (server.answered, sink.counts) == (0, {})
        server.allowed.release()
        sink.send([("q", b"c")])
        assert (server.answered, sink.counts) == (1, {"q": (2, 1), "other": (2, 1)})
        server.allowed.release()
        sink.finish()
    assert (server.answered, sink.counts) == (2, {"q": (4, 2), "other": (2, 1)})


def test_full_fair_key_fails_the_task() -> None:
    class Full(Server):
        def call_all(self, calls: Sequence[Call[Any]]) -> list[AddReply]:
            super().call_all(calls)
            return [AddReply(now=1, results=["1", ["backlog", ""]]) for _ in calls]

    server = Full()
    server.allowed.release()
    with sink_of(server) as sink:
        sink.send([("q", b"a")])
        with pytest.raises(FairKeyFullError, match="maximum backlog"):
            sink.finish()


def test_next_group_is_not_sent_after_an_error() -> None:
    server = Server(StagedWriteError("w", "q", "gap"))
    with sink_of(server) as sink:
        sink.send([("q", b"a")])
        server.allowed.release(2)
        with pytest.raises(StagedWriteError, match="q"):
            sink.send([("q", b"b")])
        sink.finish()
    assert server.answered == 1


def test_a_failing_task_waits_for_its_call() -> None:
    server = Server()

    def fail() -> None:
        with sink_of(server) as sink:
            sink.send([("q", b"a")])
            assert server.begun.acquire(timeout=WAIT_S)
            threading.Timer(0.05, server.allowed.release).start()
            raise KeyError("row")

    with pytest.raises(KeyError):
        fail()
    assert server.answered == 1
