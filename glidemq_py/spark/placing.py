"""Which partition the rows of a save go to, if their queue has any: that of their routing key, as with `Queue.add`.

Partitions are chosen by the column. Python touches a key only to hash it, once per distinct key of a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from glidemq_py._features.partitions.layout import JUMP_MULTIPLIER, Layout, key_digest, partition_home
from glidemq_py.errors import GlideMQError
from glidemq_py.spark.api import np, pa, pc

__all__ = ["KeySources", "Placer", "by_whole_queue"]

_DIGITS: Final = r"^[0-9]+\z"


class KeySources(NamedTuple):
    """The options from which the routing keys of some rows come (`routing_key`).

    Each is an Arrow array of strings, null in rows without the option; None = no row has it.
    """

    ordering: Any = None
    fair_key: Any = None
    deduplication: Any = None
    job_id: Any = None

    @property
    def keys(self) -> Any:
        """Return the routing keys; None if no row has one."""
        given = [column for column in self if column is not None]
        return pc.coalesce(*given) if given else None

    def misfits(self) -> Any:
        """Return a mask of the rows that `routing_key` rejects; None if there is none."""
        rejected = [] if self.job_id is None else [pc.match_substring_regex(self.job_id, _DIGITS)]
        given = [column for column in self if column is not None]
        if len(given) > 1:
            keys = self.keys
            rejected += [pc.not_equal(column, keys) for column in given]
        found = [_mask(each) for each in rejected]
        return np.logical_or.reduce(found) if found else None

    def may_move(self) -> Any:
        """Return a mask of the rows whose keys a former partition may have (`moving_row`)."""
        given = [column for column in (self.ordering, self.deduplication, self.job_id) if column is not None]
        return np.logical_or.reduce([_mask(column.is_valid()) for column in given]) if given else None


class Placer:
    """Chooses the partitions of the rows of one task.

    Args:
        layouts_of: Returns the layout of each of some queues; None if it has no partitions.
        turn: Decides where rows without a key begin; it differs between tasks and saves, so all partitions get rows.
    """

    def __init__(self, layouts_of: Callable[[Sequence[str]], Mapping[str, Layout | None]], turn: int) -> None:
        self._layouts_of = layouts_of
        self._turn = turn
        self._layouts: dict[str, Layout | None] = {}
        self.numbers: dict[str, int] = {}
        """Number of the layout by which the rows of each queue were placed; 0 = it had no partitions."""
        self.checked: dict[str, int] = {}
        """The same, by the name of the partition."""

    def rows_with_partitions(self, queues: Any) -> Any:
        """Return a mask of the rows whose queue has partitions; None if there is none.

        Args:
            queues: The queue of each row, a dictionary array.
        """
        names: list[str] = queues.dictionary.to_pylist()
        self._add_layouts([name for name in names if name not in self._layouts])
        found = [self._layouts[name] is not None for name in names]
        return np.array(found)[queues.indices.to_numpy()] if any(found) else None

    def place(self, queues: Any, sources: KeySources) -> Any:
        """Return the name of the queue, or of the partition, of each row: a dictionary array.

        The next call puts rows without a key into another partition.

        Args:
            queues: As for `rows_with_partitions`, which was called before.
            sources: Options of the rows; `KeySources.misfits` has none.

        Raises:
            GlideMQError: If the number of partitions is being changed, so that a key may have jobs elsewhere.
        """
        names: list[str] = queues.dictionary.to_pylist()
        layouts = [self._layouts[name] or Layout.plain(name) for name in names]
        of_row = queues.indices.to_numpy()
        counts = np.array([layout.partitions for layout in layouts])
        self._turn += 1
        chosen = (self._turn % counts)[of_row]
        keys = sources.keys
        if keys is not None:
            rows = np.flatnonzero(_mask(keys.is_valid()) & (counts > 1)[of_row])
            hashes = _hashes(keys.take(pa.array(rows)))
            chosen[rows] = _jump(hashes, counts[of_row[rows]])
            moving = [n for n, layout in enumerate(layouts) if len(layout.counts) > 1]
            if moving:
                self._check_former(layouts, moving, sources, of_row, chosen)
        first = np.cumsum(counts) - counts
        known = pa.array(chain.from_iterable(layout.names[: layout.partitions] for layout in layouts), pa.string())
        return pa.DictionaryArray.from_arrays(pa.array((first[of_row] + chosen).astype(np.int32)), known)

    def _check_former(
        self, layouts: Sequence[Layout], moving: Sequence[int], sources: KeySources, of_row: Any, chosen: Any
    ) -> None:
        """Reject rows whose keys a former partition may have."""
        may_move, keys = sources.may_move(), sources.keys
        if may_move is None:
            return
        for n in moving:
            layout = layouts[n]
            rows = np.flatnonzero(may_move & (of_row == n))
            hashes = _hashes(keys.take(pa.array(rows)))
            for count in layout.counts[:-1]:
                moved = rows[_jump(hashes, np.full(len(rows), count)) != chosen[rows]]
                if len(moved):
                    key = keys[int(moved[0])].as_py()
                    raise GlideMQError(
                        f"queue {layout.names[0]!r}: the number of its partitions is being changed, so the save cannot "
                        f"place the key {key!r}; call Queue.set_partitions({layout.partitions}) until the change is "
                        "settled, then save"
                    )

    def _add_layouts(self, queues: Sequence[str]) -> None:
        """Read the layouts of queues that are not known yet."""
        for queue, layout in self._layouts_of(queues).items() if queues else ():
            number, names = (0, [queue]) if layout is None else (layout.number, layout.names[: layout.partitions])
            self._layouts[queue] = layout
            self.numbers[queue] = number
            self.checked.update(dict.fromkeys(names, number))


def _mask(column: Any) -> Any:
    return column.fill_null(False).to_numpy(zero_copy_only=False)


def _hashes(keys: Any) -> Any:
    """Return the hashes of keys without nulls."""
    encoded = keys.dictionary_encode()
    digests = b"".join(map(key_digest, encoded.dictionary.cast(pa.binary()).to_pylist()))
    return np.frombuffer(digests, ">u8").astype(np.uint64)[encoded.indices.to_numpy()]


def _jump(hashes: Any, counts: Any) -> Any:
    """Return the partition, of ``counts`` ones, of each hash of a key: `partition_of_key` of arrays."""
    chosen = np.zeros(len(hashes), np.int64)
    rows, state, following = np.arange(len(hashes)), hashes, chosen
    while len(rows):
        chosen[rows] = following
        state = state * np.uint64(JUMP_MULTIPLIER) + np.uint64(1)
        share = float(1 << 31) / ((state >> np.uint64(33)) + np.uint64(1)).astype(np.float64)
        following = ((following + 1) * share).astype(np.int64)
        further = following < counts
        rows, state, following, counts = rows[further], state[further], following[further], counts[further]
    return chosen


def by_whole_queue(counts: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return the jobs and other rows of whole queues, given those of queues and partitions."""
    found: dict[str, tuple[int, int]] = {}
    for name, (jobs, others) in counts.items():
        queue = partition_home(name) or name
        before = found.get(queue, (0, 0))
        found[queue] = before[0] + jobs, before[1] + others
    return found
