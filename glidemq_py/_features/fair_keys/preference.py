"""The preference of a worker for the fair keys of its last jobs (option ``fair_key_preference`` of `Worker`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from glidemq_py._core.calls import Call
from glidemq_py._core.calls.working import ExchangeReply, Preferred

MAX_PREFERENCE: Final = 100
"""Most turns by which a key may be served early."""
_KEYS: Final = 16
"""Keys that a worker prefers at a time; the server reads no more (lua/features/fair_keys/fetch_fair.lua)."""


class RecentKeys:
    """The fair keys of the last jobs that a worker has fetched.

    Args:
        turns: Turns by which these keys may be served early.
        slots: Number of jobs that the worker runs at the same time. It prefers at most as many keys.
    """

    def __init__(self, turns: int, slots: int) -> None:
        self._turns = turns
        self._most = min(slots, _KEYS)
        self._keys: dict[str, None] = {}
        """In the order of their last jobs."""

    def add(self, keys: Iterable[str | None]) -> None:
        """Remember the keys of fetched jobs; None is a job without a key."""
        known = self._keys
        for key in keys:
            if key is not None:
                known.pop(key, None)
                known[key] = None
        for key in list(known)[: -self._most]:
            del known[key]

    def preferring(self, build: Callable[..., Call[ExchangeReply]]) -> Callable[..., Call[ExchangeReply]]:
        """Return a builder of exchange calls that prefer the keys."""

        def build_with_keys(*arguments: Any, **options: Any) -> Call[ExchangeReply]:
            preferred = Preferred(self._turns, tuple(reversed(self._keys))) if self._keys else None
            return build(*arguments, preferred=preferred, **options)

        return build_with_keys
