"""Heartbeats without a server."""

import asyncio
from typing import Any

from tests.inside import Heartbeat


async def test_start_ends_if_the_heartbeats_are_closed_first():
    unused: Any = None
    heartbeat = Heartbeat(
        connect=unused, source=unused, consumer="c", lock_duration=30_000, stalled_policy="", running=set(),
        lost=unused, unresponsive_seconds=unused, unsupported=unused,
    )  # fmt: skip
    await heartbeat.close()
    await asyncio.wait_for(heartbeat.start(), 10)
