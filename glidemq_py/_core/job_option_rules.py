"""Rules for several options of a job: those that exclude each other, and those that require another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._core.job_options import JobOptions

OFF: Final = {
    "deduplication": None, "fair_key": None, "lifo": False, "ordering": None, "parent": None, "priority": 0, "rank": 0,
}  # fmt: skip
"""The values of options that override a default."""


def check_together(options: JobOptions, given: Mapping[str, Any] | None = None) -> None:
    """Reject mutually exclusive options. ``given``: the ones that are not defaults; None = all."""
    if options.lifo:
        if options.ordering is not None:
            raise _exclusive(options, given, "lifo", "ordering")
        if options.priority:
            raise _exclusive(options, given, "lifo", "priority")
    if options.fair_key is not None:
        for other in ("ordering", "lifo", "rank"):
            if getattr(options, other) not in (None, False):
                raise _exclusive(options, given, "fair_key", other)
    if options.parent is not None and options.deduplication is not None:
        raise _exclusive(options, given, "parent", "deduplication")


def _exclusive(
    options: JobOptions, given: Mapping[str, Any] | None, first: str, second: str
) -> GlideMQValidationError:  # fmt: skip
    """Return the error for two options, one of which may be a default."""
    problem = f"options '{first}' and '{second}' are mutually exclusive"
    if given is None or (first in given) == (second in given):
        return GlideMQValidationError(first, getattr(options, first), problem)
    own, default = (first, second) if first in given else (second, first)
    hint = f"; pass {default}={OFF[default]} to add the job without it"
    problem += f": {default!r} = {getattr(options, default)!r} is a default option of the queue or task{hint}"
    return GlideMQValidationError(own, getattr(options, own), problem)


def check_effect(own: JobOptions, merged: JobOptions, *, of_flow: bool = False) -> None:
    """Reject options that would have no effect on the job.

    Args:
        own: options given for the job itself. Defaults of the queue may have no effect on some jobs.
        merged: effective options, defaults included.
        of_flow: True if the job is part of a flow, which sets its parents.

    Raises:
        GlideMQValidationError: an option requires another one.
    """
    if (merged.attempts or 0) < 2:
        for name in ("backoff", "fallbacks"):
            if getattr(own, name):
                raise GlideMQValidationError(name, getattr(own, name), "requires 'attempts' of at least 2")
    if own.on_failure is not None and merged.parent is None and not of_flow:
        raise GlideMQValidationError("on_failure", own.on_failure, "requires 'parent'")
    if own.on_dependency_failure is not None and merged.depends_on is None:
        raise GlideMQValidationError("on_dependency_failure", own.on_dependency_failure, "requires 'depends_on'")
