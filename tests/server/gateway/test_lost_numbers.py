"""Numbers of queues that the server has lost, in a failover or because it started without its last writes."""

from collections.abc import AsyncIterator

import pytest

from glidemq_py.gateway import Gateway
from glidemq_py.gateway.job_ids import queue_number, usual_number
from glidemq_py.testing import RespClient
from tests.server.gateway.wire import Wire, good, state_of


@pytest.fixture
def prefix(queue_name: str) -> str:
    """The numbers are those of a prefix."""
    return queue_name


@pytest.fixture
def key(prefix: str, resp: RespClient) -> str:
    return f"{prefix}:gateway:queues"


@pytest.fixture
async def gateways(url: str, prefix: str, resp: RespClient) -> AsyncIterator[tuple[Gateway, Gateway]]:
    async with Gateway(url, port=0, prefix=prefix) as first, Gateway(url, port=0, prefix=prefix) as second:
        yield first, second
    for name in resp.keys(f"{prefix}:*"):
        resp.execute("DEL", name)


async def push(wire: Wire, queue: str) -> str:
    job_id: str = (await good(wire, "PUSH", queue=queue, data=1))["id"]
    return job_id


@pytest.mark.parametrize("lost", ["all", "n", "q"])
async def test_gateways_agree_again(
    gateways: tuple[Gateway, Gateway], wire: Wire, other: Wire, url: str, prefix: str, key: str, resp: RespClient,
    lost: str,
):  # fmt: skip
    before = await push(wire, "qa")
    number = queue_number(before)
    if lost == "all":
        resp.execute("DEL", key)
    else:
        resp.execute("HDEL", key, f"n:{number}" if lost == "n" else "q:qa")
    ids = [before, await push(other, "qb"), await push(wire, "qa"), await push(other, "qa")]
    assert queue_number(ids[1]) not in {queue_number(each) for each in (*ids[2:], ids[0])}
    for gateway in gateways:
        await gateway.ids.repair()
    async with Gateway(url, port=0, prefix=prefix) as third, Wire(third) as last:
        for each in (wire, other, last):
            assert [await state_of(each, job_id) for job_id in ids] == ["waiting"] * 4
        pulled = await good(last, "PULL", queue="qa", owner="w")
        await good(other, "ACK", id=pulled["job"]["id"], token=pulled["token"])
    assert resp.execute("HGET", key, "q:qa") is not None
    assert sum([await gateway.ids.repair() for gateway in gateways]) == 0


async def test_gateway_finds_jobs_before_numbers_are_written_again(wire: Wire, other: Wire, key: str, resp: RespClient):
    job_id = await push(wire, "qa")
    await good(other, "Count", queue="qa")
    resp.execute("DEL", key)
    assert await state_of(other, job_id) == "waiting"
    pulled = await good(other, "PULL", queue="qa", owner="w")
    assert pulled["job"]["id"] == job_id


async def test_number_that_another_queue_has_got_is_given_up(
    gateways: tuple[Gateway, Gateway], wire: Wire, other: Wire, key: str, resp: RespClient
):
    number = queue_number(await push(wire, "qa"))
    resp.execute("HSET", key, f"n:{number}", "qb")
    assert await gateways[0].ids.repair() == 0
    job_id = await push(wire, "qa")
    assert queue_number(job_id) != number
    assert await state_of(other, job_id) == "waiting"
    assert (await good(other, "GetJob", id=job_id))["job"]["queue"] == "qa"


@pytest.mark.parametrize("text", ["abc", "", "-5", "0", "99999999999", "1.5", "\xff"])
async def test_invalid_number_is_replaced(wire: Wire, other: Wire, key: str, resp: RespClient, text: str):
    resp.execute("HSET", key, "q:qa", text)
    job_id = await push(wire, "qa")
    assert await state_of(other, job_id) == "waiting"
    assert resp.execute("HGET", key, "q:qa") == str(queue_number(job_id))


@pytest.mark.parametrize("name", ["", "a{b", "\xff\xfe", "x" * 2_000])
async def test_invalid_name_is_no_queue(wire: Wire, other: Wire, key: str, resp: RespClient, name: str):
    job_id = await push(wire, "qa")
    resp.execute("HSET", key, f"n:{queue_number(job_id)}", name)
    assert await state_of(other, job_id) == "unknown"
    assert (await other.call("GetJob", id=job_id))["error"] == "Job not found"


async def test_numbers_of_other_queues_are_skipped(wire: Wire, other: Wire, key: str, resp: RespClient):
    usual = usual_number("qa")
    resp.execute("HSET", key, f"n:{usual}", "qb", f"n:{usual % (2**24 - 1) + 1}", "qc")
    job_id = await push(wire, "qa")
    assert queue_number(job_id) == (usual + 1) % (2**24 - 1) + 1
    assert await state_of(other, job_id) == "waiting"
