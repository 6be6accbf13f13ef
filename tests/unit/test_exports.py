"""The names that users import. A name is taken out of this list only with an entry in the changelog."""

import inspect
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import glidemq_py
from glidemq_py import dashboard, errors, gateway, library, proxy, records, spark, sync, telemetry, testing
from tests.inside import AREAS, areas

EXPORTED = {
    glidemq_py: """
        Address AmbiguousResultError Backoff BackupSchedule BatchOptions BlockingJob BlockingTask Broadcast
        BroadcastWorker Budget BulkAddError ClosedError ConnectionOptions ContextHeaders DagNode DeadLetterOptions
        Deduplication
        DelayedError Dependency DuplicateJobError Durability FailureLogOptions FailurePolicy FailureReason
        FairKeyDefaults Fallback FlowBudget FlowJob FlowProducer GlideMQConnectionError GlideMQError
        GlideMQValidationError GroupLimits IamCredentials JSON_SERIALIZER Job JobBatch JobFailedError
        JobNotFoundError JobOptions JobOutcome JobRef JobSpec JobState JobStateError JobTimeoutError KeepJobs
        Lease LeaseOutcome MSGPACK_SERIALIZER Maintenance Message Middleware NameLimits NewJob Ordering Producer
        Queue QueueEvent QueueEvents RateLimit RateLimitError SandboxOptions Schedule Scheduler
        SerializationError Serializer ServerlessPool StalledPolicy Task TokenBucket TokenLimiter
        UnrecoverableError VectorField WaitTimeoutError Worker __version__ chain chord compile_subject_matcher
        current_job dag get_usage_summary graceful_shutdown group list_queues match_subject serverless_pool
        topo_sort validate_dag
    """,
    records: """
        AttemptHistory BackupInfo BatchJob BatchRef BatchStatus CheckReport Delivery DurationStats FailedAttempt
        Failure FailureStats FairKeyInfo Finding FindingKind FlowUsage GlobalLimits GracefulShutdown GroupInfo
        JobCounts JobLogLine JobLogs JobNode JobScheduler JobUsage LeaseReport Metrics MetricsByName
        MetricsByNameSetting MetricsPoint QueuePartitions QueueUsage RestoreReport RunningJob Signal Step StepState
        StreamChunk Subscription SuspendInfo TaskCall TimelineEntry TimelineSetting UsageSummary VectorMatch
        WorkerActivity WorkerInfo
    """,
    errors: """
        AmbiguousResultError BackupError BatchError BudgetExceededError BulkAddError ChildFailedError
        ClosedError ColumnError ConnectionRejectedError DataLostError DelayedError DuplicateJobError
        DurabilityError EmbeddedServerError EventLoopError FairKeyFullError GlideMQConnectionError GlideMQError
        GlideMQValidationError GroupRateLimitError HandlerError JobBatchNotFoundError JobDataError
        JobFailedError JobInterruptedError JobNotFoundError JobNotLoadedError JobRevokedError JobSignal
        JobStateError JobTimeoutError LeaseLostError LibraryError MissingOptionError PartitionedQueueError
        PayloadTooLargeError PermissionDeniedError QueueNotEmptyError QueuePartitionsError RateLimitError
        SandboxCrashError ScriptError SearchIndexError SerializationError ServerNotReadyError
        ServerOutOfMemoryError SignalTimeout StagedWriteError StaleAttemptError StepChangedError StepError
        StepLimitError StepsRefusedError SuspendError UnknownOptionError
        UnrecoverableError UnsupportedFeatureError WaitTimeoutError WaitingChildrenError WorkerCommandError
        WorkerNotFoundError WorkerTimeoutError
    """,
}


@pytest.mark.parametrize("module", EXPORTED, ids=lambda m: m.__name__)
def test_exported_names_are_these(module: ModuleType):
    assert sorted(module.__all__) == EXPORTED[module].split()
    public = {
        name for name in dir(module) if not name.startswith("_") and not isinstance(getattr(module, name), ModuleType)
    }
    assert module is errors or public == set(module.__all__) - {"__version__"}


# -- every public object has a docstring -----------------------------------------------------------


def _public() -> Iterator[tuple[str, object]]:
    for module in EXPORTED:
        for name in module.__all__:
            thing = getattr(module, name)
            if name != "__version__":
                yield name, thing
            for member, value in inspect.getmembers(thing) if inspect.isclass(thing) else ():
                if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                    yield f"{name}.{member}", value


def test_public_objects_have_docstrings():
    for name, thing in _public():
        if isinstance(thing, staticmethod | classmethod):
            thing = thing.__func__
        doc = vars(thing).get("__doc__") if inspect.isclass(thing) else getattr(thing, "__doc__", None)
        assert doc, name
        assert not doc.startswith((f"{name}(", "dict(")), f"{name} has only the docstring that dataclasses make"
        assert "." in name or doc.strip()[0].isupper() or doc.strip()[0] in "`\"'(*", name


def test_errors_are_one_tree():
    assert all(issubclass(getattr(errors, name), errors.GlideMQError) for name in errors.__all__)


def test_package_has_a_docstring():
    assert glidemq_py.__doc__


# -- `typing.get_type_hints` resolves the annotations of all public functions and methods, as ------


def functions_of(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, value in inspect.getmembers_static(kind):
        if isinstance(value, property) and name in AREAS:
            continue  # its class is imported at first use
        if not name.startswith("_") or name == "__init__":
            found = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            yield f"{kind.__name__}.{name}", found


def public_functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in module.__all__:
        value = getattr(module, name)
        yield from functions_of(value) if inspect.isclass(value) else [(name, value)]
        for area in areas(value("q")).values() if name == "Queue" else ():
            yield from functions_of(area)


MODULES = [glidemq_py, records, sync, testing, proxy, gateway, dashboard, spark, telemetry, library]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_hints_of_public_functions_resolve(module: ModuleType) -> None:
    failures: list[str] = []
    seen = 0
    for name, value in public_functions(module):
        function = inspect.unwrap(value) if callable(value) else None
        if inspect.isfunction(function):
            seen += 1
            try:
                typing.get_type_hints(function)
            except NameError as error:
                failures.append(f"{name}: {error}")
    assert failures == []
    assert seen > 0


@pytest.mark.parametrize("module", [*MODULES, errors], ids=lambda m: m.__name__)
def test_hints_of_public_classes_resolve(module: ModuleType) -> None:
    """Also of errors, which name the module `glidemq_py.errors` as their own but are defined in another."""
    failures: list[str] = []
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            try:
                typing.get_type_hints(value)
            except NameError as error:
                failures.append(f"{name}: {error}")
    assert failures == []
