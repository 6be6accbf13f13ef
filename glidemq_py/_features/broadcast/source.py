"""A subscription as the source of a worker's jobs, and what ends mean for its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glidemq_py._core.calls import working
from glidemq_py._core.calls.packing import Call
from glidemq_py._core.calls.working import ExchangeReply, HeartbeatReply, ReattachReply, RecoverStalledReply
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.payload import encode_result
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._features.broadcast import calls as broadcasting
from glidemq_py._features.broadcast.calls import Marks
from glidemq_py._features.broadcast.message import MessageRun
from glidemq_py._features.broadcast.subjects import lua_patterns
from glidemq_py._features.dead_letters.queue_api import declare_dead_letters
from glidemq_py._job.link import QueueLink
from glidemq_py._worker.options import WorkerOptions
from glidemq_py._worker.outcome import Outcomes
from glidemq_py._worker.run import Run
from glidemq_py._worker.source import BLOCK_MS, QueueSource
from glidemq_py.errors import DelayedError, GlideMQError, JobSignal, RateLimitError

__all__ = ["SubscriptionSource"]


class _Outcomes(Outcomes):
    """Ends of attempts at messages."""

    def completed(self, run: Run, result: Any) -> list[object]:
        """As of a job. A record is kept only where there is something in it: a result, or attempts that failed."""
        text = "null" if result is None else encode_result(result, self._link.serializer)
        attempt = run.attempt
        row: list[object] = [1, run.job.id, attempt.entry, attempt.fence, attempt.processed_on, text]
        if result is not None or run.job.attempts_made or run.job.stalled_count:
            row.append(1)
        return row

    def signalled(self, run: Run, signal: JobSignal) -> list[object]:
        """Of a message's attempt only "later" can be said."""
        if not isinstance(signal, (DelayedError, RateLimitError)):
            raise GlideMQError(f"{type(signal).__name__} is not for messages of a broadcast") from signal
        if isinstance(signal, DelayedError) and signal.replace:
            raise GlideMQError("the data of a message is that of every subscription and cannot be replaced")
        return super().signalled(run, signal)


class SubscriptionSource(QueueSource):
    """The messages of one subscription.

    Args:
        keys, consumer, options: as of `QueueSource`.
        group: the subscription. subjects: patterns, () = all. start: where it begins if there is none yet.
    """

    run_type = MessageRun
    wakes_one = False

    def __init__(
        self, keys: QueueKeys, consumer: str, options: WorkerOptions, group: str, subjects: Sequence[str], start: str
    ) -> None:
        super().__init__(keys, consumer, options)
        self._group = group
        self.label = f"subscription {group!r} of broadcast {keys.name!r}"
        self._patterns = lua_patterns(subjects)
        self._start = start
        self._marks: Marks = ("$", "$")

    async def open(self, link: QueueLink) -> None:
        """Make the subscription if there is none. From here on its beginning is fixed, also where it is lost."""
        self._start = await link.transport.call(broadcasting.subscribe(self._meta, self._group, self._start))

    async def declare_dead_letters(self, link: QueueLink, options: QueueOptions) -> bool:
        """See `QueueSource`; they are the subscription's own."""
        return bool(await declare_dead_letters(link, options, self._group))

    def outcomes(self, link: QueueLink) -> Outcomes:
        """See `QueueSource`."""
        return _Outcomes(link, self._options)

    def _note(self, marks: Marks) -> None:
        self._marks = marks

    def exchange(
        self,
        want: int,
        finished: Sequence[list[object]],
        limiter: tuple[int, int] | None = None,
        tokens: working.Tokens | None = None,
        charges: Sequence[working.BudgetCharge] | None = None,
        held: working.Held | None = None,
    ) -> Call[ExchangeReply]:
        """See `broadcasting.exchange`; there are no budgets and no suspects."""
        return broadcasting.exchange(
            self._meta, self._consumer, want, finished, self._quiet, self._no_metrics, self._group, self._patterns,
            self._start, self._note, limiter, tokens=tokens,
        )  # fmt: skip

    def idle_exchange(self, want: int, token: str, held: working.Held | None = None) -> Call[ExchangeReply]:
        """See `working.idle_exchange`."""
        return broadcasting.exchange(
            self._meta, self._consumer, want, (), self._quiet, self._no_metrics, self._group, self._patterns,
            self._start, self._note, None, token,
        )  # fmt: skip

    def heartbeat(self, info: str, ttl: int, jobs: Sequence[tuple[str, str, int, int]]) -> Call[HeartbeatReply]:
        """See `broadcasting.heartbeat`."""
        return broadcasting.heartbeat(self._meta, self._consumer, info, ttl, jobs, self._group)

    def reattach(self, known: Sequence[str], want: int, cursor: str, known_ids: Sequence[str]) -> Call[ReattachReply]:
        """See `broadcasting.reattach`."""
        return broadcasting.reattach(
            self._meta, self._consumer, known, want, self._quiet, cursor, self._group, self._start
        )

    def recover_stalled(self, cursor: str) -> Call[RecoverStalledReply]:
        """See `broadcasting.recover_stalled`."""
        options = self._options
        return broadcasting.recover_stalled(
            self._meta, self._consumer, options.stalled_interval * 8 // 10, options.lock_duration,
            options.max_stalled_count, self._quiet, cursor, self._group,
        )  # fmt: skip

    def leave(self) -> Call[Any]:
        """See `broadcasting.leave`."""
        return broadcasting.leave(self._meta, self._group, self._consumer)

    def wake_command(self) -> tuple[str, ...]:
        """A read of what comes after the last entries that the last answer knew: nothing falls between the two."""
        return (
            "XREAD", "COUNT", "1", "BLOCK", str(BLOCK_MS), "STREAMS", self._keys.stream, self._keys.wake, *self._marks,
        )  # fmt: skip
