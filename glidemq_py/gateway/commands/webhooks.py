"""Commands about webhooks."""

from __future__ import annotations

from typing import Final

from glidemq_py.gateway.addresses import check_url
from glidemq_py.gateway.names import engine_name, wire_name
from glidemq_py.gateway.session import Commands, Session
from glidemq_py.gateway.table import Answer, CommandError, Field, Given, Kind
from glidemq_py.gateway.webhook_events import prepare
from glidemq_py.gateway.webhook_registry import EVENTS, Webhook, check_secret
from glidemq_py.gateway.webhooks import DELIVERIES

COMMANDS: Final = Commands()

_MOST: Final = 1_000
_FOUND_BY: Final = Kind.ANY("webhookId")


@COMMANDS(
    "AddWebhook",
    "webhooks",
    "POST /webhooks",
    Field("url"),
    Kind.TEXTS("events", required=True),
    Field("queue", maximum=256),
    Field("secret"),
)
async def _add(session: Session, given: Given) -> Answer:
    """Post events of a queue, or of all queues, to a URL from now on, signed with the secret."""
    webhooks = session.state.webhooks
    url, events, secret = given["url"] or "", given["events"], given["secret"]
    check_url(url, webhooks.options.webhook_networks)
    unknown = [each for each in events if each not in EVENTS]
    if unknown:
        raise CommandError(f"Invalid webhook event(s): {', '.join(unknown)}. Valid: {', '.join(EVENTS)}")
    if secret is not None:
        check_secret(secret)
    name = _queue_of(given["queue"])
    if len(await webhooks.registry.all()) >= _MOST:
        raise CommandError(f"there are {_MOST} webhooks; remove one first")
    if name is not None:
        await prepare(await session.state.queue(name), events)
    now = await webhooks.registry.now()
    webhook_id = await webhooks.registry.add(
        Webhook(url=url, events=tuple(dict.fromkeys(events)), queue=name, secret=secret, created=now, since=now)
    )
    webhooks.changed()
    return {
        "data": {
            "webhookId": webhook_id, "url": url, "events": events, "queue": given["queue"] or None, "createdAt": now,
        }
    }  # fmt: skip


def _queue_of(name: str | None) -> str | None:
    found = engine_name(name) if name else None
    if found == DELIVERIES:
        raise CommandError(f"queue {DELIVERIES} has the messages of webhooks: its events are not sent")
    return found


@COMMANDS("RemoveWebhook", "webhooks", "DELETE /webhooks/{webhookId}", _FOUND_BY)
async def _remove(session: Session, given: Given) -> Answer:
    """Remove a webhook; it gets no more messages."""
    webhook_id, webhooks = given["webhookId"], session.state.webhooks
    if not isinstance(webhook_id, str) or not await webhooks.registry.remove(webhook_id):
        raise CommandError("Webhook not found")
    webhooks.changed()
    return {"data": {"removed": True}}


@COMMANDS("ListWebhooks", "webhooks", "GET /webhooks")
async def _list(session: Session, _: Given) -> Answer:
    """Return the webhooks and their figures, without the secrets."""
    found = await session.state.webhooks.registry.all()
    webhooks = [
        {
            "id": webhook_id, "url": webhook.url, "events": list(webhook.events),
            "queue": None if webhook.queue is None else wire_name(webhook.queue), "createdAt": webhook.created,
            "lastTriggered": figures.last, "successCount": figures.delivered, "failureCount": figures.failed,
            "enabled": webhook.enabled,
        }
        for webhook_id, (webhook, figures) in found.items()
    ]  # fmt: skip
    enabled = sum(webhook.enabled for webhook, _ in found.values())
    return {"data": {"webhooks": webhooks, "stats": {"total": len(webhooks), "enabled": enabled}}}


@COMMANDS(
    "SetWebhookEnabled", "webhooks", "PUT /webhooks/{id}/enabled", Kind.ANY("id"), Kind.FLAG("enabled", required=True)
)
async def _set_enabled(session: Session, given: Given) -> None:
    """Enable or disable a webhook; it gets the events from its enabling on."""
    webhook_id, webhooks = given["id"], session.state.webhooks
    if not isinstance(webhook_id, str) or not await webhooks.registry.enable(webhook_id, enabled=given["enabled"]):
        raise CommandError("Webhook not found")
    webhooks.changed()
