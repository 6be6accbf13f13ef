"""GLIDE's configuration for our connection options, async or blocking.

TLS options are converted to those of GLIDE; PEM files are read and checked here, for clear error messages.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, Final

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
from glide_shared.logger import Level as LogLevel
from glide_shared.logger import Logger

from glidemq_py._client.connect_errors import GlideConfig
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._core.logs import has_only_records
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.errors.base import SECRET

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


_READ_FROM = {
    "primary": ReadFrom.PRIMARY,
    "prefer_replica": ReadFrom.PREFER_REPLICA,
    "az_affinity": ReadFrom.AZ_AFFINITY,
    "az_affinity_replicas_and_primary": ReadFrom.AZ_AFFINITY_REPLICAS_AND_PRIMARY,
}


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
