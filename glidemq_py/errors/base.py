"""The base class of all errors, and the display of invalid values in messages."""

from __future__ import annotations

import re
import reprlib
from typing import Final

__all__ = ["SECRET", "GlideMQError", "hide_urls", "show_value"]

_VALUE_WIDTH: Final = 80
_SECRET: Final = "***"

_short_repr = reprlib.Repr()
_short_repr.maxstring = _VALUE_WIDTH
_short_repr.maxother = _VALUE_WIDTH
_short_repr.maxlong = _VALUE_WIDTH


class _Secret:
    """Placeholder for a secret value in an error."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _SECRET

    def __reduce__(self) -> str:
        return "SECRET"


SECRET: Final = _Secret()
"""Pass this instead of a password to a validation error."""


_SERVER_URL: Final = re.compile(r"\b((?:valkey|redis)s?(?:\+cluster)?):/.*", re.IGNORECASE | re.DOTALL)
_LONGEST_URL: Final = 10_000
_CREDENTIALS: Final = re.compile(r"([a-z][a-z0-9+.-]*://).*@", re.IGNORECASE | re.DOTALL)


def hide_urls(text: str) -> str:
    """Return the text with every server URL as `valkey://***`, and without the credentials of any other URL.

    A server URL ends where the text ends: a password may contain spaces and quotes.
    """
    if ":/" not in text or len(text) > _LONGEST_URL:
        return text
    return _CREDENTIALS.sub(rf"\1{_SECRET}@", _SERVER_URL.sub(rf"\1://{_SECRET}", text))


def show_value(value: object) -> str:
    """Return the `repr` of a rejected value: at most 80 characters, no password of a URL, never an exception."""
    try:
        # Shortened after the URLs are hidden: a cut may remove what marks them.
        text = _short_repr.repr(hide_urls(value)) if isinstance(value, str) else hide_urls(_short_repr.repr(value))
    except Exception:  # a broken __repr__ must not replace the actual error
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 3] + "..."


class GlideMQError(Exception):
    """Base class of all errors of this package."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(args or (_message_of(type(self)),)))


def _message_of(kind: type[BaseException]) -> str:
    doc = kind.__doc__ or kind.__name__
    return doc.strip().split("\n", 1)[0].rstrip(".")
