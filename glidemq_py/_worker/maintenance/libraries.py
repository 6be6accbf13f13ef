"""A maintenance task, run by one worker at a time: deletes unused builds of our function library.

Every worker process registers hourly which build it uses. One of them, under a lock, deletes the builds that were not
registered for a day.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import time
from typing import Final

from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.library_publishing import delete_everywhere, published
from glidemq_py._client.runtime import BackgroundTask
from glidemq_py._core.calls import administration
from glidemq_py._core.calls.administration import registry_touch
from glidemq_py._core.logs import get_logger
from glidemq_py._core.times import DAY_MS
from glidemq_py._partitions.link import server_time
from glidemq_py.errors import GlideMQError, LibraryError

REGISTRY: Final = "glidemq_py:libraries"
UNUSED_MS: Final = DAY_MS
"""A library that was not used for this long is deleted. A client that still needs it loads it again."""

_REGISTRY_TTL_MS: Final = 8 * DAY_MS
_OURS: Final = re.compile(r"glidemq_py_[0-9a-f]{12}")


async def register_use(transport: AsyncTransport) -> None:
    """Register the transport's library as in use now. Raises as `Transport.command` does."""
    now = await server_time(transport)
    await transport.call(registry_touch(REGISTRY, transport.library.name, now, "GT", _REGISTRY_TTL_MS))


async def delete_unused(transport: AsyncTransport) -> list[str]:
    """Delete our libraries that were not used for `UNUSED_MS`, and return their names.

    A library that is on a server but not in the registry is registered as used now, so it is kept for another day.

    Raises:
        LibraryError: If this user lacks permission for FUNCTION or for the registry key.
        GlideMQConnectionError: If the server cannot be reached.
    """
    now = await server_time(transport)
    by_node = await published(transport, "glidemq_py_*")
    present = {library.name for libraries in by_node.values() for library in libraries}
    names = sorted(name for name in present if _OURS.fullmatch(name) and name != transport.library.name)
    if not names:
        return []
    scores = await transport.command("ZMSCORE", REGISTRY, *names)
    deleted: list[str] = []
    for name, score in zip(names, scores, strict=True):
        if score is None:
            await transport.call(registry_touch(REGISTRY, name, now, "NX"))
        elif float(score) < now - UNUSED_MS:
            await delete_everywhere(transport, name)
            deleted.append(name)
    if deleted:
        await transport.command("ZREM", REGISTRY, *deleted)
    return deleted


_log = get_logger(__name__)

LOCK_KEY: Final = "glidemq_py:lock:libraries"

_EVERY_S: Final = 3600.0
_FIRST_AFTER_S: Final = (2.0, 10.0)
"""Range of the delay of the first round: short-lived workers skip it."""

_registered: dict[tuple[str, str], float] = {}
"""(server, library) -> time of this process's last registration, which its workers share."""


class UnusedLibrariesTask(BackgroundTask):
    """Runs every hour (±10%) until its worker closes."""

    def __init__(self, transport: AsyncTransport) -> None:
        super().__init__("library-sweep")
        self._transport = transport

    async def _repeat(self) -> None:
        await asyncio.sleep(random.uniform(*_FIRST_AFTER_S))
        while True:
            try:
                await self.sweep()
            except LibraryError as error:
                # Missing permission is not an error: another worker or an administrator can delete them.
                _log.debug("this worker does not delete old function libraries: %s", error)
                return
            except GlideMQError as error:
                _log.debug("deleting old function libraries failed: %s", error)
            await asyncio.sleep(_EVERY_S * random.uniform(0.9, 1.1))

    async def sweep(self) -> list[str]:
        """Register the library as used; delete unused ones unless another worker does so this hour.

        Returns:
            Names of the deleted libraries.

        Raises:
            GlideMQError: If a call fails.
        """
        transport = self._transport
        where = (",".join(f"{each.host}:{each.port}" for each in transport.config.addresses), transport.library.name)
        last = _registered.get(where)
        if last is None or time.monotonic() - last > _EVERY_S * 0.8:
            await register_use(transport)
            _registered[where] = time.monotonic()
        # The lock is not released: until it expires, no other worker deletes libraries.
        token = secrets.token_hex(8)
        if not await transport.call(administration.lock(LOCK_KEY, token, int(_EVERY_S * 800))):
            return []
        try:
            deleted = await delete_unused(transport)
        except LibraryError:
            await transport.call(administration.unlock(LOCK_KEY, token))  # another worker's user may have permission
            raise
        for name in deleted:
            _log.info("deleted function library %s (unused for a day)", name)
        return deleted
