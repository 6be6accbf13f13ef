"""Adding a job of a client.

The partition is chosen first, as for jobs of Python programs: by the group, by the unique key, else by the id that the
client has chosen, else in turn. Then the gateway makes the id, which contains the number of the partition. A queue
without partitions has one part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from glidemq_py._api.adds import add_routed, added_job
from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls.adding import Row
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.queue_options import parse_durable
from glidemq_py._features.queue_list import register
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import FairKeyFullError, JobNotFoundError
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.push_options import (
    JOB_FIELDS,
    GroupFullError,
    Push,
    again,
    chosen_id,
    missing_job,
    push_of,
    way_of,
)
from glidemq_py.gateway.push_rows import (
    ID,
    add_durable_row,
    added_row,
    group_size,
    remember_usual,
    row_of,
    set_group_sizes,
    usual_row,
    with_id,
)
from glidemq_py.gateway.session import Way
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.table import CommandError, check_all
from glidemq_py.telemetry.state import TELEMETRY

__all__ = ["RoutedJob", "key_of", "reject_keys", "reject_two_keys"]

_FIELDS = {"fair_key": "groupId", "deduplication": "a unique key"}


def reject_two_keys(queue: Queue[Any, Any], fields: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check that a group and a unique key do not choose different partitions; see `key_of`.

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


def key_of(fields: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """Return the text that chooses the partition of a job; None if it has none.

    Args:
        fields: The values of `JOB_FIELDS`.
        options: The options of this package that have the same effect.
    """
    if "deduplication" in options:
        return str(options["deduplication"]["id"])
    chosen: str | None = options.get("fair_key")
    return options["job_id"] if chosen is None and chosen_id(fields) is not None else chosen


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
        self._row: Row
        self._options: JobOptions
        self._fields: Mapping[str, Any] = given
        self._chosen: str | None = None
        self._claimed: dict[str, str] = {}
        self._claimed_for: str | None = None
        """The queue for which its chosen id is claimed already."""
        self._key: str | None = None
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
        job, link = cls(state, queue, given), await queue._first_connected()
        made = None if TELEMETRY.on else usual_row(queue, link, state.ids, given)
        if made is None:
            return str(job._chosen) if await job._check(link) else job
        job._row, job._options = made
        return job

    async def _check(self, link: QueueLink) -> bool:
        """Check and encode the job; return whether an unfinished job has the chosen id."""
        queue, ids = self._queue, self._state.ids
        fields = check_all(JOB_FIELDS, self._given)
        push = await push_of(ids, queue.name, fields)
        self._chosen, self._way = chosen_id(fields), way_of(fields, push)
        if queue._partitions is not None:
            reject_two_keys(queue, fields, push[2])
        self._key = key_of(fields, push[2])
        for (
            part
        ) in queue._parts:  # read the numbers now, so that the jobs of a connection with one key keep their order
            if ids.make_known(part.name) is None:
                await ids.make(part.name)
        self._row, self._options = row_of(queue, link, push)  # a job is checked before its id is claimed
        if self._chosen is None:
            remember_usual(self._given, push)
        elif queue._partitions is None:
            self._claimed_for = queue.name
            if await ids.claim(queue.name, [self._chosen], self._claimed):
                return True
        await set_group_sizes(queue, [group_size(fields)])
        self._fields, self._push = fields, push
        return False

    @property
    def _is_alone(self) -> bool:
        return self._way is Way.ALONE or TELEMETRY.on

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
            job_id = await add_routed(self._queue, lambda: self._key, lambda part: self._add_to(part, added))
        except FairKeyFullError as error:
            raise GroupFullError(error, self._fields) from None
        except JobNotFoundError as error:
            raise CommandError(missing_job(error, {} if self._push is None else self._push[2])) from None
        if self._claimed:
            self._state.ids.chosen.added(self._claimed)
        return job_id

    async def _add_to(self, part: Queue[Any, Any], added: Callable[[], None] | None) -> str:
        ids, state, row, push = self._state.ids, self._state, self._row, self._push
        if self._chosen is None:
            if part.name != self._queue.name:
                row = with_id(row, await ids.make(part.name))
        elif self._claimed_for != part.name:
            if await ids.claim(part.name, [self._chosen], self._claimed):
                return self._chosen
            self._claimed_for = part.name
        link = await part._connected()
        if push is not None and (self._is_alone or self._way is Way.DURABLE):
            name, data, options = push
            if self._is_alone:
                durability = parse_durable(True) if self._fields["durable"] else None
                placed = part._options({**options, "job_id": row[ID]})
                job = await again(lambda: part._add_here(part._check_name(name), data, placed, durability))
            else:
                job = await add_durable_row(part, link, (row, self._options), push, added)
            self._note_added(part)
            return await ids.on_wire(self._queue.name, job.id)
        adder = await part._adder_here()
        state.adding(part.name)
        now, result = await again(lambda: adder.add(row), lambda: added_row(link, row))
        if not link.is_listed:
            await register(link)
        self._note_added(part)
        if push is None and result == row[ID]:
            return str(result)  # the usual case
        if isinstance(result, str):
            return ids.known_on_wire(part.name, result) or await ids.on_wire(part.name, result)
        name, data = (str(row[0]), None) if push is None else push[:2]
        return await ids.on_wire(self._queue.name, added_job(link, name, data, self._options, now, result).id)

    def _note_added(self, part: Queue[Any, Any]) -> None:
        if part is not self._queue:
            self._state.added(part.name)
