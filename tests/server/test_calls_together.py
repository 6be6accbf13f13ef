"""Several calls that are sent together: each is run once and in order, whatever fails."""

from collections.abc import AsyncIterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
from glide_shared.exceptions import ConnectionError as GlideConnectionError
from glide_shared.exceptions import RequestError

from glidemq_py import ConnectionOptions
from glidemq_py.errors import AmbiguousResultError, GlideMQError, ScriptError
from glidemq_py.testing import RespClient
from tests.inside import AsyncTransport, Call, QueueKeys, add, client_of, open_transport, set_client
from tests.inside import staged_writes as staging


class FaultyClient:
    """Calls a GLIDE client; the first batch fails.

    Args:
        client: the client.
        fault: 'reply' = its reply is lost; a number = the server rejects this call, and runs the others.
    """

    def __init__(self, client: Any, fault: str | int | None) -> None:
        self._client = client
        self._fault: str | int | None = fault

    async def exec(self, batch: Any, raise_on_error: bool, **options: Any) -> Any:
        fault, self._fault = self._fault, None
        if isinstance(fault, int):
            batch = copy(batch)
            batch.commands = [each for i, each in enumerate(batch.commands) if i != fault]
        replies = await self._client.exec(batch, raise_on_error=raise_on_error, **options)
        if fault == "reply":
            raise GlideConnectionError("connection lost")
        if isinstance(fault, int):
            replies.insert(fault, RequestError("LOADING: the dataset is being loaded"))
        return replies

    def __getattr__(self, name: str):
        return getattr(self._client, name)


@pytest.fixture
async def transport(core_url: str, keys: QueueKeys) -> AsyncIterator[AsyncTransport]:
    found = await AsyncTransport.connect(f"{core_url}?direct=false")
    await found.call(staging.writes(keys.meta))  # loads the library
    yield found
    await found.close()


@pytest.fixture
def keys(queue_name: str) -> QueueKeys:
    return QueueKeys("glide", queue_name)


def pieces(keys: QueueKeys) -> Sequence[Call[staging.StageReply]]:
    write = staging.WriteId(id="w", home=keys)
    return [staging.stage(write, keys, "a", seq, b"piece-%d" % seq, False) for seq in range(5)]


def adds(keys: QueueKeys) -> list[Call[Any]]:
    return [add(keys.meta, [["n", str(n), "{}"]], True) for n in range(5)]


def data(core_resp: RespClient, keys: QueueKeys) -> list[str]:
    return [core_resp.hash(keys.job(str(n)))["data"] for n in range(1, core_resp.execute("XLEN", keys.stream) + 1)]


@pytest.mark.parametrize("fault", ["reply", 0, 1, 3])
async def test_repeatable_calls_run_once_and_in_order(
    transport: AsyncTransport, core_resp: RespClient, keys: QueueKeys, fault: str | int
) -> None:
    await transport.call(staging.open_write(staging.WriteId(id="w", home=keys), create=True))
    set_client(transport, FaultyClient(client_of(transport), fault))
    assert [reply.state for reply in await transport.call_all(pieces(keys))] == ["open"] * 5
    (stored,) = [key for key in core_resp.keys(f"{keys.stem}*") if core_resp.execute("TYPE", key) == "list"]
    assert core_resp.execute("LRANGE", stored, 0, -1) == [f"piece-{seq}" for seq in range(5)]


@pytest.mark.parametrize("direct", [False, True])
async def test_missing_library_is_loaded(core_url: str, core_resp: RespClient, keys: QueueKeys, direct: bool) -> None:
    transport = await open_transport(f"{core_url}?direct={str(direct).lower()}")
    await transport.call(staging.writes(keys.meta))
    core_resp.execute("FUNCTION", "FLUSH", "SYNC")
    replies = await transport.call_all(adds(keys))
    assert [reply.results for reply in replies] == [[str(n)] for n in range(1, 6)]
    assert data(core_resp, keys) == [str(n) for n in range(5)]
    await transport.close()


async def test_rejected_add_is_retried_and_no_other(
    transport: AsyncTransport, core_resp: RespClient, keys: QueueKeys
) -> None:
    set_client(transport, FaultyClient(client_of(transport), 1))
    await transport.call_all(adds(keys))
    assert data(core_resp, keys) == ["0", "2", "3", "4", "1"]


async def test_adds_without_a_reply_are_not_repeated(
    transport: AsyncTransport, core_resp: RespClient, keys: QueueKeys
) -> None:
    set_client(transport, FaultyClient(client_of(transport), "reply"))
    with pytest.raises(AmbiguousResultError):
        await transport.call_all(adds(keys))
    assert data(core_resp, keys) == [str(n) for n in range(5)]


async def test_first_failure_is_raised(transport: AsyncTransport, core_resp: RespClient, keys: QueueKeys) -> None:
    core_resp.execute("SET", keys.stream, "no stream")
    with pytest.raises(ScriptError, match="WRONGTYPE"):
        await transport.call_all(adds(keys))


def reads(keys: QueueKeys) -> list[list[str]]:
    return [["HLEN", keys.meta], ["GET", keys.meta], ["HGETALL", keys.meta]]


def check_reads(replies: Any):
    size, refused, fields = replies
    assert size == 1
    assert isinstance(refused, GlideMQError)
    assert "WRONGTYPE" in str(refused)
    assert fields == {b"field": b"value"}


@pytest.mark.parametrize("fault", [None, "reply", 0, 2])
async def test_reads_are_repeated(
    transport: AsyncTransport, core_resp: RespClient, keys: QueueKeys, fault: Any
) -> None:
    core_resp.execute("HSET", keys.meta, "field", "value")
    set_client(transport, FaultyClient(client_of(transport), fault))
    check_reads(await transport.send_reads(keys.meta, reads(keys)))


def queues_of(keys: QueueKeys, resp: RespClient) -> list[QueueKeys]:
    """Return queues in several slots, each with a field."""
    queues = [QueueKeys("glide", f"{keys.name}-{n}") for n in range(20)]
    for each in queues:
        resp.execute("HSET", each.meta, "field", each.name)
    return queues


@pytest.mark.parametrize("fault", [None, "reply", 0, 2])
async def test_reads_of_several_slots_are_repeated(
    transport: AsyncTransport, core_resp: RespClient, keys: QueueKeys, fault: Any
) -> None:
    queues = queues_of(keys, core_resp)
    core_resp.execute("SET", queues[3].stream, "no hash")
    set_client(transport, FaultyClient(client_of(transport), fault))
    commands = [["HGET", each.meta, "field"] for each in queues]
    *found, refused = await transport.send_reads(None, [*commands, ["HGET", queues[3].stream, "field"]])
    assert found == [each.name.encode() for each in queues]
    assert isinstance(refused, GlideMQError)


@pytest.mark.parametrize("read_from", ["primary", "prefer_replica"])
async def test_reads_of_several_slots_of_a_cluster(
    cluster_url: str, cluster_resp: RespClient, keys: QueueKeys, read_from: Any
):
    queues = queues_of(keys, cluster_resp)
    transport = await AsyncTransport.connect(replace(ConnectionOptions.from_url(cluster_url), read_from=read_from))
    try:
        found = await transport.send_reads(None, [["HGET", each.meta, "field"] for each in queues])
    finally:
        await transport.close()
    assert found == [each.name.encode() for each in queues]
