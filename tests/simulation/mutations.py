"""Faults that can be built into the server functions, to prove that the simulation finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.inside import assemble

__all__ = ["FEATURE_FAULTS", "MUTATIONS", "PLANTED", "library_with"]


def _replace(old: str, new: str) -> Callable[[str], str]:
    def mutate(code: str) -> str:
        assert code.count(old) == 1, f"{old!r} occurs {code.count(old)} times"
        return code.replace(old, new)

    return mutate


_ATTEMPT_IS_CURRENT: Final = """\
  if tonumber(job_fence) ~= fence then return G.STALE end
  if state == 'active' and tonumber(job_processed_on) == processed_on then return nil end
"""
_ATTEMPT_HAS_ENDED: Final = """\
  if ended[state] and job_processed_on then return G.ALREADY end
  return G.STALE
"""
_ID_EXISTS: Final = "if id and id ~= '' and G.exists(q, id) then return 'duplicate', id end"

MUTATIONS: Final[dict[str, Callable[[str], str]]] = {
    # Any attempt may report the result of an active job, not only its last one.
    "no_fencing": _replace(_ATTEMPT_IS_CURRENT, "  if state == 'active' then return nil end\n"),
    # A result that is reported again, because the reply to the first report was lost, ends the job again.
    "no_repeat_check": _replace(_ATTEMPT_HAS_ENDED, "  return nil\n"),
    # An add that is repeated with the same job id adds the job again.
    "no_id_check": _replace(_ID_EXISTS, ""),
}
"""Changes of the library's text, by name."""

_MARK_IS_READ: Final = "found[i] = redis.call('EXPIRE', q.P .. 'durable:' .. r.marks[i], keep)"

PLANTED: Final[dict[str, Callable[[str], str]]] = {
    # Every mark of a durable add counts as found, so an add that a failover has lost is confirmed by the new primary.
    "durable_marks_unread": _replace(_MARK_IS_READ, "found[i] = 1"),
}
"""The same for faults that need a scenario of their own."""

_NOTE_STATE: Final = "local text = present and G.timeline(q, id, before, state, now, worker)"
_BOUNDED_TIMELINE: Final = "return #text > known.room and bounded(text, known.entries) or text"
_HISTORY: Final = "return bounded(history and history ~= '' and history .. '\\n' .. line or line, limits)"
_IS_STAGED: Final = "if not delete_existing(q, id, h, quiet) then return 'staged', id end"
_RETRY_TIME: Final = "at + policy.interval * 2 ^ math.min(math.max(0, retries - 1), EXPONENT_MAX)"
_FAILURES: Final = "policy.interval == 0 or retries >= policy.retries"
_OLD_FAILURES: Final = "ids = redis.call('ZRANGEBYSCORE', q.failed, '-inf', G.int(now - policy.age), 'LIMIT', 0, BATCH)"
_SENT_COMMANDS: Final = "if type(before) ~= 'string' or not string.find(before, MARK, 1, true) then return {} end"
_OLDEST: Final = "local ids = most > 0 and redis.call('ZRANGE', index, kept, kept + most - 1) or {}"
_BACKLOG: Final = "redis.call('ZCARD', F.queue_of(q, key)) >= most"

FEATURE_FAULTS: Final[dict[str, Callable[[str], str]]] = {
    # A push wakes no worker of several queues: it finds the job when it polls.
    "wake_up_lost": _replace("if kind then publish(q, kind) end", ""),
    # The callbacks of a batch are added while its last job is pending.
    "callback_early": _replace("h.closed ~= nil and h.pending <= 0 end", "h.closed ~= nil and h.pending <= 1 end"),
    # A batch whose jobs have all completed adds no callback for that.
    "callback_lost": _replace("if finished and h.failed <= 0 then once('success') end", ""),
    # A change of the state that does not come from a fetch or a report is not in the timeline.
    "timeline_gap": _replace(_NOTE_STATE, "local text = nil"),
    "timeline_unbounded": _replace(_BOUNDED_TIMELINE, "return text"),
    # Only the last failed attempt is kept.
    "attempts_overwritten": _replace(_HISTORY, "return bounded(line, limits)"),
    # The figures of a minute are those of the last report.
    "figures_overwritten": _replace("sums[at] = one[at] + other[at]", "sums[at] = other[at]"),
    # The failure policy requeues at once, without an end, or keeps failed jobs of every age.
    "retried_at_once": _replace(_RETRY_TIME, "at"),
    "retried_too_often": _replace(_FAILURES, "policy.interval == 0 or retries > policy.retries"),
    "old_failures_kept": _replace(_OLD_FAILURES, ""),
    # A due time is fired while the last job is unfinished.
    "schedules_overlap": _replace("if is_unfinished(q, row[FIRING.last_job_id]) then", "if false then"),
    # Heartbeats return no commands.
    "commands_lost": _replace(_SENT_COMMANDS, "do return {} end"),
    # A job that replaces an active one runs beside it.
    "not_staged": _replace(_IS_STAGED, "if not delete_existing(q, id, h, quiet) then return 'replaced' end"),
    "backlog_exceeded": _replace(_BACKLOG, _BACKLOG.replace(">=", ">")),
    # Jobs with a rank or a fair key are not promoted.
    "promotion_incomplete": _replace("local SETS = { 'scheduled', 'delayed_own', 'fair_delayed' }",
                                     "local SETS = { 'scheduled' }"),
    # A later run does not get the stored steps.
    "steps_forgotten": _replace("if last == 0 then return { steps }, 0 end", "do return { '0 0' }, 0 end"),
    # The last completion is requeued first.
    "requeued_out_of_order": _replace(_OLDEST, _OLDEST.replace("ZRANGE", "ZREVRANGE")),
}  # fmt: skip
"""Faults of single features, each with a scenario of its own (`test_features`)."""


def library_with(mutation: str | None) -> Callable[[str], str]:
    """Return the change of the library's text with this name; None changes nothing.

    Raises:
        AssertionError: if the library no longer has the text that it changes.
    """
    if mutation is None:
        return str
    change = (MUTATIONS | PLANTED | FEATURE_FAULTS)[mutation]
    change(assemble().code)  # in the run it would be an error of the server, at which clients try again
    return change
