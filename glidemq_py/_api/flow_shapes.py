"""Flows of a common shape: `chain` (sequential), `group` (parallel), `chord` (parallel, then a callback), `dag`.

Each function connects, adds the jobs and closes. To wait for a job, get it from a `Queue`.
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
    """Add jobs that run one after the other, in reverse order: the **last** one runs first, as in glide-mq.

    Each job gets the result of the job that ran before it from `Job.get_children_values`. Raises the errors of
    `FlowProducer.add`.

    Args:
        queue: name of the queue.
        jobs: the jobs; at least one.
        connection: as for `Queue`.
        prefix: first part of every key.

    Returns:
        The node of the first job, which runs last.
    """
    last, *others = reversed(_jobs(queue, jobs))
    for job in others:
        last = FlowJob(job.name, queue, job.data, job.options, (last,))
    async with FlowProducer(connection, prefix=prefix) as producer:
        return await producer.add(last)


async def group(
    queue: str, jobs: Sequence[Spec], connection: Connection = None, *, prefix: str = DEFAULT_PREFIX
) -> JobNode:
    """Add jobs that run in parallel, and a job named ``__group__`` that waits for all of them.

    The ``__group__`` job has no data; the handler of the worker must accept its name. Raises the errors of
    `FlowProducer.add`.

    Args:
        queue: name of the queue.
        jobs: the jobs; at least one.
        connection: as for `Queue`.
        prefix: first part of every key.

    Returns:
        The node of the ``__group__`` job.
    """
    async with FlowProducer(connection, prefix=prefix) as producer:
        return await producer.add(FlowJob(GROUP_NAME, queue, {}, None, _jobs(queue, jobs)))


async def chord(
    queue: str, jobs: Sequence[Spec], callback: Spec, connection: Connection = None, *, prefix: str = DEFAULT_PREFIX
) -> JobNode:
    """Add jobs that run in parallel, and ``callback``, which runs when all of them have finished.

    The callback gets the results from `Job.get_children_values`. Raises the errors of `FlowProducer.add`.

    Args:
        queue: name of the queue.
        jobs: the jobs; at least one.
        callback: the job that waits for them.
        connection: as for `Queue`.
        prefix: first part of every key.

    Returns:
        The node of the callback.
    """
    last = _jobs(queue, (callback,))[0]
    async with FlowProducer(connection, prefix=prefix) as producer:
        return await producer.add(FlowJob(last.name, queue, last.data, last.options, _jobs(queue, jobs)))


async def dag(
    nodes: Iterable[DagNode | Mapping[str, Any]], connection: Connection = None, *, prefix: str = DEFAULT_PREFIX
) -> dict[str, Job[Any, Any]]:
    """Add a graph of jobs with `FlowProducer.add_dag` on a new connection."""
    async with FlowProducer(connection, prefix=prefix) as producer:
        return await producer.add_dag(nodes)
