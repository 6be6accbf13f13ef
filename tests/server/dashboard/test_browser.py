"""The pages in a real browser: Debian's Chromium, driven by Selenium; skipped by name where it is not installed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from glidemq_py import Broadcast, BroadcastWorker, Job, Message, Queue, Worker
from tests.bench.install import PeerMissingError, npm_modules
from tests.operating import JobFilter, Operator, RemoveJobs, create_bulk
from tests.server.dashboard.support import served

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]
PATIENCE_S = 100
LONG = "tag" * 20
AXE = "axe-core@4.11.0"
CUT = """
  const isOutside = each => {
    const box = each.getBoundingClientRect();
    return box.width && (box.left < 0 || box.right > innerWidth + 1);
  };
  const parts = [...document.querySelectorAll(".tabs a, td, td button, td .badge, dd .badge")].filter(isOutside);
  const cards = [...document.querySelectorAll(".card")].filter(each => !each.querySelector("svg.bars, .flow"));
  const wide = cards.filter(each => each.scrollWidth > each.clientWidth + 1);
  return [...parts, ...wide].map(each => each.outerHTML.slice(0, 200));
"""
"""Return the parts of tables, tabs and cards that are wider than the window."""
AXE_RUN = "axe.run(arguments[0]).then(arguments[1])"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return Chromium without a window."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromium-driver are not installed")
    options = Options()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    started = webdriver.Chrome(options=options, service=Service(driver))
    started.set_page_load_timeout(PATIENCE_S)
    yield started
    started.quit()


@pytest.fixture(scope="module")
def axe() -> str:
    """Return the script of axe-core."""
    try:
        return (npm_modules(AXE) / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    except PeerMissingError as error:
        pytest.skip(f"axe-core: {error}")


async def _fill(url: str, name: str) -> str:
    """Fill a queue; return the id of a bulk change that nobody performs."""

    async def handler(job: Job) -> object:
        if job.name == "bad":
            raise ConnectionError("mail server refused")
        return {"sent": True}

    async def refuse(_: Message):
        raise ConnectionError("mail server refused")

    async with Queue(name, url, dead_letter_queue=f"{name}-dead") as queue:
        await queue.timelines.set()
        await queue.metrics_by_name.set()
        ended = asyncio.Semaphore(0)
        await queue.add_bulk([("good", {"to": n}, {"tags": ["vip", LONG]}) for n in range(5)] + [("bad", {"to": 9})])
        worker = Worker(name, handler, url, log_failures=False, dead_letter_queue=f"{name}-dead")
        worker.on("completed", lambda *_: ended.release())
        worker.on("failed", lambda *_: ended.release())
        async with worker:
            for _ in range(6):
                await ended.acquire()
        await queue.add("later", {"password": "hunter2"}, delay=3_600_000, fair_key="tenant")
        await queue.add("now", ordering={"key": "customer"})
        await queue.schedulers.upsert("nightly", pattern="0 3 * * *", tz="Asia/Tokyo", template={"name": "digest"})
        async with await queue.job_batches.create(on_complete=("publish", 1)) as batch:
            await batch.add("later", delay=3_600_000)
    async with Broadcast(f"{name}-news", url) as news:
        await news.publish("orders.created", {"order": 7})
        await news.subscribe("search", start_from="0-0")
        ended = asyncio.Semaphore(0)
        reader = BroadcastWorker(
            f"{name}-news", refuse, url, subscription="mailer", start_from="0-0", dead_letter_queue=f"{name}-lost",
            log_failures=False,
        )  # fmt: skip
        reader.on("failed", lambda *_: ended.release())
        async with reader, asyncio.timeout(PATIENCE_S):
            await ended.acquire()
    async with Operator(url) as operator:
        change = RemoveJobs(queue=name, wanted=JobFilter(name="now"))
        return await create_bulk(operator, change, "alice", "remove", 1)


@pytest.fixture
def pages(url: str, queue_name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the address of a dashboard and its pages by name."""
    bulk = asyncio.run(_fill(url, queue_name))
    paths = {
        "": {"find": queue_name},
        "job": {"id": "6"},
        "flow": {"id": "1"},
        "audit": {},
        "bulk": {"id": bulk},
        "nothing": {},
    }
    paths |= {name: {} for name in ("all-failures", "decisions", "all-schedules", "all-workers", "all-dead-letters")}
    paths |= {"all-batches": {}, "search": {"find": "name:good"}}
    paths["queue"] = {"key": "tenant", "group": "customer"}
    for name in ("jobs", "failures", "dead-letters", "schedules", "workers", "metrics"):
        paths[name] = {}
    of_broadcast = {"subscriptions": {}, "jobs": {}, "job": {"id": "1"}, "dead-letters": {}, "workers": {}}
    with served(url, "--allow-changes", "--refresh-interval", "250ms") as address:
        found = {name: f"{address}/{name}?{urlencode({'q': queue_name, **given})}" for name, given in paths.items()}
        for name, given in of_broadcast.items():
            arguments = urlencode({"q": f"{queue_name}-news", **given})
            found[f"{name} of a broadcast"] = f"{address}/{name}?{arguments}"
        yield address, found


def until(browser: Any, condition: Any) -> Any:
    return WebDriverWait(browser, PATIENCE_S, 0.1).until(condition)


def test_pages_have_no_faults_for_people_with_disabilities_and_none_in_the_console(
    browser: Any, axe: str, pages: tuple[str, dict[str, str]], tmp_path: Path
):
    """Run axe-core on each page; in the dark theme, only on its colors; a phone scrolls no page sideways."""
    for name, address in pages[1].items():
        browser.set_window_size(1_280, 900)
        browser.get(address)
        browser.execute_script(axe)
        for theme, rules in (("light", None), ("dark", ["color-contrast"])):
            browser.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
            browser.save_screenshot(str(tmp_path / f"{name or 'overview'}-{theme}.png"))
            found = browser.execute_async_script(AXE_RUN, {} if rules is None else {"runOnly": rules})
            faults = [(each["id"], each["nodes"][0]["html"][:200]) for each in found["violations"]]
            assert faults == [], f"page {name!r}, {theme}"
        browser.set_window_size(500, 900)  # Chromium's smallest
        wide = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"page {name!r} is {wide} px too wide"
    problems = [
        each for each in browser.get_log("browser") if each["level"] == "SEVERE" and "/nothing?" not in each["message"]
    ]
    assert problems == []


@contextmanager
def phone(browser: Any) -> Iterator[None]:
    """Emulate a phone, whose width is below the smallest of a window."""
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_phone_shows_the_current_tab_and_every_column(browser: Any, pages: tuple[str, dict[str, str]]):
    """The tables fit into the width, also with a long tag."""
    found: dict[str, list[str]] = {}
    with phone(browser):
        for name, address in pages[1].items():
            browser.get(address)
            if name.startswith("dead-letters"):
                browser.find_element(By.CSS_SELECTOR, "td summary").click()
            found[name] = browser.execute_script(CUT)
    assert {name: each for name, each in found.items() if each} == {}


def test_suggestions_of_the_filter_box_follow_its_earlier_words(browser: Any, pages: tuple[str, dict[str, str]]):
    """The browser offers suggestions that contain the whole text of the box."""
    browser.get(pages[1]["jobs"])
    box = browser.find_element(By.CSS_SELECTOR, "input[list=words]")
    values = "return [...arguments[0].list.options].map(each => each.value)"
    offered = browser.execute_script(values, box)
    assert "tag:vip" in offered
    box.send_keys("name:good  ta")
    assert browser.execute_script(values, box) == [f"name:good  {each}" for each in offered]
    box.clear()
    box.send_keys("t")
    assert browser.execute_script(values, box) == offered


def test_keys_move_through_the_jobs_of_a_list(browser: Any, pages: tuple[str, dict[str, str]]):
    browser.set_window_size(1_280, 900)
    browser.get(pages[1]["jobs"] + "&state=completed")
    body = browser.find_element(By.TAG_NAME, "body")
    ids = [each.get_attribute("value") for each in browser.find_elements(By.NAME, "id") if each.is_displayed()]
    focused = "return document.activeElement.textContent"
    for key, at in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        browser.switch_to.active_element.send_keys(key)
        assert browser.execute_script(focused) == ids[at]
    browser.switch_to.active_element.send_keys("x")
    assert browser.find_element(By.ID, "number").text == "1 selected"
    body.send_keys("/")
    browser.switch_to.active_element.send_keys("name:jx")
    assert browser.find_element(By.NAME, "filter").get_attribute("value") == "name:jx"
    browser.find_element(By.LINK_TEXT, ids[1]).send_keys("\ue007")
    until(browser, lambda _: "/job?" in browser.current_url)


def test_search_goes_on_until_it_has_seen_everything(browser: Any, pages: tuple[str, dict[str, str]]):
    browser.get(f"{pages[0]}/search?find=nothing+has+this")
    until(browser, lambda _: "No job matches" in browser.page_source)


def test_open_page_shows_changes_and_keeps_what_its_reader_has_opened(
    browser: Any, pages: tuple[str, dict[str, str]], url: str, queue_name: str
):
    browser.set_window_size(1_280, 900)
    browser.get(pages[1]["job"])
    until(browser, lambda _: browser.find_element(By.ID, "connection").text == "live")
    browser.find_element(By.CSS_SELECTOR, "details summary").click()

    async def change():
        async with Queue(queue_name, url) as queue:
            job = await queue.get_job("6")
            assert job is not None
            await job.update_data({"changed": "by another"})

    asyncio.run(change())
    until(browser, lambda _: "by another" in browser.find_element(By.ID, "data").text)
    assert browser.find_element(By.CSS_SELECTOR, "details").get_attribute("open") is not None


def test_jobs_are_chosen_by_keyboard_and_deleted_after_a_question(
    browser: Any, pages: tuple[str, dict[str, str]], url: str, queue_name: str
):
    browser.set_window_size(1_280, 900)
    browser.get(pages[1]["jobs"] + "&state=completed")
    everything = browser.find_element(By.ID, "all")
    everything.send_keys(" ")
    assert browser.find_element(By.ID, "number").text == "5 selected"
    browser.find_element(By.CSS_SELECTOR, "button[value=remove]").send_keys("\ue007")
    until(browser, lambda _: "Delete these jobs?" in browser.page_source)
    assert "5" in browser.find_element(By.CSS_SELECTOR, ".card strong + strong").text
    browser.find_element(By.CSS_SELECTOR, "button.main").send_keys("\ue007")
    until(browser, lambda _: "5 jobs deleted" in browser.page_source)
    assert "No jobs are completed" in browser.page_source

    async def left() -> int:
        async with Queue(queue_name, url) as queue:
            return (await queue.get_job_counts()).completed

    assert asyncio.run(left()) == 0
