"""Which of its fallbacks an attempt is to use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from glidemq_py.options.fallbacks import Fallback, read_fallbacks

__all__ = ["JobFallbacks"]


class JobFallbacks:
    """The part of `Job` that tells of its fallbacks."""

    fallback_index: int = 0
    """Attempts that have failed and were followed by another, so the place in the chain; 0 = none is in use."""

    if TYPE_CHECKING:

        @property
        def opts(self) -> Mapping[str, Any]:
            """See `Job`."""
            ...

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The chain that it was added with."""
        return read_fallbacks(self.opts.get("fallbacks"))

    @property
    def current_fallback(self) -> Fallback | None:
        """What this attempt is to use: None at the first, then one of `fallbacks` after the other.

        None again where more attempts are made than there are fallbacks; `fallback_index` tells the two apart.
        """
        index = self.fallback_index
        if index <= 0:
            return None
        chain = self.fallbacks
        return chain[index - 1] if index <= len(chain) else None
