"""Flows that clients add with PUSHF, with raw frames."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.errors import AmbiguousResultError, GlideMQError, ServerOutOfMemoryError
from glidemq_py.gateway import Gateway
from tests.inside import Call, connected, durable_adds, maintenance_outbox, set_transport
from tests.server.gateway.wire import Wire, failure, good


def flow_job(
    job_id: str, queue: str, children: Sequence[str] = (), parent: str | None = None, **fields: Any
) -> dict[str, Any]:
    """Return a job of PUSHF as the npm client sends it."""
    data: dict[str, Any] = {"job": job_id}
    given: dict[str, Any] = {"name": "step", "data": data, "maxAttempts": 1, **fields}
    if parent is not None:
        data["__parentId"] = given["parentId"] = parent
    if children:
        data["__childrenIds"] = given["childrenIds"] = given["dependsOn"] = list(children)
    return {"id": job_id, "queue": queue, "input": given}


def made(*names: str) -> list[str]:
    """Return ids that no other test uses."""
    stem = secrets.token_hex(6)
    return [f"{stem}-{name}" for name in names]


async def push(wire: Wire, *jobs: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await good(wire, "PUSHF", jobs=list(jobs)))["data"]["jobs"]
    return found


class FullAt:
    """A transport to a server that is full from the n-th call of a function, or loses its reply."""

    def __init__(self, transport: Any, function: str, number: int, error: type[GlideMQError]):
        self._transport, self._function, self._left, self._error = transport, function, number, error

    async def call(self, call: Call[Any]) -> Any:
        if call.function == self._function:
            self._left -= 1
            if self._left <= 0:
                raise self._error("on purpose")
        return await self._transport.call(call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def wide_flow(queue: str) -> list[dict[str, Any]]:
    ids = made(*map(str, range(150)))
    return [*(flow_job(each, queue) for each in ids), flow_job(f"{ids[0]}-root", queue, ids[:20])]


async def full_at(gateway: Gateway, function: str, number: int, error: type[GlideMQError]) -> Any:
    transport = await connected(gateway.flows)
    set_transport(gateway.flows, FullAt(transport, function, number, error))
    return transport


@pytest.mark.parametrize("error", [ServerOutOfMemoryError, AmbiguousResultError])
async def test_flow_that_is_stored_is_no_error(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, error: type[GlideMQError]
):
    """An error would let the client add it again, although maintenance adds its other jobs."""
    flow = wide_flow(queue.name)
    await full_at(gateways[0], "flow_add", 2, error)
    assert [job["id"] for job in await push(wire, *flow)] == [job["id"] for job in flow]
    assert (await queue.get_job_counts()).total < 151
    assert await maintenance_outbox.UnfinishedFlowsTask(link=await connected(queue), age=0).run_once() == 1
    assert (await queue.get_job_counts()).total == 151


async def test_durable_flow_is_an_error_until_it_is_in_the_file(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    async def fail(self: durable_adds.Marks) -> list[tuple[Any, str]]:
        return [(part, "on purpose") for marks in self._marks.values() for part, _ in marks]

    async def cover(*_: Any):
        """The server has no append-only file."""

    monkeypatch.setattr(durable_adds.Marks, "cover", cover)
    monkeypatch.setattr(durable_adds.Marks, "confirm", fail)
    (job_id,) = made("a")
    assert "on purpose" in await failure(wire, "PUSHF", jobs=[flow_job(job_id, queue.name, durable=True)])
