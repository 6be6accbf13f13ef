"""The consistency check of a queue: look, look again, tell, and repair what is told.

A queue at work is never still, so what a look finds is a suspicion. It is told when it stays the same through three
looks, a pause between them; where nothing is found, one look is all. A repair looks once more, in the very step on the
server that repairs, so that a job which has moved by then is not touched. How each thing is recognized and mended:
``docs/operate/consistency.md``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Generator, Mapping
from typing import Any, Final

from glidemq_py._core.calls.packing import Call
from glidemq_py._core.checks import check_bool
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.consistency import calls as checking
from glidemq_py._features.consistency.checking import FEW, ConsistencyScan, Key, Suspect
from glidemq_py._features.consistency.findings import CheckReport, Finding
from glidemq_py._job import QueueLink

__all__ = ["LOOKS", "QueueChecking", "check", "repair_groups", "repairs", "report"]

LOOKS: Final = 3
SETTLE_MS: Final = 1_000


class QueueChecking:
    """The part of `Queue` that checks it."""

    async def _connected(self) -> QueueLink:
        raise NotImplementedError

    async def check(self, *, repair: bool = False, settle: Milliseconds = SETTLE_MS) -> CheckReport:
        """Go through the whole queue and name what does not fit together; it may be at work meanwhile.

        Its cost grows with the queue: some 15 microseconds of the server's time a job, in calls of about a
        millisecond each, and a SCAN of the server's keys for those of this queue.

        Args:
            repair: mend what is found: lost jobs are ready again, what names no job is dropped, slots and counters
                are counted anew, groups that are stuck go on. A job that is in order is never touched.
            settle: ms or timedelta between two looks. What a peer's worker does in several calls should be over
                in that time.

        Raises what `Queue.get_job_counts` raises.
        """
        check_bool("repair", repair)
        pause = to_ms("settle", settle, minimum=0)
        return await check(await self._connected(), repair=repair, settle=pause)


async def check(link: QueueLink, *, repair: bool, settle: int) -> CheckReport:
    """See `QueueChecking.check`."""
    look, looks = await _look(link), 1
    suspects: Mapping[Key, Suspect] = look.suspects
    while suspects and looks < LOOKS:
        await link.runtime.sleep(settle / 1000)
        look, looks = await _look(link), looks + 1
        suspects = {key: look.suspects[key] for key in suspects if key in look.suspects}
    left = suspects
    if repair and suspects:
        await _drive(link, repairs(look, suspects))
        look, looks = await _look(link), looks + 1
        left = look.suspects
    return report(look, suspects, left, looks)


async def repair_groups(link: QueueLink, names: Container[str], *, settle: int) -> list[Suspect]:
    """Repair those of the ordering groups ``names`` that two looks find wrong in the same way; what was found.

    Goes through the whole queue, as `check` does. ``settle``: ms between the looks. Raises GlideMQError.
    """
    suspects: Mapping[Key, Suspect] = (await _look(link)).suspects
    suspects = {key: each for key, each in suspects.items() if each.of_group and each.subject in names}
    if not suspects:
        return []
    await link.runtime.sleep(settle / 1000)
    look = await _look(link)
    found = [look.suspects[key] for key in suspects if key in look.suspects]
    for name in dict.fromkeys(suspect.subject for suspect in found):
        await _drive(link, look.groups.apply_repair(name))
    return found


async def _look(link: QueueLink) -> ConsistencyScan:
    look = ConsistencyScan(link.keys)
    await _drive(link, look.steps())
    return look


async def _drive(link: QueueLink, steps: Generator[Call[Any] | str, Any, None]) -> None:
    keys: AsyncIterator[list[bytes]] = link.transport.scan(f"{link.keys.stem}*")
    reply: Any = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration:
            return
        reply = await (link.transport.call(step) if isinstance(step, Call) else anext(keys, None))


def report(look: ConsistencyScan, suspects: Mapping[Key, Suspect], left: Container[Key], looks: int) -> CheckReport:
    """What is told of a check whose last look was ``look``; what is not ``left`` has been repaired."""
    findings = [
        Finding(kind=suspect.kind, subject=suspect.subject, detail=suspect.detail, repaired=key not in left)
        for key, suspect in suspects.items()
    ]
    return CheckReport(
        queue=look.keys.name, findings=tuple(findings), jobs=look.jobs, groups=len(look.groups), looks=looks
    )


def repairs(look: ConsistencyScan, suspects: Mapping[Key, Suspect]) -> Generator[Call[Any], Any, None]:
    """Mend the suspects: jobs and places first, then what counts them."""
    meta = look.keys.meta
    rows = [suspect.repair_row for suspect in suspects.values() if suspect.repair_row]
    for i in range(0, len(rows), FEW):
        yield checking.apply_repair(meta, rows[i : i + FEW])
    for name in dict.fromkeys(suspect.subject for suspect in suspects.values() if suspect.of_group):
        yield from look.groups.apply_repair(name)
    yield checking.repair_counters(meta, look.top_id, look.others, look.peers)
