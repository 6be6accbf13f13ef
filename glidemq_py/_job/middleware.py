"""Middleware: code around every add and every run of a job.

A method returns a context manager, not a function that calls the next one: the same middleware then serves coroutines,
threads and the blocking API, and cannot forget to call the next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.option_values import NO_HEADERS
from glidemq_py._core.queue_options import AnyMiddleware, Entry
from glidemq_py._job.job import Job
from glidemq_py.errors import GlideMQError, GlideMQValidationError

Entered = AbstractContextManager[Any] | AbstractAsyncContextManager[Any] | None
"""Type of the values that methods of a middleware may return."""


class NewJob:
    """A job before it is added, as a `Middleware` gets it.

    Attributes:
        queue: name of the queue.
        name: name of the job.
        data: data of the job; may be replaced.
        headers: headers of the job; may be changed.
        options: all options of the job; read-only.
    """

    __slots__ = ("data", "headers", "name", "options", "queue")

    def __init__(self, queue: str, name: str, data: Any, options: JobOptions) -> None:
        self.queue = queue
        self.name = name
        self.data = data
        self.options = options
        self.headers: dict[str, str] = dict(options.headers or NO_HEADERS)

    def changed(self) -> tuple[str, Any, JobOptions]:
        """Return name, data, and options with the current headers. Raises GlideMQValidationError."""
        if self.headers == (self.options.headers or NO_HEADERS):
            return self.name, self.data, self.options
        return self.name, self.data, JobOptions.merge(self.options, JobOptions(headers=self.headers))

    def __repr__(self) -> str:
        return f"<NewJob {self.name!r} of queue {self.queue!r}>"


class Middleware(AnyMiddleware):
    """Base class of code that runs around every add and every run of a job.

    A subclass overrides the methods it needs. Each method may return a context manager, which is entered before and
    left after the add or the run, so that it sees their errors; or None. `contextlib.contextmanager` makes one of a
    method with a ``yield``. An asynchronous context manager is entered only by coroutines: by the asyncio API, and for
    handlers that are ``async def``.

    Pass instances as ``middleware=[...]`` to `Queue`, `Producer`, `FlowProducer` or `Worker`. The first one is the
    outermost. An error raised before an add rejects the job; an error raised before a run fails the attempt.
    """

    def add(self, job: NewJob) -> Entered:
        """Return a context manager around the add of a job, or None. It may change ``job.data`` and ``job.headers``."""

    def run(self, job: Job) -> Entered:
        """Return a context manager around the run of a job by a worker or a block of `Queue.lease`, or None."""

    def add_bulk(self, jobs: Sequence[NewJob]) -> Entered | list[Entered]:
        """Return the context managers for adding several jobs or a flow; by default that of each job."""
        return [self.add(job) for job in jobs]

    def run_batch(self, jobs: Sequence[Job]) -> Entered | list[Entered]:
        """Return the context managers for running a batch; by default that of each job, in their order.

        A context variable then has the value of the last job of the batch.
        """
        return [self.run(job) for job in jobs]


class ContextHeaders(Middleware):
    """Carry context variables, such as a tenant or a request id, from the code that adds a job to its handler.

    An add stores the value of each variable as a header of the job; the run sets the variable to it, or to None if the
    job has no such header. Jobs that the handler adds get the same values. A header given with the job is kept, and a
    variable without a value, or with None, is not stored.

    Args:
        variables: context variables of texts, by the names of their headers.

    Raises:
        GlideMQValidationError: If it is not a mapping, a name is not a text, or a value is not a ContextVar.
    """

    def __init__(self, variables: Mapping[str, ContextVar[Any]]) -> None:
        if not isinstance(variables, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("variables", variables, "must be a mapping of names to context variables")
        given = cast("dict[object, object]", dict(variables))
        for name, variable in given.items():
            if not isinstance(name, str) or not name:
                raise GlideMQValidationError("variables", name, "names must be non-empty strings")
            if not isinstance(variable, ContextVar):
                raise GlideMQValidationError(f"variables.{name}", variable, "must be a contextvars.ContextVar")
        self._variables = cast("dict[str, ContextVar[Any]]", given)

    def add(self, job: NewJob) -> None:
        """Store the variables as headers."""
        for name, variable in self._variables.items():
            value = variable.get(None)
            if value is not None:
                job.headers.setdefault(name, value)

    @contextmanager
    def run(self, job: Job) -> Generator[None]:
        """Set the variables to the headers while the handler runs."""
        headers = job.headers
        tokens = [(variable, variable.set(headers.get(name))) for name, variable in self._variables.items()]
        try:
            yield
        finally:
            for variable, token in reversed(tokens):
                variable.reset(token)


T = TypeVar("T")
Stack = TypeVar("Stack", ExitStack, AsyncExitStack)


async def add_within(
    middleware: Sequence[Middleware],
    queues: Iterable[str],
    jobs: Iterable[Entry],
    add: Callable[[Iterable[Entry]], Awaitable[T]],
    *,
    blocking: bool,
    is_one: bool = False,
) -> T:
    """Call ``add`` within the middleware and return its result.

    Args:
        middleware: The outermost first.
        queues: Names of the jobs' queues.
        jobs: Names, data and options of the jobs.
        add: Encodes and adds the jobs, which the middleware may have changed.
        blocking: True if the caller has no event loop.
        is_one: The job is that of an add, not the only one of a bulk or flow.

    Raises:
        GlideMQValidationError: If a middleware is asynchronous and the caller is blocking.
        GlideMQError: If a middleware suppresses an error.
    """
    new = [NewJob(queue, *job) for queue, job in zip(queues, jobs, strict=False)] if middleware else []
    if not new:
        return await add(jobs)
    left: list[tuple[Middleware, bool]] = []
    """The middleware in the order in which it was left, each with True if an error remained."""
    causes: list[BaseException] = []
    stack: AsyncExitStack[bool] = AsyncExitStack()
    try:
        async with stack:
            try:
                for each in middleware:
                    found = each.add(new[0]) if is_one else each.add_bulk(new)
                    stack.push(_recorder(left, each))
                    await _enter(stack, each, found, "the blocking API" if blocking else "")
                return await add([job.changed() for job in new])
            except BaseException as error:
                causes.append(error)
                raise
        owner = next(each for each, has_error in left if not has_error)
        raise GlideMQError(
            f"middleware {type(owner).__qualname__} suppressed {type(causes[0]).__qualname__}: the jobs may not have "
            "been added; its context manager must not suppress the errors of an add"
        ) from causes[0]
    finally:
        causes.clear()  # the error refers to this frame


def _recorder(left: list[tuple[Middleware, bool]], owner: Middleware) -> Callable[..., bool]:
    def record(_: object, error: BaseException | None, __: object) -> bool:
        left.append((owner, error is not None))
        return False

    return record


def handler_within(middleware: Sequence[Middleware], handler: Callable[[Any], Any], in_thread: bool) -> Any:
    """Return the handler of a job within the middleware; a plain function with ``in_thread``, else a coroutine."""
    return _within(middleware, handler, in_thread, lambda each, job: each.run(job))


def batch_within(middleware: Sequence[Middleware], handler: Callable[[Any], Any], in_thread: bool) -> Any:
    """Return the handler of a batch within the middleware."""
    return _within(middleware, handler, in_thread, lambda each, jobs: each.run_batch(jobs))


async def enter_run(stack: AsyncExitStack[Any], middleware: Sequence[Middleware], job: Any, *, blocking: bool) -> None:
    """Enter the middleware around the run of one job, which continues after this call."""
    for each in middleware:
        await _enter(stack, each, each.run(job), "the blocking API" if blocking else "")


def _within(
    middleware: Sequence[Middleware], handler: Callable[[Any], Any], in_thread: bool,
    context_of: Callable[[Middleware, Any], Entered | list[Entered]],
) -> Callable[[Any], Any]:  # fmt: skip
    if in_thread:

        def run_here(given: Any) -> Any:
            with ExitStack() as stack:
                for each in middleware:
                    for context in _listed(context_of(each, given)):
                        if not hasattr(context, "__enter__"):
                            raise _not_here(each, context, "a handler that is a plain function")
                        stack.enter_context(context)
                return handler(given)

        return run_here

    async def run(given: Any) -> Any:
        async with AsyncExitStack() as stack:
            for each in middleware:
                await _enter(stack, each, context_of(each, given), "")
            return await handler(given)

    return run


async def _enter(stack: AsyncExitStack, owner: Middleware, found: Entered | list[Entered], blocking_for: str) -> None:
    for context in _listed(found):
        if hasattr(context, "__enter__"):
            stack.enter_context(context)
        elif blocking_for or not hasattr(context, "__aenter__"):
            raise _not_here(owner, context, blocking_for)
        else:
            await stack.enter_async_context(context)


def _listed(found: Entered | list[Entered]) -> list[Any]:
    if found is None:
        return []
    return [each for each in found if each is not None] if isinstance(found, list) else [found]


def _not_here(owner: Middleware, context: Any, blocking_for: str) -> GlideMQValidationError:
    # The class, not the object: the text is stored with failed jobs, and counted by its words.
    if blocking_for and hasattr(context, "__aenter__"):
        problem = f"returned an asynchronous context manager, which {blocking_for} cannot enter; use @contextmanager"
        return GlideMQValidationError("middleware", type(owner), problem)
    problem = "a method must return a context manager or None (is @contextmanager missing?)"
    return GlideMQValidationError("middleware", type(owner), problem)
