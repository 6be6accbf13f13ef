"""Bulk adds to a partitioned queue whose jobs have parents or dependencies.

A dependency must exist before the job that waits for it. Within a partition one call adds both. Otherwise the bulk is
added in stages: the dependencies of a stage's jobs are in earlier stages, or in the same stage and partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.layout_errors import JobMovedError, LayoutChangedError
from glidemq_py._features.dependencies.dependencies import check_dependencies
from glidemq_py._features.flows.adding import check_remote_parents, invalid_parent
from glidemq_py._features.flows.calls import add_remote_children
from glidemq_py._features.flows.parent_option import JobRef
from glidemq_py._features.flows.references import references_of
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import GlideMQError, GlideMQValidationError, JobNotFoundError

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue
    from glidemq_py._api.partitioned import PartitionedQueue

__all__ = ["REROUTED", "Divided", "Part", "Stages", "dependencies_within", "reject_unmet"]

REROUTED: Final = (JobMovedError, LayoutChangedError)
"""Errors of jobs that are routed again, and results of those that were not sent so far."""
Part = tuple["Queue[Any, Any]", list[int]]
"""A partition, and the positions in the bulk of the jobs that are added to it."""


class Divided(NamedTuple):
    """A bulk, divided among the partitions."""

    parts: list[Part]
    related: dict[int, JobOptions]
    """Options of the jobs with parents or dependencies, by position."""
    within: dict[int, dict[int, str]]
    """Positions and ids of the dependencies in the same bulk, by the position of the job that waits."""


def dependencies_within(
    queue: str, related: Mapping[int, JobOptions], ids: Mapping[str, int]
) -> dict[int, dict[int, str]]:
    """Return `Divided.within`.

    Args:
        queue: Name of the queue.
        related: Options of the jobs with parents or dependencies, by position.
        ids: Positions of the jobs with a custom id.

    Raises:
        GlideMQValidationError: If jobs depend on one another in a cycle.
    """
    within: dict[int, dict[int, str]] = {}
    for i, options in related.items():
        refs = [ref for ref in options.depends_on or () if ref.queue in ("", queue) and ref.id in ids]
        if refs:
            within[i] = {ids[ref.id]: ref.id for ref in refs}
    try:
        TopologicalSorter(within).prepare()
    except CycleError as error:
        stuck = error.args[1][0]
        raise GlideMQValidationError(
            f"jobs[{stuck}].depends_on", [each.id for each in related[stuck].depends_on or ()],
            "jobs of a bulk must not depend on one another in a cycle",
        ) from None  # fmt: skip
    return within


class Stages:
    """The stages of a bulk.

    Args:
        queue: Name of the queue.
        divided: The bulk.
        results: The results of its jobs, by position; those that are to be sent have one of `REROUTED`.
    """

    def __init__(self, queue: str, divided: Divided, results: list[Any]) -> None:
        self._queue, self._divided, self._results = queue, divided, results
        part_of = {i: number for number, (_, mine) in enumerate(divided.parts) for i in mine} if divided.within else {}
        self._stage: dict[int, int] = {}
        for i in TopologicalSorter(divided.within).static_order():
            needed = divided.within.get(i, ())
            self._stage[i] = max((self._stage[each] + (part_of[each] != part_of[i]) for each in needed), default=0)
        self.count = max(self._stage.values(), default=0) + 1

    def parts(self, stage: int) -> list[Part]:
        """Return the jobs to send now. Those with a dependency that was not added get an error, or wait for it."""
        if not self._divided.related:
            return self._divided.parts
        results, parts = self._results, list[Part]()
        for i, needed in self._divided.within.items():
            if self._stage[i] == stage:
                self._check(i, needed)
        for queue, mine in self._divided.parts:
            sent = [i for i in mine if self._stage.get(i, 0) == stage and isinstance(results[i], REROUTED)]
            sent = [i for i in sent if not self._waits(i, stage)]
            if sent:
                parts.append((queue, sent))
        return parts

    def _check(self, i: int, needed: Mapping[int, str]) -> None:
        for each, job_id in needed.items():
            result = self._results[each]
            if isinstance(result, GlideMQError) and not isinstance(result, REROUTED):
                self._results[i] = JobNotFoundError(job_id, f"in queue {self._queue!r} (depends_on)")

    def _waits(self, i: int, stage: int) -> bool:
        """Return True if a dependency in an earlier stage is to be routed again, so that this job is sent after it."""
        waiting = [i]
        for each in waiting:
            for needed in self._divided.within.get(each, ()):
                if self._stage[needed] == stage:
                    waiting.append(needed)
                elif isinstance(self._results[needed], REROUTED):
                    return True
        return False


async def reject_unmet(self: PartitionedQueue, divided: Divided, results: list[Any]) -> None:
    """Look for parents and dependencies. Jobs whose own are missing in this queue get their error as result.

    Raises:
        JobNotFoundError: If a parent or a dependency in another queue does not exist.
        JobStateError: If a parent in another queue has already ended.
    """
    if not divided.related:
        return
    name, link = self.home.name, await self.queues[0]._connected()
    awaited: dict[JobRef, list[int]] = {}
    parents: dict[JobRef, list[int]] = {}
    for i, options in divided.related.items():
        inside = divided.within.get(i, {}).values()
        for ref in options.depends_on or ():
            if ref.queue not in ("", name) or ref.id not in inside:
                awaited.setdefault(JobRef(ref.queue or name, ref.id), []).append(i)
        if options.parent is not None:
            parents.setdefault(options.parent, []).append(i)
    placed = await references_of(link).placed([*awaited, *parents])
    others: dict[str, list[str]] = {}
    for ref in awaited:
        if ref.queue != name:
            others.setdefault(placed[ref].queue, []).append(placed[ref].id)
    await check_dependencies(link, [others])
    own = [ref for ref in awaited if ref.queue == name]
    existing = await references_of(link).existing(placed[ref] for ref in own)
    for ref in own:
        if placed[ref] not in existing:
            for i in awaited[ref]:
                results[i] = JobNotFoundError(ref.id, f"in queue {name!r} (depends_on)")
    for ref, children in parents.items():
        if ref.queue != name:
            await check_remote_parents(link, [placed[ref]])
        elif error := await _unmet_parent(link, ref, placed[ref]):
            for i in children:
                results[i] = error


async def _unmet_parent(link: QueueLink, parent: JobRef, place: JobRef) -> Exception | None:
    call = add_remote_children(QueueKeys(link.keys.prefix, place.queue).meta, place.id, [])
    answer = await link.transport.call(call)
    return None if answer == "ok" else invalid_parent(parent, answer)
