"""The error tree: base classes, messages and pickling."""

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


def test_bulk_add_error_counts_failures():
    error = BulkAddError(["job", ValueError("bad"), "job", KeyError("k")])
    assert (error.failed, error.unconfirmed) == (2, 0)
    error = BulkAddError([*(DurabilityError("late", str(n)) for n in range(1_000)), ValueError("bad"), object()])
    assert (error.failed, error.unconfirmed) == (1_001, 1_000)


LATE = DurabilityError("late", "1")


@pytest.mark.parametrize(
    ("error", "text", "attributes"),
    [
        (
            UnknownOptionError("delai", 5, suggestion="delay"),
            "option 'delai' = 5: unknown option; did you mean 'delay'?",
            {"suggestion": "delay"},
        ),
        (
            PayloadTooLargeError("data", 11, 10),
            "option 'data': 11 bytes exceed the limit of 10 bytes",
            {"option": "data", "size": 11, "limit": 10},
        ),
        (
            BulkAddError(["job", ValueError("bad"), "job", KeyError("k")]),
            "2 of 4 jobs were not added; first error: ValueError: bad",
            {"failed": 2},
        ),
        (
            BulkAddError([LATE] * 1_000 + [ValueError("bad"), object()]),
            "1 of 1,002 jobs were not added, 1,000 jobs were added but not confirmed; "
            f"first error: DurabilityError: {LATE}",
            {},
        ),
        (
            BulkAddError([LATE]),
            f"1 job was added but not confirmed; first error: DurabilityError: {LATE}",
            {},
        ),
        (
            ScriptError("attempt to index nil", "lua/core/functions/add.lua:12"),
            "lua/core/functions/add.lua:12: attempt to index nil",
            {},
        ),
        (ScriptError("x"), "x", {"location": None}),
        (JobNotFoundError("7"), "job '7' not found", {}),
        (JobStateError("7", "completed", "promote"), "cannot promote job '7': it is completed", {}),
        (
            JobStateError("7", "completed", "promote", queue="emails"),
            "cannot promote job '7': it is completed (queue 'emails')",
            {"queue": "emails"},
        ),
        (errors.JobBatchNotFoundError("b", "emails"), "batch 'b' not found in queue 'emails'", {}),
        (
            errors.DataLostError("q", "events", 5),
            "queue 'q': 5 events were deleted before they were read; keep them longer; "
            "set failOnDataLoss=false to continue without them",
            {"count": 5},
        ),
        (JobFailedError("7", "boom", "KeyError"), "job '7' failed: KeyError: boom", {}),
        (
            JobFailedError("7", "job stalled more than maxStalledCount"),
            "job '7' failed: stalled more often than max_stalled_count allows",
            {"failed_reason": "job stalled more than maxStalledCount"},
        ),
        (
            StaleAttemptError("7"),
            "job '7': the attempt is no longer the current one (another worker has locked the job); "
            "nothing was changed",
            {},
        ),
    ],
    ids=lambda error: type(error).__name__ if isinstance(error, Exception) else "",
)
def test_message_and_attributes(error, text, attributes):
    assert str(error) == text
    assert attributes.items() <= {name: getattr(error, name) for name in attributes}.items()


SAMPLES = [
    GlideMQValidationError("delay", -5, "must be an integer from 0 to 10"),
    UnknownOptionError("delai", 5, suggestion="delay"),
    PayloadTooLargeError("data", 11, 10),
    errors.SerializationError("data", 1, "no"),
    BulkAddError([ValueError("bad")]),
    JobNotFoundError("7"),
    JobStateError("7", "completed", "promote"),
    JobStateError("7", "completed", "promote", queue="q"),
    errors.JobBatchNotFoundError("b", "q"),
    JobFailedError("7", "boom", "KeyError"),
    StaleAttemptError("7"),
    errors.StagedWriteError("w", "q", "lost"),
    errors.UnsupportedFeatureError("q", "partitions", "0.3"),
    errors.ColumnError("priority", 5000, "must be an integer from 0 to 2,047", 3),
    errors.EventLoopError("queue 'q'", "it belongs to another event loop", "use it there"),
    errors.DataLostError("q", "results", None),
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
def test_sets_are_shown_as_sets_in_order(value: object, shown: str):
    assert str(GlideMQValidationError("o", value, "p")) == f"option 'o' = {shown}: p"


def test_sets_of_several_types_are_shown():
    assert str(GlideMQValidationError("o", {1, "a"}, "p")) in ("option 'o' = {1, 'a'}: p", "option 'o' = {'a', 1}: p")
