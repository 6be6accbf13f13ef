"""The job option `headers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from glidemq_py.errors import GlideMQValidationError

MAX_HEADERS: Final = 100
MAX_CHARS: Final = 16_384
"""Maximum length of all names and values together, characters."""


class Headers(Mapping[str, str]):
    """Headers of a job: an immutable, hashable mapping of names to texts.

    Args:
        values: names and texts.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)

    def to_wire(self) -> dict[str, str] | None:
        """Return the stored form; None if there are no headers."""
        return self._values or None


NO_HEADERS: Final = Headers({})


def parse_headers(option: str, value: Any) -> Headers:
    """Return checked headers.

    Raises:
        GlideMQValidationError: a name or value is not a text, or there are too many or too long ones.
    """
    if isinstance(value, Headers):
        return value
    given: Any = value
    if not isinstance(given, Mapping):
        raise GlideMQValidationError(option, value, "must be a mapping of names to texts")
    given = cast("Mapping[object, object]", given)
    kept: dict[str, str] = {}
    for name, text in given.items():
        if not isinstance(name, str) or not name:
            raise GlideMQValidationError(option, name, "names must be non-empty strings")
        if not isinstance(text, str):
            raise GlideMQValidationError(f"{option}.{name}", text, f"must be a string, not {type(text).__name__}")
        kept[name] = text
    if len(kept) > MAX_HEADERS:
        raise GlideMQValidationError(option, len(kept), f"at most {MAX_HEADERS} headers are allowed")
    chars = sum(len(name) + len(text) for name, text in kept.items())
    if chars > MAX_CHARS:
        raise GlideMQValidationError(
            option, chars, f"names and values must have at most {MAX_CHARS:,} characters; use the job's data"
        )
    try:
        "".join([*kept, *kept.values()]).encode()
    except UnicodeEncodeError:
        raise GlideMQValidationError(option, value, "must be text that UTF-8 can encode") from None
    return Headers(kept)


def read_headers(stored: object) -> Headers:
    """Return the headers of a stored job. Entries of others that are not texts are left out."""
    if not isinstance(stored, Mapping):
        return NO_HEADERS
    given = cast("Mapping[object, object]", stored)
    return Headers({name: text for name, text in given.items() if isinstance(name, str) and isinstance(text, str)})
