"""Public classes list functions of their features as methods; users and tools see ordinary methods."""

import inspect
import pickle
from typing import Any
from unittest import mock

import pytest

import glidemq_py
from glidemq_py import sync
from glidemq_py.options import JobOptionsDict

CLASSES: list[type[Any]] = [glidemq_py.Queue, glidemq_py.Job]


def listed(cls: type[Any]) -> dict[str, Any]:
    """Public methods of the class that are functions of another module."""
    members = ((name, inspect.unwrap(value)) for name, value in inspect.getmembers(cls, inspect.isfunction))
    return {name: each for name, each in members if "." not in each.__qualname__}


@pytest.mark.parametrize("cls", CLASSES)
def test_a_listed_method_has_the_name_of_its_function(cls: type[Any]):
    # Errors for a missing `await`, tracebacks and the generated blocking classes use the name of the function.
    found = listed(cls)
    assert found
    assert {name: each.__name__ for name, each in found.items()} == {name: name for name in found}


@pytest.mark.parametrize("cls", CLASSES)
def test_a_listed_method_has_self_and_a_docstring(cls: type[Any]):
    for name, function in listed(cls).items():
        assert next(iter(inspect.signature(function).parameters)) == "self", name
        assert inspect.getdoc(function), name


async def test_a_mock_of_a_queue_checks_the_arguments_of_listed_methods():
    queue = mock.create_autospec(glidemq_py.Queue, instance=True)
    await queue.drain(delayed=True)
    with pytest.raises(TypeError, match="delay"):
        queue.drain(delay=True)


def test_a_listed_method_of_a_queue_can_be_pickled():
    assert pickle.loads(pickle.dumps(glidemq_py.Queue.pause)) is glidemq_py.Queue.pause


@pytest.mark.parametrize("cls", CLASSES)
def test_features_are_not_base_classes(cls: type[Any]):
    assert {base.__name__ for base in cls.__bases__} <= {"AsyncOnly", "ConnectedQueue", "Generic", "JobCore"}


@pytest.mark.parametrize(
    "method", [glidemq_py.Queue.add, glidemq_py.Queue.add_and_wait, glidemq_py.Producer.add, sync.Queue.add]
)
def test_help_lists_the_options_of_a_job(method: Any):
    parameters = inspect.signature(method).parameters
    for name in JobOptionsDict.__annotations__:
        assert parameters[name].default is None
        assert f"\n    {name}: " in (inspect.getdoc(method) or "")


def test_help_lists_no_option_that_a_method_rejects():
    assert "deduplication" not in inspect.signature(glidemq_py.JobBatch.add).parameters
    assert "parent" not in inspect.signature(glidemq_py.Broadcast.publish).parameters
