"""Turn the `connection` option of a user into a connected GLIDE client, async or blocking.

TLS options are converted to those of GLIDE; PEM files are read and checked here, for clear error messages.

GLIDE registers its old module names (``glide.config`` and others) as modules that warn at any attribute access. Tools
that inspect every loaded module (``inspect.getmodule``, ``unittest.assertWarns``, Hypothesis, reloaders) read
``__file__`` and other special attributes, and so cause a DeprecationWarning, an error under ``-W error``, that the
program's own code did not cause. So GLIDE is imported from here: special attributes raise AttributeError; importing a
name from a deprecated module warns as before.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import glide
import glide_sync
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
    TlsAdvancedConfiguration,
)
from glide_shared.exceptions import GlideError

from glidemq_py._client.connect_errors import GlideConfig, connection_timeout_s, explain, unreachable
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.embedded import shared_embedded
from glidemq_py._client.server_check import check_server
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
    "glide",
    "glide_sync",
    "is_cluster_client",
    "resolve_async",
    "resolve_blocking",
    "tls_configuration",
]


def _ignore_special_attributes(legacy: type[Any] | None) -> None:
    warn = getattr(legacy, "__getattr__", None)
    if legacy is None or warn is None:  # a version of GLIDE without these modules
        return

    def get(module: Any, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return warn(module, name)

    legacy.__getattr__ = get


_ignore_special_attributes(getattr(glide, "_LegacyModule", None))


_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_KEY: Final = b"PRIVATE KEY-----"
_ENCRYPTED: Final = (b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED")
# valkey-glide 2.6 and later read the files of a client certificate again when they change.
_READS_FILES: Final = "client_cert_path" in inspect.signature(TlsAdvancedConfiguration).parameters


def tls_configuration(options: ConnectionOptions) -> TlsAdvancedConfiguration | None:
    """Return GLIDE's TLS settings, or None if no TLS option but `tls` is set.

    Raises:
        GlideMQValidationError: if a file cannot be read, or contains no certificate or no usable key.
    """
    if not options.tls_insecure and options.tls_ca is None and options.tls_cert is None:
        return None
    given: dict[str, Any] = {"use_insecure_tls": options.tls_insecure or None}
    if options.tls_ca is not None:
        given["root_pem_cacerts"] = _certificates("tls_ca", options.tls_ca)
    if options.tls_cert is not None and options.tls_key is not None:
        certificate, key = _certificates("tls_cert", options.tls_cert), _private_key(options.tls_key)
        if _READS_FILES and isinstance(options.tls_cert, str) and isinstance(options.tls_key, str):
            given["client_cert_path"] = os.path.abspath(options.tls_cert)
            given["client_key_path"] = os.path.abspath(options.tls_key)
        else:
            given["client_cert_pem"], given["client_key_pem"] = certificate, key
    return TlsAdvancedConfiguration(**given)


def _certificates(option: str, source: str | bytes) -> bytes:
    pem = _read(option, source)
    if _CERTIFICATE not in pem:
        raise GlideMQValidationError(option, _shown(source), "contains no certificate in PEM format")
    return pem


def _private_key(source: str | bytes) -> bytes:
    pem = _read("tls_key", source)
    if any(mark in pem for mark in _ENCRYPTED):
        problem = "is encrypted with a passphrase; remove it with: openssl pkey -in KEY -out PLAIN_KEY"
        raise GlideMQValidationError("tls_key", _shown(source), problem)
    if _KEY not in pem:
        raise GlideMQValidationError("tls_key", _shown(source), "contains no private key in PEM format")
    return pem


def _read(option: str, source: str | bytes) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        return Path(source).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise GlideMQValidationError(option, source, f"cannot be read: {reason}") from None


def _shown(source: str | bytes) -> object:
    return source if isinstance(source, str) else SECRET


URL_VARIABLE = "GLIDEMQ_URL"
"""Environment variable read if no connection is given."""

GlideClient = glide.GlideClient | glide.GlideClusterClient
ServerConnection = str | ConnectionOptions | GlideClient | None
"""A URL, options, an existing GLIDE client (never closed by us), or None: `GLIDEMQ_URL`, else an embedded server."""

Connection = ServerConnection | ConnectionSource
"""A connection given by a user: how to reach a server, or an object that creates its own transports."""

BlockingGlideClient = glide_sync.GlideClient | glide_sync.GlideClusterClient
BlockingConnection = str | ConnectionOptions | BlockingGlideClient | ConnectionSource | None
"""The same for the blocking API; a client must be one of valkey-glide-sync."""

_READ_FROM = {
    "primary": ReadFrom.PRIMARY,
    "prefer_replica": ReadFrom.PREFER_REPLICA,
    "az_affinity": ReadFrom.AZ_AFFINITY,
    "az_affinity_replicas_and_primary": ReadFrom.AZ_AFFINITY_REPLICAS_AND_PRIMARY,
}


def check_connection(connection: object, *, blocking: bool = False) -> None:
    """Reject a `connection` value that can never work, without connecting.

    Args:
        connection: the value.
        blocking: True for the blocking API, whose clients are those of valkey-glide-sync.

    Raises:
        GlideMQValidationError: if it is not a URL, options or a client; or if `GLIDEMQ_URL` is used and is not a URL.
    """
    if isinstance(connection, ConnectionSource):
        return
    if connection is not None or os.environ.get(URL_VARIABLE):
        if blocking:
            _client_or_options(cast("BlockingConnection", connection))
        else:
            resolve(cast("ServerConnection", connection))


def resolve(connection: ServerConnection) -> ConnectionOptions | GlideClient:
    """Return the options for the given value, or the client itself. May start the embedded server (blocks ~10 ms)."""
    if isinstance(connection, (glide.GlideClient, glide.GlideClusterClient, ConnectionOptions)):
        return connection
    if isinstance(connection, str):
        return ConnectionOptions.from_url(connection)
    if connection is not None:
        raise _invalid(connection)
    url = os.environ.get(URL_VARIABLE)
    return ConnectionOptions.from_url(url) if url else ConnectionOptions.from_url(shared_embedded().url)


def _invalid(connection: object) -> GlideMQValidationError:
    problem = f"must be a URL, ConnectionOptions or a GLIDE client, not {type(connection).__name__}"
    if isinstance(connection, Mapping):
        problem += "; pass options as keyword arguments"
    return GlideMQValidationError("connection", SECRET, problem)


# With GLIDE's default strategy a refused connection is reported only when the connection timeout ends, and a reconnect
# takes more than a second after the server is back. This one: 0.7 s and about 0.2 s. (Much shorter values starve
# GLIDE's thread.)
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
    """Return the GLIDE configuration for our options.

    Raises:
        GlideMQValidationError: if a file of `tls_ca`, `tls_cert` or `tls_key` cannot be used.
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
    """Limit GLIDE's core to errors: it writes every lost connection to stderr, which we raise and log ourselves.

    Has no effect if the user has configured GLIDE's logger.
    """
    glide.Logger.init(glide.LogLevel.ERROR)


async def _reach(config: GlideConfig) -> None:
    """Wait until one of the servers accepts a TCP connection. Raises GlideMQConnectionError.

    GLIDE's own attempts would block the event loop, for seconds if the servers are unreachable.
    """
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
    """Return a client connected in the running event loop.

    Raises:
        GlideMQConnectionError: if the server cannot be reached now.
        ConnectionRejectedError: if the server can be reached, but not with this configuration; the subclass names the
            cause.
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
    """Return a client for use in threads. Raises the errors of `create_async`."""
    _quiet()
    try:
        if isinstance(config, GlideClusterClientConfiguration):
            return glide_sync.GlideClusterClient.create(config)
        return glide_sync.GlideClient.create(config)
    except (GlideError, OSError) as error:
        raise explain(config, error) from error


def is_cluster_client(client: object) -> bool:
    """Return whether a GLIDE client, asynchronous or blocking, is a cluster client; False for any other object.

    Judged by the class name `GlideClusterClient`, also of a base class.
    """
    return any(cls.__name__ == "GlideClusterClient" for cls in type(client).__mro__)


@dataclass(frozen=True, slots=True)
class Connected:
    """A client of an event loop, with the settings of the transport over it."""

    config: GlideConfig
    client: GlideClient
    owned: bool
    """Whether the transport closes the client."""
    busy_poll: bool = True


async def resolve_async(connection: ServerConnection, *, check: bool = True) -> Connected:
    """Return a connected client for a `connection` value.

    Args:
        connection: a URL, options, a client or None.
        check: also check the server's configuration.

    Raises:
        GlideMQConnectionError: see `create_async`.
        ServerConfigurationError: see `check_server`.
    """
    found = connection if not (connection is None or isinstance(connection, str)) else None
    if found is None:
        # Starting the embedded server blocks, so it runs in a thread.
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
    """Return the configuration, the client if the user gave one, and otherwise the options."""
    found = _client_or_options(connection)
    if not isinstance(found, ConnectionOptions):
        return cast("GlideConfig", cast("Any", found)._config), found, None
    config = config_of(found)
    _reach_now(config)
    return config, None, found


def _client_or_options(connection: BlockingConnection) -> ConnectionOptions | BlockingGlideClient:
    if isinstance(connection, (glide_sync.GlideClient, glide_sync.GlideClusterClient)):
        return connection
    if isinstance(connection, (glide.GlideClient, glide.GlideClusterClient)):
        raise GlideMQValidationError(
            "connection", SECRET, "is a client of an event loop; the blocking API needs one of valkey-glide-sync"
        )
    return cast("ConnectionOptions", resolve(cast("ServerConnection", connection)))


def _reach_now(config: GlideConfig) -> None:
    """Do `_reach` in a thread: GLIDE reports an unreachable server only after its connection timeout."""
    failure: GlideMQConnectionError | None = None
    for address in config.addresses:
        try:
            socket.create_connection((address.host, address.port), connection_timeout_s(config)).close()
            return
        except OSError as error:  # TimeoutError is one
            failure = unreachable(config, address, error)
    if failure is not None:
        raise failure
