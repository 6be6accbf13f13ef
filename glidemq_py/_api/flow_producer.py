"""`FlowProducer`: adds flows and reads them.

It delegates to the modules of `glidemq_py._features.flows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self, cast

from glidemq_py._api.adds import added_job, rerouted
from glidemq_py._api.flow_reading import JobNode, read_flow
from glidemq_py._client.loop_transport import LoopConnection, LoopTransport
from glidemq_py._client.runtime import ASYNC_RUNTIME, Runtime
from glidemq_py._client.transport import Connection, Transport, check_connection, open_transport
from glidemq_py._core.checks import check_int, check_iterable
from glidemq_py._core.keys import DEFAULT_PREFIX, QueueKeys, parse_job_id
from glidemq_py._core.misuse import AsyncOnly, known_arguments
from glidemq_py._core.option_values import JobRef
from glidemq_py._core.payload import PAYLOAD_LIMIT, serializer_of
from glidemq_py._core.queue_options import (
    Compression,
    Durability,
    DurableInput,
    Entry,
    QueueOptions,
    Serializer,
    SerializerName,
    TaskCall,
    parse_durable,
)
from glidemq_py._core.record import JobState
from glidemq_py._features import queue_list
from glidemq_py._features.budgets import Budget, parse_budget
from glidemq_py._features.durability import Confirmer
from glidemq_py._features.durable_adds import Marks
from glidemq_py._features.flows.adding import add_planned
from glidemq_py._features.flows.definition import DagNode, FlowJob, validate_dag
from glidemq_py._features.flows.plan import Planned, plan_dag, plan_tree
from glidemq_py._features.flows.references import FlowPlaces, References
from glidemq_py._job.contents import ResultT
from glidemq_py._job.job import Job
from glidemq_py._job.middleware import Middleware, add_within
from glidemq_py._job.waiting import LoopWaiter
from glidemq_py._partitions.layout import Partition
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import (
    BulkAddError,
    ClosedError,
    DurabilityError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    LayoutChangedError,
)
from glidemq_py.telemetry import names
from glidemq_py.telemetry.spans import observed
from glidemq_py.telemetry.state import TELEMETRY

_MAX_READ: Final = 10**6


class FlowProducer(AsyncOnly):
    """Add flows: trees and DAGs of jobs, in which parents wait for their children.

    A flow is added completely or not at all. Its jobs may be in different queues.

    A flow producer connects at first use. Close it, or use it in an ``async with`` block. Like a `Queue`, it may be
    shared by event loops, threads and forked processes (docs/learn/event-loops.md).

    Args:
        connection: A URL, `ConnectionOptions`, an existing GLIDE client (never closed by the producer),
            or None. None means ``GLIDEMQ_URL`` if set, otherwise the server of `glidemq dev`, or a private one.
        prefix: First part of every key.
        compression: "gzip" stores job data compressed; "none" (the default) does not.
        serializer: Serializer of the data of all jobs: "json" (the default), "msgpack", or a `Serializer` object.
        events: If False, no `added` events are written.
        durable: As for `Queue`: adds return when all jobs of the flow survive the given failures.
        middleware: As for `Queue`; a flow is one add.

    Raises:
        GlideMQValidationError: If an option is invalid. The message contains the option and its value.
    """

    options: QueueOptions
    """Options of the flow producer."""

    @known_arguments("queue")
    def __init__(
        self,
        connection: Connection = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        compression: Compression = "none",
        serializer: Serializer | SerializerName | None = None,
        events: bool = True,
        durable: DurableInput = None,
        middleware: Sequence[Middleware] | None = None,
    ) -> None:
        if connection is not None:
            check_connection(connection, blocking=self._runtime.is_blocking)
        self.options = QueueOptions(
            prefix=prefix, compression=compression, serializer=serializer, events=events, middleware=middleware
        )
        self._durable = parse_durable(durable)
        self._connection = connection
        self._transport = LoopTransport("flow producer", self._open_here, self._runtime)
        self._links: dict[str, QueueLink] = {}
        self._references = References(self._transport, prefix)
        self._places = FlowPlaces(self._references, self._link)
        self._closed = False

    _runtime: Runtime = ASYNC_RUNTIME
    _payload_limit = PAYLOAD_LIMIT
    _flow_id: str | None = None
    """Id of the flow's record, for a producer created for a single flow."""

    async def connect(self) -> None:
        """Connect now instead of at first use.

        Raises:
            GlideMQConnectionError: If the server cannot be reached. The next use tries again.
            ClosedError: If the flow producer is closed.
        """
        await self._connected()

    async def _connected(self) -> Transport:
        if self._closed:
            raise ClosedError("the flow producer is closed")
        await self._transport.connected()
        return self._transport

    async def _open_here(self, connection: LoopConnection) -> None:
        connection.transport = await open_transport(self._connection)

    def _link(self, queue: str, partition: Partition | None = None) -> QueueLink:
        link = self._links.get(queue)
        if link is None:
            keys = QueueKeys(self.options.prefix, queue)
            link = self._links[queue] = QueueLink(
                transport=self._transport, keys=keys, waiter=LoopWaiter(self._transport, keys),
                serializer=serializer_of(self.options.serializer), compression=self.options.compression,
                runtime=self._runtime, payload_limit=self._payload_limit, references=self._references,
            )  # fmt: skip
        if partition is not None:
            link.partition = partition
        return link

    async def close(self) -> None:
        """Close the connections of all event loops, except a client passed by the caller. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._transport.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return "<FlowProducer>"

    # -- adding -------------------------------------------------------------------------------------------

    async def add(
        self,
        flow: FlowJob[ResultT] | TaskCall[ResultT] | Mapping[str, Any],
        *,
        budget: Budget | Mapping[str, Any] | None = None,
        durable: DurableInput = None,
    ) -> JobNode[ResultT]:
        """Add a tree of jobs. Each job runs after its children have ended.

        Args:
            flow: The root: a `FlowJob`, a mapping of its fields, or a call of a task (`Task.call`).
            budget: Limit for the usage of all jobs of the flow together; see `Budget`. It is stored before the first
                job can run.
            durable: As for `FlowProducer`; None means the producer's option.

        Returns:
            The node of the root; its ``children`` are the nodes of the other jobs.

        Raises:
            GlideMQValidationError: If the flow is invalid. Nothing was sent.
            DuplicateJobError: If a job with one of the given ``job_id`` values exists. Nothing was added.
            GlideMQValidationError: If the ``cost`` of a job exceeds the capacity of its group's token bucket. Nothing
                was added.
            AmbiguousResultError: If the connection was lost. A flow of up to 100 jobs in one queue is added in one
                call and may have been added; workers of the root's queue complete any other flow if the server
                accepted it.
            ServerOutOfMemoryError: If the server has reached ``maxmemory``.
            DurabilityError: If the server did not confirm a ``durable`` flow in time. The flow may exist.
        """
        plan = plan_tree(FlowJob.parse(flow, "flow"), self._link)
        return (await self._add_one(plan, budget, durable, "add_flow"))[0]

    async def add_bulk(
        self,
        flows: Iterable[FlowJob[ResultT] | TaskCall[ResultT] | Mapping[str, Any]],
        *,
        budget: Budget | Mapping[str, Any] | None = None,
        durable: DurableInput = None,
    ) -> list[JobNode[ResultT]]:
        """Add several trees, one after the other. All are validated before the first is sent.

        Args:
            flows: The roots: `FlowJob` objects, mappings of their fields, or calls of tasks.
            budget: Limit for each tree; every tree has a budget of its own.
            durable: As for `FlowProducer`; None means the producer's option.

        Returns:
            The root node of each tree.

        Raises:
            BulkAddError: If some trees were not added, or may not have been. Its ``results`` has the root node or the
                exception of `FlowProducer.add` per position. A rejected tree does not prevent the others; after a
                lost connection the remaining trees are not sent.
            GlideMQValidationError: If a flow is invalid. Nothing was added.
        """
        roots = [FlowJob.parse(flow, f"flows[{i}]") for i, flow in enumerate(check_iterable("flows", flows, "trees"))]
        plans = [plan_tree(root, self._link, f"flows[{i}]") for i, root in enumerate(roots)]
        results = [
            each if isinstance(each, GlideMQError) else each[0]
            for each in await self._add_all(plans, budget, durable, "add_flow")
        ]  # fmt: skip
        if any(isinstance(each, GlideMQError) for each in results):
            raise BulkAddError(results)
        return cast("list[JobNode[ResultT]]", results)

    async def add_dag(
        self,
        nodes: Iterable[DagNode | Mapping[str, Any]],
        *,
        budget: Budget | Mapping[str, Any] | None = None,
        durable: DurableInput = None,
    ) -> dict[str, Job]:
        """Add a DAG (directed acyclic graph) of jobs. Each job runs after all jobs in its ``deps`` have ended.

        Raises the errors of `FlowProducer.add` as well.

        Args:
            nodes: `DagNode` objects, or mappings of their fields.
            budget: Limit for the usage of all jobs together; see `Budget`.
            durable: As for `FlowProducer`; None means the producer's option.

        Returns:
            The jobs by the names of their nodes.

        Raises:
            GlideMQValidationError: If the graph has a cycle. Nothing was sent.
        """
        checked = validate_dag(nodes)
        if not checked:
            raise GlideMQValidationError("nodes", checked, "must name at least one job")
        plan = plan_dag(checked, self._link)
        added = await self._add_one(plan, budget, durable, "add_dag")
        return {planned.key: node.job for planned, node in zip(plan, added, strict=True)}

    async def _add_one(
        self, plan: list[Planned], budget: Budget | Mapping[str, Any] | None, durable: DurableInput, operation: str
    ) -> list[JobNode]:
        """Add a planned flow, and return its nodes in the order of the plan."""
        (result,) = await self._add_all([plan], budget, durable, operation)
        if isinstance(result, GlideMQError):
            raise result
        return result

    async def _add_all(
        self,
        plans: Sequence[list[Planned]],
        budget: Budget | Mapping[str, Any] | None,
        durable: DurableInput,
        operation: str,
    ) -> list[list[JobNode] | GlideMQError]:  # fmt: skip
        """Add planned flows, one after the other. Return the nodes of each, or its error."""
        limits = None if budget is None else parse_budget(budget)
        marks = Marks(self._durable if durable is None else parse_durable(durable))
        transport = await self._connected()
        for plan in plans:
            await self._place(plan, marks)
        results: list[list[JobNode] | GlideMQError] = []
        for number, plan in enumerate(plans):
            await marks.renew()
            try:
                results.append(_nodes(plan, await self._add(transport, plan, limits, marks, number, operation)))
            except GlideMQError as error:
                marks.drop(number)
                results.append(error)
                if isinstance(error, GlideMQConnectionError):
                    skipped = GlideMQConnectionError("not sent: an earlier tree failed")
                    results += [skipped] * (len(plans) - len(results))
                    break
        failed: list[tuple[int, str]] = await marks.confirm()
        for number, reason in failed:
            results[number] = DurabilityError(reason, plans[number][0].shown_id)
        return results

    async def _place(self, plan: list[Planned], marks: Marks, refusal: LayoutChangedError | None = None) -> None:
        """Choose the partitions of a flow, and prepare the wait for them if it is durable."""
        await self._places.choose(plan, refusal=refusal)
        for meta in dict.fromkeys(job.link.keys.meta for job in plan):
            await marks.cover(meta, partial(self._confirmer, meta))

    async def _confirmer(self, meta: str, durability: Durability) -> Confirmer:
        make = partial(Confirmer, meta=meta, runtime=self._runtime, durability=durability)

        async def find() -> Confirmer:
            return (await self._transport.connected()).part((meta, durability), make)

        return await self._runtime.there(find())

    async def _add(
        self, transport: Transport, plan: list[Planned], limits: Budget | None, marks: Marks, number: int,
        operation: str,
    ) -> int:  # fmt: skip
        next_mark = None if marks.durability is None else partial(marks.next, number)

        async def add(refusal: LayoutChangedError | None) -> int:
            if refusal is not None:
                marks.drop(number)
                await self._place(plan, marks, refusal)
            return await add_planned(transport, plan, not self.options.events, limits, self._flow_id, next_mark)

        async def send() -> int:
            if not TELEMETRY.on:
                now = await rerouted(add)
            else:
                queue, rows = plan[0].link.queue_name, [job.row for job in plan]
                details: dict[str, Any] = {names.FLOW_NODES: len(plan)}
                if operation == "add_flow":
                    children = sum(job.parents == [0] for job in plan)
                    details = {names.FLOW_NAME: plan[0].name, names.FLOW_CHILDREN: children}
                now = await observed(operation, queue, transport, rows, lambda: rerouted(add), details)
            for job in plan:
                if not job.link.is_listed:
                    await queue_list.register(job.link)
            return now

        async def change_and_send(changed: Iterable[Entry]) -> int:
            for job, (_, data, options) in zip(plan, changed, strict=True):
                job.change(data, options)
            return await send()

        return await add_within(
            self.options.middleware, (job.link.queue_name for job in plan),
            [(job.name, job.data, job.options) for job in plan], change_and_send,
            blocking=self._runtime.is_blocking,
        )  # fmt: skip

    # -- reading ------------------------------------------------------------------------------------------

    async def get_flow(
        self, queue: str, job_id: str, *, depth: int = 10_000, max_jobs: int = 100_000
    ) -> JobNode | None:
        """Return a job with its children and their current states; None if the job does not exist.

        The tree is read in several short calls, so states may be from different moments.

        Args:
            queue: Queue of the root, or of any job in a flow.
            job_id: Id of that job.
            depth: Levels of children to read, 0 to 1,000,000.
            max_jobs: Maximum number of jobs to read, 1 to 1,000,000. `JobNode.is_cut` is True for jobs whose children
                were not all read.

        Raises:
            GlideMQValidationError: If an argument is invalid.
        """
        root = JobRef(QueueKeys(self.options.prefix, queue).name, parse_job_id(job_id))
        check_int("depth", depth, 0, _MAX_READ)
        check_int("max_jobs", max_jobs, 1, _MAX_READ)
        await self._connected()
        return await read_flow(root, self._link, depth, max_jobs)


def _nodes(plan: list[Planned], now: int) -> list[JobNode]:
    nodes: list[JobNode] = []
    for planned in plan:
        job = added_job(planned.link, planned.name, planned.data, planned.options, now, planned.id)
        job._read_result = planned.read_result
        state = JobState.WAITING_CHILDREN if planned.inner else None
        node = JobNode(job, state=state)
        nodes.append(node)
        for i in planned.parents:
            nodes[i].children.append(node)
    return nodes
