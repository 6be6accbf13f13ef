"""Pictures of the documents: pages of a queue with jobs in every state, taken by the real browser.

``GLIDEMQ_PICTURES=docs/operate/images`` writes them there; otherwise they are files of the test run.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from glidemq_py import Job, Queue, RateLimit, Worker
from tests.server.dashboard.support import served
from tests.server.dashboard.test_browser import PATIENCE_S, browser, until

__all__ = ["browser"]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]
DOCS: Final = Path(__file__).resolve().parents[3] / "docs"
PREFIX: Final = "shop"
"""Of the keys: the page of all queues shows no queues of other tests."""
PICTURES: Final[dict[str, tuple[str, str]]] = {
    "dashboard-queues.png": ("", "All queues"),
    "dashboard-queue.png": ("queue?q=emails&key=acme", "emails"),
    "dashboard-schedules.png": ("schedules?q=emails", "emails"),
    "dashboard-failures.png": ("failures?q=emails", "emails"),
    "dashboard-jobs.png": ("jobs?q=emails&state=failed", "emails"),
    "dashboard-job.png": ("job?q=emails&id=bounced", "welcome bounced"),
    "dashboard-metrics.png": ("metrics?q=reports", "reports"),
}
"""Files, their pages, and the headings of these."""
BULK: Final = "dashboard-bulk.png"
WIDTH, HEIGHT = 1_280, 860
PNG: Final = b"\x89PNG\r\n\x1a\n"


async def _fill_others(url: str) -> None:
    """Add queues beside the one of the pictures; one of them has finished jobs for a day."""
    async with Queue("images", url, prefix=PREFIX) as queue:
        await queue.add_bulk([("resize", {"n": n}) for n in range(783)])
    async with Queue("payments", url, prefix=PREFIX) as queue:
        await queue.add("capture", {"order": 17})
        await queue.pause()
    async with Queue("reports", url, prefix=PREFIX) as queue:
        await queue.add("weekly", delay=3_600_000)
        link = await queue._connected()
        minute = int(time.time()) // 60 * 60_000
        counts: list[str] = []
        for ago in range(1, 24 * 60, 5):
            share = 1 - math.cos(2 * math.pi * (minute - ago * 60_000) / 86_400_000)
            number, field = 40 + round(180 * share), f"m:{minute - ago * 60_000}"
            counts += [f"{field}:c", str(number), f"{field}:d", str(round(number * (17 + 10 * share)))]
        await link.transport.command("HSET", link.keys.metrics("completed"), *counts)
        failed: list[str] = []
        for ago in range(1, 24 * 60, 65):
            failed += [f"m:{minute - ago * 60_000}:c", "6"]
        await link.transport.command("HSET", link.keys.metrics("failed"), *failed)


async def _fill(url: str, name: str) -> None:
    async def handler(job: Job) -> object:
        if job.id == "bounced":
            raise ConnectionError(f"mail server refused {job.data['to']}")
        if job.name == "welcome" and job.data["n"] % 7 == 3:
            raise ConnectionRefusedError(f"smtp-{job.data['n']}.example.org: connection refused")
        if job.name == "invoice" and job.data["n"] % 11 == 5:
            raise LookupError(f"customer {job.data['n']} does not exist")
        return {"sent": True}

    async with Queue(name, url, prefix=PREFIX) as queue:
        await queue.set_metrics_by_name()
        await queue.set_timeline()
        await queue.set_fair_key_limits("acme", weight=3, concurrency=2, rate_limit=RateLimit(10, 1_000))
        for pattern, job_name in (("0 3 * * *", "digest"), ("*/15 * * * *", "reminders")):
            now = job_name == "reminders"
            await queue.upsert_job_scheduler(job_name, pattern=pattern, template={"name": job_name}, immediately=now)
        ended = asyncio.Semaphore(0)
        names = ("welcome", "invoice", "receipt")
        await queue.add_bulk([(names[n % 3], {"n": n, "to": f"user{n}@example.org"}) for n in range(120)])
        bounced = {"to": "x0@nowhere.example", "subject": "Welcome", "locale": "en"}
        await queue.add("welcome", bounced, job_id="bounced", attempts=2, backoff=50, tags=["trial"])
        worker = Worker(name, handler, url, prefix=PREFIX, concurrency=4, log_failures=False)
        for event in ("completed", "failed"):
            worker.on(event, lambda *_: ended.release())
        async with worker, asyncio.timeout(PATIENCE_S):
            for _ in range(122):  # with the first reminder
                await ended.acquire()
        for key in ("acme", "globex"):
            await queue.add_bulk([("welcome", {"n": n}, {"fair_key": key}) for n in range(30)])
        await queue.add_bulk([("old", {"n": n}, {"delay": 3_600_000}) for n in range(30_000)])


@pytest.fixture(scope="module")
def dashboard(server: Any) -> Iterator[str]:
    """Yield the address of a dashboard whose queue is called emails."""
    asyncio.run(_fill(server.url, "emails"))
    asyncio.run(_fill_others(server.url))
    url = f"{server.url}?allow_no_aof=true"  # no picture shows the warning
    with served(url, "--prefix", PREFIX, "--allow-changes", "--refresh-interval", "250ms") as address:
        yield address
    asyncio.run(_obliterate(server.url))


async def _obliterate(url: str) -> None:
    for name in ("emails", "images", "payments", "reports"):
        async with Queue(name, url, prefix=PREFIX) as queue:
            await queue.obliterate(force=True)


def take(browser: Any, name: str, folder: Path) -> None:
    """Save a picture of the page, and compare it with that of the documents as far as fonts and times allow."""
    chosen = Path(os.environ.get("GLIDEMQ_PICTURES") or folder)
    path = chosen / name
    assert browser.save_screenshot(str(path))
    data = path.read_bytes()
    assert data.startswith(PNG)
    assert len(data) > 20_000, "the page is blank"
    shown = (DOCS / "operate" / "images" / name).read_bytes()
    assert data[16:24] == shown[16:24], "the picture of the documents has another size: take it again"
    assert f"images/{name}" in (DOCS / "operate" / "dashboard.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_of_pages(browser: Any, dashboard: str, name: str, tmp_path: Path) -> None:
    browser.set_window_size(WIDTH, HEIGHT)
    page, heading = PICTURES[name]
    browser.get(f"{dashboard}/{page}")
    assert browser.find_element("tag name", "h1").text.startswith(heading)
    take(browser, name, tmp_path)


def test_picture_of_a_change_of_many_jobs(browser: Any, dashboard: str, tmp_path: Path) -> None:
    browser.set_window_size(WIDTH, 520)
    browser.get(f"{dashboard}/jobs?q=emails&filter=name:old")
    browser.find_element("name", "of_filter").click()
    browser.find_element("css selector", "button[value=remove]").click()
    until(browser, lambda _: "30,000" in browser.page_source and "Delete these jobs?" in browser.page_source)
    browser.find_element("css selector", "button.main").click()
    until(browser, lambda _: re.search(r"about [\d.]+ m?s</span>|about [\d.]+ m?s left", browser.page_source))
    take(browser, BULK, tmp_path)
    browser.find_element("css selector", "button.danger").click()
    until(browser, lambda _: "then stopped" in browser.page_source)
