"""One script of messages over a WebSocket against bunqueue and a gateway: the answers differ only as documented."""

import json
import secrets
from pathlib import Path
from typing import Any

import httpx
import httpx_ws

from glidemq_py.gateway import Gateway
from tests.bench.bunqueue import BunqueuePackages
from tests.server.gateway.peer import bunqueue
from tests.server.gateway.test_http_transcript import differences

STEPS: tuple[tuple[str, str, int], ...] = (
    # label, message, number of events that it causes
    ("ping", '{"cmd": "Ping", "reqId": 7}', 0),
    ("hello", '{"cmd": "Hello", "reqId": "h"}', 0),
    ("no JSON", "{", 0),
    ("null", "null", 0),
    ("list", "[1]", 0),
    ("number", "1", 0),
    ("no command", "{}", 0),
    ("unknown command", '{"cmd": "Nope", "reqId": "a"}', 0),
    ("command of TCP", '{"cmd": "SubscribeEvents", "queue": "{q}", "reqId": "a"}', 0),
    ("push", '{"cmd": "PUSH", "queue": "{q}", "data": {"n": 1}, "priority": 1, "reqId": "p"}', 1),
    ("pull", '{"cmd": "PULL", "queue": "{q}", "owner": "me", "reqId": "q"}', 1),
    ("progress", '{"cmd": "Progress", "id": "{id}", "progress": 5, "message": "m"}', 1),
    ("ack", '{"cmd": "ACK", "id": "{id}", "token": "{token}", "result": {"r": 1}}', 1),
    ("pause", '{"cmd": "Pause", "queue": "{q}"}', 1),
    ("resume", '{"cmd": "Resume", "queue": "{q}"}', 1),
    ("subscribe", '{"cmd": "Subscribe", "events": ["job:completed", "job:*"], "reqId": "s"}', 0),
    ("subscribe to more", '{"cmd": "Subscribe", "events": ["queue:paused"], "reqId": "s"}', 0),
    ("no names", '{"cmd": "Subscribe", "events": [], "reqId": "s"}', 0),
    ("names that are no list", '{"cmd": "Subscribe", "events": "*", "reqId": "s"}', 0),
    ("bad names", '{"cmd": "Subscribe", "events": ["job:*", "bad", "*:*", "job:pulled", 5], "reqId": "s"}', 0),
    ("unsubscribe", '{"cmd": "Unsubscribe", "events": ["job:completed", "none"], "reqId": "u"}', 0),
    ("push again", '{"cmd": "PUSH", "queue": "{q}", "data": 1, "priority": 1, "maxAttempts": 1, "reqId": "p"}', 1),
    ("pull again", '{"cmd": "PULL", "queue": "{q}", "owner": "me", "reqId": "q"}', 1),
    ("progress again", '{"cmd": "Progress", "id": "{id}", "progress": 5}', 1),
    ("fail", '{"cmd": "FAIL", "id": "{id}", "token": "{token}", "error": "bad"}', 1),
    ("cancelled", '{"cmd": "PUSH", "queue": "{q}", "data": 1}', 1),
    ("cancel", '{"cmd": "Cancel", "id": "{id}"}', 1),
    ("pause again", '{"cmd": "Pause", "queue": "{q}"}', 2),
    ("unsubscribe from all", '{"cmd": "Unsubscribe", "reqId": "u"}', 0),
    ("push without events", '{"cmd": "PUSH", "queue": "{q}", "data": 1}', 0),
    ("drain", '{"cmd": "Drain", "queue": "{q}"}', 0),
)
DIFFERENCES = {"cancel": ["events[].data.prev is missing"]}
"""docs/learn/gateway.md, "Differences"."""


async def play(port: int, queue: str) -> dict[str, Any]:
    """Send the messages; return the answer and the events by step."""
    known, found = {"q": queue}, dict[str, Any]()
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        httpx_ws.aconnect_ws(f"/ws/queues/{queue}", client, session_class=httpx_ws.AsyncWebSocketSession) as session,
    ):
        for label, message, events in STEPS:
            for name, text in known.items():
                message = message.replace(f"{{{name}}}", text)
            await session.send_text(message)
            received = [json.loads(await session.receive_text(60)) for _ in range(1 + events)]
            answers = [each for each in received if "ok" in each]
            assert len(answers) == 1, (label, received)
            answer = answers[0]
            found[label] = answer, [each for each in received if "ok" not in each]
            job_id = answer.get("id") or (answer.get("job") or {}).get("id")
            known |= {"id": job_id} if job_id else {}
            if answer.get("token"):
                known["token"], answer["token"] = answer["token"], "<token>"
    return found


async def test_messages(packages: BunqueuePackages, url: str, tmp_path: Path) -> None:
    queue = f"ws-{secrets.token_hex(6)}"
    async with bunqueue(packages, tmp_path) as (_, port):
        expected = await play(port, queue)
    async with Gateway(url, port=0, http_port=0) as gateway:
        assert gateway.http_port is not None
        found = await play(gateway.http_port, queue)
    different: dict[str, list[str]] = {}
    for label, (answer, events) in expected.items():
        changes = differences(answer, found[label][0]) + differences(events, found[label][1], "events")
        if changes:
            different[label] = changes
    assert different == DIFFERENCES
