"""Jobs that are added, fetched and reported through gateways, with raw frames."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py._api.leasing import Leases
from glidemq_py.gateway import Gateway
from glidemq_py.gateway.job_ids import queue_number
from glidemq_py.testing import ServerProcess
from tests.inside import changed
from tests.inside import leases as lease_tokens
from tests.server.gateway.wire import Wire, failure, good, packed, state_of


async def until(reached: Callable[[], Awaitable[bool]]):
    async with asyncio.timeout(60):
        while not await reached():  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)


def state_is(wire: Wire, job_id: str, state: str) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        return await state_of(wire, job_id) == state

    return reached


async def test_ids_of_all_gateways_contain_the_same_number(wire: Wire, other: Wire, queue_name: str):
    answers = await asyncio.gather(*(good(each, "PUSH", queue=queue_name, data=1) for each in (wire, other)))
    numbers = {queue_number(answer["id"]) for answer in answers}
    assert len(numbers) == 1
    elsewhere = (await good(wire, "PUSH", queue=f"{queue_name}:b", data=1))["id"]
    assert queue_number(elsewhere) not in numbers
    assert (await good(other, "GetJob", id=elsewhere))["job"]["queue"] == f"{queue_name}:b"


async def test_token_with_an_entry_that_is_none_is_invalid(wire: Wire, queue: Queue):
    job_id = (await good(wire, "PUSH", queue=queue.name, data=1))["id"]
    token = (await good(wire, "PULL", queue=queue.name, owner="w"))["token"]
    facts = lease_tokens.decode_token(queue.options.prefix, queue.name, token)
    for entry in ("e\ud800", "1", "1-", "-1", "1-1\n", "\u0661-\u0661", "1-" + "1" * 21):
        crafted = lease_tokens.encode_token(queue.options.prefix, queue.name, changed(facts, entry=entry))
        error = f"Invalid or expired lock token for job {job_id}"
        assert await failure(wire, "ACK", id=job_id, token=crafted) == error
    of_list = changed(facts, entry="")
    assert lease_tokens.decode_token("p", "q", lease_tokens.encode_token("p", "q", of_list)) == of_list
    await good(wire, "ACK", id=job_id, token=token)


async def test_jobs_that_another_gateway_completed_are_not_released(
    gateways: tuple[Gateway, Gateway], other: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    released: list[str] = []
    release: Any = Leases.release

    async def recorded(given: Leases, leases: Any) -> Any:
        released.extend(lease.id for lease in leases)
        return await release(given, leases)

    monkeypatch.setattr(Leases, "release", recorded)
    async with Wire(gateways[0]) as lost:
        done, left = (await good(lost, "PUSHB", queue=queue.name, jobs=[{"data": 1}, {"data": 2}]))["ids"]
        tokens = (await good(lost, "PULLB", queue=queue.name, count=2, owner="w"))["tokens"]
        await good(other, "ACK", id=done, token=tokens[0])
    await until(state_is(other, left, "waiting"))
    assert await state_of(other, done) == "completed"
    assert released == [left]
    assert "discarded" not in caplog.text


async def test_held_jobs_of_expired_locks_are_forgotten(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("glidemq_py.gateway.fetched._MARGIN_S", -2.0)
    for number in range(5):
        await good(wire, "PUSH", queue=queue.name, data=number)
        await good(wire, "PULL", queue=queue.name, owner="w", lockTtl=1_000)
    assert len(gateways[0].held) == 1


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("kind", ["durable", "dependsOn", "parentId", "PUSHB", "jobId"])
async def test_pushes_of_all_kinds_keep_their_order(
    private_server: Callable[..., ServerProcess], queue_name: str, kind: str, partitions: int
):
    url = private_server(appendonly="yes").url
    async with (
        Queue(queue_name, url, partitions=partitions) as queue,
        Gateway(url, port=0) as gateway,
        Wire(gateway) as wire,
    ):
        done = (await good(wire, "PUSH", queue=f"{queue_name}-done", data=0))["id"]
        token = (await good(wire, "PULL", queue=f"{queue_name}-done", owner="w"))["token"]
        if kind == "dependsOn":
            await good(wire, "ACK", id=done, token=token)
        for number in range(12):
            fields: dict[str, Any] = {"queue": queue_name, "data": number, "groupId": "g"}
            if number % 3 == 1:
                added: dict[str, dict[str, Any]] = {
                    "durable": {"durable": True}, "dependsOn": {"dependsOn": [done]}, "parentId": {"parentId": done},
                    "jobId": {"jobId": f"{queue_name}-{number}"},
                }  # fmt: skip
                fields |= added.get(kind, {})
            if kind == "PUSHB" and number % 3 == 1:
                job = {key: value for key, value in fields.items() if key != "queue"}
                wire.send(packed({"cmd": "PUSHB", "reqId": number, "queue": queue_name, "jobs": [job, job]}))
            else:
                wire.send(packed({"cmd": "PUSH", "reqId": number, **fields}))
        for _ in range(12):
            answer = await wire.receive()
            assert answer["ok"] is True, answer
        expected = sorted([*range(12), *([1, 4, 7, 10] if kind == "PUSHB" else [])])
        found: list[int] = []
        while len(found) < len(expected):  # a group has one active job at a time
            pulled = await good(wire, "PULL", queue=queue_name, owner="w", timeout=60_000)
            found.append(pulled["job"]["data"])
            await good(wire, "ACK", id=pulled["job"]["id"], token=pulled["token"])
        assert found == expected
        await queue.obliterate(force=True)
