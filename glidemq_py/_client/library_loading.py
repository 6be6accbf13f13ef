"""The command that loads the function library, and the errors of a failed load."""

from __future__ import annotations

from typing import Any

from glide_shared.exceptions import GlideError
from glide_shared.routes import AllPrimaries

from glidemq_py._client.call_retry import translate
from glidemq_py._client.library_source import Library
from glidemq_py.errors import (
    ClosedError,
    GlideMQConnectionError,
    GlideMQError,
    LibraryError,
    ServerNotReadyError,
    ServerOutOfMemoryError,
)

__all__ = ["load_arguments", "loading_failed"]


def load_arguments(library: Library, cluster: bool) -> tuple[tuple[str, ...], Any]:
    """Return the FUNCTION LOAD command and its route."""
    return ("FUNCTION", "LOAD", library.code), AllPrimaries() if cluster else None


def loading_failed(error: GlideError, library: Library) -> GlideMQError | None:
    """Return the error to raise for a failed FUNCTION LOAD, or None if the library was already loaded."""
    text = str(error)
    if "already exists" in text:
        return None
    ours = translate(error, library)
    if isinstance(ours, ClosedError):
        return ours
    if isinstance(ours, ServerOutOfMemoryError):
        return ServerOutOfMemoryError(f"the function library cannot be loaded: the server is at its maxmemory: {text}")
    if isinstance(ours, GlideMQConnectionError):
        return ServerNotReadyError(f"the function library is missing and cannot be loaded now: {ours}")
    return LibraryError(
        f"the function library {library.name} cannot be loaded: {ours}. If applications may not load functions, "
        "an administrator must load it: python -m glidemq_py.library load --url URL"
    )
