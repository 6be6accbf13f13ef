"""The slots of a process for deliveries, divided among the receivers, so that a slow one does not delay the others."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["SLOTS", "DeliverySlots"]

SLOTS: Final = 100
"""Deliveries of a process at a time."""
_MOST_SLOW: Final = 50
"""Those to slow receivers, all together."""
_FIRST_SHARE: Final = 20
"""Slots of a receiver of which nothing is known."""
_MOST_SHARE: Final = 50
_SLOW_SHARE: Final = 10
_LEAST_DELAY_S: Final = 0.05
_MOST_DELAY_S: Final = 120.0
_WEIGHT: Final = 0.2
"""Weight of the last delivery in the average duration."""


@dataclass(slots=True)
class _Receiver:
    """What is known of a receiver.

    Attributes:
        running: Deliveries to it.
        share: How many it may have.
        duration: Average duration of a delivery, s.
        free_at: When the next slot is free that is not intended for a delayed message.
        is_dead: Whether it did not answer at all.
    """

    running: int = 0
    share: int = _FIRST_SHARE
    duration: float = 0.05
    free_at: float = 0.0
    is_dead: bool = False

    @property
    def is_slow(self) -> bool:
        return self.share <= _SLOW_SHARE


class DeliverySlots:
    """Decides which deliveries start now.

    A receiver that answers fast gets more and more slots, up to half of them. One that is slow keeps a tenth, and one
    that does not answer a single one; slow receivers have at most half of the slots together.

    Args:
        slow_s: Duration of a delivery from which on the receiver is slow, s.
        clock: Returns the time, s.
    """

    def __init__(self, slow_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._slow_s, self._clock = slow_s, clock
        self._receivers: dict[str, _Receiver] = {}
        self._slow_running = 0

    def delay(self, webhook_id: str) -> float | None:
        """Return after which time a message should be tried again, s; None if it may be delivered now."""
        receiver = self._receivers.get(webhook_id)
        if receiver is None:
            return None
        is_full = receiver.is_slow and self._slow_running >= _MOST_SLOW
        if receiver.running < receiver.share and not is_full:
            return None
        now = self._clock()
        receiver.free_at = max(receiver.free_at, now) + receiver.duration / receiver.share
        delay = receiver.free_at - now
        if delay < _MOST_DELAY_S:
            return max(delay, _LEAST_DELAY_S)
        receiver.free_at = now + _MOST_DELAY_S
        return _MOST_DELAY_S * random.uniform(0.5, 1.0)

    @contextlib.contextmanager
    def taken(self, webhook_id: str) -> Generator[None]:
        """Occupy a slot, and learn from the duration and the outcome."""
        receiver = self._receivers.setdefault(webhook_id, _Receiver())
        start, was_slow = self._clock(), receiver.is_slow
        receiver.running += 1
        self._slow_running += was_slow
        is_ok = False
        try:
            yield
            is_ok = True
        finally:
            receiver.running -= 1
            self._slow_running -= was_slow
            self._learn(receiver, self._clock() - start, is_ok=is_ok)

    def is_dead(self, webhook_id: str) -> bool:
        """Return whether the receiver did not answer the last time."""
        receiver = self._receivers.get(webhook_id)
        return receiver is not None and receiver.is_dead

    def forget(self, known: Iterable[str]) -> None:
        """Forget the receivers of webhooks that do not exist any more."""
        kept = set(known)
        for webhook_id in [each for each in self._receivers if each not in kept]:
            if not self._receivers[webhook_id].running:
                del self._receivers[webhook_id]

    def _learn(self, receiver: _Receiver, seconds: float, *, is_ok: bool) -> None:
        receiver.duration += _WEIGHT * (seconds - receiver.duration)
        if seconds < self._slow_s:
            receiver.is_dead = False
            if is_ok:  # a fast refusal takes no slots, but is no reason for more requests
                receiver.share = min(receiver.share + 1, _MOST_SHARE)
                receiver.free_at = min(receiver.free_at, self._clock())
            return
        receiver.is_dead = not is_ok
        if is_ok and receiver.share < _SLOW_SHARE:  # it answers again
            receiver.share += 1
        else:
            receiver.share = max(receiver.share // 2, _SLOW_SHARE if is_ok else 1)
