"""The root of the tree, and how refused values are shown."""

from __future__ import annotations

import reprlib
from typing import Final

__all__ = ["SECRET", "GlideMQError", "show_value"]

_VALUE_WIDTH: Final = 80
_SECRET: Final = "***"

_short_repr = reprlib.Repr()
_short_repr.maxstring = _VALUE_WIDTH
_short_repr.maxother = _VALUE_WIDTH
_short_repr.maxlong = _VALUE_WIDTH


class _Secret:
    """Stands in an error for a value that must not be seen."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _SECRET

    def __reduce__(self) -> str:
        return "SECRET"


SECRET: Final = _Secret()
"""Put this in place of a password when a validation error is raised about it."""


def show_value(value: object) -> str:
    """`repr` of a refused value, never longer than 80 characters, and never an exception of its own."""
    try:
        text = _short_repr.repr(value)
    except Exception:  # a broken __repr__ must not hide the real complaint
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 3] + "..."


class GlideMQError(Exception):
    """The job queue could not do what was asked."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(args or (_message_of(type(self)),)))


def _message_of(kind: type[BaseException]) -> str:
    doc = kind.__doc__ or kind.__name__
    return doc.strip().split("\n", 1)[0].rstrip(".")
