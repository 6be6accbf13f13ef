"""The pages of the dashboard: what they show, what they change, and whom they let in."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote, urlencode

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

import glidemq_py.dashboard
from glidemq_py import FlowJob, FlowProducer, Job, JobState, Queue, Worker
from glidemq_py._features.failures.attempts import FailedAttempt, FailureReason
from glidemq_py._features.timeline.timeline import TimelineEntry
from glidemq_py._operate.access import Access
from glidemq_py._operate.snapshots import FlowNode
from glidemq_py.dashboard import Dashboard, pages
from glidemq_py.dashboard.filters import parse_filter
from glidemq_py.dashboard.flow_drawing import draw
from glidemq_py.dashboard.pages import PAGES, STATES
from glidemq_py.dashboard.texts import duration, meaning, redacted
from glidemq_py.errors import GlideMQValidationError
from tests.server.dashboard.support import FROM_HERE, HERE, Elements, browsing

STATIC = Path(glidemq_py.dashboard.__file__).with_name("static")
EVIL = "<img src=x onerror=alert(1)>"
HOSTILE = "'\"></textarea></script>" + EVIL


async def failing(job: Job) -> object:
    await job.log(HOSTILE)
    if job.name != "good":
        raise ValueError(HOSTILE)
    return {"said": HOSTILE}


async def run_all(url: str, name: str, jobs: int) -> None:
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


# -- what they show ----------------------------------------------------------------------------------------


async def test_pages_escape_everything_that_a_job_contains(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue, FlowProducer(url) as flows:
        await queue.set_timeline()
        await queue.set_metrics_by_name()
        name = EVIL + "'\""
        data = {HOSTILE: HOSTILE, "n": [HOSTILE]}
        bad = await queue.add(name, data, job_id="<b>'x", tags=[EVIL])
        good = await queue.add("good", data, ordering={"key": EVIL})
        await run_all(url, queue_name, 2)
        await queue.add(name, data, fair_key=EVIL, delay=3_600_000)
        await queue.add(name, data, fair_key=EVIL)
        await queue.upsert_job_scheduler("every", every=3_600_000, template={"name": name, "data": data})
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
            assert "max_attempts_exceeded" in shown
            assert "ValueError" in shown
            assert "Traceback (most recent call last)" in shown
            assert "&lt;img src=x onerror=alert(1)&gt;" in shown


async def test_jobs_that_wait_in_their_group_have_a_filter(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue, browsing(url) as before, browsing(url) as client:
        await queue.add_bulk([("first", 1, {"ordering": "customer"}), ("second", 2, {"ordering": "customer"})])
        assert "state=group-waiting" not in await page(before, "jobs", q=queue_name)
        started, released = asyncio.Event(), asyncio.Event()

        async def handler(job: Job) -> None:
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


async def test_reasons_of_failures_are_explained(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue, browsing(url) as client:
        bad = await queue.add("bad")
        await run_all(url, queue_name, 1)
        hint = "The handler raised an error, and no attempt was left."
        for path, arguments in (
            ("", {"find": queue_name}), ("queue", {}), ("failures", {}), ("job", {"id": bad.id}),
        ):  # fmt: skip
            assert f'title="{hint}"' in await page(client, path, q=queue_name, **arguments), path
        assert f"max_attempts_exceeded: {hint}" in await page(
            client, "failures", q=queue_name, reason="max_attempts_exceeded"
        )
        assert all(meaning(each) for each in FailureReason)
        assert meaning("of a later version") == ""


async def test_failed_job_shows_its_run_time_and_requeues(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue, browsing(url) as client:
        job = await queue.add("bad")
        await run_all(url, queue_name, 1)
        [attempt] = await job.get_failed_attempts()
        ran = f"ran {duration(attempt.duration)}"
        text = await page(client, "job", q=queue_name, id=job.id)
        assert f'<span class="soft">{ran}</span>' in text
        assert "since the last requeue" not in text
        assert "attempts count from 1 again" not in text
        assert "await queue.set_timeline(1.0)" in text
        await queue.retry_jobs()
    async with browsing(url) as client:
        assert "attempts count from 1 again" in await page(client, "job", q=queue_name, id=job.id)
    await run_all(url, queue_name, 1)
    async with browsing(url) as client:
        text = await page(client, "job", q=queue_name, id=job.id)
        items = re.findall(r'<li class="\w+">(attempt \d failed|requeued)', text)
        assert items == ["attempt 1 failed", "requeued", "attempt 1 failed"]
        assert "1 since the last requeue" in text
        assert "2 failures recorded in all" in text


async def test_job_that_completed_after_a_retry_shows_no_error(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue, browsing(url, allow_changes=True) as client:
        job = await queue.add("bad")
        await run_all(url, queue_name, 1)
        shown = await page(client, "failures", q=queue_name)
        assert ("Retry it" in shown, "Delete it" in shown, "Delete these" in shown) == (True, True, False)
        assert '<span class="bad">' in await page(client, "jobs", q=queue_name)
        await queue.retry_jobs()
        ended = asyncio.Event()

        async def handler(_: Job) -> None: ...

        worker = Worker(queue_name, handler, url)
        worker.on("completed", lambda *_: ended.set())
        async with worker, asyncio.timeout(100):
            await ended.wait()
        shown = await page(client, "jobs", q=queue_name)
        assert ('<span class="bad">' in shown, "ran " in shown) == (False, True)
        assert "banner error" not in await page(client, "job", q=queue_name, id=job.id)


async def test_requeue_follows_the_end_of_the_job_in_its_timeline(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.set_timeline()
        job = await queue.add("bad")
        await run_all(url, queue_name, 1)
        await queue.retry_jobs()
        await run_all(url, queue_name, 1)
        async with browsing(url) as client:
            text = await page(client, "job", q=queue_name, id=job.id)
    run = ["waiting", "active", "attempt", "failed"]
    assert re.findall(r'<li class="\w+">(\w+)', text) == [*run, "requeued", *run]
    assert "set_timeline" not in text


def test_a_history_within_one_millisecond_is_in_order() -> None:
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


async def test_overview_shows_each_queue_and_what_it_lacks(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk([("n", n) for n in range(3)])
        await queue.add("later", delay=3_600_000)
        async with browsing(url) as client:
            text = await page(client, "", find=queue_name)
            row = text[text.index(f">{queue_name}<") :]
            assert re.findall(r'<td class="num[^"]*">([\d,]+)</td>', row)[:3] == ["3", "0", "1"]
            assert "No worker" in text
            assert "has “none such” in its name" in await page(client, "", find="none such")


async def test_queues_are_shown_in_pages(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_jobs_page_neither_skips_nor_repeats_jobs(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
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


async def test_filter_box_finds_jobs(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        vip = await queue.add("welcome", {"customer": 7}, tags=["vip"])
        other = await queue.add("welcome", {"customer": 8}, ordering={"key": "eu west"})
        async with browsing(url, allow_changes=True) as client:
            for text, expected in {
                "tag:vip": [vip.id], "data:customer=8": [other.id], "name:none": [], vip.id: [vip.id],
                'group:"eu west" since:1h': [other.id], "until:1h": [], "state:waiting tag:vip": [vip.id],
                "state:failed": [],
            }.items():  # fmt: skip
                assert Elements(await page(client, "jobs", q=queue_name, filter=text)).ids() == expected, text
            for wrong in ("size:9", "since:soon", "data:x", "'open", "state:x", "state:"):
                text = await page(client, "jobs", q=queue_name, filter=wrong)
                assert "option &#39;filter&#39;" in text, wrong
                assert "card flush" not in text, "an empty table"
            text = await page(client, "jobs", q=queue_name, filter='state:failed name:"a b"')
            assert "No failed jobs match the filter" in text
            shown = Elements(text)
            (chip,) = [each for tag, each in shown.found if tag == "a" and "state=failed" in str(each.get("href"))]
            assert chip.get("aria-current") == "page"
            suggested = {each.get("value") for tag, each in shown.found if tag == "option"}
            assert {"state:failed", "id:", "group:", "fair:", "until:1h", "type:"} <= suggested
            text = await page(client, "jobs", q=queue_name)
            suggested = {each.get("value") for tag, each in Elements(text).found if tag == "option"}
            assert {"tag:vip", "group:'eu west'"} <= suggested
            for word in ("tag:vip", "group:'eu west'"):
                assert len(Elements(await page(client, "jobs", q=queue_name, filter=word)).ids()) == 1


def test_filter_of_a_text_with_a_key_in_an_id() -> None:
    assert parse_filter("a-b:c", None)[1] == "a-b:c"
    with pytest.raises(GlideMQValidationError, match="must begin with one of state, name, id"):
        parse_filter("nome:x", "failed")


async def test_secrets_are_hidden(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        job = await queue.add("a", {"user": {"Password": "hunter2", "card": "4111"}, "list": [{"api_key": "k3y"}]})
        async with browsing(url, allow_changes=True, redact=["password", "api_key", "card"]) as client:
            text = await page(client, "job", q=queue_name, id=job.id)
            assert not {"hunter2", "4111", "k3y"} & set(re.findall(r"\w+", text))
    assert redacted({"a": [{"TOKEN2": 1}]}, ["token"]) == {"a": [{"TOKEN2": "•••"}]}


async def test_unknown_queue_job_and_page(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.add("a")
        async with browsing(url) as client:
            for path in (f"queue?q={queue_name}x", f"job?q={queue_name}&id=99", "nothing", "live?of=nothing"):
                assert (await client.get(f"/{path}")).status_code == 404, path
            unknown = await client.get("/nothing")
            assert "there is no page /nothing" in unknown.text
            assert "./" in Elements(unknown.text).links(), "the page is a dead end"
            wrong = await client.post("/jobs", headers=FROM_HERE)
            assert (wrong.status_code, "./" in Elements(wrong.text).links()) == (405, True)
            response = await client.get(f"/queue?q={quote('{x}')}")
            assert response.status_code == 400
            assert "queue" in response.text


async def test_server_that_is_gone_is_an_error_page(url: str) -> None:
    async with browsing("valkey://127.0.0.1:1") as client:
        assert (await client.get("/")).status_code == 503
        assert (await client.get("/health")).status_code == 503


# -- changes -----------------------------------------------------------------------------------------------


async def test_nothing_is_changed_unless_it_is_allowed(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        job = await queue.add("a", delay=3_600_000)
        async with browsing(url) as client:
            for path in PAGES.keys() - {"worker", "bulk", "subscriptions"}:
                text = await page(client, path, q=queue_name, id=job.id)
                assert 'method="post"' not in text, path
            response = await posted(client, change="pause", q=queue_name)
            assert response.status_code == 403
            assert "pause_queue" in response.text
        assert not await queue.is_paused()


async def test_the_list_of_a_state_has_the_buttons_that_apply_to_it(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue, browsing(url, allow_changes=True) as client:
        await queue.add("a", delay=60_000)
        await queue.add("b")
        await (await queue.add("c")).revoke()
        for state, expected in {
            "": ["retry", "promote", "cancel", "remove"],
            "waiting": ["cancel", "remove"],
            "delayed": ["promote", "cancel", "remove"],
            "failed": ["retry", "remove"],
        }.items():
            text = await page(client, "jobs", q=queue_name, state=state)
            assert re.findall(r'<button name="change" value="(\w+)"', text) == expected, state
        await queue.obliterate(force=True)


async def test_buttons_change_and_each_change_is_recorded(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        job = await queue.add("later", delay=3_600_000)
        async with browsing(url, allow_changes=True, tokens={"alice": "long enough"}) as client:
            client.headers["authorization"] = "Bearer long enough"
            response = await posted(client, change="pause", q=queue_name, back=f"queue?q={queue_name}")
            assert response.status_code == 303
            assert await queue.is_paused()
            after = await client.get(response.headers["location"])
            assert "queue paused" in after.text
            assert (await posted(client, change="promote", q=queue_name, id=job.id)).status_code == 303
            assert await job.get_state() is JobState.WAITING
            await posted(client, change="limits", q=queue_name, concurrency="5", max="10", duration="1000")
            limits = await queue.get_global_limits()
            assert (limits.concurrency, limits.rate_limit and limits.rate_limit.max) == (5, 10)
            options = json.dumps({"delay": 5_000, "job_id": "mine"})
            await posted(client, change="add", q=queue_name, name="new", data='{"x": 1}', options=options)
            added = await queue.get_job("mine")
            assert added is not None
            assert (added.data, added.state) == ({"x": 1}, "delayed")
            here = f"jobs?q={queue_name}&filter=tag:vip"
            rejected = await posted(client, change="add", q=queue_name, name="new", data="{x", back=here)
            assert rejected.status_code == 400
            assert "Data (JSON): not valid JSON in line 1, column 2" in rejected.text
            assert here in {html.unescape(each) for each in Elements(rejected.text).links()}
            sent = [(each["name"], each.get("value")) for tag, each in Elements(rejected.text).found if "name" in each]
            assert {("change", "add"), ("q", queue_name), ("back", here), ("name", "new")} <= set(sent)
            assert "{x</textarea>" in rejected.text, "what was typed is lost"
            elsewhere = await posted(client, change="add", q=queue_name, data="{x", back="//evil.example/jobs")
            assert Elements(elsewhere.text).links() & {"//evil.example/jobs", "/evil.example/jobs"} == set()
            rejected = await posted(client, change="limits", q=queue_name, concurrency="five")
            assert "Concurrency: &#39;five&#39; is not a whole number." in rejected.text
            rejected = await posted(client, change="add", q=queue_name, name="new", data="1", options='{"dely": 5}')
            assert "did you mean" in rejected.text
            text = await page(client, "audit")
            rows = re.findall(rf"<td>alice</td><td>(\w+)</td>.*?{queue_name}</a></td><td[^>]*>([^<:]+)", text)
            assert rows[:2] == [("add_job", "rejected"), ("add_job", "begun")]
            assert ("pause_queue", "done 1") in rows


async def test_changes_are_listed_in_pages(url: str, queue_name: str) -> None:
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


async def test_what_deletes_or_changes_many_is_counted_and_confirmed_first(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk([("even" if n % 2 == 0 else "odd", n) for n in range(70)])
        async with browsing(url, allow_changes=True) as client:
            fields = {"change": "remove", "q": queue_name, "filter": "name:even", "of_filter": "1"}
            asked = await posted(client, **fields)
            assert asked.status_code == 200
            assert "<strong>35</strong> jobs" in asked.text
            assert (await queue.get_job_counts()).waiting == 70
            assert (await posted(client, **fields, confirmed="1")).status_code == 303
            assert (await queue.get_job_counts()).waiting == 35
            # "All jobs that match" has precedence over those that are marked.
            (left,) = [job async for job in queue.iter_jobs("waiting")][:1]
            everything = await posted(client, **{**fields, "filter": "name:odd"}, id=left.id)
            assert "<strong>35</strong> jobs" in everything.text
            gone = await posted(client, change="remove", q=queue_name, id=left.id, confirmed="1")
            assert "1 job deleted" in (await client.get(gone.headers["location"])).text
            gone = await posted(client, change="remove", q=queue_name, id=left.id, confirmed="1")
            assert "nothing changed; 1 could not be changed" in (await client.get(gone.headers["location"])).text
            nothing = await posted(client, change="cancel", q=queue_name)
            assert nothing.status_code == 400
            assert "Select at least one job" in nothing.text


async def test_failed_jobs_are_retried_one_all_or_with_other_data(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("bad", n) for n in range(3)])
        await run_all(url, queue_name, 3)
        async with browsing(url, allow_changes=True) as client:
            text = await page(client, "failures", q=queue_name)
            assert "ValueError" in text
            assert '<td class="num">3</td>' in text  # one group
            await posted(client, change="retry-edited", q=queue_name, id=jobs[0].id, data='{"fixed": true}')
            first = await queue.get_job(jobs[0].id)
            assert first is not None
            assert (first.data, first.state) == ({"fixed": True}, "waiting")
            again = await posted(client, change="retry-edited", q=queue_name, id=jobs[0].id, data="1")
            assert again.status_code == 400
            await posted(client, change="retry-failures", q=queue_name, confirmed="1")
            assert (await queue.get_job_counts()).waiting == 3


# -- who may -----------------------------------------------------------------------------------------------


async def test_requests_of_other_sites_are_rejected(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
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


async def test_tokens_open_the_pages(url: str) -> None:
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
        elsewhere = await client.post("/login?back=//evil.example", data={"token": "long enough"}, headers=FROM_HERE)
        assert elsewhere.headers["location"] == "/"


async def test_application_decides_who_sees_and_changes_what(url: str, queue_name: str) -> None:
    hidden = f"{queue_name}-hidden"

    def authorize(request: HTTPConnection) -> Access | None:
        user = request.headers.get("x-user")
        return Access(queues=[queue_name], actions=["pause_queue"], user=user) if user else None

    async with Queue(queue_name, url) as queue, Queue(hidden, url) as other:
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hosts": ["queues.example"]}, "give 'tokens' or 'authorize'"),
        ({"tokens": ["short"]}, "at least 8 characters"),
        ({"tokens": "long enough"}, "must be a mapping"),
        ({"tokens": ["long enough"], "authorize": lambda _: None}, "together with 'authorize'"),
        ({"refresh_interval": 5}, "refresh_interval"),
        ({"redact": "password"}, "must be a list"),
        ({"authorize": 5}, "must be a function"),
    ],
)
def test_wrong_options_are_rejected(url: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(GlideMQValidationError, match=message):
        Dashboard(url, **options)  # type: ignore[arg-type]


# -- parts -------------------------------------------------------------------------------------------------


def node(name: str, *children: FlowNode) -> FlowNode:
    return FlowNode(id=name, queue="q", name=name, state=None, error=None, children=children, is_cut=False)


def test_drawing_of_a_flow_is_a_tree() -> None:
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


def test_durations_as_text() -> None:
    texts = [duration(ms) for ms in (0, 999, 1_000, 59_940, 60_000, 320_000, 3_600_000, 93_600_000)]
    assert texts == ["0 ms", "999 ms", "1 s", "59.9 s", "1 min", "5 min 20 s", "1 h", "1 d 2 h"]


def test_scripts_of_others_are_unchanged() -> None:
    rows = re.findall(r"^\| `(\S+)` .* `([0-9a-f]{64})` \|$", (STATIC / "VENDORED.md").read_text(), re.MULTILINE)
    assert len(rows) == 3
    for name, digest in rows:
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest


async def test_first_page_has_at_most_200_kb(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.add("a")
    async with browsing(url) as client:
        text = await page(client, "")
        size = len(text.encode())
        for tag, attributes in Elements(text).found:
            address = attributes.get("src") or (attributes.get("href") if tag == "link" else None)
            if address:
                response = await client.get(f"/{address}")
                assert response.status_code == 200
                size += len(response.content)
        assert size < 200_000


def test_states_of_the_filter_are_those_of_jobs() -> None:
    assert set(STATES) <= {str(state) for state in JobState}
