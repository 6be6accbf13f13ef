"""Durable steps: parts of a handler that run once, and whose results are stored with the job.

A handler with steps runs again from its start after each sleep, wait, retry or crash. A step that has a result returns
it without running again. The identity of a step is its name and its number among the steps of this name in the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import hashlib
import inspect
import threading
import time
import typing
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar, Token
from types import SimpleNamespace
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, TypeVarTuple, cast, overload
from weakref import WeakKeyDictionary

from glidemq_py._client.failures import repeated_level
from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls.working import AttemptStatus, AttemptStep, StoredStep, store_steps
from glidemq_py._core.checks import check_int, check_text
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import split_member
from glidemq_py._core.limits import MAX_COUNT
from glidemq_py._core.logs import RepeatedFailure, format_traceback, get_logger, show_id
from glidemq_py._core.option_values import BACKOFF_TYPES, Backoff, BackoffInput
from glidemq_py._core.payload import Mismatch, decode_data, decode_result, encode_data, serializer_of
from glidemq_py._core.queue_options import JobSpec, TaskCall
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.consistency.calls import has_peers
from glidemq_py._features.flows import children
from glidemq_py._features.steps import Step, StepState, parse_last, parse_step, text_of_step
from glidemq_py._features.suspend import MAX_REASON, MAX_SIGNAL_NAME, Signal, received_signals, suspend_error
from glidemq_py._job.attempt import message_of, stored_text
from glidemq_py._job.stored import StoredJob
from glidemq_py._partitions.layout import split_partition_id
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import (
    BulkAddError,
    ChildFailedError,
    DelayedError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    JobSignal,
    ScriptError,
    SerializationError,
    SignalTimeout,
    StaleAttemptError,
    StepChangedError,
    StepError,
    StepLimitError,
    StepsRefusedError,
    SuspendError,
    UnrecoverableError,
    WaitingChildrenError,
)
from glidemq_py.telemetry.spans import observed_step
from glidemq_py.telemetry.state import TELEMETRY

T = TypeVar("T")
SignalT = TypeVar("SignalT", DelayedError, SuspendError, WaitingChildrenError, StepsRefusedError)
Ts = TypeVarTuple("Ts")

_log = get_logger(__name__)

MAX_STEPS: Final = 1_000
"""Steps of a job."""
MAX_RESULTS: Final = 1_048_576
"""Bytes of the results of a job's steps from which no further step begins."""
_MAX_NAME: Final = 256
_IN_SLOT_MS: Final = 1_000
"""A shorter pause is waited for in the slot."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 2.0
"""Between two calls while the server cannot execute any."""
_PEERS_MS: Final = 5_000
"""How long a job is delayed whose first step is refused."""
_TRACE_FRAMES, _TRACE_CHARS = 32, 8_192
_MOST_LOGGED: Final = 1_000
_TOGETHER: Final = 16
"""Steps of a call: more would let the server wait for them."""

running_step: ContextVar[tuple[str, int] | None] = ContextVar("glidemqrunning_step", default=None)
"""Identity of the step whose function runs."""
_logged: set[tuple[str, str]] = set()
"""Names of jobs and steps of which it was logged that the step was not asked for."""


class Memo:
    """The steps of a running job: those stored before, and those that this run has asked for.

    Args:
        job: The job.

    Attributes:
        last: Number of the last step.
        ended: The signal that a step has raised. The attempt ends with it even if the handler catches it.
        values: Results of the job's children, encoded, by queue and id; read at first use.
        tasks: Tasks that run steps, except the handler's; they are cancelled when the handler ends.
    """

    def __init__(self, job: StoredJob) -> None:
        header, *texts = job._steps_texts or ("",)
        found = [parse_step(text) for text in texts]
        self._job = job
        self.last = parse_last(header)
        self._known = {each[0].key: each[0] for each in found if each is not None}
        self._places = {each[0].key: (number, each[1]) for number, each in enumerate(found, 1) if each is not None}
        """Number of each step, and how often it was stored; those of this run included."""
        self._size = sum(_size(step.result) for step in self._known.values())
        self._asked: Counter[str] = Counter()
        self._started = time.monotonic()
        self.ended: JobSignal | None = None
        self.values: dict[tuple[str, str], str] | None = None
        self.tasks: set[asyncio.Task[Any]] = set()

    @property
    def now(self) -> int:
        """Time of the server's clock, epoch ms, as the start of the attempt and the monotonic clock tell it."""
        return (self._job.processed_on or 0) + round((time.monotonic() - self._started) * 1_000)

    def ask(self, name: str, function: str) -> Step:
        """Return the next step of this name, as it was stored; without ``stored_at`` if it was not.

        Raises:
            StepChangedError: Another function is stored for it.
            StaleAttemptError: The attempt is over: the job was cancelled or timed out, or is locked by another worker.
            JobSignal: A step has ended the attempt, and the handler has caught the signal.
        """
        self.check()
        self._asked[name] += 1
        key = name, self._asked[name]
        step = self._known.get(key)
        if step is None:
            return Step(name, StepState.RETRYING, key[1], function)
        if step.function != function:
            raise StepChangedError(name, step.function, function)
        return step

    def check(self) -> None:
        """Check that the attempt goes on; see `ask` for the errors."""
        if self.ended is not None:
            raise self.ended
        attempt = self._job._attempt
        if attempt is None or attempt.ended:
            raise StaleAttemptError(self._job.id)

    def end(self, signal: SignalT, step: Step | None = None) -> SignalT:
        """Return the signal with which the attempt ends; ``step`` is stored with its report."""
        if step is not None:
            signal.step = tuple(self.row(step))
            self._record(step)
        self.ended = self._job._own(signal)
        return signal

    def next_ordinal(self, name: str) -> int:
        """Return the ordinal of the running step of this name, else of the next one."""
        running = running_step.get()
        return running[1] if running is not None and running[0] == name else self._asked[name] + 1

    def left(self, step: Step) -> int:
        """Return the rest of a stored pause, ms; at most its whole length, if the server's clock was ahead."""
        return min(step.pause, step.due_at - self.now) if step.stored_at else 0

    def sleeping(self, step: Step) -> DelayedError:
        """Return the signal that delays the job until the end of a stored pause."""
        is_ahead = step.due_at - self.now > step.pause
        return self.end(DelayedError(step.pause) if is_ahead else DelayedError(until=step.due_at))

    async def admit(self, step: Step) -> None:
        """Check that a step may be stored that was not stored before.

        Raises:
            StepLimitError: The job has too many steps, or too large results.
            StepsRefusedError: A worker of glide-mq for Node is registered; not if the job has steps.
        """
        if step.stored_at:
            return
        if self.last >= MAX_STEPS or self._size >= MAX_RESULTS:
            raise StepLimitError(
                f"step {step.name!r} was not run: the job has {self.last:,} steps and {self._size:,} bytes of results; "
                f"the limits are {MAX_STEPS:,} steps and {MAX_RESULTS:,} bytes"
            )
        if not self.last and await self.reach(lambda: has_peers(self._job._link)):
            refusal = StepsRefusedError(_PEERS_MS)
            _log.warning("queue %r: job %s: %s", self._job.queue_name, show_id(self._job.id), refusal)
            raise self.end(refusal)

    def changed(self, step: Step, state: StepState, **facts: Any) -> Step:
        """Return a step with its new state."""
        return step._replace(state=state, stored_at=self.now, **facts)

    def row(self, step: Step) -> StoredStep:
        """Return the row that stores a step; the memo contains it from now on."""
        number, version = self._places.get(step.key, (0, 0))
        if not number:
            number = self.last = self.last + 1
        self._size += _size(step.result)
        self._places[step.key] = number, version + 1
        return StoredStep(number, version + 1, text_of_step(step))

    async def store(self, step: Step) -> None:
        """Store a step with a call of its own.

        Raises:
            StaleAttemptError: The job is locked by another worker now.
            JobNotFoundError: The job does not exist any more.
        """
        self.check()
        job = self._job
        row = AttemptStep(job._stored_id, *job._token, self.row(step))
        status = await self.reach(lambda: sender_of(job._link).store(row))
        job._check_status(status)
        self._record(step)

    async def reach(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a repeatable call, again and again while the server cannot execute it: the job does not fail for that.

        Raises:
            StaleAttemptError: The attempt is over meanwhile.
        """
        link, pause = self._job._link, _FIRST_PAUSE_S
        failures = sender_of(link).failures
        while True:
            try:
                found = await call()
            except GlideMQConnectionError as error:
                failures.failed(error, repeated_level(link.transport, error))
                await link.runtime.there(asyncio.sleep(pause))
                pause = min(2 * pause, _LAST_PAUSE_S)
                self.check()
            else:
                if failures.since is not None:
                    failures.succeeded()
                return found

    def _record(self, step: Step) -> None:
        for meter in TELEMETRY.meters if TELEMETRY.on else ():
            meter.step_stored(self._job.queue_name, self._job.name, step.state)

    def outcome(self, error: BaseException | None) -> BaseException | None:
        """Return how a handler has ended: with the signal of a step, also if it was caught; and end other steps."""
        for task in self.tasks:
            task.cancel()
        if issubclass(type(error), BaseExceptionGroup):  # of a task group
            inner: Sequence[BaseException] = cast("Any", error).exceptions
            error = inner[0] if len(inner) == 1 else error
        if self.ended is not None:
            if error is not self.ended:
                _log.warning(
                    "queue %r: the handler of job %s %r caught %s (%s); the attempt ends with it all the same. Write "
                    "`except JobSignal: raise` before `except Exception`", self._job.queue_name,
                    show_id(self._job.id), self._job.name, type(self.ended).__name__, self.ended,
                )  # fmt: skip
            return self.ended
        if error is None:
            self._log_unasked()
        return error

    def _log_unasked(self) -> None:
        for name, ordinal in self._places:
            mark = self._job.name, name
            if ordinal > self._asked[name] and mark not in _logged and len(_logged) < _MOST_LOGGED:
                _logged.add(mark)
                _log.warning(
                    "queue %r: job %s %r completed, and its handler no longer runs the stored step %r. Logged once",
                    self._job.queue_name, show_id(self._job.id), self._job.name, name,
                )  # fmt: skip


class StepSender:
    """Stores steps of a queue's jobs. A lone one is sent at once; those of a turn of the event loop leave together.

    Args:
        link: The queue.
        loop: The running event loop; None for blocking code.
    """

    def __init__(self, link: QueueLink[JobTransport], loop: asyncio.AbstractEventLoop | None) -> None:
        self._link = link
        self.loop = loop
        self._in_flight = 0
        self._waiting: list[tuple[AttemptStep, asyncio.Future[AttemptStatus]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.failures = RepeatedFailure(_log, f"queue {link.label}: storing steps")

    async def store(self, step: AttemptStep) -> AttemptStatus:
        """Store a step; see `Transport.call` for the errors."""
        if self.loop is None or not self._in_flight:
            self._in_flight += 1
            try:
                (status,) = await self._link.call(store_steps, (step,))
                return status
            finally:
                self._in_flight -= 1
        future: asyncio.Future[AttemptStatus] = self.loop.create_future()
        self._waiting.append((step, future))
        if len(self._waiting) == _TOGETHER:
            self._send()
        elif len(self._waiting) == 1:
            self.loop.call_soon(self._send)
        return await future

    def _send(self) -> None:
        if self._waiting:
            batch, self._waiting = self._waiting, []
            task = asyncio.create_task(self._store(batch), name="glidemq-steps")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _store(self, batch: Sequence[tuple[AttemptStep, asyncio.Future[AttemptStatus]]]) -> None:
        self._in_flight += 1
        found: Sequence[AttemptStatus | Exception]
        try:
            found = await self._link.call(store_steps, [step for step, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:
            if len(batch) > 1 and isinstance(error, ScriptError):  # one of them made the function fail
                await asyncio.gather(*(self._store([each]) for each in batch))
                return
            found = [error] * len(batch)
        finally:
            self._in_flight -= 1
        for (_, future), outcome in zip(batch, found, strict=True):
            if future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


def sender_of(link: QueueLink[JobTransport]) -> StepSender:
    """Return what stores the steps of a queue's jobs, in the running event loop."""
    loop = asyncio._get_running_loop()
    sender: StepSender | None = link.steps
    if sender is None or sender.loop is not loop:
        sender = link.steps = StepSender(link, loop)
    return sender


def _size(result: str | None) -> int:
    return 0 if result is None else len(result) if result.isascii() else len(result.encode("utf-8", "surrogatepass"))


def memo_of(job: StoredJob, what: str) -> Memo:
    """Return the steps of a running job.

    Raises:
        GlideMQError: The job is not running in a handler.
    """
    job._in_handler(what)
    if job._memo is None:
        job._memo = Memo(job)
    return cast("Memo", job._memo)


def ending_memo(job: StoredJob, what: str) -> Memo:
    """Return the steps of a job for a method that may end the attempt.

    Raises:
        GlideMQError: Only the handler itself may end the attempt, and no batch handler and no lease.
    """
    memo, owner = memo_of(job, what), job._in_handler(what).owner
    if owner is None:
        raise GlideMQError(f"{what} ends the attempt, so it is not supported in batch handlers and for leases")
    if running_step.get() is not None:
        raise GlideMQError(f"{what} ends the attempt: call it in the handler, not in the function of a step")
    if owner is not True and owner is not asyncio.current_task():
        raise GlideMQError(
            f"{what} ends the attempt: call it in the handler's own task, not in one that it has started"
        )
    return memo


# -- run ------------------------------------------------------------------------------------------------------


_NO_PAUSE: Final = Backoff("fixed", 0)
_NO_SPAN: Final = contextlib.nullcontext()


class _Function(NamedTuple):
    """What is known of a function of steps."""

    name: str
    is_async: bool
    codec: Any
    """Codec of what it returns: by its return annotation, or a class itself."""

    @classmethod
    def of(cls, function: Any) -> Self:
        """Return what is known of a function."""
        target = _target_of(function)
        target = getattr(target, "__func__", target)
        known = _functions.get(target)
        if known is None:
            known = cls(target.__qualname__, inspect.iscoroutinefunction(target), _codec_of(target))
            with contextlib.suppress(TypeError):  # of builtins there are no weak references
                _functions[target] = known
        return cast("Self", known)


_functions: WeakKeyDictionary[Any, _Function] = WeakKeyDictionary()


def _codec_of(target: Any) -> Any:
    from glidemq_py._features.typed_values import Codec  # imports msgspec, which few programs need

    try:
        hint = target if inspect.isclass(target) else getattr(target, "__annotations__", {}).get("return", Any)
        if isinstance(hint, str):  # only this one: others may name what exists for type checkers only
            of_return = SimpleNamespace(__annotations__={"return": hint})
            scope = getattr(inspect.unwrap(target), "__globals__", {})
            hint = typing.get_type_hints(of_return, scope)["return"]
        return Codec(hint)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise GlideMQValidationError("function", target, f"its return annotation cannot be used: {error}") from error


def _target_of(function: Any) -> Any:
    """Return the function in a partial or a task, or the method of another callable object."""
    while not inspect.isroutine(function) and not inspect.isclass(function):
        if isinstance(function, functools.partial):
            function = cast("Any", function).func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return type(function).__call__
    return function


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Return the result of a plain function, in a thread of its own: a pool would bound how many run."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[Any] = loop.create_future()

    def end(result: Any, error: BaseException | None) -> None:
        if future.done():
            return  # it has timed out
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(RuntimeError("StopIteration") if isinstance(error, StopIteration) else error)

    def work() -> None:
        result = error = None
        try:
            result = context.run(call)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end, result, error)

    threading.Thread(target=work, name="glidemq-step", daemon=True).start()
    return await future


class StepRun(Generic[T]):
    """A call of `Job.run`.

    Args:
        job: The job.
        name: Name of the step.
        function: The function.
        attempts: See `Job.run`, as for the other arguments.
        backoff: Pause between attempts.
        timeout: Maximum duration of an attempt.
    """

    def __init__(
        self,
        job: StoredJob,
        name: str,
        function: Any,
        attempts: int,
        backoff: BackoffInput,
        timeout: Milliseconds | None,
    ) -> None:
        self._memo = memo_of(job, "run")
        check_text("name", name, maximum=_MAX_NAME)
        if not callable(function):
            raise GlideMQValidationError("function", function, "must be a function")
        self._job = job
        self._function: Callable[..., Any] = function
        known = _functions.get(function) or _Function.of(function)
        self.is_async, self._codec = known.is_async, known.codec
        self._attempts = check_int("attempts", attempts, 1, MAX_COUNT)
        self._backoff = _NO_PAUSE if backoff == 0 else Backoff.parse("backoff", backoff)
        if self._backoff.type not in BACKOFF_TYPES:
            raise GlideMQValidationError("backoff", self._backoff.type, f"must be one of {', '.join(BACKOFF_TYPES)}")
        self.timeout_ms = None if timeout is None else to_ms("timeout", timeout, minimum=1)
        self._step = self._memo.ask(name, known.name)
        self._began = 0.0
        if self._step.state is StepState.FAILED:
            raise _step_error(self._step)

    @property
    def is_done(self) -> bool:
        """Whether the step has a stored result."""
        return self._step.state is StepState.DONE

    def result(self) -> T:
        """Return the stored result.

        Raises:
            SerializationError: It does not match the return annotation of the function.
        """
        return self._read(cast("str", self._step.result))

    def _read(self, text: str) -> T:
        value = decode_data(text, self._job._link.serializer)
        try:
            return cast("T", value if self._codec.is_plain else self._codec.convert(value))
        except Mismatch as mismatch:
            raise SerializationError(f"result of step {self._step.name}", value, mismatch.problem) from mismatch

    async def admit(self) -> float:
        """Return the seconds until the next attempt, if an earlier run has failed; see `Memo.admit` for the errors."""
        await self._memo.admit(self._step)
        left = self._memo.left(self._step)
        if left >= _IN_SLOT_MS and self._may_end:
            raise self._memo.sleeping(self._step)
        return max(0, left) / 1_000

    @property
    def _may_end(self) -> bool:
        """Whether the caller is the handler, which may end the attempt."""
        owner = self._job._in_handler("run").owner
        is_own = owner is True or (owner is not None and owner is asyncio.current_task())
        return is_own and running_step.get() is None

    def _begin(self) -> Token[tuple[str, int] | None]:
        self._memo.check()
        self._began = time.monotonic()
        return running_step.set(self._step.key)

    def _span(self) -> contextlib.AbstractContextManager[None]:
        return observed_step(*self._step.key) if TELEMETRY.on else _NO_SPAN

    async def run(self, args: Sequence[Any]) -> T:
        """Run the attempts, and return the result; see `Job.run` for the errors."""
        pause = await self.admit()
        while True:
            if pause:
                await asyncio.sleep(pause)
            try:
                value = await self.execute(args)
            except Exception as error:
                pause = await self.failed(error)
            else:
                return await self.done(value)

    def call(self, args: Sequence[Any]) -> Any:
        """Call a plain function in this thread."""
        token = self._begin()
        try:
            with self._span():
                return self._function(*args)
        finally:
            running_step.reset(token)

    async def execute(self, args: Sequence[Any]) -> Any:
        """Call the function, a plain one in a thread, within the timeout.

        Raises:
            TimeoutError: It did not end in time.
        """
        token = self._begin()
        try:
            with self._span():
                if self.timeout_ms is None:
                    return await (self._function(*args) if self.is_async else self._call_here(args))
                limit = asyncio.timeout(self.timeout_ms / 1_000)
                try:
                    async with limit:
                        return await self._call_here(args)
                except TimeoutError:
                    if limit.expired():
                        raise TimeoutError(f"no result within {self.timeout_ms} ms") from None
                    raise
        finally:
            running_step.reset(token)

    async def _call_here(self, args: Sequence[Any]) -> Any:
        if self.is_async:
            return await self._function(*args)
        value: Any = await _in_thread(functools.partial(self._function, *args))
        return await value if inspect.isawaitable(value) else value

    def _ended(self, state: StepState, **facts: Any) -> Step:
        name, _, ordinal, function, _, _, attempts, *_ = self._step
        took = round((time.monotonic() - self._began) * 1_000)
        return Step(name, state, ordinal, function, self._memo.now, took, attempts + 1, **facts)

    async def done(self, value: Any) -> T:
        """Store the result, and return it as later runs read it.

        Raises:
            StepError: It cannot be stored; the step has failed.
        """
        link = self._job._link
        try:
            text = encode_data(
                self._codec.write(value), link.serializer, link.compression, link.payload_limit,
                f"result of step {self._step.name}",
            )  # fmt: skip
            result = self._read(text)
        except Exception as error:
            await self.failed(error, is_final=True)
            raise
        await self._memo.store(self._ended(StepState.DONE, result=text))
        return result

    async def failed(self, error: Exception, *, is_final: bool = False) -> float:
        """Store that an attempt has failed; return the seconds until the next one.

        Raises:
            StepError: It was the last one.
            DelayedError: The next one is in a later run.
        """
        if isinstance(error, JobSignal):
            raise error
        made = self._step.attempts + 1
        facts: dict[str, Any] = {"error": stored_text(message_of(error)), "error_type": type(error).__name__}
        if is_final or made >= self._attempts or isinstance(error, UnrecoverableError):
            trace = format_traceback((type(error), error, error.__traceback__), -_TRACE_FRAMES)
            self._step = self._ended(StepState.FAILED, traceback=stored_text(trace, _TRACE_CHARS), **facts)
            await self._memo.store(self._step)
            raise _step_error(self._step) from error
        pause = self._backoff.compute(made)
        self._step = self._ended(StepState.RETRYING, pause=pause, **facts)
        if pause >= _IN_SLOT_MS and self._may_end:
            raise self._memo.end(DelayedError(pause), self._step)
        await self._memo.store(self._step)
        return pause / 1_000


def _step_error(step: Step) -> StepError:
    return StepError(step.name, step.attempts, step.error_type or "Error", step.error or "", step.traceback or "")


@overload
async def run(
    self: StoredJob, name: str, function: Callable[[*Ts], Coroutine[Any, Any, T]], /, *args: *Ts, attempts: int = 1,
    backoff: BackoffInput = 0, timeout: Milliseconds | None = None,
) -> T: ...  # fmt: skip
@overload
async def run(
    self: StoredJob, name: str, function: Callable[[*Ts], T], /, *args: *Ts, attempts: int = 1,
    backoff: BackoffInput = 0, timeout: Milliseconds | None = None,
) -> T: ...  # fmt: skip
async def run(
    self: StoredJob, name: str, function: Callable[[*Ts], Any], /, *args: *Ts, attempts: int = 1,
    backoff: BackoffInput = 0, timeout: Milliseconds | None = None,
) -> Any:  # fmt: skip
    """Run a function as a step of this job. Later runs return its stored result without calling the function.

    The first run, too, returns the result as it is read later: encoded by the queue's serializer and converted to the
    return annotation of the function. Steps of different names may run at the same time.

    Args:
        name: name of the step, at most 256 characters. The n-th step of a name in a run has the n-th result of it.
        function: coroutine function, or plain function, which runs in a thread. Keyword arguments: `functools.partial`.
        *args: its arguments.
        attempts: number of attempts, over all runs. A crash of the worker counts as an attempt of the job only.
        backoff: pause between attempts: a duration, or a `Backoff`. One second or more ends the run, and the job is
            delayed.
        timeout: maximum duration of an attempt, ms or timedelta.

    Raises:
        StepError: the step has failed; the job then fails without another attempt, unless the handler catches it.
        StepChangedError: another function has stored this step.
        StepLimitError: the job has 1,000 steps, or 1 MiB of results. The function was not called.
        StepsRefusedError: a worker of glide-mq for Node is registered: the job is delayed; do not catch it.
        DelayedError: the next attempt is in a later run; do not catch it.
        SerializationError: the stored result does not match the return annotation, which has changed.
        GlideMQValidationError: an argument is invalid.
        GlideMQError: the job is not running in a handler.
        StaleAttemptError: the job is locked by another worker now. The result was not stored.
    """
    step: StepRun[Any] = StepRun(self, name, function, attempts, backoff, timeout)
    if step.is_done:
        return step.result()
    task = asyncio.current_task()
    memo, is_own = memo_of(self, "run"), task is None or task is self._in_handler("run").owner
    if is_own or task in memo.tasks:
        return await step.run(args)
    memo.tasks.add(cast("asyncio.Task[Any]", task))
    try:
        return await step.run(args)
    finally:
        memo.tasks.discard(cast("asyncio.Task[Any]", task))


# -- waiting --------------------------------------------------------------------------------------------------


async def sleep(self: StoredJob, name: str, duration: Milliseconds) -> None:
    """Sleep without a slot: the job is delayed, and then runs again from its start.

    Args:
        name: name of the step, at most 256 characters.
        duration: how long, ms or timedelta, at least 1 ms. It is stored once.

    Raises:
        DelayedError: the time is not over; do not catch it.
        StepChangedError: another function has stored this step.
        StepLimitError: the job has too many steps.
        StepsRefusedError: as for `run`.
        GlideMQValidationError: an argument is invalid.
        GlideMQError: not called in the task of the job's own handler.
    """
    memo, ms = ending_memo(self, "sleep"), to_ms("duration", duration, minimum=1)
    step = memo.ask(check_text("name", name, maximum=_MAX_NAME), "sleep")
    if not step.stored_at:
        await memo.admit(step)
        raise memo.end(DelayedError(ms), memo.changed(step, StepState.SLEEPING, pause=ms))
    if memo.left(step) > 0:
        raise memo.sleeping(step)


async def wait_for_signal(
    self: StoredJob, name: str, *, reason: str | None = None, timeout: Milliseconds | None = None
) -> Signal:
    """Return the signal with this name, or end the attempt until it comes.

    The n-th call for a name in a run of the handler returns the n-th signal with that name. So a handler that waits
    in the same order in every run gets the same signals again, and then continues with the next one. Code before a
    wait runs again: put what must not into `run`.

    Args:
        name: name of the signal, at most 256 characters. Signals with other names are kept for other calls.
        reason: for people; "signal <name>" by default.
        timeout: ms or timedelta, at least 1 ms. The deadline is stored once, as a step. The job is delayed until then,
            unless the signal comes. None = no limit: the job is suspended.

    Returns:
        The signal.

    Raises:
        SignalTimeout: the signal has not come in time; also in all later runs.
        SuspendError: the signal has not come yet; do not catch it.
        StepChangedError: another function has stored this step.
        StepLimitError: the job has too many steps.
        StepsRefusedError: as for `run`, with a timeout.
        GlideMQValidationError: an argument is invalid.
        GlideMQError: not called in the task of the job's own handler, or the server cannot be reached.
    """
    check_text("name", name, maximum=MAX_SIGNAL_NAME)
    if reason is not None:
        check_text("reason", reason, maximum=MAX_REASON)
    ms = None if timeout is None else to_ms("timeout", timeout, minimum=1)
    if ms is not None:
        memo: Memo | None = ending_memo(self, "wait_for_signal")
    elif running_step.get() is not None:
        raise GlideMQError("wait_for_signal ends the attempt: call it in the handler, not in the function of a step")
    else:
        memo = memo_of(self, "wait_for_signal") if self._in_handler("wait_for_signal").owner is not None else None
    waits = self._waits = self._waits or {}
    returned = waits.get(name, 0)
    step = None if memo is None else memo.ask(f"signal {name}", "wait_for_signal")
    if step is not None and step.state is StepState.EXPIRED:
        raise SignalTimeout(name, step.pause)
    found = [each for each in self.signals if each.name == name]
    if len(found) <= returned:
        # The signal may have come while the handler ran, or before its first run.
        read = functools.partial(received_signals, self._link, self._stored_id)
        received = await (read() if memo is None else memo.reach(read))
        found = [each for each in received if each.name == name]
    if len(found) > returned:
        waits[name] = returned + 1
        return found[returned]
    signal = suspend_error(self._link, reason or f"signal {name}", None)
    if memo is None or step is None:
        raise self._own(signal)
    if ms is None and not step.stored_at:
        raise memo.end(signal)
    signal.awaited, signal.returned = name, returned
    if ms is not None and not step.stored_at:
        await memo.admit(step)
        signal.timeout = ms
        raise memo.end(signal, memo.changed(step, StepState.AWAITING, pause=ms))
    signal.timeout = memo.left(step)
    if signal.timeout > 0:
        raise memo.end(signal)
    await memo.store(memo.changed(step, StepState.EXPIRED))
    raise SignalTimeout(name, step.pause)


# -- children -------------------------------------------------------------------------------------------------


async def gather(self: StoredJob, calls: Sequence[TaskCall[T]], *, name: str = "gather") -> list[T]:
    """Run tasks as children of this job, without a slot, and return their results in the order of the calls.

    The children are added once. When all have ended, the handler runs again from its start.

    Args:
        calls: ``task.call(...)`` for each child; tasks of several queues are allowed.
        name: name of the step, at most 256 characters.

    Returns:
        The results, converted to the types of the tasks; None for a child whose failure does not fail the parent.

    Raises:
        WaitingChildrenError: children have not ended; do not catch it.
        ChildFailedError: a child failed, and its policy fails the parent.
        StepChangedError: another function has stored this step, or another number of children.
        StepLimitError: the job has too many steps.
        StepsRefusedError: as for `run`.
        GlideMQValidationError: an argument is invalid, or a child has the ordering key of this job, whose turn it
            could never get.
        GlideMQError: not called in the task of the job's own handler, or the children could not be added.
    """
    memo = ending_memo(self, "gather")
    for i, each in enumerate(calls):
        if not isinstance(each, TaskCall):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError(f"calls[{i}]", each, "must be made by the method `call` of a task")
    step = memo.ask(check_text("name", name, maximum=_MAX_NAME), "gather")
    if step.stored_at and step.children != len(calls):
        raise StepChangedError(name, f"{step.children} children", f"{len(calls)} children")
    stem = _key_of(self, name, step.ordinal)
    places = [(str(each.queue.name), f"{stem}.{i}") for i, each in enumerate(calls)]
    waits = functools.partial(children.must_wait, self._link, self._stored_id)
    if not step.stored_at:
        await memo.admit(step)
        # An earlier attempt that could not store the step may have added children, which may have ended.
        known = await _children_of(self, memo) if self._in_handler("gather").fence > 1 else {}
        missing = [pair for pair in zip(calls, places, strict=True) if pair[1] not in known]
        await memo.reach(lambda: _add_children(self, missing))
        step = memo.changed(step, StepState.GATHERING, children=len(calls))
        if await memo.reach(waits):
            raise memo.end(WaitingChildrenError(), step)
        await memo.store(step)  # they have ended meanwhile
    elif await memo.reach(waits):
        raise memo.end(WaitingChildrenError())
    found = await _children_of(self, memo)
    if not found.keys() >= set(places):
        memo.values = None
        found = await _children_of(self, memo)
    return [_result_of(each, found.get(place), place) for each, place in zip(calls, places, strict=True)]


def _result_of(call: TaskCall[T], outcome: str | None, place: tuple[str, str]) -> T:
    if outcome is None:
        raise ChildFailedError(f"child {place[1]} of queue {place[0]!r} has no result: it has failed, or was removed")
    if outcome[:1] != "v":
        spec = cast("JobSpec", call)
        if spec.options.on_failure in (None, "fail_parent"):  # the parent was retried, and not the child
            raise ChildFailedError(outcome[1:])
        return cast("T", None)
    return call.read_result(decode_result(outcome[1:], serializer_of(call.queue.options.serializer)))


async def _children_of(job: StoredJob, memo: Memo) -> dict[tuple[str, str], str]:
    """Return the outcomes of the children that have ended: ``v`` and the result, or ``f`` and the failure."""
    if memo.values is None:
        ended = await memo.reach(lambda: children.ended_children(job._link, job._stored_id))
        memo.values = {}
        for member, outcome in ended.items():
            base, job_id = split_member(member)
            memo.values[base[base.index(":{") + 2 : -1], split_partition_id(job_id)[1]] = outcome
    return memo.values


async def _add_children(job: StoredJob, pairs: Sequence[tuple[TaskCall, tuple[str, str]]]) -> None:
    by_queue: dict[int, tuple[Any, list[JobSpec]]] = {}
    for call, (_, job_id) in pairs:
        each = cast("JobSpec", call)
        own = JobOptions.parse({"parent": job, "job_id": job_id})
        spec = JobSpec(each.name, each.data, JobOptions.merge(each.options, own))
        by_queue.setdefault(id(call.queue), (call.queue, []))[1].append(spec)
    for queue, specs in by_queue.values():
        try:
            await queue.add_bulk(specs)
        except BulkAddError as error:
            raise next((each for each in error.results if isinstance(each, GlideMQError)), error) from error


def _key_of(job: StoredJob, name: str, ordinal: int) -> str:
    """Return a unique key of a step. It differs for a later job with the same id, and after `requeue`."""
    whole = [job._link.keys.job(job._stored_id), str(job.timestamp), job._requeues or "0", name, str(ordinal)]
    return hashlib.blake2b("\n".join(whole).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def idempotency_key(self: StoredJob, name: str) -> str:
    """Return a key for an effect of a step in another system, such as a payment.

    The key is the same in each run and attempt of the step. Each job, step name and ordinal has its own, and `requeue`
    changes it.

    Args:
        name: name of the step. In its function, the key is that of the running step, else that of the next one.

    Returns:
        40 characters.

    Raises:
        GlideMQError: the job is not running in a handler.
    """
    return _key_of(self, name, memo_of(self, "idempotency_key").next_ordinal(name))
