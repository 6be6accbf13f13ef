"""One scan of a queue for inconsistent state. Sends nothing and changes nothing.

A scan is a generator: it yields the calls to make, and `NEXT_KEYS` to request the next batch of the queue's keys; the
caller sends the replies in. A scan finds suspects: jobs may move between two calls. `Queue.check` reports only suspects
that several scans find.

The scan reads the streams, lists and sets first, then every key of the queue. It uses about 100 bytes of memory per
waiting job, per job in a group, and per group.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from glidemq_py._core.calls.packing import Call
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features.consistency import calls as checking
from glidemq_py._features.consistency.findings import FindingKind
from glidemq_py._features.consistency.groups import GroupScan

__all__ = ["GROUP", "JOBS_PER_CALL", "NEXT_KEYS", "QUEUE", "ConsistencyScan", "Key", "Steps", "Suspect"]

NEXT_KEYS: Final = "next keys"
"""Requests the next batch of keys; the reply is a list of names, or None after the last batch."""

Steps: TypeAlias = Generator["Call[Any] | str", Any, None]

PAGE: Final = 100
"""Members or keys per call; about 1 ms of server time."""
JOBS_PER_CALL: Final = 60
"""Jobs per call; about 1 ms of server time."""

_SETS = ("scheduled", "completed", "failed", "suspended", "list-active-ids", "list-taken", "list-popped", "stall-watch",
         "dedup-expiry", "waiting-children", "suspects")  # fmt: skip
_READY = ("stream", "pending", "lifo", "priority")
_JOB_SATELLITE = re.compile(r"(?:log|deps|depvals|parents|jstream|signals):[^:]+")
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
                suffix = (key if isinstance(key, str) else key.decode("utf-8", "surrogateescape"))[stem:]
                kind, _, rest = suffix.partition(":")
                if kind == "job" and ":" not in rest:
                    jobs.append(rest)
                elif kind in ("group", "groupq"):
                    self.groups.add_key(rest)
                elif _JOB_SATELLITE.fullmatch(suffix):
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
            suspect = Suspect(
                kind=FindingKind.ORPHAN_KEY, subject=self.keys.stem + suffix, detail="its job does not exist",
                repair_row=("orphan", suffix),
            )  # fmt: skip
            self._add(suspect, suffix)

    def _jobs(self, ids: list[str], broadcast: bool) -> Steps:
        if not ids:
            return
        self.jobs += len(ids)
        for job_id in ids:
            # Generated ids are numbers as INCR prints them; the id counter must not be below any of them.
            if len(job_id) <= 14 and job_id.isascii() and job_id.isdigit() and job_id[0] != "0":
                self.top_id = max(self.top_id, int(job_id))
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
