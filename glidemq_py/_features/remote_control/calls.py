"""Server calls of remote control (``lua/features/remote_control/functions/control.lua``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader


@declared("control_workers_reply")
class Sent(NamedTuple):
    """Where a command was sent."""

    sent: list[str]
    """Workers that get it with their next heartbeat."""
    unknown: list[str]
    """Workers that are not registered."""


def control_workers(meta: str, command: str, workers: Sequence[str]) -> Call[Sent]:
    """Send a command to workers; to all if ``workers`` is empty."""
    return Call("control_workers", meta, requests.control_workers(command=command, workers=workers), reader(Sent))


def control_reply(meta: str, request: str, worker: str, text: str) -> Call[int]:
    """Store the answer of a worker for a minute."""
    arguments = requests.control_reply(request=request, worker=worker, text=text)
    return Call("control_reply", meta, arguments, int)


def control_replies(meta: str, request: str, workers: Sequence[str]) -> Call[list[str | None]]:
    """Return the answers of workers; None = none yet."""
    arguments = requests.control_replies(request=request, workers=workers)
    return Call("control_replies", meta, arguments, _texts)


def _texts(reply: list[bytes | None]) -> list[str | None]:
    return [None if each is None else each.decode("utf-8", "replace") for each in reply]
