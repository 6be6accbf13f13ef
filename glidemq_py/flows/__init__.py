"""Flows: jobs that wait for other jobs, added together: trees across queues, graphs with nodes of several parents."""

from glidemq_py.flows.graph import DagNode, topo_sort, validate_dag
from glidemq_py.flows.node import JobNode
from glidemq_py.flows.producer import FlowProducer
from glidemq_py.flows.shapes import chain, chord, dag, group
from glidemq_py.flows.tree import FlowJob

__all__ = [
    "DagNode", "FlowJob", "FlowProducer", "JobNode", "chain", "chord", "dag", "group", "topo_sort", "validate_dag",
]  # fmt: skip
