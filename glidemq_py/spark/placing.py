"""Which partition the rows of a save go to, if their queue has any: that of their routing key, as with `Queue.add`.

Partitions are chosen by the column. Python touches a key only to hash it, once per distinct key of a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from glidemq_py._core.keys import partition_home
from glidemq_py._partitions.layout import JUMP_MULTIPLIER, Layout, key_digest
from glidemq_py.spark.api import np, pa, pc

__all__ = ["KeySources", "Part", "Placer", "by_whole_queue"]

_DIGITS: Final = r"^[0-9]+\z"
_ROWS_A_TURN: Final = 250
"""Rows without a key that go to one partition before the next one has its turn, as with `Queue.add_bulk`."""


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
        self._placed: dict[str, int] = {}
        """Number of rows of each queue that were placed."""
        self.numbers: dict[str, int] = {}
        """Number of the layout by which the rows of each queue were placed; 0 = it had no partitions."""
        self.checked: dict[str, int] = {}
        """The same, by the name of the partition; without partitions that the user has named as queues."""

    def part(self, queues: Any) -> Part | None:
        """Return the next rows of the task, to be placed; None if none of their queues has partitions.

        Args:
            queues: The queue of each row, a dictionary array.
        """
        names: list[str] = queues.dictionary.to_pylist()
        self._add_layouts([name for name in names if name not in self._layouts])
        if all(self._layouts[name] is None for name in names):
            return None
        of_row = queues.indices.to_numpy()
        ranks, counts = _ranks(of_row, len(names))
        before = np.array([self._placed.get(name, 0) for name in names])
        self._placed.update(zip(names, (before + counts).tolist(), strict=True))
        layouts = [self._layouts[name] for name in names]
        turns = self._turn + (before[of_row] + ranks) // _ROWS_A_TURN
        return Part(names, layouts, of_row, turns)

    def _add_layouts(self, queues: Sequence[str]) -> None:
        """Read the layouts of queues that are not known yet."""
        if not queues:
            return
        for queue, layout in self._layouts_of(queues).items():
            number, names = (0, [queue]) if layout is None else (layout.number, list(layout.names))
            self._layouts[queue] = layout
            self.numbers[queue] = number
            if layout is not None or partition_home(queue) is None:
                self.checked.update(dict.fromkeys(names, number))


class Part:
    """Rows of a task, some of whose queues have partitions.

    Args:
        queues: The names of the queues.
        layouts: The layout of each; None = it has no partitions.
        of_row: The queue of each row, a position in the former.
        turns: The partition of each row if it has no key, modulo their number.
    """

    def __init__(self, queues: Sequence[str], layouts: Sequence[Layout | None], of_row: Any, turns: Any) -> None:
        self._layouts = [layout or Layout(0, (queue,)) for queue, layout in zip(queues, layouts, strict=True)]
        self._of_row = of_row
        self._turns = turns
        self.partitioned = np.array([layout is not None for layout in layouts])[of_row]
        """A mask of the rows whose queue has partitions."""

    def place(self, sources: KeySources) -> Any:
        """Return the name of the queue, or of the partition, of each row: a dictionary array.

        Args:
            sources: Options of the rows; `KeySources.misfits` has none.
        """
        counts = np.array([layout.partitions for layout in self._layouts])
        chosen = self._chosen(counts[self._of_row], sources.keys)
        first = np.cumsum(counts) - counts
        known = pa.array(chain.from_iterable(layout.names for layout in self._layouts), pa.string())
        return pa.DictionaryArray.from_arrays(pa.array((first[self._of_row] + chosen).astype(np.int32)), known)

    def _chosen(self, counts: Any, keys: Any) -> Any:
        """Return the partition of each row, given the number of partitions for each."""
        chosen = self._turns % counts
        if keys is not None:
            keyed = np.flatnonzero(_mask(keys.is_valid()) & (counts > 1))
            chosen[keyed] = _jump(_hashes(keys.take(pa.array(keyed))), counts[keyed])
        return chosen


def _ranks(codes: Any, kinds: int) -> tuple[Any, Any]:
    """Return the position of each row among those with its code, and the number of rows with each code."""
    counts = np.bincount(codes, minlength=kinds)
    if len(codes) in counts:
        return np.arange(len(codes)), counts
    order = np.argsort(codes, kind="stable")
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = np.arange(len(codes)) - (np.cumsum(counts) - counts)[codes[order]]
    return ranks, counts


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
