"""Heartbeats without a server."""

import asyncio
from typing import Any

from glidemq_py._worker.heartbeat import Heartbeat


async def test_start_ends_if_the_heartbeats_are_closed_first() -> None:
    unused: Any = None
    heartbeat = Heartbeat(
        connect=unused, source=unused, consumer="c", lock_duration=30_000, stalled_policy="", running=set(),
        lost=unused, unresponsive_seconds=unused, unsupported=unused,
    )  # fmt: skip
    await heartbeat.close()
    await asyncio.wait_for(heartbeat.start(), 10)
