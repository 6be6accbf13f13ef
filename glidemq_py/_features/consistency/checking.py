"""One scan of a queue for inconsistent state, and its findings. Sends nothing and changes nothing.

A scan is a generator: it yields the calls to make, and `NEXT_KEYS` to request the next batch of the queue's keys; the
caller sends the replies in. A scan finds suspects: jobs may move between two calls. `Queue.check` reports only suspects
that several scans find.

The scan reads the streams, lists and sets first, then every key of the queue, and compares the records of ordering
groups with the jobs. It uses about 100 bytes of memory per waiting job, per job in a group, and per group.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

from glidemq_py._core.calls import Call, pieces
from glidemq_py._core.keys import QueueKeys, exact_text, issued_number
from glidemq_py._features.consistency import calls as checking
from glidemq_py._features.consistency.calls import GroupFacts, GroupRow

__all__ = [
    "GROUP",
    "JOBS_PER_CALL",
    "NEXT_KEYS",
    "QUEUE",
    "CheckReport",
    "ConsistencyScan",
    "Finding",
    "FindingKind",
    "GroupScan",
    "Key",
    "Steps",
    "Suspect",
]


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
    """A log, dependency set, chunk stream or signal list belongs to a job that does not exist, or a key belongs to a
    staged write or batch that does not exist, or to a result sequence that is off."""
    STAGED_WRITE = "staged_write"
    """An unfinished staged write is missing from the index, so no process would finish it."""
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
    NODE_WORKER = "node_worker"
    """Jobs have stored steps, and a worker of glide-mq for Node is registered, which would run them from their start.
    Never repaired."""


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


SHOWN_FINDINGS: Final = 20
"""Most findings in the text of a report."""


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
        """Return the summary, the first 20 findings, and the number of the others by kind."""
        what = f"{self.jobs} jobs, {self.groups} groups"
        if not self.findings:
            return f"queue {self.queue!r}: consistent ({what})"
        repaired = sum(finding.repaired for finding in self.findings)
        head = f"queue {self.queue!r}: {len(self.findings)} findings, {repaired} repaired ({what})"
        lines = [head, *(f"  {finding}" for finding in self.findings[:SHOWN_FINDINGS])]
        if more := Counter(finding.kind for finding in self.findings[SHOWN_FINDINGS:]):
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in more.most_common())
            lines.append(f"  and {more.total():,} more: {kinds}")
        return "\n".join(lines)


GROUPS_PER_CALL: Final = 250
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
            rows, cursor = yield checking.check_groups(self._meta, cursor, GROUPS_PER_CALL)
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
                verdict = yield checking.check_group(self._meta, *facts)
                if not verdict.moved:
                    found += [(row.name, KINDS[kind], detail) for kind, detail in verdict.rows]
                    break
        return found

    def _read_without_record(self) -> Generator[Call[Any], Any, None]:
        # These records are read after the jobs, so a gap in the sequences is no proof: issued=0 disables that check.
        names = sorted(self._without_record)
        for piece in pieces(names, GROUPS_PER_CALL):
            rows, _ = yield checking.check_groups(self._meta, "", GROUPS_PER_CALL, piece)
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
            if (yield checking.repair_group(self._meta, *facts)):
                break


_NONE: Final = _Jobs()


NEXT_KEYS: Final = "next keys"
"""Requests the next batch of keys; the reply is a list of names, or None after the last batch."""

Steps: TypeAlias = Generator["Call[Any] | str", Any, None]

PAGE: Final = 100
"""Members or keys per call; about 1 ms of server time."""
JOBS_PER_CALL: Final = 60
"""Jobs per call; about 1 ms of server time."""

_SETS = ("scheduled", "completed", "failed", "suspended", "list-active-ids", "list-heartbeats", "list-popped",
         "stall-watch", "dedup-expiry", "waiting-children", "suspects", "leases", "ranked-above", "ranked-below",
         "delayed-own", "fair-delayed")  # fmt: skip
_READY = ("stream", "pending", "lifo", "priority")
_JOB_SATELLITE = re.compile(r"(?:log|deps|depvals|parents|jstream|signals):[^:]+")
_WRITE_KEY = re.compile(r"write:[^:]+(:(tried|won|queues|drivers|try:.+))?")
_BATCH_KEY = re.compile(r"batch(-jobs)?:.+")
_SATELLITES = (_JOB_SATELLITE, _WRITE_KEY, _BATCH_KEY)
_ALIVE_MS = 300_000
"""No set contains the list jobs of Node workers; such a job counts as active for this long after a heartbeat, ms."""
_KINDS = {
    "gone": FindingKind.DANGLING,
    "no entry": FindingKind.DANGLING,
    "ghost": FindingKind.DANGLING,
    "foreign": FindingKind.FOREIGN_KEY,
    "state": FindingKind.MISPLACED,
    "twice": FindingKind.TWICE,
    "stale": FindingKind.STALE_DEDUPLICATION,
    "popped": FindingKind.LOST_JOB,
}
_DETAILS = {
    "gone": "refers to a job that does not exist",
    "no entry": "a pending entry is missing from the stream",
    "ghost": "refers to a job without a name or a state",
    "foreign": "refers to a job whose key is not a hash",
    "state": "contains a job whose state does not belong there",
    "twice": "contains a job that is in another place too",
    "stale": "expired, and its job has ended",
    "popped": "contains a job that a Node worker popped and did not activate",
}
GROUP, QUEUE = "group", "queue"
Key: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A possible inconsistency."""

    kind: FindingKind
    subject: str
    detail: str
    repair_row: Sequence[str] = ()
    """Row of the `apply_repair` call; () if another call repairs it, or nothing can."""
    of_group: bool = False


class ConsistencyScan:
    """One scan of the queue with these keys: run `steps` to its end, then read the attributes."""

    def __init__(self, keys: QueueKeys) -> None:
        self.keys = keys
        self.suspects: dict[Key, Suspect] = {}
        self.jobs = 0
        self.groups = GroupScan(keys.meta)
        self.others: list[str] = []
        self.top_id = 0
        self.peers = False
        self._seen: dict[str, str] = {}
        self._pending: set[str] = set()
        self._fair_keys: set[str] = set()

    def steps(self) -> Steps:
        """Yield the calls of the whole scan."""
        meta = self.keys.meta
        broadcast, peers = yield checking.check_scope(meta)
        self.peers = bool(peers)
        yield from self.groups.read_all()
        for source in _SETS if broadcast else (*_READY, *_SETS):
            yield from self._place(source)
        for name in self.groups.with_parked():
            yield from self._place(f"groupq:{name}")
        yield from self._keys(broadcast=bool(broadcast))
        for name in self._fair_keys:
            yield from self._place(f"fairq:{name}")
        if broadcast:
            return
        for name, kind, detail in (yield from self.groups.check()):
            self._add(Suspect(kind=kind, subject=name, detail=detail, of_group=True), GROUP, name)
        for name, count, actual in (yield checking.check_counters(meta, self.top_id, self.others, self.peers)):
            detail = f"is {count}, should be {actual}"
            self._add(Suspect(kind=FindingKind.COUNTER, subject=name, detail=detail), QUEUE, name)

    def _add(self, suspect: Suspect, *parts: str) -> None:
        self.suspects[(suspect.kind, *parts)] = suspect

    # -- places -------------------------------------------------------------------------------------------

    def _place(self, source: str) -> Steps:
        cursor = ""
        while True:
            page = yield checking.check_places(self.keys.meta, source, cursor, PAGE)
            for job_id, member, reason, mark in page.rows:
                self._mismatch(source, job_id, member, reason, mark)
            for job_id, where in zip(page.seen[::2], page.seen[1::2], strict=True):
                self._seen_in(source, job_id, where)
            cursor = page.cursor
            if not cursor:
                return

    def _mismatch(self, source: str, job_id: str, member: str, reason: str, mark: str) -> None:
        kind, where = _KINDS[reason], f"{source} {member}" if source in ("stream", "pending") else source
        repair_row = () if kind is FindingKind.FOREIGN_KEY else ("member", source, job_id, member)
        detail = f"{where}: {_DETAILS[reason]}"
        suspect = Suspect(kind=kind, subject=job_id or member, detail=detail, repair_row=repair_row)
        self._add(suspect, source, job_id, member, mark)

    def _seen_in(self, source: str, job_id: str, where: str) -> None:
        if source == "pending":
            self._pending.add(job_id)
            return
        before = self._seen.setdefault(job_id, where)
        if before != where:
            detail = f"is in {before} and in {where}"
            repair_row = ("twice", job_id, before, where)
            self._add(
                Suspect(kind=FindingKind.TWICE, subject=job_id, detail=detail, repair_row=repair_row), job_id, where
            )

    # -- keys ---------------------------------------------------------------------------------------------

    def _keys(self, *, broadcast: bool) -> Steps:
        stem = len(self.keys.stem)
        jobs: list[str] = []
        satellites: list[str] = []
        while True:
            batch = yield NEXT_KEYS
            if batch is None:
                break
            for key in batch:
                suffix = exact_text(key)[stem:]
                kind, _, rest = suffix.partition(":")
                if kind == "job" and ":" not in rest:
                    jobs.append(rest)
                elif kind == "fairq":
                    self._fair_keys.add(rest)
                elif kind in ("group", "groupq"):
                    self.groups.add_key(rest)
                elif suffix == "results" or any(each.fullmatch(suffix) for each in _SATELLITES):
                    satellites.append(suffix)
            while len(jobs) >= JOBS_PER_CALL:
                yield from self._jobs(jobs[:JOBS_PER_CALL], broadcast)
                del jobs[:JOBS_PER_CALL]
            while len(satellites) >= PAGE:
                yield from self._satellites(satellites[:PAGE])
                del satellites[:PAGE]
        yield from self._jobs(jobs, broadcast)
        yield from self._satellites(satellites)

    def _satellites(self, suffixes: list[str]) -> Steps:
        for suffix in (yield checking.check_keys(self.keys.meta, suffixes)) if suffixes else ():
            kind, detail = FindingKind.ORPHAN_KEY, "its job does not exist"
            if suffix == "results":
                detail = "the result sequence is off, or the key is not a stream"
            elif suffix.startswith("batch"):
                detail = "its batch does not exist, or the index of unfinished batches lacks it"
            elif suffix.startswith("write:"):
                detail = "its staged write does not exist"
                if suffix.count(":") == 1:
                    kind, detail = FindingKind.STAGED_WRITE, "the index of unfinished writes lacks it"
            repair_row = ("orphan", suffix)
            suspect = Suspect(kind=kind, subject=self.keys.stem + suffix, detail=detail, repair_row=repair_row)
            self._add(suspect, suffix)

    def _jobs(self, ids: list[str], broadcast: bool) -> Steps:
        if not ids:
            return
        self.jobs += len(ids)
        for job_id in ids:
            # Generated ids are numbers as INCR prints them; the id counter must not be below any of them.
            self.top_id = max(self.top_id, issued_number(job_id))
        reply = yield checking.check_jobs(self.keys.meta, ids)
        for job_id, state, mark in reply.lost:
            self._lost(job_id, state, mark)
        if broadcast:
            return
        for job_id, state, mark, foreign, silent in reply.unsure:
            if job_id in self._pending or (state == "waiting" and job_id in self._seen):
                continue
            if state == "active" and foreign and silent < _ALIVE_MS:
                self.others.append(job_id)
            else:
                self._lost(job_id, state, mark)
        for job_id, group, sequence, hold, calm in reply.members:
            self.groups.add(group, job_id, sequence, hold, bool(calm))

    def _lost(self, job_id: str, state: str, mark: str) -> None:
        kind, detail = FindingKind.LOST_JOB, f"is {state}, but no stream, list or set contains it"
        repair_row: Sequence[str] = ("lost", job_id, mark)
        if state == "ghost":
            kind, detail, repair_row = FindingKind.GHOST, "its hash has no name or no state", ("ghost", job_id)
        elif state == "foreign":
            kind, detail, repair_row = FindingKind.FOREIGN_KEY, "its key is not a hash", ()
        self._add(Suspect(kind=kind, subject=job_id, detail=detail, repair_row=repair_row), job_id, mark)
