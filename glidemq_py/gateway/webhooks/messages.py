"""The messages that webhooks post about the events of a queue, and their signatures.

The signatures are bunqueue's header, and those of Standard Webhooks.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.queue_events import QueueEvent
from glidemq_py._core import json_text as json
from glidemq_py.errors import GlideMQError, SerializationError
from glidemq_py.gateway.events import result_of
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.table import CommandError

__all__ = ["Message", "check_secret", "event_name", "headers_of", "message_of"]

_NAMES: Final[Mapping[str, str]] = {
    "added": "job.pushed", "active": "job.started", "completed": "job.completed", "failed": "job.failed",
    "expired": "job.failed", "retrying": "job.failed", "progress": "job.progress",
}  # fmt: skip
_OF_QUEUE: Final = ("", "0")
_MOST_BYTES: Final = 450_000
"""Largest body: as a string in the data of a job, it may take twice as many bytes."""


class Message(NamedTuple):
    """The message about an event.

    Attributes:
        event: Its name for clients.
        job_id: Id of the job in this package.
        timestamp: Its time, epoch ms.
        entry: Id of its entry in the event stream.
        body: The body, JSON.
    """

    event: str
    job_id: str
    timestamp: int
    entry: str
    body: str

    def id_for(self, webhook_id: str, queue: str) -> str:
        """Return the id of its delivery to a webhook: the same each time the event is read."""
        return f"msg_{_digest(webhook_id, queue, self.entry)}"

    def order_for(self, webhook_id: str, queue: str) -> str:
        """Return the ordering key of its delivery: the messages about a job are delivered in order."""
        return _digest(webhook_id, queue, self.job_id)


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def event_name(event: QueueEvent) -> str | None:
    """Return the name of an event for clients; None if it is none of webhooks."""
    if event.job_id in _OF_QUEUE or (event.event == "active" and "started" not in event.fields):
        return None
    return _NAMES.get(event.event)


async def message_of(
    event: QueueEvent, queue: Queue[Any, Any], on_wire: Callable[[str, str], Awaitable[str]]
) -> Message | None:
    """Return the message about an event; None if webhooks get none.

    Args:
        event: The event.
        queue: Its queue, or partition.
        on_wire: Returns the id of a job on the wire.

    Raises:
        GlideMQError: If the server cannot be reached.
    """
    name = event_name(event)
    if name is None:
        return None
    content: dict[str, Any] = {
        "event": name, "timestamp": event.timestamp, "jobId": await on_wire(queue.name, event.job_id),
        "queue": wire_name(queue._shown_name),
    }  # fmt: skip
    if name == "job.completed":
        content["data"] = await result_of(queue, event)
    elif name == "job.progress":
        content["progress"] = _decoded(event.fields.get("data"))
    elif name == "job.failed":
        content["data"] = await _data(queue, event.job_id)
        content["error"] = event.fields.get("failedReason") or event.event
    body = _text(content)
    if body is None or len(body.encode("utf-8", "replace")) > _MOST_BYTES:
        content.pop("data", None)
        content.pop("progress", None)
        body = json.dumps({**content, "dataOmitted": True})
    return Message(name, event.job_id, event.timestamp, event.id, body)


async def _data(queue: Queue[Any, Any], job_id: str) -> Any:
    job = await queue.get_job(job_id)
    with contextlib.suppress(GlideMQError):  # data that cannot be decoded
        return None if job is None else job.data
    return None


def _text(content: Mapping[str, Any]) -> str | None:
    """Return the JSON text; None if a part of the content, such as bytes, has none."""
    try:
        return json.dumps(content)
    except SerializationError:
        return None


def _decoded(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text, "event")
    except SerializationError:
        return text


_PREFIX: Final = "whsec_"
_LEAST_KEY, _MOST_KEY = 16, 64
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
    if not _LEAST_KEY <= len(key) <= _MOST_KEY:
        raise CommandError(f"secret must have {_LEAST_KEY} to {_MOST_KEY} bytes in Base64 after {_PREFIX}")
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
