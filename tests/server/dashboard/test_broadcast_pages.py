"""Pages of a broadcast: overview, messages, a message, and the dead letters of its subscriptions."""

from __future__ import annotations

import re

import httpx
import pytest

from glidemq_py import Broadcast, Queue
from glidemq_py._operate.actions import DrainQueue
from glidemq_py._operate.broadcasts import BroadcastActionError
from glidemq_py._operate.bulk import create_bulk
from glidemq_py._operate.operating import Operator
from glidemq_py.dashboard.texts import NONE
from tests.server.broadcast_support import SUBJECT, fill
from tests.server.dashboard.support import FROM_HERE, Elements, browsing
from tests.server.dashboard.test_pages import EVIL, page, posted


def row_of(shown: str, name: str) -> list[str]:
    """Return the texts of the cells of a table's row that begins with a name."""
    (row,) = re.findall(rf"<tr><td[^>]*>{re.escape(name)}</td>(.*?)</tr>", shown, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]


async def changed(client: httpx.AsyncClient, **fields: str) -> str:
    """Make a change; return the page that it leads to."""
    response = await posted(client, **fields)
    assert response.status_code == 303, response.text
    return (await client.get(response.headers["location"])).text


async def test_overview_of_a_broadcast_shows_its_subscriptions(url: str, queue_name: str) -> None:
    await fill(url, queue_name)
    async with browsing(url, allow_changes=True) as client:
        shown = await page(client, "queue", q=queue_name)
        assert re.findall(r"<dt>([^<]*)</dt>", shown)[:7] == [
            "Messages kept", "Subscriptions", "Unread, at most", "Active", "Delayed", "Workers", "Dead letters",
        ]  # fmt: skip
        assert row_of(shown, "search")[0] == "3"
        assert row_of(shown, "search")[4:] == ["none yet", NONE]
        assert row_of(shown, "audit")[0] == "0"
        assert row_of(shown, "audit")[5] == f"1 in {queue_name}-audit-dead"
        assert row_of(shown, "mailer")[5] == NONE
        for text in ("By job name", "Failures", "Delete jobs", "Set limits of a group"):
            assert text not in shown
        assert "Set limits" in shown
        assert "Unread, at most" in await page(client, "subscriptions", q=queue_name)
        assert "By job name" not in await page(client, "metrics", q=queue_name)
        listed = await page(client, "", find=queue_name)
        assert '<span class="badge">broadcast</span>' in listed


async def test_a_queue_has_no_subscriptions(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue, browsing(url) as client:
        await queue.add("a")
        assert "broadcast" not in await page(client, "queue", q=queue_name)
        response = await client.get(f"/subscriptions?q={queue_name}")
        assert response.status_code == 404
        assert "is not a broadcast" in response.text


async def test_messages_are_listed_without_buttons(url: str, queue_name: str) -> None:
    await fill(url, queue_name, 60)
    async with browsing(url, allow_changes=True) as client:
        shown = await page(client, "jobs", q=queue_name)
        assert SUBJECT in shown
        assert "hunter2" not in shown
        assert "&#34;order&#34;: 0" in shown
        assert not re.search(r"<button[^>]*>(Cancel|Delete|Retry|Run now|Add)", shown)
        assert "of_filter" not in shown
        rest = next(link for link in Elements(shown).links() if "cursor=" in link)
        ids = re.findall(r"id=(\d+)\"><code>", shown) + re.findall(r"id=(\d+)\"><code>", (await client.get(rest)).text)
        assert ids == [str(n) for n in range(1, 61)]
        found = await page(client, "jobs", q=queue_name, filter="data:order=7")
        assert re.findall(r"id=(\d+)\"><code>", found) == ["8"]
        assert "No messages match" in await page(client, "jobs", q=queue_name, filter="name:other")
        assert "There is no message 99." in await page(client, "jobs", q=queue_name, filter="99")
        assert "must be waiting or delayed" in await page(client, "jobs", q=queue_name, state="failed")
        assert "No messages are delayed" in await page(client, "jobs", q=queue_name, state="delayed")


async def test_a_message_is_shown_with_its_state_in_each_subscription(url: str, queue_name: str) -> None:
    await fill(url, queue_name)
    async with browsing(url, allow_changes=True) as client:
        shown = await page(client, "job", q=queue_name, id="2")
        assert row_of(shown, "audit")[:3] == ["failed", "1", "ConnectionError: tax office is closed"]
        assert row_of(shown, "mailer")[0] == "completed"
        assert row_of(shown, "search")[0] == "waiting"
        assert "hunter2" not in shown
        assert 'action="change"' not in shown


async def test_dead_letters_of_subscriptions_are_listed_delivered_again_and_deleted(url: str, queue_name: str) -> None:
    await fill(url, queue_name)
    async with browsing(url, allow_changes=True) as client:
        shown = await page(client, "dead-letters", q=queue_name)
        assert set(re.findall(r"subscription=(\w+)\"", shown)) == {"audit", "invoices"}
        of_audit = await page(client, "dead-letters", q=queue_name, subscription="audit")
        assert "Of subscription audit" in of_audit
        assert "invoices" not in of_audit
        (entry,) = set(Elements(of_audit).ids())
        change = {"q": queue_name, "subscription": "audit", "id": entry, "back": f"dead-letters?q={queue_name}"}
        assert "1 message to be delivered again" in await changed(client, change="redeliver", **change)
        shown = await page(client, "dead-letters", q=queue_name)
        assert set(re.findall(r"subscription=(\w+)\"", shown)) == {"invoices"}
        purge = {"q": queue_name, "of_filter": "1", "subscription": "invoices", "confirmed": "1"}
        assert "1 dead letter deleted" in await changed(client, change="purge-dead", back=change["back"], **purge)
        assert "No dead letters" in await page(client, "dead-letters", q=queue_name)
        response = await client.get(f"/dead-letters?q={queue_name}&subscription=nope")
        assert response.status_code == 400
        assert "has no subscription" in response.text
    async with Broadcast(queue_name, url) as broadcast:
        delivery = await broadcast.get_delivery("2", "audit")
        assert delivery is not None
        assert delivery.state == "delayed"


async def test_a_broadcast_without_dead_letter_queue_says_how_to_set_one(url: str, queue_name: str) -> None:
    async with Broadcast(queue_name, url) as broadcast, browsing(url) as client:
        await broadcast.subscribe("mailer")
        assert "No dead letter queue" in await page(client, "dead-letters", q=queue_name)


async def test_changes_of_jobs_are_rejected(url: str, queue_name: str) -> None:
    await fill(url, queue_name, 1)
    async with browsing(url, allow_changes=True) as client:
        for kind in ("drain", "add", "cancel"):
            form = {"change": kind, "q": queue_name, "name": "a", "id": "1", "confirmed": "1"}
            response = await client.post("/change", data=form, headers=FROM_HERE)
            assert response.status_code == 400
            assert "is a broadcast, which has messages instead of jobs" in response.text
    async with Operator(url) as operator:
        with pytest.raises(BroadcastActionError):
            await create_bulk(operator, DrainQueue(queue=queue_name), "alice", "drain", 1)


async def test_pages_escape_everything_that_a_message_contains(url: str, queue_name: str) -> None:
    await fill(url, queue_name, evil=EVIL)
    async with browsing(url, allow_changes=True) as client:
        for path in ("queue", "jobs", "job", "dead-letters"):
            shown = await page(client, path, q=queue_name, id="2")
            assert EVIL not in shown
            assert not [attributes for _, attributes in Elements(shown).found if "onerror" in attributes]


async def test_an_idle_broadcast_names_how_to_start_a_worker(url: str, queue_name: str) -> None:
    async with Broadcast(queue_name, url) as broadcast, browsing(url) as client:
        await broadcast.subscribe("mailer")
        shown = await page(client, "workers", q=queue_name)
        assert "BroadcastWorker(" in shown
        assert "Active jobs" not in shown
