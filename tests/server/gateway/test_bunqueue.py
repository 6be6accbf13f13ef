"""Scripts of raw frames, HTTP requests and messages, in transcripts/bunqueue, against bunqueue and a gateway: the
answers differ only as the scripts state.
"""

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import httpx_ws
import pytest
from msgpack import ExtType

from glidemq_py.gateway import Gateway
from glidemq_py.gateway.commands import PROTOCOL
from tests.bench.bunqueue import BunqueuePackages
from tests.server.gateway.peer import bunqueue
from tests.server.gateway.script import frame_of, resolved, sent_request
from tests.server.gateway.wire import Wire

FOLDER = Path(__file__).with_name("transcripts") / "bunqueue"
UNTIL_2100 = 4_102_444_800_000
NOT_COMPARED = "not compared"
"""Figures of the whole server, and lists that have what other tests have added."""
OTHERS = {
    "ListQueues", "SubscribeEvents", "UnsubscribeEvents", "MoveToWaitingChildren", "UpdateParent", "RateLimitGroup",
}  # fmt: skip
"""Commands that the scripts of the npm client and other transcripts compare."""
VARIABLE = {
    *("backoff", "backoffConfig", "completedAt", "lastHeartbeat", "stacktrace", "timeline"),  # of jobs: see the table
    *("uptime", "version", "memory", "time", "timestamp", "clientId", "memoryUsageMb", "duration"),
}


@dataclass
class Line:
    """A request, and how the answers to it differ."""

    label: str
    request: str
    differences: list[str] = field(default_factory=list[str])


def read(name: str) -> list[Line]:
    lines: list[Line] = []
    for text in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if text.startswith("  "):
            lines[-1].differences.append(text.strip())
        elif text and not text.startswith("#"):
            label, _, request = text.partition(": ")
            lines.append(Line(label, request))
    return lines


FRAMES, REQUESTS, MESSAGES = read("frames.txt"), read("http.txt"), read("messages.txt")
Answers = dict[str, Any]
Play = Callable[[int, str], Any]


def names(queue: str) -> dict[str, Any]:
    stem = f"0190a000-0000-7000-8000-00000000{queue[-3:]}"
    return {"q": queue, "parent_id": f"{stem}1", "child_id": f"{stem}2"}


def remember(known: dict[str, Any], label: str, answer: Any):
    """Let the label stand for the token or the id of an answer."""
    if isinstance(answer, dict) and answer.get("ok"):
        found = answer.get("token") or answer.get("id") or (answer.get("data") or {}).get("webhookId")
        found = found or (answer.get("tokens") or answer.get("ids") or [None])[0]
        if isinstance(found, str):
            known["".join(letter if letter.isalnum() else "_" for letter in label)] = found


async def play_frames(port: int, queue: str) -> Answers:
    known, answers = names(queue), Answers()
    async with Wire(port) as wire:
        for line in FRAMES:
            answer = plain(await wire.call(**frame_of(line.request, known)))
            answers[line.label] = {name: _typed(each) if "token" in name else each for name, each in answer.items()}
            remember(known, line.label, answer)
    return answers


async def play_requests(port: int, queue: str) -> Answers:
    known, answers = names(queue), Answers()
    known["pull_with_owner"] = "none"  # bunqueue returns no token
    for line in REQUESTS:
        method, _, rest = line.request.partition(" ")
        status, answer = await asyncio.to_thread(sent_request, port, method, rest, known)
        answers[line.label] = {"status": status, "body": answer}
        remember(known, line.label, answer)
    return answers


async def play_messages(port: int, queue: str) -> Answers:
    known, found = {"q": queue}, Answers()
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        httpx_ws.aconnect_ws(f"/ws/queues/{queue}", client, session_class=httpx_ws.AsyncWebSocketSession) as session,
    ):
        for line in MESSAGES:
            events, _, message = line.request.partition(" events ")
            await session.send_text(str(resolved(message, known)))
            received = [json.loads(await session.receive_text(60)) for _ in range(1 + int(events))]
            (answer,) = [each for each in received if "ok" in each]
            job_id = answer.get("id") or (answer.get("job") or {}).get("id")
            known |= {"id": job_id} if job_id else {}
            if answer.get("token"):
                known["token"], answer["token"] = answer["token"], "<token>"
            found[line.label] = {**answer, "events": [each for each in received if "ok" not in each]}
    return found


def _typed(value: Any) -> Any:
    return [_typed(each) for each in value] if isinstance(value, list) else type(value).__name__


def plain(value: Any) -> Any:
    """Return a value without members that are undefined in JavaScript."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if not isinstance(each, ExtType)}
    return [plain(each) for each in value] if isinstance(value, list) else value


def differences(theirs: Any, ours: Any, path: str = "") -> list[str]:
    """Return what is missing or different in our answer; it may have more members."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found: list[str] = []
        for name, value in theirs.items():
            if name not in ours:
                found.append(f"{path}.{name} is missing")
            elif name not in VARIABLE:
                found += differences(value, ours[name], f"{path}.{name}")
        return found
    if isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            return [f"{path}: {len(theirs)} items, ours {len(ours)}"]
        return [each for pair in zip(theirs, ours, strict=True) for each in differences(*pair, f"{path}[]")]
    return [] if _shape(theirs) == _shape(ours) else [f"{path}: {_shape(theirs)!r}, ours {_shape(ours)!r}"]


def _shape(value: Any) -> Any:
    """Return what must be equal: not ids, tokens and times."""
    if isinstance(value, str) and len(value) >= 36 and value.count("-") >= 4:
        return value.partition(":")[0] if ":" in value else "<id>"
    return "<time>" if isinstance(value, int | float) and 1_700_000_000_000 < value < UNTIL_2100 else value


def test_each_command_is_compared():
    played = {line.request.split(" ")[0] for line in FRAMES} | OTHERS
    assert {name for group in PROTOCOL.values() for name in group} <= played


@pytest.mark.parametrize(
    ("lines", "play", "door"),
    [
        pytest.param(FRAMES, play_frames, 0, id="frames"),
        pytest.param(REQUESTS, play_requests, 1, id="requests", marks=pytest.mark.slow),
        pytest.param(MESSAGES, play_messages, 1, id="messages"),
    ],
)
async def test_answers(packages: BunqueuePackages, url: str, tmp_path: Path, lines: list[Line], play: Play, door: int):
    queue = f"bunqueue-{secrets.token_hex(6)}"
    async with bunqueue(packages, tmp_path) as ports:
        expected = await play(ports[door], queue)
    async with Gateway(url, port=0, http_port=0) as gateway:
        assert gateway.http_port is not None
        found = await play((gateway.port, gateway.http_port)[door], queue)
    different = {
        line.label: changes for line in lines
        if NOT_COMPARED not in line.differences
        and (changes := differences(expected[line.label], found[line.label])) != line.differences
    }  # fmt: skip
    assert different == {}


@pytest.mark.parametrize(
    ("theirs", "ours", "count"),
    [({"a": 1}, {"a": 1, "b": 2}, 0), ({"a": 1}, {}, 1), ([{"a": 1}], [{"a": 2}], 1), ([1], [], 1)],
)
def test_comparison(theirs: Any, ours: Any, count: int):
    assert len(differences(theirs, ours)) == count
