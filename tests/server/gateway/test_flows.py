"""Flows that clients add with PUSHF, with raw frames."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py._core.calls import Call
from glidemq_py._features.durability.adding import FlowWait
from glidemq_py._maintenance.flows import UnfinishedFlowsTask
from glidemq_py.errors import AmbiguousResultError, DurabilityError, GlideMQError, ServerOutOfMemoryError
from glidemq_py.gateway import Gateway
from tests.server.gateway.wire import Wire, failure, good, state_of


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


async def end(wire: Wire, queue: str, error: str | None = None) -> str:
    """Fetch a job, and complete it with its id or fail it."""
    pulled = await good(wire, "PULL", queue=queue, owner="w")
    job_id: str = pulled["job"]["id"]
    if error is None:
        await good(wire, "ACK", id=job_id, token=pulled["token"], result={"of": job_id})
    else:
        await good(wire, "FAIL", id=job_id, token=pulled["token"], error=error)
    return job_id


async def test_parent_runs_after_its_children_in_other_queues(wire: Wire, other: Wire, queue_name: str) -> None:
    parent, first, second = made("p", "a", "b")
    above, below = f"{queue_name}:above", queue_name
    snapshots = await push(
        wire, flow_job(first, below, parent=parent), flow_job(second, below, parent=parent),
        flow_job(parent, above, [first, second], priority=3),
    )  # fmt: skip
    assert [(job["id"], job["parentId"], job["childrenIds"]) for job in snapshots] == [
        (first, parent, []), (second, parent, []), (parent, None, [first, second]),
    ]  # fmt: skip
    assert await state_of(other, parent) == "waiting-children"
    assert await end(other, below) == first
    job = (await good(wire, "GetJob", id=parent))["job"]
    assert (job["dependsOn"], job["childrenCompleted"], job["priority"]) == ([second], 1, 3)
    assert await end(wire, below) == second
    pulled = await good(wire, "PULL", queue=above, owner="w", timeout=60_000)
    assert (pulled["job"]["id"], pulled["job"]["name"]) == (parent, "step")
    values = (await good(other, "GetChildrenValues", id=parent))["data"]["values"]
    assert values == {f"{below}:{first}": {"of": first}, f"{below}:{second}": {"of": second}}


async def test_chain(wire: Wire, queue_name: str) -> None:
    one, two, three = made("1", "2", "3")
    await push(
        wire, flow_job(one, queue_name), flow_job(two, queue_name, dependsOn=[one]),
        flow_job(three, queue_name, dependsOn=[two]),
    )  # fmt: skip
    assert [await end(wire, queue_name) for _ in range(3)] == [one, two, three]


@pytest.mark.parametrize(
    ("flag", "state", "failed", "ignored"),
    [
        (None, "waiting-children", True, False),
        ("failParentOnFailure", "failed", True, False),
        ("ignoreDependencyOnFailure", "waiting", False, True),
        ("removeDependencyOnFailure", "waiting", False, False),
    ],
)
async def test_failed_child(
    wire: Wire, other: Wire, queue_name: str, flag: str | None, state: str, failed: bool, ignored: bool
) -> None:
    parent, child = made("p", "c")
    flags: dict[str, Any] = {} if flag is None else {flag: True}
    await push(wire, flow_job(child, queue_name, parent=parent, **flags), flow_job(parent, queue_name, [child]))
    await end(wire, queue_name, "broken")
    assert await state_of(other, parent) == state
    reason = {f"{queue_name}:{child}": "broken"}
    assert (await good(other, "GetFailedChildrenValues", id=parent))["values"] == (reason if failed else {})
    assert (await good(other, "GetIgnoredChildrenFailures", id=parent))["values"] == (reason if ignored else {})


async def test_parent_continues_after_the_retry_of_a_child(wire: Wire, queue_name: str) -> None:
    parent, child = made("p", "c")
    await push(wire, flow_job(child, queue_name, parent=parent), flow_job(parent, queue_name, [child]))
    await end(wire, queue_name, "broken")
    await good(wire, "RetryDlq", queue=queue_name, jobId=child)
    assert await end(wire, queue_name) == child
    assert await end(wire, queue_name) == parent


async def test_python_worker_runs_the_flow_of_a_client(wire: Wire, queue: Queue, url: str) -> None:
    parent, child = made("p", "c")
    await push(wire, flow_job(child, queue.name, parent=parent), flow_job(parent, queue.name, [child]))

    async def handle(job: Job) -> Any:
        return [job.name, *(await job.get_children_values()).values()]

    async with Worker(queue.name, handle, connection=url):
        answer = await good(wire, "WaitJob", id=parent, timeout=60_000)
    assert answer["result"] == ["step", ["step"]]


async def test_large_flow_is_added_in_steps(wire: Wire, queue_name: str) -> None:
    parent, *children = made("p", *map(str, range(300)))
    jobs = [flow_job(child, queue_name, parent=parent) for child in children]
    snapshots = await push(wire, *jobs, flow_job(parent, queue_name, children))
    assert [job["id"] for job in snapshots] == [*children, parent]
    counts = (await good(wire, "GetJobCounts", queue=queue_name))["counts"]
    assert (counts["waiting"], counts["waiting-children"]) == (300, 1)


async def test_refused_flow_leaves_nothing_behind(wire: Wire, queue_name: str) -> None:
    parent, child, gone = made("p", "c", "x")
    one, two = flow_job(child, queue_name, parent=parent), flow_job(parent, queue_name, [child])
    many = {"failParentOnFailure": True, "ignoreDependencyOnFailure": True}
    for jobs, error in (
        ([one, flow_job(parent, queue_name, [child, gone])], "jobs[1]: flow dependency is not a job of the flow: "),
        ([one, flow_job(parent, queue_name, childrenIds=[child])], "jobs[1]: flow child is missing from dependencies"),
        ([one, {**two, "queue": "a b"}], "invalid flow queue: a b"),
        ([one, {"queue": queue_name, "input": {}}], "flow job id must be a string"),
        ([one, one], f"duplicate flow job id: {child}"),
        ([one, {**two, "input": 7}], "jobs[1]: input must be a map"),
        ([one, flow_job(parent, queue_name, [child], priority="x")], "jobs[1]: priority must be a number"),
        ([{**one, "input": {**one["input"], **many}}, two], "jobs[0]: only one of "),
        ([flow_job(child, queue_name, [parent]), two], "the jobs of a flow must not wait for one another in a cycle"),
        ([one, flow_job(parent, queue_name, continueParentOnFailure=True)], "jobs[1]: continueParentOnFailure is not"),
        ([one, {**two, "input": {**two["input"], "data": 1}}], "jobs[1]: flow job data must be an object"),
    ):  # fmt: skip
        assert (await failure(wire, "PUSHF", jobs=jobs)).startswith(error)
    assert (await good(wire, "Count", queue=queue_name))["count"] == 0
    assert await state_of(wire, child) == "unknown"
    await push(wire, one, two)
    assert await failure(wire, "PUSHF", jobs=[one, two]) == f"flow job already exists: {min(child, parent)}"
    assert (await good(wire, "Count", queue=queue_name))["count"] == 2


async def test_parent_stops_waiting_for_children(wire: Wire, other: Wire, queue_name: str) -> None:
    parent, first, second, third = made("p", "a", "b", "c")
    children = [first, second, third]
    flags: dict[str, Any] = {"failParentOnFailure": True}
    jobs = [flow_job(child, f"{queue_name}-c", parent=parent, **flags) for child in children]
    await push(wire, *jobs, flow_job(parent, queue_name, children))
    pulled = await good(wire, "PULL", queue=f"{queue_name}-c", owner="w")
    await good(other, "RemoveChildDependency", id=third)
    await good(other, "RemoveUnprocessedChildren", id=parent)
    assert [await state_of(wire, each) for each in (*children, parent)] == [
        "active", "unknown", "waiting", "waiting-children",
    ]  # fmt: skip
    await good(wire, "ACK", id=first, token=pulled["token"])
    # A child that the parent does not wait for cannot fail it.
    await end(wire, f"{queue_name}-c", "broken")
    assert (await good(wire, "PULL", queue=queue_name, owner="w", timeout=60_000))["job"]["id"] == parent
    assert await failure(wire, "RemoveChildDependency", id="unknown") == "Job not found: unknown"
    await good(wire, "RemoveUnprocessedChildren", id="unknown")


async def parent_with(wire: Wire, queue: str, child: str, **fields: Any) -> str:
    """Add a job and let it wait for `child`."""
    parent: str = (await good(wire, "PUSH", queue=queue, data={}, **fields))["id"]
    await good(wire, "UpdateParent", childId=child, parentId=parent)
    assert await state_of(wire, parent) == "waiting-children"
    return parent


@pytest.mark.parametrize("fields", [{}, {"priority": 3}, {"priority": -3}, {"lifo": True}, {"groupId": "g"}])
async def test_update_parent_of_jobs_in_every_place(
    wire: Wire, other: Wire, queue_name: str, fields: Mapping[str, Any]
) -> None:
    above = f"{queue_name}:above"
    child = (await good(wire, "PUSH", queue=queue_name, data=1))["id"]
    parent = await parent_with(other, above, child, **fields)
    assert (await good(wire, "GetJob", id=child))["job"]["parentId"] == parent
    job = (await good(wire, "GetJob", id=parent))["job"]
    assert (job["childrenIds"], job["dependsOn"]) == ([child], [child])
    assert (await good(wire, "PULL", queue=above, owner="w"))["job"] is None
    await good(wire, "UpdateParent", childId=child, parentId=parent)  # a second time changes nothing
    assert await end(wire, queue_name) == child
    assert (await good(wire, "PULL", queue=above, owner="w", timeout=60_000))["job"]["id"] == parent
    assert (await good(wire, "GetChildrenValues", id=parent))["data"]["values"] == {
        f"{queue_name}:{child}": {"of": child}
    }


async def test_update_parent_of_delayed_and_waiting_parents(wire: Wire, queue_name: str, queue: Queue) -> None:
    first, second = [(await good(wire, "PUSH", queue=queue_name, data=1))["id"] for _ in range(2)]
    parent = await parent_with(wire, queue_name, first, delay=3_600_000)
    await good(wire, "UpdateParent", childId=second, parentId=parent)
    assert [await end(wire, queue_name) for _ in range(2)] == [first, second]
    assert await state_of(wire, parent) == "delayed"  # its delay begins now
    assert (await queue.check()).ok


async def test_update_parent_with_children_that_have_ended(wire: Wire, queue_name: str) -> None:
    done = (await good(wire, "PUSH", queue=queue_name, data=1))["id"]
    failed = (await good(wire, "PUSH", queue=queue_name, data=1, maxAttempts=1))["id"]
    assert [await end(wire, queue_name), await end(wire, queue_name, "broken")] == [done, failed]
    above = f"{queue_name}:above"
    first = (await good(wire, "PUSH", queue=above, data=1))["id"]
    await good(wire, "UpdateParent", childId=done, parentId=first)
    assert await state_of(wire, first) == "waiting"
    assert (await good(wire, "GetChildrenValues", id=first))["data"]["values"] == {f"{queue_name}:{done}": {"of": done}}
    await parent_with(wire, queue_name, failed)  # it waits for a retry


async def test_update_parent_is_rejected(wire: Wire, queue_name: str) -> None:
    child, parent, third = [(await good(wire, "PUSH", queue=queue_name, data=1))["id"] for _ in range(3)]

    async def error(child: str, parent: str) -> str:
        return await failure(wire, "UpdateParent", childId=child, parentId=parent)

    assert await failure(wire, "UpdateParent", parentId=parent) == "childId is required"
    assert await error(child, child) == "A flow job cannot be its own parent"
    assert await error("none", parent) == "Child job not found: none"
    assert await error(child, "none") == "Parent job not found: none"
    await good(wire, "UpdateParent", childId=child, parentId=parent)
    assert await error(child, third) == f"Child job {child} already belongs to parent {parent}"
    await good(wire, "UpdateParent", childId=parent, parentId=third)
    assert await error(third, child) == f"Child job {third} is a parent of {child}"
    active = (await good(wire, "PULL", queue=queue_name, owner="w"))["job"]["id"]
    assert active == child
    free = (await good(wire, "PUSH", queue=queue_name, data=1))["id"]
    assert await error(free, active) == f"Parent job {active} is not linkable"
    needing = (await good(wire, "PUSH", queue=queue_name, data=1, dependsOn=[free]))["id"]
    await good(wire, "UpdateParent", childId=free, parentId=third)  # the job that depends on it is not its parent
    assert await state_of(wire, needing) == "waiting-children"


async def test_active_job_waits_for_children_that_were_pushed_meanwhile(
    wire: Wire, other: Wire, queue_name: str
) -> None:
    above, below = f"{queue_name}:above", queue_name
    parent = (await good(wire, "PUSH", queue=above, data={"p": 1}))["id"]
    token = (await good(wire, "PULL", queue=above, owner="w"))["token"]
    child = (await good(other, "PUSH", queue=below, data={"c": 1}, parentId=parent))["id"]
    many = [{"data": {"c": 2}, "parentId": parent}, {"data": {"c": 3}, "parentId": parent, "jobId": made("j")[0]}]
    children = [child, *(await good(wire, "PUSHB", queue=below, jobs=many))["ids"]]
    assert children[2] == many[1]["jobId"]
    assert (await good(wire, "GetJob", id=child))["job"]["parentId"] == parent
    assert set((await good(other, "GetJob", id=parent))["job"]["childrenIds"]) == set(children)
    assert (await good(other, "MoveToWaitingChildren", id=parent, token=token))["data"] == {"moved": True}
    for _ in children:
        assert await state_of(wire, parent) == "waiting-children"
        await end(other, below)
    pulled = await good(wire, "PULL", queue=above, owner="w", timeout=60_000)
    assert pulled["job"]["id"] == parent
    values = (await good(wire, "GetChildrenValues", id=parent))["data"]["values"]
    assert sorted(value["of"] for value in values.values()) == sorted(children)


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        ({}, "waiting-children"),
        ({"failParentOnFailure": True}, "failed"),
        ({"ignoreDependencyOnFailure": True}, "waiting"),
        ({"removeDependencyOnFailure": True}, "waiting"),
    ],
)
async def test_failure_of_a_pushed_child(
    wire: Wire, other: Wire, queue_name: str, policy: dict[str, bool], state: str
) -> None:
    above, below = f"{queue_name}:above", queue_name
    parent = (await good(wire, "PUSH", queue=above, data={"p": 1}))["id"]
    token = (await good(wire, "PULL", queue=above, owner="w"))["token"]
    await good(wire, "PUSH", queue=below, data=1, maxAttempts=1, parentId=parent, **policy)
    await good(wire, "MoveToWaitingChildren", id=parent, token=token)
    await end(other, below, "no")
    assert await state_of(other, parent) == state


async def test_parent_that_cannot_have_another_child(wire: Wire, queue_name: str) -> None:
    parent = (await good(wire, "PUSH", queue=queue_name, data=1))["id"]
    await end(wire, queue_name)
    assert "completed" in await failure(wire, "PUSH", queue=queue_name, data=1, parentId=parent)
    gone = (await good(wire, "PUSH", queue=queue_name, data=1, delay=60_000))["id"]
    await good(wire, "Cancel", id=gone)
    assert await failure(wire, "PUSH", queue=queue_name, data=1, parentId=gone) == f"Parent job not found: {gone}"
    jobs: list[dict[str, Any]] = [{"data": 1}, {"data": 2, "parentId": gone}]
    assert await failure(wire, "PUSHB", queue=queue_name, jobs=jobs) == f"jobs[1]: Parent job not found: {gone}"
    both = {"failParentOnFailure": True, "ignoreDependencyOnFailure": True}
    parent = (await good(wire, "PUSH", queue=queue_name, data=1))["id"]
    assert "only one of" in await failure(wire, "PUSH", queue=queue_name, data=1, parentId=parent, **both)
    assert (await good(wire, "GetJobCounts", queue=queue_name))["counts"]["waiting"] == 1


class FullAt:
    """A transport to a server that is full from the n-th call of a function, or loses its reply."""

    def __init__(self, transport: Any, function: str, number: int, error: type[GlideMQError]) -> None:
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
    transport = await gateway.flows._connected()
    gateway.flows._transport = FullAt(transport, function, number, error)  # type: ignore[assignment]
    return transport


@pytest.mark.parametrize(("function", "number"), [("flow_reserve", 1), ("flow_stage", 1), ("flow_add", 1)])
async def test_flow_rejected_by_a_full_server_leaves_nothing(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, function: str, number: int
) -> None:
    flow = wide_flow(queue.name)
    transport = await full_at(gateways[0], function, number, ServerOutOfMemoryError)
    assert "on purpose" in await failure(wire, "PUSHF", jobs=flow)
    link = await queue._connected()
    assert await UnfinishedFlowsTask(link=link, age=0).run_once() == 0
    assert (await queue.get_job_counts()).total == 0
    gateways[0].flows._transport = transport
    assert len(await push(wire, *flow)) == 151


@pytest.mark.parametrize("error", [ServerOutOfMemoryError, AmbiguousResultError])
async def test_flow_that_is_stored_is_no_error(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, error: type[GlideMQError]
) -> None:
    """An error would let the client add it again, although maintenance adds its other jobs."""
    flow = wide_flow(queue.name)
    await full_at(gateways[0], "flow_add", 2, error)
    assert [job["id"] for job in await push(wire, *flow)] == [job["id"] for job in flow]
    assert (await queue.get_job_counts()).total < 151
    assert await UnfinishedFlowsTask(link=await queue._connected(), age=0).run_once() == 1
    assert (await queue.get_job_counts()).total == 151


async def test_durable_flow_is_an_error_until_it_is_in_the_file(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unconfirmed(FlowWait):
        async def confirm(self, job_id: str | None = None) -> None:
            raise DurabilityError("on purpose", "x")

    async def wait_of(*_: Any) -> FlowWait:
        return Unconfirmed({})

    monkeypatch.setattr(gateways[0].flows, "_durable_wait", wait_of)
    (job_id,) = made("a")
    assert "on purpose" in await failure(wire, "PUSHF", jobs=[flow_job(job_id, queue.name, durable=True)])
