"""Ordering groups in a consistency check: compares the group records with the jobs.

The records are read before the jobs. So after the scan every unfinished job with a sequence number up to the one issued
last at that time is known, and the server can check a group in one atomic step
(``lua/features/consistency/functions/check_groups.lua``) while the group is in use.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_py._core.calls.packing import Call
from glidemq_py._features.consistency import calls as checking
from glidemq_py._features.consistency.calls import GroupFacts, GroupRow
from glidemq_py._features.consistency.findings import FindingKind

__all__ = ["GroupScan"]

PAGE: Final = 250
MAX_PER_CALL: Final = 1_000
"""Most jobs and most sequence gaps per call."""
TRIES: Final = 3

KINDS: Final = {
    "slots": FindingKind.GROUP_SLOTS,
    "sequence": FindingKind.GROUP_SEQUENCE,
    "counter": FindingKind.COUNTER,
    "parked": FindingKind.GROUP_PARKED,
}


@dataclass(slots=True)
class _Jobs:
    """Unfinished jobs of a group."""

    sequences: dict[str, int] = field(default_factory=dict[str, int])
    """Sequence number by job id."""
    holders: set[str] = field(default_factory=set[str])
    """Jobs that have, or may have, a slot."""
    certain: int = 0
    """Number of jobs that have a slot for certain."""
    moving: int = 0
    """Number of jobs that are neither parked nor active."""


class GroupScan:
    """The ordering groups of the queue with the meta key ``meta``, as one scan found them."""

    def __init__(self, meta: str) -> None:
        self._meta = meta
        self._rows: dict[str, GroupRow] = {}
        self._jobs: dict[str, _Jobs] = {}
        self._without_record: set[str] = set()

    def __len__(self) -> int:
        return len(self._rows)

    # -- gathering ----------------------------------------------------------------------------------------

    def read_all(self) -> Generator[Call[Any], Any, None]:
        """Read the records of all groups."""
        cursor = ""
        while True:
            rows, cursor = yield checking.check_groups(self._meta, cursor, PAGE)
            self._rows.update((row.name, row) for row in rows)
            if not cursor:
                return

    def with_parked(self) -> list[str]:
        """Return the names of the groups that have parked jobs."""
        return [row.name for row in self._rows.values() if row.parked]

    def add_key(self, name: str) -> None:
        """Record that a key of this group exists; the group may have lost its sequence counter."""
        if name not in self._rows:
            self._without_record.add(name)

    def add(self, name: str, job_id: str, sequence: int, hold: int, calm: bool) -> None:
        """Record an unfinished job of the group.

        Args:
            name: ordering key.
            job_id: id of the job.
            sequence: its sequence number in the group.
            hold: 0 = no slot, 1 = has a slot, 2 = may have one.
            calm: the job is parked or active.
        """
        jobs = self._jobs.setdefault(name, _Jobs())
        if job_id in jobs.sequences:  # SCAN may return a key twice
            return
        jobs.sequences[job_id] = sequence
        if hold:
            jobs.holders.add(job_id)
        jobs.certain += hold == 1
        jobs.moving += not calm

    # -- checking -----------------------------------------------------------------------------------------

    def check(self) -> Generator[Call[Any], Any, list[tuple[str, FindingKind, str]]]:
        """Check the groups and return the problems: name, kind, detail."""
        yield from self._read_without_record()
        found: list[tuple[str, FindingKind, str]] = []
        for row in list(self._rows.values()):
            if not self._is_suspect(row):
                continue
            for _ in range(TRIES):
                facts = yield from self.facts(row.name)
                if facts is None:
                    break
                verdict = yield checking.check_group(self._meta, facts)
                if not verdict.moved:
                    found += [(row.name, KINDS[kind], detail) for kind, detail in verdict.rows]
                    break
        return found

    def _read_without_record(self) -> Generator[Call[Any], Any, None]:
        # These records are read after the jobs, so a gap in the sequences is no proof: issued=0 disables that check.
        names = sorted(self._without_record)
        for i in range(0, len(names), PAGE):
            rows, _ = yield checking.check_groups(self._meta, "", PAGE, names[i : i + PAGE])
            self._rows.update((row.name, row._replace(issued=0)) for row in rows if row.next_seq)

    def _is_suspect(self, row: GroupRow) -> bool:
        jobs = self._jobs.get(row.name, _NONE)
        return (
            row.parked > 0
            or not jobs.certain <= row.active <= len(jobs.holders)
            or row.issued < max(self._top(jobs), row.next_seq - 1)
            or (row.issued > 0 and row.next_seq == 0)
            or next(self._gaps(jobs, row.next_seq, row.issued), None) is not None
        )

    @staticmethod
    def _top(jobs: _Jobs) -> int:
        return max(jobs.sequences.values(), default=0)

    @staticmethod
    def _gaps(jobs: _Jobs, first: int, last: int) -> Iterator[int]:
        held = set(jobs.sequences.values())
        return (sequence for sequence in range(max(1, first), last + 1) if sequence not in held)

    def facts(self, name: str) -> Generator[Call[Any], Any, GroupFacts | None]:
        """Return the facts that the server needs to check the group; None if it has too many jobs for one call."""
        (row,), _ = yield checking.check_groups(self._meta, "", 1, [name])
        jobs, covered, ahead = self._jobs.get(name, _NONE), self._rows[name].issued, row.next_seq
        ids = [job_id for job_id, sequence in jobs.sequences.items() if sequence < ahead or job_id in jobs.holders]
        if len(ids) > MAX_PER_CALL:
            return None
        gaps = self._gaps(jobs, ahead, covered)
        return GroupFacts(
            name=name,
            ids=ids,
            covered=covered,
            assumed=ahead,
            gaps=[gap for gap, _ in zip(gaps, range(MAX_PER_CALL), strict=False)],
            first=min((s for s in jobs.sequences.values() if s >= ahead > 0 or s > ahead), default=covered + 1),
            top=self._top(jobs),
            calm=int(not jobs.moving),
        )

    def apply_repair(self, name: str) -> Generator[Call[Any], Any, None]:
        """Repair the group."""
        for _ in range(TRIES):
            facts = yield from self.facts(name)
            if facts is None:
                break
            if (yield checking.repair_group(self._meta, facts)):
                break


_NONE: Final = _Jobs()
