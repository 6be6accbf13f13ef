"""The list of queues, whose sets are in slots of all primaries."""

from __future__ import annotations

from glidemq_py import Queue, list_queues
from glidemq_py import sync as blocking
from glidemq_py.testing import RespClient
from tests.inside import queue_list


async def test_queues_of_all_primaries_are_listed(cluster_url: str, cluster_resp: RespClient, queue_name: str):
    prefix = f"list-{queue_name}"
    names = [f"q{number:02}" for number in range(40)]
    for name in names:
        async with Queue(name, cluster_url, prefix=prefix) as queue:
            await queue.add("a")
    assert await list_queues(cluster_url, prefix=prefix) == names
    assert blocking.list_queues(cluster_url, prefix=prefix) == names
    slots = {
        int(cluster_resp.execute("CLUSTER", "KEYSLOT", key)) * 3 // 16_384 for key in queue_list.shard_keys(prefix)
    }
    assert slots == {0, 1, 2}
    for number in range(6):
        cluster_resp.execute("XADD", f"{prefix}:{{peer{number}}}:events", "*", "event", "added", "jobId", "1")
    found = [*(f"peer{number}" for number in range(6)), *names]
    assert await list_queues(cluster_url, prefix=prefix, scan=True) == found
    assert await list_queues(cluster_url, prefix=prefix) == found
    for name in found:
        async with Queue(name, cluster_url, prefix=prefix) as queue:
            await queue.obliterate()
    assert await list_queues(cluster_url, prefix=prefix) == []
