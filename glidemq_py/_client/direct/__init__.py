"""Calls over connections of our own, beside GLIDE's: an accelerator that may fail at any time.

GLIDE passes every call through threads of its own and a pipe: a lone call takes two to three times as long as over a
socket of the event loop, and a hundred calls in flight cost five times the processor time. So, if hiredis is installed,
calls of our library go directly to the node that owns the queue's slot. GLIDE does everything else: it finds the nodes
of a failover, loads the library, and runs all commands. After any surprise (a slot that moved, a server that loads its
data, a lost connection) the calls go through GLIDE, until a new direct connection is open.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from glide_shared.exceptions import GlideError

from glidemq_py._client.call_retry import classify
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.failures import FUNCTION_MISSING, CallOutcome

if TYPE_CHECKING:
    from glidemq_py._client.direct.nodes import DirectNodes

__all__ = ["direct_nodes", "must_leave"]


def direct_nodes(options: ConnectionOptions | None) -> DirectNodes | None:
    """Return direct connections of the running loop for these options, or None if they cannot have any.

    They cannot if the user gave a GLIDE client instead of options, disabled them, limits the requests in flight, signs
    in by IAM (GLIDE renews its tokens), or gives a client certificate as bytes (Python's ssl reads files only); and if
    hiredis is not installed.
    """
    if options is None or not options.direct or options.iam is not None or options.inflight_requests_limit is not None:
        return None
    if isinstance(options.tls_cert, bytes) or find_spec("hiredis") is None:
        return None
    from glidemq_py._client.direct.nodes import DirectNodes

    return DirectNodes(options)


def must_leave(error: GlideError) -> bool:
    """Return whether calls must go through GLIDE after this error reply, which says that the node cannot serve them."""
    failure = classify(error)
    return failure is not FUNCTION_MISSING and failure.outcome is not CallOutcome.PERMANENT
