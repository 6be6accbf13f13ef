"""Groups of failures with their trend, changes of a group, and dead letters that are edited; memory of workers."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest

from glidemq_py import FailureReason, Job, Queue, SerializationError, Worker
from glidemq_py.records import Failure
from tests.inside import connected, dead_letters
from tests.operating import HOURS, JobFilter, Operator, get_newest_dead_letters, group_failures, iter_dead_letters
from tests.server.dashboard.support import FROM_HERE, Elements, browsing
from tests.server.dashboard.test_pages import page, posted

HOUR_MS = 3_600_000
NOW = 1_800_000_000_000


def failure(number: int, error: str, *, hours_ago: float = 0, name: str = "mail", kind: str = "ValueError") -> Failure:
    return Failure(
        job_id=str(number), name=name, reason=FailureReason.MAX_ATTEMPTS_EXCEEDED, error=error, error_type=kind,
        failed_at=NOW - int(hours_ago * HOUR_MS), attempts_made=1, auto_retries=0, next_retry_at=None, expires_at=None,
    )  # fmt: skip


async def run_failing(url: str, name: str, jobs: int, **options: Any):
    """Fail that many jobs of the queue; the data of a job is its error."""

    async def handler(job: Job):
        raise ValueError(job.data["error"])

    ended = asyncio.Semaphore(0)
    worker = Worker(name, handler, url, log_failures=False, **options)
    worker.on("failed", lambda *_: ended.release())
    async with worker, asyncio.timeout(100):
        for _ in range(jobs):
            await ended.acquire()


def test_groups_have_a_trend_by_hour():
    found = group_failures(
        [
            failure(1, "mailbox 1 is full", hours_ago=0.5), failure(2, "mailbox 22 is full", hours_ago=1.5),
            failure(3, "mailbox 3 is full", hours_ago=23.9), failure(4, "mailbox 4 is full", hours_ago=24.1),
            failure(5, "no route"), failure(6, "no route", kind="OSError"), failure(7, "no route", name="sms"),
            failure(8, "", hours_ago=-1),
        ],
        NOW,
    )  # fmt: skip
    full = found[0]
    assert (full.name, full.error_type, full.shape) == ("mail", "ValueError", "mailbox … is full")
    assert [each.job_id for each in full.failures] == ["1", "2", "3", "4"]
    assert full.trend == (1, *[0] * (HOURS - 3), 1, 1)
    assert [len(each.failures) for each in found] == [4, 1, 1, 1, 1]
    assert all(sum(each.trend) == 1 for each in found[1:])


async def test_a_group_of_errors_of_many_lines_is_changed(queue: Queue, url: str, queue_name: str):
    async with browsing(url, allow_changes=True) as client:
        errors = [f"{n} faults:\n  no route\n\ttimeout" for n in range(2)]
        await queue.add_bulk([("mail", {"error": error}) for error in errors])
        await run_failing(url, queue_name, 2)
        shown = Elements(await page(client, "failures", q=queue_name)).found
        (button, *_) = (
            at for at, (tag, each) in enumerate(shown) if tag == "input" and each.get("value") == "retry"
        )  # fmt: skip
        fields = dict[str, str]()
        for tag, each in shown[button:]:
            if tag == "form":
                break
            if tag == "input":  # a browser sends line breaks as CRLF
                fields[str(each["name"])] = re.sub(r"\r\n|\r|\n", "\r\n", each["value"] or "")
        assert "faults" in fields["error_shape"]
        assert "<strong>2</strong> jobs" in (await posted(client, **fields)).text
        assert (await posted(client, **fields, confirmed="1")).status_code == 303
        assert len(await queue.get_jobs("waiting")) == 2


async def test_newest_failures_are_examined(queue: Queue, url: str, queue_name: str):
    async with Operator(url) as operator:
        await queue.add_bulk([("mail", {"error": f"error {n}"}) for n in range(9)])
        await run_failing(url, queue_name, 9)
        every, is_cut = await operator.get_newest_failures(queue_name, 100)
        assert (len(every), is_cut) == (9, False)
        found, is_cut = await operator.get_newest_failures(queue_name, 4)
        assert is_cut
        newest = sorted(each.failed_at for each in every)[-len(found) :] if found else []
        assert len(found) <= 4
        assert sorted(each.failed_at for each in found) == newest
        by_filter = [job.id async for job in operator.iter_jobs(queue_name, JobFilter(state="failed", error="or 3"))]
        assert len(by_filter) == 1


async def test_new_data_that_comes_too_late_is_reported(url: str, queue_name: str):
    dead = f"{queue_name}-dead"
    async with Queue(queue_name, url, dead_letter_queue=dead) as queue:
        await queue.add("mail", {"error": "wrong"})
        await run_failing(url, queue_name, 1, dead_letter_queue=dead)
        (entry,) = await queue.dead_letters.get_all()
        # An interrupted replay has added the job and not deleted the entry.
        job = await queue.dead_letters.replay(entry.id)
        assert job is not None
        async with Queue(dead, url) as letters:
            await letters.add(entry.name, entry.data, job_id=entry.id)
        async with browsing(url, allow_changes=True) as client:
            fields = {"change": "replay-edited", "q": queue_name, "id": entry.id, "data": '{"error": "other"}'}
            shown = (await client.get((await posted(client, **fields)).headers["location"])).text
            assert f"nothing changed; 1 could not be changed: {entry.id}: had already been added again as" in shown
        (waiting,) = await queue.get_jobs("waiting")
        assert (waiting.id, waiting.data) == (job.id, {"error": "wrong"})
        assert await queue.dead_letters.get_all() == []


class Reversed:
    """Stores text that is not JSON, as a serializer that encrypts does."""

    def serialize(self, value: Any) -> str:
        return json.dumps(value)[::-1] + "~"

    def deserialize(self, text: str) -> Any:
        assert text.endswith("~")
        return json.loads(text[-2::-1])


class Enveloped:
    """Stores JSON that is not the JSON of the value."""

    def serialize(self, value: Any) -> str:
        return json.dumps({"v": 1, "value": value})

    def deserialize(self, text: str) -> Any:
        return json.loads(text)["value"]


@pytest.mark.parametrize(
    ("serializer", "encoding"), [(Reversed(), "stored"), (Enveloped(), "json")], ids=["text", "JSON"]
)
async def test_data_of_another_serializer_is_not_edited(url: str, queue_name: str, serializer: Any, encoding: str):
    options: Any = {"dead_letter_queue": f"{queue_name}-dead", "serializer": serializer}
    async with Queue(queue_name, url, **options) as queue, Operator(url) as operator:
        failed = await queue.add("mail", {"error": "wrong"})
        await run_failing(url, queue_name, 1, **options)
        (entry,) = [each async for each in iter_dead_letters(operator, queue_name)]
        assert entry.encoding == encoding
        details = await operator.get_job(queue_name, failed.id)
        assert details is not None
        async with browsing(url, allow_changes=True) as client:
            assert "replay-edited" not in await page(client, "dead-letters", q=queue_name)
            for data in ('"clear"', json.dumps(entry.data)):
                response = await posted(client, change="replay-edited", q=queue_name, id=entry.id, data=data)
                assert response.status_code == 400
                assert "cannot be read here" in response.text
            if encoding == "stored":
                assert details.encoding == encoding
                assert "retry-edited" not in await page(client, "job", q=queue_name, id=failed.id)
                response = await posted(client, change="retry-edited", q=queue_name, id=failed.id, data='"clear"')
                assert response.status_code == 400
                assert "cannot be read here" in response.text
        found = await queue.get_job(failed.id)
        assert found is not None
        assert (found.state, found.data) == ("failed", {"error": "wrong"})
        assert not await queue.get_jobs("waiting")
        assert [each.id async for each in queue.dead_letters.iter()] == [entry.id]
        # The queue that has the serializer can.
        job = await dead_letters.replay_entry(queue, entry.id, lambda: {"error": "other"})
        assert job is not None
        (waiting,) = await queue.get_jobs("waiting")
        assert (waiting.id, waiting.data) == (job.id, {"error": "other"})


async def test_dead_letters_are_grouped_by_error(url: str, queue_name: str):
    dead = f"{queue_name}-dead"
    async with Queue(queue_name, url, dead_letter_queue=dead) as queue:
        await queue.add_bulk([("mail", {"error": f"smtp {n}: " + "refused " * 60}) for n in range(30)])
        await queue.add("mail", {"error": "other"})
        await run_failing(url, queue_name, 31, dead_letter_queue=dead)
        async with Operator(url) as operator:
            newest, is_cut = await get_newest_dead_letters(operator, queue_name, 7)
            everything = [each.id async for each in iter_dead_letters(operator, queue_name)]
            assert ([each.id for each in newest], is_cut) == (everything[:-8:-1], True)
            assert (await get_newest_dead_letters(operator, queue_name, 31))[1] is False
        async with browsing(url, allow_changes=True) as client:
            shown = await page(client, "dead-letters", q=queue_name)
            assert re.findall(r'<td class="num">(\d+)</td>', shown) == ["30", "1"]
            assert "and similar" in shown
            assert "and 10 older ones" in shown
            head = shown.split("<summary>Show the entries")[0]
            assert max(map(len, re.findall(r'<span class="bad">([^<]*)</span>', head))) == 160
            ids = re.findall(r'name="id" value="([^"]+)"', head)[:30]
            fields = {"change": "replay", "q": queue_name, "id": ids}
            response = await client.post("/change", data=fields, headers=FROM_HERE)
            assert response.status_code == 303
            assert "30 jobs added again" in (await client.get(response.headers["location"])).text
            assert len(await queue.dead_letters.get_all()) == 1


async def test_broken_data_is_not_edited(url: str, queue_name: str):
    async with Queue(queue_name, url, dead_letter_queue=f"{queue_name}-dead") as queue:
        failed = await queue.add("mail", {"error": "wrong"})
        link = await connected(queue)
        await link.transport.command("HSET", link.keys.job(failed.id), "data", '{"error": "wro')
        await run_failing(url, queue_name, 1)
        (entry,) = await queue.dead_letters.get_all()
        await queue.remove(failed.id)
        with pytest.raises(SerializationError, match="cannot be read here"):
            await dead_letters.replay_entry(queue, entry.id, lambda: {"error": "other"})
        assert [each.id async for each in queue.dead_letters.iter()] == [entry.id]


@pytest.mark.slow
async def test_workers_show_memory_slots_and_what_fetches_no_jobs(queue: Queue, url: str, queue_name: str):
    async def handler(_: Job): ...

    async with browsing(url, allow_changes=True) as client:
        await queue.add("a")
        async with Worker(queue_name, handler, url, concurrency=7, lock_duration=1_000) as worker:
            (found,) = await queue.get_workers()
            assert found.concurrency == 7
            assert found.memory is None or found.memory > 10 << 20
            assert not found.paused
            shown = await page(client, "workers", q=queue_name)
            assert re.search(r"\d of 7</td>", shown)
            assert "MiB" in shown
            assert "of 7 slots" in await page(client, "", find=queue_name)
            assert "MiB" in await page(client, "worker", q=queue_name, id=worker.consumer)
            back = f"workers?{urlencode({'q': queue_name})}"
            fields = {"q": queue_name, "worker": worker.consumer, "back": back}
            assert (await posted(client, change="quiet-worker", **fields)).status_code == 303
            async with asyncio.timeout(60):
                while not (await queue.get_workers())[0].paused:  # noqa: ASYNC110 - until its next heartbeat
                    await asyncio.sleep(0.01)
        async with browsing(url, allow_changes=True) as other:
            assert "No worker serves this queue" in await page(other, "workers", q=queue_name)
