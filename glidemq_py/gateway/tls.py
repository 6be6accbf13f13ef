"""The certificate of a gateway, which is read again when its files change."""

from __future__ import annotations

import os
import ssl
from typing import Final

from glidemq_py._core.logs import get_logger
from glidemq_py.errors import GlideMQValidationError

__all__ = ["LOOK_S", "ServerCertificate"]

_log = get_logger(__name__)

LOOK_S: Final = 10.0
"""Interval of looking for changed files."""


class ServerCertificate:
    """A certificate chain and its key, in PEM files.

    Args:
        certificate: Path of the chain, that of the server first.
        key: Path of the key, without a password.

    Attributes:
        context: For a listening socket. New connections use the certificate that was read last.

    Raises:
        GlideMQValidationError: If the files cannot be read, or do not fit each other.
    """

    def __init__(self, certificate: str, key: str) -> None:
        self._certificate = certificate
        self._key = key
        self._changed_at = self._times()
        self.context = self._opened()

    def reload(self, *, always: bool = False) -> bool:
        """Read the files again if they have changed; return True if the certificate was replaced.

        Invalid files are logged, and the present certificate stays.
        """
        times = self._times()
        if times == self._changed_at and not always:
            return False
        self._changed_at = times
        try:
            self._opened()  # both files are complete and fit each other
            self.context.load_cert_chain(self._certificate, self._key, _no_password)
        except (GlideMQValidationError, OSError) as error:
            _log.error("gateway: the certificate was not replaced: %s", error)
            return False
        _log.info("gateway: read the certificate %s again", self._certificate)
        return True

    def _times(self) -> tuple[int, int]:
        return _time_of(self._certificate), _time_of(self._key)

    def _opened(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        for option, path in (("tls_cert", self._certificate), ("tls_key", self._key)):
            if not os.access(path, os.R_OK):
                raise GlideMQValidationError(option, path, "is not a readable file")
        try:
            context.load_cert_chain(self._certificate, self._key, _no_password)
        except (OSError, ValueError) as error:
            problem = f"is not a PEM certificate that fits the key {self._key!r}: {error}"
            raise GlideMQValidationError("tls_cert", self._certificate, problem) from None
        return context


def _no_password() -> str:
    """Let a key with a password be an error; otherwise OpenSSL would ask for it."""
    return ""


def _time_of(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
