"""The pages of the dashboard: what they show, what they change, and whom they let in."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlencode

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

import glidemq_py.dashboard
from glidemq_py import FailureReason, FlowJob, FlowProducer, Job, JobState, Queue, Worker
from glidemq_py.dashboard import Dashboard, pages
from glidemq_py.dashboard.pages import PAGES
from glidemq_py.dashboard.texts import draw
from glidemq_py.dashboard.visit import STATES
from glidemq_py.records import FailedAttempt, TimelineEntry
from glidemq_py.testing import ServerProcess
from tests.operating import Access, FlowNode
from tests.server.dashboard.support import FROM_HERE, HERE, Elements, browsing, served

STATIC = Path(glidemq_py.dashboard.__file__).with_name("static")
EVIL = "<img src=x onerror=alert(1)>"
HOSTILE = "'\"></textarea></script>" + EVIL


async def failing(job: Job) -> object:
    await job.log(HOSTILE)
    if job.name != "good":
        raise ValueError(HOSTILE)
    return {"said": HOSTILE}


async def run_all(url: str, name: str, jobs: int):
    """Run that many jobs of the queue with `failing`."""
    ended = asyncio.Semaphore(0)
    worker = Worker(name, failing, url, log_failures=False)
    worker.on("completed", lambda *_: ended.release())
    worker.on("failed", lambda *_: ended.release())
    async with worker, asyncio.timeout(100):
        for _ in range(jobs):
            await ended.acquire()


async def posted(client: httpx.AsyncClient, **fields: str) -> httpx.Response:
    return await client.post("/change", data=fields, headers=FROM_HERE)


async def page(client: httpx.AsyncClient, path: str, **arguments: str) -> str:
    """Return the text of a page, which must exist."""
    response = await client.get(f"/{path}?{urlencode(arguments)}")
    assert response.status_code == 200, response.text
    return response.text


async def test_pages_escape_everything_that_a_job_contains(queue: Queue, url: str, queue_name: str):
    async with FlowProducer(url) as flows:
        await queue.timelines.set()
        await queue.metrics_by_name.set()
        name = EVIL + "'\""
        data = {HOSTILE: HOSTILE, "n": [HOSTILE]}
        bad = await queue.add(name, data, job_id="<b>'x", tags=[EVIL])
        good = await queue.add("good", data, ordering={"key": EVIL})
        await run_all(url, queue_name, 2)
        await queue.add(name, data, fair_key=EVIL, delay=3_600_000)
        await queue.add(name, data, fair_key=EVIL)
        await queue.schedulers.upsert("every", every=3_600_000, template={"name": name, "data": data})
        tree = FlowJob(name, queue_name, data, children=[FlowJob(name, queue_name, data)])
        flow = await flows.add(tree)
        async with browsing(url, allow_changes=True) as client:
            for path in PAGES.keys() - {"worker", "bulk", "subscriptions"}:
                for job in (bad, good, flow.job) if path in ("job", "flow") else (bad,):
                    text = await page(client, path, q=queue_name, id=job.id, filter="name:x'\"<b>")
                    assert EVIL not in text, path
                    elements = Elements(text).found
                    assert not [tag for tag, attributes in elements if "onerror" in attributes], path
                    scripts = [attributes for tag, attributes in elements if tag == "script"]
                    assert scripts
                    assert all(each.get("nonce") and each.get("src") for each in scripts)
                    assert not [each for _, each in elements if "style" in each], path
            shown = await page(client, "job", q=queue_name, id=bad.id)
            assert "error, last attempt" in shown
            assert "ValueError" in shown
            assert "Traceback (most recent call last)" in shown
            assert "&lt;img src=x onerror=alert(1)&gt;" in shown


async def test_jobs_that_wait_in_their_group_have_a_filter(queue: Queue, url: str, queue_name: str):
    async with (
        browsing(url) as before,
        browsing(url) as client,
    ):
        await queue.add_bulk([("first", 1, {"ordering": "customer"}), ("second", 2, {"ordering": "customer"})])
        assert "state=group-waiting" not in await page(before, "jobs", q=queue_name)
        started, released = asyncio.Event(), asyncio.Event()

        async def handler(job: Job):
            started.set()
            await released.wait()

        async with Worker(queue_name, handler, url, concurrency=9), asyncio.timeout(100):
            try:
                await started.wait()
                assert "state=group-waiting" in await page(client, "jobs", q=queue_name)
                listed = await page(client, "jobs", q=queue_name, state="group-waiting")
            finally:
                released.set()
        assert '<td class="wide">second' in listed
        assert '<td class="wide">first' not in listed


def test_a_history_within_one_millisecond_is_in_order():
    states = (JobState.WAITING, JobState.ACTIVE, JobState.WAITING, JobState.ACTIVE, JobState.FAILED)
    timeline = [TimelineEntry(state, 5, "") for state in states]
    first, second = attempts = [
        FailedAttempt(
            number=number, started_at=5, failed_at=5, worker="w", reason=FailureReason.EXPLICIT_FAIL, error="error"
        )
        for number in (1, 2)
    ]
    job = SimpleNamespace(state=JobState.FAILED, attempts_made=2)
    history = pages._history(cast("Any", SimpleNamespace(timeline=timeline, attempts=attempts, job=job)))
    waiting, active, waiting_again, active_again, failed = timeline
    assert [entry or attempt for _, entry, attempt in history] == [
        waiting, active, first, waiting_again, active_again, second, failed,
    ]  # fmt: skip


async def test_queues_are_shown_in_pages(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "_QUEUES_A_PAGE", 2)
    names = [f"{queue_name}-{n}" for n in range(5)]
    for at, name in enumerate(names):
        async with Queue(name, url) as queue:
            await queue.add_bulk([("n", n) for n in range(at + 1)])
    async with browsing(url) as client:
        seen: list[str] = []
        path = f"?{urlencode({'find': queue_name, 'sort': 'ready'})}"
        while path:
            text = (await client.get(f"/{path}")).text
            seen += re.findall(r'<a href="queue[^"]*">([^<]+)</a>', text)
            path = (re.findall(r'href="([^"]+)">Next<', text) or [""])[0].replace("&amp;", "&").removeprefix("./")
    assert seen == names[::-1]


async def test_queues_in_trouble_are_first_until_a_visitor_orders_them(url: str, queue_name: str):
    quiet, served_by_nobody, failing = (f"{queue_name}-{n}" for n in range(3))
    for name in (quiet, failing):
        async with Queue(name, url) as queue:
            await queue.add("good" if name == quiet else "bad")
            await run_all(url, name, 1)
    async with Queue(served_by_nobody, url) as queue:
        await queue.add("a")

    def listed(text: str) -> list[str]:
        return re.findall(r'<a href="queue[^"]*">([^<]+)</a>', text)

    async with browsing(url) as client:
        shown = await page(client, "", find=queue_name)
        assert listed(shown) == [served_by_nobody, failing, quiet]
        states = re.findall(r'badge \w+"[^>]*>(no worker|failing|ok)<', shown)
        assert states == ["no worker", "failing", "ok"]
        assert "<title>error, last attempt 1</title>" in shown
        plots = [each for _, each in Elements(shown).found if each.get("class") == "plot"]
        drawn = json.loads(plots[0]["data-plot"] or "")
        assert [name for name, _, _ in drawn["series"]] == ["Completed", "Failed", "Waiting"]
        assert all(len(values) == len(drawn["times"]) for _, _, values in drawn["series"])
        waiting = drawn["series"][2][2]
        assert waiting[-1] == 1
        assert waiting[:-1] == [None] * (len(waiting) - 1), "nothing was measured"
        await page(client, "", find=queue_name, sort="name")
        assert listed(await page(client, "", find=queue_name)) == [quiet, served_by_nobody, failing]


async def test_jobs_page_neither_skips_nor_repeats_jobs(queue: Queue, url: str, queue_name: str):
    ids = [job.id for job in await queue.add_bulk([("n", n) for n in range(120)])]
    async with browsing(url, allow_changes=True) as client:
        found: list[str] = []
        path = f"jobs?{urlencode({'q': queue_name, 'state': 'waiting'})}"
        while path:
            response = await client.get(f"/{path}")
            elements = Elements(response.text)
            found += elements.ids()
            await queue.add("new")
            path = next((each for each in elements.links() if each.startswith("jobs?") and "cursor=" in each), "")
        assert sorted(set(found) & set(ids)) == sorted(ids)
        assert len(found) == len(set(found))


async def test_no_page_is_a_dead_end(url: str):
    async with browsing(url) as client:
        for response in (await client.get("/nothing"), await client.post("/jobs", headers=FROM_HERE)):
            assert response.status_code in (404, 405)
            assert "./" in Elements(response.text).links()


async def test_a_search_shows_how_far_it_came(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "_EXAMINED", 100)
    async with Queue(queue_name, url) as queue:
        for orders in ([0], range(1, 229), [229]):
            await queue.add_bulk([("bad", {"order": n}) for n in orders])
            await run_all(url, queue_name, len(orders))
        await queue.add_bulk([("later", {"n": n}, {"delay": 3_600_000}) for n in range(150)])
    async with browsing(url) as client:
        newest = await page(client, "jobs", q=queue_name, state="failed", filter="data:order=229")
        assert "Searched 100 of 230 jobs, newest first" in newest
        assert len(re.findall(r'href="job\?', newest)) == 1
        shown = await page(client, "jobs", q=queue_name, state="failed", filter="data:order=0")
        assert "hx-trigger" in shown, "it goes on by itself"
        shown = await page(client, "jobs", q=queue_name, state="failed", filter="data:order=0", stop="1")
        for examined in (100, 200):
            assert f"Searched {examined} of 230 jobs, newest first: none match so far" in shown
            assert "Continue the search" in shown
            link = next(each for each in Elements(shown).links() if f"searched={examined}" in each)
            shown = (await client.get(f"/{link}&stop=1")).text
        assert len(re.findall(r'href="job\?', shown)) == 1
        assert "Searched" not in shown
        shown = await page(client, "jobs", q=queue_name, state="delayed", filter="name:later data:n=-1")
        assert re.search(r"Searched [\d,]+ of 150 jobs: none match", shown), "these are searched as they will run"


async def test_an_outage_is_shown_while_calls_still_wait(private_server: Callable[..., ServerProcess], queue_name: str):
    server = private_server("valkey-9.1")
    async with Queue(queue_name, server.url) as queue, browsing(server.url, refresh_interval=250) as client:
        await queue.add("a")
        await page(client, "jobs", q=queue_name)
        server.pause()
        try:
            response = await client.get("/")
        finally:
            server.resume()
        assert response.status_code == 503
        assert "the server does not answer" in response.text


async def test_an_open_page_shows_an_outage_and_its_end(private_server: Callable[..., ServerProcess]):
    """It does not wait for the next update; a notice that stayed would belie the figures beside it."""
    server = private_server("valkey-9.1")
    with served(server.url, "--refresh-interval", "1h") as address:
        async with httpx.AsyncClient(timeout=60) as client, client.stream("GET", f"{address}/live?of=all") as response:
            lines = response.aiter_lines()

            async def event(kind: str) -> str:
                async for line in lines:
                    if line == f"event: {kind}":
                        return await anext(lines)
                raise AssertionError(f"the stream has ended without {kind}")

            await event("page")
            server.pause()
            try:
                assert "the server does not answer" in await event("problem")
            finally:
                server.resume()
            assert await event("problem") == "data:"
            await event("page")


async def test_server_that_is_gone_is_an_error_page(url: str):
    async with browsing("valkey://127.0.0.1:1") as client:
        assert (await client.get("/")).status_code == 503
        assert (await client.get("/health")).status_code == 503


async def test_each_change_is_recorded(queue: Queue, url: str, queue_name: str):
    await queue.add("later", delay=3_600_000)
    async with browsing(url, allow_changes=True, tokens={"alice": "long enough"}) as client:
        client.headers["authorization"] = "Bearer long enough"
        assert (await posted(client, change="pause", q=queue_name)).status_code == 303
        rejected = await posted(client, change="add", q=queue_name, name="new", data="1", options='{"dely": 5}')
        assert rejected.status_code == 400
        text = await page(client, "audit")
        rows = re.findall(rf"<td>alice</td><td>(\w+)</td>.*?{queue_name}</a></td><td[^>]*>([^<:]+)", text)
        assert rows[:2] == [("add_job", "rejected"), ("add_job", "begun")]
        assert ("pause_queue", "done 1") in rows


async def test_changes_are_listed_in_pages(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.add("a")
        async with browsing(url, allow_changes=True) as client:
            for change in ["pause", "resume"] * 15:
                await posted(client, change=change, q=queue_name)
            found: list[str] = []
            path = "audit"
            while path:
                text = (await client.get(f"/{path}")).text
                found += re.findall(rf"<td>(\w+)</td><td[^>]*><a [^>]*>{queue_name}</a></td><td[^>]*>done", text)
                path = (re.findall(r'href="([^"]+)">Earlier changes', text) or [""])[0]
    assert found == ["resume_queue", "pause_queue"] * 15


async def test_requests_of_other_sites_are_rejected(queue: Queue, url: str, queue_name: str):
    await queue.add("a")
    async with browsing(url, allow_changes=True) as client:
        fields = {"change": "pause", "q": queue_name}
        for headers in (
            {}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"},
            {"origin": HERE, "host": "evil.example"}, {"origin": HERE, "content-type": "text/plain"},
        ):  # fmt: skip
            response = await client.post("/change", data=fields, headers=headers)
            assert response.status_code in (400, 403), headers
        assert (await client.get("/", headers={"host": "evil.example"})).status_code == 403
        assert not await queue.is_paused()
        response = await client.get("/")
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-frame-options"] == "DENY"


async def test_tokens_open_the_pages(url: str):
    async with browsing(url, tokens=["long enough", "another one"]) as client:
        asked = await client.get("/jobs?q=x", headers={"accept": "text/html"})
        assert asked.status_code == 303
        assert (await client.get("/live?of=all")).status_code == 401
        form = asked.headers["location"]
        wrong = await client.post(form, data={"token": "wrong one"}, headers=FROM_HERE)
        assert wrong.status_code == 401
        right = await client.post(form, data={"token": "another one"}, headers=FROM_HERE)
        assert right.headers["location"] == "/jobs?q=x"
        cookie = right.headers["set-cookie"]
        assert "another one" not in cookie
        assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/")).headers["cache-control"] == "no-store"
        assert "cache-control" not in (await client.get("/static/style.css")).headers
        elsewhere = await client.post("/login?back=//evil.example", data={"token": "long enough"}, headers=FROM_HERE)
        assert elsewhere.headers["location"] == "/"


async def test_tokens_cannot_be_tried_fast(url: str):
    async with browsing(url, tokens=["long enough"]) as client, asyncio.TaskGroup() as group:
        bearer = {"authorization": "Bearer long enough"}
        for _ in range(30):  # a page of an older session is sent again and again
            assert (await client.get("/", headers={"authorization": "Bearer outdated"})).status_code == 401
        assert (await client.get("/", headers=bearer)).status_code == 200
        for n in range(10):
            assert (await client.get("/", headers={"authorization": f"Bearer wrong {n}"})).status_code == 401
        tries = [group.create_task(client.get("/", headers={"authorization": f"Bearer {n}"})) for n in range(40)]
        for each in asyncio.as_completed(tries):
            if (await each).status_code == 403:
                break
        else:
            pytest.fail("forty tokens were compared at once")
        refused = await client.get("/", headers=bearer)
        assert (refused.status_code, "too many wrong tokens" in refused.text) == (403, True)
        for each in tries:
            each.cancel()


async def test_application_decides_who_sees_and_changes_what(queue: Queue, url: str, queue_name: str):
    hidden = f"{queue_name}-hidden"

    def authorize(request: HTTPConnection) -> Access | None:
        user = request.headers.get("x-user")
        return Access(queues=[queue_name], actions=["pause_queue"], user=user) if user else None

    async with Queue(hidden, url) as other:
        await queue.add("a")
        await other.add("a")
        async with Dashboard(url, authorize=authorize, allow_changes=True) as dashboard:
            application = Starlette(routes=[Mount("/ops/queues", dashboard)])
            transport = httpx.ASGITransport(application)
            async with httpx.AsyncClient(transport=transport, base_url="https://app.example") as client:
                assert (await client.get("/ops/queues/")).status_code == 403
                client.headers["x-user"] = "bob"
                text = (await client.get("/ops/queues/")).text
                assert '<base href="/ops/queues/">' in text
                assert queue_name in text
                assert hidden not in text
                assert (await client.get(f"/ops/queues/queue?q={hidden}")).status_code == 403
                origin = {"origin": "https://app.example"}
                for change, status in (("pause", 303), ("resume", 403)):
                    fields = {"change": change, "q": queue_name, "back": f"queue?q={queue_name}"}
                    response = await client.post("/ops/queues/change", data=fields, headers=origin)
                    assert response.status_code == status
                assert await queue.is_paused()
                fields = {"change": "pause", "q": hidden}
                assert (await client.post("/ops/queues/change", data=fields, headers=origin)).status_code == 403


def node(name: str, *children: FlowNode) -> FlowNode:
    return FlowNode(id=name, queue="q", name=name, state=None, error=None, children=children, is_cut=False)


def test_drawing_of_a_flow_is_a_tree():
    drawing = draw(node("a", node("b", node("d"), node("e")), node("c")))
    at = {box.node.id: (box.x, box.y) for box in drawing.boxes}
    assert at["a"][0] < at["b"][0] == at["c"][0] < at["d"][0] == at["e"][0]
    assert at["d"][1] < at["e"][1] < at["c"][1]
    assert at["b"][1] == (at["d"][1] + at["e"][1]) // 2
    assert len(drawing.lines) == 4
    chain = node("end")
    for number in range(3_000):
        chain = node(str(number), chain)
    assert len(draw(chain).boxes) == 3_001


def test_many_siblings_of_a_flow_are_one_box():
    failed, other = JobState.FAILED, JobState.COMPLETED
    leaves = [
        FlowNode(
            id=str(n), queue="q", name=f"n{n % 2}", state=failed if n < 20 else other, error=None, children=(),
            is_cut=False,
        )
        for n in range(10_000)
    ]  # fmt: skip
    boxes = draw(replace(node("root", *leaves), name="root")).boxes
    assert len(boxes) == 1 + 2 * 6, "five failed ones of each name have their own box"
    folded = [box for box in boxes if box.states]
    assert [dict(box.states) for box in folded] == [{"failed": 5, "completed": 4_990}] * 2
    assert all(box.node.children == () for box in boxes), "a page keeps no other jobs"
    named = [replace(each, name=each.id) for each in leaves]
    assert len(draw(node("root", *named)).boxes) == 1 + 41


def test_scripts_of_others_are_unchanged():
    rows = re.findall(r"^\| `(\S+)` .* `([0-9a-f]{64})` \|$", (STATIC / "VENDORED.md").read_text(), re.MULTILINE)
    assert len(rows) == 5
    for name, digest in rows:
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest


async def test_first_page_has_at_most_200_kb(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.add("a")
    async with browsing(url) as client:
        text = await page(client, "")
        size = len(text.encode())
        for tag, attributes in Elements(text).found:
            address = attributes.get("src") or (attributes.get("href") if tag == "link" else None)
            if address:
                async with client.stream("GET", f"/{address}") as response:
                    assert response.status_code == 200
                    size += sum([len(part) async for part in response.aiter_raw()])
        assert size < 200_000


def test_states_of_the_filter_are_those_of_jobs():
    assert set(STATES) <= set(JobState)
