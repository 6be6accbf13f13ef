"""Encodes jobs as rows of an `add` call."""

from __future__ import annotations

from typing import Any

from glidemq_py._core.calls.adding import Row, row
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.payload import encode_data
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import GlideMQValidationError

__all__ = ["encode_row", "stored_row"]


def encode_row(link: QueueLink, name: str, data: Any, options: JobOptions, where: str = "data") -> Row:
    """Return the row of one job; ``where`` is the name of its data in errors.

    Raises:
        SerializationError: If the data cannot be serialized.
        PayloadTooLargeError: If the serialized data is too large.
        GlideMQValidationError: If an option requires another one that is not set.
    """
    text = encode_data(data, link.serializer, link.compression, option=where)
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
        priority=options.priority or 0,
        lifo=options.lifo or False,
        ttl=options.ttl or 0,
        run_at=options.run_at_ms or 0,
        ordering=None if ordering is None else ordering.to_row(options.cost),
        deduplication=None if deduplication is None else deduplication.to_row(),
        parent=None if options.parent is None else list(options.parent[::-1]),
    )
