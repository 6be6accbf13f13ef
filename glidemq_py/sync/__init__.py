"""Queues, producers and events for code that blocks: the same names, arguments and errors, over valkey-glide-sync.

For scripts, and web frameworks that know no event loop. Any number of threads may share one of these objects, and a
process that was forked may go on using it. Nothing is written twice: a method here runs the coroutine of the
asynchronous class over a transport that blocks.
"""

from glidemq_py._job import BlockingJob as Job
from glidemq_py.sync.broadcast import Broadcast
from glidemq_py.sync.events import QueueEvents
from glidemq_py.sync.flows import FlowProducer
from glidemq_py.sync.pool import ServerlessPool, serverless_pool
from glidemq_py.sync.producer import Producer
from glidemq_py.sync.queue import Queue

__all__ = ["Broadcast", "FlowProducer", "Job", "Producer", "Queue", "QueueEvents", "ServerlessPool", "serverless_pool"]
