"""Sends the methods of `Queue` to its partitions, if it has any.

A queue knows whether it has partitions when it has read the layout, at its first call. So the plain method runs first,
checks its arguments, and asks for the connection. If the queue turns out to be partitioned, the same method of
`PartitionedQueue` runs instead. Unknown keyword arguments raise `UnknownOptionError`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar

from glidemq_py._api.partitioned import PartitionedQueue
from glidemq_py._api.partitioned_writes import OF_ALL, WRITES, write
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._core.misuse import check_keywords, keywords_of
from glidemq_py.errors import PartitionedQueueError

QueueT = TypeVar("QueueT", bound="type[Any]")

_OWN: Final = frozenset((
    "add", "add_and_wait", "add_bulk", "backup", "close", "connect", "get_backups", "get_partitions", "restore",
    "verify_backup",
))  # fmt: skip
"""Methods of `Queue` that know of partitions by themselves."""


def over_partitions(queue_type: QueueT) -> QueueT:
    """Let the public methods of `Queue` be those of `PartitionedQueue` if the queue is partitioned."""
    for name, method in list(vars(queue_type).items()):
        if name.startswith("_") or name in _OWN or not callable(method):
            continue
        wrapped = _awaited(name, method) if iscoroutinefunction(method) else _iterated(name, method)
        wrapped.__module__, wrapped.__qualname__ = queue_type.__module__, f"{queue_type.__qualname__}.{name}"
        setattr(queue_type, name, wrapped)
    return queue_type


def _awaited(name: str, method: Any) -> Any:
    known = keywords_of(method)

    @wraps(method)
    async def delegating(self: Any, *args: Any, **options: Any) -> Any:
        if options:
            check_keywords(options, known)
        if name in WRITES and self._partition is None:
            return await write(self, lambda: run(self, args, options))
        await self._check_layout(always=name in OF_ALL)
        return await run(self, args, options)

    async def run(self: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        partitions: PartitionedQueue | None = self._partitions
        if partitions is None:
            try:
                return await method(self, *args, **options)
            except PartitionedQueueError:
                partitions = self._partitions
                if partitions is None:
                    raise
            except LayoutChangedError:  # another client has just partitioned it; nothing was changed
                await self._renew_layout(refused=True)
                partitions = self._partitions
                if partitions is None:
                    raise
        return await partitions.run(name, args, options)

    return delegating


def _iterated(name: str, method: Any) -> Any:
    async def chosen(self: Any, plain: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> AsyncGenerator[Any]:
        await self._check_layout()
        if self._partitions is None:
            try:
                async with aclosing(plain) as found:
                    async for each in found:
                        yield each
                return
            except PartitionedQueueError:
                if self._partitions is None:
                    raise
        async with aclosing(self._partitions.iterate(name, args, options)) as found:
            async for each in found:
                yield each

    known = keywords_of(method)

    @wraps(method)
    def delegating(self: Any, *args: Any, **options: Any) -> Any:
        if options:
            check_keywords(options, known)
        plain = method(self, *args, **options)
        is_plain = self._link is not None and self._partitions is None and not self._layout_is_old
        if is_plain or not hasattr(plain, "__aiter__"):
            return plain
        return chosen(self, plain, args, options)

    return delegating
