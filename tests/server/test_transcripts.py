"""Transcripts of `glidemq`, of the dashboard and of the proxy: each case of a file in transcripts/ is a test."""

from __future__ import annotations

import asyncio
import html
import re
import shlex
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from glidemq_py import Broadcast, FlowProducer, Job, Queue, Worker, list_queues
from glidemq_py.proxy import dead_letters
from glidemq_py.testing import RespClient
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.server.broadcast_support import fill
from tests.server.cli_support import Shell
from tests.server.dashboard.support import FROM_HERE, Elements, browsing
from tests.server.gateway.script import Case, Reader, resolved
from tests.server.player import Player, Request, cases_of, play
from tests.server.proxy.support import running_proxy

FOLDER: Final = Path(__file__).with_name("transcripts")
pytest.importorskip("typer", reason="needs the extra `cli`")


async def handle(job: Job) -> Any:
    """Do what the data of a job say, in their order."""
    told = job.data if isinstance(job.data, dict) else {}
    for kind, value in told.items():
        if kind == "log":
            await job.log(value)
        elif kind == "progress":
            await job.update_progress(value)
        elif kind == "stream":
            await job.stream(value)
        elif kind == "usage":
            await job.report_usage(**value)
        elif kind == "signal":
            return (await job.wait_for_signal(value)).data
        elif kind == "suspend" and not job.signals:
            job.suspend(**value)
        elif kind == "fail":
            raise ValueError(value)
        elif kind == "result":
            return value
    return [[each.name, each.data] for each in job.signals] or None


class OperatorPlayer(Player):
    """Runs commands, sends requests to a proxy, and runs the jobs of queues."""

    def __init__(self, shell: Shell, port: int, *given: Any, **known: Any):
        super().__init__(*given, **known)
        self._url, self._shell, self._port = known["url"], shell, port
        self.stack = ExitStack()
        self._verbs |= {
            "$": self._run, "y$": self._run, "n$": self._run, "work": self._work, "four": self._four,
            "news": self._news, "look": self._look, "change": self._change,
        }  # fmt: skip

    def port_of(self, connection: str) -> int | None:
        return self._port

    async def _look(self, request: Request):
        """Look at a page of the dashboard."""
        (path, *_), named = Reader(request.rest).pairs()
        async with self._browsing(request) as client:
            given = {"q": self._known["q"], **resolved(dict(named), self._known)}
            self._compare_page(request, await client.get(f"/{resolved(path, self._known)}", params=given), 200)

    async def _change(self, request: Request):
        """Send a form of the dashboard, and follow it to the next page."""
        (kind, *_), named = Reader(request.rest).pairs()
        async with self._browsing(request) as client:
            form = {"change": resolved(kind, self._known), "q": self._known["q"], **resolved(dict(named), self._known)}
            sent = await client.post("/change", data=form, headers=FROM_HERE)
            page = await client.get(sent.headers["location"]) if sent.status_code == 303 else sent
            page.status_code = sent.status_code
            self._compare_page(request, page, 303)

    def _browsing(self, request: Request) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        return browsing(self._url, allow_changes=request.connection == "A", **self._known.get("options", {}))

    def _compare_page(self, request: Request, page: httpx.Response, status: int):
        request = request.after_status("status", page.status_code, 400 if request.sign == "!" else status)
        found = Elements(page.text)
        text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page.text)).split())
        if request.sign == "!":
            self._compare_answer(request, {"ok": False, "error": text})
            return
        fields = [[each["name"], each.get("value")] for _, each in found.found if "name" in each]
        self._compare(
            request,
            {
                "html": page.text, "text": text, "ids": found.ids(), "links": found.links(), "fields": fields,
                "options": [each.get("value") for tag, each in found.found if tag == "option"],
                "buttons": re.findall(r'<button name="change" value="(\w+)"', page.text),
                "items": re.findall(r'<li class="\w+">(\w+)', page.text),
            },
        )  # fmt: skip

    async def _run(self, request: Request):
        """Run a command; its outcome is what it prints as JSON, or else `out`, `err`, and `words` by line."""
        argv = shlex.split(str(resolved(request.rest.replace(" @", " $q"), self._known)))
        typed = None if request.verb == "$" else f"{request.verb[0]}\n"
        done = await asyncio.to_thread(self._shell, *argv, typed=typed)
        request = request.after_status("exit code", done.code, 1 if request.sign == "!" else 0)
        out, err = done.out.removesuffix("\n"), done.err.removesuffix("\n")
        if request.sign == "!":
            self._compare(request.changed(outcome='""'), out)
            self._compare_answer(request, {"ok": False, "error": err})
        elif "--json" in argv:
            self._compare(request, done.json())
        else:
            self._compare(request, {"out": out, "err": err, "words": [line.split() for line in done.lines]})

    async def _work(self, request: Request):
        """Run the ready jobs of queues, with options of the worker."""
        names, options = Reader(request.rest).pairs()
        for name in resolved(names, self._known) or [self._known["q"]]:
            ended = asyncio.Semaphore(0)
            given = resolved(dict(options), self._known)
            worker = Worker(name, handle, self._url, log_failures=False, **given)
            for event in ("completed", "failed", "suspended"):
                worker.on(event, lambda *_, ended=ended: ended.release())
            async with Queue(name, self._url) as queue, worker, asyncio.timeout(100):
                while (counts := await queue.get_job_counts()).waiting + counts.prioritized + counts.active:
                    await ended.acquire()

    async def _four(self, request: Request):
        """Add four jobs, of which each second one fails."""
        rows: list[tuple[str, dict[str, Any]]] = []
        for n in range(4):
            told = {"n": n, "tenant": "a" if n < 2 else "b", "log": f"number {n}"}
            end = {"fail": f"number {n} is odd\n\x1b[31mred"} if n % 2 else {"result": {"twice": n * 2}}
            rows.append(("odd" if n % 2 else "even", told | end))
        await self._known["queue"].add_bulk(rows)

    async def _news(self, _: Request):
        """Make the queue a broadcast with three messages, and a dead letter of each of two subscriptions."""
        await fill(self._url, self._known["q"])


@pytest.fixture(scope="module")
def proxy_port(server: GlideMQServer) -> Iterator[int]:
    with running_proxy(server.url, keep_alive=200) as (client, _):
        assert client.base_url.port is not None
        yield client.base_url.port


async def play_for_operators(
    url: str,
    queue_name: str,
    path: Path,
    case: Case,
    count: int,
    *given: Any,
    shell: Any,
    port: int,
    player: type[OperatorPlayer] = OperatorPlayer,
    **known: Any,
):
    """Play a case with a queue of that many partitions."""
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(Queue(queue_name, url, partitions=count if count > 1 else None))
        flows = await stack.enter_async_context(FlowProducer(url))
        broadcast = Broadcast(queue_name, url)
        stack.push_async_callback(broadcast.close)
        known |= {"q": queue_name, "queue": queue, "flows": flows, "broadcast": broadcast, "url": url}
        playing = player(shell, port, *given, **known)
        with playing.stack:
            await play(playing, path, case)
        for name in await list_queues(url):  # overviews list a limited number of queues
            if name.startswith(queue_name):
                async with Queue(name, url) as used:
                    await used.obliterate(force=True)


CASES: Final = [case for name in ("commands", "dashboard", "proxy") for case in cases_of(FOLDER / name)]


@pytest.mark.parametrize(("path", "case", "count"), CASES)
async def test_transcript(
    url: str, queue_name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], resp: RespClient,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, proxy_port: int, path: Path, case: Case, count: int,
):  # fmt: skip
    if path.stem == "backups":
        pytest.importorskip("obstore")
    monkeypatch.chdir(tmp_path)
    await play_for_operators(
        url, queue_name, path, case, count, caplog, monkeypatch, shell=Shell(url, capfd, monkeypatch), port=proxy_port,
        server=resp, kept=tmp_path / "kept", most_replayed=dead_letters._DEFAULT_REPLAYED,
    )  # fmt: skip
