"""The error tree: base classes, messages and pickling."""

from __future__ import annotations

import inspect
import pickle

import pytest

from glidemq_py import errors
from glidemq_py.errors import (
    BulkAddError,
    DurabilityError,
    GlideMQError,
    GlideMQValidationError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    PayloadTooLargeError,
    ScriptError,
    StaleAttemptError,
    UnknownOptionError,
)
from glidemq_py.errors.base import SECRET

CLASSES = [getattr(errors, name) for name in errors.__all__]
PLAIN = [each for each in CLASSES if "__init__" not in vars(each) and not issubclass(each, GlideMQValidationError)]


def test_the_tree_is_exported_whole():
    defined = {
        name
        for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, BaseException) and each.__module__ == errors.__name__
    }
    assert defined == set(errors.__all__)
    assert all(issubclass(each, GlideMQError) for each in CLASSES)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("GlideMQValidationError", ValueError),
        ("UnknownOptionError", TypeError),
        ("UnsupportedOptionError", ValueError),
        ("SerializationError", ValueError),
        ("GlideMQConnectionError", ConnectionError),
        ("AmbiguousResultError", errors.GlideMQConnectionError),
        ("WaitTimeoutError", TimeoutError),
        ("JobTimeoutError", TimeoutError),
        ("PermissionDeniedError", errors.LibraryError),
        ("ScriptError", errors.LibraryError),
        ("JobDataError", errors.UnrecoverableError),
    ],
)
def test_errors_are_subclasses_of_their_category(name, base):
    assert issubclass(getattr(errors, name), base)


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_the_docstring_is_the_message(kind):
    first_line = kind.__doc__.strip().splitlines()[0].rstrip(".")
    assert str(kind()) == first_line
    assert str(kind("because")) == "because"


def test_a_validation_error_names_option_and_value():
    error = GlideMQValidationError("delay", -5, "must be an integer from 0 to 10")
    assert str(error) == "option 'delay' = -5: must be an integer from 0 to 10"
    assert (error.option, error.value) == ("delay", -5)


@pytest.mark.parametrize(
    "value",
    ["x" * 10_000, b"x" * 10_000, list(range(10_000)), 10**5000, {"k" * 500: "v" * 500}],
    ids=lambda value: type(value).__name__,
)
def test_a_shown_value_is_short(value):
    text = str(GlideMQValidationError("data", value, "no"))
    assert len(text) <= len("option 'data' = : no") + 80


def test_a_value_whose_repr_fails_is_shown_by_its_type():
    class Sulky:
        def __repr__(self):
            raise RuntimeError("no")

    assert "Sulky" in str(GlideMQValidationError("data", Sulky(), "no"))


def test_a_secret_is_not_shown():
    assert str(GlideMQValidationError("password", SECRET, "no")) == "option 'password' = ***: no"


def test_an_unknown_option_suggests():
    error = UnknownOptionError("delai", 5, suggestion="delay")
    assert str(error) == "option 'delai' = 5: unknown option; did you mean 'delay'?"
    assert error.suggestion == "delay"


def test_too_large_error_has_size_and_limit():
    error = PayloadTooLargeError("data", 11, 10)
    assert (error.option, error.size, error.limit) == ("data", 11, 10)
    assert str(error) == "option 'data': 11 bytes exceed the limit of 10 bytes"


def test_bulk_add_error_counts_failures():
    error = BulkAddError(["job", ValueError("bad"), "job", KeyError("k")])
    assert error.failed == 2
    assert str(error) == "2 of 4 jobs were not added; first error: ValueError: bad"
    unconfirmed = [DurabilityError("late", str(n)) for n in range(1_000)]
    error = BulkAddError([*unconfirmed, ValueError("bad"), object()])
    assert (error.failed, error.unconfirmed) == (1_001, 1_000)
    assert str(error).startswith(
        "1 of 1,002 jobs were not added, 1,000 jobs were added but not confirmed; first error: D"
    )
    assert str(BulkAddError(unconfirmed)).startswith("1,000 jobs were added but not confirmed; first error: Durability")
    assert str(BulkAddError(unconfirmed[:1])).startswith("1 job was added but not confirmed; first error: Durability")


def test_a_script_error_begins_with_its_place():
    assert (
        str(ScriptError("attempt to index nil", "lua/core/functions/add.lua:12"))
        == "lua/core/functions/add.lua:12: attempt to index nil"
    )
    assert ScriptError("x").location is None


def test_job_errors_name_the_job():
    assert str(JobNotFoundError("7")) == "job '7' not found"
    assert str(JobStateError("7", "completed", "promote")) == "cannot promote job '7': it is completed"
    state = JobStateError("7", "completed", "promote", queue="emails")
    assert str(state) == "cannot promote job '7': it is completed (queue 'emails')"
    assert state.queue == "emails"
    owned = errors.DeduplicatedError("7", "failed", "retry", "9", "emails")
    assert str(owned) == ("cannot retry job '7': job '9' has its deduplication id and has not ended (queue 'emails')")
    assert str(errors.JobBatchNotFoundError("b", "emails")) == "batch 'b' not found in queue 'emails'"
    assert str(JobFailedError("7", "boom", "KeyError")) == "job '7' failed: KeyError: boom"
    stalled = JobFailedError("7", "job stalled more than maxStalledCount")
    assert str(stalled) == "job '7' failed: stalled more often than max_stalled_count allows"
    assert stalled.failed_reason == "job stalled more than maxStalledCount"
    assert str(StaleAttemptError("7")).startswith("job '7': the attempt is no longer the current one")


SAMPLES = [
    GlideMQValidationError("delay", -5, "must be an integer from 0 to 10"),
    UnknownOptionError("delai", 5, suggestion="delay"),
    PayloadTooLargeError("data", 11, 10),
    errors.SerializationError("data", 1, "no"),
    BulkAddError([ValueError("bad")]),
    JobNotFoundError("7"),
    JobStateError("7", "completed", "promote"),
    JobStateError("7", "completed", "promote", queue="q"),
    errors.DeduplicatedError("7", "failed", "retry", "9", "q"),
    errors.JobBatchNotFoundError("b", "q"),
    JobFailedError("7", "boom", "KeyError"),
    StaleAttemptError("7"),
    errors.StagedWriteError("w", "q", "lost"),
    errors.UnsupportedFeatureError("q", "partitions", "0.3"),
    errors.ColumnError("priority", 5000, "must be an integer from 0 to 2,047", 3),
    errors.EventLoopError("queue 'q'", "it belongs to another event loop", "use it there"),
    errors.EventsLostError("q", 5),
    errors.ResultsLostError("q", 5),
    errors.MissingAwaitError("log"),
    errors.MiddlewareError("Hush", "SerializationError"),
    errors.ContextManagerError("<Queue 'q'>", "async with", "with"),
    ScriptError("x", "lua/core/functions/add.lua:12"),
    GlideMQValidationError("password", SECRET, "no"),
    *[kind() for kind in PLAIN],
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy).keys() == vars(error).keys()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"foo", "id"}, "{'foo', 'id'}"),
        (frozenset({2, 1}), "frozenset({1, 2})"),
        ({"a": {"y", "x"}}, "{'a': {'x', 'y'}}"),
        (set(), "set()"),
    ],
)
def test_sets_are_shown_as_sets_in_order(value: object, shown: str) -> None:
    assert str(GlideMQValidationError("o", value, "p")) == f"option 'o' = {shown}: p"


def test_sets_of_several_types_are_shown() -> None:
    assert str(GlideMQValidationError("o", {1, "a"}, "p")) in ("option 'o' = {1, 'a'}: p", "option 'o' = {'a', 1}: p")
