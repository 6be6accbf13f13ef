"""Pictures of the documents: pages of a queue with jobs in every state, taken by the real browser.

``GLIDEMQ_PICTURES=docs/operate/images`` writes them there; otherwise they are files of the test run. Each is compared
with that of the documents: the layout coarsely, and the words of headings, labels and buttons, which a picture contains
as metadata. Times, numbers, ids and fonts may differ.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from PIL import Image, ImageChops, ImageStat
from PIL.PngImagePlugin import PngInfo

from glidemq_py import Broadcast, BroadcastWorker, FlowJob, FlowProducer, Job, Message, Queue, RateLimit, Worker
from tests.inside import connected
from tests.server.dashboard.support import served
from tests.server.dashboard.test_browser import PATIENCE_S, browser, until
from tests.server.lossy_proxy import LossyProxy

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
    "dashboard-flow.png": ("flow?q=orders&id=order", "Flow of order"),
    "dashboard-workers.png": ("workers?q=orders", "orders"),
    "dashboard-broadcast.png": ("subscriptions?q=news", "news"),
}
"""Files, their pages, and the headings of these."""
BULK: Final = "dashboard-bulk.png"
OLD: Final = 100_000 if os.environ.get("GLIDEMQ_PICTURES") else 5_000
"""Jobs that the dashboard deletes while the picture is taken."""
DARK: Final = "dashboard-dark.png"
PHONE: Final = "dashboard-phone.png"
WIDTH, HEIGHT = 1_280, 860
LOW: Final = {BULK: 520, "dashboard-flow.png": 620, "dashboard-schedules.png": 440, "dashboard-workers.png": 720}
"""Heights of pages with little on them."""
PHONE_WIDTH, PHONE_HEIGHT = 390, 844
WORDS: Final = "glidemq:words"
"""Metadata of a picture: the words of its page."""
FIXED: Final = "h1, h2, th, dt, label, button, nav a, summary:not(td summary)"
"""Elements whose words do not depend on when the picture is taken."""
TILE: Final = 40
"""Width and height, in pixels, of the tiles that are compared."""
LEVELS: Final = 4
"""Levels of gray, of 256, by which a tile may differ because of other fonts, times and numbers."""
DIFFERENT_TILES: Final = 0.32
"""Largest share of tiles that may differ by more: two runs 0.03, a serif font 0.26, two pages at least 0.38."""


async def _fill_others(url: str):
    """Add queues beside the one of the pictures; one of them has finished jobs for a day."""
    async with Queue("images", url, prefix=PREFIX) as queue:
        await queue.add_bulk([("resize", {"n": n}) for n in range(783)])
    async with Queue("payments", url, prefix=PREFIX) as queue:
        await queue.add("capture", {"order": 17})
        await queue.pause()
    async with Queue("reports", url, prefix=PREFIX) as queue:
        await queue.add("weekly", delay=3_600_000)
        link = await connected(queue)
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


async def _fill_orders(url: str):
    """Add a flow whose jobs have several states; their worker runs while the pictures are taken."""
    async with FlowProducer(url, prefix=PREFIX) as flows:
        pack = [FlowJob("reserve", "orders", {"item": n}) for n in range(2)]
        children = [
            FlowJob("charge", "orders", {"amount": 120}),
            FlowJob("pack", "orders", {"boxes": 1}, children=pack),
            FlowJob("notify", "orders", {"to": "ada@example.org"}, options={"delay": 3_600_000}),
        ]
        await flows.add(FlowJob("order", "orders", {"order": 17}, options={"job_id": "order"}, children=children))


@asynccontextmanager
async def _reading_news(url: str) -> AsyncIterator[None]:
    """Publish messages, and run the workers of three subscriptions that have read them; a fourth has none."""
    ended = asyncio.Semaphore(0)

    async def read(_: Message):
        pass

    async def invoice(message: Message):
        if message.data["order"] % 9 == 4:
            raise ConnectionError(f"tax office refused order {message.data['order']}")

    async with AsyncExitStack() as stack:
        news = await stack.enter_async_context(Broadcast("news", url, prefix=PREFIX))
        await news.subscribe("search", start_from="0-0")
        for name, handler in (("audit", read), ("invoices", invoice), ("mailer", read)):
            dead = "invoices-dead" if name == "invoices" else None
            worker = BroadcastWorker(
                "news", handler, url, prefix=PREFIX, subscription=name, start_from="0-0", dead_letter_queue=dead,
                log_failures=False,
            )  # fmt: skip
            for event in ("completed", "failed"):
                worker.on(event, lambda *_: ended.release())
            await stack.enter_async_context(worker)
        await news.publish_bulk([(f"orders.{('eu', 'us')[n % 2]}.created", {"order": n}) for n in range(36)])
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(3 * 36):
                await ended.acquire()
        yield


@contextmanager
def _working(url: str) -> Iterator[None]:
    """Run the worker of the orders on a host whose name suits a picture: charges complete, other jobs never end."""
    started, ready, stop = threading.Event(), threading.Event(), threading.Event()

    async def work():
        released = asyncio.Event()
        running: set[str] = set()

        async def handler(job: Job):
            if job.name == "charge":
                return
            running.add(job.id)
            if len(running) == 2:
                started.set()
            await released.wait()

        async with Worker("orders", handler, url, prefix=PREFIX, concurrency=4), _reading_news(url):
            ready.set()
            await asyncio.to_thread(stop.wait)
            released.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "web-1")
        thread = threading.Thread(target=asyncio.run, args=(work(),))
        thread.start()
        try:
            assert started.wait(PATIENCE_S)
            assert ready.wait(PATIENCE_S)
            yield
        finally:
            stop.set()
            thread.join(PATIENCE_S)


async def _fill(url: str, name: str):
    async def handler(job: Job) -> object:
        if job.id == "bounced":
            raise ConnectionError(f"mail server refused {job.data['to']}")
        if job.name == "welcome" and job.data["n"] % 7 == 3:
            raise ConnectionRefusedError(f"smtp-{job.data['n']}.example.org: connection refused")
        if job.name == "invoice" and job.data["n"] % 11 == 5:
            raise LookupError(f"customer {job.data['n']} does not exist")
        return {"sent": True}

    async with Queue(name, url, prefix=PREFIX) as queue:
        await queue.metrics_by_name.set()
        await queue.timelines.set()
        await queue.fair_keys.set_limits("acme", weight=3, concurrency=2, rate_limit=RateLimit(10, 1_000))
        for pattern, job_name in (("0 3 * * *", "digest"), ("*/15 * * * *", "reminders")):
            now = job_name == "reminders"
            await queue.schedulers.upsert(job_name, pattern=pattern, template={"name": job_name}, immediately=now)
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
        await queue.add_bulk([("old", {"n": n}, {"delay": 3_600_000}) for n in range(OLD)])


class SlowDeletes(LossyProxy):
    """A connection on which deleting the old jobs takes half a minute, until the page of the change was seen."""

    deleted = threading.Event()

    def forward(self, chunk: bytes, source: socket.socket, target: socket.socket):
        if b"_clean_jobs" in chunk:  # a hundred per call
            self.deleted.wait(30 * 100 / OLD)
        super().forward(chunk, source, target)


@pytest.fixture(scope="module")
def dashboard(server: Any) -> Iterator[str]:
    """Yield the address of a dashboard whose queue is called emails."""
    asyncio.run(_fill(server.url, "emails"))
    asyncio.run(_fill_others(server.url))
    asyncio.run(_fill_orders(server.url))
    options = ("--prefix", PREFIX, "--allow-changes", "--refresh-interval", "250ms")
    with (
        _working(server.url), SlowDeletes(server.url) as proxy,
        served(f"{proxy.url}?allow_no_aof=true", *options) as address,  # no picture shows the warning
    ):  # fmt: skip
        yield address
    asyncio.run(_obliterate(server.url))


async def _obliterate(url: str):
    for name in ("emails", "images", "invoices-dead", "news", "orders", "payments", "reports"):
        async with Queue(name, url, prefix=PREFIX) as queue:
            await queue.obliterate(force=True)


def words_of(browser: Any) -> str:
    """Return the visible words of the fixed elements of a page, sorted, without numbers."""
    visible = "[...document.querySelectorAll(arguments[0])].filter(each => each.checkVisibility())"
    texts = browser.execute_script(f"return {visible}.map(each => each.innerText)", FIXED)
    return " ".join(sorted({word for text in texts for word in re.findall(r"[A-Za-z][a-z-]+", text)}))


def different_tiles(one: Image.Image, other: Image.Image) -> float:
    """Return the share of tiles of two pictures of the same size that clearly differ."""
    assert one.size == other.size
    small = (one.width // TILE, one.height // TILE)
    reduced = [each.convert("L").resize(small, Image.Resampling.BOX) for each in (one, other)]
    histogram = ImageChops.difference(*reduced).histogram()
    return sum(histogram[LEVELS:]) / sum(histogram)


def take(browser: Any, name: str, folder: Path):
    """Save a picture of the page, and compare it with that of the documents as far as fonts and times allow."""
    path = Path(os.environ.get("GLIDEMQ_PICTURES") or folder) / name
    assert browser.save_screenshot(str(path))
    about = PngInfo()
    about.add_text(WORDS, words_of(browser))
    with Image.open(path) as taken:
        taken.convert("RGB").save(path, optimize=True, pnginfo=about)
    assert_same(path, DOCS / "operate" / "images" / name)
    assert f"images/{name}" in (DOCS / "operate" / "dashboard.md").read_text(encoding="utf-8")


def assert_same(taken: Path, shown: Path):
    """Compare a picture with that of the documents."""
    with Image.open(taken) as one, Image.open(shown) as other:
        again = f"the picture of the documents is outdated, take it again: {shown.name}"
        assert max(ImageStat.Stat(one.convert("L")).stddev) > 5, "the page is blank"
        assert one.size == other.size, again
        assert one.info[WORDS] == other.info.get(WORDS), again
        assert different_tiles(one, other) <= DIFFERENT_TILES, again


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_of_pages(browser: Any, dashboard: str, name: str, tmp_path: Path):
    browser.set_window_size(WIDTH, LOW.get(name, HEIGHT))
    page, heading = PICTURES[name]
    browser.get(f"{dashboard}/{page}")
    assert browser.find_element("tag name", "h1").text.startswith(heading)
    take(browser, name, tmp_path)


def test_picture_of_the_dark_theme(browser: Any, dashboard: str, tmp_path: Path):
    browser.set_window_size(WIDTH, HEIGHT)
    browser.get(f"{dashboard}/queue?q=emails")
    browser.execute_script("document.documentElement.dataset.theme = 'dark'")
    take(browser, DARK, tmp_path)


def test_picture_of_a_phone(browser: Any, dashboard: str, tmp_path: Path):
    size = {"width": PHONE_WIDTH, "height": PHONE_HEIGHT, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(f"{dashboard}/queue?q=emails")
        take(browser, PHONE, tmp_path)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_outdated_pictures_are_rejected(tmp_path: Path):
    """Compare pictures of other pages, and of a page that has other words."""
    images = DOCS / "operate" / "images"
    large = [name for name in PICTURES if name not in LOW]
    for name, other in itertools.combinations(large, 2):
        with Image.open(images / name) as one, Image.open(images / other) as two:
            assert different_tiles(one, two) > DIFFERENT_TILES, (name, other)
    name = large[0]
    assert_same(images / name, images / name)
    about = PngInfo()
    with Image.open(images / name) as one:
        about.add_text(WORDS, one.info[WORDS].replace("Failed", "Broken"))
        one.save(tmp_path / name, pnginfo=about)
    with pytest.raises(AssertionError, match="outdated"):
        assert_same(images / name, tmp_path / name)


def test_picture_of_a_change_of_many_jobs(browser: Any, dashboard: str, tmp_path: Path):
    browser.set_window_size(WIDTH, LOW[BULK])
    browser.get(f"{dashboard}/jobs?q=emails&filter=name:old")
    browser.find_element("name", "of_filter").click()
    browser.find_element("css selector", "button[value=remove]").click()
    until(browser, lambda _: f"{OLD:,}" in browser.page_source and "Delete these jobs?" in browser.page_source)
    browser.find_element("css selector", "button.main").click()
    until(browser, lambda _: re.search(r"about [\d.]+ m?s</span>|about [\d.]+ m?s left", browser.page_source))
    take(browser, BULK, tmp_path)
    browser.find_element("css selector", "button.danger").click()
    until(browser, lambda _: "then stopped" in browser.page_source)
    SlowDeletes.deleted.set()
