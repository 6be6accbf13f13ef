"""Convert the TLS options of a connection to GLIDE's. Reads and checks PEM files, for clear error messages."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, Final

from glide_shared.config import TlsAdvancedConfiguration

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.errors.base import SECRET

__all__ = ["tls_configuration"]

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
