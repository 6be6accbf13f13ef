"""All exceptions of this package. It imports no other part of glidemq_py.

All exceptions derive from `GlideMQError`, and also from the standard exception of the same meaning (`ValueError`,
`ConnectionError`, `TimeoutError`) if there is one. The first line of a class's docstring is its default message.
"""

from typing import Final

from glidemq_py.errors.base import GlideMQError
from glidemq_py.errors.invalid import (
    ColumnError,
    ContextManagerError,
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
    MissingAwaitError,
    StaleAttemptError,
    UnrecoverableError,
    WaitTimeoutError,
)
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
    AuthenticationError,
    ClosedError,
    ConnectionRejectedError,
    EmbeddedServerError,
    EventLoopError,
    GlideMQConnectionError,
    LibraryError,
    ScriptError,
    SearchIndexError,
    SearchUnavailableError,
    ServerConfigurationError,
    ServerModeError,
    ServerNotReadyError,
    ServerOutOfMemoryError,
    SlotMigratingError,
    TlsError,
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
    SandboxStartError,
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
    "ContextManagerError",
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
    "MissingAwaitError",
    "NoHandlerError",
    "PayloadTooLargeError",
    "RateLimitError",
    "SandboxCrashError",
    "SandboxStartError",
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
    # Tracebacks and pickles contain the public name of the class.
    globals()[_name].__module__ = _HOME
