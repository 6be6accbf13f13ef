"""Dependencies and parents of jobs: for new ones the calls before and after an add (``lua/features/dependencies``).

Those in the queue or partition of the new job are checked and registered by the call that adds it. Others take a call
before the add, which checks that they exist, and one after it, which registers the job there. A child that finishes
between the two is still reported to its parent. If the client stops between the two, the workers of the job's queue
read the outcomes of dependencies (`WaitingParentsTask`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, Literal, NamedTuple, cast

from glidemq_py._core.calls import pieces
from glidemq_py._core.calls.adding import NEW_JOB, AddedOther, Row, encode_row
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import QueueKeys, parse_job_id
from glidemq_py._core.option_values import JobRef, ParentInput, parse_dependencies
from glidemq_py._features.flows import calls as flows
from glidemq_py._features.flows.calls import ChildOutcome, DependencyAnswer
from glidemq_py._features.flows.children import children_of, ref_of_member
from glidemq_py._features.flows.references import is_own, references_of, shown_ref
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQValidationError, JobNotFoundError, JobStateError

IDS_PER_CALL: Final = 500
_PARENT, _DEPENDENCIES = NEW_JOB.index("parent"), NEW_JOB.index("dependencies")


def missing_dependency(shown: JobRef) -> JobNotFoundError:
    """Return the error for a dependency that does not exist."""
    return JobNotFoundError(shown.id, f"in queue {shown.queue!r} (depends_on)")


def invalid_parent(parent: JobRef, answer: str) -> Exception:
    """Return the error for a deleted or finished parent, or one with the ordering key of the child."""
    if answer == "gone":
        return JobNotFoundError(parent.id, f"in queue {parent.queue!r} (parent)")
    if answer == "ordering":
        problem = "a job with its ordering key waits for it, so it would never run; use another key or more concurrency"
        return GlideMQValidationError("parent", parent.id, problem)
    return JobStateError(parent.id, answer, "add a child to", queue=parent.queue)


class Relations:
    """The parents and dependencies of the jobs of one add.

    Args:
        queue: Name of the queue.
        options: Options of the jobs that have any, by position.
        ids: Positions of the jobs with a custom id.
    """

    def __init__(self, queue: str, options: Mapping[int, JobOptions], ids: Mapping[str, int]) -> None:
        self.options = options
        self._queue = queue
        self.within: dict[int, dict[JobRef, int]] = {}
        """Positions of dependencies in the same bulk, by the position of the job that waits."""
        for i, each in options.items():
            found = {ref: ids[ref.id] for ref in each.depends_on or () if ref.queue in ("", queue) and ref.id in ids}
            if found:
                self.within[i] = found
        self.added: dict[int, JobRef] = {}
        """Queue or partition, and id in it, of jobs of `within` that were sent before."""
        self._places: dict[JobRef, JobRef] = {}
        """The queue or partition of each other parent and dependency, and the id in it."""
        self._generations: dict[JobRef, str] = {}
        """Generations of parents in other queues or partitions."""
        self._placed: dict[int, JobOptions] = {}

    def order(self, count: int) -> Sequence[int]:
        """Return the positions of the jobs, dependencies first.

        Raises:
            GlideMQValidationError: Jobs depend on one another in a cycle.
        """
        if all(needed < i for i, found in self.within.items() for needed in found.values()):
            return range(count)
        try:
            waits = {i: self.within.get(i, {}).values() for i in range(count)}
            return [*TopologicalSorter(waits).static_order()]
        except CycleError as error:
            stuck = error.args[1][0]
            raise GlideMQValidationError(
                f"jobs[{stuck}].depends_on", [each.id for each in self.options[stuck].depends_on or ()],
                "jobs of a bulk must not depend on one another in a cycle",
            ) from None  # fmt: skip

    async def check(self, link: QueueLink, part_of: Mapping[int, str]) -> dict[int, Exception]:
        """Check that parents and dependencies in other queues or partitions exist, and accept the jobs.

        Args:
            link: Any link of the queue.
            part_of: Names of the queue or partition of each job that has them, by position.

        Returns:
            Errors by position, for jobs whose parent or dependency should be in the same queue.

        Raises:
            JobNotFoundError: A parent or dependency in another queue does not exist.
            JobStateError: A parent in another queue has ended.
        """
        wanted = {ref for i in part_of for ref in self._outside(i)}
        whole = {ref: JobRef(ref.queue or self._queue, ref.id) for ref in wanted}
        if link.partition is None:
            whole = {ref: given for ref, given in whole.items() if not is_own(link, given.queue)}
        placed = await references_of(link).placed(whole.values())
        self._places = {ref: placed[given] for ref, given in whole.items()}
        parents: dict[JobRef, list[int]] = {}
        awaited: dict[JobRef, list[int]] = {}
        for i, part in part_of.items():
            for ref in self._outside(i):
                if ref in whole and self._places[ref].queue != part:
                    (parents if ref == self.options[i].parent else awaited).setdefault(ref, []).append(i)
        rejected: list[tuple[JobRef, Exception, list[int]]] = []
        for ref, positions in parents.items():
            place = self._places[ref]
            try:
                self._generations[place] = await _attach(link, place, [], shown=whole[ref])
            except (JobNotFoundError, JobStateError, GlideMQValidationError) as error:
                rejected.append((ref, error, positions))
        existing = await references_of(link).existing(self._places[ref] for ref in awaited)
        rejected += [
            (ref, missing_dependency(whole[ref]), positions)
            for ref, positions in awaited.items()
            if self._places[ref] not in existing
        ]
        for ref, why, _ in rejected:
            if whole[ref].queue != self._queue:
                raise why
        return {i: why for _, why, positions in rejected for i in positions}

    def _outside(self, i: int) -> list[JobRef]:
        options, within = self.options[i], self.within.get(i, ())
        own = () if options.parent is None else (options.parent,)
        return [*own, *(ref for ref in options.depends_on or () if ref not in within)]

    def row(self, i: int, link: QueueLink, name: str, data: Any, given: JobOptions) -> Row:
        """Return the row of a job, with its parent and dependencies as keys and records name them."""
        parent = given.parent and self._places.get(given.parent, given.parent)
        depends_on = given.depends_on and tuple(dict.fromkeys(self._place(i, ref, link) for ref in given.depends_on))
        if parent != given.parent or depends_on != given.depends_on:
            given = given.with_references(parent, depends_on)
        self._placed[i] = given
        row = encode_row(link, name, data, given)
        if parent is not None and parent.queue != link.keys.name:
            row[_PARENT] = [parent.id, parent.queue, self._generations[parent]]
        return row

    def _place(self, i: int, ref: JobRef, link: QueueLink) -> JobRef:
        beside = self.within.get(i, {}).get(ref)
        if beside is None or link.partition is None:
            return self._places.get(ref, ref)
        place = self.added.get(beside)
        return JobRef("", ref.id) if place is None or place.queue == link.keys.name else place

    async def register(
        self, link: QueueLink, positions: Sequence[int], results: list[Any], rows: Sequence[Row]
    ) -> list[Any]:
        """Register added jobs with their parents and dependencies in other queues or partitions.

        A duplicate is registered as well, because its first add may have stopped before that.

        Args:
            link: The jobs' queue or partition.
            positions: Their positions.
            results: The results of the add.
            rows: Their rows.

        Returns:
            The results; those of jobs with a dependency that was removed since the check are errors, and the job is
            deleted.
        """
        children: dict[JobRef, list[Any]] = {}
        waiting: list[tuple[Any, dict[str, list[str]], Row]] = []
        for i, result, row in zip(positions, results, rows, strict=True):
            options = self._placed.get(i)
            if options is None:
                continue
            if options.parent is not None and options.parent.queue != link.keys.name:
                children.setdefault(options.parent, []).append(result)
            remote: dict[str, list[str]] = {}
            for queue, job_id in options.depends_on or ():
                if queue not in ("", link.keys.name):
                    remote.setdefault(queue, []).append(job_id)
            if remote:
                waiting.append((result, remote, row))
        for parent, mine in children.items():
            generation = self._generations[parent]
            ids = [
                each if isinstance(each, str) else await _existing_child(link, parent, generation, each)
                for each in mine
            ]  # fmt: skip
            members = [link.keys.member(job_id) for job_id in ids if job_id]
            for piece in pieces(members, IDS_PER_CALL):
                await _attach(link, parent, piece, generation)
        missing = await _register_dependents(link, waiting)
        return [missing.get(_waiting_id(each)[0], each) for each in results] if missing else results


# -- parents ------------------------------------------------------------------------------------------


async def _existing_child(link: QueueLink, parent: JobRef, generation: str, result: Any) -> str:
    """Return the id of the existing job of a duplicate if it has the same parent (the add was repeated), else ''."""
    outcome, job_id = AddedOther(*result)
    if outcome != "duplicate":
        return ""
    link_field = f"parentGeneration:{QueueKeys(link.keys.prefix, parent.queue).member(parent.id)}"
    found = await link.command("HGET", link.keys.job(job_id), link_field)
    return str(job_id) if found == generation.encode() else ""


async def _attach(
    link: QueueLink, parent: JobRef, members: Sequence[str], generation: str = "", shown: JobRef | None = None
) -> str:
    """Attach children, and return the generation of the parent."""
    meta = QueueKeys(link.keys.prefix, parent.queue).meta
    answer = await link.transport.call(flows.add_remote_children(meta, parent.id, members, generation))
    status, _, found = answer.partition(" ")
    if status != "ok":
        raise invalid_parent(shown or (await references_of(link).shown([parent]))[0], answer)
    return found


# -- dependencies -------------------------------------------------------------------------------------


async def depend(
    link: QueueLink[Any], queue: str, rows: Sequence[tuple[str, Sequence[str], str]]
) -> list[DependencyAnswer]:
    """Register jobs that wait for jobs of another queue."""
    answers: list[DependencyAnswer] = await link.transport.call(
        flows.depend(QueueKeys(link.keys.prefix, queue).meta, rows)
    )
    return answers


async def _register_dependents(
    link: QueueLink, added: Iterable[tuple[Any, dict[str, list[str]], Row]]
) -> dict[str, JobNotFoundError]:
    by_queue: dict[str, list[tuple[str, str, str]]] = {}
    repeated: set[str] = set()
    for result, dependencies, row in added:
        waiting, is_new = _waiting_id(result)
        if waiting:
            generation: str = cast("Any", row[_DEPENDENCIES])[-1] if is_new else ""
            if not is_new:  # the stored generation is that of the first add
                repeated.add(waiting)
                dependencies = await _given_before(link, waiting, dependencies)
            for queue, ids in dependencies.items():
                by_queue.setdefault(queue, []).extend((waiting, job_id, generation) for job_id in ids)
    ends: list[ChildOutcome] = []
    missing: dict[str, JobNotFoundError] = {}
    for queue, pairs in by_queue.items():
        keys = QueueKeys(link.keys.prefix, queue)
        for piece in pieces(pairs, IDS_PER_CALL):
            rows = [(link.keys.member(waiting), [job_id], generation) for waiting, job_id, generation in piece]
            for (waiting, job_id, generation), answer in zip(piece, await depend(link, queue, rows), strict=True):
                if answer.how == "gone":
                    if waiting not in repeated:  # else it may have ended, and its outcome is on its way
                        (shown,) = await references_of(link).shown([JobRef(queue, job_id)])
                        missing[waiting] = missing_dependency(shown)
                elif answer.how != "open":
                    ends.append(ChildOutcome(waiting, keys.member(job_id), *answer, "fail_parent", generation))
    for waiting in missing:
        await link.call(flows.withdraw_dependent, waiting)
    for some in pieces(ends, IDS_PER_CALL):
        await link.call(flows.children_ended, some)
    return missing


def _waiting_id(result: Any) -> tuple[str, bool]:
    """Return the id of the job of a row, "" if there is none, and whether the row has added it."""
    if isinstance(result, str):
        return result, True
    outcome, job_id = AddedOther(*result)
    is_new = outcome in ("replaced", "staged")
    return job_id if is_new or outcome == "duplicate" else "", is_new


async def _given_before(link: QueueLink, job_id: str, dependencies: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return those dependencies that an existing job has: its add is repeated, and may not have registered it."""
    pairs = [(queue, each) for queue, ids in dependencies.items() for each in ids]
    names = [f"dependency:{QueueKeys(link.keys.prefix, queue).member(each)}" for queue, each in pairs]
    found: dict[str, list[str]] = {}
    for (queue, each), policy in zip(pairs, await link.command("HMGET", link.keys.job(job_id), *names), strict=True):
        if policy is not None:
            found.setdefault(queue, []).append(each)
    return found


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


async def add_dependency(link: QueueLink[Any], job_id: str, dependency: JobRef, policy: str = "wait") -> None:
    """Let a job that has not started wait for a job that exists.

    Args:
        link: The queue or partition of the job that waits.
        job_id: Its id there.
        dependency: The job that it waits for.
        policy: Effect if that job fails: "wait", "fail_parent", "ignore" or "remove".

    Raises:
        JobNotFoundError: One of the jobs does not exist.
        JobStateError: The job has started, has a turn in an ordering group, or is being fetched.
    """
    shown = dependency
    dependency = (await references_of(link).placed([shown]))[shown]
    keys = QueueKeys(link.keys.prefix, dependency.queue)
    member, is_remote = keys.member(dependency.id), dependency.queue != link.keys.name
    if is_remote and not await references_of(link).existing([dependency]):
        raise missing_dependency(shown)
    answer = await link.call(flows.add_dependency, job_id, member, policy)
    if answer in ("gone", "unknown"):
        raise link.not_found(link.shown_id(job_id)) if answer == "gone" else missing_dependency(shown)
    status, _, generation = answer.partition(" ")
    if status != "ok":
        raise JobStateError(link.shown_id(job_id), answer, "add a dependency to", queue=link.queue_name)
    if not is_remote:
        return
    waiting = link.keys.member(job_id)
    (found,) = await depend(link, dependency.queue, [(waiting, [dependency.id], generation)])
    if found.how == "gone":  # it was removed since the check
        await link.call(flows.remove_dependency, job_id, member)
        raise missing_dependency(shown)
    if found.how != "open":
        outcome = ChildOutcome(job_id, member, *found, policy, generation)
        await link.call(flows.children_ended, [outcome])


async def read_dependencies(
    link: QueueLink[Any], job_id: str, state: Literal["open", "settled"] | None = None
) -> list[Dependency]:
    """Return the jobs that a job waits for, or waited for; see `Job.get_dependencies`."""
    if state not in (None, "open", "settled"):
        raise GlideMQValidationError("state", state, "must be 'open', 'settled' or None")
    outcomes = [child async for child in children_of(link, job_id)]
    found: list[Dependency] = []
    for piece in pieces(outcomes, _FIELDS_PER_CALL):
        found += await _dependencies_among(link, job_id, piece)
    return found if state is None else [each for each in found if each.waiting is (state == "open")]


async def _dependencies_among(
    link: QueueLink[Any], job_id: str, outcomes: Sequence[tuple[str, str]]
) -> list[Dependency]:
    names = [name for member, _ in outcomes for name in (f"dependency:{member}", f"depdone:{member}")]
    values = await link.command("HMGET", link.keys.job(job_id), *names)
    found: list[Dependency] = []
    for (member, outcome), policy, done in zip(outcomes, values[::2], values[1::2], strict=True):
        if policy is not None:
            failed = outcome[:1] == "f"
            state: Literal["open", "completed", "failed"] = (
                "failed" if failed else "open" if done is None else "completed"
            )
            shown = await shown_ref(link, *ref_of_member(member))
            found.append(Dependency(*shown, state, done is None, outcome[1:] if failed else None))
    return found


async def remove_dependency(link: QueueLink[Any], job_id: str, dependency: str | ParentInput) -> bool:
    """Let a job wait no longer for a dependency or a child; see `Job.remove_dependency`."""
    if isinstance(dependency, str):
        given = JobRef("", parse_job_id(dependency))
    else:
        (given,) = parse_dependencies("dependency", (dependency,))
    shown, own = JobRef(given.queue or link.queue_name, given.id), link.shown_id(job_id)
    ref = (await references_of(link).placed([shown]))[shown]
    member = QueueKeys(link.keys.prefix, ref.queue).member(ref.id)
    answer = await link.call(flows.remove_dependency, job_id, member)
    if answer == "gone":
        raise link.not_found(own)
    if answer == "unknown":
        message = f"job {own!r} has no dependency {shown.id!r} in queue {shown.queue!r}"
        raise JobStateError(own, answer, "remove a dependency of", message)
    return answer == "ok"
