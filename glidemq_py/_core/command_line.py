"""The parser of the package's command lines, whose errors never contain the password of a server URL."""

from __future__ import annotations

import argparse
import codecs
import json
import re
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final, NoReturn

from glidemq_py.errors import hide_urls

PREFIX_VARIABLE: Final = "GLIDEMQ_PREFIX"
"""Environment variable with the first part of every key, for commands."""
PROGRAM: Final[ContextVar[str]] = ContextVar("PROGRAM", default="")
"""Name of the program in help and messages, if it is not the parser's: ``glidemq worker``."""

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_UNDECODED: Final = re.compile("[\udc80-\udcff]+")
"""Bytes beyond ASCII of an argument, in the C locale."""
_USER_AT_HOST: Final = re.compile(r"\S*:\S*@\S*")
_INVALID_CHOICE: Final = re.compile(
    r"(?P<head>argument [^:]*: invalid choice: .*)(?P<choices> \(choose from .*)", re.DOTALL
)


class RedactedArgumentError(argparse.ArgumentTypeError):
    """An invalid argument whose message contains no secret, so it is printed completely."""


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("glidemq_py-escape", _escaped)


def terminal_arguments(given: Iterable[str]) -> list[str]:
    """Return the arguments with UTF-8 decoded, and let stdout escape, as JSON does, what its encoding lacks."""
    reconfigure: Any = getattr(sys.stdout, "reconfigure", None)  # a program may have replaced it
    if reconfigure is not None:
        reconfigure(errors="glidemq_py-escape")
    return [_UNDECODED.sub(_decoded, each) for each in given]


def _decoded(found: re.Match[str]) -> str:
    return found[0].encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def hide_secrets(text: str) -> str:
    """Return the text with server URLs and user:password@host removed."""
    return _USER_AT_HOST.sub("***", hide_urls(text))


def parse_duration(text: str) -> int:
    """Return the milliseconds of "500ms", "30s", "5m" or "1h". The unit is required, because 30 alone is ambiguous."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)(ms|s|m|h)", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a duration with a unit, such as 30s, 500ms or 5m")
    return round(float(found[1]) * _UNITS_MS[found[2]])


def parse_port(text: str) -> int:
    """Return the number of a port, 0 to 65535."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"invalid port {text!r}: must be 0 to 65535")
    return int(text)


class ArgumentParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` for command lines that may contain a server URL."""

    def __init__(self, *, prog: str | None = None, **options: Any) -> None:
        super().__init__(prog=_named(prog), **options)

    def error(self, message: str) -> NoReturn:
        """Print usage and the message, and exit with code 2.

        argparse repeats arguments in its own messages, so these are redacted. The message of a
        `RedactedArgumentError` is printed completely.
        """
        error = sys.exception()  # argparse calls this method while it handles its error
        if error is not None and isinstance(error.__context__, RedactedArgumentError):
            self.reject(message)
        choice = _INVALID_CHOICE.fullmatch(message)
        self.reject(hide_secrets(message) if choice is None else hide_secrets(choice["head"]) + choice["choices"])

    def reject(self, message: str) -> NoReturn:
        """Print usage and a message without secrets, and exit with code 2."""
        super().error(message)


def _named(prog: str | None) -> str | None:
    """Return the name of a parser; those of subcommands begin with that of their parent."""
    program = PROGRAM.get()
    return program if program and prog is not None and prog.startswith("python -m") else prog
