"""`--reload`: watches Python files and reports which have changed. Polls, so that it needs no other package."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

POLL_EVERY_S: Final = 0.4
_MOST_FILES: Final = 20_000
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


class FileWatch:
    """The state of the Python files below some folders at the last check.

    Hidden folders, virtual environments, installed packages and files beyond the first 20,000 are not watched.

    Args:
        folders: The folders.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = tuple(folders)
        self._known = self._scan()

    def changed(self) -> list[str]:
        """Return the files that were added, changed or removed since the last call, in order."""
        before, self._known = self._known, self._scan()
        return sorted(path for path in before.keys() | self._known.keys() if before.get(path) != self._known.get(path))

    def _scan(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for path in self._files():
            try:
                status = os.stat(path)
            except OSError:
                continue  # it was removed meanwhile
            found[path] = status.st_mtime_ns, status.st_size
            if len(found) >= _MOST_FILES:
                break
        return found

    def _files(self) -> Iterator[str]:
        for top in self._folders:
            for folder, below, files in os.walk(top):
                below[:] = [name for name in below if name not in _SKIPPED and not name.startswith(".")]
                below[:] = [name for name in below if not Path(folder, name, "pyvenv.cfg").exists()]
                yield from (os.path.join(folder, name) for name in files if name.endswith(".py"))


async def watch_files(folders: Sequence[str], changed: Callable[[list[str]], None]) -> None:
    """Call ``changed`` with the changed files until cancelled.

    An editor may write several files, or one in several steps: changes are reported after a poll that finds no
    further ones.
    """
    watch = await asyncio.to_thread(FileWatch, folders)
    pending: dict[str, None] = {}
    while True:
        await asyncio.sleep(POLL_EVERY_S)
        found = await asyncio.to_thread(watch.changed)
        pending.update(dict.fromkeys(found))
        if pending and not found:
            changed(list(pending))
            pending.clear()
