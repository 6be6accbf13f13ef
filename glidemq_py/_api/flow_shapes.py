"""Flows of a common shape: one after the other, side by side, side by side and then one more.

Each function connects, adds and closes: to wait for what it added, get the job from a `Queue`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._client.connect import Connection
from glidemq_py._core.queue_options import DEFAULT_PREFIX, JobSpec
from glidemq_py._features.flows.definition import FlowJob
from glidemq_py._features.flows.graph import DagNode
from glidemq_py._features.flows.node import JobNode
from glidemq_py._job import Job
from glidemq_py.errors import GlideMQValidationError

__all__ = ["GROUP_NAME", "chain", "chord", "dag", "group"]

GROUP_NAME: Final = "__group__"
"""Name of the job that waits for a group."""

Spec = JobSpec | tuple[str] | tuple[str, Any] | tuple[str, Any, Mapping[str, Any] | None]


def _jobs(queue: str, jobs: Sequence[Spec]) -> list[FlowJob]:
    specs = [JobSpec.parse(job, f"jobs[{i}]") for i, job in enumerate(jobs)]
    if not specs:
        raise GlideMQValidationError("jobs", jobs, "must name at least one job")
    return [FlowJob(spec.name, queue, spec.data, spec.options) for spec in specs]


async def chain(
    queue: str, jobs: Sequence[Spec], connection: Connection = None, *, prefix: str = DEFAULT_PREFIX
) -> JobNode:
    """Jobs one after the other: the **last** one runs first, the first one last, as in the original.

    Each finds the result of the one before it by `Job.get_children_values`. Returns the node of the first.
    Raises as `FlowProducer.add`.
    """
    last, *others = reversed(_jobs(queue, jobs))
    for job in others:
        last = FlowJob(job.name, queue, job.data, job.options, (last,))
    async with FlowProducer(connection, prefix=prefix) as producer:
        return await producer.add(last)


async def group(
    queue: str, jobs: Sequence[Spec], connection: Connection = None, *, prefix: str = DEFAULT_PREFIX
) -> JobNode:
    """Jobs side by side, and one named ``__group__`` without data that waits for all of them: the worker's handler must
    take that name. Returns its node. Raises as `FlowProducer.add`."""
    async with FlowProducer(connection, prefix=prefix) as producer:
        return await producer.add(FlowJob(GROUP_NAME, queue, {}, None, _jobs(queue, jobs)))


async def chord(
    queue: str, jobs: Sequence[Spec], callback: Spec, connection: Connection = None, *, prefix: str = DEFAULT_PREFIX
) -> JobNode:
    """Jobs side by side, and then ``callback``, which finds their results by `Job.get_children_values`. Returns the
    callback's node. Raises as `FlowProducer.add`."""
    last = _jobs(queue, (callback,))[0]
    async with FlowProducer(connection, prefix=prefix) as producer:
        return await producer.add(FlowJob(last.name, queue, last.data, last.options, _jobs(queue, jobs)))


async def dag(
    nodes: Iterable[DagNode | Mapping[str, Any]], connection: Connection = None, *, prefix: str = DEFAULT_PREFIX
) -> dict[str, Job[Any, Any]]:
    """`FlowProducer.add_dag` with a connection of its own."""
    async with FlowProducer(connection, prefix=prefix) as producer:
        return await producer.add_dag(nodes)
