"""Every exception this package raises. Nothing else lives here, and this package imports nothing of ours.

A class's docstring is its message when it is raised without one. All of them derive from `GlideMQError`;
where the standard library has a class of the same meaning (`ValueError`, `ConnectionError`, `TimeoutError`)
ours derives from that too, so that code which knows nothing of this package can still catch it.
"""

from typing import Final

from glidemq_py.errors.base import GlideMQError
from glidemq_py.errors.connecting import (
    AuthenticationError,
    ConnectionRejectedError,
    ServerConfigurationError,
    ServerModeError,
    TlsError,
)
from glidemq_py.errors.given import (
    ColumnError,
    CycleError,
    GlideMQValidationError,
    PayloadTooLargeError,
    SerializationError,
    UnknownOptionError,
    UnsupportedOptionError,
)
from glidemq_py.errors.jobs import (
    BudgetExceededError,
    ChildFailedError,
    JobDataError,
    JobFailedError,
    JobNotFoundError,
    JobNotLoadedError,
    JobRevokedError,
    JobStateError,
    JobTimeoutError,
    StaleAttemptError,
    UnrecoverableError,
    WaitTimeoutError,
)
from glidemq_py.errors.loops import EventLoopError
from glidemq_py.errors.queues import (
    BulkAddError,
    DuplicateJobError,
    EventsLostError,
    JobCostError,
    SchedulerBusyError,
    StagedWriteError,
)
from glidemq_py.errors.server import (
    AmbiguousResultError,
    ClosedError,
    EmbeddedServerError,
    GlideMQConnectionError,
    LibraryError,
    ScriptError,
    SearchIndexError,
    SearchUnavailableError,
    ServerNotReadyError,
    ServerOutOfMemoryError,
    SlotMigratingError,
)
from glidemq_py.errors.signals import (
    DelayedError,
    GroupRateLimitError,
    JobSignal,
    RateLimitError,
    SuspendError,
    WaitingChildrenError,
)
from glidemq_py.errors.workers import (
    BatchError,
    BatchMismatchError,
    NoHandlerError,
    SandboxCrashError,
    WorkerTargetError,
)

__all__ = [
    "AmbiguousResultError",
    "AuthenticationError",
    "BatchError",
    "BatchMismatchError",
    "BudgetExceededError",
    "BulkAddError",
    "ChildFailedError",
    "ClosedError",
    "ColumnError",
    "ConnectionRejectedError",
    "CycleError",
    "DelayedError",
    "DuplicateJobError",
    "EmbeddedServerError",
    "EventLoopError",
    "EventsLostError",
    "GlideMQConnectionError",
    "GlideMQError",
    "GlideMQValidationError",
    "GroupRateLimitError",
    "JobCostError",
    "JobDataError",
    "JobFailedError",
    "JobNotFoundError",
    "JobNotLoadedError",
    "JobRevokedError",
    "JobSignal",
    "JobStateError",
    "JobTimeoutError",
    "LibraryError",
    "NoHandlerError",
    "PayloadTooLargeError",
    "RateLimitError",
    "SandboxCrashError",
    "SchedulerBusyError",
    "ScriptError",
    "SearchIndexError",
    "SearchUnavailableError",
    "SerializationError",
    "ServerConfigurationError",
    "ServerModeError",
    "ServerNotReadyError",
    "ServerOutOfMemoryError",
    "SlotMigratingError",
    "StagedWriteError",
    "StaleAttemptError",
    "SuspendError",
    "TlsError",
    "UnknownOptionError",
    "UnrecoverableError",
    "UnsupportedOptionError",
    "WaitTimeoutError",
    "WaitingChildrenError",
    "WorkerTargetError",
]

_HOME: Final = __name__
for _name in __all__:
    # Tracebacks and pickles name a class as users do.
    globals()[_name].__module__ = _HOME
