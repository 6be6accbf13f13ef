"""Faults that can be built into the server functions, to prove that the simulation finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["MUTATIONS", "PLANTED"]


def _replace(old: str, new: str) -> Callable[[str], str]:
    def mutate(code: str) -> str:
        assert code.count(old) == 1, f"{old!r} occurs {code.count(old)} times"
        return code.replace(old, new)

    return mutate


_ATTEMPT_IS_CURRENT: Final = """\
  if tonumber(job_fence or '') ~= fence then return G.STALE end
  if state == 'active' and tonumber(job_processed_on or '') == processed_on then return nil end
"""
_ATTEMPT_HAS_ENDED: Final = """\
  if ended[state] and job_processed_on then return G.ALREADY end
  return G.STALE
"""
_ID_EXISTS: Final = "if id and id ~= '' and redis.call('EXISTS', q.J .. id) == 1 then return 'duplicate', id end"

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
