"""Commands about the connection itself, and its subscription to the events of a queue."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from glidemq_py.gateway.session import Command, Session
from glidemq_py.gateway.table import Answer, CommandError, Field, Kind
from glidemq_py.gateway.values import UNDEFINED

__all__ = ["COMMANDS"]

PROTOCOL_VERSION: Final = 3
CAPABILITIES: Final = ("pipelining", "separate-job-name")


async def _hello(session: Session, _: Mapping[str, Any]) -> Answer:
    return {
        "protocolVersion": PROTOCOL_VERSION, "capabilities": [*CAPABILITIES], "server": "bunqueue",
        "version": session.state.version,
    }  # fmt: skip


async def _auth(session: Session, given: Mapping[str, Any]) -> Answer:
    token = given["token"]
    if not session.authenticate(token if isinstance(token, str) else ""):
        raise CommandError("Invalid token")
    return {"id": UNDEFINED}


async def _ping(_: Session, __: Mapping[str, Any]) -> Answer:
    return {"data": {"pong": True, "time": int(time.time() * 1_000)}}


async def _subscribe(session: Session, given: Mapping[str, Any]) -> Answer:
    await session.state.subscribe(session.notify, given["queue"])
    return {"id": UNDEFINED}


async def _unsubscribe(session: Session, given: Mapping[str, Any]) -> Answer:
    session.state.unsubscribe(session.notify)
    return {"id": UNDEFINED}


COMMANDS: Final = (
    Command("Hello", "connection", _hello, "Return the version of the protocol."),
    Command("Auth", "connection", _auth, "Authenticate the connection.", (Field("token", Kind.ANY),), is_public=True),
    Command("Ping", "connection", _ping, "Return the time of the gateway."),
    Command(
        "SubscribeEvents", "events", _subscribe,
        "Send the events of a queue from now on; a connection has one subscription, which this replaces.",
        (Field("queue", Kind.QUEUE, required=True),),
    ),
    Command("UnsubscribeEvents", "events", _unsubscribe, "End the subscription.", (Field("queue", Kind.ANY),)),
)  # fmt: skip
