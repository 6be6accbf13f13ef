"""Signatures of webhooks: bunqueue's header, and those of Standard Webhooks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

from glidemq_py.gateway.table import CommandError

__all__ = ["check_secret", "headers_of"]

_PREFIX: Final = "whsec_"
_LEAST_BYTES, _MOST_BYTES = 16, 64
_MOST_CHARS: Final = 256


def check_secret(secret: str) -> str:
    """Return the secret.

    Raises:
        CommandError: If it is too long, is not Unicode text, or starts with ``whsec_`` and is not Base64.
    """
    if not secret or len(secret) > _MOST_CHARS:
        raise CommandError(f"secret must have 1 to {_MOST_CHARS} characters")
    try:
        _key(secret)
    except UnicodeEncodeError:  # half of a pair, which JSON can express
        raise CommandError("secret must be Unicode text") from None
    return secret


def _key(secret: str) -> bytes:
    """Return the key of Standard Webhooks: decoded Base64 after ``whsec_``, else the secret itself."""
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        key = base64.b64decode(secret[len(_PREFIX) :], validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise CommandError(f"secret must have {_LEAST_BYTES} to {_MOST_BYTES} bytes in Base64 after {_PREFIX}")
    return key


def headers_of(message: str, event: str, event_ms: int, now_s: int, body: bytes, secret: str | None) -> dict[str, str]:
    """Return the headers of a delivery.

    Args:
        message: Id of the delivery; the same for each attempt.
        event: Name of the event.
        event_ms: Time of the event, epoch ms.
        now_s: Time of the attempt, epoch seconds.
        body: The body.
        secret: The secret of the webhook, or None: there is no signature.
    """
    found = {
        "X-Webhook-Event": event, "X-Webhook-Timestamp": str(event_ms), "webhook-id": message,
        "webhook-timestamp": str(now_s),
    }  # fmt: skip
    if secret is not None:
        found["X-Webhook-Signature"] = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        signed = hmac.digest(_key(secret), f"{message}.{now_s}.".encode() + body, "sha256")
        found["webhook-signature"] = f"v1,{base64.b64encode(signed).decode()}"
    return found
