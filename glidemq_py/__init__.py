"""glidemq_py: a job queue for Python over Valkey, fast and hard to break.

``Queue`` adds jobs, ``Worker`` runs them, ``QueueEvents`` tells what happens, ``Job`` is what all of them hand you.
"""

from glidemq_py.errors import (
    AmbiguousResultError,
    BulkAddError,
    ClosedError,
    EmbeddedServerError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    JobDataError,
    JobFailedError,
    JobNotFoundError,
    JobRevokedError,
    JobStateError,
    JobTimeoutError,
    LibraryError,
    NoHandlerError,
    PayloadTooLargeError,
    ScriptError,
    SerializationError,
    ServerOutOfMemoryError,
    StaleAttemptError,
    UnknownOptionError,
    UnrecoverableError,
    UnsupportedOptionError,
    WaitTimeoutError,
    WorkerTargetError,
)
from glidemq_py.events import QueueEvent, QueueEvents
from glidemq_py.job import BlockingJob, Job, current_job, current_job_id
from glidemq_py.model.states import JobCounts, JobOutcome, JobState, WorkerInfo
from glidemq_py.options.address import Address
from glidemq_py.options.backoff import Backoff
from glidemq_py.options.connection import ConnectionOptions, IamCredentials
from glidemq_py.options.job import JobOptions
from glidemq_py.options.queue import JobSpec, Serializer
from glidemq_py.options.retention import KeepJobs
from glidemq_py.queue import Queue
from glidemq_py.worker import Task, Worker
from glidemq_py.worker.shutdown import GracefulShutdown, graceful_shutdown

__version__ = "0.1.0"

__all__ = [
    "Address",
    "AmbiguousResultError",
    "Backoff",
    "BlockingJob",
    "BulkAddError",
    "ClosedError",
    "ConnectionOptions",
    "EmbeddedServerError",
    "GlideMQConnectionError",
    "GlideMQError",
    "GlideMQValidationError",
    "GracefulShutdown",
    "IamCredentials",
    "Job",
    "JobCounts",
    "JobDataError",
    "JobFailedError",
    "JobNotFoundError",
    "JobOptions",
    "JobOutcome",
    "JobRevokedError",
    "JobSpec",
    "JobState",
    "JobStateError",
    "JobTimeoutError",
    "KeepJobs",
    "LibraryError",
    "NoHandlerError",
    "PayloadTooLargeError",
    "Queue",
    "QueueEvent",
    "QueueEvents",
    "ScriptError",
    "SerializationError",
    "Serializer",
    "ServerOutOfMemoryError",
    "StaleAttemptError",
    "Task",
    "UnknownOptionError",
    "UnrecoverableError",
    "UnsupportedOptionError",
    "WaitTimeoutError",
    "Worker",
    "WorkerInfo",
    "WorkerTargetError",
    "__version__",
    "current_job",
    "current_job_id",
    "graceful_shutdown",
]
