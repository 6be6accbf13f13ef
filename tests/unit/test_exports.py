"""The names that users import. A name is taken out of this list only with an entry in the changelog."""

import inspect
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import glidemq_py
from glidemq_py import dashboard, errors, gateway, library, proxy, spark, sync, telemetry, testing
from tests.inside import AREAS, areas

EXPORTED = {
    # types of the objects that users get
    "Queue", "Worker", "QueueEvents", "QueueEvent", "Job", "BlockingJob", "JobSpec", "current_job",
    "Schedule", "JobScheduler", "Scheduler",
    "Producer", "ServerlessPool", "serverless_pool", "Task", "graceful_shutdown", "GracefulShutdown",
    "FlowProducer", "FlowJob", "DagNode", "JobNode", "chain", "group", "chord", "dag", "validate_dag", "topo_sort",
    "Broadcast", "BroadcastWorker", "Message", "Subscription", "Delivery", "match_subject", "compile_subject_matcher",
    "set_tracer", "is_tracing_enabled",
    # options and values
    "ContextHeaders", "Middleware", "NewJob",
    "Address", "Backoff", "Budget", "ConnectionOptions", "IamCredentials", "JobOptions", "KeepJobs", "Serializer",
    "JSON_SERIALIZER", "MSGPACK_SERIALIZER",
    "JobCounts", "JobLogLine", "JobLogs", "JobOutcome", "JobState", "Metrics", "MetricsPoint", "WorkerInfo",
    "FlowBudget", "FlowUsage", "JobUsage", "QueueUsage", "UsageSummary", "get_usage_summary", "list_queues",
    "GlobalLimits", "GroupInfo", "GroupLimits", "NameLimits", "CheckReport", "Finding", "FindingKind",
    "FailureLogOptions", "SandboxOptions", "SandboxCrashError",
    "BatchOptions", "DeadLetterOptions", "Deduplication", "Fallback", "Ordering", "RateLimit", "TokenBucket",
    "TokenLimiter", "JobRef", "Dependency",
    "RunningJob", "WorkerActivity", "WorkerCommandError", "WorkerNotFoundError", "WorkerTimeoutError",
    "BatchJob", "BatchRef", "BatchStatus", "JobBatch",
    "JobBatchNotFoundError", "Durability", "DurabilityError",
    "Maintenance", "BackupError", "BackupInfo", "BackupSchedule", "QueueNotEmptyError", "RestoreReport",
    # errors
    "BatchError", "DataLostError", "HandlerError",
    "AmbiguousResultError", "BudgetExceededError", "BulkAddError", "ClosedError", "ColumnError",
    "EmbeddedServerError", "EventLoopError",
    "ConnectionRejectedError",
    "GlideMQConnectionError", "GlideMQError", "GlideMQValidationError", "JobDataError", "JobFailedError",
    "JobNotFoundError",
    "JobNotLoadedError",
    "JobRevokedError",
    "JobStateError", "JobTimeoutError", "Lease", "LeaseLostError",
    "LeaseOutcome", "LeaseReport", "LibraryError", "PartitionedQueueError", "PayloadTooLargeError",
    "QueuePartitionsError",
    "PermissionDeniedError",
    "ScriptError", "SerializationError", "ServerNotReadyError", "ServerOutOfMemoryError",
    "StagedWriteError", "StaleAttemptError",
    "MissingOptionError",
    "UnknownOptionError", "UnrecoverableError",
    "UnsupportedFeatureError", "WaitTimeoutError",
    "FairKeyDefaults", "FairKeyFullError", "FairKeyInfo", "ChildFailedError",
    "DuplicateJobError",
    "QueuePartitions",
    # signals
    "JobSignal", "JobInterruptedError",
    "RateLimitError", "DelayedError", "GroupRateLimitError", "SuspendError", "Signal", "SuspendInfo",
    "TimelineSetting", "TimelineEntry", "MetricsByName", "MetricsByNameSetting", "DurationStats",
    "AttemptHistory", "FailedAttempt", "Failure", "FailurePolicy", "FailureReason", "FailureStats",
    "StalledPolicy", "StreamChunk", "VectorField", "VectorMatch", "SearchIndexError",
    "WaitingChildrenError",
    # the package
    "__version__",
}  # fmt: skip


def test_exported_names_are_these():
    assert set(glidemq_py.__all__) == EXPORTED
    assert len(glidemq_py.__all__) == len(EXPORTED)


def test_every_exported_name_exists():
    assert [name for name in EXPORTED if not hasattr(glidemq_py, name)] == []


def test_nothing_else_is_public():
    public = {
        name
        for name in dir(glidemq_py)
        if not name.startswith("_") and not isinstance(getattr(glidemq_py, name), ModuleType)
    }
    assert public == EXPORTED - {"__version__"}


def test_every_error_of_the_package_is_exported():
    from glidemq_py import errors

    assert set(errors.__all__) <= EXPORTED


def test_public_classes_and_their_methods_have_docstrings():
    for name in EXPORTED - {"__version__"}:
        value = getattr(glidemq_py, name)
        assert inspect.getdoc(value), name
        for member, function in inspect.getmembers(value, inspect.isfunction):
            if not member.startswith("_"):
                assert inspect.getdoc(function), f"{name}.{member}"


# -- every public object has a docstring -----------------------------------------------------------


def _public() -> Iterator[tuple[str, object]]:
    for name in glidemq_py.__all__:
        if name.startswith("__"):
            continue
        thing = getattr(glidemq_py, name)
        yield name, thing
        if not inspect.isclass(thing):
            continue
        for member, value in vars(thing).items():
            if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                yield f"{name}.{member}", value


@pytest.mark.parametrize(("name", "thing"), [pytest.param(*pair, id=pair[0]) for pair in _public()])
def test_it_has_a_docstring(name: str, thing: object):
    if isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    doc = vars(thing).get("__doc__") if inspect.isclass(thing) else getattr(thing, "__doc__", None)
    assert doc, name
    assert not doc.startswith((f"{name}(", "dict(")), f"{name} has only the docstring that dataclasses make"
    assert doc.strip()[0].isupper() or doc.strip()[0] in "`\"'(*", name


def test_every_exported_name_exists_once():
    assert sorted(set(glidemq_py.__all__)) == sorted(glidemq_py.__all__)
    for name in glidemq_py.__all__:
        assert hasattr(glidemq_py, name)


def test_errors_are_one_tree():
    errors = [thing for _, thing in _public() if inspect.isclass(thing) and issubclass(thing, BaseException)]
    assert errors
    assert all(issubclass(error, glidemq_py.GlideMQError) for error in errors)


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


MODULES = [glidemq_py, sync, testing, proxy, gateway, dashboard, spark, telemetry, library]


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
