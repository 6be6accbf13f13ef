"""Arguments of native commands: bytes or numbers, as Lua passes them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final, cast

__all__ = ["MAX_INT", "OK", "UNUSUAL", "Native", "Status", "UnusualError", "as_argument", "as_arguments", "integer",
           "read_score", "score_limits", "write_number"]  # fmt: skip

Native = Callable[..., Any]
"""Takes the arguments that Lua passes (bytes or numbers) and returns the RESP2 reply: bytes, int, None or a list."""


class Status(bytes):
    """A status reply."""


OK: Final = Status(b"OK")


class UnusualError(Exception):
    """Raised if a command must be run by fakeredis."""


UNUSUAL: Final = (UnusualError, TypeError, ValueError, LookupError, AttributeError)
"""What a native command raises, before it changes anything, if fakeredis must run it."""

MAX_INT: Final = 2**63 - 1


def write_number(number: float) -> bytes:
    """Format a number as a server does: in the fewest digits."""
    if abs(number) < 2**63 and number == int(number):
        return b"%d" % int(number)
    if math.isinf(number):
        return b"%f" % number
    return re.sub(r"e([+-])0", r"e\1", repr(number)).encode()


def as_argument(value: Any) -> bytes:
    """Format a number as a server does when Lua passes one to a command. Raises UnusualError for other types."""
    if isinstance(value, bytes):
        return value
    kind = cast("Any", type(value))
    if kind is int:
        return b"%d" % value
    if kind is not float:
        raise UnusualError
    return write_number(value)


def as_arguments(values: tuple[Any, ...]) -> list[bytes]:
    """Format several arguments."""
    return [each if type(each) is bytes else as_argument(each) for each in values]


def integer(value: Any) -> int:
    """Read an integer in the form in which a server writes it."""
    if type(value) is int:
        return value
    text = as_argument(value)
    number = int(text)
    if b"%d" % number != text or not -MAX_INT <= number <= MAX_INT:
        raise UnusualError
    return number


def read_score(value: Any) -> float:
    """Read a score in one of the usual forms."""
    kind = cast("Any", type(value))
    if kind is int or kind is float:
        return float(value)
    if value.isdigit():
        return float(value)
    if value in _INFINITIES:
        return _INFINITIES[value]
    if value.lstrip(b"-").replace(b".", b"", 1).isdigit():
        return float(value)
    raise UnusualError


_INFINITIES: Final = {b"-inf": -math.inf, b"+inf": math.inf, b"inf": math.inf}


class _AfterAll:
    """Greater than any member."""

    def __gt__(self, _: object) -> bool:
        return True


_END: Final = (math.inf, _AfterAll())


def score_limits(low: Any, high: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the elements between which the entries of a range of scores are: the first included, the second not."""
    if low == b"(+inf" or low == b"(inf":
        raise UnusualError
    if type(low) is bytes and low[:1] == b"(":
        first = math.nextafter(read_score(low[1:]), math.inf)
    else:
        first = read_score(low)
    if type(high) is bytes and high[:1] == b"(":
        return (first,), (read_score(high[1:]),)
    last = read_score(high)
    return (first,), _END if last == math.inf else (math.nextafter(last, math.inf),)
