"""Pages of workers, metrics and subscriptions; what open pages share; what the audit stream holds."""

from __future__ import annotations

import asyncio
import re
from functools import wraps
from typing import Any
from urllib.parse import urlencode

import pytest

from glidemq_py import FlowJob, FlowProducer, Job, Queue, Worker
from glidemq_py.dashboard import Access, app, pages
from glidemq_py.dashboard.reading import Day, quarters_of
from glidemq_py.records import MetricsPoint
from tests.operating import Operator
from tests.server.dashboard.support import Elements, browsing
from tests.server.dashboard.test_pages import EVIL, page, posted, run_all

_MINUTE = 60_000


async def test_worker_page_shows_what_it_runs_and_lets_it_fetch_no_more(queue: Queue, url: str, queue_name: str):
    started, release = asyncio.Event(), asyncio.Event()

    async def handler(_: Job):
        started.set()
        await release.wait()

    async with browsing(url, allow_changes=True) as client:
        job = await queue.add(EVIL)
        worker = Worker(queue_name, handler, url, concurrency=3, lock_duration=1_000)
        async with worker:
            await started.wait()
            listed = await page(client, "workers", q=queue_name)
            address = next(each for each in Elements(listed).links() if each.startswith("worker?"))
            shown = (await client.get(f"/{address}")).text
            assert "1 of 3 in use" in shown
            assert EVIL not in shown
            assert f"job?{urlencode({'q': queue_name, 'id': job.id})}" in Elements(shown).links()
            fields = {"q": queue_name, "worker": worker.consumer, "back": address}
            response = await posted(client, change="quiet-worker", **fields)
            assert response.status_code == 303
            assert worker.is_paused
            shown = (await client.get(response.headers["location"])).text
            assert "worker fetches no further jobs" in shown
            assert "Fetch jobs again" in shown
            assert (await posted(client, change="resume-worker", **fields)).status_code == 303
            assert not worker.is_paused
            release.set()
        response = await client.get(f"/worker?{urlencode({'q': queue_name, 'id': 'none'})}")
        assert response.status_code == 404


async def test_worker_that_does_not_answer_is_reported(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("glidemq_py.dashboard.pages._ANSWER_MS", 1)

    async def handler(_: Job): ...

    async with Queue(queue_name, url) as queue, browsing(url) as client, Worker(queue_name, handler, url) as worker:
        await queue.add("a")
        shown = await page(client, "worker", q=queue_name, id=worker.consumer)
    assert "at its last heartbeat" in shown
    assert 'role="alert"' in shown


async def test_job_page_shows_children_and_progress(queue: Queue, url: str, queue_name: str):
    reported, released = asyncio.Event(), asyncio.Event()

    async def handle(job: Job):
        await job.update_progress(40)
        reported.set()
        await released.wait()

    async with (
        FlowProducer(url) as flows,
        browsing(url) as client,
    ):
        children = [FlowJob(queue=queue_name, name=f"part{n}", data=n) for n in range(25)]
        root = await flows.add(FlowJob(queue=queue_name, name="whole", data={}, children=children))
        text = await page(client, "job", q=queue_name, id=root.job.id)
        assert text.count("<div><a href=") >= 15
        assert ">part0 " in text
        assert "All in the flow" in text
        async with Worker(queue_name, handle, url, concurrency=1), asyncio.timeout(100):
            await reported.wait()
            (active,) = [job async for job in queue.iter_jobs("active")]
            text = await page(client, "job", q=queue_name, id=active.id)
            assert '<progress max="100" value="40"' in text
            assert "Waits for" not in text
            released.set()


async def test_last_runs_of_a_schedule_are_shown_with_their_state(queue: Queue, url: str, queue_name: str):
    ended = asyncio.Event()

    async def handler(job: Job):
        return None

    async with browsing(url) as client:
        await queue.schedulers.upsert("often", every=3_600_000, immediately=True)
        worker = Worker(queue_name, handler, url)
        worker.on("completed", lambda *_: ended.set())
        async with worker:
            await asyncio.wait_for(ended.wait(), 100)
        shown = await page(client, "schedules", q=queue_name)
        run, on_phone = [each for _, each in Elements(shown).found if (each.get("class") or "").startswith("run ")]
        assert run == on_phone
        assert run["class"] == "run completed"
        assert re.fullmatch(r"[-0-9]{10} [:0-9]{8} UTC: completed", run["title"] or "")


def test_quarters_of_a_day():
    at = 1_700_000_000_000
    start = at - at % (15 * _MINUTE)
    points = (
        MetricsPoint(timestamp=start - 24 * 60 * _MINUTE, count=7, avg_duration=1),  # a day and more ago
        MetricsPoint(timestamp=start - _MINUTE, count=1, avg_duration=50),
        MetricsPoint(timestamp=start, count=1, avg_duration=100),
        MetricsPoint(timestamp=start + _MINUTE, count=3, avg_duration=200),
    )
    found = quarters_of(Day(points, (MetricsPoint(timestamp=start, count=2, avg_duration=5),), at))
    assert len(found) == 96
    assert [(each.start, each.completed, each.failed, each.duration) for each in found[-2:]] == [
        (start - 15 * _MINUTE, 1, 0, 50), (start, 4, 2, 175),
    ]  # fmt: skip
    assert sum(each.completed for each in found) == 5


def counting(method: Any, read: list[str]) -> Any:
    """Return the method; it also appends its name to ``read``."""

    @wraps(method)
    def counted(*given: Any, **options: Any) -> Any:
        read.append(method.__name__)
        return method(*given, **options)

    return counted


async def test_open_pages_share_what_they_read(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    async with Queue(queue_name, url) as queue, FlowProducer(url) as flows:
        await queue.add("failing")
        await run_all(url, queue_name, 1)
        flow = await flows.add(FlowJob("root", queue_name, children=[FlowJob("child", queue_name)]))
    read: list[str] = []
    kinds = ["get_flow", "get_groups", "get_job", "get_jobs", "get_schedules", "iter_failures"]
    for name in kinds:
        monkeypatch.setattr(Operator, name, counting(getattr(Operator, name), read))
    async with browsing(url, refresh_interval=3_600_000) as client:
        for path in ("queue", "job", "flow", "failures", "schedules", "workers"):
            await asyncio.gather(*(page(client, path, q=queue_name, id=flow.job.id) for _ in range(20)))
    # The page of a job reads two jobs of its flow, that of a flow reads all.
    assert sorted(read) == sorted([*kinds, "get_flow"])


async def test_visitors_share_no_flow_that_only_one_may_see(url: str, queue_name: str):
    hidden = f"{queue_name}-hidden"

    def authorize(request: Any) -> Access:
        return Access(queues=None if request.headers.get("x-user") == "admin" else [queue_name], actions=())

    async with FlowProducer(url) as flows:
        flow = await flows.add(FlowJob("root", queue_name, children=[FlowJob("private", hidden)]))
    async with browsing(url, authorize=authorize, hosts=["localhost"], refresh_interval=3_600_000) as client:
        address = f"/flow?{urlencode({'q': queue_name, 'id': flow.job.id})}"
        assert "private" in (await client.get(address, headers={"x-user": "admin"})).text
        assert "private" not in (await client.get(address)).text


async def test_stream_ends_after_a_time_so_that_access_is_checked_again(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(app, "_STREAM_S", 0.0)
    allowed = [True]

    def authorize(_: Any) -> Access | None:
        return Access(actions=()) if allowed[0] else None

    async with Queue(queue_name, url) as queue:
        await queue.add("a")
    async with browsing(url, authorize=authorize, hosts=["localhost"], refresh_interval=3_600_000) as client:
        address = f"/live?{urlencode({'of': 'queue', 'q': queue_name})}"
        assert "event: page" in (await client.get(address)).text
        allowed[0] = False
        assert (await client.get(address)).status_code == 403


async def test_first_page_of_many_queues_waits_only_for_those_it_lists(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pages, "_QUEUES_A_PAGE", 2)
    monkeypatch.setattr(app, "_STREAM_S", 0.0)
    names = [f"{queue_name}-{n}" for n in range(5)]
    for name in names:
        async with Queue(name, url) as queue:
            await queue.add("a")
    release = asyncio.Event()
    get_queues = Operator.get_queues

    async def slow(self: Operator, wanted: Any) -> Any:
        if len(list(wanted)) > 2:
            await release.wait()
        return await get_queues(self, wanted)

    monkeypatch.setattr(Operator, "get_queues", slow)
    async with browsing(url, refresh_interval=3_600_000) as client:
        shown = await page(client, "", find=queue_name)
        assert re.findall(r'<a href="queue[^"]*">([^<]+)</a>', shown) == names[:2]
        assert '<dd><span class="soft">…</span>' in shown
        release.set()
        shown = (await client.get(f"/live?{urlencode({'of': 'all', 'find': queue_name})}")).text
        assert re.findall(r'<a href="queue[^"]*">([^<]+)</a>', shown) == names[:2]
        assert "…</span>" not in shown


async def test_job_page_shows_its_error_and_its_time(queue: Queue, url: str, queue_name: str):
    failed = await queue.add("bad", attempts=2, backoff=1)
    await run_all(url, queue_name, 1)
    async with browsing(url) as client:
        shown = await page(client, "job", q=queue_name, id=failed.id)
    read, _, later = shown.partition('<table class="dense axis">')
    assert 'id="traceback"' in read, "it is open"
    assert re.search(r'<span class="soft">  File &#34;[^<]*runner.py', read), "frames of libraries recede"
    assert re.search(r'<span class="frame">  File &#34;[^<]*test_pages.py', read)
    lines = later.partition("</table>")[0]
    assert re.findall(r"attempt \d", lines) == ["attempt 1", "attempt 2"]
    places = [float(each) for each in re.findall(r'class="failed" x="([\d.]+)"', lines)]
    assert places == sorted(places)
    assert places[-1] <= 100


async def test_job_that_waits_gets_a_signal_with_data(queue: Queue, url: str, queue_name: str):
    async def handler(job: Job) -> object:
        return (await job.wait_for_signal("weight", timeout=3_600_000)).data

    job = await queue.add("parcel")
    async with Worker(queue_name, handler, url), browsing(url, allow_changes=True, refresh_interval=250) as client:
        async with asyncio.timeout(100):
            while 'value="signal"' not in await page(client, "job", q=queue_name, id=job.id):  # noqa: ASYNC110 - until it waits
                await asyncio.sleep(0.1)
        rejected = await posted(client, change="signal", q=queue_name, id=job.id, name="weight", data="{")
        assert "not valid JSON" in rejected.text
        sent = await posted(client, change="signal", q=queue_name, id=job.id, name="weight", data='{"kg": 2}')
        assert sent.status_code == 303
        assert await job.wait_until_finished(timeout=100_000) == {"kg": 2}
        shown = await page(client, "job", q=queue_name, id=job.id)
        assert "signal weight: awaiting" in shown or "signal weight: done" in shown


async def test_large_flow_is_counted_and_has_few_boxes(url: str, queue_name: str):
    async with FlowProducer(url) as flows:
        children = [FlowJob("page", queue_name, {"n": n}) for n in range(300)]
        flow = await flows.add(FlowJob("book", queue_name, children=children))
    async with browsing(url) as client:
        shown = await page(client, "flow", q=queue_name, id=flow.job.id)
    assert "301 jobs:</strong> 300 waiting, 1 waiting-children" in shown
    assert re.search(r"page \W 300<", shown)
    assert len(re.findall(r"<text ", shown)) == 4
