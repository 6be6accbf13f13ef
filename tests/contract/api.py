"""The public classes as contract tests use them: `Queue`, `FlowProducer`, `Producer`, `QueueEvents` and `Broadcast`.

With the kind "blocking" they are those of `glidemq_py.sync`, each method called in a thread. The adapter goes by the
names of the asynchronous classes: a coroutine function there is awaited here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import glidemq_py
from glidemq_py import sync
from glidemq_py.records import JobNode
from tests.inside import areas

__all__ = ["Broadcast", "FlowProducer", "Lease", "Producer", "Queue", "QueueEvents", "Selected", "own_id"]

_TWINS: dict[type[Any], type[Any]] = {
    sync.Queue: glidemq_py.Queue, sync.Job: glidemq_py.Job, sync.FlowProducer: glidemq_py.FlowProducer,
    sync.Producer: glidemq_py.Producer, sync.QueueEvents: glidemq_py.QueueEvents, sync.Lease: glidemq_py.Lease,
    sync.JobBatch: glidemq_py.JobBatch, sync.Broadcast: glidemq_py.Broadcast,
}  # fmt: skip
_TWINS.update(zip(areas(sync.Queue("q")).values(), areas(glidemq_py.Queue("q")).values(), strict=True))
_END = object()


def own_id(job: glidemq_py.Job) -> str:
    """Return the job's id without the prefix of its partition."""
    return job.id.rpartition("||")[2]


class Selected:
    """The selected kind of queue; set by the fixture `kind`."""

    blocking: ClassVar[bool] = False


class _Block:
    """An object of the blocking API whose block is entered and left in a thread."""

    def __init__(self, wrapped: Any):
        self._wrapped = wrapped

    async def __aenter__(self):
        return _shown(await asyncio.to_thread(self._wrapped.__enter__))

    async def __aexit__(self, *error: object):
        return await asyncio.to_thread(self._wrapped.__exit__, *error)


class Threaded(_Block):
    """An object of `glidemq_py.sync` with the interface of its asynchronous twin."""

    def __init__(self, wrapped: Any):
        super().__init__(wrapped)
        self._twin = next(twin for kind, twin in _TWINS.items() if isinstance(wrapped, kind))

    def __getattr__(self, name: str):
        value = getattr(self._wrapped, name)
        if not callable(value):
            return _shown(value)
        if inspect.iscoroutinefunction(inspect.unwrap(getattr(self._twin, name, len))):

            async def call(*args: Any, **kwargs: Any):
                given = [_given(each) for each in args], {key: _given(each) for key, each in kwargs.items()}
                return _shown(await asyncio.to_thread(value, *given[0], **given[1]))

            return call
        return lambda *args, **kwargs: _shown(value(*map(_given, args), **kwargs))

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for each in _stepped(iter(self._wrapped)):
            yield each

    def __eq__(self, other: object) -> bool:
        return bool(self._wrapped == _given(other))

    def __hash__(self) -> int:
        return hash(self._wrapped)

    def __repr__(self) -> str:
        return repr(self._wrapped)


async def _stepped(iterator: Iterator[Any]) -> AsyncIterator[Any]:
    while (each := await asyncio.to_thread(next, iterator, _END)) is not _END:
        yield _shown(each)


def _shown(value: Any):
    """Return a value of the blocking API as the asynchronous one has it."""
    if isinstance(value, glidemq_py.Job):  # of a flow's node
        value = value.blocking
    if isinstance(value, tuple(_TWINS)):
        return Threaded(value)
    if isinstance(value, JobNode):
        for node in value.walk():
            object.__setattr__(node, "job", _shown(node.job))
        return value
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if type(value) is dict:
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, Iterator):
        return _stepped(value)
    if isinstance(value, AbstractContextManager):
        return _Block(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        shown = {name: _shown(each) for name, each in held.items()}
        return dataclasses.replace(value, **shown) if any(shown[name] is not held[name] for name in held) else value
    return value


def _given(value: Any):
    """Return an argument as the blocking API takes it."""
    if isinstance(value, Threaded):
        return value._wrapped
    return type(value)(map(_given, value)) if type(value) in (list, tuple) else value


if TYPE_CHECKING:
    from glidemq_py import Broadcast, FlowProducer, Lease, Producer, Queue, QueueEvents
else:

    def _selected(name: str) -> type[Any]:
        def create(cls: type[Any], *args: Any, **options: Any):
            if Selected.blocking:
                return Threaded(getattr(sync, name)(*args, **options))
            return getattr(glidemq_py, name)(*args, **options)

        return type(name, (), {"__new__": create, "__class_getitem__": classmethod(lambda cls, _: cls)})

    Broadcast, FlowProducer, Producer, Queue, QueueEvents = map(
        _selected, ("Broadcast", "FlowProducer", "Producer", "Queue", "QueueEvents")
    )

    class Lease:
        """`from_token` of the selected kind."""

        @staticmethod
        def from_token(queue: Any, token: Any):
            return _shown((sync if Selected.blocking else glidemq_py).Lease.from_token(_given(queue), token))
