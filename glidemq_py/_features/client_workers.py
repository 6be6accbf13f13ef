"""Whether a queue has a worker: of this package, of a Node client, or of a client of the gateways.

The hash `<prefix>:gateway:workers` has the workers of the clients of all gateways, JSON by id
(docs/reference/data-model.md). The member `served` is a list of queues, `lastSeen` the last sign of life, epoch ms.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final, cast

from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import reading
from glidemq_py._partitions.link import QueueLink

STALE_MS: Final = 30_000
"""Time without a sign of life after which a worker of a client is stale."""
_PAGE: Final = "500"
_NUMBERS: Final = (
    "concurrency", "pid", "registeredAt", "lastSeen", "activeJobs", "processedJobs", "failedJobs",
)  # fmt: skip


def client_workers_key(prefix: str) -> str:
    """Return the key of the hash."""
    return f"{prefix}:gateway:workers"


def read_client_worker(text: bytes | None) -> dict[str, Any] | None:
    """Return a stored worker; None if it is absent or malformed."""
    try:
        found: Any = json.loads(text or b"null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    worker = cast("dict[str, Any]", found)
    numbers = [worker.get(name) for name in _NUMBERS]
    if not isinstance(worker.get("id"), str) or not all(isinstance(number, int) for number in numbers):
        return None
    return worker


async def has_worker(link: QueueLink) -> bool:
    """Return whether a worker of the queue is registered and alive.

    Raises:
        GlideMQError: If a call failed.
    """
    if await link.call(reading.workers):
        return True
    return await _has_client_worker(link.transport, link.keys.prefix, link.keys.name)


async def _has_client_worker(transport: Transport, prefix: str, queue: str) -> bool:
    since, cursor = time.time_ns() // 1_000_000 - STALE_MS, b"0"
    while True:
        cursor, pairs = await transport.command("HSCAN", client_workers_key(prefix), cursor, "COUNT", _PAGE)
        for text in pairs[1::2]:
            worker = read_client_worker(text)
            served = None if worker is None or worker["lastSeen"] < since else worker.get("served")
            if isinstance(served, list) and queue in served:
                return True
        if cursor == b"0":
            return False
