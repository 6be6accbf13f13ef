"""The pages about all queues."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py.dashboard import Access, all_queues
from tests.server.dashboard.support import Elements, browsing
from tests.server.dashboard.test_pages import page, posted, run_all


def row_with(text: str, words: str) -> str:
    """Return the row of a table that contains these words."""
    return next((row for row in re.findall(r"<tr[ >].*?</tr>", text, re.DOTALL) if words in row), "")


async def test_failures_of_all_queues_are_grouped_by_error(url: str, queue_name: str):
    for at in range(2):
        async with Queue(f"{queue_name}-{at}", url) as queue:
            await queue.add_bulk([("bad", n) for n in range(at + 1)])
            await run_all(url, queue.name, at + 1)
    async with browsing(url) as client:
        row = row_with(await page(client, "all-failures"), f"{queue_name}-1")
    for at in range(2):
        assert re.search(rf'q={queue_name}-{at}">{queue_name}-{at}</a> <span class="soft">{at + 1}</span>', row)


async def test_jobs_that_wait_are_decided(queue: Queue, url: str, queue_name: str):
    """Those with a timeout are delayed until it ends."""

    async def handler(job: Job) -> object:
        named, timeout = ("weight", None) if job.name == "parcel" else ("approve", 3_600_000)
        return (await job.wait_for_signal(named, timeout=timeout)).name

    article, parcel = await queue.add("article"), await queue.add("parcel")
    await queue.add("later", delay=3_600_000)
    async with Worker(queue_name, handler, url), browsing(url, allow_changes=True, refresh_interval=250) as client:
        async with asyncio.timeout(100):
            while "approve" not in (text := await page(client, "decisions")):  # noqa: ASYNC110 - until it waits
                await asyncio.sleep(0.1)
            while not (asked := row_with(text, f"parcel <code>{parcel.id}<")):
                text = await page(client, "decisions")
        waiting = row_with(text, f"article <code>{article.id}<")
        assert 'value="approve"' in waiting
        assert 'value="approve"' not in asked, "another signal would not help"
        assert "signal weight" in asked
        assert "later" not in text
        sent = await posted(client, change="approve", q=queue_name, id=article.id, back="decisions")
        assert sent.headers["location"].startswith("/decisions?note=")
        assert await article.wait_until_finished(timeout=100_000) == "approve"


async def test_schedules_workers_batches_and_dead_letter_queues_are_listed(url: str, queue_name: str):
    async def handler(_: Job):
        raise ValueError("bad")

    async with Queue(queue_name, url, dead_letter_queue=f"{queue_name}-dead") as queue:
        await queue.schedulers.upsert("nightly", pattern="0 3 * * *", tz="Asia/Tokyo", template={"name": "digest"})
        async with await queue.job_batches.create(on_complete=("publish", 1), batch_id=queue_name) as batch:
            await batch.add("later", 1, delay=3_600_000)
        failed = asyncio.Event()
        await queue.add("one")
        worker = Worker(queue_name, handler, url, dead_letter_queue=f"{queue_name}-dead", log_failures=False)
        worker.on("failed", lambda *_: failed.set())
        async with worker, browsing(url, allow_changes=True) as client:
            async with asyncio.timeout(100):
                await failed.wait()
            schedules = await page(client, "all-schedules")
            assert f'<a href="schedules?q={queue_name}">{queue_name}</a> nightly' in schedules
            nightly = row_with(schedules, f"{queue_name}</a> nightly")
            assert "Pause" in nightly
            assert re.search(r'datetime="[^"]*T18:00:00\+00:00"[^<]*</time> = 03:00 Asia/Tokyo', nightly)
            assert f'workers?q={queue_name}">' in await page(client, "all-workers")
            assert "0 of 1" in row_with(await page(client, "all-batches"), f"<code>{queue_name}</code>")
            dead = row_with(await page(client, "all-dead-letters"), f"{queue_name}-dead")
            assert '<td class="num bad">1</td>' in dead
            asked = await posted(client, change="cancel-batch", q=queue_name, batch=queue_name, back="all-batches")
            assert "Cancel the batch?" in asked.text
            await posted(client, change="cancel-batch", q=queue_name, batch=queue_name, confirmed="1")
            assert (await batch.get_status()).is_cancelled


async def test_search_finds_jobs_of_all_queues_and_goes_on_until_it_does(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(all_queues, "_EXAMINED", 100)
    async with Queue(f"{queue_name}-a", url) as first, Queue(f"{queue_name}-b", url) as second:
        await first.add_bulk([("n", {"n": n, "password": f"{queue_name}-hidden"}) for n in range(400)])
        wanted = await second.add("needle", {"to": f"{queue_name}@example.org"}, tags=["rare"], delay=3_600_000)

        async def found(client: httpx.AsyncClient, find: str) -> tuple[bool, int]:
            """Follow a search as the script of the pages does; return if it finds the job, and its requests."""
            text, number = await page(client, "search", find=find), 1
            while "hx-trigger" in text and number < 50:
                following = next(each["hx-get"] for _, each in Elements(text).found if "hx-get" in each)
                text, number = (await client.get(f"/{following}")).text, number + 1
            return f"id={wanted.id}" in text and f"q={queue_name}-b" in text, number

        async with browsing(url) as client:
            is_found, requests = await found(client, f"{queue_name.upper()}@Example")
            assert is_found
            assert requests > 1
            assert (await found(client, "name:needle tag:rare"))[0]
            assert not (await found(client, f"{queue_name}-hidden"))[0], "hidden values are not compared"
            by_id = await page(client, "search", find=wanted.id)
            assert f"q={queue_name}-b&amp;id={wanted.id}" in by_id
            stopped = await page(client, "search", find=f"{queue_name}@example.org", stop="1")
            assert "hx-trigger" not in stopped
            assert "Continue the search" in stopped
            assert (await client.get("/search?find=x&cursor=9-[%20x")).status_code == 200
            assert "must begin with one of" in await page(client, "search", find="nome:x name:y")


async def test_pages_about_all_queues_show_only_those_that_a_visitor_may_see(url: str, queue_name: str):
    for name in (f"{queue_name}-seen", f"{queue_name}-private"):
        async with Queue(name, url) as queue:
            await queue.add("bad")
            await run_all(url, name, 1)
            await queue.schedulers.upsert("nightly", pattern="0 3 * * *", template={"name": "digest"})

    def authorize(_: object) -> Access:
        return Access(queues=[f"{queue_name}-seen"], actions=())

    async with browsing(url, authorize=authorize, hosts=["localhost"]) as client:
        for path in ("all-failures", "all-schedules"):
            text = await page(client, path)
            assert f"{queue_name}-seen" in text
            assert f"{queue_name}-private" not in text
        assert f"{queue_name}-private" not in await page(client, "search", find="name:bad")
