"""A duty that one worker does for all: deleting builds of our function library that nobody uses any more.

Every worker process says hourly which build it uses; one of them, under a lock, deletes those that have not been
heard of for a day. What is deleted and how is _maintenance/libraries.py's business.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import time
from typing import Final

from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.background import BackgroundTask
from glidemq_py._client.library_publishing import delete_everywhere, published
from glidemq_py._core.calls import control
from glidemq_py._core.calls.control import registry_use
from glidemq_py._core.logs import get_logger
from glidemq_py._core.times import DAY_MS
from glidemq_py.errors import GlideMQError, LibraryError

__all__ = [
    "LOCK_KEY",
    "REGISTRY",
    "UNUSED_MS",
    "UnusedLibrariesTask",
    "delete_unused",
    "say_used",
]

REGISTRY: Final = "glidemq_py:libraries"
UNUSED_MS: Final = DAY_MS
"""A library that nobody has used for this long is deleted. Whoever still wants it loads it again by itself."""

_REGISTRY_TTL_MS: Final = 8 * DAY_MS
_OURS: Final = re.compile(r"glidemq_py_[0-9a-f]{12}")


async def say_used(transport: AsyncTransport) -> None:
    """Register the transport's library as in use now. Raises as `Transport.command` does."""
    now = await _now(transport)
    await transport.call(registry_use(REGISTRY, transport.library.name, now, "GT", _REGISTRY_TTL_MS))


async def delete_unused(transport: AsyncTransport) -> list[str]:
    """Delete the libraries of ours that have not been used for `UNUSED_MS`; returns their names.

    A library that is on a server but not in the registry is registered as used now: it gets a day of grace.

    Raises:
        LibraryError: this user may not use FUNCTION, or not this key.
        GlideMQConnectionError: the server cannot be reached.
    """
    now = await _now(transport)
    by_node = await published(transport, "glidemq_py_*")
    present = {library.name for libraries in by_node.values() for library in libraries}
    names = sorted(name for name in present if _OURS.fullmatch(name) and name != transport.library.name)
    if not names:
        return []
    scores = await transport.command("ZMSCORE", REGISTRY, *names)
    deleted: list[str] = []
    for name, score in zip(names, scores, strict=True):
        if score is None:
            await transport.call(registry_use(REGISTRY, name, now, "NX"))
        elif float(score) < now - UNUSED_MS:
            await delete_everywhere(transport, name)
            deleted.append(name)
    if deleted:
        await transport.command("ZREM", REGISTRY, *deleted)
    return deleted


async def _now(transport: AsyncTransport) -> int:
    seconds, microseconds = await transport.command("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


_log = get_logger(__name__)

LOCK_KEY: Final = "glidemq_py:lock:libraries"

_EVERY_S: Final = 3600.0
_FIRST_AFTER_S: Final = (2.0, 10.0)
"""Not at the start itself: a worker that comes and goes has better things to do."""

_said: dict[tuple[str, str], float] = {}
"""Server and library -> when this process last said that it uses it: its workers need not all say so."""


class UnusedLibrariesTask(BackgroundTask):
    """Sweeps every hour, give or take a tenth, for as long as its worker lives."""

    def __init__(self, transport: AsyncTransport) -> None:
        super().__init__("library-sweep")
        self._transport = transport

    async def _repeat(self) -> None:
        await asyncio.sleep(random.uniform(*_FIRST_AFTER_S))
        while True:
            try:
                await self.sweep()
            except LibraryError as error:
                # Not every user may do this, and none has to: another worker's may, or an administrator does it.
                _log.debug("this worker does not delete old function libraries: %s", error)
                return
            except GlideMQError as error:
                _log.debug("deleting old function libraries failed: %s", error)
            await asyncio.sleep(_EVERY_S * random.uniform(0.9, 1.1))

    async def sweep(self) -> list[str]:
        """One round: say what is used; delete what is not, unless another worker does that this hour.

        Returns the names of what was deleted. Raises GlideMQError.
        """
        transport = self._transport
        where = (",".join(f"{each.host}:{each.port}" for each in transport.config.addresses), transport.library.name)
        last = _said.get(where)
        if last is None or time.monotonic() - last > _EVERY_S * 0.8:
            await say_used(transport)
            _said[where] = time.monotonic()
        # Held until it runs out, not given back: once an hour is often enough for all workers together.
        token = secrets.token_hex(8)
        if not await transport.call(control.lock(LOCK_KEY, token, int(_EVERY_S * 800))):
            return []
        try:
            deleted = await delete_unused(transport)
        except LibraryError:
            await transport.call(control.unlock(LOCK_KEY, token))  # somebody else may be allowed to
            raise
        for name in deleted:
            _log.info("deleted function library %s (unused for a day)", name)
        return deleted
