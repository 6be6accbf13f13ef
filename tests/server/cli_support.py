"""Runs the command `glidemq` in this process, as its console script does."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from glidemq_py.cli import main


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Return the lines of stdout."""
        return self.out.splitlines()

    def json(self) -> Any:
        """Return stdout as JSON."""
        return json.loads(self.out)


class Terminal(io.StringIO):
    """Standard input of somebody who sits at a terminal and types these lines."""

    def isatty(self) -> bool:
        """Return True."""
        return True


class Shell:
    """Runs commands against one server."""

    def __init__(self, url: str, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch):
        patch.setenv("GLIDEMQ_URL", url)
        patch.delenv("GLIDEMQ_PREFIX", raising=False)
        self._capfd, self._patch = capfd, patch

    def __call__(self, *argv: str, typed: str | None = None) -> Done:
        """Run a command; ``typed`` is what the user types, None = standard input is not a terminal."""
        self._capfd.readouterr()
        self._patch.setattr(sys, "stdin", io.StringIO() if typed is None else Terminal(typed))
        code = main(list(argv))
        out, err = self._capfd.readouterr()
        return Done(code, out, err)
