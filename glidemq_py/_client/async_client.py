"""Turn the `connection` option of a user into a connected client of valkey-glide, for event loops.

Connection options become GLIDE's configuration; PEM files are read and checked here, for clear error messages.

The server's configuration is checked when connecting: settings that lose jobs raise an error or log a WARNING. This
sends one INFO per connection of a queue, worker or producer (none for dedicated connections and heartbeats); in a
cluster, to every primary. A finding is logged once per process and server (`run_id`). Missing values, and an INFO that
is not permitted, are logged as DEBUG.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import glide
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
from glide_shared.logger import Level as LogLevel
from glide_shared.logger import Logger
from glide_shared.routes import AllPrimaries

from glidemq_py._client.connect_errors import GlideConfig, connection_timeout_s, explain, unreachable
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.embedded import is_ephemeral
from glidemq_py._client.glide_faults import create_in_thread, loop_of, read_replies_in
from glidemq_py._client.threads import in_thread, own_loops, to_first_address
from glidemq_py._client.transport import GlideClient, ServerConnection, resolve
from glidemq_py._core.logs import get_logger, has_only_records
from glidemq_py.errors import SECRET, ConnectionRejectedError, GlideMQConnectionError, GlideMQValidationError

__all__ = ["Connected", "create_async", "glide", "resolve_async"]


async def _reach(config: GlideConfig) -> None:
    """Wait until one of the servers accepts a TCP connection. Raises GlideMQConnectionError.

    GLIDE's own attempts would last seconds if the servers are unreachable, and report less.
    """
    failure: GlideMQConnectionError | None = None
    for address in config.addresses:
        try:
            async with asyncio.timeout(connection_timeout_s(config)):
                _, writer = await to_first_address(
                    address.host, address.port, partial(asyncio.open_connection, port=address.port)
                )
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
    limit_logs()
    await _reach(config)
    try:
        cluster = isinstance(config, GlideClusterClientConfiguration)
        client = await create_in_thread(glide.GlideClusterClient if cluster else glide.GlideClient, config)
    except (GlideError, OSError) as error:
        failure = await in_thread(explain, config, error)
        raise failure from error
    loop = asyncio.get_running_loop()
    read_replies_in(loop, client if loop in own_loops else None)
    return client


@dataclass(frozen=True, slots=True)
class Connected:
    """A client of an event loop, with the settings of the transport over it."""

    config: GlideConfig
    client: GlideClient
    owned: bool
    """Whether the transport closes the client."""
    options: ConnectionOptions | None = None
    """None if the user gave a client."""


async def resolve_async(connection: ServerConnection, *, check: bool = True) -> Connected:
    """Return a connected client for a `connection` value.

    Args:
        connection: a URL, options, a client or None.
        check: also check the server's configuration.

    Raises:
        GlideMQConnectionError: see `create_async`.
        ConnectionRejectedError: see `check_server`.
    """
    found = connection if not (connection is None or isinstance(connection, str)) else None
    if found is None:
        # Starting the embedded server blocks, so it runs in a thread.
        found = await in_thread(resolve, connection)
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
        return Connected(config, client, owned=True, options=found)
    config = cast("GlideConfig", found.config)
    running = asyncio.get_running_loop()
    if loop_of(found) is running:  # else the transport reports the wrong loop
        read_replies_in(running)
    if check:
        await check_server(found, config)
    return Connected(config, found, owned=False)


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
        "read_from": ReadFrom[options.read_from.upper()],
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


_limits: list[LogLevel | None] = [None]
"""The last limit of `limit_logs`."""


def limit_logs() -> None:
    """Limit GLIDE's core to errors: it writes every lost connection to stderr, which we raise and log ourselves.

    Has no effect if the user has configured GLIDE's logger. Its lines have a form of their own, so it writes none if
    the log must have only records.
    """
    level = LogLevel.OFF if has_only_records() else LogLevel.ERROR
    if level is not _limits[0] is Logger.logger_level:  # for example, a module of the user has connected before
        Logger.set_logger_config(level)
    Logger.init(level)
    _limits[0] = level


_log = get_logger(__name__)

_COMMAND: Final = ("INFO", "server", "memory", "persistence", "replication", "cluster")
_OLDEST: Final = {"valkey": (8, 1), "redis": (7, 0)}
_PAGE: Final = "docs/operate/server.md"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in a server's configuration.

    Attributes:
        kind: "eviction" and "cluster" are errors, "unknown" is logged as DEBUG, all others as WARNING.
        text: the problem and its remedy.
    """

    kind: str
    text: str


def findings_of(
    info: Mapping[str, str], *, cluster: bool = False, may_be_replica: bool = False, tls: bool = False
) -> Iterator[Finding]:
    """Yield the findings for an INFO reply.

    Args:
        info: the fields of the reply.
        cluster: the connection is to a cluster.
        may_be_replica: reads go to replicas, so the reply may come from a replica.
        tls: the connection uses TLS.
    """
    policy = info.get("maxmemory_policy")
    if policy is None:
        yield Finding("unknown", "INFO has no maxmemory_policy: cannot check whether jobs may be evicted")
    elif policy.startswith("allkeys-"):
        yield Finding("eviction", f"maxmemory-policy is {policy}: a full server deletes jobs; set it to noeviction")
    elif policy != "noeviction":
        yield Finding(
            "volatile",
            f"maxmemory-policy is {policy}: a full server deletes keys that expire (locks, deduplication, streams of "
            "jobs); set it to noeviction",
        )
    append_only = info.get("aof_enabled")
    if append_only is None:
        yield Finding("unknown", "INFO has no aof_enabled: cannot check whether jobs survive a restart")
    elif append_only == "0":
        yield Finding(
            "aof",
            "append-only file is off: a restart loses the jobs added since the last snapshot, or all; set "
            "appendonly to yes (to accept it: add ?allow_no_aof=true to the server's URL)",
        )
    if info.get("role") == "slave" and not may_be_replica:
        yield Finding("replica", "is a replica, and a queue needs the primary; connect to the primary")
    if info.get("cluster_enabled") == "1" and not cluster:
        scheme = "valkeys" if tls else "valkey"
        yield Finding("cluster", f"is a cluster node; use {scheme}+cluster:// instead of {scheme}://")
    name, version = _version(info)
    if version is None:
        yield Finding("unknown", "INFO has no valid version")
    elif version < (oldest := _OLDEST[name]):
        shown = ".".join(map(str, version))
        yield Finding("version", f"{name} {shown} is too old: upgrade to {oldest[0]}.{oldest[1]} or later")


def _version(info: Mapping[str, str]) -> tuple[str, tuple[int, ...] | None]:
    name = "valkey" if "valkey_version" in info else "redis"
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", info.get(f"{name}_version", ""))
    return name, None if found is None else tuple(int(part) for part in found.groups() if part is not None)


async def check_server(client: Any, config: GlideConfig, options: ConnectionOptions | None = None) -> None:
    """Check the servers of an async client. ``options`` is None for a client given by the user.

    Raises:
        ConnectionRejectedError: if a server may evict any key and `allow_eviction` is not set.
        ConnectionRejectedError: if a cluster node was given as a standalone server.
    """
    try:
        async with asyncio.timeout(connection_timeout_s(config)):
            reply = await client.custom_command(list(_COMMAND), *_route(config))
    except (GlideError, OSError) as error:
        _log.debug("server %s: configuration not checked: %s", _name(config), str(error) or "no reply in time")
        return
    _review(config, reply, options)


def _route(config: GlideConfig) -> tuple[AllPrimaries, ...]:
    return (AllPrimaries(),) if isinstance(config, GlideClusterClientConfiguration) else ()


def _review(config: GlideConfig, reply: Any, options: ConnectionOptions | None) -> None:
    replies = cast("Mapping[object, object]", reply) if isinstance(reply, Mapping) else {_name(config): reply}
    for node, text in replies.items():
        info = _fields(text)
        for finding in findings_of(
            info,
            cluster=isinstance(config, GlideClusterClientConfiguration),
            may_be_replica=config.read_from != ReadFrom.PRIMARY,
            tls=bool(config.use_tls),
        ):
            _report(_text(node), info, finding, options)


def _report(node: str, info: Mapping[str, str], finding: Finding, options: ConnectionOptions | None) -> None:
    text = f"server {node}: {finding.text}"
    level = logging.WARNING
    if finding.kind == "cluster":
        raise ConnectionRejectedError(text)
    if finding.kind == "eviction":
        if options is None or not options.allow_eviction:
            where = "'?allow_eviction=true' in the URL or ConnectionOptions(..., allow_eviction=True)"
            if options is None:
                where += ", not with a client of your own"
            raise ConnectionRejectedError(f"{text}, or accept the loss with {where} ({_PAGE})")
        level = logging.DEBUG
    elif finding.kind == "unknown" or (finding.kind == "aof" and _may_lack_aof(info, options)):
        level = logging.DEBUG
    identity = info.get("run_id", node), finding.kind, finding.text if finding.kind == "unknown" else "", level
    if identity not in _reported:
        _reported.add(identity)
        _log.log(level, "%s (%s)", text, _PAGE)


def _may_lack_aof(info: Mapping[str, str], options: ConnectionOptions | None) -> bool:
    if options is not None and options.allow_no_aof:
        return True
    return is_ephemeral(info.get("process_id", ""), info.get("tcp_port", ""))


_reported: set[tuple[str, str, str, int]] = set()
"""Findings already logged by this process."""


def _fields(text: Any) -> dict[str, str]:
    return dict(line.split(":", 1) for line in _text(text).splitlines() if ":" in line)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _name(config: GlideConfig) -> str:
    return ", ".join(f"{address.host}:{address.port}" for address in config.addresses)
