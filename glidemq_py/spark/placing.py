"""Which partition the rows of a save go to, if their queue has any: that of their routing key, as with `Queue.add`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from glidemq_py._core.job_options import JobOptions
from glidemq_py._features.partitions.layout import Layout, partition_home
from glidemq_py._features.partitions.routing import moving_row, routing_key
from glidemq_py.errors import GlideMQError

__all__ = ["Place", "Placer", "by_whole_queue", "place_of"]

_PLACES_KEPT: Final = 100_000

Place = tuple[str | None, bool]
"""Routing key of a row, and whether a former partition may have jobs that the key must find or follow."""


def place_of(options: JobOptions) -> Place:
    """Return where a job belongs. Raises the errors of `routing_key`."""
    key = routing_key(options)
    return key, key is not None and moving_row(options, key) is not None


class Placer:
    """Chooses the partitions of the rows of one task.

    Args:
        layout_of: Returns the layout of a queue; None if it has no partitions.
        turn: Decides where rows without a key begin; it differs between tasks and saves, so all partitions get rows.
    """

    def __init__(self, layout_of: Callable[[str], Layout | None], turn: int) -> None:
        self._layout_of = layout_of
        self._turn = turn
        self._layouts: dict[str, Layout | None] = {}
        self._homes: dict[tuple[str, str], str] = {}
        self.numbers: dict[str, int] = {}
        """Number of the layout by which the rows of each queue were placed; 0 = it had no partitions."""
        self.checked: dict[str, int] = {}
        """The same, by the name of the partition."""

    def is_partitioned(self, queues: Sequence[str]) -> bool:
        """Return whether one of these queues has partitions."""
        return any(layout is not None for layout in map(self._layout, queues))

    def next_turn(self) -> None:
        """Let the next rows without a key go to another partition."""
        self._turn += 1

    def place(self, queue: str, place: Place) -> str:
        """Return the name of the queue, or the partition, for a row.

        Raises:
            GlideMQError: If the number of partitions is being changed, so that the key may have jobs elsewhere.
        """
        layout = self._layout(queue)
        if layout is None:
            return queue
        key, may_move = place
        if key is None:
            return layout.names[self._turn % layout.partitions]
        found = self._homes.get((queue, key))
        if found is None:
            homes = layout.homes(key)
            if may_move and len(homes) > 1:
                raise GlideMQError(
                    f"queue {queue!r}: the number of its partitions is being changed, so the save cannot place the key "
                    f"{key!r}; call Queue.set_partitions({layout.partitions}) until the change is settled, then save"
                )
            found = layout.names[homes[-1]]
            if len(homes) == 1 and len(self._homes) < _PLACES_KEPT:
                self._homes[queue, key] = found
        return found

    def _layout(self, queue: str) -> Layout | None:
        if queue not in self._layouts:
            layout = self._layouts[queue] = self._layout_of(queue)
            number, names = (0, [queue]) if layout is None else (layout.number, layout.names[: layout.partitions])
            self.numbers[queue] = number
            self.checked.update(dict.fromkeys(names, number))
        return self._layouts[queue]


def by_whole_queue(counts: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return the jobs and other rows of whole queues, given those of queues and partitions."""
    found: dict[str, tuple[int, int]] = {}
    for name, (jobs, others) in counts.items():
        queue = partition_home(name) or name
        before = found.get(queue, (0, 0))
        found[queue] = before[0] + jobs, before[1] + others
    return found
