"""Flows, schedulers, signals, fallbacks, budgets: one test each, in memory and on servers."""

from typing import Any

import pytest

from glidemq_py import DagNode, FlowJob, Job, JobFailedError, JobNotFoundError, Worker
from tests.contract.api import FlowProducer, Queue
from tests.server.worker_support import EventRecorder, WorkerFor, with_timeout


async def summed(job: Job):
    """Return the sum of the children's results and the job's own data."""
    if job.data == "bad":
        raise ValueError("bad")
    return (job.data or 0) + sum((await job.get_children_values()).values())


@pytest.mark.parametrize(("policy", "expected"), [("fail_parent", "failed: bad"), ("ignore", ""), ("remove", "")])
async def test_failed_child_follows_its_policy(
    worker_for: WorkerFor, flows: FlowProducer, queue: Queue, policy: str, expected: str
):
    children = [FlowJob("leaf", queue.name, "bad", {"on_failure": policy}), FlowJob("leaf", queue.name, 7)]
    async with worker_for(summed):
        node = await flows.add(FlowJob("root", queue.name, 1, children=children))
        if expected:
            with pytest.raises(JobFailedError, match=expected):
                await with_timeout(node.job.wait_until_finished())
        else:
            assert await with_timeout(node.job.wait_until_finished()) == 8


async def add_family(family: str, queue: Queue, other: Queue, flows: FlowProducer, generation: str) -> Job:
    """Add a job with a fixed id, and jobs named "leaf" that it waits for."""
    fixed: Any = {"job_id": "night"}
    if family.startswith("flow"):
        leaves = [FlowJob("leaf", other.name, generation) for _ in range(2)]
        return (await flows.add(FlowJob("root", queue.name, generation, fixed, leaves))).job
    if family.startswith("graph"):
        nodes = [
            DagNode("leaf", other.name, generation),
            DagNode("middle", other.name, generation, deps=["leaf"]),
            DagNode("root", queue.name, generation, fixed, deps=["leaf", "middle"]),
        ]
        return (await flows.add_dag(nodes))["root"]
    if family.startswith("dependency"):
        leaf = await other.add("leaf", generation)
        return await queue.add("root", generation, **fixed, depends_on=[leaf], on_dependency_failure="fail")
    root = await queue.add("root", generation, **fixed)
    if family.startswith("bulk"):
        await other.add_bulk([("leaf", generation, {"parent": root})])
    else:
        await other.add("leaf", generation, parent=root)
    return root


@pytest.mark.parametrize("is_failing", [False, True])
@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("family", ["flow", "graph", "dependency", "child", "bulk"])
async def test_children_of_a_removed_job_do_not_count_for_the_next_with_its_id(
    worker_for: WorkerFor, url: Any, flows: FlowProducer, queue: Queue, family: str, queues: int, is_failing: bool
):
    async def handle(job: Job):
        if job.name != "root":
            return job.data
        values = await job.get_children_values()
        if not values:
            await job.move_to_waiting_children()
        return sorted(set(values.values()))

    async with (
        Queue(queue.name if queues == 1 else f"{queue.name}-2", url) as other,
    ):
        await add_family(family, queue, other, flows, "old")
        leases = [lease for lease in await other.fetch(10) if lease.job.name == "leaf"]
        assert await queue.remove("night")
        root = await add_family(family, queue, other, flows, "new")
        if is_failing:
            await other.leases.fail([(lease, "old") for lease in leases], retry=False)
        else:
            await other.leases.complete([(lease, lease.job.data) for lease in leases])
        async with Worker(other.name, handle, url), worker_for(handle):
            assert await with_timeout(root.wait_until_finished()) == ["new"]


def name_other_data(worker: Worker, way: str):
    """Return a task that stores names of its own in the data in two of its three runs."""

    @worker.task(attempts=2)
    async def order(job: Job, /, customer: int, note: str = ""):
        data = {**job.data, "payment": "ch_1"}
        if "payment" not in job.data:
            if way == "move_to_delayed":
                job.move_to_delayed(1, data=data, next_step="paid")
            if way == "move_to_waiting_children":
                await worker.queue.add("child", parent=job)
                await job.move_to_waiting_children(data=data)
            await job.update_data(data)
            await job.wait_for_signal("go")
        if "mailed" not in job.data:
            await job.update_data({**job.data, "mailed": True})
            raise ConnectionError
        return [customer, note, job.data["payment"], job.data["mailed"]]

    @worker.task
    async def child():
        pass

    return order


@pytest.mark.parametrize("way", ["update_data", "move_to_delayed", "move_to_waiting_children"])
async def test_a_task_runs_again_with_names_of_its_own_in_the_data(url: Any, queue: Queue, way: str):
    worker = Worker(queue.name, connection=url)
    order = name_other_data(worker, way)
    async with worker:
        job = await order.add(7)
        await queue.signal(job.id, "go")
        assert await with_timeout(job.wait_until_finished()) == [7, "", "ch_1", True]


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_replayed_task_keeps_names_of_its_own(url: Any, queue_name: str, is_kept: bool):
    async with Queue(queue_name, url, dead_letter_queue=f"{queue_name}-dead") as queue:
        worker = Worker(queue_name, connection=url)

        @worker.task(remove_on_fail=not is_kept)
        async def order(job: Job, /, customer: int):
            if "payment" not in job.data:
                await job.update_data({**job.data, "payment": "ch_1"})
                raise ConnectionError
            return [customer, job.data["payment"]]

        async with worker:
            with pytest.raises((JobFailedError, JobNotFoundError)):
                await with_timeout((await order.add(7)).wait_until_finished())
            (letter,) = await queue.dead_letters.get_all()
            replayed = await queue.dead_letters.replay(letter.id)
            assert replayed is not None
            assert await with_timeout(replayed.wait_until_finished()) == [7, "ch_1"]


async def test_only_names_that_the_task_has_added_are_no_arguments(url: Any, queue: Queue):
    worker = Worker(queue.name, connection=url)
    order = name_other_data(worker, "update_data")
    recorded = EventRecorder(worker)

    @worker.task
    async def rename(job: Job, /, customer: int, note: str = ""):
        await job.update_data({**job.data, "note": "mine"})

    async with worker:
        misspelled = await queue.add("order", {"customer": 7, "nota": "x"})
        with pytest.raises(JobFailedError, match="nota = 'x': unknown parameter"):
            await with_timeout(misspelled.wait_until_finished())
        with pytest.raises(JobFailedError, match="'note': is a parameter of task 'rename'"):
            await with_timeout((await rename.add(7)).wait_until_finished())
        replaced = await order.add(7)
        await recorded.wait("suspended", 1)
        await replaced.reload()
        await replaced.update_data(dict(replaced.data))
        await queue.signal(replaced.id, "go")
        with pytest.raises(JobFailedError, match="payment = 'ch_1': unknown parameter"):
            await with_timeout(replaced.wait_until_finished())
