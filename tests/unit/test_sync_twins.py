"""The blocking twins have the names and signatures of what they stand for.

Where a public method of `Queue`, `Producer` or `Job` was changed, ``python -m tests.twins`` writes its twin anew.
"""

import inspect
import re
from typing import Any

import pytest

import glidemq_py
from glidemq_py import sync

PAIRS: list[tuple[type[Any], type[Any]]] = [
    (glidemq_py.Queue, sync.Queue),
    (glidemq_py.Producer, sync.Producer),
    (glidemq_py.FlowProducer, sync.FlowProducer),
    (glidemq_py.Broadcast, sync.Broadcast),
    (glidemq_py.Job, sync.Job),
    (glidemq_py.QueueEvents, sync.QueueEvents),
    (glidemq_py.ServerlessPool, sync.ServerlessPool),
]

AFTER_A_CHANGE = "python -m tests.twins writes the twins anew"

MISSING: dict[type[Any], dict[str, str]] = {
    glidemq_py.Job: {
        "blocking": "it blocks already",
        "from_record": "jobs of the twins are made from those of queues",
    },
    glidemq_py.Broadcast: {
        "queue": "it is `glidemq_py.sync.Queue` of the same name",
    },
}
"""What a twin has not, and why."""

OTHER_TYPES = {
    "Connection": "BlockingConnection",
    "AsyncIterator": "Iterator",
}
"""Words of annotations that differ, and what stands in their place."""


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
def test_the_same_names(cls: type[Any], twin: type[Any]) -> None:
    attributes = {"name", "options"} & set(members(twin))  # set by __init__ there, properties here
    assert set(members(cls)) - set(MISSING.get(cls, {})) | attributes == set(members(twin)), AFTER_A_CHANGE


@pytest.mark.parametrize(("cls", "twin"), PAIRS, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_the_same_signatures(cls: type[Any], twin: type[Any]) -> None:
    if cls is not glidemq_py.Job:  # nobody makes those
        assert signature(cls.__init__) == signature(twin.__init__)
    theirs = members(twin)
    for name, member in members(cls).items():
        if name in MISSING.get(cls, {}) or (cls is glidemq_py.QueueEvents and name in ("on", "off")):
            continue
        other = theirs[name]
        if inspect.isfunction(member):
            assert signature(member) == signature(other), f"{name}: {AFTER_A_CHANGE}"
            assert not inspect.iscoroutinefunction(other), name
            answer, found = (in_words(inspect.signature(each).return_annotation) for each in (member, other))
            assert answer == found, name
        elif isinstance(member, property):
            assert isinstance(other, property), name


@pytest.mark.parametrize(("cls", "twin"), PAIRS, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_the_same_protocols(cls: type[Any], twin: type[Any]) -> None:
    for asynchronous, blocking in (("__aenter__", "__enter__"), ("__aexit__", "__exit__"), ("__aiter__", "__iter__")):
        assert hasattr(cls, asynchronous) == hasattr(twin, blocking)
    assert hasattr(cls, "__len__") == hasattr(twin, "__len__")


def test_everything_says_what_it_is() -> None:
    for _, twin in PAIRS:
        assert inspect.getdoc(twin)
        for name, member in inspect.getmembers(twin):
            if not name.startswith("_") and not inspect.isclass(member):
                assert inspect.getdoc(member), f"{twin.__name__}.{name}"


def test_exported_names() -> None:
    assert set(sync.__all__) == {
        "Broadcast", "FlowProducer", "Job", "Producer", "Queue", "QueueEvents", "ServerlessPool", "serverless_pool",
    }  # fmt: skip
