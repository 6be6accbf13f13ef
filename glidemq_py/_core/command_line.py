"""The parser of the package's command lines, whose errors never contain the password of a server URL."""

from __future__ import annotations

import argparse
import re
from typing import Final, NoReturn

from glidemq_py.errors.base import hide_urls

__all__ = ["ArgumentParser", "hide_secrets", "parse_duration"]

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_USER_AT_HOST: Final = re.compile(r"\S*:\S*@\S*")


def hide_secrets(text: str) -> str:
    """Return the text with server URLs and user:password@host removed."""
    return _USER_AT_HOST.sub("***", hide_urls(text))


def parse_duration(text: str) -> int:
    """Return the milliseconds of "500ms", "30s", "5m" or "1h". The unit is required, because 30 alone is ambiguous."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a duration with a unit, such as 30s, 500ms or 5m")
    return round(float(found[1]) * _UNITS_MS[found[2]])


class ArgumentParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` for command lines that may contain a server URL."""

    def error(self, message: str) -> NoReturn:
        """Print usage and the message, and exit with code 2. argparse repeats the arguments it does not recognize."""
        super().error(hide_secrets(message))
