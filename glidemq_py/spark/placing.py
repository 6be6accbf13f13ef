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

__all__ = ["Earlier", "KeySources", "Part", "Placer", "by_whole_queue"]

_DIGITS: Final = r"^[0-9]+\z"
_ROWS_A_TURN: Final = 250
"""Rows without a key that go to one partition before the next one has its turn, as with `Queue.add_bulk`.

An attempt of a task places its rows as earlier ones did, possibly of another version, so this must not change, nor
depend on how Spark divides the rows into batches.
"""


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


class Earlier:
    """The rows of a task that earlier attempts have added to a queue by another layout of its partitions.

    Each attempt with that layout put the same rows into the same partitions in the same order, so the number of rows
    added to a partition says which ones they are.

    Args:
        counts: The number of rows added to each partition of the layout.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.partitions = len(counts)
        self._counts = np.array(counts)
        self._passed = np.zeros(len(counts), np.int64)

    def added(self, chosen: Any) -> Any:
        """Return a mask of the next rows that were added, given the partition of each in this layout."""
        ranks, counts = _ranks(chosen, self.partitions)
        found = self._passed[chosen] + ranks < self._counts[chosen]
        self._passed += counts
        return found


class Placer:
    """Chooses the partitions of the rows of one task.

    Args:
        layouts_of: Returns the layout of each of some queues; None if it has no partitions.
        turn: Decides where rows without a key begin; it differs between tasks and saves, so all partitions get rows.
        earlier_of: Returns which rows earlier attempts of the task have added by other layouts, oldest first, for
            queues with partitions, which have these layouts; None = none, or the rows may be added again.
    """

    def __init__(
        self,
        layouts_of: Callable[[Sequence[str]], Mapping[str, Layout | None]],
        turn: int,
        earlier_of: Callable[[Mapping[str, Layout]], Mapping[str, Sequence[Earlier]]] | None = None,
    ) -> None:
        self._layouts_of = layouts_of
        self._turn = turn
        self._earlier_of = earlier_of
        self._layouts: dict[str, Layout | None] = {}
        self._earlier: dict[str, Sequence[Earlier]] = {}
        self._placed: dict[str, int] = {}
        """Number of rows of each queue that were placed."""
        self.numbers: dict[str, int] = {}
        """Number of the layout by which the rows of each queue were placed; 0 = it had no partitions."""
        self.checked: dict[str, int] = {}
        """The same, by the name of the partition; without partitions that the user has named as queues."""
        self.already_added = 0
        """Number of rows that earlier attempts have added by other layouts."""

    def part(self, queues: Any) -> Part | None:
        """Return the next rows of the task, to be placed; None if none of their queues has partitions.

        Args:
            queues: The queue of each row, a dictionary array.

        Raises:
            GlideMQError: Earlier attempts may have added rows of the task, and it is unknown which.
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
        earlier = [self._earlier.get(name, ()) for name in names]
        turns = self._turn + (before[of_row] + ranks) // _ROWS_A_TURN
        return Part(names, layouts, earlier, of_row, turns)

    def _add_layouts(self, queues: Sequence[str]) -> None:
        """Read the layouts of queues that are not known yet."""
        if not queues:
            return
        layouts = self._layouts_of(queues)
        partitioned = {queue: layout for queue, layout in layouts.items() if layout is not None}
        if partitioned and self._earlier_of is not None:
            self._earlier.update(self._earlier_of(partitioned))
        for queue, layout in layouts.items():
            number, names = (0, [queue]) if layout is None else (layout.number, layout.names[: layout.partitions])
            self._layouts[queue] = layout
            self.numbers[queue] = number
            if layout is not None or partition_home(queue) is None:
                self.checked.update(dict.fromkeys(names, number))


class Part:
    """Rows of a task, some of whose queues have partitions.

    Args:
        queues: The names of the queues.
        layouts: The layout of each; None = it has no partitions.
        earlier: See `Placer`, of each.
        of_row: The queue of each row, a position in the former.
        turns: The partition of each row if it has no key, modulo their number.
    """

    def __init__(
        self, queues: Sequence[str], layouts: Sequence[Layout | None], earlier: Sequence[Sequence[Earlier]],
        of_row: Any, turns: Any,
    ) -> None:  # fmt: skip
        self._layouts = [layout or Layout.plain(queue) for queue, layout in zip(queues, layouts, strict=True)]
        self._earlier = earlier
        self._of_row = of_row
        self._turns = turns
        self.partitioned = np.array([layout is not None for layout in layouts])[of_row]
        """A mask of the rows whose queue has partitions."""
        self.may_be_added = any(earlier)
        """Whether earlier attempts may have added some of the rows by other layouts."""

    def added(self, sources: KeySources) -> Any:
        """Return a mask of the rows that earlier attempts have added by other layouts. To be called once per part."""
        found = np.zeros(len(self._of_row), np.bool_)
        for n, earlier in enumerate(self._earlier):
            rows = np.flatnonzero(self._of_row == n)
            for each in earlier:
                added = each.added(self._chosen(rows, np.full(len(rows), each.partitions), sources.keys))
                found[rows[added]] = True
                rows = rows[~added]
        return found

    def place(self, sources: KeySources, pending: Any = None) -> Any:
        """Return the name of the queue, or of the partition, of each row: a dictionary array.

        Args:
            sources: Options of the rows; `KeySources.misfits` has none that is pending.
            pending: A mask of the rows that are added; None = all.

        Raises:
            GlideMQError: If the number of partitions is being changed, so that a key may have jobs elsewhere.
        """
        counts = np.array([layout.partitions for layout in self._layouts])
        chosen = self._chosen(np.arange(len(self._of_row)), counts[self._of_row], sources.keys)
        if sources.keys is not None:
            for n, layout in enumerate(self._layouts):
                if len(layout.counts) > 1:
                    rows = self._of_row == n
                    self._check_former(layout, rows if pending is None else rows & pending, sources, chosen)
        first = np.cumsum(counts) - counts
        known = pa.array(
            chain.from_iterable(layout.names[: layout.partitions] for layout in self._layouts), pa.string()
        )
        return pa.DictionaryArray.from_arrays(pa.array((first[self._of_row] + chosen).astype(np.int32)), known)

    def _chosen(self, rows: Any, counts: Any, keys: Any) -> Any:
        """Return the partition of each of some rows, given the number of partitions for each."""
        chosen = self._turns[rows] % counts
        if keys is not None:
            keyed = np.flatnonzero(_mask(keys.is_valid())[rows] & (counts > 1))
            chosen[keyed] = _jump(_hashes(keys.take(pa.array(rows[keyed]))), counts[keyed])
        return chosen

    def _check_former(self, layout: Layout, mask: Any, sources: KeySources, chosen: Any) -> None:
        """Reject rows whose keys a former partition may have."""
        may_move, keys = sources.may_move(), sources.keys
        if may_move is None:
            return
        rows = np.flatnonzero(may_move & mask)
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
