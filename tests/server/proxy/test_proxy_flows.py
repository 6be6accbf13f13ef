"""Tests of flows over HTTP: trees and graphs, their records, their revocation."""

import asyncio
from typing import Any

import httpx

from glidemq_py import Job
from tests.server.proxy.support import worked_off

JSON = {"content-type": "application/json"}


def test_size_of_a_diamond_chain_is_linear(http: httpx.Client, queue_name: str):
    nodes: list[dict[str, Any]] = [{"name": "0", "queueName": queue_name}]
    for i in range(1, 41):
        below = str(i - 1)
        nodes += [{"name": f"{i}{side}", "queueName": queue_name, "deps": [below]} for side in "lr"]
        nodes.append({"name": str(i), "queueName": queue_name, "deps": [f"{i}l", f"{i}r"]})
    flow_id = http.post("/flows", json={"dag": {"nodes": nodes}}).json()["flowId"]
    text = http.get(f"/flows/{flow_id}/tree").text
    assert text.count('"name":') <= 2 * len(nodes)
    assert '"more":true' in text


def test_revoking_a_flow_ends_waiting_and_flags_active_jobs(http: httpx.Client, queue_name: str, url: str):
    other = f"{queue_name}-other"
    flow = {
        "name": "top", "queueName": queue_name,
        "children": [
            {"name": "runs", "queueName": other},
            {"name": "inner", "queueName": queue_name, "children": [
                {"name": "later", "queueName": queue_name, "opts": {"delay": 60_000}},
            ]},
        ],
    }  # fmt: skip
    made = http.post("/flows", json={"flow": flow}).json()
    revoked: dict[str, Any] = {}

    async def handle(job: Job):
        revoked.update((await asyncio.to_thread(http.delete, f"/flows/{made['flowId']}")).json())
        assert await job.is_revoked()

    worked_off(url, handle, other)
    assert (revoked["revoked"], revoked["flagged"], revoked["skipped"]) == (3, 1, 0)
    statuses = {job["status"] for job in revoked["jobs"] if job["queueName"] == other}
    assert statuses == {"flagged"}
    counts = http.get(f"/queues/{queue_name}/counts").json()
    assert (counts["failed"], counts["waiting"], counts["delayed"]) == (3, 0, 0)


def test_too_deep_tree_is_400(http: httpx.Client, queue_name: str):
    def deep(levels: int) -> str:
        job = f'{{"name":"n","queueName":"{queue_name}"'
        return '{"flow":' + f'{job},"children":[' * (levels - 1) + job + "}" + "]}" * (levels - 1) + "}"

    assert http.post("/flows", content=deep(101), headers=JSON).status_code == 400
    assert http.post("/flows", content=deep(5_000), headers=JSON).status_code == 400
    made = http.post("/flows", content=deep(100), headers=JSON)
    assert made.status_code == 201
    assert http.get(f"/flows/{made.json()['flowId']}/tree").text.count('"children"') == 99
