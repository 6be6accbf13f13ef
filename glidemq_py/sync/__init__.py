"""Blocking API: queues, producers and events for code without an event loop, over valkey-glide-sync.

For scripts and synchronous web frameworks. Names, arguments and errors are those of the asynchronous classes. Threads
may share an object, and a forked process may continue to use it. Each method runs the coroutine of the asynchronous
class over a blocking transport.
"""

from glidemq_py._job import BlockingJob as Job
from glidemq_py.sync.broadcast import Broadcast
from glidemq_py.sync.events import QueueEvents
from glidemq_py.sync.flows import FlowProducer
from glidemq_py.sync.job_queue import Queue
from glidemq_py.sync.pool import ServerlessPool, serverless_pool
from glidemq_py.sync.producer import Producer

__all__ = ["Broadcast", "FlowProducer", "Job", "Producer", "Queue", "QueueEvents", "ServerlessPool", "serverless_pool"]
