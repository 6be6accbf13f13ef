"""The parser of the package's command lines. Its errors never contain the password of a server URL."""

from __future__ import annotations

import argparse
import re
from typing import Final, NoReturn

from glidemq_py.errors.base import hide_urls

__all__ = ["ArgumentParser", "hide_secrets"]

_USER_AT_HOST: Final = re.compile(r"\S*:\S*@\S*")


def hide_secrets(text: str) -> str:
    """Return the text with server URLs and user:password@host removed."""
    return _USER_AT_HOST.sub("***", hide_urls(text))


class ArgumentParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` for command lines that may contain a server URL."""

    def error(self, message: str) -> NoReturn:
        """Print usage and the message, and exit with code 2. argparse repeats the arguments it does not recognize."""
        super().error(hide_secrets(message))
