"""Exchange calls that are sent behind the blocking read of an idle worker, so that a wake-up brings its job along.

A part of the exchange loop, in a file of its own; it works on the loop's state.
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
"""Most jobs taken by one such call."""


class PipelinedExchanges:
    """The call that one exchange loop has sent ahead, if it has.

    Args:
        state: of the loop. answers, recovery: its other parts.
    """

    def __init__(self, state: ExchangeState, answers: ExchangeReplies, recovery: Reconnection) -> None:
        self._state = state
        self._answers = answers
        self._recovery = recovery
        self._number = 0
        self._may_bring_suspects = False
        self.requested_slots = 0
        """Slots that are spoken for by the call under way."""

    @property
    def _token(self) -> str:
        return f"{self._state.consumer}:{self._number}"

    def ask(self) -> tuple[Call[ExchangeReply], int] | None:
        """A call to send behind a blocking read, for all the slots that are free; they are spoken for until
        `answered`. With it its number. None where this worker's own limits have a say in what is taken, and where jobs
        are gathered into batches: one may begin before the call comes to its end, and no other may then be taken.
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
        """The answer to the call of that number; None where there was none."""
        if number != self._number:
            return  # forgotten: what it had taken has come to us by other ways
        x = self._state
        want = self._release()
        if reply is None:
            return
        if x.may_fetch:
            self._answers.evaluate(reply, [], want, x.wake_count)
        else:
            # Paused meanwhile: others may have them.
            self._recovery.hand_back(reply.jobs, reply.now)
            x.schedule_pump()

    def _release(self) -> int:
        """The call has been answered, or is forgotten: returns how many slots were spoken for."""
        want, self.requested_slots = self.requested_slots, 0
        self._state.requested_slots -= want
        if self._may_bring_suspects:
            self._state.suspects_requested = self._may_bring_suspects = False
        return want

    def lost(self, error: GlideMQError) -> None:
        """Nobody knows whether it took jobs."""
        self._recovery.failed([], error)

    async def forget(self) -> None:
        """Calls that were sent ahead take nothing from now on, and what one has taken without our knowing comes to
        us, or back to the queue if we take nothing any more. Raises GlideMQError.
        """
        x = self._state
        await x.link.transport.call(working.retire(x.link.keys.meta, self._token))
        self._number += 1
        self._release()
        # The jobs of an answer that is under way would be taken for unknown ones.
        while x.under_way:
            x.changed.clear()
            await x.changed.wait()
        await self._recovery.reattach()
        x.schedule_pump()
