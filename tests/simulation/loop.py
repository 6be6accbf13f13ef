"""An event loop with virtual time: nothing waits, and the same program makes the same steps.

Time advances only while nothing is ready to run. A `Party` is a simulated process: every task and timer that its code
creates belongs to it (by a context variable, which asyncio passes on), so a party can be killed, which drops whatever
it would run next, or frozen, which postpones it. No thread and no selector is involved.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import warnings
from asyncio.base_events import BaseEventLoop
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

__all__ = ["PARTY", "DeadlockError", "Party", "SimulatedLoop"]

STEPS_AT_ONCE: Final = 100_000
"""Rounds of the loop without progress of time, after which the program counts as spinning."""
START_S: Final = 1_000.0
"""Virtual time at the start. Not 0, which some code reads as "never"."""


class Party:
    """A simulated process.

    Attributes:
        name: name in messages and traces.
        dead: it was killed: none of its code runs any more.
        frozen: none of its code runs until `SimulatedLoop.thaw`.
        skew: error of its wall clock, seconds.
    """

    def __init__(self, name: str):
        self.name = name
        self.dead = False
        self.frozen = False
        self.skew = 0.0
        self.postponed: list[_Step] = []
        self.kept: list[object] = []
        """Its tasks, so that those of a killed party are not collected, which would run their `finally` blocks."""

    def __repr__(self) -> str:
        return f"<Party {self.name}>"


PARTY: contextvars.ContextVar[Party | None] = contextvars.ContextVar("PARTY", default=None)


class DeadlockError(Exception):
    """Raised if the program waits for something that nothing will bring about."""


class _Step:
    """A callback to run, as `asyncio.TimerHandle`, which costs several times as much."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "time")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context, time: float = 0.0
    ):
        self.callback = callback
        self.args = args
        self.context = context
        self.time = time
        self.is_cancelled = False

    def cancel(self):
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.time


def _nothing(): ...


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number: sets of tasks have the same order in every run."""

    _log_destroy_pending: bool
    numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any):
        self.number = next(self.numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulatedLoop(BaseEventLoop):
    """An event loop with virtual time, for one thread.

    Attributes:
        now: the virtual time, seconds.
        steps: number of callbacks that were run.
        errors: what the exception handler was called with.
    """

    _ready: deque[Any]
    _scheduled: list[Any]
    """Steps with their times and numbers, soonest first."""

    def __init__(self):
        super().__init__()
        self.now = START_S
        self.steps = 0
        self.errors: list[str] = []
        self._ended = False
        self._tasks: set[_Task] = set()
        self._many_tasks = 100
        self._number = 0
        self._rounds = 0
        """Rounds since the time has advanced."""
        self.set_task_factory(self._new_task)  # type: ignore[arg-type]
        self.set_exception_handler(self._on_error)

    def _new_task(self, _: object, work: Coroutine[Any, Any, Any], **options: Any) -> _Task:
        task = _Task(work, loop=self, **options)
        tasks = self._tasks
        tasks.add(task)
        if len(tasks) > self._many_tasks:
            tasks -= {each for each in tasks if each.done()}
            self._many_tasks = 2 * len(tasks) + 100
        return task

    def _on_error(self, _: object, context: dict[str, Any]):
        if not self._ended:
            self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def time(self) -> float:
        return self.now

    # -- parties ------------------------------------------------------------------------------------------

    def run_in(self, party: Party, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function as this party's code."""
        context = contextvars.copy_context()
        context.run(PARTY.set, party)
        return context.run(function, *args)

    def spawn(self, party: Party, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of this party."""
        return self.run_in(party, self.create_task, work)

    def thaw(self, party: Party):
        """Let a frozen party continue."""
        party.frozen = False
        postponed, party.postponed = party.postponed, []
        self._ready.extend(postponed)

    # -- running --------------------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        step = _Step(callback, args, contextvars.copy_context() if context is None else context)
        self._ready.append(step)
        return step

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        step = _Step(callback, args, contextvars.copy_context() if context is None else context, when)
        self._number += 1
        heapq.heappush(self._scheduled, (when, self._number, step))
        return step

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def _run_once(self):
        ready, scheduled = self._ready, self._scheduled
        if not ready:
            while scheduled and scheduled[0][2].is_cancelled:
                heapq.heappop(scheduled)
            if not scheduled:
                raise DeadlockError("every task waits, and no timer is set")
            now = self.now = max(self.now, scheduled[0][0])
            self._rounds = 0
            while scheduled and scheduled[0][0] <= now:
                ready.append(heapq.heappop(scheduled)[2])
        self._rounds += 1
        if self._rounds > STEPS_AT_ONCE:
            raise DeadlockError(f"the program spins: {ready[0].callback!r}")
        for _ in range(len(ready)):
            step = ready.popleft()
            if step.is_cancelled:
                continue
            context = step.context
            party = context.get(PARTY)
            if party is not None and (party.dead or party.frozen):
                (party.kept if party.dead else party.postponed).append(step)
                continue
            self.steps += 1
            try:
                context.run(step.callback, *step.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"exception in {step.callback!r}", "exception": error})

    def end(self):
        """End all pending tasks without running them further, and close the loop."""
        self._ended = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # tasks that have not begun
            while self._tasks:  # a `finally` block may create others
                for task in sorted(self._tasks, key=lambda task: task.number):
                    self._tasks.discard(task)
                    task._log_destroy_pending = False
                    with contextlib.suppress(BaseException):  # a `finally` block that awaits cannot do so
                        task.get_coro().close()
        self._ready.clear()
        self._scheduled.clear()
        self.close()

    def _check_closed(self):
        if not self._ended:
            super()._check_closed()  # type: ignore[misc]

    # -- what an event loop also has ------------------------------------------------------------------------

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, _: object, function: Any, *args: Any) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"the simulation has no threads: {function!r}{args!r}")

    def add_reader(self, *_: object):
        """GLIDE's pipe has nothing for this loop."""

    def _process_events(self, _: object): ...

    def _write_to_self(self): ...
