"""What handlers do to end their attempts. Sandboxes import it."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from glidemq_py import DelayedError, Job, JobTimeoutError, UnrecoverableError
from glidemq_py.errors import GroupRateLimitError, JobRevokedError, SuspendError, WaitingChildrenError

__all__ = ["HOUR_MS", "end", "end_all", "end_in_thread", "ending", "named"]

HOUR_MS = 3_600_000


class Hard(BaseException):
    """Not an Exception."""


class FinalError(UnrecoverableError):
    """A kind of one of the package's errors."""


class SilentError(Exception):
    """Has no text."""


class NoTextError(Exception):
    def __str__(self) -> str:
        raise Hard

    __repr__ = __str__


class MissingKeyError(Exception):
    """As the errors of some SDKs, which delegate attributes."""

    def __getattr__(self, name: str):
        return {"code": 429}[name]


class RecursiveError(Exception):
    def __getattr__(self, name: str):
        return getattr(self.response, name)


class MockedError(Exception):
    def __getattr__(self, name: str):
        return lambda *args: None


class NoNotesError(Exception):
    @property
    def __notes__(self):  # type: ignore[override]
        raise Hard


class NoClassError(Exception):
    @property  # type: ignore[misc]
    def __class__(self):
        raise Hard

    @property
    def __dict__(self):  # type: ignore[override]
        raise Hard


class NoResult(dict[str, int]):
    @property  # type: ignore[misc]
    def __class__(self):
        raise Hard


def caused():
    raise ValueError("boom") from MissingKeyError("cause")


async def discards(job: Any):
    job.discard()
    raise ValueError("no")


async def discards_and_returns(job: Any) -> str:
    job.discard()
    return "fine"


async def hangs(job: Any):
    await asyncio.Event().wait()


def recurses(job: Any):
    return recurses(job)


RESULTS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "false": lambda: False,
    "text": lambda: "grüße 🎉",
    "values": lambda: {"a": [1, 2.5, None, True]},
    "empty": list,
    "object": object,
    "hostile result": lambda: NoResult(a=1),
    "lone surrogate": lambda: "\ud800",
    "not a number": lambda: float("nan"),
}
ERRORS: dict[str, Callable[[], BaseException]] = {
    "raises": lambda: ValueError("no"),
    "raises in its last attempt": lambda: ValueError("no"),
    "raises without backoff": lambda: ValueError("no"),
    "key": lambda: KeyError("k"),
    "silent": SilentError,
    "unicode": lambda: ValueError("ünïcode ☃"),
    "half a pair": lambda: ValueError("half \ud800 a pair"),
    "long": lambda: ValueError("x" * 100_000),
    "group": lambda: ExceptionGroup("many", [ValueError("one"), KeyError("two")]),
    "hostile group": lambda: ExceptionGroup("boom", [MissingKeyError("part")]),
    "stop": lambda: StopAsyncIteration("no"),
    "memory": lambda: MemoryError("no"),
    "asyncio timeout": lambda: TimeoutError("no"),
    "cancelled": lambda: asyncio.CancelledError("no"),
    "exit": lambda: SystemExit(3),
    "not an exception": lambda: Hard("no"),
    "no text": NoTextError,
    "missing key": lambda: MissingKeyError("boom"),
    "recursive": lambda: RecursiveError("boom"),
    "mocked": lambda: MockedError("boom"),
    "no notes": lambda: NoNotesError("boom"),
    "no class": lambda: NoClassError("boom"),
    "unrecoverable": lambda: UnrecoverableError("no"),
    "final": lambda: FinalError("no"),
    "raises JobTimeoutError": lambda: JobTimeoutError("no"),
    "raises JobRevokedError": lambda: JobRevokedError("no"),
    "delayed": lambda: DelayedError(HOUR_MS),
    "delayed with data": lambda: DelayedError(HOUR_MS, data="new", replace=True),
    "delayed in its last attempt": lambda: DelayedError(HOUR_MS),
    "suspended": lambda: SuspendError("why"),
    "suspended for a time": lambda: SuspendError("why", HOUR_MS),
    "waits for children": WaitingChildrenError,
    "no group": lambda: GroupRateLimitError(HOUR_MS),
    "limits its group": lambda: GroupRateLimitError(HOUR_MS),
}
DEEDS: dict[str, Callable[[Any], Any]] = {
    "cause": lambda job: caused(),
    "recurses": recurses,
    "discards": discards,
    "discards and returns": discards_and_returns,
    "generator": lambda job: (n for n in range(1)),
    "moves": lambda job: job.move_to_delayed(HOUR_MS),
    "moves to a step": lambda job: job.move_to_delayed(HOUR_MS, next_step="b", data={"n": 1}),
    "suspends": lambda job: job.suspend(reason="why"),
    "waits for a signal": lambda job: job.wait_for_signal("go"),
    "times out": hangs,
    "is revoked": hangs,
}


async def named(name: str, job: Any):
    """Do what the name says."""
    if name in RESULTS:
        return RESULTS[name]()
    if name in ERRORS:
        error = ERRORS[name]()
        raise error
    done = DEEDS[name](job)
    return await done if inspect.isawaitable(done) else done


async def end(job: Any):
    """Handle a job."""
    return await named(job.name, job)


def end_in_thread(job: Any):
    """Handle a job in a thread."""
    if DEEDS.get(job.name) is hangs:
        return job.cancelled.wait(60)
    try:
        named(job.name, job.blocking if job.name == "waits for a signal" else job).send(None)
    except StopIteration as done:
        return done.value


async def end_all(jobs: list[Job]) -> list[Any]:
    """Handle a batch."""
    outcomes: Any = []
    for job in jobs:
        try:
            outcomes.append(await end(job))
        except BaseException as error:
            if type(error) is asyncio.CancelledError and not error.args:
                raise  # the worker cancels the batch
            outcomes.append(error)
    return outcomes


async def ending(message: Any):
    """Handle a message."""
    return await named(message.data, message)
