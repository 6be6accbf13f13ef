"""Turn the `connection` option of a user into a connected client of valkey-glide-sync, for threads."""

from __future__ import annotations

import socket
from typing import Any, cast

import glide_sync
from glide_shared.config import GlideClusterClientConfiguration
from glide_shared.exceptions import GlideError

from glidemq_py._client.connect import BlockingGlideClient, client_or_options
from glidemq_py._client.connect_errors import GlideConfig, connection_timeout_s, explain, unreachable
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.glide_config import config_of, limit_logs
from glidemq_py.errors import GlideMQConnectionError

__all__ = ["create_blocking", "glide_sync", "resolve_blocking"]


def create_blocking(config: GlideConfig) -> BlockingGlideClient:
    """Return a client for use in threads. Raises the errors of `create_async`."""
    limit_logs()
    try:
        if isinstance(config, GlideClusterClientConfiguration):
            return glide_sync.GlideClusterClient.create(config)
        return glide_sync.GlideClient.create(config)
    except (GlideError, OSError) as error:
        raise explain(config, error) from error


def resolve_blocking(
    connection: str | ConnectionOptions | BlockingGlideClient | None,
) -> tuple[GlideConfig, BlockingGlideClient | None, ConnectionOptions | None]:
    """Return the configuration, the client if the user gave one, and otherwise the options."""
    found = client_or_options(connection)
    if not isinstance(found, ConnectionOptions):
        return cast("GlideConfig", cast("Any", found)._config), found, None
    config = config_of(found)
    _reach_now(config)
    return config, None, found


def _reach_now(config: GlideConfig) -> None:
    """Connect to one of the servers: GLIDE reports an unreachable server only after its connection timeout."""
    failure: GlideMQConnectionError | None = None
    for address in config.addresses:
        try:
            socket.create_connection((address.host, address.port), connection_timeout_s(config)).close()
            return
        except OSError as error:  # TimeoutError is one
            failure = unreachable(config, address, error)
    if failure is not None:
        raise failure
