"""The calls that a worker makes to fetch, lock and report jobs: what they are, and how they are built.

The engine decides on a call (`Exchange` and so on, and the steps after a failed one), and the source of the jobs builds
it. `QueueSource` is for a queue; subscriptions of broadcasts have `glidemq_py._worker.broadcasts`. `Throttle` has the
limits of one worker on its calls, besides its slots: token limits and `rate_limit` pauses. It has no clock: times are
arguments, in seconds of a monotonic clock. Limits of the whole queue are counted by the server, in `exchange`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._core.calls import Call, administration, working
from glidemq_py._core.calls.working import ExchangeReply, HeartbeatReply, ReattachReply, RecoverStalledReply
from glidemq_py._core.keys import CONSUMER_GROUP, QueueKeys
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._features.dead_letters import declare_dead_letters
from glidemq_py._features.fair_keys import RecentKeys
from glidemq_py._job.run import Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.options import WorkerOptions
from glidemq_py._worker.results import Outcomes

if TYPE_CHECKING:
    from glidemq_py._core.calls.working import Held, Tokens
    from glidemq_py._core.limits import TokenLimiter
    from glidemq_py._job.run import FinishedAttempt, Run

MAX_ROWS: Final = 100
"""Maximum number of jobs reported, and fetched, by one call: about a millisecond of server time."""


class Failure(Enum):
    """Why a call failed."""

    LOST = auto()
    """The connection: the call may have been executed."""
    REJECTED = auto()
    """The server function failed; a reported row may be the cause."""
    CLOSED = auto()
    """The connection was closed by its owner, or the server refuses every call of this worker."""
    BROKEN = auto()
    """Any other error."""


class Step(Enum):
    """Steps after a failed call, in their order."""

    PAUSE = auto()
    REPORT = auto()
    """Report results of failed calls again. A lost call may have reported a job's failure and fetched the same job for
    its retry. Its pending row would make REATTACH treat the new attempt as known."""
    INVALIDATE = auto()
    REATTACH = auto()


@dataclass(slots=True, eq=False)
class Exchange:
    """Report results and fetch up to ``want`` jobs.

    Attributes:
        want: Number of requested jobs.
        batch: The results.
        wake_count: Number of wake-ups before the call.
        held: Counts of this worker's jobs and suspects if the call may fetch suspects.
        tokens: Token limit of the queue and the tokens of the results, if the worker has such a limit.
    """

    want: int
    batch: list[FinishedAttempt]
    wake_count: int
    held: Held | None = None
    tokens: Tokens | None = None


@dataclass(slots=True, eq=False)
class Pipelined:
    """Fetch up to ``want`` jobs with a call that is sent behind a blocking read.

    Attributes:
        want: Number of requested jobs; the call reserves their slots.
        number: Number of the call, until it is invalidated by `Invalidate`.
        held: See `Exchange`.
    """

    want: int
    number: int
    held: Held | None


@dataclass(slots=True, eq=False)
class Invalidate:
    """Make the server ignore the pipelined call with this number."""

    number: int


@dataclass(slots=True, eq=False)
class Reattach:
    """Find jobs that lost replies assigned to this worker.

    Attributes:
        known: Runs of the known jobs.
        want: Maximum number of jobs.
        cursor: Cursor of the previous call, or ''.
    """

    known: list[Run]
    want: int
    cursor: str


EngineCall = Exchange | Invalidate | Reattach
"""A call whose reply or failure the engine awaits."""


_PAGE: Final = 100
_WAKE_GROUP = "wakers"
_WAKE_CONSUMER = "w"
BLOCK_MS = 850
"""An idle worker polls at least this often, so a lost wake-up delays a job by at most a second. Jobs that a Node peer
adds to a list do not wake workers and are found by this poll. (The server ends such a read up to 0.1 s late.)"""


ExchangeBuilder = Callable[..., Call[ExchangeReply]]
"""Builds an exchange call; see `working.exchange`."""


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

    _subscription = ""

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
        self.label = ""
        """Subject of the log lines, in place of the queue."""

    async def open(self, link: QueueLink) -> None:
        """Prepare the server; called before the first fetch."""

    async def declare_dead_letters(self, link: QueueLink, options: QueueOptions) -> bool:
        """Declare the dead letter queue of the options; return True if there is one."""
        return bool(await declare_dead_letters(link, options, self._subscription))

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

    async def is_drained(self, link: QueueLink) -> bool:
        """Return True if no job is waiting, active, delayed or prioritized, or parked in a rate limited group."""
        counts = await link.call(administration.counts)
        waiting, active, delayed, prioritized, *_, parked, _band, _below_normal = counts
        if waiting or active or delayed or prioritized:
            return False
        # Parked jobs of a group that is not rate limited wait for a job in another state, such as suspended.
        return not parked or not await _limited_groups_wait(link)

    def leave(self) -> Call[Any]:
        """See `working.leave`."""
        return working.leave(self._meta, self._consumer, self._subscription or CONSUMER_GROUP)

    def wake_command(self) -> tuple[str, ...]:
        """Return the blocking read of an idle worker."""
        return (
            "XREADGROUP", "GROUP", _WAKE_GROUP, _WAKE_CONSUMER, "COUNT", "1", "BLOCK", str(BLOCK_MS), "NOACK",
            "STREAMS", self._keys.stream, self._keys.wake, ">", ">",
        )  # fmt: skip


async def _limited_groups_wait(link: QueueLink) -> bool:
    first = 0
    while groups := await link.command("ZRANGE", link.keys.ratelimited, str(first), str(first + _PAGE - 1)):
        for group in groups:
            if await link.command("ZCARD", link.keys.group_queue(group.decode("utf-8", "surrogateescape"))):
                return True
        first += _PAGE
    return False


class Throttle:
    """The limits of a worker on a queue, and its pause when it has reached one. All parts of the queue share one.

    Args:
        tokens: Maximum number of tokens per window.
    """

    def __init__(self, tokens: TokenLimiter | None = None) -> None:
        self.limit: Final = tokens
        self.holding = False
        """True during a pause: no job may be fetched."""
        self.until = 0.0
        """End of the pause."""
        self.waiting: list[Callable[[], None]] = []
        """To be called after each pause."""
        self._window = -1
        self._used = 0
        self._ahead = 0.0

    def hold(self, milliseconds: float, now: float) -> None:
        """Pause for so many ms; a longer pause that is in effect is kept."""
        until = now + milliseconds / 1000
        if milliseconds > 0 and until > self.until:
            self.holding, self.until = True, until

    def left(self, now: float) -> float:
        """Return the remaining milliseconds of the pause; 0 if there is none."""
        return max(0.0, self.until - now) * 1000 if self.holding else 0.0

    def passed(self, milliseconds: float) -> None:
        """Advance the clock by so many ms, for tests that move the time."""
        self._ahead += milliseconds / 1000
        self.until -= milliseconds / 1000

    def charge(
        self, limit: TokenLimiter, batch: Collection[FinishedAttempt], now: float, share: int | None = None
    ) -> Tokens | None:
        """Charge the worker's window with the tokens of ``batch``; return the token argument of `exchange`.

        Args:
            limit: The limit.
            batch: The results.
            now: The time.
            share: Maximum number of tokens of the queue if it is a partition.
        """
        reported = [finished.run.job._tokens_used for finished in batch]
        if limit.scope != "queue":
            new = sum(finished.run.job._tokens_used for finished in batch if not finished.sent)
            self._charge_window(limit, new, now)
        most = limit.max_tokens if share is None else share
        return None if limit.scope == "worker" else (most, limit.duration, reported)

    def _charge_window(self, limit: TokenLimiter, tokens: int, now: float) -> None:
        ms, length = (now + self._ahead) * 1000, limit.duration
        window = int(ms // length)
        if window != self._window:
            self._window, self._used = window, 0
        self._used += tokens
        if self._used >= limit.max_tokens:
            self.hold((window + 1) * length - ms, now)
