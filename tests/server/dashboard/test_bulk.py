"""Changes of all jobs of a filter: their progress, their end, and the process that continues them."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from glidemq_py import Queue
from glidemq_py.dashboard import app
from tests.inside import cleaning
from tests.operating import Access, job_actions
from tests.server.dashboard.support import FROM_HERE, browsing


class Gate:
    """Lets deleting jobs continue only when the test says so."""

    def __init__(self):
        self.reached, self.opened = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def pass_one(self):
        """Let one step continue, and wait until the next one has begun."""
        await self.reached.acquire()
        self.opened.release()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Stop before each step of at most fifty jobs, and show the progress at once."""
    made = Gate()

    async def gated(*arguments: Any) -> list[str]:
        made.reached.release()
        await made.opened.acquire()
        return await cleaning.delete_jobs(*arguments)

    monkeypatch.setattr("glidemq_py._operate.job_actions.delete_jobs", gated)
    monkeypatch.setattr(job_actions, "MAX_LISTED", 50)
    monkeypatch.setattr("glidemq_py._operate.stored_changes._WRITTEN_EVERY_S", 0)
    monkeypatch.setattr(app, "_BULK_S", 0.01)
    return made


async def begun(client: httpx.AsyncClient, queue: str) -> str:
    """Delete all jobs named "old" after the question; return the address of the page with the progress."""
    fields = {"change": "remove", "q": queue, "filter": "name:old", "of_filter": "1"}
    asked = await client.post("/change", data=fields, headers=FROM_HERE)
    count = re.findall(r'name="count" value="(\d+)"', asked.text)
    started = await client.post("/change", data={**fields, "count": count[0], "confirmed": "1"}, headers=FROM_HERE)
    assert started.status_code == 303
    assert started.headers["location"].startswith(f"/bulk?q={queue}&id=")
    return str(started.headers["location"])


async def steered(client: httpx.AsyncClient, address: str, do: str) -> httpx.Response:
    fields = dict(pair.split("=") for pair in address.partition("?")[2].split("&"))
    return await client.post("/bulk", data={**fields, "do": do}, headers=FROM_HERE)


async def until_shown(client: httpx.AsyncClient, address: str, text: str) -> str:
    async with asyncio.timeout(60):
        while True:
            found = (await client.get(address)).text
            if text in found:
                return found


async def filled(queue: Queue):
    await queue.add_bulk([(name, n) for n in range(170) for name in ("old", "new")])


async def test_progress_is_shown_and_the_change_is_stopped(queue: Queue, url: str, queue_name: str, gate: Gate):
    async with browsing(url, allow_changes=True) as client:
        await filled(queue)
        address = await begun(client, queue_name)
        text = (await client.get(address)).text
        assert "0 of 170 jobs, 0 %" in text
        assert '<progress max="1" value="0.0000"' in text
        assert 'value="continue"' not in text
        await gate.pass_one()
        text = await until_shown(
            client, address, "49 of 170 jobs, 28 %"
        )  # the last of a page is deleted after the next
        assert "Deleting jobs" in (await client.get("/audit")).text
        assert (await steered(client, address, "cancel")).status_code == 303
        await gate.pass_one()
        text = await until_shown(client, address, "then stopped")
        assert "99 jobs deleted, then stopped" in text
        assert 'action="bulk"' not in text
        assert (await queue.get_job_counts()).waiting == 340 - 99
        assert re.search(r"remove_jobs</td>.{0,200}>cancelled after 99<", (await client.get("/audit")).text)
        assert "Not finished" not in (await client.get("/audit")).text


@pytest.mark.slow
async def test_another_process_continues_a_change(queue: Queue, url: str, queue_name: str, gate: Gate):
    await filled(queue)
    async with browsing(url, allow_changes=True) as client:
        address = await begun(client, queue_name)
        await gate.pass_one()
        await gate.reached.acquire()  # the second step has begun
    async with browsing(url, allow_changes=True) as client:
        await until_shown(client, address, "49 of 170 jobs")
        text = await until_shown(client, address, ">interrupted<")  # after a second
        assert "Another one continues where it stopped" in text
        assert "Not finished" in (await client.get("/audit")).text
        for _ in range(10):
            gate.opened.release()
        assert (await steered(client, address, "continue")).status_code == 303
        await until_shown(client, address, "170 jobs deleted")
    assert [job.name async for job in queue.iter_jobs("waiting")] == ["new"] * 170


async def test_only_those_who_may_change_stop_a_change(queue: Queue, url: str, queue_name: str, gate: Gate):
    def authorize(request: Any) -> Access:
        return Access(queues=[request.headers.get("sees", "*")], actions=(), user="eve")

    async with browsing(url, allow_changes=True) as client:
        await filled(queue)
        address = await begun(client, queue_name)
        async with browsing(url, authorize=authorize, allow_changes=True) as other:
            text = (await other.get(address)).text
            assert "of 170 jobs" in text
            assert 'method="post"' not in text
            assert (await steered(other, address, "cancel")).status_code == 403
            assert (await other.get(address, headers={"sees": "none"})).status_code == 403
            assert "Not finished" not in (await other.get("/audit", headers={"sees": "none"})).text
        assert (await steered(client, address, "wait")).status_code == 400
        assert (await client.get(f"/bulk?q={queue_name}&id=none")).status_code == 404
        assert (await steered(client, f"bulk?q={queue_name}&id=none", "cancel")).status_code == 404
