"""The source of a worker's jobs: the calls that fetch, lock and report them, and the class of a run.

This one is for a queue; subscriptions of broadcasts have `glidemq_py._worker.broadcasts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from glidemq_py._core.calls import Call, working
from glidemq_py._core.calls.working import ExchangeReply, Finished, HeartbeatReply, ReattachReply, RecoverStalledReply
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._features.dead_letters import declare_dead_letters
from glidemq_py._features.fair_keys import RecentKeys
from glidemq_py._job.run import Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.options import WorkerOptions
from glidemq_py._worker.results import Outcomes

_WAKE_GROUP = "wakers"
_WAKE_CONSUMER = "w"
BLOCK_MS = 850
"""An idle worker polls at least this often, so a lost wake-up delays a job by at most a second. Jobs that a Node peer
adds to a list do not wake workers and are found by this poll. (The server ends such a read up to 0.1 s late.)"""


class ExchangeBuilder(Protocol):
    """Builds an exchange call; see `working.exchange`."""

    def __call__(
        self,
        want: int,
        finished: Sequence[Finished],
        *,
        limiter: tuple[int, int] | None = None,
        tokens: working.Tokens | None = None,
        charges: Sequence[working.BudgetCharge] | None = None,
        held: working.Held | None = None,
        by_name: working.NameMetricsReport | None = None,
    ) -> Call[ExchangeReply]:
        """Return the call."""
        ...


class QueueSource:
    """The jobs of a queue.

    Args:
        keys: Keys of the queue.
        consumer: The worker's name in the consumer group.
        options: Options of the worker.
    """

    run_type: type[Run] = Run
    """Class of a fetched job."""
    wakes_one = True
    """True if a wake-up reaches only one worker of the queue, which must pass it on if it cannot fetch."""

    def __init__(self, keys: QueueKeys, consumer: str, options: WorkerOptions) -> None:
        self._keys = keys
        self._meta = keys.meta
        self._consumer = consumer
        self._options = options
        self._quiet = not options.events
        self._no_metrics = not options.metrics
        turns = options.fair_key_preference
        self.recent_keys = RecentKeys(turns, options.slots) if turns else None
        """Fair keys that the worker prefers."""
        self.label = f"queue {keys.name!r}"
        """First words of log lines."""

    async def open(self, link: QueueLink) -> None:
        """Prepare the server; called before the first fetch."""

    async def declare_dead_letters(self, link: QueueLink, options: QueueOptions) -> bool:
        """Declare the dead letter queue of the options; return True if there is one."""
        return bool(await declare_dead_letters(link, options))

    def outcomes(self, link: QueueLink) -> Outcomes:
        """Return the builder of the rows that report results."""
        return Outcomes(link, self._options)

    def exchange_builder(self) -> ExchangeBuilder:
        """Return the function that builds exchange calls."""
        build = partial(working.exchange, self._meta, self._consumer, quiet=self._quiet, no_metrics=self._no_metrics)
        return build if self.recent_keys is None else self.recent_keys.preferring(build)

    def idle_exchange(self, want: int, token: str, held: working.Held | None = None) -> Call[ExchangeReply]:
        """Return an exchange that is pipelined after a blocking read on the same connection; see `invalidate`."""
        return working.exchange(self._meta, self._consumer, want, (), self._quiet, self._no_metrics, held, idle=token)

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
            options.max_stalled_count, self._quiet, cursor, options.stalled_grace,
        )  # fmt: skip

    def leave(self) -> Call[Any]:
        """See `working.leave`."""
        return working.leave(self._meta, self._consumer)

    def wake_command(self) -> tuple[str, ...]:
        """Return the blocking read of an idle worker."""
        return (
            "XREADGROUP", "GROUP", _WAKE_GROUP, _WAKE_CONSUMER, "COUNT", "1", "BLOCK", str(BLOCK_MS), "NOACK",
            "STREAMS", self._keys.stream, self._keys.wake, ">", ">",
        )  # fmt: skip
