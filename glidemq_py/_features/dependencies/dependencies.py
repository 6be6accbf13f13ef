"""Adding, reading and removing dependencies of a job that exists; see `relations` for those of new jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from glidemq_py._core.calls import pieces
from glidemq_py._core.job_references import JobRef, ParentInput, parse_dependencies
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.names import parse_job_id
from glidemq_py._features.dependencies.relations import depend, missing_dependency
from glidemq_py._features.flows import calls as flows
from glidemq_py._features.flows.calls import ChildOutcome
from glidemq_py._features.flows.job_api import children_of, ref_of_member
from glidemq_py._features.flows.references import references_of, shown_ref
from glidemq_py.errors import GlideMQValidationError, JobStateError

if TYPE_CHECKING:
    from glidemq_py._job.job import Job

_FIELDS_PER_CALL: Final = 200


class Dependency(NamedTuple):
    """A job that another job waits for, or waited for.

    Attributes:
        queue: Name of its queue.
        id: Its id.
        state: "open" (it has not ended), "completed", or "failed" (it failed, expired, or was revoked or removed).
        waiting: True if the other job still waits for it: it is open, or it has failed with the policy "wait".
        failed_reason: Why it failed; None unless it failed.
    """

    queue: str
    id: str
    state: Literal["open", "completed", "failed"]
    waiting: bool
    failed_reason: str | None


async def add_dependency(job: Job[Any, Any, Any], dependency: JobRef, policy: str = "wait") -> None:
    """Let a job that has not started wait for a job that exists.

    Args:
        job: The job that waits.
        dependency: The job that it waits for.
        policy: Effect if that job fails: "wait", "fail_parent", "ignore" or "remove".

    Raises:
        JobNotFoundError: One of the jobs does not exist.
        JobStateError: The job has started, has a turn in an ordering group, or is being fetched.
    """
    link, shown = job._link, dependency
    dependency = (await references_of(link).placed([shown]))[shown]
    keys = QueueKeys(link.keys.prefix, dependency.queue)
    member, is_remote = keys.member(dependency.id), dependency.queue != link.keys.name
    if is_remote and not await references_of(link).existing([dependency]):
        raise missing_dependency(shown)
    answer = await link.call(flows.add_dependency, job._stored_id, member, policy)
    if answer in ("gone", "unknown"):
        raise link.not_found(job.id) if answer == "gone" else missing_dependency(shown)
    status, _, generation = answer.partition(" ")
    if status != "ok":
        raise JobStateError(job.id, answer, "add a dependency to", queue=link.queue_name)
    if not is_remote:
        return
    waiting = link.keys.member(job._stored_id)
    (found,) = await depend(link, dependency.queue, [(waiting, [dependency.id], generation)])
    if found.how == "gone":  # it was removed since the check
        await link.call(flows.remove_dependency, job._stored_id, member)
        raise missing_dependency(shown)
    if found.how != "open":
        outcome = ChildOutcome(job._stored_id, member, *found, policy, generation)
        await link.call(flows.children_ended, [outcome])


# -- methods of Job -----------------------------------------------------------------------------------


async def get_dependencies(
    self: Job[Any, Any, Any], state: Literal["open", "settled"] | None = None
) -> list[Dependency]:
    """Return the jobs that this job waits for, or waited for.

    Args:
        state: "open" returns those that it still waits for, "settled" the others; None returns all.

    Raises:
        GlideMQValidationError: ``state`` is invalid.
    """
    if state not in (None, "open", "settled"):
        raise GlideMQValidationError("state", state, "must be 'open', 'settled' or None")
    outcomes = [child async for child in children_of(self)]
    found: list[Dependency] = []
    for piece in pieces(outcomes, _FIELDS_PER_CALL):
        found += await _dependencies_among(self, piece)
    return found if state is None else [each for each in found if each.waiting is (state == "open")]


async def _dependencies_among(job: Job[Any, Any, Any], outcomes: Sequence[tuple[str, str]]) -> list[Dependency]:
    names = [name for member, _ in outcomes for name in (f"dependency:{member}", f"depdone:{member}")]
    values = await job._link.command("HMGET", job._link.keys.job(job._stored_id), *names)
    found: list[Dependency] = []
    for (member, outcome), policy, done in zip(outcomes, values[::2], values[1::2], strict=True):
        if policy is not None:
            failed = outcome[:1] == "f"
            state: Literal["open", "completed", "failed"] = (
                "failed" if failed else "open" if done is None else "completed"
            )
            shown = await shown_ref(job._link, *ref_of_member(member))
            found.append(Dependency(*shown, state, done is None, outcome[1:] if failed else None))
    return found


async def remove_dependency(self: Job[Any, Any, Any], dependency: str | ParentInput) -> bool:
    """Stop waiting for a dependency or a child. If it was the last one, this job becomes ready.

    Args:
        dependency: An id of the same queue, or a `Job`, `JobRef` or ``(queue, id)``.

    Returns:
        True if the job waited for it; False if that job has completed, or was removed before.

    Raises:
        GlideMQValidationError: ``dependency`` is invalid.
        JobNotFoundError: This job does not exist.
        JobStateError: This job neither has that dependency nor that child.
    """
    if isinstance(dependency, str):
        given = JobRef("", parse_job_id(dependency))
    else:
        (given,) = parse_dependencies("dependency", (dependency,))
    shown = JobRef(given.queue or self._link.queue_name, given.id)
    ref = (await references_of(self._link).placed([shown]))[shown]
    member = QueueKeys(self._link.keys.prefix, ref.queue).member(ref.id)
    answer = await self._link.call(flows.remove_dependency, self._stored_id, member)
    if answer == "gone":
        raise self._link.not_found(self.id)
    if answer == "unknown":
        message = f"job {self.id!r} has no dependency {shown.id!r} in queue {shown.queue!r}"
        raise JobStateError(self.id, answer, "remove a dependency of", message)
    return answer == "ok"
