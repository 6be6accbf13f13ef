"""The timeline of a job: every change of its state (lua/features/timeline)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call
from glidemq_py._core.checks import check_int
from glidemq_py._core.job_states import JobState
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._job.job import Job

__all__ = [
    "Timeline",
    "Transition",
    "check_sample",
    "get_timeline",
    "read_timeline",
    "read_timeline_setting",
    "set_call",
]

FIELD: Final = "timeline"
ALL: Final = 1_000_000
_MOST: Final = 1_000


class Transition(NamedTuple):
    """One change of a job's state.

    Attributes:
        state: The new state.
        at: When, epoch ms.
        worker: Id of the worker that changed it; '' if no worker did.
    """

    state: JobState
    at: int
    worker: str


class Timeline(NamedTuple):
    """Setting of a queue's timelines; see `Queue.set_timeline`.

    Attributes:
        sample: Fraction of the jobs that have a timeline, 0.0 to 1.0; 0.0 = off.
        max_entries: Number of newest transitions that a job keeps.
    """

    sample: float = 0.0
    max_entries: int = 50


def set_call(meta: str, text: str | None) -> Call[int]:
    """Set or delete the setting."""
    return Call("set_timeline", meta, requests.set_timeline(text=False if text is None else text), int, repeatable=True)


def check_sample(value: object) -> int:
    """Return the sample in millionths."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise GlideMQValidationError("sample", value, "must be a number from 0 to 1")
    return max(1, round(value * ALL)) if value else 0


def check_entries(value: object) -> int:
    """Return a valid number of entries."""
    return check_int("max_entries", value, 1, _MOST)


def read_timeline(text: str) -> list[Transition]:
    """Return the transitions of the record's field, oldest first. Malformed lines are skipped."""
    head, *lines = text.split("\n")
    base, _, first = head.partition("|")
    if _HEX.fullmatch(base) is None:
        return []
    found: list[Transition] = []
    for line in lines:
        parts = _LINE.fullmatch(line)
        if parts is not None:
            worker = first if parts["by"] == "=" else parts["by"][1:]
            found.append(Transition(_STATES[parts["state"]], int(base, 16) + int(parts["after"], 16), worker))
    return found


_HEX: Final = re.compile("[0-9a-f]{1,12}")
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
_LINE: Final = re.compile(r"(?P<state>[wpdacfskg])(?P<after>[0-9a-f]{1,12})(?P<by>=|\|.*|)")


def read_timeline_setting(text: bytes | None) -> Timeline:
    """Return the setting of the meta field; off if it is absent or malformed."""
    found = re.fullmatch(rb"(\d{1,7})\|(\d{1,6})", text or b"")
    return Timeline() if found is None else Timeline(int(found[1]) / ALL, int(found[2]))


async def get_timeline(self: Job[Any, Any, Any]) -> list[Transition]:
    """Return the changes of the job's state, oldest first; an empty list if the queue records none.

    `Queue.set_timeline` turns it on. Changes by Node clients are not recorded.
    """
    text = await self._link.transport.command("HGET", self._link.keys.job(self.id), FIELD)
    return read_timeline(text.decode("utf-8", "replace")) if text else []
