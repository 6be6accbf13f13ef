"""Which server, prefix and queues a command uses: options, environment variables, ``[tool.glidemq]``, `glidemq dev`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from glidemq_py._core.command_line import PREFIX_VARIABLE
from glidemq_py.errors import GlideMQValidationError

_SECTION: Final = "tool.glidemq"
_KEYS: Final = ("url", "prefix", "queues")


@dataclass(frozen=True, slots=True)
class Settings:
    """Context of a command.

    Attributes:
        url: URL of the server; None = not given.
        prefix: First part of every key.
        queues: Names of queues that commands without a queue look at.
    """

    url: str | None
    prefix: str
    queues: tuple[str, ...] = ()


def find_settings(url: str | None = None, prefix: str | None = None, *, project: bool = True) -> Settings:
    """Return the settings. The search for ``pyproject.toml`` starts in the current folder.

    Args:
        url: URL of the command line.
        prefix: Prefix of the command line.
        project: Without a URL, use the server of `glidemq dev`.

    Raises:
        EmbeddedServerError: The server of `glidemq dev` does not start.
        GlideMQValidationError: A setting of ``[tool.glidemq]`` is invalid, or the file is not TOML.
    """
    from glidemq_py._client.project import project_url
    from glidemq_py._client.transport import URL_VARIABLE
    from glidemq_py._core.keys import DEFAULT_PREFIX

    section = _section(Path.cwd())
    for name in section:
        if name not in _KEYS:
            raise GlideMQValidationError(
                f"{_SECTION}.{name}", section[name], f"unknown; must be one of {', '.join(_KEYS)}"
            )
    for name in ("url", "prefix"):
        if not isinstance(section.get(name, ""), str):
            raise GlideMQValidationError(f"{_SECTION}.{name}", section[name], "must be a string")
    queues: Any = section.get("queues", [])
    listed = cast("list[object]", queues) if isinstance(queues, list) else None
    if listed is None or not all(isinstance(each, str) for each in listed):
        raise GlideMQValidationError(f"{_SECTION}.queues", cast("object", queues), "must be a list of names")
    return Settings(
        url or os.environ.get(URL_VARIABLE) or section.get("url") or (project_url() if project else None),
        prefix or os.environ.get(PREFIX_VARIABLE) or section.get("prefix") or DEFAULT_PREFIX,
        tuple(cast("list[str]", queues)),
    )


def _is_trusted(path: Path) -> bool:
    """Return True if the path does not exist, or belongs to the user of this process or to root."""
    return not hasattr(os, "geteuid") or not path.exists() or path.stat().st_uid in (0, os.geteuid())


def _section(folder: Path) -> Mapping[str, Any]:
    """Return ``[tool.glidemq]`` of the nearest pyproject.toml in the folder or above it, or an empty mapping.

    The search ends at a folder or file of another user (other than root), who could name a server of theirs.
    """
    for place in (folder, *folder.parents):
        path = place / "pyproject.toml"
        try:
            if not all(map(_is_trusted, (place, path))):
                return {}
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        try:
            found: Any = tomllib.loads(text).get("tool", {})
        except tomllib.TOMLDecodeError as error:
            if "glidemq" not in text:
                return {}
            raise GlideMQValidationError("pyproject.toml", str(path), f"is not TOML: {error}") from None
        section: Any = cast("dict[str, Any]", found).get("glidemq", {}) if isinstance(found, dict) else {}
        return cast("Mapping[str, Any]", section) if isinstance(section, dict) else {}
    return {}
