"""Rows of added jobs, and the calls that add them to a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from glidemq_py._core.calls import Argument, Call, array_head, call, declared, fields_of, pack
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.payload import Compression, Serializer, encode_data
from glidemq_py.errors import GlideMQValidationError

_NEW_JOB: Final = "name data opts id delay attempts priority lifo ttl run_at ordering deduplication"
NEW_JOB: Final = fields_of("new_job", f"{_NEW_JOB} parent rank dependencies fair batch own_keys")
FLOW_JOB: Final = fields_of("flow_job", f"{_NEW_JOB} flow rank dependencies fair batch")
ORDERING: Final = fields_of("ordering", "group concurrency rate_max rate_duration tb_capacity tb_rate cost")
DATA: Final = NEW_JOB.index("data")
"""Position of the encoded data in a row."""

Row = list[object]
"""The row ``new_job``, truncated after the last given field; False = not given
(``lua/core/functions/add.lua``)."""


class AddReply(NamedTuple):
    """Results of the rows of one `add`."""

    now: int
    """Server time of the add, in epoch ms: the ``timestamp`` of the jobs."""
    results: list[str | list[str]]
    """One element per row: the new job's id, or ``[outcome, id]`` with the id of the existing or replacing job."""


@declared("added_other")
class AddedOther(NamedTuple):
    """Result of a row that did not simply add a job."""

    outcome: str
    """duplicate, skipped, replaced, cost, parent, dependency or backlog (``lua/core/functions/add.lua``)."""
    id: str
    """Of the existing job, or of the new one if it replaced another; for a backlog, its maximum."""


class Codec(Protocol):
    """How a queue stores the data of its jobs."""

    @property
    def serializer(self) -> Serializer:
        """Serializer of the data."""
        ...

    @property
    def compression(self) -> Compression:
        """Compression of the data."""
        ...

    @property
    def payload_limit(self) -> int:
        """Maximum size of the data, bytes."""
        ...


def encode_row(codec: Codec, name: str, data: Any, options: JobOptions, where: str = "data") -> Row:
    """Return the row of one job; ``where`` is the name of its data in errors.

    Raises:
        SerializationError: If the data cannot be serialized.
        PayloadTooLargeError: If the serialized data is too large.
        GlideMQValidationError: If an option requires another one that is not set.
    """
    text = encode_data(data, codec.serializer, codec.compression, codec.payload_limit, where)
    if options is NO_OPTIONS:
        return [name, text, "{}"]
    cost = options.cost
    if cost is not None and options.ordering is None:
        problem = "requires 'ordering' (the group's token bucket is charged)"
        raise GlideMQValidationError(where.removesuffix("data") + "cost", cost, problem)
    return stored_row(name, text, options.to_wire_json(), options)


def stored_row(name: str, text: str, opts: str, options: JobOptions) -> Row:
    """Return the row of a job whose data and options are already encoded; ``opts`` is the encoded ``options``."""
    ordering, deduplication = options.ordering, options.deduplication
    return row(
        name,
        text,
        opts,
        job_id=options.job_id or "",
        delay=options.delay or 0,
        attempts=options.attempts or 0,
        priority=options.placed_priority,
        rank=options.placed_rank,
        lifo=options.lifo or False,
        ttl=options.ttl or 0,
        run_at=options.run_at_ms or 0,
        ordering=None if ordering is None else ordering.to_row(options.cost),
        deduplication=None if deduplication is None else deduplication.to_row(),
        parent=None if options.parent is None else list(options.parent[::-1]),
        dependencies=None if options.depends_on is None else options.dependencies_to_row(),
        fair_key=options.fair_key,
        batch=options.batch,
    )


def row(
    name: str,
    data: str,
    opts: str,
    job_id: str = "",
    delay: int = 0,
    attempts: int = 0,
    priority: int = 0,
    lifo: bool = False,
    ttl: int = 0,
    run_at: int = 0,
    ordering: list[object] | None = None,
    deduplication: list[object] | None = None,
    parent: list[object] | None = None,
    rank: int | None = None,
    dependencies: list[object] | None = None,
    fair_key: str | None = None,
    batch: Sequence[str] | None = None,
) -> Row:
    """Return the row of one job of an `add`, truncated after its last option."""
    head: Row
    if rank is not None or dependencies or fair_key or batch:
        head = [name, data, opts, job_id, delay, attempts, priority, int(lifo), ttl, run_at or False]
        head += [ordering or False, deduplication or False, parent or False, False if rank is None else rank]
        if batch:
            return [*head, dependencies or False, fair_key or False, batch]
        if fair_key:
            return [*head, dependencies or False, fair_key]
        return [*head, dependencies] if dependencies else head
    if ordering or deduplication or parent:
        timed = delay or priority or lifo or ttl or run_at
        head = [name, data, opts, job_id, delay if timed else False, attempts, priority if timed else False]
        head += [int(lifo), ttl, run_at or False, ordering or False]
        if parent:
            return [*head, deduplication or False, parent]
        return [*head, deduplication] if deduplication else head
    full: Row = [name, data, opts, job_id, delay, attempts, priority, int(lifo), ttl, run_at]
    if not (delay or priority or lifo or ttl or run_at):
        # The server has a fast path for rows that end before `delay`, or that have only attempts.
        return full[:3] if not (job_id or attempts) else _plain(name, data, opts, job_id, attempts)
    return full if run_at else full[:9]


def _plain(name: str, data: str, opts: str, job_id: str, attempts: int) -> Row:
    # False means "not given": arrays must not contain nil.
    return [name, data, opts, job_id, False, attempts] if attempts else [name, data, opts, job_id]


@call("add", hot=True)
def marked_add(rows: Sequence[Row], quiet: bool, layout: int, mark: Argument[str]) -> AddReply:
    """Add jobs with the mark of a durable add."""
    ...


_read_added: Final = marked_add.read


def add(meta: str, rows: Sequence[Row], quiet: bool) -> Call[AddReply]:
    """Add jobs atomically. Not repeatable: jobs without custom ids would be added twice.

    If the queue is partitioned, they are added to this partition, for any keys.
    """
    return Call("add", meta, (pack((rows, quiet)),), _read_added)


def add_to_layout(number: int) -> AddCall:
    """Return a function like `add` for clients that know the layout of the partitions with this number; 0 = none.

    Its calls raise `LayoutChangedError` if the queue has another layout.
    """

    def add_if_current(meta: str, rows: Sequence[Row], quiet: bool) -> Call[AddReply]:
        return Call("add", meta, (pack((rows, quiet, number)),), _read_added)

    return add_if_current


def request(rows: Sequence[Row], quiet: bool) -> bytes:
    """Return the packed argument of an `add`; the parts of a staged write have the same format."""
    return pack((rows, quiet))


def packed_request(count: int, rows: Iterable[bytes], quiet: bool, layout: int | None = None) -> bytes:
    """Return the packed argument of an `add`, given ``count`` packed rows; ``layout``: its number, None = any."""
    checked = () if layout is None else (pack(layout),)
    return b"".join((array_head(2 + len(checked)), array_head(count), *rows, pack(quiet), *checked))


def add_packed(meta: str, request: bytes) -> Call[AddReply]:
    """Add jobs, given the result of `request` or `packed_request`."""
    return Call("add", meta, (request,), _read_added)


AddCall = Callable[[str, Sequence[Row], bool], Call[AddReply]]
"""Type of `add` and of the corresponding function of broadcasts."""

Added = tuple[int, Any]
"""Server time of the add in epoch ms, and the row's result: an id, or [outcome, id]."""


class Adder(Protocol):
    """Sends the single adds of one event loop."""

    @property
    def loop(self) -> object:
        """The event loop; for blocking code that of the portal."""
        ...

    async def add(self, row: Row, /) -> Added:
        """Add one row; raises the errors of `Transport.call`."""
        ...

    async def close(self) -> None:
        """Wait until all pending adds have been sent."""
        ...
