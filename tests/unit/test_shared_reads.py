"""Blocking and polled reads that share connections: each reader gets its own entries, and one does not end others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from glidemq_py._client.stream_reads import StreamRead
from glidemq_py.errors import ClosedError, GlideMQConnectionError, ScriptError
from tests.inside import reserved_reads, shared_reads, stream_reads

STREAM = [(b"1-0", [b"a", b"1"]), (b"2-0", [b"b", b"2"]), (b"3-0", [b"c", b"3"])]


class FakeServer:
    """Streams; blocking reads wait for entries or CLIENT UNBLOCK."""

    def __init__(self, streams: dict[str, list[Any]] | None = None, *, cluster: bool = False):
        self.streams = streams or {}
        self.is_cluster = cluster
        self.wrong: set[str] = set()
        self.sent: list[tuple[str, ...]] = []
        self.clients = 0
        self.blocked: dict[int, asyncio.Event] = {}
        self.unblocked = 0
        self.may_unblock = True
        self.changed = asyncio.Event()

    def add(self, stream: str, entry: tuple[bytes, list[bytes]]):
        self.streams.setdefault(stream, []).append(entry)
        self.changed.set()
        for event in self.blocked.values():
            event.set()

    def found(self, args: tuple[str, ...]) -> dict[bytes, dict[bytes, Any]]:
        first = args.index("STREAMS") + 1
        half = (len(args) - first) // 2
        names = args[first : first + half]
        assert len(set(names)) == len(names)
        for name in names:
            if name in self.wrong:
                raise ScriptError(f"WRONGTYPE {name}")
        count, reply = int(args[args.index("COUNT") + 1]), dict[bytes, dict[bytes, Any]]()
        for name, position in zip(names, args[first + half :], strict=True):
            if position == ">":
                entries, self.streams[name] = self.streams.get(name, [])[:count], self.streams.get(name, [])[count:]
            else:
                entries = [each for each in self.streams.get(name, ()) if each[0].decode() > position][:count]
            if entries:
                reply[name.encode()] = dict(entries)
        return reply


class FakeTransport:
    """A connection to a `FakeServer`; it fails without a suspension, as a closed transport does."""

    def __init__(self, server: FakeServer, number: int = 0):
        self.server = server
        self.number = number
        self.error: Exception | None = None
        self.closed = False
        self.client_owner = self

    @property
    def is_cluster(self) -> bool:
        return self.server.is_cluster

    async def dedicated_client(self) -> FakeTransport:
        self.server.clients += 1
        return FakeTransport(self.server, self.server.clients)

    dedicated = dedicated_client

    async def close(self):
        self.closed = True

    async def command(self, *args: str):
        server = self.server
        server.sent.append(args)
        if self.error is not None:
            raise self.error
        if args[0] == "CLIENT":
            if args[1] == "ID":
                return self.number
            if not server.may_unblock:
                raise ScriptError("NOPERM")
            waiting = server.blocked.get(int(args[2]))
            if waiting is not None:
                waiting.set()
                server.unblocked += 1
            return int(waiting is not None)
        reply = server.found(args)
        if reply or "BLOCK" not in args:
            return reply or None
        event = server.blocked[self.number] = asyncio.Event()
        try:
            async with asyncio.timeout(int(args[args.index("BLOCK") + 1]) / 1000):
                await event.wait()
        except TimeoutError:
            return None
        finally:
            del server.blocked[self.number]
        return server.found(args) or None

    def reads(self) -> list[tuple[str, ...]]:
        return [each for each in self.server.sent if "BLOCK" in each]


def xread(stream: str, position: str, count: str = "100", block: int = 50) -> tuple[str, ...]:
    return "XREAD", "COUNT", count, "BLOCK", str(block), "STREAMS", stream, position


async def polled(poller: stream_reads.Poller, transport: Any, *args: str) -> list[bytes] | None:
    read = StreamRead(transport, args, cluster=transport.is_cluster)
    poller.add(read)
    try:
        reply = await read.done
    finally:
        poller.remove(read)
    return None if reply is None else [entry for entries in reply.values() for entry in entries]


async def ids(reader: shared_reads.SharedReader, *args: str) -> list[bytes] | None:
    reply = await asyncio.wait_for(reader.command(*args), 20)
    return None if reply is None else [entry for entries in reply.values() for entry in entries]


def reader_of(transport: Any) -> shared_reads.SharedReader:
    glide: Any = SimpleNamespace(server="server", client_owner=transport.client_owner)
    return shared_reads.SharedReader(transport, glide)


async def blocked(server: FakeServer):
    """Wait until a blocking read waits."""
    while not server.blocked:  # noqa: ASYNC110
        await asyncio.sleep(0)


# -- polled -----------------------------------------------------------------------------------------------


async def test_polled_reads_of_one_stream_have_their_own_positions_and_counts():
    poller, transport = stream_reads.Poller(), FakeTransport(FakeServer({"s": STREAM, "t": STREAM[:1]}))
    found = await asyncio.gather(
        polled(poller, transport, *xread("s", "0-0")), polled(poller, transport, *xread("s", "2-0")),
        polled(poller, transport, *xread("s", "1-0", "1")), polled(poller, transport, *xread("s", "3-0")),
        polled(poller, transport, *xread("t", "0-0")),
    )  # fmt: skip
    assert list(found) == [[b"1-0", b"2-0", b"3-0"], [b"3-0"], [b"2-0"], None, [b"1-0"]]


async def test_polled_streams_of_one_count_are_read_by_one_command():
    poller, transport = stream_reads.Poller(), FakeTransport(FakeServer({f"s{n}": STREAM for n in range(5)}))
    found = await asyncio.gather(*(polled(poller, transport, *xread(f"s{n}", f"{n}-0")) for n in range(5)))
    assert found == [[b"1-0", b"2-0", b"3-0"], [b"2-0", b"3-0"], [b"3-0"], None, None]
    assert transport.server.sent[0] == (
        "XREAD", "COUNT", "100", "STREAMS", "s0", "s1", "s2", "s3", "s4", "0-0", "1-0", "2-0", "3-0", "4-0"
    )  # fmt: skip


async def test_a_command_has_streams_of_one_slot_in_a_cluster_and_a_limited_number_elsewhere():
    transport: Any = FakeTransport(FakeServer())
    names = [f"glide:{{q{n // 2}}}:{n % 2}" for n in range(1_200)]
    reads = [StreamRead(transport, xread(name, "0-0"), cluster=False) for name in names]
    assert [len(each) for each in stream_reads.commands_of(reads)] == [500, 500, 200]
    reads = [StreamRead(transport, xread(name, "0-0"), cluster=True) for name in names[:6]]
    assert [len(each) for each in stream_reads.commands_of(reads)] == [2, 2, 2]
    reads = [StreamRead(transport, xread("s", f"{n % 2}-0"), cluster=False) for n in range(900)]
    assert [len(each) for each in stream_reads.commands_of(reads)] == [450, 450]


async def test_a_stream_that_cannot_be_read_ends_only_its_own_polled_read():
    poller, transport = stream_reads.Poller(), FakeTransport(FakeServer({"s": STREAM}))
    transport.server.wrong.add("bad")
    found = await asyncio.gather(
        *(polled(poller, transport, *xread(name, "0-0")) for name in ("bad", "s", "t")), return_exceptions=True
    )
    assert isinstance(found[0], ScriptError)
    assert found[1:] == [[b"1-0", b"2-0", b"3-0"], None]


async def test_other_polled_reads_go_on_if_the_transport_of_one_is_closed():
    poller, server = stream_reads.Poller(), FakeServer({"s": STREAM})
    closed, transport = FakeTransport(server), FakeTransport(server)
    closed.error = ClosedError("closed")
    outcomes = await asyncio.wait_for(
        asyncio.gather(
            polled(poller, closed, *xread("s", "0-0")), polled(poller, transport, *xread("s", "0-0")),
            polled(poller, closed, *xread("t", "0-0")), return_exceptions=True,
        ),
        10,
    )  # fmt: skip
    assert [type(each) for each in outcomes] == [ClosedError, list, ClosedError]


async def test_an_error_ends_all_polled_reads_and_the_next_ones_are_served():
    poller, transport = stream_reads.Poller(), FakeTransport(FakeServer({"s": STREAM}))
    transport.error = GlideMQConnectionError("away")
    outcomes = await asyncio.gather(
        *(polled(poller, transport, *xread("s", position)) for position in ("0-0", "1-0")), return_exceptions=True
    )
    assert [type(each) for each in outcomes] == [GlideMQConnectionError] * 2
    transport.error = None
    assert await polled(poller, transport, *xread("s", "1-0")) == [b"2-0", b"3-0"]


async def test_a_cancelled_polled_read_is_not_read_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream_reads, "_SHORTEST_S", 0.001)
    poller, transport = stream_reads.Poller(), FakeTransport(FakeServer())
    cancelled = asyncio.create_task(polled(poller, transport, *xread("s", "0-0")))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await polled(poller, transport, *xread("t", "0-0")) is None
    assert all("s" not in each for each in transport.server.sent[1:])


async def test_an_unexpected_error_ends_all_polled_reads_instead_of_leaving_them():
    poller, transport = stream_reads.Poller(), FakeTransport(FakeServer())
    transport.error = RuntimeError("unexpected")
    outcomes = await asyncio.wait_for(
        asyncio.gather(
            *(polled(poller, transport, *xread(name, "0-0")) for name in "st"), return_exceptions=True
        ),
        10,
    )  # fmt: skip
    assert [str(each) for each in outcomes] == ["polling ended: RuntimeError: unexpected"] * 2
    task = poller._task
    assert task is not None
    with pytest.raises(RuntimeError, match="unexpected"):
        await task


# -- shared -----------------------------------------------------------------------------------------------


async def test_readers_share_one_blocking_read():
    server = FakeServer()
    transport = FakeTransport(server)
    readers = [reader_of(transport) for _ in range(shared_reads.READERS_PER_LINE)]
    waiting = [
        asyncio.create_task(ids(reader, *xread(f"s{n}", "0-0", block=5_000))) for n, reader in enumerate(readers)
    ]
    await blocked(server)
    server.add("s7", (b"1-0", [b"a", b"1"]))
    assert await waiting[7] == [b"1-0"]
    assert server.clients == 1
    assert not any(reader.is_polled for reader in readers)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for reader in readers:
        await reader.close()
    assert not reserved_reads()


async def test_a_read_that_begins_later_is_served_at_once():
    server = FakeServer()
    transport = FakeTransport(server)
    first, second = reader_of(transport), reader_of(transport)
    waiting = asyncio.create_task(ids(first, *xread("s", "0-0", block=5_000)))
    await blocked(server)
    assert await asyncio.wait_for(ids(second, *xread("t", "0-0", block=1)), 1) is None
    assert server.unblocked == 1
    server.streams["u"] = STREAM[:1]
    assert await asyncio.wait_for(ids(second, *xread("u", "0-0", block=5_000)), 0.5) == [b"1-0"]
    server.add("s", (b"1-0", [b"a", b"1"]))
    assert await waiting == [b"1-0"]
    await first.close()
    await second.close()


async def test_without_permission_to_unblock_a_line_waits_for_slices():
    server = FakeServer({"t": STREAM[:1]})
    server.may_unblock = False
    transport = FakeTransport(server)
    first, second = reader_of(transport), reader_of(transport)
    waiting = asyncio.create_task(ids(first, *xread("s", "0-0", block=100)))
    await blocked(server)
    assert await ids(second, *xread("t", "0-0", block=100)) == [b"1-0"]
    assert await waiting is None
    assert [*await asyncio.gather(
        ids(first, *xread("s", "0-0", block=100)), ids(second, *xread("t", "1-0", block=100))
    )] == [None, None]  # fmt: skip
    assert int(transport.reads()[-1][4]) <= 50
    await first.close()
    await second.close()


async def test_readers_of_one_stream_at_different_positions():
    server = FakeServer({"s": STREAM})
    transport = FakeTransport(server)
    readers = [reader_of(transport) for _ in range(3)]
    found = asyncio.gather(
        ids(readers[0], *xread("s", "3-0", block=5_000)), ids(readers[1], *xread("s", "1-0", block=5_000)),
        ids(readers[2], *xread("s", "2-5", block=5_000)),
    )  # fmt: skip
    await blocked(server)
    server.add("s", (b"4-0", [b"d", b"4"]))
    assert [*await found] == [[b"4-0"], [b"2-0", b"3-0"], [b"3-0"]]
    for reader in readers:
        await reader.close()


async def test_an_entry_of_a_group_wakes_one_reader():
    server = FakeServer()
    transport = FakeTransport(server)
    readers = [reader_of(transport) for _ in range(2)]
    group = ("XREADGROUP", "GROUP", "wakers", "w", "COUNT", "1", "BLOCK", "200", "NOACK", "STREAMS", "s", "w", ">", ">")
    found = asyncio.gather(*(ids(reader, *group) for reader in readers))
    await blocked(server)
    server.add("s", (b"1-0", []))
    assert sorted(await found, key=str) == [None, [b"1-0"]]
    for reader in readers:
        await reader.close()


async def test_a_stream_that_cannot_be_read_ends_only_its_own_read():
    server = FakeServer({"s": STREAM[:1]})
    server.wrong.add("bad")
    transport = FakeTransport(server)
    readers = [reader_of(transport) for _ in range(3)]
    found = await asyncio.gather(
        *(ids(reader, *xread(name, "0-0")) for reader, name in zip(readers, ("bad", "s", "t"), strict=True)),
        return_exceptions=True,
    )
    assert isinstance(found[0], ScriptError)
    assert found[1:] == [[b"1-0"], None]
    for reader in readers:
        await reader.close()


async def test_a_reader_without_a_line_is_polled_until_there_is_one():
    server = FakeServer({"s": STREAM[:1]})
    taken = [shared_reads.reserve_read("server") for _ in range(shared_reads.BLOCKING_READS)]
    reader = reader_of(FakeTransport(server))
    assert await ids(reader, *xread("s", "0-0")) == [b"1-0"]
    assert reader.is_polled
    for each in taken:
        assert each is not None
        each.release()
    assert await ids(reader, *xread("s", "0-0")) == [b"1-0"]
    assert not reader.is_polled
    await reader.close()
    assert not reserved_reads()


async def test_a_claimed_line_is_given_back_and_its_readers_are_polled():
    server = FakeServer()
    transport = FakeTransport(server)
    workers = [shared_reads.reserve_read("server", shared_reads.WORKER_READS) for _ in range(2)]
    readers = [reader_of(transport) for _ in range(2)]
    waiting = [asyncio.create_task(ids(reader, *xread("s", "0-0", block=20))) for reader in readers]
    await blocked(server)
    claimed = shared_reads.claim_read("server")
    assert await asyncio.gather(*waiting) == [None, None]
    assert await asyncio.gather(*(ids(reader, *xread("s", "0-0", block=1)) for reader in readers)) == [None, None]
    assert all(reader.is_polled for reader in readers)
    assert reserved_reads()["server"] == shared_reads.BLOCKING_READS
    for reader in readers:
        await reader.close()
    for each in (*workers, claimed):
        assert each is not None
        each.release()
    assert not reserved_reads()


async def test_closing_a_reader_ends_its_read_and_no_other():
    server = FakeServer()
    transport = FakeTransport(server)
    first, second = reader_of(transport), reader_of(transport)
    waiting = [asyncio.create_task(ids(each, *xread("s", "0-0", block=5_000))) for each in (first, second)]
    await blocked(server)
    await first.close()
    with pytest.raises(ClosedError):
        await waiting[0]
    with pytest.raises(ClosedError):
        await first.command("XREVRANGE", "s", "+", "-")
    server.add("s", (b"1-0", []))
    assert await waiting[1] == [b"1-0"]
    await second.close()


async def test_in_a_cluster_a_line_serves_one_slot():
    server = FakeServer(cluster=True)
    transport = FakeTransport(server)
    readers = [reader_of(transport) for _ in range(8)]
    found = await asyncio.gather(
        *(ids(reader, *xread(f"glide:{{q{n // 2}}}:{n % 2}", "0-0")) for n, reader in enumerate(readers))
    )
    assert found == [None] * 8
    assert [reader.is_polled for reader in readers] == [False] * 6 + [True] * 2
    for reader in readers:
        await reader.close()


def test_a_reservation_may_end_inside_the_lock():
    with shared_reads._lock:
        reservation = shared_reads.reserve_read("server")
        assert reservation is not None
        reservation.release()
    assert "server" not in reserved_reads()
