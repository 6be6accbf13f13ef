"""From what a user adds to the row of an `add` call."""

from __future__ import annotations

from typing import Any

from glidemq_py._core.calls.adding import Row, row
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.payload import encode_data
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import GlideMQValidationError

__all__ = ["encode_row", "stored_row"]


def encode_row(link: QueueLink, name: str, data: Any, options: JobOptions, where: str = "data") -> Row:
    """Row of one job; ``where`` is what its data is called in an error.

    Raises:
        SerializationError, PayloadTooLargeError: about the data.
        GlideMQValidationError: options that say nothing without another one.
    """
    text = encode_data(data, link.serializer, link.compression, option=where)
    if options is NO_OPTIONS:
        return [name, text, "{}"]
    cost = options.cost
    if cost is not None and options.ordering is None:
        raise GlideMQValidationError(where.removesuffix("data") + "cost", cost, "needs an 'ordering': its group pays")
    return stored_row(name, text, options.to_wire_json(), options)


def stored_row(name: str, text: str, opts: str, options: JobOptions) -> Row:
    """Row of a job whose data and options are there as stored texts; ``options`` are what ``opts`` says."""
    ordering, deduplication = options.ordering, options.deduplication
    return row(
        name,
        text,
        opts,
        job_id=options.job_id or "",
        delay=options.delay or 0,
        attempts=options.attempts or 0,
        priority=options.priority or 0,
        lifo=options.lifo or False,
        ttl=options.ttl or 0,
        run_at=options.run_at_ms or 0,
        ordering=None if ordering is None else ordering.to_row(options.cost),
        deduplication=None if deduplication is None else deduplication.to_row(),
        parent=None if options.parent is None else list(options.parent[::-1]),
    )
