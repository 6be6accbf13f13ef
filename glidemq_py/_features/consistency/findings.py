"""Report types of the consistency check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CheckReport", "Finding", "FindingKind"]


class FindingKind(StrEnum):
    """Kind of inconsistency."""

    LOST_JOB = "lost_job"
    """A job is missing from the stream, list or set that its state implies."""
    DANGLING = "dangling"
    """A list or set refers to a job that does not exist, or a pending entry is missing from the stream."""
    MISPLACED = "misplaced"
    """A stream, list or set contains a job whose state does not belong there."""
    TWICE = "twice"
    """A job can be fetched from two places."""
    GHOST = "ghost"
    """A job hash has no name or no state, because it was written after the job was removed."""
    FOREIGN_KEY = "foreign_key"
    """The key of a job is not a hash. Never repaired, because its owner is unknown."""
    ORPHAN_KEY = "orphan_key"
    """A log, dependency set, chunk stream or signal list belongs to a job that does not exist."""
    GROUP_SLOTS = "group_slots"
    """The slot count of an ordering group differs from the number of jobs that have a slot."""
    GROUP_SEQUENCE = "group_sequence"
    """An ordering group waits for a sequence number that no job has."""
    GROUP_PARKED = "group_parked"
    """Parked jobs of an ordering group could run, and nothing will release them."""
    COUNTER = "counter"
    """A counter (active list jobs, ids, sequences) has the wrong value."""
    STALE_DEDUPLICATION = "stale_deduplication"
    """A deduplication entry expired long ago and its job has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One inconsistency.

    Attributes:
        kind: kind of the inconsistency.
        subject: id of the job, name of the group or counter, or the key.
        detail: description for people.
        repaired: True if it was repaired. Always False if the check ran without ``repair``.
    """

    kind: FindingKind
    subject: str
    detail: str
    repaired: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}: {self.detail}{' (repaired)' if self.repaired else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Result of a consistency check.

    Attributes:
        queue: name of the queue.
        findings: all inconsistencies, repaired ones included.
        jobs: number of jobs checked.
        groups: number of ordering groups checked.
        looks: number of scans of the queue: one if nothing is wrong, otherwise up to three, and one more after a
            repair.
    """

    queue: str
    findings: tuple[Finding, ...] = ()
    jobs: int = 0
    groups: int = 0
    looks: int = 1

    @property
    def ok(self) -> bool:
        """True if there are no findings or all of them were repaired."""
        return all(finding.repaired for finding in self.findings)

    @property
    def counts(self) -> Mapping[FindingKind, int]:
        """Number of findings by kind; kinds without findings are omitted."""
        return Counter(finding.kind for finding in self.findings)

    def __str__(self) -> str:
        what = f"{self.jobs} jobs, {self.groups} groups"
        if not self.findings:
            return f"queue {self.queue!r}: consistent ({what})"
        repaired = sum(finding.repaired for finding in self.findings)
        head = f"queue {self.queue!r}: {len(self.findings)} findings, {repaired} repaired ({what})"
        return "\n".join([head, *(f"  {finding}" for finding in self.findings)])
