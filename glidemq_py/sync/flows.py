"""`FlowProducer` for code that blocks.

Written by ``python -m tests.twins``; do not edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self, cast

from glidemq_py._client.connect import BlockingConnection
from glidemq_py._client.runtime import run_immediately
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression, QueueOptions, Serializer, SerializerName
from glidemq_py._features.budgets.options import Budget
from glidemq_py._features.flows.definition import FlowJob
from glidemq_py._features.flows.graph import DagNode
from glidemq_py._features.flows.node import JobNode
from glidemq_py._job import BlockingJob as Job
from glidemq_py.sync.driving import FlowCore, twins_by_name

__all__ = ["FlowProducer"]


class FlowProducer:
    """Adds flows and reads them back; any number of threads may share one.

    Names, arguments and errors are those of `glidemq_py.FlowProducer`. In the nodes that it returns,
    ``node.job.blocking`` is the job whose methods block.
    """

    def __init__(
        self,
        connection: BlockingConnection = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        compression: Compression = "none",
        serializer: Serializer | SerializerName | None = None,
        events: bool = True,
    ) -> None:
        self._core = FlowCore(
            cast("Any", connection), prefix=prefix, compression=compression, serializer=serializer, events=events
        )

    def connect(self) -> None:
        """Connect now rather than at first use. Raises GlideMQConnectionError; a later use tries again."""
        run_immediately(self._core.connect())

    def close(self) -> None:
        """Close the connections of all event loops, if they are ours; idempotent."""
        run_immediately(self._core.close())

    def __enter__(self) -> Self:
        run_immediately(self._core.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, flow: FlowJob | Mapping[str, Any], *, budget: Budget | Mapping[str, Any] | None = None) -> JobNode:
        """Add a tree of jobs: each runs when its children have ended. See `FlowProducer.add`."""
        return run_immediately(self._core.add(flow, budget=budget))

    def add_bulk(
        self, flows: Iterable[FlowJob | Mapping[str, Any]], *, budget: Budget | Mapping[str, Any] | None = None
    ) -> list[JobNode]:
        """Add several trees, one after the other; everything is checked before the first. See
        `FlowProducer.add_bulk`.
        """
        return run_immediately(self._core.add_bulk(flows, budget=budget))

    def add_dag(
        self, nodes: Iterable[DagNode | Mapping[str, Any]], *, budget: Budget | Mapping[str, Any] | None = None
    ) -> dict[str, Job[Any, Any]]:
        """Add a graph of jobs: each runs when all those in its ``deps`` have ended, whoever else waits for them.
        See `FlowProducer.add_dag`.
        """
        return twins_by_name(run_immediately(self._core.add_dag(nodes, budget=budget)))

    def get_flow(self, queue: str, job_id: str, *, depth: int = 10000, max_jobs: int = 100000) -> JobNode | None:
        """A job and everything that it waits for, with the states of now; None if there is no such job. See
        `FlowProducer.get_flow`.
        """
        return run_immediately(self._core.get_flow(queue, job_id, depth=depth, max_jobs=max_jobs))

    @property
    def options(self) -> QueueOptions:
        """See `FlowProducer`."""
        return self._core.options

    def __repr__(self) -> str:
        return repr(self._core)
