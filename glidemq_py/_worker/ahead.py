"""Exchange calls that are sent behind the blocking read of an idle worker, so that a wake-up delivers its job.

A component of the exchange loop; it works on the loop's state.
"""

from __future__ import annotations

from glidemq_py._core.calls import working
from glidemq_py._core.calls.packing import Call
from glidemq_py._core.calls.working import ExchangeReply
from glidemq_py._worker.exchange_replies import ExchangeReplies
from glidemq_py._worker.exchange_state import ExchangeState
from glidemq_py._worker.reconnecting import Reconnection
from glidemq_py.errors import GlideMQError

__all__ = ["PipelinedExchanges"]

MAX_ROWS = 100
"""Maximum number of jobs fetched by one such call."""


class PipelinedExchanges:
    """The call that one exchange loop has sent ahead, if any.

    Args:
        state: State of the loop.
        answers: Processes replies.
        recovery: Handles failed calls.
    """

    def __init__(self, state: ExchangeState, answers: ExchangeReplies, recovery: Reconnection) -> None:
        self._state = state
        self._answers = answers
        self._recovery = recovery
        self._number = 0
        self._may_bring_suspects = False
        self.requested_slots = 0
        """Slots that the call in flight may fill."""

    @property
    def _token(self) -> str:
        return f"{self._state.consumer}:{self._number}"

    def prepare(self) -> tuple[Call[ExchangeReply], int] | None:
        """Return a call to send behind a blocking read, and its number; it reserves all free slots until `answered`.

        Returns None if no slot is free, if the worker has limits of its own (they may change before the call runs), or
        if it runs batches (a batch may start before the call ends, and then no other job may be fetched).
        """
        x = self._state
        options = x.options
        if options.limiter or options.token_limiter or options.batch or x.throttle.holding:
            return None
        want = min(x.free, MAX_ROWS)
        if not x.taking or want <= 0 or x.recovering is not None or x.disconnected:
            return None
        held = x.held()
        if held is not None:
            x.suspects_requested = self._may_bring_suspects = True
        x.requested_slots += want
        self.requested_slots = want
        return x.source.idle_exchange(want, self._token, held), self._number

    def answered(self, number: int, reply: ExchangeReply | None) -> None:
        """Process the reply to the call ``number``; None if the call failed."""
        if number != self._number:
            return  # `forget` was called since: it has reattached to the jobs of this call
        x = self._state
        want = self._release()
        if reply is None:
            return
        if x.may_fetch:
            self._answers.evaluate(reply, [], want, x.wake_count)
        else:
            # The worker was paused during the call.
            self._recovery.release(reply.jobs, reply.now)
            x.schedule_pump()

    def _release(self) -> int:
        """Free the slots that the call reserved; return their number."""
        want, self.requested_slots = self.requested_slots, 0
        self._state.requested_slots -= want
        if self._may_bring_suspects:
            self._state.suspects_requested = self._may_bring_suspects = False
        return want

    def lost(self, error: GlideMQError) -> None:
        """Handle a failed call: it may have fetched jobs."""
        self._recovery.failed([], error)

    async def forget(self) -> None:
        """Make the server ignore calls sent ahead so far, and reattach to jobs that one of them has fetched.

        If the worker no longer fetches, those jobs are released.

        Raises:
            GlideMQError: If a call fails.
        """
        x = self._state
        await x.link.transport.call(working.retire(x.link.keys.meta, self._token))
        self._number += 1
        self._release()
        # `reattach` would treat the jobs of a reply that is still in flight as unknown.
        while x.under_way:
            x.changed.clear()
            await x.changed.wait()
        await self._recovery.reattach()
        x.schedule_pump()
