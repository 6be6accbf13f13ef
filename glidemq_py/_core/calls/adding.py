"""Calls that put jobs into a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from glidemq_py._core.calls.packing import Call, array_head, pack, unpack

__all__ = ["AddCall", "AddReply", "Row", "add", "add_packed", "packed_request", "request", "row"]

Row = list[object]
"""Positional and cut after the last value given: name, data, opts JSON, id or '', delay, attempts, priority,
lifo 0|1, ttl, run_at, ordering, deduplication, parent (id, queue name) (``lua/core/functions/add.lua``)."""


class AddReply(NamedTuple):
    """What became of the rows of one `add`."""

    now: int
    """Server time of the add, epoch ms: the jobs' ``timestamp``."""
    results: list[str | list[str]]
    """A row each: the new job's id, or ``[outcome, id]``: of the job that stands, or of the one that replaced it."""


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
) -> Row:
    """One job of an `add`, as short as its options allow."""
    if ordering or deduplication or parent:
        timed = delay or priority or lifo or ttl or run_at
        head: Row = [name, data, opts, job_id, delay if timed else False, attempts, priority if timed else False]
        head += [int(lifo), ttl, run_at or False, ordering or False]
        if parent:
            return [*head, deduplication or False, parent]
        return [*head, deduplication] if deduplication else head
    full: Row = [name, data, opts, job_id, delay, attempts, priority, int(lifo), ttl, run_at]
    if not (delay or priority or lifo or ttl or run_at):
        # The server's short way is taken by rows that end before `delay`, or where only attempts are given.
        return full[:3] if not (job_id or attempts) else _plain(name, data, opts, job_id, attempts)
    return full if run_at else full[:9]


def _plain(name: str, data: str, opts: str, job_id: str, attempts: int) -> Row:
    # False stands for "not given": nil must not appear in an array.
    return [name, data, opts, job_id, False, attempts] if attempts else [name, data, opts, job_id]


def add(meta: str, rows: Sequence[Row], quiet: bool) -> Call[AddReply]:
    """Add jobs in one atomic step. Not repeatable: without ids of its own a second run adds them again."""
    return add_packed(meta, request(rows, quiet))


def request(rows: Sequence[Row], quiet: bool) -> bytes:
    """What an `add` takes, and a staged write's pieces are."""
    return pack((rows, quiet))


def packed_request(count: int, rows: Iterable[bytes], quiet: bool) -> bytes:
    """The same of ``count`` rows that are packed already, one behind the other."""
    return b"".join((array_head(2), array_head(count), *rows, pack(quiet)))


def add_packed(meta: str, request: bytes) -> Call[AddReply]:
    """As `add`, with what `request` or `packed_request` has made."""
    return Call("add", meta, (request,), _added)


AddCall = Callable[[str, Sequence[Row], bool], Call[AddReply]]
"""`add`, or what a broadcast has in its place."""


def _added(reply: bytes) -> AddReply:
    return AddReply(*unpack(reply))
