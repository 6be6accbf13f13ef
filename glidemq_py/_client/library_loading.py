"""The command that loads the function library, and the errors of a failed load."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from glide_shared.exceptions import GlideError
from glide_shared.routes import AllPrimaries

from glidemq_py._client.call_retry import translate
from glidemq_py._client.library_source import Library
from glidemq_py.errors import (
    ClosedError,
    GlideMQConnectionError,
    GlideMQError,
    LibraryError,
    ServerNotReadyError,
    ServerOutOfMemoryError,
)


class Loads:
    """The loads of the function library by one client, whose transports share them."""

    def __init__(self) -> None:
        self.under_way: asyncio.Task[None] | None = None
        self.is_awaited = False
        """Later calls must await `ended`: those that have missed the library are sent again first."""
        self.number = 0
        """Number of loads that have succeeded."""

    async def ended(self) -> None:
        """Wait until a load has ended, and the calls that have missed the library have been sent again."""
        while self.is_awaited:
            if self.under_way is not None:
                with contextlib.suppress(GlideMQError):  # each call that needs the library reports the error itself
                    await asyncio.shield(self.under_way)
            await asyncio.sleep(0)

    async def load(self, load: Callable[[], Awaitable[None]], before: int) -> None:
        """Load the library, once for all calls that have missed it.

        Args:
            load: Sends the command.
            before: `number` when the call that missed the library was sent. If it has grown, nothing is loaded.

        Raises:
            GlideMQError: If the library cannot be loaded.
        """
        if self.number > before:
            return
        if self.under_way is None:
            self.is_awaited = True
            self.under_way = asyncio.ensure_future(self._load(load))
            self.under_way.add_done_callback(self._loaded)
        await asyncio.shield(self.under_way)

    async def _load(self, load: Callable[[], Awaitable[None]]) -> None:
        await load()
        self.number += 1

    def _loaded(self, loading: asyncio.Task[None]) -> None:
        self.under_way = None
        if not loading.cancelled():
            loading.exception()  # the calls that need the library raise it, unless they were cancelled meanwhile
        self._let_pass(5)  # turns of the loop: calls that have missed it are sent again in the second or third one

    def _let_pass(self, turns: int) -> None:
        if self.under_way is None:
            self.is_awaited = turns > 0
            if self.is_awaited:
                asyncio.get_running_loop().call_soon(self._let_pass, turns - 1)


def load_arguments(library: Library, cluster: bool) -> tuple[tuple[str, ...], Any]:
    """Return the FUNCTION LOAD command and its route."""
    return ("FUNCTION", "LOAD", library.code), AllPrimaries() if cluster else None


def loading_failed(error: GlideError, library: Library) -> GlideMQError | None:
    """Return the error to raise for a failed FUNCTION LOAD, or None if the library was already loaded."""
    text = str(error)
    if "already exists" in text:
        return None
    ours = translate(error, library)
    if isinstance(ours, ClosedError):
        return ours
    if isinstance(ours, ServerOutOfMemoryError):
        return ServerOutOfMemoryError(f"the function library cannot be loaded: the server is at its maxmemory: {text}")
    if isinstance(ours, GlideMQConnectionError):
        return ServerNotReadyError(f"the function library is missing and cannot be loaded now: {ours}")
    return LibraryError(
        f"the function library {library.name} cannot be loaded: {ours}. If applications may not load functions, "
        "an administrator must load it: python -m glidemq_py.library load --url URL"
    )
