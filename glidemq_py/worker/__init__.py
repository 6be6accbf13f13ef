"""The worker: takes jobs, runs handlers, hands results in, and looks after jobs whose worker died."""

from glidemq_py.worker.tasks import Task
from glidemq_py.worker.worker import Worker

__all__ = ["Task", "Worker"]
