"""Common flows: chain (sequential jobs), group (parallel jobs), chord (parallel jobs and a callback), DAG.

Each function connects, adds the flow and closes the connection. To wait for a result, get the job from a `Queue`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._client.connect import Connection
from glidemq_py._core.queue_options import DEFAULT_PREFIX, JobSpec
from glidemq_py._features.flows.definition import DagNode, FlowJob
from glidemq_py._features.flows.reading import JobNode
from glidemq_py._job import Job
from glidemq_py.errors import GlideMQValidationError

__all__ = ["GROUP_NAME", "chain", "chord", "dag", "group"]

GROUP_NAME: Final = "__group__"
"""Name of the parent job of a group."""

Spec = JobSpec | tuple[str] | tuple[str, Any] | tuple[str, Any, Mapping[str, Any] | None]


def _jobs(queue: str, jobs: Sequence[Spec]) -> list[FlowJob]:
    specs = [JobSpec.parse(job, f"jobs[{i}]") for i, job in enumerate(jobs)]
    if not specs:
        raise GlideMQValidationError("jobs", jobs, "must name at least one job")
    return [FlowJob(spec.name, queue, spec.data, spec.options) for spec in specs]


async def chain(
    queue: str, jobs: Sequence[Spec], connection: Connection = None, *, prefix: str = DEFAULT_PREFIX
) -> JobNode:
    """Add jobs that run one after the other: the **last** of the list runs first, as in glide-mq for Node.

    Each job gets the result of the previous one with `Job.get_children_values`. Raises the errors of
    `FlowProducer.add`.

    Args:
        queue: Name of the queue.
        jobs: ``(name, data, options)`` tuples or `JobSpec` objects.
        connection: As for `FlowProducer`.
        prefix: First part of every key.

    Returns:
        The node of the first job of the list, which runs last.
    """
    last, *others = reversed(_jobs(queue, jobs))
    for job in others:
        last = FlowJob(job.name, queue, job.data, job.options, (last,))
    async with FlowProducer(connection, prefix=prefix) as producer:
        return await producer.add(last)


async def group(
    queue: str, jobs: Sequence[Spec], connection: Connection = None, *, prefix: str = DEFAULT_PREFIX
) -> JobNode:
    """Add jobs that run in parallel, and a parent job that waits for all of them.

    The parent is named ``__group__`` and has no data; the worker's handler must accept this name. Raises the errors of
    `FlowProducer.add`.

    Args:
        queue: Name of the queue.
        jobs: ``(name, data, options)`` tuples or `JobSpec` objects.
        connection: As for `FlowProducer`.
        prefix: First part of every key.

    Returns:
        The node of the parent job.
    """
    async with FlowProducer(connection, prefix=prefix) as producer:
        return await producer.add(FlowJob(GROUP_NAME, queue, {}, None, _jobs(queue, jobs)))


async def chord(
    queue: str, jobs: Sequence[Spec], callback: Spec, connection: Connection = None, *, prefix: str = DEFAULT_PREFIX
) -> JobNode:
    """Add jobs that run in parallel, and a callback job that runs after all of them.

    The callback gets their results with `Job.get_children_values`. Raises the errors of `FlowProducer.add`.

    Args:
        queue: Name of the queue.
        jobs: ``(name, data, options)`` tuples or `JobSpec` objects.
        callback: The callback job, in the same form.
        connection: As for `FlowProducer`.
        prefix: First part of every key.

    Returns:
        The node of the callback job.
    """
    last = _jobs(queue, (callback,))[0]
    async with FlowProducer(connection, prefix=prefix) as producer:
        return await producer.add(FlowJob(last.name, queue, last.data, last.options, _jobs(queue, jobs)))


async def dag(
    nodes: Iterable[DagNode | Mapping[str, Any]], connection: Connection = None, *, prefix: str = DEFAULT_PREFIX
) -> dict[str, Job[Any, Any]]:
    """Add a DAG of jobs; see `FlowProducer.add_dag`."""
    async with FlowProducer(connection, prefix=prefix) as producer:
        return await producer.add_dag(nodes)
