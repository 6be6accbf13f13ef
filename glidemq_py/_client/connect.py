"""From what a user gives as `connection` to a connected GLIDE client, async or blocking."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import Any, cast

from glide_shared.config import (
    AdvancedGlideClientConfiguration,
    AdvancedGlideClusterClientConfiguration,
    BackoffStrategy,
    GlideClientConfiguration,
    GlideClusterClientConfiguration,
    IamAuthConfig,
    NodeAddress,
    ReadFrom,
    ServerCredentials,
    ServiceType,
)
from glide_shared.exceptions import GlideError

from glidemq_py._client.connect_errors import GlideConfig, connection_timeout_s, explain, unreachable
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.embedded import shared_embedded
from glidemq_py._client.glide_modules import glide, glide_sync
from glidemq_py._client.server_check import check_server
from glidemq_py._client.tls import tls_configuration
from glidemq_py._client.transport import ConnectionSource
from glidemq_py.errors import GlideMQConnectionError, GlideMQValidationError
from glidemq_py.errors.base import SECRET

__all__ = [
    "URL_VARIABLE",
    "BlockingConnection",
    "BlockingGlideClient",
    "Connected",
    "Connection",
    "GlideClient",
    "GlideConfig",
    "ServerConnection",
    "check_connection",
    "config_of",
    "create_async",
    "create_blocking",
    "is_cluster_client",
    "resolve_async",
    "resolve_blocking",
]

URL_VARIABLE = "GLIDEMQ_URL"
"""Environment variable read where no connection is given."""

GlideClient = glide.GlideClient | glide.GlideClusterClient
ServerConnection = str | ConnectionOptions | GlideClient | None
"""A URL, options, an existing GLIDE client (never closed by us), or None: `GLIDEMQ_URL`, else an embedded server."""

Connection = ServerConnection | ConnectionSource
"""What a user may give: how to reach a server, or something that has connections of its own kind."""

BlockingGlideClient = glide_sync.GlideClient | glide_sync.GlideClusterClient
BlockingConnection = str | ConnectionOptions | BlockingGlideClient | ConnectionSource | None
"""The same for the blocking twins; a client is one of valkey-glide-sync."""

_READ_FROM = {
    "primary": ReadFrom.PRIMARY,
    "prefer_replica": ReadFrom.PREFER_REPLICA,
    "az_affinity": ReadFrom.AZ_AFFINITY,
    "az_affinity_replicas_and_primary": ReadFrom.AZ_AFFINITY_REPLICAS_AND_PRIMARY,
}


def check_connection(connection: Connection) -> None:
    """Refuse what could never be connected with, before anybody needs it. Connects nothing.

    Raises:
        GlideMQValidationError: it is no URL, no options and no client; or `GLIDEMQ_URL`, where that counts, is no URL.
    """
    if isinstance(connection, ConnectionSource):
        return
    if connection is not None or os.environ.get(URL_VARIABLE):
        resolve(connection)


def resolve(connection: ServerConnection) -> ConnectionOptions | GlideClient:
    """Options for what was given, or the client itself. May start the embedded server (blocks some 10 ms)."""
    if isinstance(connection, (glide.GlideClient, glide.GlideClusterClient, ConnectionOptions)):
        return connection
    if isinstance(connection, str):
        return ConnectionOptions.from_url(connection)
    if connection is not None:
        raise GlideMQValidationError(
            "connection", SECRET, f"must be a URL, ConnectionOptions or a GLIDE client, not {type(connection).__name__}"
        )
    url = os.environ.get(URL_VARIABLE)
    return ConnectionOptions.from_url(url) if url else ConnectionOptions.from_url(shared_embedded().url)


# GLIDE's own strategy tells of a port that nobody listens on only when the connection timeout ends, and comes back
# more than a second after a server does. This one: 0.7 s, and about 0.2 s. (Much shorter ones starve GLIDE's thread.)
_RECONNECT = BackoffStrategy(num_of_retries=3, factor=50, exponent_base=2)


def _credentials(options: ConnectionOptions) -> ServerCredentials | None:
    if options.iam is not None:
        iam = options.iam
        service = ServiceType.MEMORYDB if iam.service == "memorydb" else ServiceType.ELASTICACHE
        config = IamAuthConfig(iam.cluster_name, service, iam.region, iam.refresh_interval_seconds)
        return ServerCredentials(username=iam.username, iam_config=config)
    if options.password is None:
        return None
    return ServerCredentials(password=options.password, username=options.username)


def config_of(options: ConnectionOptions) -> GlideConfig:
    """The GLIDE configuration that our options mean.

    Raises:
        GlideMQValidationError: a file of `tls_ca`, `tls_cert` or `tls_key` cannot be used.
    """
    tls = tls_configuration(options)
    shared: dict[str, Any] = {
        "addresses": [NodeAddress(a.host, a.port) for a in options.addresses],
        "use_tls": options.tls,
        "credentials": _credentials(options),
        "read_from": _READ_FROM[options.read_from],
        "request_timeout": options.request_timeout,
        "client_name": options.client_name,
        "inflight_requests_limit": options.inflight_requests_limit,
        "client_az": options.client_az,
        "reconnect_strategy": _RECONNECT,
    }
    if options.cluster:
        advanced = AdvancedGlideClusterClientConfiguration(options.connection_timeout, tls_config=tls)
        return GlideClusterClientConfiguration(**shared, advanced_config=advanced)
    return GlideClientConfiguration(
        **shared,
        database_id=options.database_id or None,
        advanced_config=AdvancedGlideClientConfiguration(options.connection_timeout, tls_config=tls),
    )


def _quiet() -> None:
    """GLIDE's core logs every lost connection to stderr itself; we raise and log those. A user's choice stands."""
    glide.Logger.init(glide.LogLevel.ERROR)


async def _reach(config: GlideConfig) -> None:
    """Wait until one of the servers takes a connection. GLIDE's own attempts would hold up the event loop, for
    seconds where nobody answers. Raises GlideMQConnectionError."""
    failure: GlideMQConnectionError | None = None
    for address in config.addresses:
        try:
            async with asyncio.timeout(connection_timeout_s(config)):
                _, writer = await asyncio.open_connection(address.host, address.port)
            writer.close()
            return
        except OSError as error:  # TimeoutError is one
            failure = unreachable(config, address, error)
    if failure is not None:
        raise failure


async def create_async(config: GlideConfig) -> GlideClient:
    """Connect for the running event loop.

    Raises:
        GlideMQConnectionError: the server cannot be reached now.
        ConnectionRejectedError: it can be reached, and not with this configuration; the subclass says why.
    """
    _quiet()
    await _reach(config)
    try:
        if isinstance(config, GlideClusterClientConfiguration):
            return await glide.GlideClusterClient.create(config)
        return await glide.GlideClient.create(config)
    except (GlideError, OSError) as error:
        failure = await asyncio.to_thread(explain, config, error)
        raise failure from error


def create_blocking(config: GlideConfig) -> BlockingGlideClient:
    """Connect for a thread. Raises as `create_async` does."""
    _quiet()
    try:
        if isinstance(config, GlideClusterClientConfiguration):
            return glide_sync.GlideClusterClient.create(config)
        return glide_sync.GlideClient.create(config)
    except (GlideError, OSError) as error:
        raise explain(config, error) from error


def is_cluster_client(client: object) -> bool:
    """Whether a GLIDE client, asynchronous or blocking, is one of a cluster; what is no client is none.

    A class of your own that is called like one counts as one.
    """
    return any(cls.__name__ == "GlideClusterClient" for cls in type(client).__mro__)


@dataclass(frozen=True, slots=True)
class Connected:
    """A client of an event loop, and what a transport over it has to know."""

    config: GlideConfig
    client: GlideClient
    owned: bool
    """It is ours to close."""
    busy_poll: bool = True


async def resolve_async(connection: ServerConnection, *, check: bool = True) -> Connected:
    """Return a connected client for what was given. ``check``: check the server's configuration too.

    Raises:
        GlideMQConnectionError: see `create_async`.
        ServerConfigurationError: see `check_server`.
    """
    found = connection if not (connection is None or isinstance(connection, str)) else None
    if found is None:
        # Starting the embedded server blocks; the loop must not.
        found = await asyncio.to_thread(resolve, connection)
    else:
        found = resolve(found)
    if isinstance(found, ConnectionOptions):
        config = config_of(found)
        client = await create_async(config)
        try:
            if check:
                await check_server(client, config, found)
        except BaseException:
            await client.close()
            raise
        return Connected(config, client, owned=True, busy_poll=found.busy_poll)
    config = cast("GlideConfig", found.config)
    if check:
        await check_server(found, config)
    return Connected(config, found, owned=False)


def resolve_blocking(
    connection: str | ConnectionOptions | BlockingGlideClient | None,
) -> tuple[GlideConfig, BlockingGlideClient | None, ConnectionOptions | None]:
    """Return the configuration, the client if the user has given one, and otherwise the options."""
    if isinstance(connection, (glide_sync.GlideClient, glide_sync.GlideClusterClient)):
        return cast("GlideConfig", cast("Any", connection)._config), connection, None
    if isinstance(connection, (glide.GlideClient, glide.GlideClusterClient)):
        raise GlideMQValidationError(
            "connection", SECRET, "is a client of an event loop; the blocking twins take one of valkey-glide-sync"
        )
    options = cast("ConnectionOptions", resolve(connection))
    config = config_of(options)
    _reach_now(config)
    return config, None, options


def _reach_now(config: GlideConfig) -> None:
    """`_reach` for a thread: GLIDE itself tells of a server that is not there only after its connection timeout."""
    failure: GlideMQConnectionError | None = None
    for address in config.addresses:
        try:
            socket.create_connection((address.host, address.port), connection_timeout_s(config)).close()
            return
        except OSError as error:  # TimeoutError is one
            failure = unreachable(config, address, error)
    if failure is not None:
        raise failure
