"""Errors of a reachable server that does not accept the connection or has an unsafe configuration."""

from __future__ import annotations

from glidemq_py.errors.base import GlideMQError
from glidemq_py.errors.server import GlideMQConnectionError

__all__ = [
    "AuthenticationError",
    "ConnectionRejectedError",
    "ServerConfigurationError",
    "ServerModeError",
    "TlsError",
]


class ConnectionRejectedError(GlideMQConnectionError):
    """The server is reachable but rejects this connection; retrying does not help."""


class AuthenticationError(ConnectionRejectedError):
    """The server requires a password, or rejects the user name or password."""


class TlsError(ConnectionRejectedError):
    """TLS failed: only one side uses it, or one side rejects the other's certificate."""


class ServerModeError(ConnectionRejectedError):
    """A cluster URL was given for a standalone server, or a standalone URL for a node of a cluster."""


class ServerConfigurationError(GlideMQError):
    """The server's configuration lets it delete jobs: its `maxmemory-policy` is `allkeys-*`."""
