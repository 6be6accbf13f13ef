"""Ordering groups in a consistency check: what their records say beside what their jobs say.

The records are read before the jobs are gone through. So every job that has not ended, with a sequence up to the one
issued last then, is known afterwards; by that the server judges a group in one step
(``lua/features/consistency/functions/check_groups.lua``),
however busy it is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_py._core.calls.packing import Call
from glidemq_py._features.consistency import calls as checking
from glidemq_py._features.consistency.calls import GroupFacts, GroupRow
from glidemq_py._features.consistency.findings import FindingKind

__all__ = ["GroupBook"]

PAGE: Final = 250
MOST: Final = 1_000
"""Jobs and gaps that one call looks at."""
TRIES: Final = 3

KINDS: Final = {
    "slots": FindingKind.GROUP_SLOTS,
    "sequence": FindingKind.GROUP_SEQUENCE,
    "counter": FindingKind.COUNTER,
    "parked": FindingKind.GROUP_PARKED,
}


@dataclass(slots=True)
class _Jobs:
    """Jobs of a group that have not ended."""

    sequences: dict[str, int] = field(default_factory=dict[str, int])
    holders: set[str] = field(default_factory=set[str])
    certain: int = 0
    restless: int = 0


class GroupBook:
    """The groups of the queue whose meta key is ``meta``."""

    def __init__(self, meta: str) -> None:
        self._meta = meta
        self._rows: dict[str, GroupRow] = {}
        self._jobs: dict[str, _Jobs] = {}
        self._strangers: set[str] = set()

    def __len__(self) -> int:
        return len(self._rows)

    # -- gathering ----------------------------------------------------------------------------------------

    def read_all(self) -> Generator[Call[Any], Any, None]:
        """Read every group's record."""
        cursor = ""
        while True:
            rows, cursor = yield checking.check_groups(self._meta, cursor, PAGE)
            self._rows.update((row.name, row) for row in rows)
            if not cursor:
                return

    def with_parked(self) -> list[str]:
        """Names of the groups that have parked jobs."""
        return [row.name for row in self._rows.values() if row.parked]

    def met(self, name: str) -> None:
        """A key of this group was met; it may be one that has lost its counter."""
        if name not in self._rows:
            self._strangers.add(name)

    def add(self, name: str, job_id: str, sequence: int, hold: int, calm: bool) -> None:
        """A job of the group that has not ended."""
        jobs = self._jobs.setdefault(name, _Jobs())
        if job_id in jobs.sequences:  # a SCAN may come by twice
            return
        jobs.sequences[job_id] = sequence
        if hold:
            jobs.holders.add(job_id)
        jobs.certain += hold == 1
        jobs.restless += not calm

    # -- judging ------------------------------------------------------------------------------------------

    def judge(self) -> Generator[Call[Any], Any, list[tuple[str, FindingKind, str]]]:
        """What is wrong: name, kind, detail."""
        yield from self._read_strangers()
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

    def _read_strangers(self) -> Generator[Call[Any], Any, None]:
        # Their jobs' sequences are not covered by what was read before: none is taken for missing.
        strangers = sorted(self._strangers)
        for i in range(0, len(strangers), PAGE):
            rows, _ = yield checking.check_groups(self._meta, "", PAGE, strangers[i : i + PAGE])
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
        """What the server needs to judge the group as it is now; None where its jobs are too many for one step."""
        (row,), _ = yield checking.check_groups(self._meta, "", 1, [name])
        jobs, covered, ahead = self._jobs.get(name, _NONE), self._rows[name].issued, row.next_seq
        ids = [job_id for job_id, sequence in jobs.sequences.items() if sequence < ahead or job_id in jobs.holders]
        if len(ids) > MOST:
            return None
        gaps = self._gaps(jobs, ahead, covered)
        return GroupFacts(
            name=name,
            ids=ids,
            covered=covered,
            assumed=ahead,
            gaps=[gap for gap, _ in zip(gaps, range(MOST), strict=False)],
            first=min((s for s in jobs.sequences.values() if s >= ahead > 0 or s > ahead), default=covered + 1),
            top=self._top(jobs),
            calm=int(not jobs.restless),
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
