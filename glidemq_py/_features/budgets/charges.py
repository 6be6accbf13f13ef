"""Delivering what attempts have used to budgets of other queues: entries of kind ``budget`` in the outbox.

A charge is counted once for its mark, which follows from job and activation, so a repeated delivery changes nothing.
"""

from __future__ import annotations

from typing import Any

from glidemq_py._core import json_text as json
from glidemq_py._core.keys import split_budget_key
from glidemq_py._features.outbox.calls import OutboxEntry
from glidemq_py._features.usage.calls import Charge, charge_budget
from glidemq_py._job import QueueLink
from glidemq_py.errors import SerializationError

__all__ = ["deliver_charge"]


async def deliver_charge(link: QueueLink, entry: OutboxEntry) -> None:
    """Count what the entry says. A junk entry counts as delivered. Raises GlideMQError: it stays owed."""
    fields = entry.fields
    try:
        meta, flow_id = split_budget_key(fields["key"])
        usage: Any = json.loads(fields["usage"])
        tokens, costs, total_tokens, total_cost = usage
        charge: Charge = (dict(tokens), dict(costs), float(total_tokens), float(total_cost))
    except (ValueError, KeyError, TypeError, SerializationError):
        return
    mark = f"{link.keys.name}:{fields['id']}:{fields['activation']}"
    await link.transport.call(charge_budget(meta, flow_id, mark, fields["id"], charge))
