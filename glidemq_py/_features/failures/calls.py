"""Calls of the failures feature (lua/features/failures)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader

Filter = tuple[Sequence[str], str | bool, int | bool, int | bool]
"""Reasons (empty = all), name, and the first and last time of the failure, epoch ms; False = any."""


@declared("failure")
class FailureRow(NamedTuple):
    """A failed job in the reply of `failures_page`."""

    id: str
    name: str
    reason: str
    error: str
    failed_type: str
    failed_at: int
    attempts: int
    retries: int
    next_retry: int | bool
    expires: int | bool


@declared("failures_page_reply")
class PageReply(NamedTuple):
    """Reply of `failures_page`."""

    rows: list[list[Any]]
    cursor: str


@declared("failures_change_reply")
class ChangeReply(NamedTuple):
    """Reply of `failures_change`."""

    changed: int
    cursor: str
    high: int
    """Last time of a failure to include, for the next call."""


@declared("failure_stats_reply")
class StatsReply(NamedTuple):
    """Reply of `failure_stats`."""

    kept: int
    oldest: int
    newest: int
    retries: int
    counts: list[str]


@declared("run_failure_policy_reply")
class PolicyReply(NamedTuple):
    """Reply of `run_failure_policy`."""

    retried: int
    deleted: int
    more: int
    """1 = call again."""
    wait: int
    """Milliseconds until the next job is due; -1 = none."""


def failures_page(meta: str, filter: Filter, cursor: str, count: int) -> Call[PageReply]:
    """Return failed jobs after ``cursor`` ('' = the first), oldest first; ``count`` of them are read."""
    reasons, name, low, high = filter
    arguments = requests.failures_page(reasons=reasons, name=name, low=low, high=high, cursor=cursor, count=count)
    return Call("failures_page", meta, arguments, reader(PageReply))


def failures_change(meta: str, action: str, filter: Filter, cursor: str, count: int, total: int) -> Call[ChangeReply]:
    """Requeue ('retry') or delete ('purge') failed jobs; ``total`` of previous calls are in the event of the last."""
    reasons, name, low, high = filter
    arguments = requests.failures_change(
        action=action, reasons=reasons, name=name, low=low, high=high, cursor=cursor, count=count, total=total
    )
    return Call("failures_change", meta, arguments, reader(ChangeReply))


def failure_stats(meta: str) -> Call[StatsReply]:
    """Return the numbers of failed jobs."""
    return Call("failure_stats", meta, (), reader(StatsReply))


def run_failure_policy(meta: str, is_first: bool) -> Call[PolicyReply]:
    """Execute the failure policy for a batch of jobs; ``is_first`` for the first call of a round."""
    arguments = requests.run_failure_policy(is_first=int(is_first))
    return Call("run_failure_policy", meta, arguments, reader(PolicyReply))
