"""What becomes of one scheduler that is due: the jobs to add, and the entry afterwards. Pure: no clock, no server.

An instant is *missed* when it is more than `MISSED_AFTER_MS` ago: nobody was there. What is less late than that was
merely met by a slow process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_py._core.calls.adding import Row
from glidemq_py._core.payload import encode_data
from glidemq_py._core.queue_options import Compression
from glidemq_py._features.schedulers.calls import DueRow, FireRow
from glidemq_py._features.schedulers.entry import Entry
from glidemq_py._job.link import QueueLink
from glidemq_py._job.rows import stored_row

__all__ = ["AT_ONCE", "MISSED_AFTER_MS", "WATCH_MS", "plan", "postponed"]

MISSED_AFTER_MS: Final = 5_000
AT_ONCE: Final = 100
"""Most jobs of one scheduler that a call adds; what is left is due at once again."""
WATCH_MS: Final = 5_000
"""How often a scheduler that waits looks for the job that it waits for (W78)."""

_ENDED: Final = frozenset({"completed", "failed", "gone"})


@dataclass(slots=True)
class _Run:
    """Instants to fire, and the instant that comes after: 0 = it waits, None = there is none."""

    instants: list[int] = field(default_factory=list[int])
    following: int | None = None


def plan(link: QueueLink, row: DueRow, now: int) -> FireRow:
    """What to do about an entry that is due ``now``.

    Raises:
        GlideMQValidationError: it is no scheduler, or its jobs cannot be made (serializer, size).
    """
    entry = Entry(row.text)
    due = entry.next_run
    if due > now:
        return _fired(row, row.text, due)  # the index was wrong
    if entry.waits:
        return _waiting(entry, row, now)
    run = _run(entry, due, now)
    count = entry.number("iterationCount") + len(run.instants)
    limit = entry.schedule.limit
    if run.following is None or (limit is not None and count >= limit):
        text, tracked = "", False
    else:
        keys: dict[str, Any] = {"iterationCount": count, "nextRun": run.following}
        tracked = entry.schedule.repeat_after_complete is not None
        if run.instants:
            keys["lastRun"] = now
        if tracked:
            keys |= {"lastJobId": None, "lastJobRun": now}
        text = entry.changed(**keys)
    jobs = [_job(link, entry, row.name)] * len(run.instants)
    return FireRow(
        row.name, row.home, row.text, text, run.following or now + WATCH_MS, jobs, run.instants, tracked and bool(jobs)
    )


def postponed(row: DueRow, until: int) -> FireRow:
    """Leave an entry as it is, and look at it again later."""
    return _fired(row, row.text, until)


def _fired(row: DueRow, text: str, due: int) -> FireRow:
    return FireRow(row.name, row.home, row.text, text, due, [], [], False)


def _waiting(entry: Entry, row: DueRow, now: int) -> FireRow:
    """Of repeat-after-complete: goes on once its job has ended, however it ended."""
    schedule = entry.schedule
    assert schedule.repeat_after_complete is not None
    ended = _ended(entry, row, now)
    if ended is None:
        return postponed(row, now + WATCH_MS)
    next_run = max(min(ended, now) + schedule.repeat_after_complete, schedule.start_date or 0)
    if schedule.end_date is not None and next_run > schedule.end_date:
        return _fired(row, "", 0)
    return _fired(row, entry.changed(nextRun=next_run), next_run)


def _ended(entry: Entry, row: DueRow, now: int) -> int | None:
    """When the job that a scheduler waits for ended; None while it has not."""
    state, at, told, idle = row.last_job
    job_id = entry.last_job_id
    told_at, _, told_id = told.partition(":")
    if told_id and job_id in (None, told_id):
        return int(told_at)
    if job_id is not None:
        return (int(at) if at.isdigit() else now) if state in _ENDED else None
    # A peer has fired it, and does not say which job it was.
    return now if idle else None


def _run(entry: Entry, due: int, now: int) -> _Run:
    schedule = entry.schedule
    if schedule.end_date is not None and due > schedule.end_date:
        return _Run()
    if schedule.repeat_after_complete is not None:
        return _Run([due], 0)
    left = AT_ONCE if schedule.limit is None else max(0, schedule.limit - entry.number("iterationCount"))
    if left == 0:
        return _Run()
    if due == 0:  # nobody but a repeating one waits
        return _Run([], schedule.following(now, now))
    if schedule.misfire == "fire_all":
        run = _Run([], due)
        while run.following is not None and run.following <= now and len(run.instants) < min(left, AT_ONCE):
            run.instants.append(run.following)
            run.following = schedule.after(run.following)
        return run
    following = schedule.following(due, now)
    if schedule.misfire == "skip":
        at = due if now - due <= MISSED_AFTER_MS else schedule.following(due, now - MISSED_AFTER_MS)
        return _Run([at] if at is not None and at <= now else [], following)
    return _Run([due], following)


def _job(link: QueueLink, entry: Entry, name: str) -> Row:
    template = entry.template
    compression: Compression = "gzip" if "gzip" in (entry.fields.get("compression"), link.compression) else "none"
    if template.text is not None:
        text = encode_data(template.text, _AS_IT_IS, compression)
    elif template.has_data:
        text = encode_data(template.data, link.serializer, compression)
    else:
        text = encode_data({}, link.serializer, compression)
    return stored_row(template.name or name, text, template.opts, template.options)


class _AsItIs:
    """Of text that has been through the serializer."""

    def serialize(self, value: Any, /) -> str:
        return str(value)

    def deserialize(self, text: str, /) -> Any:
        return text


_AS_IT_IS: Final = _AsItIs()
