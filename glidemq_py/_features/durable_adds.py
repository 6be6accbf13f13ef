"""Adding jobs that are durable when the add returns."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from glidemq_py._client.runtime import Runtime
from glidemq_py._core.calls import Call
from glidemq_py._core.calls.adding import AddCall, Added, Adder, AddReply, Row, marked_add
from glidemq_py._core.queue_options import Durability
from glidemq_py._features.durability import MARK_S, Confirmer, Mark
from glidemq_py.errors import DurabilityError

RENEW_S = MARK_S * 0.4
"""Marks are renewed so early that they outlive the longest timeout, seconds."""


def new_mark() -> str:
    """Return the text of a new mark."""
    return os.urandom(9).hex()


def marked_call(layout: int, mark: str) -> AddCall:
    """Return a function that adds jobs with this mark. See `add_to_layout`."""

    def add(meta: str, rows: Sequence[Row], quiet: bool) -> Call[AddReply]:
        return marked_add(meta, rows, quiet, layout, mark)

    return add


def add_marked(layout: int = 0) -> AddCall:
    """Return a function that adds jobs with a new mark per call. Each result becomes (`Mark`, result)."""

    def add(meta: str, rows: Sequence[Row], quiet: bool) -> Call[AddReply]:
        mark = new_mark()
        call = marked_call(layout, mark)(meta, rows, quiet)

        def decode(reply: bytes) -> AddReply:
            now, results = marked_add.read(reply)
            return AddReply(now, [(Mark(mark), result) for result in results])  # type: ignore[misc]

        return Call("add", meta, call.args, decode)

    return add


class DurableAdds:
    """An adder that waits until the jobs are durable.

    Args:
        adder: sends the rows by `add_marked` through the confirmer.
        confirmer: waits for the confirmation.
        runtime: runtime of the code that adds.
    """

    def __init__(self, adder: Adder, confirmer: Confirmer, runtime: Runtime) -> None:
        self._adder = adder
        self.confirmer = confirmer
        self._runtime = runtime

    @property
    def loop(self) -> object:
        """The event loop."""
        return self._adder.loop

    async def add(self, row: Row, added: Callable[[], None] | None = None) -> Added:
        """Add one row and wait until it is durable.

        Args:
            row: The row.
            added: Called when it was added, before the wait.

        Raises:
            GlideMQValidationError: if the server cannot confirm adds. Nothing was added.
            DurabilityError: if the add was not confirmed.
        """
        return await self._runtime.there(self._add(row, added))

    async def _add(self, row: Row, added: Callable[[], None] | None) -> Added:
        await self.confirmer.ready()
        now, (mark, result) = await self._adder.add(row)
        if added is not None:
            added()
        if mark is None:
            return now, result
        try:
            await self.confirmer.confirm(mark)
        except DurabilityError as error:
            raise DurabilityError(error.reason, result if isinstance(result, str) else result[1]) from None
        return now, result

    async def close(self) -> None:
        """Wait until all pending adds have been sent, then close the connection of the waits."""
        await self._adder.close()
        await self.confirmer.close()


class Marks:
    """The marks of the calls of one add, and the wait until all of them are durable.

    Args:
        durability: What to wait for; None = nothing, without marks.
    """

    def __init__(self, durability: Durability | None) -> None:
        self.durability = durability
        self._confirmers: dict[str, Confirmer] = {}
        self._marks: dict[str, list[tuple[Any, Mark]]] = {}
        self._renewed = time.monotonic()

    async def cover(self, meta: str, confirmer_of: Callable[[Durability], Awaitable[Confirmer]]) -> None:
        """Prepare the wait for a queue, given its declared key. Raises the errors of `Confirmer.ready`."""
        if self.durability is not None:
            self._confirmers[meta] = await confirmer_of(self.durability)
            await self._confirmers[meta].ready()

    def next(self, part: Any, meta: str) -> str:
        """Return the mark of the next call to a queue, given the part of the add that it belongs to."""
        mark = new_mark()
        self._marks.setdefault(meta, []).append((part, Mark(mark)))
        return mark

    def drop(self, part: Any) -> None:
        """Forget the calls of a part, which were refused."""
        for meta, marks in self._marks.items():
            self._marks[meta] = [each for each in marks if each[0] != part]

    async def renew(self) -> None:
        """Keep the marks of a long add for another `MARK_S`."""
        if time.monotonic() - self._renewed >= RENEW_S:
            self._renewed = time.monotonic()
            for meta, marks in self._marks.items():
                await self._confirmers[meta].renew([mark for _, mark in marks])

    async def confirm(self) -> list[tuple[Any, str]]:
        """Wait until all calls are durable. Return the parts that are not, and why."""
        failed: list[tuple[Any, str]] = []
        for meta, marks in self._marks.items():
            failures = await self._confirmers[meta].confirm_all([mark for _, mark in marks])
            failed += [(part, why) for (part, _), why in zip(marks, failures, strict=True) if why]
        return failed
