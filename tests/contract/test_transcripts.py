"""Transcripts of the public API: each case of a file in transcripts/ is a test for every kind of queue.

transcripts/README.md tells how they are read.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import glidemq_py
from glidemq_py import GlideMQError
from tests.contract.api import FlowProducer, Lease, Queue
from tests.contract.observe import Clockwork, Raw, SetClock
from tests.inside import run_failure_policies
from tests.server.gateway.script import Case, Reader, look_up, read_cases, resolved
from tests.server.player import Player, Request, play

FOLDER = Path(__file__).with_name("transcripts")


class ApiPlayer(Player):
    """Calls methods: ``queue.add n 1 priority=3 -> priority=3``. The error of ``!`` begins with its type."""

    def __init__(self, url: Any, stack: AsyncExitStack, *given: Any, **known: Any):
        super().__init__(*given, **known)
        self._url, self._stack = url, stack
        self._verbs |= {
            "open": self._open,
            "started": self._started,
            "enter": self._enter,
            "leave": self._leave,
            "policies": self._policies,
        }
        self._blocks: list[Any] = []

    async def _command(self, request: Request):
        await self._call(request, look_up(self._known, request.verb.removeprefix("$")), GlideMQError)

    async def _open(self, request: Request):
        """Open another queue: its name here, that on the server, and its options."""
        (here, name), options = Reader(request.rest).pairs()
        queue = Queue(resolved(name, self._known), self._url, **resolved(dict(options), self._known))
        self._known[here] = await self._stack.enter_async_context(queue)

    async def _started(self, request: Request):
        """Fetch and complete all ready jobs, so many at a time; the answer is their data."""
        data: list[Any] = []
        while leases := await self._known["queue"].fetch(int(request.rest or 1)):
            data += [lease.job.data for lease in leases]
            await self._known["queue"].leases.complete([(lease, None) for lease in leases])
        self._compare(request, data)

    async def _policies(self, request: Request):
        """Let a worker's task execute the failure policy."""
        async with glidemq_py.Queue(self._known["q"], self._url) as served:
            await run_failure_policies(served)

    async def _enter(self, request: Request):
        """Enter the block of what a method returns; the answer is its value."""
        self._blocks.append(look_up(self._known, request.rest)())
        self._compare(request, await self._blocks[-1].__aenter__())

    async def _leave(self, request: Request):
        """Leave the last block that was entered."""
        await self._blocks.pop().__aexit__(None, None, None)


def cases_of(folder: Path) -> list[Any]:
    """Return parameters for a test of each case."""
    return [
        pytest.param(path, case, id=f"{path.stem}: {case.title}", marks=[
            *(pytest.mark.exclude(*names.split(), reason=reason) for names, reason in case.excluded),
            *([pytest.mark.slow] if case.is_slow else []),
        ])
        for path in sorted(folder.glob("*.txt")) for case in read_cases(path)
    ]  # fmt: skip


async def play_case(
    path: Path, case: Case, url: Any, queue: Queue, raw: Raw, flows: FlowProducer, *given: Any, **known: Any
):
    async with AsyncExitStack() as stack:
        known |= {"q": queue.name, "queue": queue, "raw": raw, "flows": flows, "Lease": Lease}
        await play(ApiPlayer(url, stack, *given, **known), path, case)


@pytest.mark.parametrize(("path", "case"), cases_of(FOLDER))
async def test_transcript(
    url: Any, queue: Queue, raw: Raw, flows: FlowProducer, parts: int, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, path: Path, case: Case,
):  # fmt: skip
    await play_case(path, case, url, queue, raw, flows, caplog, monkeypatch, parts=parts)


@pytest.mark.parametrize(("path", "case"), cases_of(FOLDER / "clock"))
async def test_transcript_with_a_clock(
    clock: SetClock, url: Any, queue: Queue, raw: Raw, flows: FlowProducer, parts: int,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, path: Path, case: Case,
):  # fmt: skip
    await play_case(path, case, url, queue, raw, flows, caplog, monkeypatch, parts=parts, clock=clock)


@pytest.mark.parametrize(("path", "case"), cases_of(FOLDER / "schedulers"))
async def test_transcript_of_schedulers(
    clockwork: Clockwork, url: Any, queue: Queue, raw: Raw, flows: FlowProducer, parts: int,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, path: Path, case: Case,
):  # fmt: skip
    await play_case(path, case, url, queue, raw, flows, caplog, monkeypatch, parts=parts, clock=clockwork)
