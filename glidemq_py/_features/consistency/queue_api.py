"""The consistency check of a queue: `Queue.check`.

Jobs move while the queue is scanned, so a scan finds suspects only. A suspect is reported if three scans, with a pause
between them, find it unchanged; if the first scan finds none, it is the only one. A repair verifies the suspect again
in the same atomic step, so a job that has moved by then is not touched. ``docs/operate/consistency.md`` lists the kinds
of findings and their repairs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Generator, Mapping
from dataclasses import replace
from typing import Any, Final

from glidemq_py._core.calls import Call, pieces
from glidemq_py._core.checks import check_bool
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.consistency import calls as checking
from glidemq_py._features.consistency.checking import (
    JOBS_PER_CALL,
    CheckReport,
    ConsistencyScan,
    Finding,
    FindingKind,
    Key,
    Suspect,
)
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import ConnectedQueue

MAX_SCANS: Final = 3
RECHECK_AFTER_MS: Final = 1_000


async def check(
    self: ConnectedQueue, *, repair: bool = False, recheck_after: Milliseconds = RECHECK_AFTER_MS
) -> CheckReport:
    """Check the whole queue for inconsistent state, and repair it if ``repair`` is True.

    Workers and producers can keep running. The cost is linear in the size of the queue: some 15 microseconds of
    server time per job, in calls of about 1 ms each, and a SCAN over the server's keys.

    Args:
        repair: repair the findings: lost jobs return to waiting, references to missing jobs are deleted, slots and
            counters are recounted, blocked ordering groups are released. Consistent jobs are never touched.
        recheck_after: ms or timedelta between two scans, at least 0. Give Node workers, which move a job in several
            calls, enough time to finish.

    Returns:
        The findings of the check.

    Raises:
        GlideMQValidationError: an argument is invalid.
        GlideMQError: the server cannot be reached or rejects a call.
    """
    check_bool("repair", repair)
    pause = to_ms("recheck_after", recheck_after, minimum=0)
    findings: list[Finding] = []
    jobs = groups = looks = 0
    for link in await self._links():
        found = await _check(link, repair=repair, recheck_after=pause)
        if await checking.endangers_steps(link):
            detail = f"{checking.NODE_WORKER}; {checking.NODE_WORKER_REMEDY}"
            findings.append(Finding(kind=FindingKind.NODE_WORKER, subject=link.keys.name, detail=detail))
        place = "" if link.partition is None else f" (partition {link.keys.name!r})"
        findings += (replace(each, detail=each.detail + place) if place else each for each in found.findings)
        jobs, groups, looks = jobs + found.jobs, groups + found.groups, max(looks, found.looks)
    return CheckReport(queue=self.name, findings=tuple(findings), jobs=jobs, groups=groups, looks=looks)


async def _check(link: QueueLink, *, repair: bool, recheck_after: int) -> CheckReport:
    scan, scans = await _scan(link), 1
    suspects: Mapping[Key, Suspect] = scan.suspects
    while suspects and scans < MAX_SCANS:
        await link.runtime.there(asyncio.sleep(recheck_after / 1000))
        scan, scans = await _scan(link), scans + 1
        suspects = {key: scan.suspects[key] for key in suspects if key in scan.suspects}
    remaining = suspects
    if repair and suspects:
        await _run_steps(link, repairs(scan, suspects))
        scan, scans = await _scan(link), scans + 1
        remaining = scan.suspects
    return report(scan, suspects, remaining, scans)


async def repair_groups(link: QueueLink, names: Container[str], *, recheck_after: int) -> list[Suspect]:
    """Repair the ordering groups in ``names`` in which two scans find the same problem.

    Scans the whole queue, as `check` does.

    Args:
        link: the queue.
        names: ordering keys.
        recheck_after: ms between the two scans.

    Returns:
        The problems found.

    Raises:
        GlideMQError: the server cannot be reached or rejects a call.
    """
    suspects: Mapping[Key, Suspect] = (await _scan(link)).suspects
    suspects = {key: each for key, each in suspects.items() if each.of_group and each.subject in names}
    if not suspects:
        return []
    await link.runtime.there(asyncio.sleep(recheck_after / 1000))
    scan = await _scan(link)
    found = [scan.suspects[key] for key in suspects if key in scan.suspects]
    for name in dict.fromkeys(suspect.subject for suspect in found):
        await _run_steps(link, scan.groups.apply_repair(name))
    return found


async def repair_all_groups(link: QueueLink) -> None:
    """Recount the slots and sequences of all ordering groups of a queue without other users.

    A second scan is necessary after a counter of sequences was behind, since gaps are looked for up to the counter.

    Raises:
        GlideMQError: the server cannot be reached or rejects a call.
    """
    for _ in range(2):
        scan = await _scan(link)
        suspects = {key: each for key, each in scan.suspects.items() if each.of_group}
        await _run_steps(link, repairs(scan, suspects))
        if all(each.kind != FindingKind.COUNTER for each in suspects.values()):
            break


async def _scan(link: QueueLink) -> ConsistencyScan:
    scan = ConsistencyScan(link.keys)
    await _run_steps(link, scan.steps())
    return scan


async def _run_steps(link: QueueLink, steps: Generator[Call[Any] | str, Any, None]) -> None:
    keys: AsyncIterator[list[bytes]] = link.transport.scan(f"{link.keys.stem}*")
    reply: Any = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration:
            return
        reply = await (link.transport.call(step) if isinstance(step, Call) else anext(keys, None))


def report(
    scan: ConsistencyScan, suspects: Mapping[Key, Suspect], remaining: Container[Key], scans: int
) -> CheckReport:
    """Return the report of a check.

    Args:
        scan: the last scan.
        suspects: the confirmed suspects.
        remaining: keys of the suspects that still exist; the others have been repaired.
        scans: how often the queue was scanned.
    """
    findings = [
        Finding(kind=suspect.kind, subject=suspect.subject, detail=suspect.detail, repaired=key not in remaining)
        for key, suspect in suspects.items()
    ]
    return CheckReport(
        queue=scan.keys.name, findings=tuple(findings), jobs=scan.jobs, groups=len(scan.groups), looks=scans
    )


def repairs(scan: ConsistencyScan, suspects: Mapping[Key, Suspect]) -> Generator[Call[Any], Any, None]:
    """Yield the calls that repair the suspects: jobs and references first, then groups and counters."""
    meta = scan.keys.meta
    rows = [suspect.repair_row for suspect in suspects.values() if suspect.repair_row]
    for piece in pieces(rows, JOBS_PER_CALL):
        yield checking.apply_repair(meta, piece)
    for name in dict.fromkeys(suspect.subject for suspect in suspects.values() if suspect.of_group):
        yield from scan.groups.apply_repair(name)
    yield checking.repair_counters(meta, scan.top_id, scan.others, scan.peers)
