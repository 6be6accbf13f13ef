"""The list of queues of a prefix: sets of names, spread over the slots of a cluster (docs/reference/data-model.md).

A client registers a queue once per process: when it opens a queue that exists, after its first add, while a worker
serves the queue, and when an entry is delivered to it as a dead letter queue. Nothing is sent per job. `obliterate`
removes the name. Keys are never scanned, except on request.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
import zlib
from collections.abc import AsyncIterator, Hashable
from typing import Any, Final, cast

from glidemq_py._client.loop_transport import LoopTransport
from glidemq_py._client.runtime import BackgroundTask
from glidemq_py._client.shared_reads import glide_of
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import Argument, Call, call
from glidemq_py._core.keys import QueueKeys, validate_queue_name
from glidemq_py._core.logs import get_logger
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQError, GlideMQValidationError

_log = get_logger(__name__)

SHARDS: Final = 16
"""Number of sets of a prefix. It must never change."""
KEPT_S: Final = 480.0
"""How long a registration of this process is not repeated."""
_OPEN_S: Final = 1.0
_CLOSE_S: Final = 0.5
_EVERY_S: Final = 600.0
_PAGE: Final = "1000"
_REMEMBERED: Final = 100_000

_registered: dict[tuple[Hashable, str], float] = {}
"""(server, base of the queue's keys) -> time of this process's last registration."""


def shard_keys(prefix: str) -> list[str]:
    """Return the keys of the list; they have no hash tag, so they are in different slots."""
    return [f"{prefix}:queues:{number}" for number in range(SHARDS)]


def shard_key(prefix: str, name: str) -> str:
    """Return the key of the set that lists a queue."""
    return f"{prefix}:queues:{zlib.crc32(name.encode()) % SHARDS}"


@call("register_queue", repeatable=True, has_queue=False)
def _register_queue(name: Argument[str]) -> int:
    """Add a name to a part of the list."""
    ...


def register_queue(prefix: str, name: str) -> Call[int]:
    """Add a queue to the list; return 1, 0 if it is listed, or -1 if this user may not."""
    return _register_queue(shard_key(prefix, name), name)


# -- registering -----------------------------------------------------------------------------------------------


async def register(link: QueueLink[Any]) -> None:
    """List the queue, unless this process did so a short time ago. Errors are logged: the list is not essential."""
    link.is_listed = True
    await register_keys(link.transport, link.keys)


async def register_keys(transport: Transport, keys: QueueKeys) -> None:
    """List the queue of these keys as `register` does."""
    try:
        await _register(transport, keys)
    except GlideMQError as error:
        _log.debug("queue %r: adding it to the list of queues failed: %s", keys.name, error)


async def register_if_exists(link: QueueLink[Any]) -> None:
    """List the queue if it has events, unless this process did so a short time ago.

    Queues without events are written by this package only, and are listed by their adds and workers.
    """
    keys = link.keys
    try:
        if not await _is_recent(link.transport, keys) and await link.command("EXISTS", keys.events):
            await _register(link.transport, keys)
    except GlideMQError as error:
        _log.debug("queue %r: adding it to the list of queues failed: %s", keys.name, error)


async def register_again(link: QueueLink[Any]) -> bool:
    """List the queue if it has events or schedulers, whenever this process last did so; return whether it has.

    Its name is missing if another process obliterated the queue before these were added.
    """
    keys = link.keys
    if not await link.command("EXISTS", keys.events, keys.schedulers):
        return False
    await link.transport.call(register_queue(keys.prefix, keys.name))
    return True


async def unregister(link: QueueLink[Any]) -> None:
    """Remove the queue from the list."""
    await link.command("SREM", shard_key(link.keys.prefix, link.keys.name), link.keys.name)
    link.is_listed = False
    _registered.pop((await _server(link.transport), link.keys.base), None)


async def _register(transport: Transport, keys: QueueKeys) -> None:
    if await _is_recent(transport, keys):
        return
    added = await transport.call(register_queue(keys.prefix, keys.name))
    server = await _server(transport)
    if server is not None and added >= 0:
        if len(_registered) >= _REMEMBERED:
            _registered.clear()
        _registered[server, keys.base] = time.monotonic()


async def _is_recent(transport: Transport, keys: QueueKeys) -> bool:
    server = await _server(transport)
    last = None if server is None else _registered.get((server, keys.base))
    return last is not None and time.monotonic() - last < KEPT_S


async def _server(transport: Transport) -> Hashable | None:
    here = await transport.here() if isinstance(transport, LoopTransport) else transport
    glide = glide_of(here)
    return None if glide is None else glide.server


class ExistingQueueTask(BackgroundTask):
    """Lists the queue once if it exists: soon after its connection was opened, or when it is closed."""

    def __init__(self, link: QueueLink[Any]) -> None:
        super().__init__(f"list-queue-{link.keys.name}")
        self._link = link
        self._is_closing = asyncio.Event()

    async def _repeat(self) -> None:
        # Not beside the first calls of the connection.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPEN_S):
                await self._is_closing.wait()
        await register_if_exists(self._link)

    async def close(self) -> None:
        """Let the task end, within a short time."""
        self._is_closing.set()
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task}, timeout=_CLOSE_S)
        await super().close()


class QueueListTask(BackgroundTask):
    """Keeps the queue of a worker in the list, also if another client obliterates the queue meanwhile."""

    def __init__(self, link: QueueLink[Any]) -> None:
        super().__init__(f"queue-list-{link.keys.name}")
        self._link = link

    async def _repeat(self) -> None:
        while True:
            await register(self._link)
            await asyncio.sleep(_EVERY_S * random.uniform(0.9, 1.1))


# -- reading ---------------------------------------------------------------------------------------------------


async def find_queues(transport: Transport, prefix: str, *, scan: bool = False) -> list[str]:
    """Return the listed names: of queues, and of all partitions. ``scan``: see `list_queues`.

    Members that are no names of queues are left out.
    """
    names: set[str] = set()
    for key in shard_keys(prefix):
        async for listed in scan_members(transport, key):
            names.update(listed)
    if scan:
        async for page in _scanned(transport, prefix):
            for name in page - names:
                await transport.call(register_queue(prefix, name))
                names.add(name)
    return sorted(filter(_is_name, names))


def _is_name(text: str) -> bool:
    try:
        validate_queue_name(text)
    except GlideMQValidationError:
        return False
    return True


async def scan_members(transport: Transport, key: str, errors: str = "replace") -> AsyncIterator[list[str]]:
    """Yield the members of a set in sorted pages, each member once; ``errors``: those of `bytes.decode`."""
    cursor, seen = "0", set[str]()
    while True:
        following, page = await transport.command("SSCAN", key, cursor, "COUNT", _PAGE)
        new = {member.decode("utf-8", errors) for member in cast("list[bytes]", page)} - seen
        seen |= new
        if new:
            yield sorted(new)
        cursor = following.decode()
        if cursor == "0":
            return


async def _scanned(transport: Transport, prefix: str) -> AsyncIterator[set[str]]:
    """Yield the names of queues that have one of the keys that every queue gets first, a page at a time."""
    # The pattern matches no key of a job, which has `}:job:` after the name.
    form = re.compile(re.escape(prefix) + r":\{([^{}:]+)\}:(?:events|stream|scheduled|id)")
    async for keys in transport.scan(f"{prefix}:{{*}}:[eis]*[sdm]"):
        matches = (form.fullmatch(key.decode("utf-8", "replace")) for key in keys)
        yield {match[1] for match in matches if match is not None}
