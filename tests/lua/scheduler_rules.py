"""Schedulers, for the machine of test_state_machine.py: every and cron, changed, limited, removed, fired late.

The jobs and the next due time of each firing are predicted by arithmetic of our own: all times are multiples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final, cast

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from glidemq_py import JSON_SERIALIZER
from glidemq_py.errors import GlideMQValidationError
from tests.inside import PAYLOAD_LIMIT, Call, QueueOptions, area, firing
from tests.inside import entry as schedule_entry
from tests.lua.own_support import OwnQueue
from tests.lua.queue_model import Model
from tests.wire_library.support import WireQueue

NAMES: Final = ("nightly", "hourly")
EVERY_MS: Final = (250, 700)
CRON: Final = {"* * * * * *": 1_000, "*/3 * * * * *": 3_000}
"""Patterns with seconds, and the interval that each is."""


@dataclass
class Planned:
    """A scheduler of the model."""

    every: int
    pattern: str | None
    misfire: str
    limit: int | None
    next_run: int
    runs: int = 0

    def after(self, at: int, now: int) -> int:
        """Return the first due time after ``now``, if ``at`` is one of them."""
        return at + ((now - at) // self.every + 1) * self.every

    def fire(self, now: int) -> list[int]:
        """Return the due times that get a job now, and advance."""
        due, found = self.next_run, list[int]()
        if due > now:
            return []
        regular = due if self.pattern is None else due + -due % self.every
        self.next_run = self.after(regular, now)
        if self.misfire == "fire_once" or (self.misfire == "skip" and now - due <= firing.MISSED_AFTER_MS):
            found = [due]
        elif self.misfire == "fire_all":
            found = [due, *(at for at in range(self.after(regular, due), now + 1, self.every))]
            found = found[: None if self.limit is None else self.limit - self.runs]
        else:
            late = self.after(regular, now - firing.MISSED_AFTER_MS)
            found = [late] if late <= now else []
        self.runs += len(found)
        return found

    @property
    def is_over(self) -> bool:
        return self.limit is not None and self.runs >= self.limit


class SchedulerRules:
    """A part of the machine."""

    q: OwnQueue
    wire: WireQueue
    model: Model
    run: Any

    @property
    def planned(self) -> dict[str, Planned]:
        """The schedulers, by name."""
        found: dict[str, Planned] = self.__dict__.setdefault("_planned", {})
        return found

    def _link(self):
        """Return a queue, as far as the API of schedulers uses it."""
        link = SimpleNamespace(
            call=self._call, keys=SimpleNamespace(meta=self.q.meta), compression="none", is_listed=True,
            serializer=JSON_SERIALIZER, payload_limit=PAYLOAD_LIMIT, shown_id=str,
        )  # fmt: skip

        async def first():
            return link

        async def links():
            return [link]

        async def settled(change: Callable[[], Any]):
            return await change()

        async def together(calls: Iterable[Any]):
            return [await call for call in calls]

        return SimpleNamespace(
            name="q", _first=first, _links=links, _settled=settled, _together=together, options=QueueOptions(),
            link=link,
        )  # fmt: skip

    async def _call(self, make: Callable[..., Call[Any]], *args: Any, **options: Any):
        return self.run(make(self.q.meta, *args, **options))

    @rule(
        name=st.sampled_from(NAMES), how=st.sampled_from((*EVERY_MS, *CRON)), limit=st.sampled_from((None, 1, 3)),
        misfire=st.sampled_from(("fire_once", "fire_all", "skip")), immediately=st.booleans(),
    )  # fmt: skip
    def upsert_scheduler(self, name: str, how: int | str, limit: int | None, misfire: str, immediately: bool):
        """Create a scheduler, or change one; with the same times it keeps its next run and its count."""
        now, pattern = self.q.now, how if isinstance(how, str) else None
        every = CRON[pattern] if pattern else cast("int", how)
        before = self.planned.get(name)
        keeps = before is not None and (before.every, before.pattern) == (every, pattern)
        times: Any = {"pattern": pattern} if pattern else {"every": every}
        options: Any = {**times, "limit": limit, "misfire": misfire, "immediately": immediately}
        rejected: str | None = None
        try:
            found = run(area.Schedulers(self._link()).upsert(name, **options))
        except GlideMQValidationError as error:
            rejected = error.option
        reached = keeps and before is not None and limit is not None and before.runs >= limit
        assert rejected == ("limit" if reached else None)
        if reached:
            return
        if keeps:
            assert before is not None
            self.planned[name] = replace(before, misfire=misfire, limit=limit)
        else:
            first = now if immediately else now + -now % every if pattern else now + every
            self.planned[name] = Planned(every, pattern, misfire, limit, first)
        assert found.next_run == self.planned[name].next_run
        assert found.iteration_count == self.planned[name].runs

    @precondition(lambda self: self.planned)
    @rule(name=st.sampled_from(NAMES))
    def remove_scheduler(self, name: str):
        removed = run(area.Schedulers(self._link()).remove(name))
        assert removed == (self.planned.pop(name, None) is not None)

    @precondition(lambda self: self.planned)
    @rule(passed=st.sampled_from((0, 0, 0, 200, 2_500, 7_000)), late=st.booleans())
    def fire_schedulers(self, passed: int, late: bool):
        """Fire what is due, perhaps after no process ran for a while; a second process that was late adds nothing."""
        self.wire.now = self.q.advance(passed)
        while True:
            due = self.run(schedule_entry.schedulers_due(self.q.meta, "first"))
            assert {each.name for each in due.rows} == {
                name for name, each in self.planned.items() if each.next_run <= self.q.now
            }
            if not due.rows:
                break
            link = self._link().link
            rows = [firing.plan(link, each, due.now) for each in due.rows]
            outcomes = self.run(schedule_entry.schedulers_fire(self.q.meta, "first", rows, False)).outcomes
            for each, ids in zip(rows, outcomes, strict=True):
                self._fired(each, ids)
            if late:
                again = self.run(schedule_entry.schedulers_fire(self.q.meta, "second", rows, False)).outcomes
                assert again == ["changed"] * len(rows)
        self._compare()

    def _fired(self, row: schedule_entry.FireRow, ids: list[str]):
        each = self.planned[row.name]
        instants = each.fire(self.q.now)
        assert row.instants == instants, (row, each)
        assert len(ids) == len(instants)
        for job_id, instant in zip(ids, instants, strict=True):
            self.model.add(job_id)
            record = self.q.job(job_id)
            assert (record["name"], record["scheduledFor"]) == (row.name, str(instant))
        if each.is_over:
            del self.planned[row.name]

    def _compare(self):
        """Assert that the stored schedulers are those of the model."""
        pages = [self.run(schedule_entry.schedulers_read(self.q.meta, None, home)) for home in ("p0", "o0")]
        stored = {row.name: json.loads(row.text) for page in pages for row in page.rows}
        assert {name: (entry["nextRun"], entry["iterationCount"]) for name, entry in stored.items()} == {
            name: (each.next_run, each.runs) for name, each in self.planned.items()
        }


def run(work: Coroutine[Any, Any, Any]):
    """Run a coroutine that never waits, and return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")
