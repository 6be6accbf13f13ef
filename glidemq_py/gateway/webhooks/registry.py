"""The webhooks that clients have registered, in Valkey: all gateways see them.

The hash `<prefix>:gateway:webhooks` has per webhook the fields `w:<id>` (JSON), `ok:<id>` and `failed:<id>`
(deliveries), `last:<id>` (time of the last attempt), and `dead:<id>` (time of an attempt without an answer).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from glidemq_py._client.transport import Transport
from glidemq_py._core import json_text as json
from glidemq_py._partitions.link import server_time
from glidemq_py.errors import SerializationError
from glidemq_py.gateway.job_ids import IdMaker

__all__ = ["EVENTS", "Figures", "Webhook", "WebhookRegistry"]

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
        found = await self._transport.command("HGET", self._key, _REVISION)
        return 0 if found is None else _number(found.decode("utf-8", "replace")) or 0

    async def get(self, webhook_id: str) -> Webhook | None:
        """Return a webhook; None if it does not exist."""
        text = await self._transport.command("HGET", self._key, f"w:{webhook_id}")
        return None if text is None else _webhook(text.decode("utf-8", "replace"))

    async def remove(self, webhook_id: str) -> bool:
        """Remove a webhook; return False if it does not exist."""
        removed = await self._transport.command("HDEL", self._key, f"w:{webhook_id}")
        await self._transport.command("HINCRBY", self._key, _REVISION, "1")
        await self._transport.command("HDEL", self._key, *(f"{name}:{webhook_id}" for name in _COUNTERS))
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
        pairs: dict[bytes, bytes] = await self._transport.command("HGETALL", self._key) or {}
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
        await self._transport.command("HSET", self._key, f"last:{webhook_id}", str(await self.now()))
        if ended is not None:
            await self._transport.command("HINCRBY", self._key, f"{ended}:{webhook_id}", "1")

    async def note_dead(self, webhook_id: str) -> None:
        """Note that a receiver does not answer."""
        await self._transport.command("HSET", self._key, f"dead:{webhook_id}", str(await self.now()))

    async def dead(self, webhook_ids: Iterable[str]) -> set[str]:
        """Return those webhooks whose receivers did not answer in the last minute."""
        ids = list(webhook_ids)
        found = await self._transport.command("HMGET", self._key, *(f"dead:{each}" for each in ids))
        times = [0 if each is None else _number(each.decode("utf-8", "replace")) or 0 for each in found]
        if not any(times):
            return set()
        since = await self.now() - _DEAD_MS
        return {webhook_id for webhook_id, noted in zip(ids, times, strict=True) if noted > since}

    async def forget_figures(self, known: Iterable[str]) -> None:
        """Remove figures of webhooks that were removed meanwhile."""
        names = {name.decode("utf-8", "replace") for name in await self._transport.command("HKEYS", self._key)}
        kept = set(known)
        names.discard(_REVISION)
        stale = [name for name in names if not name.startswith("w:") and name.partition(":")[2] not in kept]
        if stale:
            await self._transport.command("HDEL", self._key, *stale)

    async def _write(self, webhook_id: str, webhook: Webhook) -> None:
        await self._transport.command("HSET", self._key, f"w:{webhook_id}", json.dumps(asdict(webhook)))
        await self._transport.command("HINCRBY", self._key, _REVISION, "1")


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
