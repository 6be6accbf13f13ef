"""Enter the context managers of middleware around adds and handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, TypeVar

from glidemq_py._features.middleware.middleware import Entered, Middleware, NewJob
from glidemq_py.errors import GlideMQValidationError, MiddlewareError, UnsupportedOptionError

__all__ = ["add_within", "batch_within", "enter_run", "handler_within"]

T = TypeVar("T")
Stack = TypeVar("Stack", ExitStack, AsyncExitStack)


async def add_within(
    middleware: Sequence[Middleware],
    jobs: Sequence[NewJob] | NewJob,
    add: Callable[[], Awaitable[T]],
    *,
    blocking: bool,
) -> T:
    """Call ``add`` within the middleware and return its result.

    Args:
        middleware: The outermost first.
        jobs: The job of an add, or the jobs of a bulk or flow; ``add`` reads them after all middleware was entered.
        add: Encodes and adds the jobs.
        blocking: True if the caller has no event loop.

    Raises:
        UnsupportedOptionError: If a middleware is asynchronous and the caller is blocking.
        MiddlewareError: If a middleware suppresses an error.
    """
    left: list[tuple[Middleware, bool]] = []
    """The middleware in the order in which it was left, each with True if an error remained."""
    causes: list[BaseException] = []
    stack: AsyncExitStack[bool] = AsyncExitStack()
    try:
        async with stack:
            try:
                for each in middleware:
                    found = each.add(jobs) if isinstance(jobs, NewJob) else each.add_bulk(jobs)
                    stack.push(_recorder(left, each))
                    await _enter(stack, each, found, "the blocking API" if blocking else "")
                return await add()
            except BaseException as error:
                causes.append(error)
                raise
        owner = next(each for each, has_error in left if not has_error)
        raise MiddlewareError(type(owner).__qualname__, type(causes[0]).__qualname__) from causes[0]
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
        return UnsupportedOptionError("middleware", type(owner), problem)
    problem = "a method must return a context manager or None (is @contextmanager missing?)"
    return GlideMQValidationError("middleware", type(owner), problem)
