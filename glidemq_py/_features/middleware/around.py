"""Enter the context managers of middleware around adds and handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, TypeVar

from glidemq_py._core.queue_options import Entry
from glidemq_py._features.middleware.middleware import Entered, Middleware, NewJob
from glidemq_py.errors import GlideMQError, GlideMQValidationError

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
