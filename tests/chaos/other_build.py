"""A copy of this repository's package with another function library: an older or newer build."""

import shutil
from pathlib import Path

from tests.chaos.fleet import ROOT

__all__ = ["FEATURE", "other_build"]

FEATURE = "chaos:9.9"
"""A feature that only a newer build knows (lua/core/known_features.lua)."""
_PARTS = ("glidemq_py", "lua", "tests/chaos", "tests/key_leaks.py")


def other_build(folder: Path, *, newer: bool = False) -> Path:
    """Copy the package into a folder, change its library, and return the folder, a path for PYTHONPATH.

    Args:
        folder: where to; created.
        newer: the build knows `FEATURE`; otherwise it differs by a comment.
    """
    for name in _PARTS:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target)  # with the compiled files, which fit as long as their sources are as old
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    library = folder / "lua" / "core" / "known_features.lua"
    text, none = library.read_text(encoding="utf-8"), "G.KNOWN_FEATURES = {"
    assert none in text
    if newer:
        text = text.replace(none, f"{none} ['{FEATURE}'] = true, ")
    library.write_text(f"{text}\n-- another build\n", encoding="utf-8")
    return folder
