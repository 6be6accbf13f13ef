"""What the caller gave cannot be."""

from __future__ import annotations

from collections.abc import Sequence

from glidemq_py.errors.base import GlideMQError, hide_urls, show_value

__all__ = [
    "ColumnError",
    "CycleError",
    "GlideMQValidationError",
    "PayloadTooLargeError",
    "SerializationError",
    "UnknownOptionError",
    "UnsupportedOptionError",
]


class GlideMQValidationError(GlideMQError, ValueError):
    """An option or argument was refused before anything was sent.

    Args:
        option: name of the option, as the caller writes it.
        value: what was given.
        problem: what is wrong with it, in a few words ("must be >= 0").
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
    """There is no option of that name. `suggestion` is the nearest one there is, or None."""

    suggestion: str | None

    def __init__(self, option: str, value: object, problem: str = "", suggestion: str | None = None) -> None:
        text = problem or "there is no such option"
        if suggestion is not None and not problem:
            text = f"{text}; did you mean {suggestion!r}?"
        super().__init__(option, value, text)
        self.suggestion = suggestion


class UnsupportedOptionError(GlideMQValidationError):
    """The option is known, but is not honoured here or together with the others given."""


class PayloadTooLargeError(GlideMQValidationError):
    """Serialized text exceeds the limit. `size` and `limit` are UTF-8 bytes before compression."""

    size: int
    limit: int

    def __init__(self, option: str, size: int, limit: int) -> None:
        super().__init__(option, size, f"{size} bytes exceed the limit of {limit} bytes")
        self.args = (option, size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.problem}"


class SerializationError(GlideMQValidationError):
    """A value cannot be turned into text, or text into a value."""


class ColumnError(GlideMQValidationError):
    """A column of a frame cannot be read or written so. `option` is its name, `row` the row in its partition."""

    row: int | None

    def __init__(self, option: str, value: object, problem: str, row: int | None = None) -> None:
        super().__init__(option, value, problem)
        self.args = (option, value, problem, row)
        self.row = row

    def __str__(self) -> str:
        if self.row is None:
            return f"column {self.option!r} {self.problem}"
        return f"column {self.option!r}, row {self.row} of its partition = {show_value(self.value)}: {self.problem}"


class CycleError(GlideMQValidationError):
    """Jobs wait for one another in a circle. `cycle` names them, the first one again at the end."""

    cycle: tuple[str, ...]

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__("nodes", tuple(cycle), "wait for one another in a circle")
        self.args = (tuple(cycle),)
        self.cycle = tuple(cycle)
