"""Usual commands: their order, and what happens if their calls have other than the usual results."""

import asyncio
from typing import Any

import pytest
from glide_shared.exceptions import ConnectionError as GlideConnectionError

from glidemq_py import Queue
from glidemq_py.gateway import Gateway, hub
from glidemq_py.gateway.commands import attempts
from glidemq_py.gateway.connection import Connection
from glidemq_py.gateway.job_ids import JobIds
from tests.inside import around, connected, direct, hubs_of, lease_exchange
from tests.server.gateway.wire import Wire, failure, good, packed, state_of


def job(data: Any) -> dict[str, Any]:
    return {"name": "n", "data": data}


@pytest.fixture
async def used(gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue) -> str:
    """Name of a queue that the gateway has used with all usual commands."""
    for cmd, fields in (("PUSH", job(0)), ("PUSHB", {"jobs": [job(0)]})):
        await good(wire, cmd, queue=queue.name, **fields)
        pulled = await good(wire, "PULL", queue=queue.name, owner="w")
        await good(wire, "ACK", id=pulled["job"]["id"], token=pulled["token"])
    return queue.name


@pytest.fixture
def lose_reply(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lose the reply to the first call of each function in this list, which was executed."""
    functions: list[str] = []

    async def lose(ask: Any, transport: Any, key: str, words: Any, *others: Any, **named: Any) -> Any:
        reply = await ask(transport, key, words, *others, **named)
        for function in functions:
            if words[1].endswith(f"_{function}".encode()):
                functions.remove(function)
                return GlideConnectionError("the connection was lost")
        return reply

    around(monkeypatch, direct.DirectTransport, "_ask", lose)
    return functions


async def test_usual_commands(wire: Wire, used: str):
    await good(wire, "PUSH", queue=used, **job(1))
    await good(wire, "PUSHB", queue=used, jobs=[job(2), job(3)])
    one = await good(wire, "PULL", queue=used, owner="w")
    two = await good(wire, "PULLB", queue=used, owner="w", count=5)
    await good(wire, "ACK", id=one["job"]["id"], token=one["token"], result={"n": 1})
    await good(wire, "ACKB", ids=[each["id"] for each in two["jobs"]], tokens=two["tokens"], results=[1, None])
    assert [each["data"] for each in (one["job"], *two["jobs"])] == [1, 2, 3]


async def test_unusual_pushes_are_not_overtaken(wire: Wire, used: str, queue_name: str):
    unusual: list[dict[str, Any]] = [
        {"durable": False, "jobId": f"{queue_name}-chosen"}, {"tags": ["a"]}, {"stackTraceLimit": 3},
        {"uniqueKey": "u"},
    ]  # fmt: skip
    frames: list[bytes] = []
    for number in range(40):
        options = unusual[number // 10] if number % 10 == 5 else {}
        frames.append(packed({"cmd": "PUSH", "reqId": number, "queue": used, **job(number), **options}))
    wire.send(b"".join(frames))
    answers = [await wire.receive() for _ in frames]
    assert all(answer["ok"] for answer in answers), answers
    pulled = await good(wire, "PULLB", queue=used, count=100)
    assert [each["data"] for each in pulled["jobs"]] == list(range(40))


async def test_library_that_is_missing_is_loaded(wire: Wire, used: str, queue: Queue):
    link = await connected(queue)
    for cmd in ("PUSH", "PULL", "ACK"):
        await link.transport.command("FUNCTION", "FLUSH", "SYNC")
        if cmd == "PUSH":
            await good(wire, "PUSH", queue=used, **job(1))
        elif cmd == "PULL":
            pulled = await good(wire, "PULL", queue=used, owner="w", timeout=5_000)
        else:
            await good(wire, "ACK", id=pulled["job"]["id"], token=pulled["token"])
    assert await state_of(wire, pulled["job"]["id"]) == "completed"


async def test_jobs_are_added_and_completed_once_if_replies_are_lost(
    wire: Wire, used: str, queue: Queue, lose_reply: list[str]
):
    before = await queue.get_job_counts()
    lose_reply.append("add")
    await good(wire, "PUSHB", queue=used, jobs=[job(1), job(2)])
    assert lose_reply == []
    assert (await queue.get_job_counts()).waiting == 2
    pulled = await good(wire, "PULLB", queue=used, count=2, owner="w")
    lose_reply.append("exchange")
    await good(wire, "ACKB", ids=[each["id"] for each in pulled["jobs"]], tokens=pulled["tokens"])
    assert lose_reply == []
    after = await queue.get_job_counts()
    assert (after.active, after.waiting, after.completed) == (0, 0, before.completed + 2)


async def test_fetch_whose_reply_is_lost_is_an_error(wire: Wire, used: str, lose_reply: list[str]):
    lose_reply.append("exchange")
    assert "may have been executed" in await failure(wire, "PULL", queue=used, owner="w")
    await good(wire, "PUSH", queue=used, **job(1))
    assert (await good(wire, "PULL", queue=used, owner="w"))["job"]["data"] == 1


async def test_report_of_a_lost_lease_is_an_error(wire: Wire, other: Wire, used: str, queue: Queue):
    ids = (await good(wire, "PUSHB", queue=used, jobs=[job(1), job(2)]))["ids"]
    pulled = await good(wire, "PULLB", queue=used, count=2, owner="w")
    await good(other, "ACK", id=ids[0], token=pulled["tokens"][0])
    await queue.clean(0, 100, "completed")
    assert ids[0] in await failure(wire, "ACKB", ids=ids, tokens=pulled["tokens"])
    assert await state_of(wire, ids[1]) == "completed"


async def test_long_poll_is_answered_when_the_gateway_closes(url: str, queue_name: str):
    async with Gateway(url, port=0) as gateway, Wire(gateway) as wire:
        await good(wire, "PULL", queue=queue_name)
        wire.send(
            packed({"cmd": "PULLB", "reqId": 7, "queue": queue_name, "count": 3, "timeout": 60_000, "owner": "w"})
        )
        async with asyncio.timeout(60):
            while not hubs_of(gateway)[queue_name].is_in_use:  # noqa: ASYNC110  there is no event for it
                await asyncio.sleep(0.01)
        closing = asyncio.ensure_future(gateway.close())
        assert await wire.receive() == {"ok": True, "jobs": [], "tokens": [], "reqId": 7}
        await closing


async def test_jobs_of_a_client_that_left_are_released(wire: Wire, other: Wire, used: str, gateways: Any):
    await good(wire, "PUSHB", queue=used, jobs=[job(1), job(2)])
    async with Wire(gateways[0]) as leaving:
        leaving.send(packed({"cmd": "PULLB", "queue": used, "count": 2, "owner": "w"}))
        await leaving.writer.drain()
    pulled: list[Any] = []
    async with asyncio.timeout(60):
        while len(pulled) < 2:
            pulled += (await good(other, "PULLB", queue=used, count=2, owner="w", timeout=1_000))["jobs"]
    assert sorted(each["data"] for each in pulled) == [1, 2]


async def test_large_job_of_a_client_that_leaves_meanwhile_is_released(
    wire: Wire, other: Wire, used: str, gateways: Any, monkeypatch: pytest.MonkeyPatch
):
    await good(wire, "PUSH", queue=used, **job("x" * 100_000))

    async def leave(hand_over: Any, session: Connection, *others: Any) -> Any:
        session.abort()
        return await hand_over(session, *others)

    async with Wire(gateways[0]) as leaving:
        with monkeypatch.context() as patch:
            around(patch, attempts, "_hand_over", leave)
            leaving.send(packed({"cmd": "PULL", "queue": used, "owner": "w"}))
            assert await leaving.is_closed()
    pulled = await good(other, "PULL", queue=used, owner="w", timeout=20_000)
    assert len(pulled["job"]["data"]) == 100_000


async def test_faults_of_a_command_are_answered(wire: Wire, used: str, monkeypatch: pytest.MonkeyPatch):
    await good(wire, "PUSH", queue=used, **job(1))

    def fail(*_: object) -> Any:
        raise KeyError("a fault")

    with monkeypatch.context() as patch:
        patch.setattr(JobIds, "known_number", fail)
        assert await failure(wire, "PULL", queue=used, owner="w") == "Internal error"
    pulled = await good(wire, "PULL", queue=used, owner="w", timeout=20_000)
    with monkeypatch.context() as patch:
        patch.setattr(hub.Hub, "complete", fail)
        assert await failure(wire, "ACK", id=pulled["job"]["id"], token=pulled["token"]) == "Internal error"
    await good(wire, "ACK", id=pulled["job"]["id"], token=pulled["token"])


@pytest.mark.parametrize("step", ["exchange_call", "outcomes_of", "fetched_of"])
async def test_faults_of_an_exchange_are_answered(wire: Wire, used: str, monkeypatch: pytest.MonkeyPatch, step: str):
    """A fault in the callback of a connection must not leave the client without an answer, or the queue blocked."""
    await good(wire, "PUSHB", queue=used, jobs=[job(1), job(2), job(3)])
    pulled = await good(wire, "PULL", queue=used, owner="w")

    def fail(*_: object, **__: object) -> Any:
        raise IndexError("a fault")

    with monkeypatch.context() as patch:
        for module in (hub, lease_exchange):
            if hasattr(module, step):
                patch.setattr(module, step, fail)
        if step != "fetched_of":
            await failure(wire, "ACK", id=pulled["job"]["id"], token=pulled["token"])
        if step != "outcomes_of":
            await failure(wire, "PULL", queue=used, owner="w")
    assert (await good(wire, "PULLB", queue=used, count=1, owner="w"))["jobs"]
