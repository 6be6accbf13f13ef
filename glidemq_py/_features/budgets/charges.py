"""Charging the budgets of other queues: delivery of the outbox entries of kind ``budget``.

A charge is counted once per mark, which is derived from job and activation. So repeated delivery is harmless.
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
    """Charge the usage of an outbox entry to its budget. A malformed entry counts as delivered.

    Raises:
        GlideMQError: the delivery failed; the entry stays in the outbox.
    """
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
