"""The blocking classes have the names, signatures and docstrings of the asynchronous classes."""

import inspect
import re
from typing import Any

import pytest

import glidemq_py
from glidemq_py import sync

PAIRS: list[tuple[type[Any], type[Any]]] = [
    (getattr(glidemq_py, name), getattr(sync, name)) for name in sync.__all__ if name[0].isupper()
]

MISSING: dict[type[Any], dict[str, str]] = {
    glidemq_py.Job: {
        "blocking": "its methods already block",
    },
    glidemq_py.Broadcast: {
        "queue": "use `glidemq_py.sync.Queue` with the same name",
    },
}
"""Names without a blocking counterpart, and why."""

OTHER_TYPES = {
    "Connection": "BlockingConnection",
    "AsyncIterator": "Iterator",
}
"""Names in annotations that differ, and their replacements."""


def members(cls: type[Any]) -> dict[str, Any]:
    """Public methods, properties and attributes."""
    found = {name: value for name, value in inspect.getmembers(cls) if not name.startswith("_")}
    for base in reversed(cls.__mro__):
        for name in vars(base).get("__annotations__", {}):
            if not name.startswith("_"):
                found.setdefault(name, None)
    return found


def signature(function: Any) -> list[tuple[str, Any, Any, str]]:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default, in_words(p.annotation)) for p in parameters if p.name != "self"]


def in_words(annotation: Any) -> str:
    text = str(annotation)
    for old, new in OTHER_TYPES.items():
        text = re.sub(rf"\b{old}\b", new, text)
    return text.replace('"', "'")


@pytest.mark.parametrize(("cls", "twin"), PAIRS, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_names_are_equal(cls: type[Any], twin: type[Any]):
    assert set(members(cls)) - set(MISSING.get(cls, {})) == set(members(twin))


@pytest.mark.parametrize(("cls", "twin"), PAIRS, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_signatures_are_equal(cls: type[Any], twin: type[Any]):
    if cls not in (glidemq_py.Job, glidemq_py.Lease, glidemq_py.JobBatch):  # they are created internally
        assert signature(cls.__init__) == signature(twin.__init__)
    theirs = members(twin)
    for name, member in members(cls).items():
        if name in MISSING.get(cls, {}):
            continue
        other = theirs[name]
        if inspect.isfunction(member):
            assert signature(member) == signature(other), name
            assert not inspect.iscoroutinefunction(other), name
            expected, found = (in_words(inspect.signature(each).return_annotation) for each in (member, other))
            assert expected == found, name
        elif isinstance(member, property):
            assert isinstance(other, property), name


@pytest.mark.parametrize(("cls", "twin"), PAIRS, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_protocols_are_equal(cls: type[Any], twin: type[Any]):
    for asynchronous, blocking in (("__aenter__", "__enter__"), ("__aexit__", "__exit__"), ("__aiter__", "__iter__")):
        assert hasattr(cls, asynchronous) == hasattr(twin, blocking)
    assert hasattr(cls, "__len__") == hasattr(twin, "__len__")


def test_every_public_member_has_a_docstring():
    for _, twin in PAIRS:
        assert inspect.getdoc(twin)
        for name, member in inspect.getmembers(twin):
            if not name.startswith("_") and not inspect.isclass(member):
                assert inspect.getdoc(member), f"{twin.__name__}.{name}"


def test_exported_names():
    assert set(sync.__all__) == {
        "BackupSchedule", "Broadcast", "FlowProducer", "Job", "JobBatch", "Lease", "Maintenance", "Producer", "Queue",
        "QueueEvents", "Scheduler", "ServerlessPool", "list_queues", "serverless_pool",
    }  # fmt: skip
