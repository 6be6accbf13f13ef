"""Connection options: addresses, credentials, TLS, timeouts. No client and no I/O.

A password never appears in a repr, a str or an error of this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, Literal, Self, cast

from glidemq_py._client.connection_url import Address, is_clearly_path, parse_addresses, parse_url
from glidemq_py._core.checks import (
    Converted,
    OptionValue,
    check_bool,
    check_choice,
    check_int,
    check_text,
    option,
    reject_unknown,
)
from glidemq_py._core.times import DAY_MS, Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.errors.base import SECRET

DEFAULT_REQUEST_TIMEOUT_MS: Final = 30_000
"""Long enough for a bulk call of a thousand jobs on a busy server."""
DEFAULT_CONNECTION_TIMEOUT_MS: Final = 5_000

ReadFrom = Literal["primary", "prefer_replica", "az_affinity", "az_affinity_replicas_and_primary"]
READ_FROM: Final = ("primary", "prefer_replica", "az_affinity", "az_affinity_replicas_and_primary")
_NEEDS_AZ: Final = ("az_affinity", "az_affinity_replicas_and_primary")
IamService = Literal["elasticache", "memorydb"]
_IAM_SERVICES: Final = ("elasticache", "memorydb")

_TOKEN: Final = re.compile(r"[!-~]+")  # allowed by CLIENT SETNAME: printable ASCII without spaces
_TEXT_LENGTH: Final = 4_096
_MAX_INFLIGHT: Final = 1_000_000
_MAX_DATABASE: Final = 2**31 - 1
_MAX_IAM_REFRESH_S: Final = 12 * 3_600


_text = partial(check_text, maximum=_TEXT_LENGTH)


class IamCredentials(OptionValue, prefix="iam", kw_only=True):
    """Sign in to AWS with IAM instead of a password.

    Args:
        username: the IAM user.
        cluster_name: name of the ElastiCache or MemoryDB cluster.
        region: AWS region.
        service: "elasticache" or "memorydb".
        refresh_interval_seconds: interval between token refreshes, seconds, 1..43_200.
    """

    username: str = option(_text)
    cluster_name: str = option(_text)
    region: str = option(_text)
    service: IamService = option(partial(check_choice, choices=_IAM_SERVICES), default="elasticache")
    refresh_interval_seconds: int = option(
        partial(check_int, minimum=1, maximum=_MAX_IAM_REFRESH_S, unit=" (seconds)"), default=300
    )


PemSource = str | os.PathLike[str] | bytes
"""The path of a PEM file, or the bytes of one."""


_FILES: Final = ("tls_ca", "tls_cert", "tls_key")


def _check_pem(option: str, value: object) -> str | bytes:
    """Validate the path (as text) or the bytes of a PEM file. Files are read when a connection is made."""
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, str):
        if "-----BEGIN" in value:
            raise GlideMQValidationError(option, SECRET, "must be the path of a PEM file, or its text as bytes")
        return check_text(option, value, maximum=_TEXT_LENGTH)
    if not isinstance(value, bytes):
        problem = f"must be the path of a PEM file, or its bytes, not {type(value).__name__}"
        raise GlideMQValidationError(option, SECRET, problem)
    if b"-----BEGIN" not in value:
        raise GlideMQValidationError(option, SECRET, "must be the bytes of a PEM file")
    return value


def _shown_pem(value: str | bytes) -> object:
    return value if isinstance(value, str) else SECRET


def _check_password(_: str, value: object) -> str:
    if not isinstance(value, str):
        raise GlideMQValidationError("password", SECRET, f"must be a str, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise GlideMQValidationError("password", SECRET, "must be text that UTF-8 can encode") from None
    if not value or len(value) > _TEXT_LENGTH:
        raise GlideMQValidationError("password", SECRET, f"must have 1 to {_TEXT_LENGTH} characters")
    return value


def _check_iam(option: str, value: object) -> IamCredentials:
    if not isinstance(value, IamCredentials):
        raise GlideMQValidationError(option, SECRET, "must be IamCredentials")
    return value


def _addresses(_: str, value: Any) -> tuple[Address, ...]:
    return parse_addresses(value)


_check_timeout = partial(to_ms, minimum=1, maximum=DAY_MS)


class ConnectionOptions(OptionValue):
    """How to reach the server. Durations are stored in milliseconds.

    Args:
        addresses: one or more servers (nodes of a cluster, replicas): `Address`, "host:port" or (host, port).
        cluster: the server is a cluster.
        tls: use TLS.
        username: ACL user; requires a password.
        password: never shown in a repr or an error.
        iam: AWS IAM instead of user and password; requires `tls`.
        read_from: which nodes may serve reads.
        client_az: availability zone of this process; required by, and only allowed with, the az_ modes.
        request_timeout: longest wait for a reply, milliseconds or a timedelta.
        connection_timeout: longest wait for a connection, milliseconds or a timedelta.
        inflight_requests_limit: most concurrent requests; None uses the client's default.
        database_id: number of the database; 0 in a cluster.
        tls_insecure: do not check the server's certificate.
        tls_ca: certificates (PEM) of the authorities to trust instead of the system's: a path, or the file's bytes.
        tls_cert: certificate (PEM) of this client, for a server that requires one: a path or bytes, like `tls_key`.
            Files are read again at a reconnect (valkey-glide 2.6), so certificates can be rotated.
        tls_key: private key (PEM, without a passphrase) of `tls_cert`.
        client_name: name shown by CLIENT LIST; printable ASCII without spaces.
        busy_poll: an otherwise idle event loop spins for the reply of a single short call, 0.4 ms at most, while that
            makes such calls faster, and not in a process that may use less than two processors (affinity, quota of a
            container); set False if processor time is scarce.
        direct: calls of this library go over a connection of the event loop, or of the blocking queue, itself to the
            node that owns the queue, if hiredis is installed (extra `speed`): up to several times as fast as through
            GLIDE, which does everything else and takes over while there is no such connection. Not used with `iam`,
            `inflight_requests_limit` or a `tls_cert` of bytes.
        share_clients: queues, workers and flow producers with equal options share one client per event loop; False
            gives each its own.
        allow_eviction: connect to a server whose `maxmemory-policy` is `allkeys-*`, which deletes jobs when it is full.
        allow_no_aof: do not warn if the server has no append-only file.

    Raises:
        GlideMQValidationError: if an option is invalid; names the option and the value.
    """

    addresses: Converted[tuple[Address, ...], Iterable[Address | str | tuple[str, int]]] = option(
        _addresses, default=(Address("127.0.0.1"),)
    )
    cluster: bool = option(check_bool, default=False, kw_only=True)
    tls: bool = option(check_bool, default=False, kw_only=True)
    username: str | None = option(_text, default=None, kw_only=True)
    password: str | None = option(_check_password, default=None, kw_only=True, repr=False)
    iam: IamCredentials | None = option(_check_iam, default=None, kw_only=True)
    read_from: ReadFrom = option(partial(check_choice, choices=READ_FROM), default="primary", kw_only=True)
    client_az: str | None = option(_text, default=None, kw_only=True)
    request_timeout: Converted[int, Milliseconds] = option(
        _check_timeout, default=DEFAULT_REQUEST_TIMEOUT_MS, kw_only=True
    )
    connection_timeout: Converted[int, Milliseconds] = option(
        _check_timeout, default=DEFAULT_CONNECTION_TIMEOUT_MS, kw_only=True
    )
    inflight_requests_limit: int | None = option(
        partial(check_int, minimum=1, maximum=_MAX_INFLIGHT), default=None, kw_only=True
    )
    database_id: int = option(partial(check_int, minimum=0, maximum=_MAX_DATABASE), default=0, kw_only=True)
    tls_insecure: bool = option(check_bool, default=False, kw_only=True)
    tls_ca: Converted[str | bytes | None, PemSource | None] = option(_check_pem, default=None, kw_only=True, repr=False)
    tls_cert: Converted[str | bytes | None, PemSource | None] = option(
        _check_pem, default=None, kw_only=True, repr=False
    )
    tls_key: Converted[str | bytes | None, PemSource | None] = option(
        _check_pem, default=None, kw_only=True, repr=False
    )
    client_name: str | None = option(_text, default=None, kw_only=True)
    busy_poll: bool = option(check_bool, default=True, kw_only=True)
    direct: bool = option(check_bool, default=True, kw_only=True)
    share_clients: bool = option(check_bool, default=True, kw_only=True)
    allow_eviction: bool = option(check_bool, default=False, kw_only=True)
    allow_no_aof: bool = option(check_bool, default=False, kw_only=True)

    def _check_given(self) -> None:
        """Reject options that contradict each other or have no effect together."""
        self._check_credentials()
        if self.cluster and self.database_id:
            raise GlideMQValidationError("database_id", self.database_id, "a cluster has database 0 only")
        if self.read_from in _NEEDS_AZ and self.client_az is None:
            raise GlideMQValidationError("read_from", self.read_from, "requires 'client_az'")
        if self.read_from not in _NEEDS_AZ and self.client_az is not None:
            raise GlideMQValidationError(
                "client_az", self.client_az, f"has no effect with 'read_from' {self.read_from!r}"
            )
        self._check_tls()
        if self.client_name is not None and _TOKEN.fullmatch(self.client_name) is None:
            raise GlideMQValidationError("client_name", self.client_name, "must be printable ASCII without spaces")

    def _check_tls(self) -> None:
        if self.tls_insecure and not self.tls:
            raise GlideMQValidationError("tls_insecure", True, "requires 'tls' (in a URL, valkeys://)")
        for name in _FILES:
            value = getattr(self, name)
            if value is not None and not self.tls:
                raise GlideMQValidationError(name, _shown_pem(value), "requires 'tls' (in a URL, valkeys://)")
        if self.tls_ca is not None and self.tls_insecure:
            problem = "options 'tls_ca' and 'tls_insecure' are mutually exclusive"
            raise GlideMQValidationError("tls_ca", _shown_pem(self.tls_ca), problem)
        for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
            value = getattr(self, name)
            if value is not None and getattr(self, other) is None:
                raise GlideMQValidationError(name, _shown_pem(value), f"requires {other!r}")
        if isinstance(self.tls_cert, bytes) != isinstance(self.tls_key, bytes) and self.tls_key is not None:
            problem = "must have the type of 'tls_cert': both paths or both bytes"
            raise GlideMQValidationError("tls_key", _shown_pem(self.tls_key), problem)

    def _check_credentials(self) -> None:
        if self.iam is not None:
            if self.password is not None:
                raise GlideMQValidationError("password", SECRET, "options 'password' and 'iam' are mutually exclusive")
            if self.username is not None:
                raise GlideMQValidationError("username", self.username, "must be given in 'iam'")
            if not self.tls:
                raise GlideMQValidationError("iam", self.iam, "requires 'tls'")
        elif self.username is not None and self.password is None:
            raise GlideMQValidationError("username", self.username, "requires 'password'")

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Parse a URL such as `valkeys://user:secret@host:6379/0?request_timeout=1000`.

        Schemes: valkey, valkeys (TLS), valkey+cluster, valkeys+cluster; redis and rediss are synonyms. Several hosts
        are separated by commas. User and password are percent-decoded. A path of `/number` selects the database (not
        in a cluster). Query parameters have the names of the options; unknown ones are rejected.

        Raises:
            GlideMQValidationError: if the URL is invalid; shows the URL without its credentials.
        """
        options = parse_url(url)
        try:
            return cls(**options)
        except GlideMQValidationError as error:
            if isinstance(error.value, int) or (error.option in _FILES and is_clearly_path(error.value)):
                raise
            # The value is text of the URL: if the URL is malformed, it may be a part of the password.
            name, problem = error.option, error.problem
        raise GlideMQValidationError(name, SECRET, problem)

    @classmethod
    def parse(cls, value: str | ConnectionOptions | Mapping[str, Any]) -> ConnectionOptions:
        """Return options for a URL, a mapping of keyword options, or options themselves."""
        if isinstance(value, ConnectionOptions):
            return value
        if isinstance(value, str):
            return cls.from_url(value)
        if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError(
                "connection",
                SECRET,
                f"must be a URL, ConnectionOptions or a mapping, not {type(value).__name__}",
            )
        names = cls.__dataclass_fields__
        for name, each in value.items():
            if name not in names:
                reject_unknown(str(name), each, list(names))
        return cls(**value)

    def __str__(self) -> str:
        """Return the URL of these options for logs: without credentials and query."""
        scheme = ("valkeys" if self.tls else "valkey") + ("+cluster" if self.cluster else "")
        hosts = ",".join(str(address) for address in self.addresses)
        return f"{scheme}://{hosts}" + (f"/{self.database_id}" if self.database_id else "")


def sign_in_commands(options: ConnectionOptions) -> list[tuple[str, ...]]:
    """Return the first commands of a connection with these options: RESP3, user, name, database."""
    hello = ["HELLO", "3"]
    if options.password is not None:
        hello += ["AUTH", options.username or "default", options.password]
    if options.client_name is not None:
        hello += ["SETNAME", options.client_name]
    return [tuple(hello), *([("SELECT", str(options.database_id))] if options.database_id else [])]
