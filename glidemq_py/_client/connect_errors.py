"""Explain a failed connection: raise an error of ours that names the option to change.

GLIDE reports some causes clearly (a wrong password) and others only as "timed out" or "terminated" (TLS to a plain
port). For those this module probes the server over a plain socket, only after a failure. Errors of this module contain
no password and no URL.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from glide_shared.config import GlideClientConfiguration, GlideClusterClientConfiguration, NodeAddress

from glidemq_py._client.connection_options import DEFAULT_CONNECTION_TIMEOUT_MS
from glidemq_py._client.failures import REFUSED
from glidemq_py.errors import (
    ConnectionRejectedError,
    GlideMQConnectionError,
    ServerNotReadyError,
)

GlideConfig = GlideClientConfiguration | GlideClusterClientConfiguration

LAST_CHANCE_MS: Final = 500
"""Time for a connection that looks half-open to reply, while the server replies on a new one."""
_PROBE_TIMEOUT_S: Final = 2.0
_ALERT_TIMEOUT_S: Final = 0.5
_NO_CLUSTER: Final = "cluster support disabled"
_CERTIFICATE_PROBLEMS: Final = (
    ("UnknownIssuer", "is not signed by a trusted authority; name the authority: ?tls_ca=/path/to/ca.pem"),
    (
        "CaUsedAsEndEntity",
        "is a certificate authority's own; trust it by ?tls_ca=/path/to/ca.pem, or issue a server certificate",
    ),
    ("not valid for name", "is not issued for this host name; connect by a name that the certificate contains"),
    ("NotValidForName", "is not issued for this host name; connect by a name that the certificate contains"),
    ("NotValidYet", "is not valid yet; check the clocks"),
    ("Expired", "has expired"),
    ("Revoked", "is revoked"),
)


def connection_timeout_s(config: GlideConfig) -> float:
    """Return the connection timeout in seconds."""
    advanced = config.advanced_config
    return ((advanced and advanced.connection_timeout) or DEFAULT_CONNECTION_TIMEOUT_MS) / 1000


def unreachable(config: GlideConfig, address: NodeAddress, error: OSError) -> GlideMQConnectionError:
    """Return the error for servers that accept no TCP connection; ``error`` belongs to the last address tried."""
    if isinstance(error, socket.gaierror):
        problem = f"host name {address.host!r} cannot be resolved ({error.strerror})"
    elif isinstance(error, TimeoutError):
        problem = f"no reply within {connection_timeout_s(config):g} s; check the address, firewalls and routes"
    elif isinstance(error, ConnectionRefusedError):
        problem = "connection refused; check that the server is running and that the port is right"
    else:
        problem = str(error)
    return GlideMQConnectionError(f"cannot connect to {_where(config)}: {problem}")


def explain(config: GlideConfig, error: Exception) -> GlideMQConnectionError:
    """Return the error for a failed connection attempt of GLIDE. Blocks for a few seconds at most."""
    text = " ".join(str(error).split())
    if "No topology views found" in text:
        text = f"no node reports a cluster; if the server is standalone, {_instead(config, cluster=False)}"
    kind, problem = _from_text(config, text) or _from_server(config) or (GlideMQConnectionError, text)
    return kind(_without_password(config, f"cannot connect to {_where(config)}: {problem}"))


Cause = tuple[type[GlideMQConnectionError], str]


def _from_text(config: GlideConfig, text: str) -> Cause | None:
    """Return the cause if GLIDE's message contains it."""
    if "WRONGPASS" in text or "NOAUTH" in text:
        return _authentication(config)
    if "invalid peer certificate" in text:
        for mark, problem in _CERTIFICATE_PROBLEMS:
            if mark in text:
                return ConnectionRejectedError, f"the server's certificate {problem}"
        return (
            ConnectionRejectedError,
            f"the server's certificate is rejected ({text.partition('invalid peer certificate: ')[2]})",
        )
    if "InvalidClientConfig" in text:
        return (
            ConnectionRejectedError,
            f"the client certificate (tls_cert, tls_key) cannot be used: {text.partition('Config: ')[2]}",
        )
    if "No primary node found" in text:
        problem = "the server is a replica, and a queue needs the primary; give the primary's address"
        return ServerNotReadyError, problem
    if "refused to switch database" in text and isinstance(config, GlideClientConfiguration):
        return ConnectionRejectedError, f"database {config.database_id} does not exist or is not permitted to this user"
    return None


def _authentication(config: GlideConfig) -> Cause:
    credentials = config.credentials
    if credentials is None:
        scheme = scheme_of(config)
        problem = (
            "the server requires a password and none is given; "
            f"use {scheme}://user:password@host or {scheme}://:password@host"
        )
        return ConnectionRejectedError, problem
    if credentials.username is None:
        problem = "the server rejects the password; check it"
    else:
        problem = f"the server rejects user {credentials.username!r} with this password; check user name and password"
    return ConnectionRejectedError, f"{problem}, and percent-encode special characters in a URL"


def scheme_of(config: GlideConfig, *, tls: bool | None = None, cluster: bool | None = None) -> str:
    """Return the scheme of the configuration's URL, with ``tls`` and ``cluster`` in place of its own."""
    tls = bool(config.use_tls) if tls is None else tls
    cluster = isinstance(config, GlideClusterClientConfiguration) if cluster is None else cluster
    return f"valkey{'s' if tls else ''}{'+cluster' if cluster else ''}"


def _instead(config: GlideConfig, *, tls: bool | None = None, cluster: bool | None = None) -> str:
    return f"use {scheme_of(config, tls=tls, cluster=cluster)}:// instead of {scheme_of(config)}://"


def is_replying(config: GlideConfig) -> bool:
    """Return whether one of the servers replies on a new connection. Blocks, for a few seconds at most."""
    timeout = min(connection_timeout_s(config), _PROBE_TIMEOUT_S)
    connect = _encrypted if config.use_tls else _plain
    for address in config.addresses:
        reply = _try(partial(_ping, connect, address, timeout))
        if isinstance(reply, bytes) and reply.startswith((b"+PONG", b"-NOAUTH")):
            return True
    return False


def silence_of(config: GlideConfig) -> str | None:
    """Return why none of the servers replies on a new connection; None if one does. Blocks for a few seconds."""
    timeout = min(connection_timeout_s(config), _PROBE_TIMEOUT_S)
    connect = _encrypted if config.use_tls else _plain
    cause = "no address"
    for address in config.addresses:
        reply = _try(partial(_ping, connect, address, timeout))
        if isinstance(reply, bytes) and reply:
            return None
        if isinstance(reply, ConnectionRefusedError):
            cause = REFUSED
        elif isinstance(reply, TimeoutError):
            cause = f"no reply to PING on a new connection within {timeout:g} s"
        else:
            cause = str(reply) if isinstance(reply, Exception) else "it closes new connections"
    return cause


def half_open(config: GlideConfig) -> str:
    """Return the log line for a replaced connection."""
    return (
        f"server {_where(config)}: no reply within the request timeout on a connection, but on a new one: "
        "replaced the half-open connection"
    )


def demoted(config: GlideConfig) -> str:
    """Return the log line for a client that was replaced because its server became a replica."""
    return f"server {_where(config)}: the primary became a replica: connected to the new primary"


def _ping(connect: Callable[[NodeAddress, float], socket.socket], address: NodeAddress, timeout: float) -> bytes:
    with connect(address, timeout) as link:
        link.sendall(_encode("PING"))
        return link.recv(4096)


# -- probing the server ---------------------------------------------------------------------------------------


def _from_server(config: GlideConfig) -> Cause | None:
    """Return the cause according to the first server that accepts a connection."""
    timeout = min(connection_timeout_s(config), _PROBE_TIMEOUT_S)
    for address in config.addresses:
        try:
            socket.create_connection((address.host, address.port), timeout).close()
        except OSError:
            continue
        probe = _probe_with_tls if config.use_tls else _probe_without_tls
        mismatch, reply = probe(config, address, timeout)
        return mismatch or _from_reply(config, reply)
    return None


def _probe_without_tls(config: GlideConfig, address: NodeAddress, timeout: float) -> tuple[Cause | None, bytes]:
    reply = _try(lambda: _exchange(config, _plain(address, timeout)))
    if isinstance(reply, bytes) and reply and not _is_alert(reply):
        return None, reply
    secure = _try(lambda: _encrypted(address, timeout).close())
    if secure is None or "alert" in str(secure).lower():
        return (
            ConnectionRejectedError,
            f"the server expects TLS on this port; {_instead(config, tls=True)} (or tls=True)",
        ), b""
    return None, b""


def _probe_with_tls(config: GlideConfig, address: NodeAddress, timeout: float) -> tuple[Cause | None, bytes]:
    reply = _try(lambda: _exchange(config, _encrypted(address, timeout)))
    if isinstance(reply, bytes) and reply:
        # On a slow machine GLIDE may time out before it reports a certificate.
        return (None if _checks_nothing(config) else _untrusted(config, address, timeout)), reply
    if isinstance(reply, ssl.SSLError) and re.search(r"certificate|handshake.failure", str(reply), re.IGNORECASE):
        tls = config.advanced_config and config.advanced_config.tls_config
        if tls and (tls.client_cert_pem or getattr(tls, "client_cert_path", None)):
            return (
                ConnectionRejectedError,
                "the server rejects the client certificate (tls_cert); check who signed it",
            ), b""
        problem = "the server requires a client certificate; give tls_cert and tls_key"
        return (ConnectionRejectedError, problem), b""
    plain = _try(lambda: _exchange(config, _plain(address, timeout)))
    if isinstance(plain, bytes) and plain[:1] in (b"+", b"-"):
        standalone = _NO_CLUSTER.encode() in plain
        change = _instead(config, tls=False, cluster=False if standalone else None)
        options = "tls=False, cluster=False" if standalone else "tls=False"
        return (ConnectionRejectedError, f"the server does not use TLS on this port; {change} (or {options})"), b""
    return None, b""


def _untrusted(config: GlideConfig, address: NodeAddress, timeout: float) -> Cause | None:
    """Return the cause if Python does not trust the server's certificate either."""
    try:
        context = tls_context(config)
        with _plain(address, timeout) as link, context.wrap_socket(link, server_hostname=address.host):
            return None
    except ssl.SSLCertVerificationError as error:
        for word, mark in (("hostname", "NotValidForName"), ("IP address", "NotValidForName"), ("expired", "Expired")):
            if word in error.verify_message:
                return _from_text(config, f"invalid peer certificate: {mark}")
        return _from_text(config, "invalid peer certificate: UnknownIssuer")
    except (OSError, ValueError):
        return None


def _from_reply(config: GlideConfig, reply: bytes) -> Cause | None:
    """Return the cause for the server's replies to PING, AUTH and CLUSTER INFO."""
    text = reply.decode("utf-8", "replace").replace("\r\n", "\n")
    if not text:
        return None
    if text[0] not in "+-":
        return ConnectionRejectedError, "not a Valkey or Redis server: it does not use their protocol"
    if "-WRONGPASS" in text or (text.startswith("-NOAUTH") and config.credentials is None):
        return _authentication(config)
    if text.startswith("-DENIED"):
        return ConnectionRejectedError, "the server is in protected mode and accepts local clients only; set a password"
    if _NO_CLUSTER in text:
        return (
            ConnectionRejectedError,
            f"the server is standalone, not a cluster node; {_instead(config, cluster=False)}",
        )
    if text.startswith("-") and not text.startswith("-NOAUTH"):
        return ServerNotReadyError, f"the server is not ready: {text.splitlines()[0][1:]}"
    return None


def _try(action: Callable[[], bytes | None]) -> bytes | Exception | None:
    try:
        return action()
    except (OSError, ValueError) as error:  # ssl.SSLError and TimeoutError are OSErrors
        return error


def _plain(address: NodeAddress, timeout: float) -> socket.socket:
    return socket.create_connection((address.host, address.port), timeout)


def _encrypted(address: NodeAddress, timeout: float) -> socket.socket:
    # Certificates need no check here: GLIDE has reported those it rejects.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    link = _plain(address, timeout)
    try:
        return context.wrap_socket(link, server_hostname=address.host)
    except BaseException:
        link.close()
        raise


def _exchange(config: GlideConfig, link: socket.socket) -> bytes:
    """Return the replies to PING and, for a cluster, to AUTH and CLUSTER INFO."""
    with link:
        if isinstance(link, ssl.SSLSocket):
            _wait_for_alert(link)
        link.sendall(_encode("PING"))
        reply = link.recv(4096)
        if reply[:1] not in (b"+", b"-") or not isinstance(config, GlideClusterClientConfiguration):
            return reply
        credentials = config.credentials
        if credentials is not None and credentials.password:
            if config.use_tls and not (isinstance(link, ssl.SSLSocket) and _checks_nothing(config)):
                return reply  # the certificate is unchecked on this socket: do not send the password
            user = () if credentials.username is None else (credentials.username,)
            link.sendall(_encode("AUTH", *user, credentials.password))
            reply += link.recv(4096)
        link.sendall(_encode("CLUSTER", "INFO"))
        return reply + link.recv(4096)


def _wait_for_alert(link: ssl.SSLSocket) -> None:
    """Raise the TLS alert of a server that rejects our certificate.

    With TLS 1.3 the alert arrives after the handshake, and data sent meanwhile makes the system discard it.
    """
    timeout = link.gettimeout()
    link.settimeout(_ALERT_TIMEOUT_S)
    try:
        if not link.recv(1):
            raise ssl.SSLError("closed after the handshake: certificate required")
    except TimeoutError:
        link.settimeout(timeout)


def tls_context(config: GlideConfig, cert: object = None, key: object = None) -> ssl.SSLContext:
    """Return the TLS settings of a configuration, for Python's sockets.

    Args:
        config: the configuration.
        cert: path of the client certificate.
        key: path of its key.

    Raises:
        OSError: if a file cannot be read (ssl.SSLError is one).
    """
    tls = config.advanced_config and config.advanced_config.tls_config
    authority = tls.root_pem_cacerts if tls else None
    context = ssl.create_default_context(cadata=None if authority is None else authority.decode("ascii", "ignore"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # GLIDE does not check this
    if _checks_nothing(config):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if isinstance(cert, str) and isinstance(key, str):
        context.load_cert_chain(cert, key)
    return context


def _checks_nothing(config: GlideConfig) -> bool:
    """Return whether the user has disabled certificate checks."""
    tls = config.advanced_config and config.advanced_config.tls_config
    return bool(tls and tls.use_insecure_tls)


def _encode(*words: str) -> bytes:
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _is_alert(reply: bytes) -> bool:
    return reply[:2] == b"\x15\x03"


def _where(config: GlideConfig) -> str:
    return ", ".join(f"[{a.host}]:{a.port}" if ":" in a.host else f"{a.host}:{a.port}" for a in config.addresses)


def _without_password(config: GlideConfig, text: str) -> str:
    password = config.credentials.password if config.credentials is not None else None
    return text.replace(password, "***") if password and len(password) > 2 else text
