"""Assemble the server-side function library from the files under ``lua/``.

Two libraries are rendered from one source (``docs/reference/functions.md``):

* *own*: name and prefix contain a hash of the content, so that builds coexist and no library is ever replaced;
* *wire*: the documented library ``glidemq`` for clients in other languages.

In a cluster the library is loaded on every primary. If two clients load it at the same time, both succeed: the error
"already exists" of the second one is ignored (call_retry.py). This module reads files and builds text; transports
send it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path

WIRE_VERSION = "93"
"""Version reported by the wire library (docs/reference/functions.md)."""

_OWN_NAME = "glidemq_py_"
_WIRE_NAME = "glidemq"
_FUNCTIONS = "functions"
"""Folders of the functions that Python calls; not part of the wire library."""
_ERROR_LINE = re.compile(r"user_function:(\d+)")


class Variant(StrEnum):
    """A rendering of the library: which functions it exports, and under which names."""

    OWN = "own"
    WIRE = "wire"


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of a file under ``lua/``."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"lua/{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Library:
    """A rendered function library, ready for FUNCTION LOAD."""

    name: str
    """Library name on the server."""
    prefix: str
    """Prefix of every function name."""
    code: str
    functions: frozenset[str]
    """Exported names, without the prefix."""
    _origins: tuple[SourceLocation | None, ...] = field(repr=False)
    full_names: Mapping[str, bytes] = field(init=False, repr=False, compare=False)
    """Full name of each exported function; one mapping for all transports."""

    def __post_init__(self) -> None:
        """Compute the full names."""
        object.__setattr__(self, "full_names", {name: self.function(name).encode() for name in self.functions})

    def function(self, name: str) -> str:
        """Return the full name of the exported function ``name``."""
        return self.prefix + name

    def locate(self, line: int) -> SourceLocation | None:
        """Return the source location of line ``line`` (1-based) of the assembled code."""
        return self._origins[line - 1] if 0 < line <= len(self._origins) else None

    def only_reads(self, name: str) -> bool:
        """Return whether the exported function ``name`` writes nothing."""
        return f"G.export('{name}', {{ 'no-writes' }}" in self.code

    def locate_error(self, message: str) -> SourceLocation | None:
        """Return the source location of the server's script error ``message``, or None if it names no line."""
        found = _ERROR_LINE.search(message)
        return self.locate(int(found.group(1))) if found else None


def lua_root() -> Path:
    """Return the folder of the Lua sources: in the installed package, or next to it in a checkout."""
    packaged = Path(str(resources.files("glidemq_py"))) / "_lua"
    if packaged.is_dir():
        return packaged
    checkout = Path(__file__).resolve().parents[2] / "lua"
    if checkout.is_dir():
        return checkout
    raise FileNotFoundError("the Lua sources of glidemq_py are missing: neither glidemq_py/_lua nor lua/ exists")


@dataclass(slots=True)
class _Text:
    """Lines of code with their source locations."""

    lines: list[str] = field(default_factory=list[str])
    origins: list[SourceLocation | None] = field(default_factory=list["SourceLocation | None"])

    def generated(self, *lines: str) -> None:
        for line in lines:
            self.lines.append(line)
            self.origins.append(None)

    def file(self, root: Path, path: Path) -> None:
        name = path.relative_to(root).as_posix()
        self.generated("do")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            self.lines.append(line)
            self.origins.append(SourceLocation(name, number))
        self.generated("end")


def _files(root: Path, variant: Variant, settable_clock: bool) -> list[Path]:
    first = [root / "core" / name for name in ("namespaces.lua", "lists.lua", "rows.lua")]
    clock = root / "clock" / ("settable.lua" if settable_clock else "server.lua")
    sources = [path for folder in ("core", "features") for path in sorted((root / folder).rglob("*.lua"))]
    shared = [path for path in sources if path.parent.name != _FUNCTIONS and path not in first]
    if variant is Variant.WIRE:
        return [*first, clock, *shared, *sorted((root / "wire_library").glob("*.lua"))]
    return [*first, clock, *shared, *(path for path in sources if path.parent.name == _FUNCTIONS)]


def _exported(code: str) -> frozenset[str]:
    return frozenset(re.findall(r"^G\.export\('(\w+)'", code, flags=re.MULTILINE))


@cache
def assemble(variant: Variant = Variant.OWN, *, settable_clock: bool = False, root: Path | None = None) -> Library:
    """Render one library.

    Args:
        variant: which functions to export, under which names.
        settable_clock: for tests: the time is read from the key ``P:clock`` if it exists.
        root: folder of the Lua sources; None uses this package's.
    """
    folder = root or lua_root()
    body = _Text()
    for path in _files(folder, variant, settable_clock):
        body.file(folder, path)
    text = "\n".join(body.lines)
    if variant is Variant.OWN:
        name = _OWN_NAME + hashlib.sha256(text.encode()).hexdigest()[:12]
        prefix, version = name + "_", name
    else:
        name, prefix, version = _WIRE_NAME, _WIRE_NAME + "_", WIRE_VERSION
    whole = _Text()
    whole.generated(
        f"#!lua name={name}",
        f"local G = {{ VERSION = '{version}' }}",
        "G.export = function(name, flags, callback, guards_itself)",
        "  if G.reading then callback = G.reading(name, callback, guards_itself) end",
        "  callback = guards_itself and callback or G.guarded(callback)",
        f"  redis.register_function{{ function_name = '{prefix}' .. name, callback = callback, flags = flags }}",
        "end",
    )
    whole.lines += body.lines
    whole.origins += body.origins
    return Library(
        name=name,
        prefix=prefix,
        code="\n".join(whole.lines) + "\n",
        functions=_exported(text),
        _origins=tuple(whole.origins),
    )
