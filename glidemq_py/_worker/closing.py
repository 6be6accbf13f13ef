"""Ends the jobs of a lane that closes, and reports their results."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from glidemq_py._core.logs import get_logger
from glidemq_py._worker.fetch_loop import FetchLoop
from glidemq_py._worker.runner import AttemptRunner

_log = get_logger(__name__)

_RELEASE_S: Final = 5.0
"""Time limit for releasing jobs. Jobs that are not released by then stall and are recovered."""
_ALONE_S: Final = 2.0
"""Time limit for all calls of a forced close if the server cannot be reached."""
_ALONE_MIN_S: Final = 0.05
_FETCH_S: Final = 5.0
"""How long a close waits for the reply to a call that fetches and reports nothing. GLIDE keeps a call that is made
while it reconnects until the request timeout."""
_CHECK_S: Final = 0.1
_FIGURES_S: Final = 2.0


class Closing:
    """Ends the jobs of a worker that closes, and reports their results.

    Args:
        fetching: Reports the results.
        runner: Runs the jobs.
        patience: How long to wait for a server that does not reply once no handler runs, seconds.
    """

    def __init__(self, fetching: FetchLoop, runner: AttemptRunner, patience: float) -> None:
        self._fetching = fetching
        self._runner = runner
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._limited_at: float | None = None
        self.server_replies = True
        """False once the server has not replied to a call of the close."""

    @property
    def is_cut_off(self) -> bool:
        """True if the server is known to be unreachable."""
        return self._fetching.engine.is_cut_off or not self.server_replies

    def start_limit(self) -> None:
        """Limit the time of the remaining calls from now on, in case the server is lost. Idempotent."""
        if self._limited_at is None:
            self._limited_at = self._loop.time()

    def seconds_left(self, usual: float) -> float:
        """Return a time limit: ``usual`` seconds; without a server 2 s from `start_limit`."""
        if not self.is_cut_off:
            return usual
        since = self._loop.time() if self._limited_at is None else self._limited_at
        return max(_ALONE_MIN_S, min(usual, since + _ALONE_S - self._loop.time()))

    async def run_out(self, force: asyncio.Event) -> None:
        """Wait until every attempt has ended and every result is reported; when ``force`` is set, release running jobs.

        Also ends if results cannot be reported within the patience. A handler whose attempt has ended before it (a
        timeout, a lost lock) has nothing to report: a coroutine gets some seconds for its cleanup, a thread none.
        """
        fetching, engine, runner = self._fetching, self._fetching.engine, self._runner
        drained = asyncio.ensure_future(fetching.until(lambda: runner.is_idle and engine.all_reported))
        forced, hopeless = asyncio.ensure_future(force.wait()), asyncio.ensure_future(self._until_hopeless())
        waiting = (drained, forced, hopeless)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        self.start_limit()
        if not (hopeless.done() or drained.done()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RELEASE_S):
                    await self._release(drained)
        elif drained.done():
            await runner.cancelled_ended(_RELEASE_S)
            await self._until(lambda: engine.is_recovered, _RELEASE_S)
        for future in waiting:
            future.cancel()

    async def send_metrics(self) -> None:
        """Send the figures per job name that are not sent yet. If this fails, they are lost."""
        if self.server_replies and not self.is_cut_off and not self._fetching.by_name.is_empty:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.seconds_left(_FIGURES_S)):
                    await self._fetching.send_metrics()

    async def _release(self, drained: asyncio.Future[None]) -> None:
        fetching, runner = self._fetching, self._runner
        while not drained.done():
            # Repeatedly: a reply in flight may still contain jobs.
            runner.release_all()
            await runner.cancelled_ended()
            if not await self._until(lambda: fetching.engine.all_reported, _RELEASE_S):
                return
            if runner.is_idle:
                break
        await self._until(lambda: fetching.engine.is_recovered, _RELEASE_S)

    async def _until(self, reached: Callable[[], bool], usual: float) -> bool:
        """Wait until ``reached`` returns True, within `seconds_left`, which shrinks when the server is lost."""
        began = self._loop.time()
        while not reached():
            if self._loop.time() - began >= usual or (self.is_cut_off and self.seconds_left(usual) <= _ALONE_MIN_S):
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await self._fetching.until(reached)
        return True

    async def _until_hopeless(self) -> None:
        """Wait until no attempt runs and the server has not replied for so long that other workers run the jobs again.

        Without a result to report, `_FETCH_S` is enough: jobs of a reply that comes later stall and are recovered. Logs
        a warning when results are delayed.
        """
        fetching, warned = self._fetching, False
        await fetching.until(lambda: self._runner.is_idle)
        began = self._loop.time()
        while True:
            # Not a timer: a reply moves the end, and a lost connection the warning.
            silent = min(self._loop.time() - began, fetching.silent_seconds)
            count = len(fetching.unreported)
            if count and not warned and (fetching.engine.is_cut_off or silent > _ALONE_S):
                warned = True
                _log.warning(
                    "closing; %s of queue %r %s not reported yet: the server does not reply; waiting at most %.0f s",
                    "1 result" if count == 1 else f"{count} results", fetching.name, "is" if count == 1 else "are",
                    self._patience - silent,
                )  # fmt: skip
            if silent >= (self._patience if count else _FETCH_S):
                self.server_replies = False
                return
            await asyncio.sleep(_CHECK_S)

    def report_losses(self) -> None:
        """Log the results that are not reported."""
        if self._fetching.engine.disconnected:
            return  # logged by the fetch loop
        for finished in self._fetching.unreported:
            job = finished.run.job
            _log.error(
                "queue %r: the result of job %s (%r) is not reported: the server does not reply; the job will run again"
                "%s", self._fetching.name, job.id, job.name,
                ", unless the server received the report" if finished.sent else "",
            )  # fmt: skip
