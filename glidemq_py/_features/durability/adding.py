"""Adding jobs that are durable when the add returns."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, unpack
from glidemq_py._core.calls.adding import AddCall, Added, Adder, AddReply, Row
from glidemq_py._features.durability.confirming import MARK_S, Confirmer, Mark
from glidemq_py.errors import BulkAddError, DurabilityError

__all__ = ["RENEW_S", "ConfirmingTransport", "DurableAdds", "FlowWait", "MarkedChunks", "add_marked"]


RENEW_S = MARK_S * 0.4
"""Marks are renewed so early that they outlive the longest timeout, seconds."""


def _new_mark() -> str:
    return os.urandom(9).hex()


def add_marked(layout: int = 0, known: bool = False) -> AddCall:
    """Return a function that adds jobs with a mark. Each result becomes (`Mark`, result). See `add_to_layout`."""

    def add(meta: str, rows: Sequence[Row], quiet: bool) -> Call[AddReply]:
        mark = _new_mark()

        def decode(reply: bytes) -> AddReply:
            now, results = unpack(reply)
            return AddReply(now, [(Mark(mark), result) for result in results])  # type: ignore[misc]

        request = requests.add(rows=rows, quiet=quiet, layout=layout, known=known, mark=mark)
        return Call("add", meta, request, decode)

    return add


class ConfirmingTransport:
    """The part of a transport that an adder uses, with `Confirmer.add`.

    Args:
        confirmer: runs the adds.
    """

    def __init__(self, confirmer: Confirmer) -> None:
        self._confirmer = confirmer

    async def call(self, call: Call[AddReply], /) -> AddReply:
        """Run an add; see `Confirmer.add`."""
        return await self._confirmer.add(call)


class DurableAdds:
    """An adder that waits until the jobs are durable.

    Args:
        adder: sends the rows by `add_marked` through `ConfirmingTransport`.
        confirmer: waits for the confirmation.
    """

    def __init__(self, adder: Adder, confirmer: Confirmer) -> None:
        self._adder = adder
        self.confirmer = confirmer

    @property
    def loop(self) -> object:
        """The event loop; None for blocking code."""
        return self._adder.loop

    async def add(self, row: Row, added: Callable[[], None] | None = None) -> Added:
        """Add one row and wait until it is durable.

        Args:
            row: The row.
            added: Called when it was added, before the wait.

        Raises:
            UnsupportedOptionError: if the server cannot confirm adds. Nothing was added.
            DurabilityError: if the add was not confirmed.
        """
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


class FlowWait:
    """The marks of flows, and the wait until all of them are durable.

    Args:
        confirmers: confirmer of each queue of the flows, by its declared key; none if the flows are not durable.
        of_plans: returns the confirmers of other plans.
    """

    def __init__(
        self, confirmers: dict[str, Confirmer],
        of_plans: Callable[[Any], Awaitable[dict[str, Confirmer]]] | None = None,
    ) -> None:  # fmt: skip
        self._confirmers = confirmers
        self._of_plans = of_plans
        self._text = _new_mark()
        self._marks: dict[str, list[Mark]] = {}
        self.marker = self._next_mark if confirmers else None
        """Returns the mark of the next call for a queue; None if the flows are not durable."""

    async def cover(self, plans: Any) -> None:
        """Use the queues of these plans, after the flow was refused because its queues have other partitions."""
        if self._of_plans is not None:
            self._confirmers.update(await self._of_plans(plans))
            self._marks.clear()

    def _next_mark(self, meta: str) -> str:
        marks = self._marks.setdefault(meta, [])
        marks.append(Mark(f"{self._text}-{len(marks)}"))
        return marks[-1].text

    async def confirm(self, job_id: str | None = None) -> None:
        """Wait until all calls are durable.

        Raises:
            DurabilityError: if one is not within the timeout of its queue, or the server has lost it.
        """
        (failure,) = await self.confirm_all([self])
        if failure:
            raise DurabilityError(failure, job_id)

    @staticmethod
    async def renew_all(waits: Sequence[FlowWait]) -> None:
        """Keep the marks of flows for another `MARK_S`, while later flows are added."""
        of_queue: dict[str, list[Mark]] = {}
        for wait in waits:
            for meta, marks in wait._marks.items():
                of_queue.setdefault(meta, []).extend(marks)
        for meta, marks in of_queue.items():
            confirmer = next(wait._confirmers[meta] for wait in waits if meta in wait._confirmers)
            await confirmer.renew(marks)

    @staticmethod
    async def confirm_all(waits: Sequence[FlowWait]) -> list[str]:
        """Wait until all calls of several flows are durable. Return per flow why it is not; "" if it is."""
        failures = [""] * len(waits)
        of_queue: dict[str, list[tuple[int, Mark]]] = {}
        for i, wait in enumerate(waits):
            for meta, marks in wait._marks.items():
                of_queue.setdefault(meta, []).extend((i, mark) for mark in marks)
        for meta, numbered in of_queue.items():
            confirmer = waits[numbered[0][0]]._confirmers[meta]
            outcomes = await confirmer.confirm_all([mark for _, mark in numbered])
            for (i, _), failure in zip(numbered, outcomes, strict=True):
                failures[i] = failures[i] or failure
        return failures


class MarkedChunks:
    """The chunks of a bulk add that the server has added, with their marks.

    Args:
        layout: See `add_to_layout`.
        known: See `add_to_layout`.
    """

    def __init__(self, layout: int = 0, known: bool = False) -> None:
        self._layout = layout
        self._known = known
        self._sent = 0
        self._added: list[tuple[int, int, Mark]] = []
        self._renewed = time.monotonic()

    def add_call(self, meta: str, rows: Sequence[Row], quiet: bool) -> Call[AddReply]:
        """Add the next chunk."""
        mark, start, count = _new_mark(), self._sent, len(rows)
        self._sent += count

        def decode(reply: bytes) -> AddReply:
            self._added.append((start, count, Mark(mark)))
            return AddReply(*unpack(reply))

        request = requests.add(rows=rows, quiet=quiet, layout=self._layout, known=self._known, mark=mark)
        return Call("add", meta, request, decode)

    async def renew(self, confirmer: Confirmer) -> None:
        """Renew the marks of a long bulk before they expire."""
        if time.monotonic() - self._renewed >= RENEW_S:
            self._renewed = time.monotonic()
            await confirmer.renew([mark for _, _, mark in self._added])

    async def confirm(self, confirmer: Confirmer, results: Sequence[Any], order: Sequence[int] | None = None) -> None:
        """Wait until all added chunks are durable, for the timeout all together.

        Args:
            confirmer: waits for the marks.
            results: jobs or errors, by position in the bulk.
            order: positions in the order of sending, if it is another one.

        Raises:
            BulkAddError: if some are not; the positions of their jobs have a `DurabilityError`.
        """
        outcomes = list(results)
        failures = await confirmer.confirm_all([mark for _, _, mark in self._added])
        for (start, count, _), failure in zip(self._added, failures, strict=True):
            sent = range(start, start + count if failure else start)
            for i in sent if order is None else [order[at] for at in sent]:
                if not isinstance(outcomes[i], BaseException):
                    outcomes[i] = DurabilityError(failure, outcomes[i].id)
        if any(failures):
            raise BulkAddError(outcomes)
