"""Tests of the hub: what leaves in few calls, what is answered from memory, and who is woken."""

import asyncio
from typing import Any

import pytest

from glidemq_py import LeaseOutcome, Queue
from glidemq_py._api.leasing import Leases
from glidemq_py.errors import GlideMQConnectionError
from glidemq_py.gateway import Gateway, hub
from tests.inside import changed, forget_unused, hubs_of, lease, queue_list
from tests.inside import leases as lease_tokens
from tests.server.gateway.wire import Wire, good, packed


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch):
    """Let an empty queue stay known as empty until a message arrives."""
    monkeypatch.setattr(hub, "STALE_S", 1_000.0)


async def until_failed(queue: Queue, count: int):
    async with asyncio.timeout(60):
        while (await queue.get_job_counts()).failed < count:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.02)


async def test_report_that_cannot_be_sent_fails_alone(
    gateway: Gateway, wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
):
    job_id = (await good(wire, "PUSH", queue=queue.name, data=1))["id"]
    await good(wire, "PULL", queue=queue.name, owner="w")
    known, held = await gateway.hub(queue.name), gateway.held.find(job_id)
    assert held is not None
    exchanges.clear()
    bad, fine = await asyncio.gather(
        known.complete([(changed(held.facts, entry="1-\ud800"), "bad")]), known.complete([(held.facts, "fine")]),
        return_exceptions=True,
    )  # fmt: skip
    assert isinstance(bad, UnicodeEncodeError)
    assert fine == [LeaseOutcome.COMPLETED]
    assert exchanges == [(1, 0)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of leases of each call that extends some."""
    sent: list[int] = []
    extend: Any = Leases.extend

    async def counted(self: Any, leases: Any, duration: Any) -> Any:
        sent.append(len(leases))
        return await extend(self, leases, duration)

    monkeypatch.setattr(Leases, "extend", counted)
    return sent


async def test_short_locks_are_fresh_for_a_part_of_their_duration(
    gateway: Gateway, wire: Wire, queue: Queue, calls: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("glidemq_py.gateway.fetched.FRESH_S", 1_000.0)
    await queue.add_bulk([("x", 1), ("x", 2)])
    for lock_ms, expected in ((1_000, [1]), (30_000, [])):
        pulled = await good(wire, "PULL", queue=queue.name, owner="w", lockTtl=lock_ms)
        job_id, known = pulled["job"]["id"], gateway.held.find(pulled["job"]["id"])
        assert known is not None
        known.fresh_until -= 0.4
        calls.clear()
        await wire.call("JobHeartbeat", id=job_id, token=pulled["token"])
        assert calls == expected


async def test_fresh_locks_are_renewed_in_memory(
    gateway: Gateway, wire: Wire, queue: Queue, calls: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("glidemq_py.gateway.fetched.FRESH_S", 1_000.0)
    await queue.add_bulk([("x", number) for number in range(5)])
    fetched = await good(wire, "PULLB", queue=queue.name, count=5, owner="w")
    ids, tokens = [job["id"] for job in fetched["jobs"]], fetched["tokens"]
    assert (await good(wire, "JobHeartbeatB", ids=ids, tokens=tokens))["data"]["count"] == 5
    assert calls == []
    bad = [*tokens[1:], tokens[0]]
    assert (await good(wire, "JobHeartbeatB", ids=ids, tokens=bad))["data"]["count"] == 0
    for job_id in ids:
        known = gateway.held.find(job_id)
        assert known is not None
        known.fresh_until = 0.0
    assert (await good(wire, "JobHeartbeatB", ids=ids, tokens=tokens))["data"]["count"] == 5
    assert calls == [5]
    await good(wire, "JobHeartbeat", id=ids[0], token=tokens[0], duration=60_000)
    assert calls == [5, 1]


async def test_unused_queues_are_forgotten(
    gateway: Gateway, wire: Wire, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """Names of queues come from clients, so their number is not limited."""
    kept, waiting, gone = (f"{queue_name}-{kind}" for kind in ("kept", "waiting", "gone"))
    await good(wire, "PUSH", queue=kept, data=1)
    await good(wire, "PULL", queue=gone)
    async with Wire(gateway) as patient:
        patient.send(packed({"cmd": "PULL", "queue": waiting, "timeout": 60_000}))
        async with asyncio.timeout(60):
            while waiting not in hubs_of(gateway) or not hubs_of(gateway)[waiting].is_in_use:
                await good(patient, "Ping")
        monkeypatch.setattr("glidemq_py.gateway.state._UNUSED_S", -1.0)
        known = await forget_unused(gateway)
        assert [name in known for name in (kept, waiting, gone)] == [True, True, False]
        assert gone not in hubs_of(gateway)
        await good(wire, "PUSH", queue=waiting, data=2)
        assert (await patient.receive())["job"]["data"] == 2
    await good(wire, "PUSH", queue=gone, data=3)
    assert (await good(wire, "PULL", queue=gone, timeout=60_000))["job"]["data"] == 3


async def test_an_unused_queue_that_exists_is_kept_if_another_program_has_unlisted_it(
    gateway: Gateway, wire: Wire, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """As `obliterate` does, before jobs were added again."""

    async def forget() -> tuple[bool, bool]:
        await gateway.transport.command("SREM", queue_list.shard_key(gateway.options.prefix, queue_name), queue_name)
        known = await forget_unused(gateway)
        return queue_name in (await good(wire, "ListQueues"))["queues"], queue_name in known

    await good(wire, "PUSH", queue=queue_name, data=1)
    monkeypatch.setattr("glidemq_py.gateway.state._UNUSED_S", -1.0)
    assert await forget() == (True, True)
    await good(wire, "Obliterate", queue=queue_name, force=True)
    assert await forget() == (False, False)


async def test_leases_are_ended_by_one_call_and_none_is_made_while_nothing_is_leased(
    gateway: Gateway, wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    calls: list[int] = []
    end_leases: Any = lease_tokens.end_leases

    def counted(meta: str, quiet: bool) -> Any:
        calls.append(1)
        return end_leases(meta, quiet)

    monkeypatch.setattr(lease, "end_leases", counted)
    for _ in range(20):
        await good(wire, "PUSH", queue=queue.name, data=1, timeout=100, maxAttempts=1)
    await good(wire, "PULLB", queue=queue.name, count=10, owner="w")
    await good(wire, "PULLB", queue=queue.name, count=10, owner="w")
    await until_failed(queue, 20)
    known = hubs_of(gateway)[queue.name]
    assert known._ending is None
    assert 1 <= len(calls) <= 3


async def test_leases_are_ended_when_the_server_is_back(
    gateway: Gateway, wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hub, "_ENDING_RETRY_S", 0.01)
    failures = iter([GlideMQConnectionError("gone"), GlideMQConnectionError("gone")])
    really: Any = lease.end_expired

    async def lost(link: Any, *, quiet: bool) -> Any:
        error = next(failures, None)
        if error is not None:
            raise error
        return await really(link, quiet=quiet)

    monkeypatch.setattr(hub, "end_expired", lost)
    await good(wire, "PUSH", queue=queue.name, data=1, timeout=50, maxAttempts=1)
    await good(wire, "PULL", queue=queue.name, owner="w")
    await until_failed(queue, 1)
    assert next(failures, None) is None
