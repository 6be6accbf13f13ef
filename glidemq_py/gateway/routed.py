"""Adding a job of a client.

The partition is chosen first, as for jobs of Python programs: by the group, by the unique key, else by the id that the
client has chosen, else in turn. Then the gateway makes the id, which contains the number of the partition. A queue
without partitions has one part, which is known before the job is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from glidemq_py._api.adds import add_routed
from glidemq_py._api.bulk import added_job
from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls.adding import Row
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.queue_options import parse_durable
from glidemq_py._features.queue_list import register
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import FairKeyFullError, JobNotFoundError
from glidemq_py.gateway.group_limits import group_size, set_group_sizes
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.push_order import Way
from glidemq_py.gateway.pushing import JOB_FIELDS, GroupFullError, Push, again, chosen_id, missing_job, push_of, way_of
from glidemq_py.gateway.rows import ID, add_durable_row, added_row, is_usual, remember_usual, row_of, usual_row
from glidemq_py.gateway.table import CommandError, check_all
from glidemq_py.telemetry.state import TELEMETRY

if TYPE_CHECKING:
    from glidemq_py.gateway.session import GatewayState

__all__ = ["RoutedJob", "reject_keys", "reject_two_keys", "routing_of"]

_FIELDS = {"fair_key": "groupId", "deduplication": "a unique key"}


def reject_two_keys(queue: Queue[Any, Any], fields: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check that a group and a unique key do not choose different partitions; see `routing_of`.

    Raises:
        CommandError: If they do.
    """
    group, unique = options.get("fair_key"), options.get("deduplication")
    if group is not None and unique is not None and unique["id"] != group:
        field = "debounceId" if fields["uniqueKey"] is None else "uniqueKey"
        raise CommandError(
            f"{field} {unique['id']!r} must equal groupId {group!r}: queue {wire_name(queue.name)!r} is partitioned, "
            "and each chooses the partition of the job"
        )


def routing_of(fields: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that choose the partition of a job.

    Args:
        fields: The values of `JOB_FIELDS`.
        options: The options of this package that have the same effect.
    """
    chosen = {name: options[name] for name in ("fair_key", "deduplication") if name in options}
    if not chosen and chosen_id(fields) is not None:
        chosen = {"job_id": options["job_id"]}
    return chosen


async def reject_keys(queue: Queue[Any, Any], options: Mapping[str, Any], command: str) -> None:
    """Reject options that would choose the partition of jobs whose name or id chooses it.

    Args:
        queue: The queue.
        options: Options of this package.
        command: Command or option of the protocol that adds the jobs.

    Raises:
        CommandError: If the queue is partitioned, and has such options.
        GlideMQConnectionError: If the server cannot be reached.
    """
    keys = [field for option, field in _FIELDS.items() if option in options]
    if not keys:
        return
    await queue._plain_link()
    if queue._partitions is not None:
        chooses = "the id of each job" if command == "PUSHF" else "the name of the scheduler"
        raise CommandError(
            f"{command} does not support {keys[0]} in the partitioned queue {wire_name(queue.name)!r}: {chooses} "
            "chooses the partition"
        )


class RoutedJob:
    """A job to add to a queue, which may have partitions.

    Use `checked` instead of the constructor.
    """

    def __init__(self, state: GatewayState, queue: Queue[Any, Any], given: Mapping[str, Any]) -> None:
        self._state, self._queue, self._given = state, queue, given
        self._push: Push | None = None
        """None if others with the same options were checked before."""
        self._made: tuple[Row, JobOptions] | None = None
        """Its row, if the queue has no partitions."""
        self._fields: Mapping[str, Any] = given
        self._chosen: str | None = None
        self._claimed: dict[str, str] = {}
        self._claimed_for: str | None = None
        """The queue for which its chosen id is claimed already."""
        self._routing = NO_OPTIONS
        self._way = Way.TOGETHER

    @classmethod
    async def checked(cls, state: GatewayState, queue: Queue[Any, Any], given: Mapping[str, Any]) -> Self | str:
        """Return the job with these fields, after checking them.

        Returns:
            The job; or its id, if an unfinished job of a queue without partitions has it already.

        Raises:
            CommandError: If an option is invalid, or the chosen id is in use.
            GlideMQError: If a call failed.
        """
        job, link = cls(state, queue, given), await queue._plain_link()
        is_known = not TELEMETRY.on
        if is_known and link is None:
            is_known = is_usual(given)
        elif is_known and link is not None:
            job._made = usual_row(queue, link, state.ids, given)
            is_known = job._made is not None
        return job if is_known or not await job._check(link) else str(job._chosen)

    async def _check(self, link: QueueLink | None) -> bool:
        """Check the fields; return whether an unfinished job has the chosen id. link: None = there are partitions."""
        queue, ids = self._queue, self._state.ids
        fields = check_all(JOB_FIELDS, self._given)
        push = await push_of(ids, queue.name, fields)
        self._chosen, self._way = chosen_id(fields), way_of(fields, push)
        if link is None:
            reject_two_keys(queue, fields, push[2])
        routing = routing_of(fields, push[2])
        self._routing = queue._options(routing) if routing else NO_OPTIONS
        await self._know_numbers()
        if link is not None:
            if not self._is_alone or self._chosen is not None:
                self._made = row_of(queue, link, push)  # a job is checked before its id is claimed
            if self._chosen is None:
                remember_usual(self._given, push)
            else:
                self._claimed_for = queue.name
                if await ids.claim(queue.name, [self._chosen], self._claimed):
                    return True
        await set_group_sizes(queue, [group_size(fields)])
        self._fields, self._push = fields, push
        return False

    @property
    def _is_alone(self) -> bool:
        return self._way is Way.ALONE or TELEMETRY.on

    async def _know_numbers(self) -> None:
        """Read the numbers of the partitions now, so that the jobs of a connection with one key keep their order."""
        ids = self._state.ids
        for part in self._queue._parts:
            if ids.make_known(part.name) is None:
                await ids.make(part.name)

    @property
    def way(self) -> Way:
        """How it is added. A job whose id is claimed first takes a call more than others, so it goes alone."""
        return self._way if self._chosen is None or self._claimed_for is not None else Way.ALONE

    async def add(self, added: Callable[[], None] | None = None) -> str:
        """Add it; return its id on the wire.

        Args:
            added: Called when it was added, and is not yet durable.

        Raises:
            CommandError: If it was refused.
            GlideMQError: If a call failed.
        """
        try:
            job_id = await add_routed(self._queue, self._routing, lambda part: self._add_to(part, added))
        except FairKeyFullError as error:
            raise GroupFullError(error, self._fields) from None
        except JobNotFoundError as error:
            raise CommandError(missing_job(error, {} if self._push is None else self._push[2])) from None
        if self._claimed:
            self._state.ids.chosen.added(self._claimed)
        return job_id

    async def _add_to(self, part: Queue[Any, Any], added: Callable[[], None] | None) -> str:
        ids, state = self._state.ids, self._state
        if self._chosen is not None and self._claimed_for != part.name:
            if await ids.claim(part.name, [self._chosen], self._claimed):
                return self._chosen
            self._claimed_for = part.name
        link = await part._connected()
        if self._push is not None and (self._is_alone or self._way is Way.DURABLE):
            name, data, options = push = await self._push_to(part)
            if self._is_alone:
                durability = parse_durable(True) if self._fields["durable"] else None
                placed = part._options(options)
                job = await again(lambda: part._add_here(part._check_name(name), data, placed, durability))
            else:
                job = await add_durable_row(part, link, self._made or row_of(part, link, push), push, added)
            self._note_added(part)
            return await ids.on_wire(self._queue.name, job.id)
        row, placed = await self._row_for(part, link)
        adder = await part._adder_here()
        state.adding(part.name)
        now, result = await again(lambda: adder.add(row), lambda: added_row(link, row))
        if not link.is_listed:
            await register(link)
        self._note_added(part)
        if self._push is None and result == row[ID]:
            return str(result)  # the usual case
        if isinstance(result, str):
            return ids.known_on_wire(part.name, result) or await ids.on_wire(part.name, result)
        name, data = (str(row[0]), None) if self._push is None else self._push[:2]
        return await ids.on_wire(self._queue.name, added_job(link, name, data, placed, now, result).id)

    def _note_added(self, part: Queue[Any, Any]) -> None:
        if part is not self._queue:
            self._state.added(part.name)

    async def _row_for(self, part: Queue[Any, Any], link: QueueLink) -> tuple[Row, JobOptions]:
        made = self._made if part is self._queue else None
        if made is None and self._push is None:
            made = usual_row(part, link, self._state.ids, self._given)
        if made is None:
            push = await self._push_to(part)
            made = row_of(part, link, push)
            if self._chosen is None:
                remember_usual(self._given, push)
        return made

    async def _push_to(self, part: Queue[Any, Any]) -> Push:
        """Return the job with the id for a partition."""
        if self._push is None:
            await self._check(None)
        assert self._push is not None
        name, data, options = self._push
        if self._chosen is None and part is not self._queue:
            options = {**options, "job_id": await self._state.ids.make(part.name)}
        return name, data, options
