"""Reads that are polled together: each gets its own entries, and one reader's end does not end the others."""

import asyncio
from typing import Any

import pytest

from glidemq_py._client import blocking_reads
from glidemq_py._client.blocking_reads import _commands, _Poller, _Read
from glidemq_py.errors import ClosedError, GlideMQConnectionError

STREAM = [(b"1-0", [b"a", b"1"]), (b"2-0", [b"b", b"2"]), (b"3-0", [b"c", b"3"])]


class FakeTransport:
    """Serves XREAD from streams; it fails without a suspension, as a closed transport does."""

    is_cluster = False

    def __init__(self, streams: dict[str, list[Any]], *, cluster: bool = False) -> None:
        self.streams = streams
        self.is_cluster = cluster
        self.error: Exception | None = None
        self.sent: list[tuple[str, ...]] = []

    async def command(self, *args: str) -> Any:
        self.sent.append(args)
        if self.error is not None:
            raise self.error
        count, names = int(args[2]), args[4:]
        half = len(names) // 2
        found: dict[bytes, dict[bytes, Any]] = {}
        for name, position in zip(names[:half], names[half:], strict=True):
            entries = [each for each in self.streams.get(name, ()) if each[0].decode() > position][:count]
            if entries:
                found[name.encode()] = dict(entries)
        return found or None


async def ids(poller: _Poller, transport: Any, stream: str, position: str, count: str = "100") -> list[bytes] | None:
    reply = await poller.read(transport, count, stream, position, 0.05)
    return None if reply is None else list(reply[stream.encode()])


async def test_reads_of_one_stream_have_their_own_positions_and_counts():
    poller, transport = _Poller(), FakeTransport({"s": STREAM, "t": STREAM[:1]})
    found = await asyncio.gather(
        ids(poller, transport, "s", "0-0"), ids(poller, transport, "s", "2-0"), ids(poller, transport, "s", "1-0", "1"),
        ids(poller, transport, "s", "3-0"), ids(poller, transport, "t", "0-0"),
    )  # fmt: skip
    assert list(found) == [[b"1-0", b"2-0", b"3-0"], [b"3-0"], [b"2-0"], None, [b"1-0"]]


async def test_streams_of_one_count_are_read_by_one_command():
    poller, transport = _Poller(), FakeTransport({f"s{n}": STREAM for n in range(5)})
    found = await asyncio.gather(*(ids(poller, transport, f"s{n}", f"{n}-0") for n in range(5)))
    assert found == [[b"1-0", b"2-0", b"3-0"], [b"2-0", b"3-0"], [b"3-0"], None, None]
    assert transport.sent[0] == (
        "XREAD", "COUNT", "100", "STREAMS", "s0", "s1", "s2", "s3", "s4", "0-0", "1-0", "2-0", "3-0", "4-0"
    )  # fmt: skip


async def test_a_command_has_one_stream_in_a_cluster_and_a_limited_number_elsewhere():
    transport: Any = FakeTransport({})
    reads = [_Read(transport, "10", f"s{n}", "0-0", 0) for n in range(1_200)]
    assert [len(each) for each in _commands(reads, cluster=False)] == [500, 500, 200]
    assert [len(each) for each in _commands(reads[:3], cluster=True)] == [1, 1, 1]


async def test_other_reads_go_on_if_the_transport_of_one_is_closed():
    poller = _Poller()
    closed, transport = FakeTransport({}), FakeTransport({"s": STREAM})
    closed.error = ClosedError("closed")
    outcomes = await asyncio.wait_for(
        asyncio.gather(
            ids(poller, closed, "s", "0-0"), ids(poller, transport, "s", "0-0"), ids(poller, closed, "t", "0-0"),
            return_exceptions=True,
        ),
        10,
    )  # fmt: skip
    assert [type(each) for each in outcomes] == [ClosedError, list, ClosedError]


async def test_an_error_ends_all_reads_and_the_next_ones_are_served():
    poller, transport = _Poller(), FakeTransport({"s": STREAM})
    transport.error = GlideMQConnectionError("away")
    outcomes = await asyncio.gather(
        *(ids(poller, transport, "s", position) for position in ("0-0", "1-0")), return_exceptions=True
    )
    assert [type(each) for each in outcomes] == [GlideMQConnectionError] * 2
    transport.error = None
    assert await ids(poller, transport, "s", "1-0") == [b"2-0", b"3-0"]


async def test_a_cancelled_read_is_not_read_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blocking_reads, "_SHORTEST_S", 0.001)
    poller, transport = _Poller(), FakeTransport({})
    cancelled = asyncio.create_task(ids(poller, transport, "s", "0-0"))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await ids(poller, transport, "t", "0-0") is None
    assert all("s" not in each[4:] for each in transport.sent[1:])


async def test_an_unexpected_error_ends_all_reads_instead_of_leaving_them():
    poller, transport = _Poller(), FakeTransport({})
    transport.error = RuntimeError("unexpected")
    outcomes = await asyncio.wait_for(
        asyncio.gather(*(ids(poller, transport, name, "0-0") for name in "st"), return_exceptions=True), 10
    )
    assert [str(each) for each in outcomes] == ["polling ended: RuntimeError: unexpected"] * 2
    assert poller._task is not None
    with pytest.raises(RuntimeError, match="unexpected"):
        await poller._task


def test_a_reservation_may_end_inside_the_lock():
    with blocking_reads._lock:
        reservation = blocking_reads.reserve_read("server")
        assert reservation is not None
        reservation.release()
    assert "server" not in blocking_reads._reserved
