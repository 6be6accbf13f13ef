"""Values and the calls of plain jobs: options, records, keys, codecs. Pure functions; nothing here does I/O.

Here: the version, and public names that are imported on first use (PEP 562): importing a package costs nothing, and a
program imports only what it uses. Type checkers read the same imports from a module that tools/generate_sync.py writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__version__ = "0.2.0.dev0"


def import_on_first_use(
    package: str, names: Mapping[str, str], submodules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names are imported on first use.

    Args:
        package: ``__name__`` of the package.
        names: public names per module that defines them, as in an import statement.
        submodules: submodules that are attributes of the package without an import statement. They have further
            public names, which the error for an unknown name looks for.
    """
    places: dict[str, tuple[str, str]] = {}
    for module, listed in names.items():
        for entry in listed.split(", "):
            name, _, public = entry.partition(" as ")
            places[public or name] = (module, name)

    def get(name: str) -> Any:
        place = places.get(name)
        if place is not None:
            try:
                value = getattr(import_module(place[0]), place[1])
            except ModuleNotFoundError as error:
                if str(error.name).endswith("_twin"):
                    error.msg += ", which is not committed; run `python -m tools.generate_sync` in the checkout"
                raise
        elif name in submodules:
            value = import_module(f"{package}.{name}")
        else:
            # The import system asks for private submodules, too, before it imports them.
            for other in () if name.startswith("_") else submodules:
                if name in import_module(f"{package}.{other}").__all__:
                    raise ImportError(f"{name} has moved: from {package}.{other} import {name}")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def listing() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places, *submodules} - {"TYPE_CHECKING"})

    return get, listing, sorted(places)
