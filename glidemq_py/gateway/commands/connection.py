"""Commands about the connection itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from glidemq_py.gateway.table import Answer, Command, CommandError, Field, Kind
from glidemq_py.gateway.values import UNDEFINED

if TYPE_CHECKING:
    from glidemq_py.gateway.session import Session

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


COMMANDS: Final = (
    Command("Hello", "connection", _hello, "Return the version of the protocol."),
    Command("Auth", "connection", _auth, "Authenticate the connection.", (Field("token", Kind.ANY),), is_public=True),
    Command("Ping", "connection", _ping, "Return the time of the gateway."),
)
