"""The base class of all errors, the display of invalid values in messages, and errors of invalid arguments."""

from __future__ import annotations

import re
import reprlib
from typing import Final

__all__ = [
    "SECRET",
    "ColumnError",
    "GlideMQError",
    "GlideMQValidationError",
    "MissingOptionError",
    "PayloadTooLargeError",
    "SerializationError",
    "UnknownOptionError",
    "hide_urls",
    "show_value",
]

_VALUE_WIDTH: Final = 80
_SECRET: Final = "***"


_short_repr = reprlib.Repr()  # sets are sorted
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


_SERVER_URL: Final = re.compile(r"\b((?:valkey|redis)s?(?:\+cluster)?):(/.*)", re.IGNORECASE | re.DOTALL)
_HARMLESS: Final = re.compile(
    r"//(?:(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]+\]|localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+)(?::\d{1,5})?"
    r"|[a-z0-9-]+:(?:63[789]\d|70\d\d))(?:/\d?\d?)?[\])}'\"]*",
    re.IGNORECASE | re.ASCII,
)
"""The rest of a URL that is clearly a host and a port. Without a dot or a usual port it may be user:password."""
_LONGEST_URL: Final = 10_000
_CREDENTIALS: Final = re.compile(r"([a-z][a-z0-9+.-]*://).*@", re.IGNORECASE | re.DOTALL)


def hide_urls(text: str) -> str:
    """Return the text with every server URL as `valkey://***`, and without the credentials of any other URL.

    A server URL ends where the text ends, because a password may contain spaces and quotes: use this for text of
    unknown origin, not for messages that already contain the redacted URL. An address without user, password, query
    and fragment is kept if the text ends with it.
    """
    if ":/" not in text or len(text) > _LONGEST_URL:
        return text
    return _CREDENTIALS.sub(rf"\1{_SECRET}@", _SERVER_URL.sub(_redacted, text))


def _redacted(found: re.Match[str]) -> str:
    return found[0] if _HARMLESS.fullmatch(found[2]) else f"{found[1]}://{_SECRET}"


def show_value(value: object) -> str:
    """Return the `repr` of a rejected value: at most 80 characters, no password of a URL, never an exception."""
    try:
        # Shortened after the URLs are hidden: a cut may remove what marks them.
        text = _short_repr.repr(hide_urls(value)) if isinstance(value, str) else hide_urls(_short_repr.repr(value))
    except BaseException:  # a broken __repr__ must not replace the actual error
        text = object.__repr__(value)
    return text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 3] + "..."


class GlideMQError(Exception):
    """Base class of all errors of this package."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(args or (_message_of(type(self)),)))


def _message_of(kind: type[BaseException]) -> str:
    doc = kind.__doc__ or kind.__name__
    return doc.strip().split("\n", 1)[0].rstrip(".")


class GlideMQValidationError(GlideMQError, ValueError):
    """An option or argument is invalid, or not supported here; nothing was changed.

    The message is ``option 'attempts' = -1: must be an integer from 0 to 1,000,000``.

    Args:
        option: name of the option, as the caller writes it.
        value: the invalid value.
        problem: the problem or the allowed values, such as "must be an integer from 0 to 10" or "requires 'parent'".
    """

    option: str
    value: object
    problem: str

    def __init__(self, option: str, value: object, problem: str) -> None:
        if isinstance(option, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            option = hide_urls(option)
        if isinstance(value, str):
            # A URL in the wrong place (a queue name, an unknown option) must not show its password.
            value = hide_urls(value)
        super().__init__(option, value, problem)
        self.option = option
        self.value = value
        self.problem = problem

    def __str__(self) -> str:
        return f"option {self.option!r} = {show_value(self.value)}: {self.problem}"


class UnknownOptionError(GlideMQValidationError, TypeError):
    """The option does not exist.

    Attributes:
        suggestion: the most similar existing option, or None.
    """

    suggestion: str | None

    def __init__(self, option: str, value: object, problem: str = "", suggestion: str | None = None) -> None:
        text = problem or "unknown option"
        if suggestion is not None and not problem:
            text = f"{text}; did you mean {suggestion!r}?"
        super().__init__(option, value, text)
        self.suggestion = suggestion


class MissingOptionError(GlideMQValidationError, TypeError):
    """A required option was not given, or is None."""


class PayloadTooLargeError(GlideMQValidationError):
    """The serialized text exceeds the size limit.

    Attributes:
        size: size of the text in UTF-8 bytes, before compression.
        limit: the maximum size in bytes.
    """

    size: int
    limit: int

    def __init__(self, option: str, size: int, limit: int) -> None:
        super().__init__(option, size, f"{size:,} bytes exceed the limit of {limit:,} bytes")
        self.args = (option, size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.problem}"


class SerializationError(GlideMQValidationError):
    """A value cannot be serialized, or a text cannot be deserialized."""


class ColumnError(GlideMQValidationError):
    """A column of a Spark data frame has an invalid type or value.

    Attributes:
        option: name of the column.
        row: number of the invalid row in its partition, or None if the whole column is invalid.
    """

    row: int | None

    def __init__(self, option: str, value: object, problem: str, row: int | None = None) -> None:
        super().__init__(option, value, problem)
        self.args = (option, value, problem, row)
        self.row = row

    def __str__(self) -> str:
        if self.row is None:
            return f"column {self.option!r} {self.problem}"
        return f"column {self.option!r}, row {self.row} of its partition = {show_value(self.value)}: {self.problem}"
