"""Tests of the hub: what leaves in few calls, what is answered from memory, and who is woken."""

import asyncio
from typing import Any

import pytest

from glidemq_py import LeaseOutcome, Queue
from glidemq_py.errors import GlideMQConnectionError
from glidemq_py.gateway import Gateway, held, hub, server
from tests.inside import ending, hubs_of, shard_key
from tests.inside import leases_calls as leases
from tests.server.gateway.wire import Wire, good, packed


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch):
    """Let an empty queue stay known as empty until a message arrives."""
    monkeypatch.setattr(hub, "STALE_S", 1_000.0)


async def listening(gateway: Gateway, wire: Wire, queue: str):
    """Poll until the gateway hears messages, and the queue is known to be empty."""
    async with asyncio.timeout(60):
        while not gateway._channels.hears:
            await good(wire, "PULL", queue=queue)
        known, loop = hubs_of(gateway)[queue], asyncio.get_running_loop()
        while known._empty_until < loop.time() + 10 or known._empty_looks < hub.FIRST_LOOKS:
            await good(wire, "PULL", queue=queue)


async def until_failed(queue: Queue, count: int):
    async with asyncio.timeout(60):
        while (await queue.get_job_counts()).failed < count:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.02)


async def all_of(wire: Wire, *commands: dict[str, Any]) -> list[dict[str, Any]]:
    """Send commands in one piece; return their answers in this order."""
    wire.send(b"".join(packed({**command, "reqId": number}) for number, command in enumerate(commands)))
    answers = [await wire.receive() for _ in commands]
    assert all(answer["ok"] for answer in answers), answers
    return sorted(answers, key=lambda answer: int(answer["reqId"]))


async def test_commands_in_flight_leave_together(
    gateway: Gateway, wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
):
    await good(wire, "PULL", queue=queue.name, owner="w")
    for number in range(20):
        await queue.add("x", number)
    exchanges.clear()
    pull = {"cmd": "PULL", "queue": queue.name, "owner": "w"}
    answers = await all_of(wire, *[pull] * 20)
    assert sorted(answer["job"]["data"] for answer in answers) == list(range(20))
    assert sum(wanted for _, wanted in exchanges) == 20
    assert len(exchanges) <= hub.MOST_CALLS + 1
    exchanges.clear()
    acks = [{"cmd": "ACK", "id": each["job"]["id"], "token": each["token"], "result": 1} for each in answers]
    await all_of(wire, *acks)
    assert sum(reports for reports, _ in exchanges) == 20
    assert len(exchanges) <= hub.MOST_CALLS + 1
    assert (await queue.get_job_counts()).completed == 20


async def test_fetch_leaves_before_reports_while_jobs_are_ready(
    gateway: Gateway, wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
):
    await queue.add_bulk([("x", number) for number in range(4)])
    pull = {"cmd": "PULL", "queue": queue.name, "owner": "w"}
    (first,) = await all_of(wire, pull)
    exchanges.clear()
    ack = {"cmd": "ACK", "id": first["job"]["id"], "token": first["token"]}
    answers = await all_of(wire, ack, pull)
    assert answers[1]["job"]["data"] == 1
    assert exchanges == [(0, 1), (1, 0)]


async def test_fetch_is_repeated_if_a_report_sent_behind_it_makes_a_job_ready(
    gateway: Gateway, wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
):
    await queue.add_bulk([("x", number) for number in range(2)])
    pull = {"cmd": "PULL", "queue": queue.name, "owner": "w"}
    (first,) = await all_of(wire, pull)
    await queue.set_global_concurrency(1)
    exchanges.clear()
    ack = {"cmd": "ACK", "id": first["job"]["id"], "token": first["token"]}
    answers = await all_of(wire, ack, pull)
    assert answers[1]["job"]["data"] == 1
    assert exchanges == [(0, 1), (1, 0), (0, 1)]
    exchanges.clear()
    ack = {"cmd": "ACK", "id": answers[1]["job"]["id"], "token": answers[1]["token"]}
    assert (await all_of(wire, ack, pull))[1]["job"] is None
    assert len(exchanges) <= 3


async def test_report_that_cannot_be_sent_fails_alone(
    gateway: Gateway, wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
):
    job_id = (await good(wire, "PUSH", queue=queue.name, data=1))["id"]
    await good(wire, "PULL", queue=queue.name, owner="w")
    known, held = await gateway.hub(queue.name), gateway.held.find(job_id)
    assert held is not None
    exchanges.clear()
    bad, fine = await asyncio.gather(
        known.complete([(held.facts._replace(entry="1-\ud800"), "bad")]), known.complete([(held.facts, "fine")]),
        return_exceptions=True,
    )  # fmt: skip
    assert isinstance(bad, UnicodeEncodeError)
    assert fine == [LeaseOutcome.COMPLETED]
    assert exchanges == [(1, 0)]


async def test_polls_on_an_empty_queue_are_answered_from_memory(
    gateway: Gateway, wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
):
    await listening(gateway, wire, queue.name)
    exchanges.clear()
    for _ in range(100):
        assert (await good(wire, "PULL", queue=queue.name))["job"] is None
    assert exchanges == []
    await good(wire, "PUSH", queue=queue.name, data=1)
    assert (await good(wire, "PULL", queue=queue.name))["job"]["data"] == 1  # a client sees its own push at once


async def test_job_of_another_process_is_found(
    gateway: Gateway, wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
):
    await listening(gateway, wire, queue.name)
    await queue.add("x", 1)
    async with asyncio.timeout(60):
        while (await good(wire, "PULL", queue=queue.name))["job"] is None:
            pass


async def test_long_poll_ends_with_a_job_of_another_process(
    gateway: Gateway, wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
):
    await listening(gateway, wire, queue.name)
    polling = asyncio.create_task(good(wire, "PULL", queue=queue.name, timeout=60_000))
    await asyncio.sleep(0)
    await queue.add("x", 1)
    assert (await polling)["job"]["data"] == 1


async def test_long_poll_ends_when_a_delayed_job_is_due(
    gateway: Gateway, wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
):
    await listening(gateway, wire, queue.name)
    await queue.add("x", 1, delay=300)
    assert (await good(wire, "PULL", queue=queue.name, timeout=60_000))["job"]["data"] == 1


async def test_long_poll_without_a_job_ends_after_its_timeout(gateway: Gateway, wire: Wire, queue_name: str):
    assert (await good(wire, "PULL", queue=queue_name, timeout=50))["job"] is None
    assert (await good(wire, "PULLB", queue=queue_name, count=3, timeout=50, owner="w"))["jobs"] == []


async def test_client_that_left_takes_no_job_along(
    gateway: Gateway, wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
):
    await listening(gateway, wire, queue.name)
    async with Wire(gateway) as leaving:
        leaving.send(packed({"cmd": "PULL", "queue": queue.name, "timeout": 60_000}))
        await good(leaving, "Ping")  # the PULL has begun
    await good(wire, "PUSH", queue=queue.name, data=1)
    assert (await good(wire, "PULL", queue=queue.name, timeout=60_000))["job"]["data"] == 1


async def test_message_that_no_client_waits_for_wakes_another_gateway(
    gateways: tuple[Gateway, Gateway], wire: Wire, other: Wire, queue: Queue, exchanges: list[tuple[int, int]]
):
    await listening(gateways[1], other, queue.name)
    polling = asyncio.create_task(good(other, "PULL", queue=queue.name, timeout=60_000))
    await asyncio.sleep(0)
    await listening(gateways[0], wire, queue.name)  # registered last, so it gets the message
    await queue.add("x", 1)
    assert (await polling)["job"]["data"] == 1


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of leases of each call that extends some."""
    sent: list[int] = []
    extend: Any = Queue.extend_leases

    async def counted(self: Any, leases: Any, duration: Any) -> Any:
        sent.append(len(leases))
        return await extend(self, leases, duration)

    monkeypatch.setattr(Queue, "extend_leases", counted)
    return sent


async def test_short_locks_are_fresh_for_a_part_of_their_duration(
    gateway: Gateway, wire: Wire, queue: Queue, calls: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(held, "FRESH_S", 1_000.0)
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
    monkeypatch.setattr(held, "FRESH_S", 1_000.0)
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
        for duty in gateway._duties:
            duty.cancel()  # they forget queues too
        monkeypatch.setattr(server, "_UNUSED_S", -1.0)
        await gateway._forget_unused()
        assert [name in gateway._queues for name in (kept, waiting, gone)] == [True, True, False]
        assert gone not in hubs_of(gateway)
        assert gone not in gateway._used_at
        await good(wire, "PUSH", queue=waiting, data=2)
        assert (await patient.receive())["job"]["data"] == 2
    await good(wire, "PUSH", queue=gone, data=3)
    assert (await good(wire, "PULL", queue=gone, timeout=60_000))["job"]["data"] == 3


async def test_an_unused_queue_that_exists_is_kept_if_another_program_has_unlisted_it(
    gateway: Gateway, wire: Wire, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """As `obliterate` does, before jobs were added again."""

    async def forget() -> list[str]:
        await gateway.transport.command("SREM", shard_key(gateway.options.prefix, queue_name), queue_name)
        await gateway._forget_unused()
        listed: list[str] = (await good(wire, "ListQueues"))["queues"]
        return listed

    await good(wire, "PUSH", queue=queue_name, data=1)
    for duty in gateway._duties:
        duty.cancel()
    monkeypatch.setattr(server, "_UNUSED_S", -1.0)
    assert queue_name in await forget()
    assert queue_name in gateway._queues
    await good(wire, "Obliterate", queue=queue_name, force=True)
    assert queue_name not in await forget()
    assert queue_name not in gateway._queues


async def test_leases_are_ended_by_one_call_and_none_is_made_while_nothing_is_leased(
    gateway: Gateway, wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    calls: list[int] = []
    end_leases: Any = leases.end_leases

    def counted(meta: str, quiet: bool) -> Any:
        calls.append(1)
        return end_leases(meta, quiet)

    monkeypatch.setattr(ending, "end_leases", counted)
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
    really: Any = ending.end_expired

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
