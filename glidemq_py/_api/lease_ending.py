"""Ends leases that are over, for a process that hands out leases and knows when their locks expire."""

from __future__ import annotations

import logging
from typing import NamedTuple

from glidemq_py._api.lease_exchange import deliver, log_attempt
from glidemq_py._features.leases.tokens import end_leases
from glidemq_py._partitions.link import QueueLink
from glidemq_py.telemetry.state import TELEMETRY


class Ended(NamedTuple):
    """Result of `end_expired`."""

    leases: int
    """Leases that were ended."""
    wait_s: float | None
    """When the next lease is over, seconds from now; None without one."""


async def end_expired(link: QueueLink, *, quiet: bool) -> Ended:
    """End the leases of a queue that are over, of all clients, and log each.

    Args:
        link: The queue.
        quiet: If True, no events are written.

    Raises:
        GlideMQError: If a call fails.
    """
    count = 0
    while True:
        reply = await link.call(end_leases, quiet)
        if TELEMETRY.on and (reply.recovered or reply.failed):
            for meter in TELEMETRY.meters:
                meter.stalled(link.keys.name, len(reply.recovered), len(reply.failed))
        for job_id in reply.recovered:
            _log(link, logging.WARNING, job_id, "stalled", "stalled (its lock or timeout expired); it will run again")
        for job_id in reply.failed:
            what = "failed (its lock or timeout expired, and its maximum of stalls or attempts is reached)"
            _log(link, logging.ERROR, job_id, "stalled-out", what)
        if reply.outbox_pending:
            await link.runtime.there(deliver(link))
        ended = len(reply.recovered) + len(reply.failed)
        count += ended
        if not ended or reply.wait != 0:
            return Ended(count, None if reply.wait < 0 else reply.wait / 1_000)


def _log(link: QueueLink, level: int, job_id: str, outcome: str, what: str) -> None:
    shown = job_id if link.partition is None else link.partition.id_of(job_id)
    log_attempt(level, link.queue_name, shown, outcome, what)
