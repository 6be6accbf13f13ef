"""Bulk adds: all jobs are validated and encoded first, then sent in sequential chunks.

A chunk is atomic, and small enough not to block the server. The next chunk is packed while one is in flight. There is
never more than one in flight: GLIDE does not keep the order of concurrent commands, and jobs must keep theirs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from typing import Any

from glidemq_py._api.coalescer import added_job
from glidemq_py._core.calls.adding import AddCall, AddReply, Row, add, encode_row
from glidemq_py._core.checks import check_iterable
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.queue_options import JobSpec
from glidemq_py._features.flows.adding import attach_children, check_remote_parents, remote_parents
from glidemq_py._job import Job, QueueLink
from glidemq_py.errors import (
    BulkAddError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    JobCostError,
    JobNotFoundError,
    JobStateError,
)

__all__ = ["BulkAdd"]

CHUNK_ROWS = 250
CHUNK_CHARS = 512 * 1024


def _spec(job: object, position: int, defaults: JobOptions) -> tuple[str, Any, JobOptions]:
    """Return name, data and options of one job of a bulk.

    Raises:
        GlideMQValidationError: If it is invalid; the option names its position (``jobs[3].delay``).
    """
    where = f"jobs[{position}]"
    try:
        spec = JobSpec.parse(job, where)
        return spec.name, spec.data, JobOptions.of_job(defaults, spec.options)
    except GlideMQValidationError as error:
        if not error.option.startswith(where):
            error.option = f"{where}.{error.option}"
            error.args = (error.option, *error.args[1:])
        raise


class BulkAdd:
    """One bulk add.

    Args:
        link: The queue's link.
        jobs: `JobSpec` objects or tuples (name, data, options).
        defaults: The queue's default job options.
        quiet: If True, no `added` events are written.
        add_call: Builds the server calls.

    Raises:
        GlideMQValidationError: If a job is invalid. The option names its position; nothing was sent.
    """

    def __init__(
        self, link: QueueLink, jobs: Iterable[Any], defaults: JobOptions, quiet: bool, add_call: AddCall = add
    ) -> None:
        self._link = link
        self._quiet = quiet
        self._add_call = add_call
        self._names: list[str] = []
        self._data: list[Any] = []
        self._options: list[JobOptions] = []
        self.rows: list[Row] = []
        """The encoded jobs."""
        self._have_parents = False
        self._read(jobs, defaults)
        self._results: list[Any] = [None] * len(self.rows)
        self._connection_error: BaseException | None = None
        self._rejection: GlideMQError | None = None
        self._remote_parents = remote_parents(link, self._options) if self._have_parents else {}

    def _read(self, jobs: Iterable[Any], defaults: JobOptions) -> None:
        """Validate and encode all jobs, with a fast path for (name, data) tuples whose name was validated before."""
        link, known = self._link, set[str]()
        names, data, chosen, rows = self._names, self._data, self._options, self.rows
        for i, job in enumerate(check_iterable("jobs", jobs, "jobs")):
            pair = _pair(job)
            if pair is not None and type(pair[0]) is str and pair[0] in known:
                name: str = pair[0]
                value, options = pair[1], defaults
            else:
                name, value, options = _spec(job, i, defaults)
                known.add(name)
                if options.parent is not None:
                    self._have_parents = True
            try:
                rows.append(encode_row(link, name, value, options))
            except GlideMQValidationError:
                encode_row(link, name, value, options, f"jobs[{i}].data")  # raises again, with the position
                raise
            names.append(name)
            data.append(value)
            chosen.append(options)

    def _chunks(self) -> Iterator[tuple[int, list[Row]]]:
        start = chars = 0
        for i, row in enumerate(self.rows):
            if i > start and (i - start >= CHUNK_ROWS or chars >= CHUNK_CHARS):
                yield start, self.rows[start:i]
                start, chars = i, 0
            chars += len(row[1])  # type: ignore[arg-type]
        if start < len(self.rows):
            yield start, self.rows[start:]

    async def run(self) -> list[Job[Any, Any]]:
        """Send all jobs and return them in order.

        Raises:
            BulkAddError: If some jobs were not added, or may not have been.
        """
        in_flight: Awaitable[AddReply | None] | None = None
        first = 0
        await check_remote_parents(self._link, self._remote_parents)
        for start, rows in self._chunks():
            call = self._add_call(self._link.keys.meta, rows, self._quiet)
            reply = None if in_flight is None else await in_flight
            if self._connection_error is not None:
                break
            if len(self.rows) == len(rows):
                self._read_reply(start, await self._send(start, len(rows), call))
                break
            # Send it before creating the previous chunk's jobs and before packing the next chunk.
            in_flight = await self._link.runtime.begin(self._send(start, len(rows), call))
            self._read_reply(first, reply)
            first = start
        if in_flight is not None and self._connection_error is None:
            self._read_reply(first, await in_flight)
        if self._connection_error is not None:
            raise self._failure() from self._connection_error
        if self._rejection is not None:
            raise self._failure() from self._rejection
        return self._results

    async def _notify_parents(self, start: int, results: list[Any]) -> None:
        for parent, positions in self._remote_parents.items():
            mine = [results[i - start] for i in positions if start <= i < start + len(results)]
            await attach_children(self._link, parent, mine)

    async def _send(self, start: int, count: int, call: Any) -> AddReply | None:
        try:
            reply: AddReply = await self._link.transport.call(call)
            if self._remote_parents:
                await self._notify_parents(start, reply.results)
        except GlideMQError as error:
            self._connection_error = error
            self._results[start : start + count] = [error] * count
            return None
        return reply

    def _read_reply(self, start: int, reply: AddReply | None) -> None:
        if reply is None:
            return
        link, now, names, data, options = self._link, reply.now, self._names, self._data, self._options
        for i, result in enumerate(reply.results, start):
            try:
                self._results[i] = added_job(link, names[i], data[i], options[i], now, result)
            except (JobCostError, JobNotFoundError, JobStateError) as error:
                self._results[i] = self._rejection = error

    def _failure(self) -> BulkAddError:
        skipped = GlideMQConnectionError("not sent: an earlier part of the bulk failed")
        return BulkAddError([skipped if result is None else result for result in self._results])


def _pair(job: Any) -> Any:
    """Return the job if it is a (name, data) tuple, or None."""
    return job if type(job) is tuple and len(job) == 2 else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
