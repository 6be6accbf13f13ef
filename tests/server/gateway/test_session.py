"""Connections to a gateway, with raw frames."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import msgpack
import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway
from glidemq_py.gateway.commands import COMMANDS, PROTOCOL, attempts
from glidemq_py.gateway.connection import Connection
from glidemq_py.gateway.fetched import HeldJobs
from glidemq_py.gateway.table import CommandError
from glidemq_py.gateway.values import FrameReader
from tests.server.gateway.wire import Wire, good, packed
from tests.server.worker_support import until

TOKENS = ["first-token", "second-token"]


@pytest.fixture
async def gateway(url: str) -> AsyncIterator[Gateway]:
    async with Gateway(url, port=0) as gateway:
        yield gateway


@pytest.fixture
async def wire(gateway: Gateway) -> AsyncIterator[Wire]:
    async with Wire(gateway) as wire:
        yield wire


async def test_frames_behind_a_large_one_start_after_it(wire: Wire, queue_name: str):
    push = {"cmd": "PUSH", "queue": queue_name}
    large = packed({**push, "data": [{"a": number} for number in range(100_000)], "reqId": "large"})
    too_many = packed({"cmd": "Ping", "data": [{}] * 2_100_000, "reqId": "too many"})
    assert min(len(large), len(too_many)) > 262_144
    first, last = packed({**push, "data": 1, "reqId": "first"}), packed({**push, "data": 2, "reqId": "last"})
    wire.send(first + large + last + too_many + packed({"cmd": "Ping", "reqId": "ping"}))
    answers = {answer["reqId"]: answer["ok"] for answer in [await wire.receive() for _ in range(5)]}
    assert answers == {"first": True, "large": True, "last": True, "too many": False, "ping": True}
    jobs = (await good(wire, "PULLB", queue=queue_name, count=3, owner="w"))["jobs"]
    assert [job["data"] if isinstance(job["data"], int) else len(job["data"]) for job in jobs] == [1, 100_000, 2]


async def test_large_frame_does_not_hold_up_the_end_of_a_gateway(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue, Gateway(url, port=0) as gateway, Wire(gateway) as wire:
        wire.send(packed({"cmd": "PUSH", "queue": queue_name, "data": [{"a": number} for number in range(200_000)]}))
        await wire.writer.drain()
        start = time.monotonic()
        await gateway.close()
        assert time.monotonic() - start < 20
        assert (await queue.get_job_counts()).total in (0, 1)


@pytest.mark.parametrize("size", [1_000, 70_000, 3_000_000])
async def test_large_frame_right_behind_an_auth_is_accepted(url: str, queue_name: str, size: int):
    push = packed({"cmd": "PUSH", "queue": queue_name, "data": "x" * size, "reqId": 2})
    async with Gateway(url, port=0, tokens=["t" * 32]) as gateway, Wire(gateway) as wire, Wire(gateway) as bad:
        wire.send(packed({"cmd": "Auth", "token": "t" * 32, "reqId": 1}) + push)
        wire.send(packed({"cmd": "Ping", "reqId": 3}))
        answers = [await wire.receive() for _ in range(3)]
        assert sorted((answer["reqId"], answer["ok"]) for answer in answers) == [(1, True), (2, True), (3, True)]
        assert answers[0]["reqId"] == 1
        bad.send(packed({"cmd": "Auth", "token": "wrong", "reqId": 1}) + push)
        assert (await bad.receive())["error"] == "Invalid token"
        if size > 65_536:
            assert (await bad.receive())["error"].endswith("exceeds maximum 65536")
            assert await bad.is_closed()
        else:
            assert (await bad.receive())["error"] == "Not authenticated"


async def test_oversized_frame_is_answered_and_ends_the_connection(wire: Wire):
    wire.send(packed({"cmd": "Ping", "reqId": "before"}) + (67_108_865).to_bytes(4, "big") + b"rest")
    answers = [await wire.receive(), await wire.receive()]
    assert {"ok": False, "error": "Frame too large: 67108865 bytes exceeds maximum 67108864"} in answers
    assert await wire.is_closed()


async def test_incomplete_frame_ends_the_connection_but_idling_does_not(url: str):
    async with Gateway(url, port=0, frame_timeout=100) as gateway, Wire(gateway) as idle, Wire(gateway) as partial:
        assert (await idle.call("Ping"))["ok"] is True
        partial.send(b"\x00\x00\x00\x05ab")
        assert await partial.is_closed()
        assert (await idle.call("Ping"))["ok"] is True


@pytest.mark.slow
async def test_frame_timeout_is_that_of_the_whole_frame(url: str):
    async with Gateway(url, port=0, frame_timeout=500) as gateway, Wire(gateway) as slow:
        frame = packed({"cmd": "Ping", "reqId": 1, "padding": "x" * 1_000})
        closing = asyncio.create_task(slow.is_closed())
        sent, start = 0, time.monotonic()
        while not closing.done() and sent < len(frame):  # each byte arrives well within the timeout
            slow.send(frame[sent : sent + 1])
            sent += 1
            await asyncio.wait((closing,), timeout=0.05)
        assert await closing
        assert time.monotonic() - start >= 0.45
        assert sent < len(frame)
    # A frame that begins while another one ends has the whole time.
    async with Gateway(url, port=0, frame_timeout=2_000) as gateway, Wire(gateway) as steady:
        steady.send(frame[:-1])
        for _ in range(3):
            await asyncio.sleep(0.8)
            steady.send(frame[-1:] + frame[:-1])
            assert (await steady.receive())["ok"] is True


@pytest.mark.slow
async def test_time_of_a_frame_does_not_pass_while_the_gateway_does_not_read(url: str):
    async with Gateway(url, port=0, frame_timeout=400) as gateway, Wire(gateway) as wire:
        poll = packed({"cmd": "PULL", "queue": "nothing-here", "timeout": 1_500})
        ping = packed({"cmd": "Ping", "reqId": 1})
        # 50 long polls run, so the frames behind them wait, and the connection is not read.
        wire.send(poll * 50 + ping * 200 + ping[:7])
        answers = [await wire.receive() for _ in range(250)]
        assert all(answer["ok"] for answer in answers)
        wire.send(ping[7:])
        assert (await wire.receive())["ok"] is True


async def test_connection_that_is_not_authenticated_in_time_is_closed(url: str, caplog: pytest.LogCaptureFixture):
    """Else silent connections would lock out clients with a token."""
    options: dict[str, Any] = {"tokens": TOKENS, "frame_timeout": 300, "max_connections": 5}
    async with Gateway(url, port=0, **options) as gateway, Wire(gateway) as wire:
        assert (await wire.call("Auth", token=TOKENS[0]))["ok"]
        silent = [await Wire(gateway).__aenter__() for _ in range(4)]
        silent[0].send(packed({"cmd": "Ping"}))
        assert (await silent[0].receive())["error"] == "Not authenticated"
        for each in silent:
            assert await each.receive() == {"ok": False, "error": "Not authenticated within 0.3 s"}
            assert await each.is_closed()
            each.writer.close()
        assert (await wire.call("Ping"))["ok"]
        async with Wire(gateway) as other:
            assert (await other.call("Auth", token=TOKENS[1]))["ok"]
    lines = [each for each in caplog.messages if "was not authenticated" in each]
    text = "gateway: closed a connection of 127.0.0.1 that was not authenticated in 0.3 s"
    assert lines == [text, f"{text} (the last of 3 in the last minute)"]


def test_table_names_each_command_of_the_protocol_once():
    names = [name for group in PROTOCOL.values() for name in group]
    assert len(names) == len(set(names)) == 107
    assert {command.name: command.group for command in COMMANDS.values()}.items() <= {
        (name, group) for group, listed in PROTOCOL.items() for name in listed
    }


async def test_client_that_reads_no_answers_is_read_no_further(wire: Wire, gateway: Gateway):
    """Frames wait in the client's own buffers, and all are answered once it reads."""
    frame = packed({"cmd": "Ping", "reqId": "x" * 10_000})
    count = 3_000
    sending = asyncio.create_task(_send(wire, frame, count))
    async with Wire(gateway) as other:
        assert (await other.call("Ping"))["ok"] is True
    for _ in range(count):
        assert (await wire.receive())["ok"] is True
    await sending


async def _send(wire: Wire, frame: bytes, count: int):
    for _ in range(count):
        wire.send(frame)
        await wire.writer.drain()


async def test_closing_answers_running_commands(url: str, queue_name: str):
    gateway = Gateway(url, port=0)
    await gateway.start()
    async with Wire(gateway) as wire, Wire(gateway) as idle:
        await idle.call("Ping")
        wire.send(packed({"cmd": "Pause", "queue": queue_name}))
        assert (await wire.receive())["ok"] is True
        await asyncio.gather(gateway.close(), gateway.close())
        assert await wire.is_closed()
        assert await idle.is_closed()
    await until(lambda: gateway.connections == 0)


class Written(asyncio.Transport):
    """A connection whose frames stay here."""

    def __init__(self):
        super().__init__()
        self.reader, self.answers = FrameReader(2**20), list[dict[str, Any]]()
        self.is_paused = self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview):
        self.answers += [msgpack.unpackb(payload) for payload in self.reader.feed(bytes(data))]

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self):
        self.is_closed = True


def bad_pulls(start: int, count: int) -> bytes:
    return b"".join(packed({"cmd": "PULL", "reqId": number}) for number in range(start, start + count))


async def test_commands_let_the_event_loop_turn(gateway: Gateway):
    connection, transport = Connection(gateway), Written()
    connection.connection_made(transport)
    connection.data_received(bad_pulls(0, 200))
    connection.data_received(bad_pulls(200, 10))  # it waits behind the others
    assert (len(transport.answers), transport.is_paused) == (0, True)
    turns = [0]
    while turns[-1] < 150:
        await asyncio.sleep(0)
        turns.append(len(transport.answers))
    assert max(after - before for before, after in pairwise(turns)) <= 50
    assert not transport.is_paused
    connection.pause_writing()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (len(transport.answers), transport.is_paused) == (200, True)
    connection.resume_writing()
    connection.data_received((2**31).to_bytes(4, "big"))  # too large: the connection ends after the answers
    assert not transport.is_closed
    for _ in range(5):
        await asyncio.sleep(0)
    assert transport.is_closed
    assert [answer["reqId"] for answer in transport.answers if "reqId" in answer] == list(range(210))
    connection.connection_lost(None)


async def test_many_locks_are_looked_up_once(wire: Wire, monkeypatch: pytest.MonkeyPatch):
    looked: list[str] = []

    def stale(_: HeldJobs, job_id: str, *__: object):
        looked.append(job_id)

    async def unknown(*_: object):
        raise CommandError("Job not found")

    monkeypatch.setattr(HeldJobs, "fresh", stale)
    monkeypatch.setattr(attempts, "leased_job", unknown)
    ids = [str(number) for number in range(1_001)]
    assert (await good(wire, "JobHeartbeatB", ids=ids))["data"]["count"] == 0
    assert looked == ids


async def test_unknown_host_is_named(url: str):
    with pytest.raises(OSError, match=r"option 'host' = 'no-such-host\.invalid'"):
        await Gateway(url, host="no-such-host.invalid", port=0, allow_anonymous=True).start()
