"""`FlowProducer`: adds flows and reads them.

It delegates to the modules of `glidemq_py._features.flows`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self

from glidemq_py._client.connect import Connection, check_connection, open_transport
from glidemq_py._client.loop_transport import LoopConnection, LoopTransport
from glidemq_py._client.runtime import ASYNC_RUNTIME, BLOCKING_RUNTIME, Runtime
from glidemq_py._client.transport import Transport
from glidemq_py._core.checks import check_int, check_iterable
from glidemq_py._core.job_states import JobState
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._core.misuse import AsyncOnly, known_arguments
from glidemq_py._core.names import parse_job_id
from glidemq_py._core.payload import PAYLOAD_LIMIT, serializer_of
from glidemq_py._core.queue_options import (
    DEFAULT_PREFIX,
    Compression,
    QueueOptions,
    Serializer,
    SerializerName,
)
from glidemq_py._features import queue_list
from glidemq_py._features.budgets.options import Budget, parse_budget
from glidemq_py._features.durability.adding import RENEW_S, FlowWait
from glidemq_py._features.durability.confirming import Confirmer
from glidemq_py._features.durability.options import Durability, DurableInput, parse_durable
from glidemq_py._features.flows.adding import add_planned
from glidemq_py._features.flows.definition import DagNode, FlowJob, validate_dag
from glidemq_py._features.flows.parent_option import JobRef
from glidemq_py._features.flows.placing import FlowPlaces
from glidemq_py._features.flows.plan import Planned, plan_dag, plan_tree
from glidemq_py._features.flows.reading import JobNode, read_flow
from glidemq_py._features.flows.references import References
from glidemq_py._features.middleware.around import add_within
from glidemq_py._features.middleware.middleware import Middleware, NewJob
from glidemq_py._features.partitions.layout import Partition
from glidemq_py._job.job import Job
from glidemq_py._job.link import QueueLink
from glidemq_py._job.waiting import LoopWaiter
from glidemq_py.errors import (
    BulkAddError,
    ClosedError,
    DurabilityError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
)
from glidemq_py.telemetry import names
from glidemq_py.telemetry.spans import observed
from glidemq_py.telemetry.state import TELEMETRY

__all__ = ["FlowProducer"]

_MAX_READ: Final = 10**6
_ATTEMPTS: Final = 20
"""Times that a flow is routed. More than two are needed only if layouts of partitions change again and again."""


class FlowProducer(AsyncOnly):
    """Add flows: trees and DAGs of jobs, in which parents wait for their children.

    A flow is added completely or not at all. Its jobs may be in different queues.

    A flow producer connects at first use. Close it, or use it in an ``async with`` block. Like a `Queue`, it may be
    shared by event loops, threads and forked processes (docs/learn/event-loops.md).

    Args:
        connection: A URL, `ConnectionOptions`, an existing GLIDE client (never closed by the producer),
            or None. None means ``GLIDEMQ_URL`` if set, otherwise a private embedded server.
        prefix: First part of every key.
        compression: "gzip" stores job data compressed; "none" (the default) does not.
        serializer: Serializer of the data of all jobs: "json" (the default), "msgpack", or a `Serializer` object.
        events: If False, no `added` events are written.
        durable: As for `Queue`: adds return when all jobs of the flow survive the given failures.
        middleware: As for `Queue`; a flow is one add.

    Raises:
        GlideMQValidationError: If an option is invalid. The message contains the option and its value.
    """

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
            check_connection(connection, blocking=self._runtime is BLOCKING_RUNTIME)
        self.options = QueueOptions(
            prefix=prefix, compression=compression, serializer=serializer, events=events, middleware=middleware
        )
        self._durable = parse_durable(durable)
        self._connection = connection
        self._transport = LoopTransport("flow producer", self._open_here, self._runtime)
        self._links: dict[str, QueueLink] = {}
        self._references = References(self._transport, prefix)
        self._places = FlowPlaces(self._transport, prefix, self._references, self._link)
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
        connection.transport = await self._open()

    async def _open(self) -> Transport:
        return await open_transport(self._connection)

    def _link(self, queue: str, partition: Partition | None = None) -> QueueLink:
        link = self._links.get(queue)
        if link is None:
            keys = QueueKeys(self.options.prefix, queue)
            link = self._links[queue] = QueueLink(
                transport=self._transport, keys=keys, waiter=LoopWaiter(self._transport, keys, self._runtime),
                serializer=serializer_of(self.options.serializer), compression=self.options.compression,
                runtime=self._runtime, payload_limit=self._payload_limit, references=self._references,
            )  # fmt: skip
        if partition is not None:
            link.partition = partition
        return link

    async def _place(self, plan: list[Planned]) -> None:
        """Choose the partitions of a flow whose queues are known to have some."""
        with contextlib.suppress(LayoutChangedError):  # the call that adds the flow is refused, and it is routed again
            await self._places.choose(plan)

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
        flow: FlowJob | Mapping[str, Any],
        *,
        budget: Budget | Mapping[str, Any] | None = None,
        durable: DurableInput = None,
    ) -> JobNode:
        """Add a tree of jobs. Each job runs after its children have ended.

        Args:
            flow: The root: a `FlowJob`, or a mapping of its fields.
            budget: Limit for the usage of all jobs of the flow together; see `Budget`. It is stored before the first
                job can run.
            durable: As for `FlowProducer`; None means the producer's option.

        Returns:
            The node of the root; its ``children`` are the nodes of the other jobs.

        Raises:
            GlideMQValidationError: If the flow is invalid. Nothing was sent.
            DuplicateJobError: If a job with one of the given ``job_id`` values exists. Nothing was added.
            JobCostError: If the ``cost`` of a job exceeds the capacity of its group's token bucket. Nothing was added.
            AmbiguousResultError: If the connection was lost. A flow of up to 100 jobs in one queue is added in one
                call and may have been added; workers of the root's queue complete any other flow if the server
                accepted it.
            ServerOutOfMemoryError: If the server has reached ``maxmemory``.
            DurabilityError: If the server did not confirm a ``durable`` flow in time. The flow may exist.
        """
        root = FlowJob.parse(flow, "flow")
        limits = None if budget is None else parse_budget(budget)
        transport = await self._connected()
        plan = plan_tree(root, self._link)
        await self._place(plan)
        wait = await self._durable_wait(durable, [plan])
        node = await self._add_tree(transport, plan, limits, wait)
        await wait.confirm(node.job.id)
        return node

    async def add_bulk(
        self,
        flows: Iterable[FlowJob | Mapping[str, Any]],
        *,
        budget: Budget | Mapping[str, Any] | None = None,
        durable: DurableInput = None,
    ) -> list[JobNode]:
        """Add several trees, one after the other. All are validated before the first is sent.

        Args:
            flows: The roots: `FlowJob` objects or mappings of their fields.
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
        limits = None if budget is None else parse_budget(budget)
        transport = await self._connected()
        plans = [plan_tree(root, self._link, f"flows[{i}]") for i, root in enumerate(roots)]
        for plan in plans:
            await self._place(plan)
        waits = [await self._durable_wait(durable, [plan]) for plan in plans]
        results: list[JobNode | GlideMQError] = []
        renewed = time.monotonic()
        for plan, wait in zip(plans, waits, strict=True):
            if time.monotonic() - renewed >= RENEW_S:
                await FlowWait.renew_all(waits[: len(results)])
                renewed = time.monotonic()
            try:
                results.append(await self._add_tree(transport, plan, limits, wait))
            except GlideMQConnectionError as error:
                skipped = GlideMQConnectionError("not sent: an earlier tree failed")
                results += [error, *[skipped] * (len(plans) - len(results) - 1)]
                break
            except GlideMQError as error:
                results.append(error)
        # Only of trees that were added: a rejected one left no marks.
        nodes = [(i, each) for i, each in enumerate(results) if isinstance(each, JobNode)]
        failures = await FlowWait.confirm_all([waits[i] for i, _ in nodes])
        for (i, node), failure in zip(nodes, failures, strict=True):
            if failure:
                results[i] = DurabilityError(failure, node.job.id)
        roots_added = [result for result in results if isinstance(result, JobNode)]
        if len(roots_added) < len(plans):
            raise BulkAddError(results)
        return roots_added

    async def add_dag(
        self,
        nodes: Iterable[DagNode | Mapping[str, Any]],
        *,
        budget: Budget | Mapping[str, Any] | None = None,
        durable: DurableInput = None,
    ) -> dict[str, Job[Any, Any]]:
        """Add a DAG (directed acyclic graph) of jobs. Each job runs after all jobs in its ``deps`` have ended.

        Raises the errors of `FlowProducer.add` as well.

        Args:
            nodes: `DagNode` objects, or mappings of their fields.
            budget: Limit for the usage of all jobs together; see `Budget`.
            durable: As for `FlowProducer`; None means the producer's option.

        Returns:
            The jobs by name.

        Raises:
            CycleError: If the graph has a cycle. Nothing was sent.
        """
        checked = validate_dag(nodes)
        if not checked:
            raise GlideMQValidationError("nodes", checked, "must name at least one job")
        limits = None if budget is None else parse_budget(budget)
        await self._connected()
        return {job.name: job for job in await self._add_graph(plan_dag(checked, self._link), limits, durable)}

    async def _add_graph(
        self, plan: list[Planned], limits: Budget | None, durable: DurableInput
    ) -> list[Job[Any, Any]]:
        """Add the jobs of a planned graph, and return them in the order of the plan."""
        details = {names.FLOW_NODES: len(plan)}
        await self._connected()
        await self._place(plan)
        wait = await self._durable_wait(durable, [plan])
        now = await self._add(await self._connected(), plan, limits, wait, "add_dag", details)
        await wait.confirm()
        return [node.job for node in _nodes(plan, now)]

    async def _durable_wait(self, durable: DurableInput, plans: list[list[Planned]]) -> FlowWait:
        """Return the wait for flows; it has no queues unless they are durable."""
        durability = self._durable if durable is None else parse_durable(durable)
        if durability is None:
            return FlowWait({})
        return FlowWait(await self._confirmers(durability, plans), partial(self._confirmers, durability))

    async def _confirmers(self, durability: Durability, plans: list[list[Planned]]) -> dict[str, Confirmer]:
        """Return the confirmer of each queue of the flows, by its declared key."""
        connection = await self._transport.connected()
        confirmers: dict[str, Confirmer] = {}
        for meta in dict.fromkeys(job.link.keys.meta for plan in plans for job in plan):
            confirmers[meta] = connection.part((meta, durability), partial(self._confirmer, meta, durability))
            await confirmers[meta].ready()
        return confirmers

    def _confirmer(self, meta: str, durability: Durability, transport: Transport) -> Confirmer:
        return Confirmer(transport, meta, self._runtime, durability)

    async def _add_tree(
        self, transport: Transport, plan: list[Planned], limits: Budget | None, wait: FlowWait
    ) -> JobNode:
        children = sum(job.parents == [0] for job in plan)
        details = {names.FLOW_NAME: plan[0].name, names.FLOW_CHILDREN: children}
        return _nodes(plan, await self._add(transport, plan, limits, wait, "add_flow", details))[0]

    async def _add(
        self,
        transport: Transport,
        plan: list[Planned],
        limits: Budget | None,
        wait: FlowWait,
        operation: str,
        details: dict[str, Any],
    ) -> int:
        async def add() -> int:
            refusal: LayoutChangedError | None = None
            for attempt in range(_ATTEMPTS):
                try:
                    if refusal is not None:
                        await self._places.choose(plan, refusal=refusal)
                        await wait.cover([plan])
                    return await add_planned(
                        transport, plan, not self.options.events, limits, self._flow_id, wait.marker
                    )
                except LayoutChangedError as error:
                    if attempt == _ATTEMPTS - 1:
                        raise
                    refusal = error
            raise AssertionError

        async def send() -> int:
            if not TELEMETRY.on:
                now = await add()
            else:
                queue, rows = plan[0].link.queue_name, [job.row for job in plan]
                now = await observed(operation, queue, transport, rows, add, details)
            for job in plan:
                if not job.link.is_listed:
                    await queue_list.register(job.link)
            return now

        middleware = self.options.middleware
        if not middleware:
            return await send()
        new = [NewJob(job.link.queue_name, job.name, job.data, job.options) for job in plan]

        async def change_and_send() -> int:
            for planned, job in zip(plan, new, strict=True):
                planned.change(job.data, job.with_headers(planned.options))
            return await send()

        return await add_within(middleware, new, change_and_send, blocking=self._runtime is BLOCKING_RUNTIME)

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
        job: Job[Any, Any] = Job(planned.link, planned.id, planned.name)
        job._data = planned.data
        job.timestamp = now
        job.priority, job._rank = planned.options.placed_priority, planned.options.placed_rank
        job._given = planned.options
        job._delay = planned.options.delay or 0
        state = JobState.WAITING_CHILDREN if planned.inner else None
        node = JobNode(job, state=state)
        nodes.append(node)
        for i in planned.parents:
            nodes[i].children.append(node)
    return nodes
