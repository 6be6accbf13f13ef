"""Maintenance tasks for the function libraries on the server: those of our builds, and that of Node clients.

Every worker process registers hourly which of our builds it uses. One of them, under a lock, deletes the builds that
were not registered for a day.

A Node client writes a job's log and chunks by plain commands. So a job that is removed when it ends is deleted with a
fixed list of keys, unless no such client can have been there: each of them needs the function library `glidemq` on the
server. One task looks for it. Jobs that were removed without the list shortly before the library appeared are cleaned
up.

That library leaves a sequence number without a job when it revokes, removes, drains or rejects a job of a group, and
in some states a slot without a job. The group then waits for a job that never comes. While that library is loaded, or
Node workers are registered, and for a day afterwards, the other task checks groups whose parked jobs have not moved for
some time as `Queue.check` does, and repairs them.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import time
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from glidemq_py._client.loop_transport import LoopTransport
from glidemq_py._client.runtime import BackgroundTask, QueueTask
from glidemq_py._client.shared_reads import glide_of
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import administration
from glidemq_py._core.calls.administration import registry_touch
from glidemq_py._core.calls.working import Keep, delete_side_keys
from glidemq_py._core.logs import get_logger
from glidemq_py._core.times import DAY_MS
from glidemq_py._features.consistency.calls import blocked_groups
from glidemq_py._features.consistency.queue_api import repair_groups
from glidemq_py._partitions.link import QueueLink, server_time
from glidemq_py.errors import GlideMQError, LibraryError

if TYPE_CHECKING:
    from glidemq_py._client.async_transport import AsyncTransport

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
    from glidemq_py._client.library_publishing import delete_everywhere, published  # imports GLIDE

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

_SWEEP_S: Final = 3600.0
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
            await asyncio.sleep(_SWEEP_S * random.uniform(0.9, 1.1))

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
        if last is None or time.monotonic() - last > _SWEEP_S * 0.8:
            await register_use(transport)
            _registered[where] = time.monotonic()
        # The lock is not released: until it expires, no other worker deletes libraries.
        token = secrets.token_hex(8)
        if not await transport.call(administration.lock(LOCK_KEY, token, int(_SWEEP_S * 800))):
            return []
        try:
            deleted = await delete_unused(transport)
        except LibraryError:
            await transport.call(administration.unlock(LOCK_KEY, token))  # another worker's user may have permission
            raise
        for name in deleted:
            _log.info("deleted function library %s (unused for a day)", name)
        return deleted


_LIBRARY: Final = "glidemq"
_EVERY_S: Final = 10.0
_FIRST_S: Final = 1.0
_REMEMBERED: Final = 50_000
"""Maximum number of removed jobs between two checks that are remembered; further ones are removed with all keys."""
_A_CALL: Final = 500
_LOOKS: Final = 7
"""Successful cleanups, ten seconds apart, in which a job that still exists is tried: a call may take that long."""
_ALL_KEYS: Final = 1
_RECORD_ONLY: Final = 2


_FOUND_S: Final = 3600.0
_looks: WeakKeyDictionary[Any, tuple[float, bool | None]] = WeakKeyDictionary()


async def _has_peer_library(transport: Transport, *, max_age: float = 1.5 * _EVERY_S) -> bool | None:
    """Return whether the library of Node clients is on the server; None if this user may not list libraries.

    All queues of a client share a look: for an hour if it has found the library, else for ``max_age`` seconds.

    Raises:
        GlideMQError: If the server cannot be reached.
    """
    if isinstance(transport, LoopTransport):
        transport = await transport.here()
    glide = glide_of(transport)
    if glide is None:
        return False  # in memory
    from glidemq_py._client.library_publishing import published  # imports GLIDE

    client, now = glide.client_owner, time.monotonic()
    at, found = _looks.get(client, (float("-inf"), False))
    if now - at > (max_age if found is False else _FOUND_S):
        try:
            found = any((await published(glide, _LIBRARY)).values())
        except LibraryError as error:
            _log.debug("assuming clients of other libraries: %s", error)
            found = None
        _looks[client] = now, found
    return found


class PeerDetection(QueueTask):
    """Runs every ten seconds (±10%) until a peer's library was found, then hourly.

    Args:
        link: The queue.
        transport: The worker's connection.
    """

    def __init__(self, link: QueueLink, transport: Transport) -> None:
        super().__init__("peers", link, "look for clients of other libraries", _EVERY_S)
        self._pause = _FIRST_S
        self._transport = transport
        self.alone = False
        """True if the last check found no library of a peer."""
        self._recent: list[str] = []
        self._earlier: list[str] = []
        self._unclean: list[str] = []
        self._looks_left = 0

    def removal(self, job_id: str) -> Keep:
        """Return how a job that ends now is removed, see `Keep`."""
        if not self.alone or len(self._recent) >= _REMEMBERED:
            return _ALL_KEYS
        self._recent.append(job_id)
        return _RECORD_ONLY

    async def run_once(self) -> None:
        """Look for the library. Raises GlideMQError."""
        try:
            found = await _has_peer_library(self._transport, max_age=0) is not False
        except GlideMQError:
            self.alone = False
            raise
        if found:
            if self.alone:
                self._looks_left = _LOOKS
            self.alone = False
            self._unclean += [*self._earlier, *self._recent]
            self._earlier, self._recent = [], []
        else:
            self.alone = True
            self._earlier, self._recent = self._recent, []
        await self._clean_up()
        if found and not self._unclean:
            self._pause = _FOUND_S

    async def _clean_up(self) -> None:
        """Delete the keys of removed jobs. Ids are forgotten only when their call has succeeded.

        A job that still exists may have been removed by a call that is still under way: it is tried again.
        """
        exist: list[str] = []
        while self._unclean:
            call = delete_side_keys(self._link.keys.meta, self._unclean[:_A_CALL])
            exist += await self._link.transport.call(call)
            del self._unclean[:_A_CALL]
        self._looks_left -= 1
        if self._looks_left > 0:
            self._unclean = exist


_POLL_S: Final = 10.0
_HOLD_MS: Final = 30_000
_BLOCKED_MS: Final = 30_000
_FULL_MS: Final = 300_000
_RECHECK_AFTER_MS: Final = 1_000
_PAGES_MAX: Final = 50
_HOLDER: Final = secrets.token_hex(8)


class GroupRepair(QueueTask):
    """Runs every ten seconds (±10%), in one worker at a time.

    Args:
        link: The queue.
        blocked: Time without progress after which a group is checked, in ms.
        full: The same for a group whose slots are all occupied, in ms.
    """

    def __init__(self, *, link: QueueLink, blocked: int = _BLOCKED_MS, full: int = _FULL_MS) -> None:
        super().__init__("groups", link, "repair ordering groups", _POLL_S, at_once=False)
        self._blocked = blocked
        self._full = full
        self._cursor = ""

    async def run_once(self) -> list[str]:
        """Check up to 50 pages of groups, repair blocked ones, and return their names.

        Raises:
            GlideMQError: If a call fails.
        """
        link, names = self._link, set[str]()
        peers = bool(await _has_peer_library(link.transport))
        for _ in range(_PAGES_MAX):
            call = blocked_groups(link.keys.meta, _HOLDER, _HOLD_MS, self._blocked, self._full, self._cursor, peers)
            page, self._cursor = await link.transport.call(call)
            names.update(page)
            if not self._cursor:
                break
        if not names:
            return []
        found = await repair_groups(link, names, recheck_after=_RECHECK_AFTER_MS)
        for suspect in found:
            _log.warning(
                "queue %s: ordering group %r was blocked (%s); repaired",
                link.label,
                suspect.subject,
                suspect.detail,
            )
        return sorted({suspect.subject for suspect in found})


async def repair_idle_groups(link: QueueLink) -> None:
    """Look once for blocked groups of a queue whose tasks do not run, if it may have clients of another library.

    Raises:
        GlideMQError: If a call fails.
    """
    if await _has_peer_library(link.transport) is not False:
        await GroupRepair(link=link).run_once()
