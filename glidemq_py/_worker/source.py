"""Where a worker's jobs come from: the calls by which they are taken, kept and handed in, and what they become here.

This one is the queue itself; subscriptions of broadcasts have their own (`glidemq_py._features.broadcast.source`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glidemq_py._core.calls import working
from glidemq_py._core.calls.packing import Call
from glidemq_py._core.calls.working import ExchangeReply, HeartbeatReply, ReattachReply, RecoverStalledReply
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._features.dead_letters.queue_api import declare_dead_letters
from glidemq_py._job.link import QueueLink
from glidemq_py._worker.options import WorkerOptions
from glidemq_py._worker.outcome import Outcomes
from glidemq_py._worker.run import Run

__all__ = ["BLOCK_MS", "QueueSource"]

_WAKE_GROUP = "wakers"
_WAKE_CONSUMER = "w"
BLOCK_MS = 850
"""An idle worker looks at least this often, whatever it was told: a lost wake-up costs a second, and so does a peer's
list job, which wakes nobody. (The server ends such a read up to a tenth of a second late.)"""


class QueueSource:
    """The jobs of a queue.

    Args:
        keys: of the queue. consumer: the worker's name in the consumer group. options: of the worker.
    """

    run_type: type[Run] = Run
    """What a taken job is made to be."""
    wakes_one = True
    """A wake-up reaches one worker of the queue, which passes it on if it cannot use it."""

    def __init__(self, keys: QueueKeys, consumer: str, options: WorkerOptions) -> None:
        self._keys = keys
        self._meta = keys.meta
        self._consumer = consumer
        self._options = options
        self._quiet = not options.events
        self._no_metrics = not options.metrics
        self.label = f"queue {keys.name!r}"
        """What log lines begin with."""

    async def open(self, link: QueueLink) -> None:
        """Do on the server what must be done before jobs are taken."""

    async def declare_dead_letters(self, link: QueueLink, options: QueueOptions) -> bool:
        """Say where their dead letters go, if the options do; whether there are any."""
        return bool(await declare_dead_letters(link, options))

    def outcomes(self, link: QueueLink) -> Outcomes:
        """What ends mean for jobs."""
        return Outcomes(link, self._options)

    def exchange(
        self,
        want: int,
        finished: Sequence[list[object]],
        limiter: tuple[int, int] | None = None,
        tokens: working.Tokens | None = None,
        charges: Sequence[working.BudgetCharge] | None = None,
        held: working.Held | None = None,
    ) -> Call[ExchangeReply]:
        """See `working.exchange`."""
        return working.exchange(
            self._meta, self._consumer, want, finished, self._quiet, self._no_metrics, limiter, tokens, charges, held,
        )  # fmt: skip

    def idle_exchange(self, want: int, token: str, held: working.Held | None = None) -> Call[ExchangeReply]:
        """See `working.idle_exchange`."""
        return working.idle_exchange(self._meta, self._consumer, want, self._quiet, self._no_metrics, token, held)

    def heartbeat(self, info: str, ttl: int, jobs: Sequence[tuple[str, str, int, int]]) -> Call[HeartbeatReply]:
        """See `working.heartbeat`."""
        return working.heartbeat(self._meta, self._consumer, info, ttl, jobs)

    def reattach(self, known: Sequence[str], want: int, cursor: str, known_ids: Sequence[str]) -> Call[ReattachReply]:
        """See `working.reattach`."""
        return working.reattach(self._meta, self._consumer, known, want, self._quiet, cursor, known_ids)

    def recover_stalled(self, cursor: str) -> Call[RecoverStalledReply]:
        """See `working.recover_stalled`."""
        options = self._options
        return working.recover_stalled(
            self._meta, self._consumer, options.stalled_interval * 8 // 10, options.lock_duration,
            options.max_stalled_count, self._quiet, cursor,
        )  # fmt: skip

    def leave(self) -> Call[Any]:
        """See `working.leave`."""
        return working.leave(self._meta, self._consumer)

    def wake_command(self) -> tuple[str, ...]:
        """The blocking read of an idle worker."""
        return (
            "XREADGROUP", "GROUP", _WAKE_GROUP, _WAKE_CONSUMER, "COUNT", "1", "BLOCK", str(BLOCK_MS), "NOACK",
            "STREAMS", self._keys.stream, self._keys.wake, ">", ">",
        )  # fmt: skip
