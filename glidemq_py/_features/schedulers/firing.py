"""The maintenance task that fires due schedulers, then waits for the next due time.

It runs in any number of processes. The leader is the process that fired last; it wakes exactly at the next due time.
The others wake slightly later and take over if the leader did not fire.

The jobs to add and the new entry of a scheduler are planned by pure functions, which read no clock and call no server.
A due time counts as *missed* if it is more than `MISSED_AFTER_MS` ago: no process was running. A shorter delay is
treated as a slow process.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from glidemq_py._client.failures import repeated_level
from glidemq_py._client.runtime import BackgroundTask
from glidemq_py._core import json_text as json
from glidemq_py._core.calls.adding import NEW_JOB, ORDERING, AddedOther, Row, stored_row
from glidemq_py._core.calls.working import SCHEDULER_REVISION
from glidemq_py._core.job_options import cost_error
from glidemq_py._core.logs import RepeatedFailure, get_logger
from glidemq_py._core.payload import encode_data
from glidemq_py._core.queue_options import Compression
from glidemq_py._features.remote_control import has_worker as _has_worker
from glidemq_py._features.schedulers.entry import RUNS_KEPT, DueRow, Entry, FireRow, schedulers_due, schedulers_fire
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import ClosedError, FairKeyFullError, GlideMQError, GlideMQValidationError
from glidemq_py.telemetry.state import TELEMETRY

MISSED_AFTER_MS: Final = 5_000
AT_ONCE: Final = 100
"""Maximum number of jobs of one scheduler added per call; the remaining ones are due immediately."""
WATCH_MS: Final = 5_000
"""Interval at which a waiting scheduler checks its job, in case the notification of its end was lost."""

_SKIPS: Final = '"skipWithoutWorker"'
_REJECTED: Final = frozenset({"cost", "backlog"})
_ENDED: Final = frozenset({"completed", "failed", "gone"})


@dataclass(slots=True)
class _Run:
    """The due times to fire, and the next one: 0 = waits for its job, None = the scheduler ends."""

    instants: list[int] = field(default_factory=list[int])
    following: int | None = None


def plan(link: QueueLink, row: DueRow, now: int, *, has_worker: bool = True) -> FireRow:
    """Return the jobs and the new entry of a scheduler that is due ``now``.

    Args:
        link: the queue.
        row: the entry.
        now: the server's time, epoch ms.
        has_worker: whether the queue has a worker.

    Raises:
        GlideMQValidationError: the entry is invalid, or its jobs cannot be encoded (serializer, size).
    """
    entry = Entry(row.text)
    due = entry.next_run
    if entry.paused:
        return _paused(entry, row, now)
    if due > now:
        due = entry.bounded(due, now)  # the index was wrong, or the clock was set back
        return _fired(row, row.text if due == entry.next_run else entry.changed(nextRun=due), due)
    if entry.waits:
        return _waiting(entry, row, now)
    run = _run(entry, due, now)
    schedule = entry.schedule
    if schedule.skip_without_worker and not has_worker and run.instants:
        if run.following is None:
            return _fired(row, "", 0)
        return _fired(row, entry.changed(**_skipped(entry, run.following, now), buffered=None), run.following)
    count = entry.number("iterationCount") + len(run.instants)
    limit = schedule.limit
    if run.following is None or (limit is not None and count >= limit):
        text, tracked = "", False
    else:
        keys: dict[str, Any] = {"iterationCount": count, "nextRun": run.following}
        tracked = bool(run.instants) and (schedule.repeat_after_complete is not None or schedule.overlap != "allow")
        if run.instants:
            keys["lastRun"] = now
        if tracked:
            keys |= {"lastJobId": None, "lastJobRun": now}
        if entry.buffered:
            keys["buffered"] = None
        if run.instants:
            keys["runs"] = None  # the server adds them again, with the new ones
        text = entry.changed(**keys)
    jobs = [_job(link, entry, row.name)] * len(run.instants)
    named = tracked and schedule.overlap != "skip"
    kept = json.dumps(entry.runs[len(run.instants) - RUNS_KEPT :])[1:-1] if len(run.instants) < RUNS_KEPT else ""
    fired = FireRow(
        row.name, row.home, row.text, text, run.following or now + WATCH_MS, jobs, run.instants, tracked, named,
        runs=kept if run.instants else "",
    )  # fmt: skip
    return fired if schedule.overlap == "allow" else _unless_overlapping(fired, entry, run, now)


def _unless_overlapping(fired: FireRow, entry: Entry, run: _Run, now: int) -> FireRow:
    """Return the row with what to store instead if the last job is unfinished."""
    last = entry.last_job_id
    if last is None or not run.instants:
        return fired
    if entry.schedule.overlap == "buffer_one":
        text = entry.text if entry.buffered else entry.changed(nextRun=run.instants[0], buffered=True)
        return fired._replace(last_job_id=last, overlap_text=text, overlap_due=now + WATCH_MS)
    if run.following is None:
        return fired._replace(last_job_id=last)
    text = entry.changed(**_skipped(entry, run.following, now))
    return fired._replace(last_job_id=last, overlap_text=text, overlap_due=run.following)


def _skipped(entry: Entry, following: int, now: int) -> dict[str, Any]:
    return {"nextRun": following, "skippedCount": entry.number("skippedCount") + 1, "lastSkipped": now}


def postponed(row: DueRow, until: int) -> FireRow:
    """Return a row that leaves the entry unchanged and makes it due at ``until`` (epoch ms)."""
    return _fired(row, row.text, until)


def _fired(row: DueRow, text: str, due: int) -> FireRow:
    return FireRow(row.name, row.home, row.text, text, due, [], [], False)


def _waiting(entry: Entry, row: DueRow, now: int) -> FireRow:
    """Return the next step of a repeat-after-complete scheduler: it continues when its job completed or failed."""
    schedule = entry.schedule
    assert schedule.repeat_after_complete is not None
    ended = _ended(entry, row, now)
    if ended is None:
        return postponed(row, now + WATCH_MS)
    next_run = max(min(ended, now) + schedule.repeat_after_complete, schedule.start_date or 0)
    if schedule.end_date is not None and next_run > schedule.end_date:
        return _fired(row, "", 0)
    return _fired(row, entry.changed(nextRun=next_run), next_run)


def _paused(entry: Entry, row: DueRow, now: int) -> FireRow:
    """Return the row of a paused scheduler that was due: its job may have ended, after which it repeats."""
    delay, ended = entry.schedule.repeat_after_complete, _ended(entry, row, now) if entry.waits else None
    if delay is None or ended is None:
        return postponed(row, entry.next_run)
    return _fired(row, entry.changed(pausedRun=min(ended, now) + delay), entry.next_run)


def _ended(entry: Entry, row: DueRow, now: int) -> int | None:
    """Return when the job that a scheduler waits for finished (epoch ms), or None if it is unfinished."""
    state, at, notified, idle = row.last_job
    job_id = entry.last_job_id
    notified_at, _, notified_id = notified.partition(":")
    if notified_id and job_id in (None, notified_id):
        return int(notified_at)
    if job_id is not None:
        return (int(at) if at.isdigit() else now) if state in _ENDED else None
    # A Node client fired it and did not store the id of the job.
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
    if due == 0:  # only repeat-after-complete schedulers wait
        return _Run([], schedule.following(now, now))
    if schedule.misfire == "fire_all":
        run = _Run([], due)
        while run.following is not None and run.following <= now and len(run.instants) < min(left, AT_ONCE):
            run.instants.append(run.following)
            run.following = schedule.after(run.following)
        return run
    following = schedule.following(due, now)
    if schedule.misfire == "skip" and not entry.buffered:
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
    """A serializer for text that is already serialized."""

    def serialize(self, value: Any, /) -> str:
        return str(value)

    def deserialize(self, text: str, /) -> Any:
        return text


_AS_IT_IS: Final = _AsItIs()


_log = get_logger(__name__)

_STANDBY_S: Final = 0.2
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0
_UNREADABLE_MS: Final = 60_000


def _ignore(_: BaseException) -> None:
    """Ignore the error."""


def _measure(queue: str, row: FireRow, results: Sequence[Any], now: int) -> None:
    """Report the jobs that a scheduler has added."""
    added = sum(isinstance(result, str) or AddedOther(*result).outcome not in _REJECTED for result in results)
    if added and row.instants:
        late = max(0, now - row.instants[0]) / 1000
        for meter in TELEMETRY.meters:
            meter.fired(queue, row.name, added, late)


def _rejection(row: FireRow, results: Sequence[Any]) -> GlideMQError | None:
    """Return the error of the first job that was not added; None if all were. A text has no results of jobs."""
    for job, result in zip(row.jobs, () if isinstance(results, str) else results, strict=False):
        outcome, limit = ("", "") if isinstance(result, str) else AddedOther(*result)
        fields = dict(zip(NEW_JOB, job, strict=False))
        if outcome == "backlog":
            return FairKeyFullError(cast("str", fields["fair"]), int(limit))
        if outcome == "cost":
            group = dict(zip(ORDERING, cast("list[Any]", fields["ordering"]), strict=False))
            return cost_error(group.get("cost") or None, group["group"])
    return None


class SchedulerTask(BackgroundTask):
    """Fires the schedulers of one queue for as long as it runs.

    Args:
        link: the queue.
        quiet: leave out the `added` events.
        on_error: called with every error, after it is logged.
        longest_s: maximum pause in seconds, in case `on_revision` is not called.
        is_worker: whether this process has a worker of the queue.
        holder: name of this process; a channel if it is called there when schedulers change.
    """

    def __init__(
        self,
        *,
        link: QueueLink,
        quiet: bool = False,
        on_error: Callable[[BaseException], None] = _ignore,
        longest_s: float = 60.0,
        is_worker: bool = False,
        holder: str = "",
    ) -> None:
        super().__init__(f"schedulers-{link.keys.name}")
        self._link = link
        self._quiet = quiet
        self._on_error = on_error
        self._longest_s = longest_s
        self._is_worker = is_worker
        self._holder = holder or secrets.token_hex(8)
        self._revision = 0
        self._leads = True
        self._changed = asyncio.Event()
        self._failures = RepeatedFailure(_log, f"queue {link.label}: firing schedulers")

    def on_revision(self, revision: int) -> None:
        """Wake up if the schedulers have changed; ``revision`` counts the changes and comes with each exchange."""
        if revision != self._revision:
            self._revision = revision
            self.wake()

    def wake(self) -> None:
        """Look at the schedulers now."""
        self._changed.set()

    async def _repeat(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            self._changed.clear()
            try:
                wait = await self.fire() / 1000
                self._failures.succeeded()
                pause = _FIRST_PAUSE_S
            except ClosedError:
                return
            except GlideMQError as error:
                self._failures.failed(error, repeated_level(self._link.transport, error))
                self._on_error(error)
                wait = pause * random.uniform(0.5, 1.5)
                pause = min(pause * 2, _LAST_PAUSE_S)
            if wait > 0 and not self._leads:
                wait += _STANDBY_S * random.uniform(0.8, 1.2)
            if wait > 0:
                wait = min(wait, self._longest_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._changed.wait()

    async def fire(self) -> int:
        """Fire the schedulers that are due and return the milliseconds until the next may be due.

        Raises:
            GlideMQError: a call failed.
        """
        link = self._link
        reply = await link.call(schedulers_due, self._holder)
        self._revision = reply.revision // SCHEDULER_REVISION
        self._leads = reply.leader in ("", self._holder)
        if not reply.rows:
            return reply.wait
        has_worker = self._is_worker or not any(_SKIPS in row.text for row in reply.rows) or await _has_worker(link)
        rows = [self._plan(row, reply.now, has_worker) for row in reply.rows]
        fired = await link.call(schedulers_fire, self._holder, rows, self._quiet)
        for row, outcome in zip(rows, fired.outcomes, strict=True):
            if TELEMETRY.on and isinstance(outcome, list):
                _measure(link.queue_name, row, outcome, fired.now)
            if outcome == "overlap":
                unfinished = link.shown_id(row.last_job_id)
                _log.debug("queue %r: scheduler %r: job %s is unfinished", link.queue_name, row.name, unfinished)
            rejected = _rejection(row, outcome)
            if rejected is not None:
                rejected.add_note(f"scheduler {row.name!r} of queue {link.queue_name!r}")
                self._report(row.name, str(rejected), rejected)
        return 0

    def _plan(self, row: DueRow, now: int, has_worker: bool = True) -> FireRow:
        try:
            return plan(self._link, row, now, has_worker=has_worker)
        except GlideMQValidationError as error:
            self._report(row.name, str(error), error)
        except Exception as error:
            # A broken entry must not stop the other schedulers.
            self._report(row.name, repr(error), error)
        return postponed(row, now + _UNREADABLE_MS)

    def _report(self, name: str, problem: str, error: BaseException) -> None:
        _log.error("queue %r: firing scheduler %r failed: %s", self._link.queue_name, name, problem)
        self._on_error(error)
