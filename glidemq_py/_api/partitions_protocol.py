"""A `PartitionedQueue` as the functions that are its methods use it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from glidemq_py._partitions.layout import Layout

T = TypeVar("T")


class Partitions(Protocol):
    """The partitions of a queue, which are queues themselves."""

    @property
    def queues(self) -> Sequence[Any]:
        """The partitions."""
        ...

    @property
    def layout(self) -> Layout:
        """The layout."""
        ...

    @property
    def home(self) -> Any:
        """The queue of the user."""
        ...

    def next_partition(self) -> int:
        """Return the partition whose turn it is."""
        ...

    async def together(self, calls: Iterable[Awaitable[T]]) -> list[T]:
        """Await several calls, at the same time if the queue is not a blocking one."""
        ...

    async def each(self, method: str, *args: Any, **options: Any) -> list[Any]:
        """Call a method of every partition; return the results in the order of the partitions."""
        ...
