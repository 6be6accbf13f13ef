"""Graceful shutdown on SIGTERM and SIGINT: one worker, or several components together.

One signal handler serves every worker and shutdown object of the process. If each worker installed its own handler, it
would replace those of the other workers. So all register here. The handlers are installed when the first one registers
in the main thread, and the previous handlers are restored when the last one there unregisters. Repetitions of the
signal that ended it are ignored for the rest of the second; then the event loop restores that signal's handler or, if
the loop has ended, the next signal does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from glidemq_py._core.forks import new_lock
from glidemq_py._core.logs import get_logger, show_id

if TYPE_CHECKING:
    from glidemq_py._job.run import Run

_log = get_logger(__name__)

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
SAME_SIGNAL_S: Final = 1.0
"""Repetitions within this time are ignored: a terminal, a process group and a service manager may each send one."""

REMINDER_S: Final = 60.0
"""How often a closing worker logs the jobs that it waits for."""
_NAMED_JOBS: Final = 5
"""Maximum number of jobs that such a line names."""

OnSignal = Callable[[signal.Signals], None]


class SignalFilter:
    """Filters repeated signals: the same signal within one second counts once.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._counted: dict[int, float] = {}

    def accepts(self, number: int) -> bool:
        """Return True if the signal is a new request."""
        now, last = self._clock(), self._counted.get(number)
        if last is not None and now - last < SAME_SIGNAL_S:
            return False
        self._counted[number] = now
        return True

    def repeats(self, number: int) -> bool:
        """Return True if this signal would be a repetition now."""
        last = self._counted.get(number)
        return last is not None and self._clock() - last < SAME_SIGNAL_S


class _Member:
    """A callback and its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_signal: OnSignal) -> None:
        self.loop = loop
        self.on_signal = on_signal
        self.in_main_thread = threading.current_thread() is threading.main_thread()


class _ProcessSignals:
    """The registered callbacks, of any event loop and thread."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._members: list[_Member] = []
        self._filter = SignalFilter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._installed: dict[signal.Signals, Any] = {}

    def add(self, member: _Member) -> None:
        """Register a callback."""
        with self._lock:
            self._members.append(member)
        if member.in_main_thread and self._loop is not member.loop:
            if self._loop is not None:
                if self._loop.is_running():
                    return  # this loop is nested in it
                self._restore()
            self._install(member.loop)

    def remove(self, member: _Member) -> None:
        """Unregister a callback."""
        with self._lock:
            self._members.remove(member)
            in_main = [each for each in self._members if each.in_main_thread and not each.loop.is_closed()]
        if not member.in_main_thread:
            return
        if not in_main:
            self._restore(last=True)
        elif self._loop is member.loop and all(each.loop is not member.loop for each in in_main):
            self._restore()
            self._install(in_main[0].loop)

    def _install(self, loop: asyncio.AbstractEventLoop) -> None:
        self._filter = SignalFilter()
        self._loop = loop
        for number in SIGNALS:
            before: Any = signal.getsignal(number)
            if isinstance(before, _RepetitionsIgnored):
                before = before.previous
            with contextlib.suppress(NotImplementedError):  # Windows
                loop.add_signal_handler(number, self._received, number)
                self._before[number] = before
                self._installed[number] = signal.getsignal(number)

    def _restore(self, *, last: bool = False) -> None:
        loop, self._loop = self._loop, None
        for number, before in self._before.items():
            now = signal.getsignal(number)
            if loop is not None and not loop.is_closed():
                loop.remove_signal_handler(number)
            # Keep a handler that other code has installed since. None: the previous one was not set by Python.
            handler = before if now is self._installed[number] or loop is None or loop.is_closed() else now
            if last and self._filter.repeats(number):
                ignoring = _RepetitionsIgnored(self._filter, handler)
                signal.signal(number, ignoring)
                with contextlib.suppress(RuntimeError):  # no event loop runs: the next signal restores it
                    asyncio.get_running_loop().call_later(SAME_SIGNAL_S, ignoring.restore, number)
            elif handler is not None:
                signal.signal(number, handler)
        self._before.clear()
        self._installed.clear()

    def _received(self, number: signal.Signals) -> None:
        if not self._filter.accepts(number):
            return
        with self._lock:
            members = list(self._members)
        for member in members:
            if member.loop is self._loop:
                member.on_signal(number)
            else:
                with contextlib.suppress(RuntimeError):  # its loop is closed
                    member.loop.call_soon_threadsafe(member.on_signal, number)


class _RepetitionsIgnored:
    """A handler that ignores repetitions of the signal that ended the workers. A later signal has its previous effect.

    Without it, the second SIGTERM of a terminal would kill a program that is still cleaning up after ``worker.run()``.

    Args:
        repetitions: The filter that counted the signal.
        previous: The handler to restore; None if it was not set by Python.
    """

    def __init__(self, repetitions: SignalFilter, previous: Any) -> None:
        self.previous = previous
        self._repetitions = repetitions

    def __call__(self, number: int, _frame: object) -> None:
        if self._repetitions.accepts(number):
            self.restore(number)
            os.kill(os.getpid(), number)

    def restore(self, number: int) -> None:
        """Install the previous handler, unless this one has been replaced."""
        installed: Any = signal.getsignal(number)
        if installed is self:
            signal.signal(number, signal.SIG_DFL if self.previous is None else self.previous)


_process_signals = _ProcessSignals()


def handle_until_exit(on_signal: OnSignal) -> None:
    """Call ``on_signal`` at SIGTERM and SIGINT until the process exits, so that a late repetition does not kill it."""
    _process_signals.add(_Member(asyncio.get_running_loop(), on_signal))


@contextlib.contextmanager
def on_termination(on_signal: OnSignal) -> Generator[None]:
    """Call ``on_signal`` in the running loop at SIGTERM and SIGINT; repetitions within one second are ignored.

    All callbacks registered in the process are called, in any thread. Signal handlers are installed only while a
    callback is registered in the main thread; otherwise signals keep their previous effect.
    """
    member = _Member(asyncio.get_running_loop(), on_signal)
    _process_signals.add(member)
    try:
        yield
    finally:
        _process_signals.remove(member)


class Closable(Protocol):
    """Anything with an async ``close``. If it accepts ``force``, a second signal passes ``force=True``."""

    async def close(self) -> None:
        """Close the component."""
        ...


def running_jobs(count: int) -> str:
    """Return "1 running job" or "2 running jobs"."""
    return "1 running job" if count == 1 else f"{count:,} running jobs"


class RunningJobsLog:
    """Describes the jobs that closing workers wait for, and logs them once a minute.

    Args:
        workers: The workers.
        log: Gets the reminders.
    """

    def __init__(self, workers: Iterable[Any], log: logging.Logger) -> None:
        self._workers = list(workers)
        self._log = log
        self._timer: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        """Return the number of the jobs, and the first ones by queue, id and name."""
        runs: list[Run] = [run for worker in self._workers for run in worker._runs]
        if not runs:
            return "no job is running"
        named = [_described(run) for run in runs[:_NAMED_JOBS]]
        if len(runs) > len(named):
            named.append(f"{len(runs) - len(named):,} more")
        return f"{'1 job is' if len(runs) == 1 else f'{len(runs):,} jobs are'} running: {', '.join(named)}"

    def start(self) -> None:
        """Log the jobs once a minute, from a minute on."""
        self._timer = asyncio.get_running_loop().call_later(REMINDER_S, self._remind)

    def _remind(self) -> None:
        if any(worker._runs for worker in self._workers):
            self._log.info("still closing; %s", self)
        self.start()

    def stop(self) -> None:
        """Stop logging. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()


def _described(run: Run) -> str:
    where = f"queue {run.job.queue_name!r}" + (", attempt ended" if run.attempt.ended else "")
    return f"{show_id(run.job.id)} {run.job.name!r} ({where})"


@contextlib.contextmanager
def closing_on_signals(worker: Any) -> Generator[tuple[list[asyncio.Task[None]], Callable[[str], None]]]:
    """Close ``worker`` at the first SIGTERM or SIGINT, and with ``force`` at the second.

    The running jobs are logged at the first signal, and then once a minute.

    Yields:
        The list of close tasks, empty until a signal arrives; and a function that acts like a signal of the given name.
    """
    closing: list[asyncio.Task[None]] = []
    running = RunningJobsLog([worker], _log)

    def close(name: str) -> None:
        if closing:
            _log.warning("%s: closing %r now; releasing %s", name, worker, running_jobs(worker.active_count))
        else:
            _log.info("%s: closing %r; %s", name, worker, running)
            running.start()
        closing.append(asyncio.ensure_future(worker.close(force=bool(closing))))

    try:
        with on_termination(lambda number: close(signal.Signals(number).name)):
            yield closing, close
    finally:
        running.stop()


class GracefulShutdown:
    """Closes components together, on a signal or by `shutdown`.

    ``async with graceful_shutdown(worker, queue) as shutdown: await shutdown.wait()``
    """

    def __init__(self, *components: Closable) -> None:
        self._components = components
        self._done = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._hurried: list[asyncio.Future[None]] = []
        self._stack = contextlib.ExitStack()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._closing is None:
            _log.info("%s: closing %d components", signal.Signals(number).name, len(self._components))
            self._closing = asyncio.ensure_future(self.shutdown())
            return
        for component in self._components:
            force: Any = component.close
            with contextlib.suppress(TypeError):
                self._hurried.append(asyncio.ensure_future(force(force=True)))

    async def shutdown(self) -> None:
        """Close all components concurrently; errors are logged. Idempotent."""
        results = await asyncio.gather(*(component.close() for component in self._components), return_exceptions=True)
        for component, result in zip(self._components, results, strict=True):
            if isinstance(result, BaseException):
                _log.error("closing %r failed: %r", component, result)
        self.dispose()

    async def wait(self) -> None:
        """Wait until all components are closed, or `dispose` is called."""
        await self._done.wait()

    def dispose(self) -> None:
        """Stop listening for signals without closing anything. `wait` returns; so does leaving the ``async with``."""
        self._stack.close()
        self._done.set()

    async def __aenter__(self) -> Self:
        self._stack.enter_context(on_termination(self._on_signal))
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._done.is_set():
            await self.shutdown()


def graceful_shutdown(*components: Closable) -> GracefulShutdown:
    """Close ``components`` (workers, queues, queue events) together at SIGTERM or SIGINT; see `GracefulShutdown`."""
    return GracefulShutdown(*components)
