"""What a failure reported by GLIDE or the server means to us."""

from __future__ import annotations

from glide_shared.exceptions import ClosingError, GlideError, RequestError
from glide_shared.exceptions import ConnectionError as GlideConnectionError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError

from glidemq_py.errors import (
    AmbiguousResultError,
    ClosedError,
    GlideMQConnectionError,
    GlideMQError,
    LibraryError,
    ScriptError,
    ServerOutOfMemoryError,
)
from glidemq_py.wire.library import Library

__all__ = ["is_function_missing", "meaning_of", "translate", "was_lost"]

# Replies that mean "not now" or "not here": the command was refused before it did anything.
_NOT_RUN = ("LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS", "BUSY", "UNBLOCKED")
# GLIDE's core says PermissionDenied for the server's NOPERM.
_REFUSED = ("NOPERM", "PermissionDenied", "NOAUTH", "WRONGPASS")
# A function runs with the rights of its caller; in the words of Valkey and of Redis 7.0.
_REFUSED_INSIDE = ("ACL failure in script", "The user executing the script can't")
_NO_FUNCTION = ("Function not found", "Function not loaded")


def is_function_missing(error: GlideError) -> bool:
    """True where the server does not know the function: our library is not loaded there (any more)."""
    text = str(error)
    return any(phrase in text for phrase in _NO_FUNCTION)


def was_lost(error: GlideError) -> bool:
    """True where the connection broke before the reply came. (After a time-out, asking again would only double it.)"""
    return isinstance(error, GlideConnectionError)


def translate(error: GlideError, library: Library | None = None) -> GlideMQError:
    """The error of ours that says what happened; the caller raises it from the original."""
    text = str(error)
    if isinstance(error, ClosingError):
        return ClosedError(f"the connection is closed: {text}")
    if isinstance(error, GlideTimeoutError):
        return AmbiguousResultError(f"no reply within the request timeout ({text}); it may have happened")
    if isinstance(error, GlideConnectionError):
        return AmbiguousResultError(f"the connection was lost before the reply came; it may have happened ({text})")
    if isinstance(error, RequestError):
        return meaning_of(text, library)
    return GlideMQError(text)


def meaning_of(text: str, library: Library | None) -> GlideMQError:
    """The error of ours that an error reply means."""
    bare = text.removeprefix("An error was signalled by the server: - ").removeprefix("ResponseError: ")
    if bare.startswith("OOM") or "OOM command not allowed" in bare or "used memory > 'maxmemory'" in bare:
        return ServerOutOfMemoryError(f"the server is at its maxmemory; nothing was added ({bare})")
    if bare.startswith(_NOT_RUN) or any(f"- {code}" in text for code in _NOT_RUN):
        return GlideMQConnectionError(f"the server cannot serve this now: {bare}")
    if bare.startswith(_REFUSED) or any(phrase in bare for phrase in _REFUSED_INSIDE):
        return LibraryError(f"the server refuses this user: {bare} (docs/operate/permissions.md lists what is needed)")
    if "user_function" in bare or "script:" in bare:
        location = library.locate_error(bare) if library is not None else None
        return ScriptError(bare, None if location is None else str(location))
    return GlideMQError(bare)
