"""Commands that subscribe a connection to the events of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from glidemq_py.gateway.table import Answer, Command, Field, Kind
from glidemq_py.gateway.values import UNDEFINED

if TYPE_CHECKING:
    from glidemq_py.gateway.session import Session

__all__ = ["COMMANDS"]


async def _subscribe(session: Session, given: Mapping[str, Any]) -> Answer:
    await session.state.subscribe(session, given["queue"])
    return {"id": UNDEFINED}


async def _unsubscribe(session: Session, given: Mapping[str, Any]) -> Answer:
    session.state.unsubscribe(session)
    return {"id": UNDEFINED}


COMMANDS: Final = (
    Command(
        "SubscribeEvents", "events", _subscribe,
        "Send the events of a queue from now on; a connection has one subscription, which this replaces.",
        (Field("queue", Kind.QUEUE, required=True),),
    ),
    Command("UnsubscribeEvents", "events", _unsubscribe, "End the subscription.", (Field("queue", Kind.ANY),)),
)  # fmt: skip
