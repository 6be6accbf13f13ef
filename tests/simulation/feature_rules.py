"""The judgment of later features on the events that the server wrote."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.simulation.ledger import Batch, Ledger

__all__ = ["MOST_BACKLOG", "judge_features"]

_ENDS: Final = ("completed", "failed", "expired", "removed")
_READY: Final = ("waiting", "prioritized")
MOST_BACKLOG: Final = 3
"""Maximum backlog of the full fair key."""


def judge_features(ledger: Ledger, problems: list[str]):
    """Append the problems of all features."""
    problems += ledger.found
    _judge_replacing(ledger, problems)
    _judge_backlog(ledger, problems)
    _judge_overlap(ledger, problems)
    _judge_promoted(ledger, problems)
    _judge_requeued(ledger, problems)
    _judge_cancelled(ledger, problems)
    _judge_batches(ledger, problems)
    _judge_steps(ledger, problems)


def _judge_steps(ledger: Ledger, problems: list[str]):
    """All runs of a job get the same result of a step, which has had its last effect then."""
    for (life, step), found in ledger.results.items():
        values = {value for _, value in found}
        if len({failovers for failovers, _ in found}) == 1 and len(values) > 1:
            problems.append(f"step {step!r} of job {life} has several results: {sorted(found)}")
        if max(values) < len(ledger.effects[life, step]) and not ledger.failovers and not ledger.loses_messages:
            problems.append(f"step {step!r} of job {life} ran again after its result: {ledger.effects[life, step]}")


def _judge_replacing(ledger: Ledger, problems: list[str]):
    """Of the jobs with a deduplication id, at most one is active, and the one that was added last has run."""
    states: dict[str, dict[str, str]] = defaultdict(dict)
    added: dict[str, list[str]] = defaultdict(list)
    for event in ledger.log:
        job_id, kind = event.get(b"jobId", b"").decode(), event[b"event"]
        key = ledger.replacing.get(job_id)
        if key is None:
            continue
        if kind == b"added":
            added[key].append(job_id)
        elif kind == b"removed":
            states[key].pop(job_id, None)
        elif kind == b"state":
            state = states[key][job_id] = event[b"state"].decode()
            others = [other for other, its in states[key].items() if its == "active" and other != job_id]
            if state == "active" and others:
                problems.append(f"job {job_id} replaces {others}, but started while that was active")
    events = ledger.events()
    for key, job_ids in added.items():
        for place, job_id in enumerate(job_ids):
            names = events[job_id]
            if not set(names) & set(_ENDS):
                problems.append(f"job {job_id} (replace) is lost: {names}")
            elif names[-1] == "removed" and set(job_ids[place + 1 :]) <= {job_id}:
                problems.append(f"job {job_id}, the last one with the deduplication id {key!r}, was removed: {names}")


def _judge_backlog(ledger: Ledger, problems: list[str]):
    """A job is added to the full fair key only below its maximum backlog."""
    ready: set[str] = set()
    for event in ledger.log:
        job_id = event.get(b"jobId", b"").decode()
        if event[b"event"] != b"state" or ledger.attempted.get(job_id) != "backlog":
            continue
        if b"new" in event and len(ready) >= MOST_BACKLOG:
            problems.append(f"job {job_id} was added to a fair key with {len(ready)} ready jobs")
        # (A recovered job may be a suspect, which waits elsewhere.)
        is_ready = b"new" in event and event[b"state"].decode() in _READY
        (ready.add if is_ready else ready.discard)(job_id)


def _judge_overlap(ledger: Ledger, problems: list[str]):
    """A scheduler without overlap adds no job while an earlier one is unfinished."""
    unfinished: dict[str, set[str]] = defaultdict(set)
    for event in ledger.log:
        job_id, kind = event.get(b"jobId", b"").decode(), event[b"event"].decode()
        name = ledger.names.get(job_id, "")
        if name not in ledger.exclusive:
            continue
        if kind == "added":
            if unfinished[name]:
                problems.append(f"{name} added job {job_id} while {sorted(unfinished[name])} were unfinished")
            unfinished[name].add(job_id)
        elif kind in _ENDS:
            unfinished[name].discard(job_id)


def _judge_promoted(ledger: Ledger, problems: list[str]):
    events = ledger.events()
    for job_id, kind in ledger.attempted.items():
        names = events.get(job_id, ())
        if kind == "promoted" and not ledger.steps_clock and "completed" in names and "promoted" not in names:
            problems.append(f"job {job_id} ran before its time, but was not promoted: {names}")


def _judge_requeued(ledger: Ledger, problems: list[str]):
    """The oldest completions are requeued, as many as replied, and each requeued job completes again."""
    completed: dict[str, int] = {}
    counts: Counter[str] = Counter()
    reopened: Counter[str] = Counter()
    for event in ledger.log:
        job_id = event.get(b"jobId", b"").decode()
        if event[b"event"] != b"state" or ledger.attempted.get(job_id) != "requeued":
            continue
        state, at = event[b"state"], int(event[b"at"])
        since = completed.pop(job_id, None)
        if state == b"completed":
            counts[job_id] += 1
            completed[job_id] = at
        elif since is not None:
            reopened[job_id] += 1
            older = sorted(other for other, its in completed.items() if its < since)
            if older:
                problems.append(f"job {job_id} was requeued before {older}, which completed earlier")
    for job_id, count in counts.items():
        if count != 1 + reopened[job_id]:
            problems.append(f"job {job_id} completed {count} times, but was requeued {reopened[job_id]} times")
    least = sum(count for _, count in ledger.requeues)
    if reopened.total() < least:
        problems.append(f"{least} jobs were requeued by the replies, but {reopened.total()} by the events")


def _judge_cancelled(ledger: Ledger, problems: list[str]):
    """A job whose worker has confirmed to cancel it fails as revoked."""
    for job_id in sorted(ledger.cancelled - ledger.excused):
        last = ledger.last(job_id)
        if not ledger.loses_messages and (last[b"event"], last.get(b"failedReason")) != (b"failed", b"revoked"):
            problems.append(f"job {job_id} was cancelled, but its last event is {last}")


def _judge_batches(ledger: Ledger, problems: list[str]):
    """Each callback of a batch is added exactly once, by the call that ended the last job or closed the batch."""
    added: Counter[str] = Counter()
    ended: set[str] = set()
    joined: dict[str, set[str]] = defaultdict(set)
    failed: set[str] = set()
    by_member = {member: name for name, batch in ledger.batches.items() for member in batch.members}
    new: list[str] = []
    call = b""
    for event in [*ledger.log, {b"call": b"", b"event": b"end"}]:
        if event[b"call"] != call:
            for callback in new:
                if not ledger.batches[callback.partition("-of-")[2]].is_torn:
                    _judge_callback(callback, joined, ended, failed, problems)
            new, call = [], event[b"call"]
        job_id, kind = event.get(b"jobId", b"").decode(), event[b"event"].decode()
        if kind == "state":
            kind = event[b"state"].decode()
        if job_id in by_member:
            name = by_member[job_id]
            _note_member(ledger.batches[name], job_id, kind, b"new" in event, ended, failed, joined[name])
        elif kind == "added" and "-of-b" in ledger.names.get(job_id, ""):
            added[ledger.names[job_id]] += 1
            new.append(ledger.names[job_id])
    for name, batch in ledger.batches.items():
        for what in ("complete", "success", "failure"):
            count = added[f"{what}-of-{name}"]
            expected = batch.has_failed if what == "failure" else what == "complete" or not batch.members & failed
            if count > 1 or (not batch.is_torn and count != int(expected and batch.exists)):
                problems.append(f"batch {name!r} added {what!r} {count} times, not {int(expected)}: {batch}")


def _judge_callback(callback: str, joined: dict[str, set[str]], ended: set[str], failed: set[str], problems: list[str]):
    what, _, name = callback.partition("-of-")
    left, failures = joined[name] - ended, joined[name] & failed
    if what != "failure" and left:
        problems.append(f"batch {name!r} added {what!r}, but {sorted(left)} have not ended")
    if what == "failure" and not failures:
        problems.append(f"batch {name!r} added {what!r}, but no job has failed")
    if what == "success" and failures:
        problems.append(f"batch {name!r} added {what!r}, but {sorted(failures)} have failed")


def _note_member(
    batch: Batch, job_id: str, kind: str, is_new: bool, ended: set[str], failed: set[str], joined: set[str]
):
    if kind == "added":
        joined.add(job_id)
    elif kind in _ENDS:
        ended.add(job_id)
        if kind == "completed":
            failed.discard(job_id)
        elif kind != "removed":
            failed.add(job_id)
            batch.has_failed = True
    elif job_id in failed and not is_new:  # requeued; a job that has completed, or is added again, stays as it was
        ended.discard(job_id)
        failed.discard(job_id)
