"""Which builds of our library are still in use, and the deletion of those that are not.

Our libraries are named by their content and never replaced, so each release leaves one behind on the server. The
sorted set `REGISTRY` says when each was last used: name -> epoch ms of the server. When it happens, and that only
one process does it, is the duty of worker/library_sweep.py.
"""

from __future__ import annotations

import re
from typing import Final

from glidemq_py.client.async_transport import AsyncTransport
from glidemq_py.client.publishing import delete_everywhere, published
from glidemq_py.options.times import DAY_MS
from glidemq_py.wire.calls.control import registry_use

__all__ = ["REGISTRY", "UNUSED_MS", "delete_unused", "say_used"]

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
