"""One look through a queue for what is wrong with it. Nothing is awaited or changed here.

A look is a generator: it yields the calls to make, and `NEXT_KEYS` where it wants the next batch of the queue's keys;
whoever drives it sends the replies in. What it finds are suspects: on a queue that is at work, a job may have moved
between two calls. Only what stays through several looks is told (``checking.py``).

Places are read first, then every key of the queue. Its memory grows with the jobs that wait (those that no record leads
to), with the jobs in groups, and with the groups: about a hundred bytes each.
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
from glidemq_py._features.consistency.groups import GroupBook

__all__ = ["FEW", "GROUP", "NEXT_KEYS", "QUEUE", "ConsistencyScan", "Key", "Steps", "Suspect"]

NEXT_KEYS: Final = "next keys"
"""Asks for the next batch of keys: a list of names, or None after the last."""

Steps: TypeAlias = Generator["Call[Any] | str", Any, None]

PAGE: Final = 100
"""Members of a place, or keys, a call."""
FEW: Final = 60
"""Jobs a call. Both come to about a millisecond of the server's time."""

_SETS = ("scheduled", "completed", "failed", "suspended", "list-active-ids", "list-taken", "list-popped", "stall-watch",
         "dedup-expiry", "waiting-children", "suspects")  # fmt: skip
_READY = ("stream", "pending", "lifo", "priority")
_OF_A_JOB = re.compile(r"(?:log|deps|depvals|parents|jstream|signals):[^:]+")
_ALIVE_MS = 300_000
"""A peer's list job stands in no set of ours: one that got a heartbeat in this time is at work."""
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
_WHY = {
    "gone": "names a job that does not exist",
    "no entry": "an entry pends that the stream does not have",
    "ghost": "names a job without a record",
    "foreign": "names a job whose key is no hash",
    "state": "names a job whose state does not belong there",
    "twice": "names a job that stands elsewhere too",
    "stale": "its time is over and its job has ended",
    "popped": "names a job that a peer's worker popped and never activated",
}
GROUP, QUEUE = "group", "queue"
Key: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Something that looked wrong; `repair_row` is the row that repairs it, () where another call does or none can."""

    kind: FindingKind
    subject: str
    detail: str
    repair_row: Sequence[str] = ()
    of_group: bool = False


class ConsistencyScan:
    """One look at the queue of ``keys``; drive `steps` to its end, then read what it found."""

    def __init__(self, keys: QueueKeys) -> None:
        self.keys = keys
        self.suspects: dict[Key, Suspect] = {}
        self.jobs = 0
        self.groups = GroupBook(keys.meta)
        self.others: list[str] = []
        self.top_id = 0
        self.peers = False
        self._seen: dict[str, str] = {}
        self._pending: set[str] = set()

    def steps(self) -> Steps:
        """The whole look."""
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
        for name, kind, detail in (yield from self.groups.judge()):
            self._note(Suspect(kind=kind, subject=name, detail=detail, of_group=True), GROUP, name)
        for name, count, actual in (yield checking.check_counters(meta, self.top_id, self.others, self.peers)):
            detail = f"is {count}, should be {actual}"
            self._note(Suspect(kind=FindingKind.COUNTER, subject=name, detail=detail), QUEUE, name)

    def _note(self, suspect: Suspect, *parts: str) -> None:
        self.suspects[(suspect.kind, *parts)] = suspect

    # -- places -------------------------------------------------------------------------------------------

    def _place(self, source: str) -> Steps:
        cursor = ""
        while True:
            page = yield checking.check_places(self.keys.meta, source, cursor, PAGE)
            for job_id, member, why, mark in page.rows:
                self._mismatch(source, job_id, member, why, mark)
            for job_id, where in zip(page.seen[::2], page.seen[1::2], strict=True):
                self._met(source, job_id, where)
            cursor = page.cursor
            if not cursor:
                return

    def _mismatch(self, source: str, job_id: str, member: str, why: str, mark: str) -> None:
        kind, where = _KINDS[why], f"{source} {member}" if source in ("stream", "pending") else source
        repair_row = () if kind is FindingKind.FOREIGN_KEY else ("member", source, job_id, member)
        suspect = Suspect(kind=kind, subject=job_id or member, detail=f"{where}: {_WHY[why]}", repair_row=repair_row)
        self._note(suspect, source, job_id, member, mark)

    def _met(self, source: str, job_id: str, where: str) -> None:
        if source == "pending":
            self._pending.add(job_id)
            return
        before = self._seen.setdefault(job_id, where)
        if before != where:
            detail = f"stands in {before} and in {where}"
            repair_row = ("twice", job_id, before, where)
            self._note(
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
                    self.groups.met(rest)
                elif _OF_A_JOB.fullmatch(suffix):
                    satellites.append(suffix)
            while len(jobs) >= FEW:
                yield from self._jobs(jobs[:FEW], broadcast)
                del jobs[:FEW]
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
            self._note(suspect, suffix)

    def _jobs(self, ids: list[str], broadcast: bool) -> Steps:
        if not ids:
            return
        self.jobs += len(ids)
        for job_id in ids:
            # What the counter goes past: numbers as INCR prints them (data-model.md section 8).
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
        kind, detail = FindingKind.LOST_JOB, f"is {state}, and stands nowhere"
        repair_row: Sequence[str] = ("lost", job_id, mark)
        if state == "ghost":
            kind, detail, repair_row = FindingKind.GHOST, "a record without a name or a state", ("ghost", job_id)
        elif state == "foreign":
            kind, detail, repair_row = FindingKind.FOREIGN_KEY, "its key is no hash", ()
        self._note(Suspect(kind=kind, subject=job_id, detail=detail, repair_row=repair_row), job_id, mark)
