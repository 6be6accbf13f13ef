"""Pages of a broadcast: overview, messages, a message, and the dead letters of its subscriptions."""

from __future__ import annotations

import re

import pytest

from tests.operating import BroadcastActionError, DrainQueue, Operator, create_bulk
from tests.server.broadcast_support import fill
from tests.server.dashboard.support import Elements, browsing
from tests.server.dashboard.test_pages import EVIL, page


async def test_messages_are_listed_in_pages(url: str, queue_name: str):
    await fill(url, queue_name, 60)
    async with browsing(url, allow_changes=True) as client:
        shown = await page(client, "jobs", q=queue_name)
        rest = next(link for link in Elements(shown).links() if "cursor=" in link)
        ids = re.findall(r"id=(\d+)\"><code>", shown + (await client.get(rest)).text)
        assert ids == [str(n) for n in range(60, 0, -1)]


async def test_changes_of_jobs_are_rejected(url: str, queue_name: str):
    await fill(url, queue_name, 1)
    async with Operator(url) as operator:
        with pytest.raises(BroadcastActionError):
            await create_bulk(operator, DrainQueue(queue=queue_name), "alice", "drain", 1)


async def test_pages_escape_everything_that_a_message_contains(url: str, queue_name: str):
    await fill(url, queue_name, evil=EVIL)
    async with browsing(url, allow_changes=True) as client:
        for path in ("queue", "jobs", "job", "dead-letters"):
            shown = await page(client, path, q=queue_name, id="2")
            assert EVIL not in shown
            assert not [attributes for _, attributes in Elements(shown).found if "onerror" in attributes]
