"""What a consistency check finds, as values. How it is found and repaired is the queue's business."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CheckReport", "Finding", "FindingKind"]


class FindingKind(StrEnum):
    """What is wrong."""

    LOST_JOB = "lost_job"
    """A job that stands nowhere: no stream entry, list or set names it, or not the one that its state says."""
    DANGLING = "dangling"
    """A place that names a job which does not exist, or an entry that pends and is gone."""
    MISPLACED = "misplaced"
    """A place that names a job whose state says that it stands elsewhere."""
    TWICE = "twice"
    """A job that stands in two places from which it could be taken."""
    GHOST = "ghost"
    """A record without a name or a state: what was written after the job was removed."""
    FOREIGN_KEY = "foreign_key"
    """A key in a job's place that is no hash. Never repaired: nobody knows whose it is."""
    ORPHAN_KEY = "orphan_key"
    """A log, dependency set, chunk stream or signal list of a job that does not exist."""
    GROUP_SLOTS = "group_slots"
    """A group that counts more slots, or fewer, than its jobs hold."""
    GROUP_SEQUENCE = "group_sequence"
    """A group that waits for a sequence which no job has, or will."""
    GROUP_PARKED = "group_parked"
    """A group whose parked jobs may go on, and nothing will let them."""
    COUNTER = "counter"
    """A counter that is not what it counts: active list jobs, ids, sequences."""
    STALE_DEDUPLICATION = "stale_deduplication"
    """A deduplication entry long past its time whose job has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: what is wrong.
        subject: id of the job, name of the group or counter, or the key.
        detail: in words, for people.
        repaired: it is in order now. Always False where the check was not asked to repair.
    """

    kind: FindingKind
    subject: str
    detail: str
    repaired: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}: {self.detail}{' (repaired)' if self.repaired else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a check of a queue found.

    Attributes:
        queue: the queue's name.
        findings: everything that is wrong, or was before it was repaired.
        jobs: how many jobs were looked at.
        groups: how many ordering groups.
        looks: how often the queue was gone through: once where nothing is wrong, up to three times else, and once
            more after a repair.
    """

    queue: str
    findings: tuple[Finding, ...] = ()
    jobs: int = 0
    groups: int = 0
    looks: int = 1

    @property
    def ok(self) -> bool:
        """True if nothing is wrong any more: there was nothing, or all of it was repaired."""
        return all(finding.repaired for finding in self.findings)

    @property
    def counts(self) -> Mapping[FindingKind, int]:
        """Number of findings by kind; kinds without any are left out."""
        return Counter(finding.kind for finding in self.findings)

    def __str__(self) -> str:
        what = f"{self.jobs} jobs, {self.groups} groups"
        if not self.findings:
            return f"queue {self.queue!r}: in order ({what})"
        mended = sum(finding.repaired for finding in self.findings)
        head = f"queue {self.queue!r}: {len(self.findings)} findings, {mended} repaired ({what})"
        return "\n".join([head, *(f"  {finding}" for finding in self.findings)])
