"""`PlainJob`: a job that a client adds to a queue without partitions. For one with partitions see `RoutedJob`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from glidemq_py._api.bulk import added_job
from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls.adding import Row
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._features.queue_list import register
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import FairKeyFullError, JobNotFoundError
from glidemq_py.gateway.group_limits import group_size, set_group_sizes
from glidemq_py.gateway.push_order import Way
from glidemq_py.gateway.pushing import JOB_FIELDS, GroupFullError, Push, again, chosen_id, missing_job, push_of, way_of
from glidemq_py.gateway.routed import RoutedJob
from glidemq_py.gateway.rows import ID, add_durable_row, added_row, remember_usual, row_of, usual_row
from glidemq_py.gateway.table import CommandError, check_all
from glidemq_py.telemetry.state import TELEMETRY

if TYPE_CHECKING:
    from glidemq_py.gateway.session import GatewayState

__all__ = ["PlainJob"]


class PlainJob:
    """A job to add.

    Use `checked` instead of the constructor.

    Attributes:
        way: How it is added.
    """

    __slots__ = ("_adder", "_claimed", "_given", "_link", "_made", "_push", "_queue", "_state", "way")

    def __init__(
        self, state: GatewayState, queue: Queue[Any, Any], link: QueueLink, adder: Any, given: Mapping[str, Any]
    ) -> None:  # fmt: skip
        self._state, self._queue, self._link, self._adder, self._given = state, queue, link, adder, given
        self._made: tuple[Row, JobOptions] | None = None
        """Its row; None if it needs more than a row."""
        self._push: Push | None = None
        """None if others with the same options were checked before."""
        self._claimed: dict[str, str] = {}
        """The entry of its chosen id."""
        self.way = Way.TOGETHER

    @classmethod
    async def checked(
        cls, state: GatewayState, queue: Queue[Any, Any], link: QueueLink, given: Mapping[str, Any]
    ) -> Self | str:
        """Return the job with these fields, after checking them and claiming its chosen id.

        Returns:
            The job; or its id, if an unfinished job has it already.

        Raises:
            CommandError: If an option is invalid, or the chosen id is in use.
            GlideMQError: If a call failed.
        """
        job = cls(state, queue, link, await queue._adder_here(), given)
        if not TELEMETRY.on:
            job._made = usual_row(queue, link, state.ids, given)
        return job if job._made is not None else await job._check()

    async def _check(self) -> Self | str:
        ids, queue = self._state.ids, self._queue
        fields = check_all(JOB_FIELDS, self._given)
        push = await push_of(ids, queue.name, fields)
        chosen = chosen_id(fields)
        self.way = way_of(fields, push)
        is_special = self.way is Way.ALONE or TELEMETRY.on
        # A job is checked before its id is claimed.
        made = None if is_special and chosen is None else row_of(queue, self._link, push)
        if chosen is None:
            remember_usual(self._given, push)
        elif await ids.claim(queue.name, [chosen], self._claimed):
            return chosen
        await set_group_sizes(queue, [group_size(fields)])
        self._push, self._made = push, None if is_special else made
        return self

    async def add(self, refusal: LayoutChangedError | None = None, added: Callable[[], None] | None = None) -> str:
        """Add it, also if the queue has been partitioned meanwhile; return its id on the wire.

        Args:
            refusal: None; as for `RoutedJob.add`.
            added: Called when it was added, and is not yet durable.

        Raises:
            CommandError: If it was refused.
            GlideMQError: If a call failed.
        """
        try:
            return await (self._add_row(added) if self._made is not None else self._add_specially())
        except FairKeyFullError as error:
            raise GroupFullError(error, self._given) from None
        except LayoutChangedError as error:
            if self._made is None:
                raise  # the queue has tried it
            routed = await RoutedJob.checked(self._state, self._queue, self._given, self._claimed)
            return await routed.add(error, added)

    async def _add_row(self, added: Callable[[], None] | None) -> str:
        made, link, ids, name = self._made, self._link, self._state.ids, self._queue.name
        assert made is not None, "it needs no more than a row"
        row, options = made
        if self.way is Way.DURABLE:
            assert self._push is not None, "only a job that was checked is durable"
            durable = await add_durable_row(self._queue, link, made, self._push, added)
            ids.chosen.added(self._claimed)
            return await ids.on_wire(name, durable.id)
        self._state.adding(name)
        now, result = await again(lambda: self._adder.add(row), lambda: added_row(link, row))
        if self._claimed:
            ids.chosen.added(self._claimed)
        if not link.is_listed:
            await register(link)
        if self._push is None and result == row[ID]:
            return str(result)  # the usual case
        if not isinstance(result, str):
            job_name, data = (str(row[0]), None) if self._push is None else self._push[:2]
            result = added_job(link, job_name, data, options, now, result).id
        return ids.known_on_wire(name, result) or await ids.on_wire(name, result)

    async def _add_specially(self) -> str:
        """Add a job that needs more than a row."""
        assert self._push is not None, "it was checked"
        name, data, options = self._push
        durable = True if self._given.get("durable") else None
        try:
            added = await again(lambda: self._queue.add(name, data, durable=durable, **options))
        except JobNotFoundError as error:
            raise CommandError(missing_job(error, options)) from None
        self._state.ids.chosen.added(self._claimed)
        return await self._state.ids.on_wire(self._queue.name, added.id)
