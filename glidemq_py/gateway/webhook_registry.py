"""The webhooks that clients have registered, and the messages that they post about the events of a queue.

The hash `<prefix>:gateway:webhooks` has per webhook the fields `w:<id>` (JSON), `ok:<id>` and `failed:<id>`
(deliveries), `last:<id>` (time of the last attempt), and `dead:<id>` (time of an attempt without an answer): all
gateways see them. Messages are signed with bunqueue's header, and those of Standard Webhooks.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from glidemq_py._api.queue_events import QueueEvent
from glidemq_py._client.transport import Transport
from glidemq_py._core import json_text as json
from glidemq_py._partitions.link import server_time
from glidemq_py.errors import SerializationError
from glidemq_py.gateway.events import WireEvents
from glidemq_py.gateway.job_ids import IdMaker
from glidemq_py.gateway.table import CommandError

NAMES: Final[Mapping[str, str]] = {
    "added": "job.pushed", "active": "job.started", "completed": "job.completed", "failed": "job.failed",
    "expired": "job.failed", "retrying": "job.failed", "progress": "job.progress",
}  # fmt: skip
"""Names of the events for clients."""
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


async def message_of(event: QueueEvent, wire: WireEvents) -> Message | None:
    """Return the message about an event whose name is in `NAMES`; None if webhooks get none.

    Args:
        event: The event.
        wire: Converts the events of its queue, or partition.

    Raises:
        GlideMQError: If the server cannot be reached.
    """
    found = await wire.of(event)
    if not found:
        return None
    name, members = NAMES[event.event], ("progress",) if "progress" in found[0] else ("data", "error")
    content: dict[str, Any] = {"event": name}
    content |= {each: found[0][each] for each in ("timestamp", "jobId", "queue", *members) if each in found[0]}
    body = _text(content)
    if body is None or len(body.encode("utf-8", "replace")) > _MOST_BYTES:
        content.pop("data", None)
        content.pop("progress", None)
        body = json.dumps({**content, "dataOmitted": True})
    return Message(name, event.job_id, event.timestamp, event.id, body)


def _text(content: Mapping[str, Any]) -> str | None:
    """Return the JSON text; None if a part of the content, such as bytes, has none."""
    try:
        return json.dumps(content)
    except SerializationError:
        return None


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


EVENTS: Final = ("job.pushed", "job.started", "job.completed", "job.failed", "job.progress")
_COUNTERS: Final = ("ok", "failed", "last", "dead")
_DEAD_MS: Final = 60_000
"""How long a receiver counts as one that does not answer."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook.

    Attributes:
        url: Where its events are posted.
        events: Their names.
        queue: Name of the queue in this package; None = every queue.
        secret: The secret of its signatures, or None.
        created: Time of its registration, server time in epoch ms.
        since: The time from which events are delivered: it was registered or enabled.
        enabled: If False, events are not delivered.
    """

    url: str
    events: tuple[str, ...]
    queue: str | None
    secret: str | None
    created: int
    since: int
    enabled: bool = True


_MAX_TIME: Final = 2**53
_REVISION: Final = "revision"


@dataclass(slots=True)
class Figures:
    """The figures of a webhook.

    Attributes:
        delivered: Number of deliveries.
        failed: Number of deliveries that failed after all attempts.
        last: Time of the last attempt, epoch ms; None = there was none.
    """

    delivered: int = 0
    failed: int = 0
    last: int | None = None


class WebhookRegistry:
    """Reads and changes the webhooks of a prefix.

    Args:
        transport: Connection to the server of the queues.
        prefix: First part of every key.
    """

    def __init__(self, transport: Transport, prefix: str) -> None:
        self._transport = transport
        self._key = f"{prefix}:gateway:webhooks"
        self._maker = IdMaker()

    async def _call(self, command: str, *rest: str) -> Any:
        """Return the reply to a command about the hash."""
        return await self._transport.command(command, self._key, *rest)

    async def now(self) -> int:
        """Return the time of the server, epoch ms."""
        return await server_time(self._transport)

    async def add(self, webhook: Webhook) -> str:
        """Store a webhook, and return its id."""
        webhook_id = self._maker.make(0)
        await self._write(webhook_id, webhook)
        return webhook_id

    async def revision(self) -> int:
        """Return how often webhooks were changed. A webhook counts from the answer to its command on."""
        found = await self._call("HGET", _REVISION)
        return 0 if found is None else _number(found.decode("utf-8", "replace")) or 0

    async def get(self, webhook_id: str) -> Webhook | None:
        """Return a webhook; None if it does not exist."""
        text = await self._call("HGET", f"w:{webhook_id}")
        return None if text is None else _webhook(text.decode("utf-8", "replace"))

    async def remove(self, webhook_id: str) -> bool:
        """Remove a webhook; return False if it does not exist."""
        removed = await self._call("HDEL", f"w:{webhook_id}")
        await self._call("HINCRBY", _REVISION, "1")
        await self._call("HDEL", *(f"{name}:{webhook_id}" for name in _COUNTERS))
        return bool(removed)

    async def enable(self, webhook_id: str, *, enabled: bool) -> bool:
        """Enable or disable a webhook; return False if it does not exist."""
        found = await self.get(webhook_id)
        if found is None:
            return False
        since = await self.now() if enabled and not found.enabled else found.since
        await self._write(webhook_id, replace(found, enabled=enabled, since=since))
        return True

    async def all(self) -> dict[str, tuple[Webhook, Figures]]:
        """Return the webhooks with their figures by id, in the order of their registration."""
        pairs: dict[bytes, bytes] = await self._call("HGETALL") or {}
        fields = {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in pairs.items()}
        found: dict[str, tuple[Webhook, Figures]] = {}
        for name in sorted(fields):
            kind, _, webhook_id = name.partition(":")
            webhook = _webhook(fields[name]) if kind == "w" else None
            if webhook is not None:
                numbers = [_number(fields.get(f"{each}:{webhook_id}")) for each in _COUNTERS]
                found[webhook_id] = (webhook, Figures(numbers[0] or 0, numbers[1] or 0, numbers[2]))
        return found

    async def count(self, webhook_id: str, *, ended: str | None) -> None:
        """Count an attempt: ``ended`` is "ok", "failed" (it was the last one), or None (it is repeated)."""
        await self._call("HSET", f"last:{webhook_id}", str(await self.now()))
        if ended is not None:
            await self._call("HINCRBY", f"{ended}:{webhook_id}", "1")

    async def note_dead(self, webhook_id: str) -> None:
        """Note that a receiver does not answer."""
        await self._call("HSET", f"dead:{webhook_id}", str(await self.now()))

    async def dead(self, webhook_ids: Iterable[str]) -> set[str]:
        """Return those webhooks whose receivers did not answer in the last minute."""
        ids = list(webhook_ids)
        found = await self._call("HMGET", *(f"dead:{each}" for each in ids))
        times = [0 if each is None else _number(each.decode("utf-8", "replace")) or 0 for each in found]
        if not any(times):
            return set()
        since = await self.now() - _DEAD_MS
        return {webhook_id for webhook_id, noted in zip(ids, times, strict=True) if noted > since}

    async def forget_figures(self, known: Iterable[str]) -> None:
        """Remove figures of webhooks that were removed meanwhile."""
        names = {name.decode("utf-8", "replace") for name in await self._call("HKEYS")}
        kept = set(known)
        names.discard(_REVISION)
        stale = [name for name in names if not name.startswith("w:") and name.partition(":")[2] not in kept]
        if stale:
            await self._call("HDEL", *stale)

    async def _write(self, webhook_id: str, webhook: Webhook) -> None:
        await self._call("HSET", f"w:{webhook_id}", json.dumps(asdict(webhook)))
        await self._call("HINCRBY", _REVISION, "1")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) <= 15 else None


def _time(stored: Any) -> int:
    """Return a stored time.

    Raises:
        ValueError: If it is none.
    """
    if isinstance(stored, bool) or not isinstance(stored, int | float) or not 0 <= stored < _MAX_TIME:
        raise ValueError(stored)
    return int(stored)


def _webhook(text: str) -> Webhook | None:
    """Return a stored webhook; None if it is ill-formed."""
    try:
        given: Any = json.loads(text, "webhook")
        queue, secret = given["queue"], given["secret"]
        return Webhook(
            url=str(given["url"]), events=tuple(str(each) for each in given["events"]),
            queue=None if queue is None else str(queue), secret=None if secret is None else str(secret),
            created=_time(given["created"]), since=_time(given["since"]), enabled=given["enabled"] is True,
        )  # fmt: skip
    except (SerializationError, TypeError, KeyError, ValueError):
        return None
