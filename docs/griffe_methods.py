"""Griffe extension: show the methods that a class lists by name as methods.

`Queue` and `Job` name functions of their features as methods: ``pause = administration.pause``. Griffe reads the source
and sees attributes; this extension replaces them with the functions.
"""

from __future__ import annotations

from typing import Any

import griffe


class ListedMethods(griffe.Extension):  # type: ignore[misc]  # griffe is installed for the site only
    """Replaces attributes of classes whose value is a function of another module."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Replace the attributes of all classes of a package."""
        loader.resolve_aliases()
        for cls in _classes(pkg):
            for name, member in list(cls.members.items()):
                if member.is_alias or not member.is_attribute or not isinstance(member.value, griffe.ExprAttribute):
                    continue
                function = _find(loader, member.value.canonical_path)
                if function is not None and function.is_function:
                    cls.set_member(name, griffe.Alias(name, function, lineno=member.lineno, parent=cls))


def _classes(module: griffe.Module) -> list[griffe.Class]:
    found = [each for each in module.classes.values() if not each.is_alias]
    for each in module.modules.values():
        if not each.is_alias:
            found += _classes(each)
    return found


def _find(loader: griffe.GriffeLoader, path: str) -> griffe.Object | griffe.Alias | None:
    try:
        return loader.modules_collection[path]
    except KeyError:
        return None
