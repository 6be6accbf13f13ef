"""Putting the function library onto a server (ARCHITECTURE, "Two faces of one source").

Our library is loaded where it is absent and never replaced. In a cluster every primary gets it. Two clients that
load at the same time both succeed: the second is told that it is there.
"""

from __future__ import annotations

from typing import Any

from glide_shared.exceptions import GlideError
from glide_shared.routes import AllPrimaries

from glidemq_py._client.failures import translate
from glidemq_py._client.library_source import Library
from glidemq_py.errors import (
    GlideMQConnectionError,
    GlideMQError,
    LibraryError,
    ServerNotReadyError,
    ServerOutOfMemoryError,
)

__all__ = ["load_arguments", "loading_failed"]


def load_arguments(library: Library, cluster: bool) -> tuple[tuple[str, ...], Any]:
    """The FUNCTION LOAD command and its route."""
    return ("FUNCTION", "LOAD", library.code), AllPrimaries() if cluster else None


def loading_failed(error: GlideError, library: Library) -> GlideMQError | None:
    """What to raise for a refused FUNCTION LOAD; None where the library was there already."""
    text = str(error)
    if "already exists" in text:
        return None
    ours = translate(error, library)
    if isinstance(ours, ServerOutOfMemoryError):
        return ServerOutOfMemoryError(f"the server is at its maxmemory and has not got the function library: {text}")
    if isinstance(ours, GlideMQConnectionError):
        return ServerNotReadyError(f"the function library is missing and cannot be loaded now: {ours}")
    return LibraryError(
        f"the function library {library.name} cannot be loaded: {ours}. Where applications may not load functions, "
        "an administrator does it: python -m glidemq_py.library load"
    )
