"""Blocking API: queues, producers and events for code without an event loop.

For scripts and synchronous web frameworks. Names, arguments and errors are those of the asynchronous classes. Threads
may share an object, and a forked process may continue to use it. Each method runs the coroutine of the asynchronous
class, and what it waits for runs in the portal (docs/learn/sync.md); so do background services.
"""

from typing import TYPE_CHECKING

from glidemq_py._core import import_on_first_use as _import_on_first_use

if TYPE_CHECKING:
    from glidemq_py.sync.names_twin import *  # noqa: F403
    from glidemq_py.sync.names_twin import __all__ as __all__
else:
    __getattr__, __dir__, __all__ = _import_on_first_use(
        __name__,
        {
            "glidemq_py._job.job_twin": "BlockingJob as Job",
            "glidemq_py.sync.job_batch_twin": "JobBatch",
            "glidemq_py.sync.broadcast_twin": "Broadcast",
            "glidemq_py.sync.queue_events_twin": "QueueEvents",
            "glidemq_py.sync.flow_producer_twin": "FlowProducer",
            "glidemq_py.sync.queue_twin": "Queue",
            "glidemq_py.sync.lease_twin": "Lease",
            "glidemq_py.sync.pool": "ServerlessPool, serverless_pool",
            "glidemq_py.sync.backup_schedule_twin": "BackupSchedule",
            "glidemq_py.sync.maintenance_twin": "Maintenance",
            "glidemq_py.sync.scheduler_twin": "Scheduler",
            "glidemq_py.sync.producer_twin": "Producer",
            "glidemq_py.sync.queue_list": "list_queues",
        },
    )
