"""A subscription as the job source of a worker, and the outcomes of its messages."""

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
    """Outcomes of attempts at messages."""

    def completed(self, run: Run, result: Any) -> list[object]:
        """Return the row of a completed attempt, with a record only if there is a result or a failed attempt."""
        text = "null" if result is None else encode_result(result, self._link.serializer)
        attempt = run.attempt
        row: list[object] = [1, run.job.id, attempt.entry, attempt.fence, attempt.processed_on, text]
        if result is not None or run.job.attempts_made or run.job.stalled_count:
            row.append(1)
        return row

    def signalled(self, run: Run, signal: JobSignal) -> list[object]:
        """Return the row of a signalled attempt; messages support only delays."""
        if not isinstance(signal, (DelayedError, RateLimitError)):
            raise GlideMQError(f"{type(signal).__name__} is not supported for messages of a broadcast") from signal
        if isinstance(signal, DelayedError) and signal.replace:
            raise GlideMQError("the data of a message is shared by all subscriptions and cannot be replaced")
        return super().signalled(run, signal)


class SubscriptionSource(QueueSource):
    """The messages of one subscription.

    Args:
        keys: as for `QueueSource`.
        consumer: as for `QueueSource`.
        options: as for `QueueSource`.
        group: name of the subscription.
        subjects: subject patterns; () = all.
        start: stream position of a new subscription.
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
        """Create the subscription if it does not exist, and store its start in case it must be created again."""
        self._start = await link.transport.call(broadcasting.subscribe(self._meta, self._group, self._start))

    async def declare_dead_letters(self, link: QueueLink, options: QueueOptions) -> bool:
        """Set the dead letter queue of the subscription; see `QueueSource`."""
        return bool(await declare_dead_letters(link, options, self._group))

    def outcomes(self, link: QueueLink) -> Outcomes:
        """Return the outcomes of attempts at messages; see `QueueSource`."""
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
        """Return the exchange call, without budgets and suspects; see `broadcasting.exchange`."""
        return broadcasting.exchange(
            self._meta, self._consumer, want, finished, self._quiet, self._no_metrics, self._group, self._patterns,
            self._start, self._note, limiter, tokens=tokens,
        )  # fmt: skip

    def idle_exchange(self, want: int, token: str, held: working.Held | None = None) -> Call[ExchangeReply]:
        """Return the exchange call of an idle worker; see `working.idle_exchange`."""
        return broadcasting.exchange(
            self._meta, self._consumer, want, (), self._quiet, self._no_metrics, self._group, self._patterns,
            self._start, self._note, None, token,
        )  # fmt: skip

    def heartbeat(self, info: str, ttl: int, jobs: Sequence[tuple[str, str, int, int]]) -> Call[HeartbeatReply]:
        """Return the heartbeat call; see `broadcasting.heartbeat`."""
        return broadcasting.heartbeat(self._meta, self._consumer, info, ttl, jobs, self._group)

    def reattach(self, known: Sequence[str], want: int, cursor: str, known_ids: Sequence[str]) -> Call[ReattachReply]:
        """Return the call that finds this worker's messages; see `broadcasting.reattach`."""
        return broadcasting.reattach(
            self._meta, self._consumer, known, want, self._quiet, cursor, self._group, self._start
        )

    def recover_stalled(self, cursor: str) -> Call[RecoverStalledReply]:
        """Return the call that recovers stalled messages; see `broadcasting.recover_stalled`."""
        options = self._options
        return broadcasting.recover_stalled(
            self._meta, self._consumer, options.stalled_interval * 8 // 10, options.lock_duration,
            options.max_stalled_count, self._quiet, cursor, self._group,
        )  # fmt: skip

    def leave(self) -> Call[Any]:
        """Return the call that unregisters the worker; see `broadcasting.leave`."""
        return broadcasting.leave(self._meta, self._group, self._consumer)

    def wake_command(self) -> tuple[str, ...]:
        """Return a blocking read that starts after the entries covered by the last reply, so that none is missed."""
        return (
            "XREAD", "COUNT", "1", "BLOCK", str(BLOCK_MS), "STREAMS", self._keys.stream, self._keys.wake, *self._marks,
        )  # fmt: skip
