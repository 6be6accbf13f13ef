"""`chain`, `group`, `chord` and `dag`: connect, add a common flow and close the connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict, Unpack, overload

from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._api.flow_reading import JobNode
from glidemq_py._api.job_queue import Queue
from glidemq_py._client.transport import Connection
from glidemq_py._core.checks import name_within
from glidemq_py._core.keys import validate_queue_name
from glidemq_py._core.queue_options import (
    Compression,
    DurableInput,
    JobInput,
    JobSpec,
    Serializer,
    SerializerName,
    TaskCall,
    is_call,
)
from glidemq_py._features.flows.definition import DagNode, FlowJob
from glidemq_py._job.contents import ResultT
from glidemq_py._job.job import Job
from glidemq_py._job.middleware import Middleware
from glidemq_py.errors import GlideMQValidationError


class FlowProducerOptions(TypedDict, total=False):
    """The options of a `FlowProducer`."""

    prefix: str
    compression: Compression
    serializer: Serializer | SerializerName | None
    events: bool
    durable: DurableInput
    middleware: Sequence[Middleware] | None


GROUP_NAME: Final = "__group__"
"""Name of the parent job of a group."""


def _job(queue: str | None, job: JobInput, where: str, children: Sequence[FlowJob] = ()) -> FlowJob:
    spec = JobSpec.parse(job, where)
    try:
        if is_call(spec):
            return FlowJob(spec, children=children)
        return FlowJob(spec.name, validate_queue_name(queue, "queue"), spec.data, spec.options, children)
    except GlideMQValidationError as error:
        name_within(error, where)
        raise


def _jobs(queue: str | None, jobs: Sequence[JobInput]) -> list[FlowJob]:
    if queue is not None:
        validate_queue_name(queue, "queue")
    found = [_job(queue, job, f"jobs[{i}]") for i, job in enumerate(jobs)]
    if not found:
        raise GlideMQValidationError("jobs", jobs, "must name at least one job")
    return found


def _producer(jobs: Sequence[JobInput], connection: Connection, options: FlowProducerOptions) -> FlowProducer:
    """Return a flow producer; without a connection, that of the first call of a task."""
    call: Any = next((each for each in jobs if is_call(each)), None)
    if call is None or connection is not None:
        return FlowProducer(connection, **options)
    queue: Queue = call.queue
    own: Any = {name: getattr(queue.options, name) for name in ("prefix", "serializer", "compression")}
    own.update(options)
    return FlowProducer(queue._connection, **own)


async def chain(
    queue: str | None, jobs: Sequence[JobInput], connection: Connection = None, **options: Unpack[FlowProducerOptions]
) -> JobNode:
    """Add jobs that run one after the other: the **last** of the list runs first, as in glide-mq for Node.

    Each job gets the result of the previous one with `Job.get_children_values`. Raises the errors of
    `FlowProducer.add`.

    Args:
        queue: Name of the queue; calls of tasks have queues of their own, so None if there is no other job.
        jobs: ``(name, data, options)`` tuples, mappings of these, `JobSpec` objects, or calls of tasks (`Task.call`).
        connection: As for `FlowProducer`; None with calls of tasks: that of the worker of the first one.
        **options: As for `FlowProducer`.

    Returns:
        The node of the first job of the list, which runs last.
    """
    *_, last = _jobs(queue, jobs)
    for i, job in reversed(list(enumerate(jobs[:-1]))):
        last = _job(queue, job, f"jobs[{i}]", (last,))
    async with _producer(jobs, connection, options) as producer:
        return await producer.add(last)


async def group(
    queue: str, jobs: Sequence[JobInput], connection: Connection = None, **options: Unpack[FlowProducerOptions]
) -> JobNode:
    """Add jobs that run in parallel, and a parent job that waits for all of them.

    The parent is named ``__group__`` and has no data; the worker's handler must accept this name. Raises the errors of
    `FlowProducer.add`.

    Args:
        queue: Name of the queue; calls of tasks have queues of their own, so None if there is no other job.
        jobs: ``(name, data, options)`` tuples, mappings of these, `JobSpec` objects, or calls of tasks (`Task.call`).
        connection: As for `FlowProducer`; None with calls of tasks: that of the worker of the first one.
        **options: As for `FlowProducer`.

    Returns:
        The node of the parent job.
    """
    parent = FlowJob(GROUP_NAME, queue, {}, None, _jobs(queue, jobs))
    async with _producer(jobs, connection, options) as producer:
        return await producer.add(parent)


@overload
async def chord(
    queue: str | None, jobs: Sequence[JobInput], callback: TaskCall[ResultT], connection: Connection = None,
    **options: Unpack[FlowProducerOptions],
) -> JobNode[ResultT]: ...  # fmt: skip
@overload
async def chord(
    queue: str | None, jobs: Sequence[JobInput], callback: JobInput, connection: Connection = None,
    **options: Unpack[FlowProducerOptions],
) -> JobNode: ...  # fmt: skip
async def chord(
    queue: str | None, jobs: Sequence[JobInput], callback: JobInput, connection: Connection = None,
    **options: Unpack[FlowProducerOptions],
) -> JobNode:  # fmt: skip
    """Add jobs that run in parallel, and a callback job that runs after all of them.

    The callback gets their results with `Job.get_children_values`. Raises the errors of `FlowProducer.add`.

    Args:
        queue: Name of the queue; calls of tasks have queues of their own, so None if there is no other job.
        jobs: ``(name, data, options)`` tuples, mappings of these, or `JobSpec` objects.
        callback: The callback job, in the same form.
        connection: As for `FlowProducer`.
        **options: As for `FlowProducer`.

    Returns:
        The node of the callback job.
    """
    parent = _job(queue, callback, "callback", _jobs(queue, jobs))
    async with _producer([callback, *jobs], connection, options) as producer:
        return await producer.add(parent)


async def dag(
    nodes: Iterable[DagNode | Mapping[str, Any]], connection: Connection = None, **options: Unpack[FlowProducerOptions]
) -> dict[str, Job]:
    """Add a DAG of jobs; see `FlowProducer.add_dag`. The options are those of `FlowProducer`."""
    async with FlowProducer(connection, **options) as producer:
        return await producer.add_dag(nodes)
