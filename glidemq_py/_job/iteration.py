"""`Job.iterate`: the items of a long job, with a cursor that is stored while they are processed.

The field `cursor` of the job's record is `{"cursor": value}` while items are left, and `{"done": true}` afterwards. The
server writes it only for the current attempt (lua/core/functions/update_job.lua).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar, cast

from glidemq_py._core import json_text as json
from glidemq_py._core.calls import administration
from glidemq_py._core.checks import check_callable
from glidemq_py._core.payload import encode_json
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._job.blocking_runtime import wait_for
from glidemq_py._job.contents import JobContents
from glidemq_py._job.stored import StoredJob
from glidemq_py.errors import (
    EventLoopError,
    GlideMQError,
    GlideMQValidationError,
    JobInterruptedError,
    SerializationError,
)

ItemT = TypeVar("ItemT")
Source = Callable[[Any], AsyncIterable[tuple[Any, ItemT]] | Iterable[tuple[Any, ItemT]]]

CURSOR_LIMIT: Final = 65_536
"""Maximum size of a cursor as JSON, in bytes."""
_DONE: Final = object()
_END: Final[Any] = object()
_FIELD: Final = "cursor"


def iterate(
    self: StoredJob, source: Source[ItemT], *, checkpoint_interval: Milliseconds = 1_000
) -> JobIteration[ItemT]:
    """Return the items of ``source`` that are left, for one loop over them.

    The cursor of the last processed item is stored with the job: at most once per interval, and when the worker
    closes. Then the loop raises `JobInterruptedError`, the job is released without counting an attempt, and
    another worker continues after that item. After a failure, a crash or a requeue, the next attempt continues
    after the last stored cursor too, so items of the last interval are processed again. A completed loop is not
    repeated.

    Args:
        source: function of the cursor after which to continue, None at first. It returns an iterator of pairs
            (cursor, item); in a coroutine it may be an async one. A cursor is a JSON value of at most 64 KiB,
            such as the id of the last row.
        checkpoint_interval: ms or timedelta; 0 stores the cursor after every item.

    Raises:
        GlideMQValidationError: an argument is invalid; in the loop: a cursor is not JSON, or ``source`` does not
            return an iterator of pairs.
        GlideMQError: the job is not running in a handler, or in one for batches, or ``iterate`` was called before
            in this attempt.
        JobInterruptedError: in the loop: the worker is closing. Do not catch it.
        StaleAttemptError: in the loop: the job is locked by another worker now.
    """
    self._in_handler("iterate")
    if self._link.has_batches:
        raise GlideMQError("iterate is for handlers of one job: of a batch, no single job can be interrupted")
    check_callable("source", source, "cursor")
    interval = to_ms("checkpoint_interval", checkpoint_interval)
    if self._iterated:
        raise GlideMQError("iterate may be called once per attempt: a job has one cursor")
    self._iterated = True
    return JobIteration(self, source, interval / 1_000)


async def get_cursor(self: StoredJob) -> Any:
    """Return the last stored cursor of `iterate`; None if there is none, or if no items are left."""
    cursor = await _stored(self)
    return None if cursor is _DONE else cursor


async def _stored(job: JobContents) -> Any:
    link = job._link
    text = await link.command("HGET", link.keys.job(job._stored_id), _FIELD)
    return read_cursor("" if text is None else text.decode("utf-8", "replace"))


def read_cursor(text: str) -> Any:
    """Return the cursor of the record's field: None if there is none or it is malformed, `_DONE` at the end."""
    try:
        stored: Any = json.loads(text, "cursor") if text else None
    except SerializationError:
        return None
    found = cast("dict[str, Any]", stored) if isinstance(stored, dict) else {}
    return _DONE if found.get("done") is True else found.get("cursor")


class JobIteration(Generic[ItemT]):
    """The items of a job that are left. `Job.iterate` returns it, for one loop."""

    def __init__(self, job: JobContents, source: Source[ItemT], interval_s: float) -> None:
        """For jobs only."""
        self._job = job
        self._source = source
        self._interval_s = interval_s
        self._items: AsyncIterator[tuple[Any, ItemT]] | Iterator[tuple[Any, ItemT]] | None = None
        self._text: str | None = None
        """The cursor of the item in the loop, as stored; None if it is stored."""
        self._stored_at = time.monotonic()

    # -- coroutines -----------------------------------------------------------------------------------------

    def __aiter__(self) -> JobIteration[ItemT]:
        return self

    async def __anext__(self) -> ItemT:
        if self._items is None:
            self._begin(await _stored(self._job))
        elif self._must_store:
            await self._store()
        if self._job._link.is_closing:
            await self._close()
            raise self._interruption()
        try:
            pair = await self._next()
            if pair is not _END:
                return self._item_of(pair)
        except Exception:
            await self._store()
            raise
        await self._finish()
        raise StopAsyncIteration

    async def _next(self) -> Any:
        """Return the next pair; while an async source waits for it, store the cursor when that is due."""
        items: Any = self._items
        if not hasattr(items, "__anext__"):
            return next(items, _END)
        if self._text is None:
            return await anext(items, _END)
        due = self._stored_at + self._interval_s - time.monotonic()
        storing: list[asyncio.Task[None]] = []
        timer = asyncio.get_running_loop().call_later(due, lambda: storing.append(asyncio.create_task(self._store())))
        try:
            return await anext(items, _END)
        finally:
            timer.cancel()
            for task in storing:
                await task

    # -- threads --------------------------------------------------------------------------------------------

    def __iter__(self) -> JobIteration[ItemT]:
        if asyncio._get_running_loop() is not None:
            subject = f"job {self._job.id!r}.iterate"
            raise EventLoopError(
                subject, "a plain `for` loop in a coroutine would block the event loop", "use `async for`"
            )
        return self

    def __next__(self) -> ItemT:
        job = self._job
        if self._items is None:
            self._begin(wait_for(job, _stored(job)))
            if hasattr(self._items, "__anext__"):
                raise GlideMQValidationError("source", self._source, "must not be async in a plain handler")
        elif self._must_store:
            wait_for(job, self._store())
        if job._link.is_closing:
            if hasattr(self._items, "close"):  # here, since what a generator holds may belong to this thread
                cast("Any", self._items).close()
            raise self._interruption()
        try:
            pair: Any = next(cast("Any", self._items), _END)
            if pair is not _END:
                return self._item_of(pair)
        except Exception:
            wait_for(job, self._store())
            raise
        wait_for(job, self._finish())
        raise StopIteration

    # -- steps ----------------------------------------------------------------------------------------------

    @property
    def _must_store(self) -> bool:
        return time.monotonic() - self._stored_at >= self._interval_s or self._job._link.is_closing

    def _begin(self, cursor: Any) -> None:
        if cursor is _DONE:
            self._items = iter(())
            return
        found: Any = self._source(cursor)
        if hasattr(found, "__aiter__"):
            self._items = aiter(found)
        elif hasattr(found, "__iter__"):
            self._items = iter(found)
        else:
            raise GlideMQValidationError("source", self._source, f"must return an iterator, not {found!r}")

    def _item_of(self, pair: object) -> ItemT:
        parts: Any = pair
        if not isinstance(pair, tuple) or len(parts) != 2:
            raise GlideMQValidationError("source", parts, "must yield pairs (cursor, item)")
        cursor, item = parts
        if cursor is None:
            raise GlideMQValidationError("cursor", None, "must not be None, which means the beginning")
        text = encode_json("cursor", {"cursor": cursor}, CURSOR_LIMIT)
        if json.loads(text)["cursor"] != cursor:
            raise GlideMQValidationError("cursor", cursor, "must be JSON that reads back as it is: a list, not a tuple")
        self._text = text
        return cast("ItemT", item)

    def _interruption(self) -> JobInterruptedError:
        signal = JobInterruptedError()
        self._job._own(signal)
        self._job._interrupted = True
        return signal

    async def _store(self) -> None:
        text, self._text = self._text, None
        if text is not None:
            await self._write(text)
        self._stored_at = time.monotonic()

    async def _finish(self) -> None:
        await self._write('{"done":true}')
        self._text = None

    async def _write(self, text: str) -> None:
        job = self._job
        await job._write(administration.update_job_cursor(job._link.keys.meta, job._stored_id, text, job._token))

    async def _close(self) -> None:
        """Close a generator, which may hold a connection to a database."""
        items = self._items
        if hasattr(items, "aclose"):
            await cast("Any", items).aclose()
        elif hasattr(items, "close"):
            cast("Any", items).close()
