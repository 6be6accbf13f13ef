"""Names of options in errors as the administrator has given them: environment variables, flags, entries of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from glidemq_py._client.connect import URL_VARIABLE
from glidemq_py.errors import GlideMQValidationError

__all__ = ["GivenNames"]

_IN_TEXT: Final = re.compile(r"\b([a-z]+(?:_[a-z]+)+|host(?= '))(?:=True)?")
"""A name of an option in the text of an error: other names without an underscore are words."""


class GivenNames:
    """Where each setting comes from.

    Args:
        usual: Names of settings that were not given, and the flags or variables that give them.
    """

    def __init__(self, usual: Mapping[str, str]) -> None:
        self._usual = usual
        self._given: dict[str, str] = {}
        self._file: str | None = None
        self._of_file: set[str] = set()

    def add(self, name: str, given: str) -> None:
        """Note that a setting was given by this variable or flag."""
        self._given[name] = given
        self._of_file.discard(name)

    def add_file(self, path: str, name: str) -> None:
        """Note that a setting was given in the file."""
        self._given[name] = name
        self._file = path
        self._of_file.add(name)

    def shared(self, name: str, cause: str) -> None:
        """Note that a setting follows from another one."""
        self._given[name] = self.of(cause)

    def of(self, name: str) -> str:
        """Return how a setting was given, or can be given."""
        return self._given.get(name) or self._usual.get(name, name)

    def translated(self, error: GlideMQValidationError) -> GlideMQValidationError:
        """Return an error about options of `Gateway` with the names that the administrator knows."""
        name, _, field = error.option.partition(".")
        if name == "connection":
            option = self._given.get("url", URL_VARIABLE)
            name = "url"
        else:
            option = self.of(name)
        concerned = {name}

        def replaced(found: re.Match[str]) -> str:
            if found[1] not in self._usual:
                return found[0]
            concerned.add(found[1])
            return self.of(found[1])

        problem = _IN_TEXT.sub(replaced, error.problem)
        if concerned & self._of_file:
            problem = f"{problem} (in {self._file})"
        return GlideMQValidationError(f"{option}.{field}" if field else option, error.value, problem)
