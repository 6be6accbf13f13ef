"""Dependencies of a job: adding jobs that wait for others, and reading and removing a job's dependencies.

Dependencies in the job's own queue are checked and registered by the call that adds the job. Those in other queues take
a call before the add, which checks that they exist, and a call after it, which registers the job there. If the client
stops between the two, the workers of the job's queue read the outcomes (`WaitingParentsTask`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from glidemq_py._core.calls.adding import AddedOther
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.names import parse_job_id
from glidemq_py._features.dependencies.options import parse_dependencies
from glidemq_py._features.flows import calls as flows
from glidemq_py._features.flows.calls import ChildOutcome, DependencyAnswer
from glidemq_py._features.flows.job_api import children_of, ref_of_member
from glidemq_py._features.flows.parent_option import JobRef, ParentInput
from glidemq_py._features.flows.references import is_own, references_of, shown_ref
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import GlideMQValidationError, JobNotFoundError, JobStateError

if TYPE_CHECKING:
    from glidemq_py._job.job import Job

__all__ = [
    "Dependency",
    "add_dependency",
    "add_order",
    "check_dependencies",
    "get_dependencies",
    "register_dependents",
    "remote_dependencies",
    "remove_dependency",
]

_IDS_PER_CALL: Final = 500
_FIELDS_PER_CALL: Final = 200

RemoteDependencies = dict[str, list[str]]
"""Ids of dependencies in other queues, by queue."""


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


# -- adding -------------------------------------------------------------------------------------------


def remote_dependencies(link: QueueLink, options: JobOptions) -> RemoteDependencies:
    """Return the dependencies in other queues."""
    found: RemoteDependencies = {}
    for queue, job_id in options.depends_on or ():
        if queue and queue != link.keys.name:
            found.setdefault(queue, []).append(job_id)
    return found


async def check_dependencies(link: QueueLink[Any], each: Iterable[RemoteDependencies]) -> None:
    """Check that dependencies in other queues exist.

    Raises:
        JobNotFoundError: one does not exist.
    """
    wanted: dict[str, dict[str, None]] = {}
    for dependencies in each:
        for queue, ids in dependencies.items():
            wanted.setdefault(queue, {}).update(dict.fromkeys(ids))
    for queue, unique in wanted.items():
        ids = list(unique)
        for i in range(0, len(ids), _IDS_PER_CALL):
            piece = ids[i : i + _IDS_PER_CALL]
            for job_id, answer in zip(piece, await _depend(link, queue, [("", piece)]), strict=True):
                if answer.how == "gone":
                    raise await _missing(link, queue, job_id)


async def _missing(link: QueueLink[Any], queue: str, job_id: str) -> JobNotFoundError:
    return _not_found(await shown_ref(link, queue, job_id))


def _not_found(shown: JobRef) -> JobNotFoundError:
    return JobNotFoundError(shown.id, f"in queue {shown.queue!r} (depends_on)")


async def _depend(
    link: QueueLink[Any], queue: str, rows: Sequence[tuple[str, Sequence[str]]]
) -> list[DependencyAnswer]:
    answers: list[DependencyAnswer] = await link.transport.call(
        flows.depend(QueueKeys(link.keys.prefix, queue).meta, rows)
    )
    return answers


async def register_dependents(
    link: QueueLink, added: Iterable[tuple[Any, RemoteDependencies]]
) -> dict[str, JobNotFoundError]:
    """Register added jobs with their dependencies in other queues.

    Args:
        link: the jobs' queue.
        added: results of an add, each with the dependencies of the job.

    Returns:
        Errors by id of the job, for jobs with a dependency that was removed since the check. The job is deleted.
    """
    by_queue: dict[str, list[tuple[str, str]]] = {}
    for result, dependencies in added:
        waiting = _added_id(result)
        if waiting:
            for queue, ids in dependencies.items():
                by_queue.setdefault(queue, []).extend((waiting, job_id) for job_id in ids)
    ends: list[ChildOutcome] = []
    missing: dict[str, JobNotFoundError] = {}
    for queue, pairs in by_queue.items():
        keys = QueueKeys(link.keys.prefix, queue)
        for i in range(0, len(pairs), _IDS_PER_CALL):
            piece = pairs[i : i + _IDS_PER_CALL]
            answers = await _depend(link, queue, [(link.keys.member(waiting), [job_id]) for waiting, job_id in piece])
            for (waiting, job_id), answer in zip(piece, answers, strict=True):
                if answer.how == "gone":
                    missing[waiting] = await _missing(link, queue, job_id)
                elif answer.how != "open":
                    ends.append(ChildOutcome(waiting, keys.member(job_id), answer.how, answer.text, "fail_parent"))
    for waiting in missing:
        await link.transport.call(flows.withdraw_dependent(link.keys.meta, waiting))
    for i in range(0, len(ends), _IDS_PER_CALL):
        await link.transport.call(flows.children_ended(link.keys.meta, ends[i : i + _IDS_PER_CALL]))
    return missing


def _added_id(result: Any) -> str:
    """Return the id of the added job; "" if the row added none."""
    if isinstance(result, str):
        return result
    outcome, job_id = AddedOther(*result)
    return job_id if outcome in ("replaced", "staged") else ""


def add_order(link: QueueLink, options: Sequence[JobOptions]) -> list[int] | None:
    """Return the positions of a bulk's jobs, dependencies first; None if the given order is one.

    Raises:
        GlideMQValidationError: jobs of the bulk wait for one another.
    """
    places = {each.job_id: i for i, each in enumerate(options) if each.job_id}
    inside = [
        [places[job_id] for queue, job_id in each.depends_on or () if is_own(link, queue) and job_id in places]
        for each in options
    ]
    if all(place < i for i, needed in enumerate(inside) for place in needed):
        return None
    dependents: list[list[int]] = [[] for _ in options]
    for i, needed in enumerate(inside):
        for place in needed:
            dependents[place].append(i)
    missing = [len(needed) for needed in inside]
    order = [i for i, count in enumerate(missing) if not count]
    for i in order:  # grows while it is read
        for dependent in dependents[i]:
            missing[dependent] -= 1
            if not missing[dependent]:
                order.append(dependent)
    if len(order) < len(options):
        stuck = next(i for i, count in enumerate(missing) if count)
        raise GlideMQValidationError(
            f"jobs[{stuck}].depends_on", [each.id for each in options[stuck].depends_on or ()],
            "jobs of a bulk must not depend on one another in a cycle",
        )  # fmt: skip
    return order


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
    if is_remote:
        await check_dependencies(link, [{dependency.queue: [dependency.id]}])
    answer = await link.transport.call(flows.add_dependency(link.keys.meta, job._stored_id, member, policy))
    if answer in ("gone", "unknown"):
        raise link.not_found(job.id) if answer == "gone" else _not_found(shown)
    if answer != "ok":
        raise JobStateError(job.id, answer, "add a dependency to", queue=link.queue_name)
    if not is_remote:
        return
    (found,) = await _depend(link, dependency.queue, [(link.keys.member(job._stored_id), [dependency.id])])
    if found.how == "gone":  # it was removed since the check
        await link.transport.call(flows.remove_dependency(link.keys.meta, job._stored_id, member))
        raise _not_found(shown)
    if found.how != "open":
        outcome = ChildOutcome(job._stored_id, member, found.how, found.text, policy)
        await link.transport.call(flows.children_ended(link.keys.meta, [outcome]))


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
    for i in range(0, len(outcomes), _FIELDS_PER_CALL):
        found += await _dependencies_among(self, outcomes[i : i + _FIELDS_PER_CALL])
    return found if state is None else [each for each in found if each.waiting is (state == "open")]


async def _dependencies_among(job: Job[Any, Any, Any], outcomes: Sequence[tuple[str, str]]) -> list[Dependency]:
    names = [name for member, _ in outcomes for name in (f"dependency:{member}", f"depdone:{member}")]
    values = await job._link.transport.command("HMGET", job._link.keys.job(job._stored_id), *names)
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
    answer = await self._link.transport.call(flows.remove_dependency(self._link.keys.meta, self._stored_id, member))
    if answer == "gone":
        raise self._link.not_found(self.id)
    if answer == "unknown":
        message = f"job {self.id!r} has no dependency {shown.id!r} in queue {shown.queue!r}"
        raise JobStateError(self.id, answer, "remove a dependency of", message)
    return answer == "ok"
