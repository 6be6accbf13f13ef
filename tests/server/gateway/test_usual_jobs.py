"""Tests of what the gateway does once for many jobs with equal options, and answers from memory."""

from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py._api.leasing import Leases
from glidemq_py.gateway import fetched, hub
from tests.inside import lease_exchange, working
from tests.server.gateway.wire import Wire, good

VARIED = {"id", "createdAt", "runAt", "startedAt", "lastHeartbeat"}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"priority": 7},
    {"maxAttempts": 5, "backoff": {"type": "fixed", "delay": 20}, "timeout": 60_000, "ttl": 90_000},
    {"removeOnComplete": True, "removeOnFail": {"count": 3}, "lifo": True},
)


@pytest.mark.parametrize("command", ["PUSH", "PUSHB"])
@pytest.mark.parametrize("options", OPTIONS)
async def test_jobs_with_equal_options_are_equal(wire: Wire, queue: Queue, command: str, options: dict[str, Any]):
    jobs: list[dict[str, Any]] = [{"name": f"n{number}", "data": {"n": number}, **options} for number in range(4)]
    if command == "PUSH":
        ids = [(await good(wire, "PUSH", queue=queue.name, **job))["id"] for job in jobs]
    else:
        ids = (await good(wire, "PUSHB", queue=queue.name, jobs=jobs))["ids"]
    assert len(set(ids)) == 4
    fetched = (await good(wire, "PULLB", queue=queue.name, count=4, owner="w"))["jobs"]
    assert {each["id"] for each in fetched} == set(ids)
    for each in fetched:
        number = ids.index(each["id"])
        assert (each["name"], each["data"]) == (f"n{number}", {"n": number})
        read = (await good(wire, "GetJob", id=each["id"]))["job"]  # made by the general path
        assert each == {name: read[name] for name in each}
        rest = {name: value for name, value in each.items() if name not in {*VARIED, "name", "data"}}
        assert rest == {name: value for name, value in fetched[0].items() if name in rest}


async def test_jobs_without_rare_options_are_reported_as_plain(
    wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    kinds: dict[str, int] = {}

    def noted(serializer: Any, facts: Any, *args: Any, **options: Any) -> Any:
        row = lease_exchange.completed_row(serializer, facts, *args, **options)
        kinds[row.id] = row.kind
        return row

    monkeypatch.setattr(hub, "completed_row", noted)
    jobs: list[dict[str, Any]] = [{"data": 1}, {"data": 2, "priority": 5}]
    ids = (await good(wire, "PUSHB", queue=queue.name, jobs=jobs))["ids"]
    pulled = await good(wire, "PULLB", queue=queue.name, count=2, owner="w")
    assert {each["id"] for each in pulled["jobs"]} == set(ids)
    await good(wire, "ACKB", ids=[each["id"] for each in pulled["jobs"]], tokens=pulled["tokens"])
    assert sorted(kinds.values()) == sorted([working.COMPLETED_PLAIN, working.COMPLETED])
    assert [(await good(wire, "GetState", id=each))["state"] for each in ids] == ["completed"] * 2


async def test_large_options_are_not_kept(wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch):
    shapes: dict[Any, Any] = {}
    monkeypatch.setattr(fetched, "_shapes", shapes)
    tags = [f"{number:02d}{'x' * 50}" for number in range(20)]
    await good(wire, "PUSH", queue=queue.name, data=1, tags=tags)
    await good(wire, "PUSH", queue=queue.name, data=2, tags=tags[:1])
    jobs = (await good(wire, "PULLB", queue=queue.name, count=2, owner="w"))["jobs"]
    assert [(each["data"], each["tags"]) for each in jobs] == [(1, tags), (2, tags[:1])]
    assert len(shapes) == 1


async def test_locks_of_reported_jobs_are_not_renewed_on_the_server(
    wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    calls: list[int] = []
    extend: Any = Leases.extend

    async def counted(self: Any, leases: Any, duration: Any) -> Any:
        calls.append(len(leases))
        return await extend(self, leases, duration)

    monkeypatch.setattr(Leases, "extend", counted)
    monkeypatch.setattr("glidemq_py.gateway.fetched.FRESH_S", 1_000.0)
    await queue.add_bulk([("x", number) for number in range(4)])
    fetched = await good(wire, "PULLB", queue=queue.name, count=4, owner="w")
    ids, tokens = [job["id"] for job in fetched["jobs"]], fetched["tokens"]
    await good(wire, "ACKB", ids=ids[:2], results=[None, None], tokens=tokens[:2])
    assert (await good(wire, "JobHeartbeatB", ids=ids, tokens=tokens))["data"]["count"] == 2
    assert calls == []
    answer = await wire.call("JobHeartbeat", id=ids[0], token=tokens[0])
    assert answer["error"] == "Job not found or not active (or invalid token)"
    assert calls == []
