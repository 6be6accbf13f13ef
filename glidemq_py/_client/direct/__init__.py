"""Calls over connections of our own, beside GLIDE's: an accelerator that may fail at any time.

GLIDE passes every call through threads of its own and a pipe: a lone call takes two to three times as long as over a
socket of the event loop, and a hundred calls in flight cost five times the processor time. So, if hiredis is installed,
calls of our library go directly to the node that owns the queue's slot.
GLIDE does everything else: it finds the nodes of a failover, loads the library, and runs all commands. After any
surprise (a slot that moved, a server that loads its data, a lost connection) the calls go through GLIDE, until a new
direct connection is open.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from glide_shared.exceptions import GlideError

from glidemq_py._client.call_retry import classify
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.failures import FUNCTION_MISSING, CallOutcome
from glidemq_py._client.threads import own_loops
from glidemq_py._core.forks import new_lock

if TYPE_CHECKING:
    from glidemq_py._client.direct.nodes import DirectNodes

__all__ = ["direct_nodes", "first_direct_nodes", "may_be_direct", "must_leave"]

_first: Final[weakref.WeakKeyDictionary[DirectNodes, ConnectionOptions]] = weakref.WeakKeyDictionary()
_lock: Final = new_lock()


def first_direct_nodes(options: ConnectionOptions | None) -> DirectNodes | None:
    """Return direct connections as `direct_nodes`, unless another event loop of the process has some to the server.

    So each further event loop of a process needs one connection, not two. The portal has its own.
    """
    loop = asyncio.get_running_loop()
    with _lock:
        held = [nodes for nodes, theirs in _first.items() if theirs == options and nodes.is_open]
        if any(nodes.loop is not loop and nodes.loop not in own_loops for nodes in held) and loop not in own_loops:
            return None
        found = direct_nodes(options)
        if found is not None and options is not None:
            _first[found] = options
        return found


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_first.clear)


def direct_nodes(options: ConnectionOptions | None) -> DirectNodes | None:
    """Return direct connections of the running loop for these options, or None if `may_be_direct` is False."""
    if options is None or not may_be_direct(options):
        return None
    from glidemq_py._client.direct.nodes import DirectNodes

    return DirectNodes(options)


def may_be_direct(options: ConnectionOptions) -> bool:
    """Return whether direct connections are possible with these options.

    They are not if the user disabled them, limits the requests in flight, signs in by IAM (GLIDE renews its tokens), or
    gives a client certificate as bytes (Python's ssl reads files only); and if hiredis is not installed.
    """
    if not options.direct or options.iam is not None or options.inflight_requests_limit is not None:
        return False
    return not isinstance(options.tls_cert, bytes) and find_spec("hiredis") is not None


def must_leave(error: GlideError) -> bool:
    """Return whether calls must go through GLIDE after this error reply, which says that the node cannot serve them."""
    failure = classify(error)
    return failure is not FUNCTION_MISSING and failure.outcome is not CallOutcome.PERMANENT
