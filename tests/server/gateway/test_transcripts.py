"""Transcripts of clients and gateways: each case of a file in transcripts/ is a test. transcripts/README.md tells how
they are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway, hub
from glidemq_py.testing import RespClient
from tests.inside import hubs_of
from tests.server.gateway.conftest import Exchanges
from tests.server.gateway.script import Case, MismatchError, Reader, frame_of, resolved
from tests.server.gateway.test_webhooks import Receiver
from tests.server.gateway.wire import SocketWire, Wire, good
from tests.server.player import Player, Request, cases_of, play

FOLDER: Final = Path(__file__).with_name("transcripts")
PROMPT_FETCHES: Final = 3
"""Fetches, each right after the report of the one before, after which jobs are fetched ahead."""
REPORTED: Final = frozenset(("result", "error", "stack", "unrecoverable"))
"""Fields of `run` and `fail` that are those of the report; the others are those of the fetch."""


class GatewayPlayer(Player):
    """Sends requests over connections to two gateways."""

    limits = "glidemq_py.gateway."

    def __init__(self, url: str, stack: AsyncExitStack, *given: Any, other: Gateway, first: Gateway, **known: Any):
        super().__init__(*given, other=other, **known)
        self._url, self._stack = url, stack
        self._gateways = {"A": first, "B": other}
        self._wires: dict[str, Wire] = {}
        self._verbs |= {
            "begin": self._begin, "close": self._close, "ended": self._ended, "fail": self._run, "next": self._next,
            "raw": self._raw, "run": self._run, "start": self._start, "state": self._state, "stop": self._stop,
            "fetch": self._fetch, "complete": self._complete, "warm": self._warm, "listening": self._listening,
            "listen": self._listen, "received": self._received,
        }  # fmt: skip

    def port_of(self, connection: str) -> int | None:
        return self._gateways[connection[0]].http_port

    async def _wire(self, request: Request) -> Wire:
        if request.connection not in self._wires:
            gateway = self._gateways[request.connection[0]]
            queue = None if request.connection.endswith("0") else self._known["q"]
            wire = SocketWire(gateway, queue) if "W" in request.connection else Wire(gateway)
            self._wires[request.connection] = await self._stack.enter_async_context(wire)
        return self._wires[request.connection]

    async def _start(self, request: Request):
        """Start another gateway with some options."""
        options = resolved(dict(Reader(request.rest).pairs()[1]), self._known)
        gateway = Gateway(self._url, port=0, http_port=0, **options)
        self._gateways[request.connection] = await self._stack.enter_async_context(gateway)

    async def _stop(self, request: Request):
        """Close a gateway."""
        await self._gateways[request.connection].close()

    async def _raw(self, request: Request):
        """Send a frame with any content."""
        wire = await self._wire(request)
        await wire.put_raw(resolved(Reader(request.rest).value(), self._known))
        self._compare_answer(request, await wire.receive())

    async def _ended(self, request: Request):
        if not await (await self._wire(request)).is_closed():
            raise MismatchError("the connection is open")

    async def _answer(self, wire: Wire, frame: Mapping[str, Any]) -> dict[str, Any]:
        await wire.put(frame)
        return await wire.receive()

    async def _command(self, request: Request):
        frame = frame_of(f"{request.verb} {request.rest}", self._known)
        self._compare_answer(request, await self._answer(await self._wire(request), frame))

    async def _begin(self, request: Request):
        await (await self._wire(request)).put(frame_of(request.rest, self._known))

    async def _next(self, request: Request):
        frame = await (await self._wire(request)).receive()
        if "ok" not in frame:
            self._compare(request, frame)
        else:
            self._compare_answer(request, frame)

    async def _close(self, request: Request):
        await self._wires.pop(request.rest).close()

    async def _run(self, request: Request):
        """Fetch a job, and complete or fail it."""
        wire = await self._wire(request)
        fields = {"owner": "w", "timeout": 60_000, **frame_of(f"PULL {request.rest}", self._known)}
        report = {name: fields.pop(name) for name in REPORTED & fields.keys()}
        fetched = await self._answer(wire, fields)
        self._compare_answer(request, fetched)
        report |= {"id": fetched["job"]["id"], "token": fetched["token"]}
        ended = await wire.call("ACK" if request.verb == "run" else "FAIL", **report)
        self._compare_answer(request.changed(sign="", outcome=""), ended)

    async def _fetch(self, request: Request) -> list[Any]:
        """Fetch so many jobs, whose data are the answer; `$ids` and `$tokens` are theirs."""
        (count,), named = Reader(request.rest).pairs()
        wire, fields = await self._wire(request), {"timeout": 0, **dict(named)}
        pulled = await good(wire, "PULLB", queue=self._known["q"], count=count, owner="w", **fields)
        self._known |= {"ids": [job["id"] for job in pulled["jobs"]], "tokens": pulled["tokens"]}
        found = [job["data"] for job in pulled["jobs"]]
        self._compare(request, found)
        return found

    async def _complete(self, request: Request):
        """Complete the jobs of the last fetch."""
        await good(await self._wire(request), "ACKB", ids=self._known["ids"], tokens=self._known["tokens"])

    async def _warm(self, request: Request):
        """Add jobs; fetch and complete some until the next ones are prefetched. The answer is the data of all."""
        (count,), named = Reader(request.rest).pairs()
        jobs = [{"name": "x", "data": number} for number in range(dict(named).get("jobs", 100))]
        if jobs:
            await good(await self._wire(request), "PUSHB", queue=self._known["q"], jobs=jobs)
        done: list[Any] = []
        for _ in range(PROMPT_FETCHES + 1):
            done += await self._fetch(request.changed(rest=str(count), outcome=""))
            await self._complete(request)
        self._compare(request, done)

    async def _listening(self, request: Request):
        """Poll until the gateway hears messages, and the queue is known to be empty."""
        gateway, queue, loop = self._gateways[request.connection], self._known["q"], asyncio.get_running_loop()
        async with asyncio.timeout(60):
            while True:
                await good(await self._wire(request), "PULL", queue=queue)
                known = hubs_of(gateway)[queue]
                is_empty = known._empty_until > loop.time() + 10 and known._empty_looks >= hub.FIRST_LOOKS
                if known._channels.hears and is_empty:
                    return

    async def _listen(self, request: Request):
        """Start a receiver of webhooks that answers with this status."""
        receiver = self._known["hook"] = await self._stack.enter_async_context(Receiver())
        if request.rest:
            status = str(Reader(request.rest).value())
            receiver.answer = lambda _: status

    async def _received(self, request: Request):
        """Wait until so many webhooks were delivered; they are the answer."""
        self._compare(request, await self._known["hook"].wait_for_count(int(request.rest)))

    async def _state(self, request: Request):
        given = resolved(Reader(request.rest).value(), self._known)
        wire = await self._wire(request)
        states = [
            (await wire.call("GetState", id=each)).get("state")
            for each in (given if isinstance(given, list) else [given])
        ]
        self._compare(request, states if isinstance(given, list) else states[0])


@pytest.mark.parametrize(("path", "case", "count"), cases_of(FOLDER))
async def test_transcript(
    url: str, queue_name: str, caplog: pytest.LogCaptureFixture, resp: RespClient, monkeypatch: pytest.MonkeyPatch,
    exchanges: Exchanges, path: Path, case: Case, count: int,
):  # fmt: skip
    async with AsyncExitStack() as stack:
        first, other = [await stack.enter_async_context(Gateway(url, port=0, http_port=0)) for _ in range(2)]
        queue = await stack.enter_async_context(Queue(queue_name, url, partitions=count if count > 1 else None))
        known = {"q": queue_name, "queue": queue, "server": resp, "exchanges": exchanges}
        player = GatewayPlayer(url, stack, caplog, monkeypatch, first=first, other=other, **known)
        await play(player, path, case)
        await queue.obliterate(force=True)  # figures list a limited number of queues
