"""The timeline of a job: every change of its state (lua/features/timeline)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls.administration import set_settings
from glidemq_py._core.checks import check_int
from glidemq_py._core.misuse import known_methods
from glidemq_py._core.record import JobState
from glidemq_py._features.steps import read_steps
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import Area
from glidemq_py.errors import GlideMQValidationError

FIELD: Final = "timeline"
ALL: Final = 1_000_000
_MOST: Final = 1_000


class TimelineEntry(NamedTuple):
    """One change of a job's state, or of one of its [steps](../learn/steps.md).

    Attributes:
        state: The new state.
        at: When, epoch ms.
        worker: Id of the worker that changed it; '' if no worker did.
        step: ``<name>: <state>`` of the step that was stored then, while the job was active; '' for a change of state.
    """

    state: JobState
    at: int
    worker: str
    step: str = ""


class TimelineSetting(NamedTuple):
    """Setting of a queue's timelines; see `Queue.timelines.set`.

    Attributes:
        sample: Fraction of the jobs that have a timeline, 0.0..1.0; 0.0 = off.
        max_entries: Number of newest transitions that a job keeps.
    """

    sample: float = 0.0
    max_entries: int = 50


def check_sample(value: object) -> int:
    """Return the sample in millionths."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise GlideMQValidationError("sample", value, "must be a number from 0 to 1")
    return max(1, round(value * ALL)) if value else 0


def check_entries(value: object) -> int:
    """Return a valid number of entries."""
    return check_int("max_entries", value, 1, _MOST)


_LINE: Final = re.compile(r"(?P<state>[wpdacfskg])(?P<at>[0-9a-z]{1,10})(?P<by>=|\|.*|)")
_STATES: Final = {
    "w": JobState.WAITING,
    "p": JobState.PRIORITIZED,
    "d": JobState.DELAYED,
    "a": JobState.ACTIVE,
    "c": JobState.COMPLETED,
    "f": JobState.FAILED,
    "s": JobState.SUSPENDED,
    "k": JobState.WAITING_CHILDREN,
    "g": JobState.GROUP_WAITING,
}


def read_timeline(text: str, added: int) -> list[TimelineEntry]:
    """Return the transitions of the record's field, oldest first. Malformed lines are skipped.

    ``added`` is the record's timestamp: the time of the first transition, if that is the add.
    """
    first, *lines = text.split("\n")
    found: list[TimelineEntry] = []
    if first in _STATES:
        found.append(TimelineEntry(_STATES[first], added, ""))
    worker = ""
    for line in lines:
        parts = _LINE.fullmatch(line)
        if parts is not None:
            if parts["by"] != "=":
                worker = parts["by"][1:]
            found.append(TimelineEntry(_STATES[parts["state"]], int(parts["at"], 36), worker))
    return found


def read_timeline_setting(text: bytes | None) -> TimelineSetting:
    """Return the setting of the meta field; off if it is absent or malformed."""
    found = re.fullmatch(rb"(\d{1,7})\|(\d{1,6})", text or b"")
    return TimelineSetting() if found is None else TimelineSetting(int(found[1]) / ALL, int(found[2]))


async def read_job_timeline(link: QueueLink[JobTransport], job_id: str) -> list[TimelineEntry]:
    """Return the transitions of a job and of its steps, oldest first."""
    added, text = await link.command("HMGET", link.keys.job(job_id), "timestamp", FIELD)
    if not text:
        return []
    found = read_timeline(text.decode("utf-8", "replace"), int(added) if added and added.isdigit() else 0)
    for step in await read_steps(link, job_id):
        found.append(TimelineEntry(JobState.ACTIVE, step.stored_at, "", f"{step.name}: {step.state}"))
    return sorted(found, key=lambda entry: entry.at)


@known_methods
class Timelines(Area):
    """``queue.timelines``: every change of a job's state."""

    __slots__ = ()

    async def set(self, sample: float = 1.0, *, max_entries: int | None = None) -> None:
        """Record every change of the jobs' states, with time and worker, or stop recording.

        Off by default. Timelines that exist are kept.

        Args:
            sample: fraction of the jobs that have a timeline, 0.0 to 1.0; 0 = off. Jobs are chosen by their id.
            max_entries: number of newest transitions that a job keeps, 1..1_000; None = 50. Requires a ``sample`` > 0.

        Raises:
            GlideMQValidationError: an argument is invalid or has no effect.
        """
        share = check_sample(sample)
        entries = TimelineSetting().max_entries if max_entries is None else check_entries(max_entries)
        if max_entries is not None and not share:
            raise GlideMQValidationError(
                "max_entries", max_entries, "requires a 'sample' > 0: no timelines are recorded"
            )
        text = f"{share}|{entries}" if share else None
        await self._queue._change(lambda link: link.call(set_settings, timeline=text))

    async def get_setting(self) -> TimelineSetting:
        """Return whether and how the queue records timelines."""
        link = await self._queue._first()
        return read_timeline_setting(await link.command("HGET", link.keys.meta, "timeline"))

    async def get(self, job_id: str) -> list[TimelineEntry]:
        """Return the changes of a job's state and the last one of each step, oldest first.

        An empty list if none are recorded.

        Args:
            job_id: Id of the job.
        """
        return await self._queue._of(job_id, read_job_timeline)
