"""Run blocking functions beside an event loop."""

from __future__ import annotations

import asyncio
import socket
import sys
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Final, TypeVar

from glidemq_py.errors import EventLoopError

T = TypeVar("T")

own_loops: Final[weakref.WeakSet[asyncio.AbstractEventLoop]] = weakref.WeakSet()
"""Loops without tasks of the user, which may be blocked for a while."""


def has_green_threads() -> bool:
    """Return whether gevent has replaced the threads of this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def may_start_threads() -> bool:
    """Return whether `in_thread` can start a thread."""
    if has_green_threads():
        return False
    executor = ThreadPoolExecutor(1)
    try:
        executor.submit(int)
    except RuntimeError:  # the interpreter ends
        return False
    finally:
        executor.shutdown(wait=False)
    return True


async def in_thread(function: Callable[..., T], *args: object) -> T:
    """Return the result of a function that runs in a thread of its own: the program may have filled the executor.

    Without threads it runs here if the loop is one of `own_loops`.

    Raises:
        EventLoopError: if there are no threads, because gevent has replaced them or the interpreter ends.
    """
    loop = asyncio.get_running_loop()
    if has_green_threads():
        if loop in own_loops:
            return function(*args)
        raise EventLoopError(
            "connection", "gevent has replaced the threads that asyncio needs",
            "use glidemq_py.sync, or a process without monkey.patch_all()",
        )  # fmt: skip
    executor, work, context = ThreadPoolExecutor(1), partial(function, *args), copy_context()
    try:
        running = loop.run_in_executor(executor, lambda: context.run(work))
    except RuntimeError as error:  # after threading._shutdown, which precedes the functions of atexit
        if loop in own_loops:
            return function(*args)
        raise EventLoopError(
            "connection", f"no thread can be started: {error}",
            "connect before the program ends, or use a queue of glidemq_py.sync",
        ) from error  # fmt: skip
    try:
        return await running
    finally:
        executor.shutdown(wait=False)


async def to_first_address(host: str, port: int, connect: Callable[[str], Awaitable[T]]) -> T:
    """Return ``connect`` of the first address of a host that answers: asyncio would resolve the name in the executor.

    Raises:
        OSError: none answers.
    """
    failure: OSError | None = None
    for *_, address in await in_thread(socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM):
        try:
            return await connect(str(address[0]))
        except OSError as error:
            failure = error
    raise failure or OSError(f"{host} has no address")
