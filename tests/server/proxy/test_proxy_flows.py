"""Tests of flows over HTTP: trees and graphs, their records, their revocation."""

import asyncio
from typing import Any

import httpx
import pytest

from glidemq_py import Job, Worker
from glidemq_py.testing import RespClient
from tests.server.proxy.support import running_proxy, worked_off

JSON = {"content-type": "application/json"}


@pytest.fixture
def other(queue_name: str) -> str:
    return f"{queue_name}-other"


def tree(queue: str, other: str) -> dict[str, Any]:
    return {
        "name": "top", "queueName": queue, "data": {"n": 0},
        "children": [
            {"name": "left", "queueName": queue, "opts": {"attempts": 2}},
            {"name": "right", "queueName": other, "children": [{"name": "leaf", "queueName": other, "data": None}]},
        ],
    }  # fmt: skip


def named(trees: list[dict[str, Any]]) -> Any:
    return [(each["name"], named(each.get("children", []))) for each in trees]


def test_tree_across_queues(http: httpx.Client, queue_name: str, other: str, url: str, resp: RespClient) -> None:
    made = http.post("/flows", json={"flow": tree(queue_name, other), "budget": {"maxTokens": {"in_put": 500}}})
    assert made.status_code == 201, made.text
    answer = made.json()
    flow_id = answer["flowId"]
    assert (len(flow_id), answer["kind"], answer["nodeCount"]) == (24, "tree", 4)
    assert answer["roots"] == [answer["root"]]
    assert (answer["root"]["name"], answer["root"]["queueName"]) == ("top", queue_name)
    # As peers have it (data-model.md).
    base = f"glide:{{flow:{flow_id}}}"
    meta = resp.execute("HGETALL", f"{base}:meta")
    assert dict(zip(meta[::2], meta[1::2], strict=True)).keys() == {"createdAt", "kind"}
    assert resp.execute("SMEMBERS", f"{base}:roots") == [f"{queue_name}:{answer['root']['id']}"]
    members = resp.execute("SMEMBERS", f"{base}:jobs")
    assert len(members) == 4
    for member in members:
        queue, _, job_id = member.partition(":")
        assert resp.execute("HGET", f"glide:{{{queue}}}:job:{job_id}", "flowId") == flow_id

    found = http.get(f"/flows/{flow_id}").json()
    assert found["counts"] == {"waiting-children": 2, "waiting": 2}
    assert {node["name"] for node in found["nodes"]} == {"top", "left", "right", "leaf"}
    assert found["budget"]["maxTokens"] == {"in_put": 500}
    assert found["createdAt"] > 0
    right = next(job for job in http.get(f"/queues/{other}/jobs?state=waiting-children").json()["jobs"])
    (leaf,) = http.get(f"/queues/{other}/jobs?state=waiting").json()["jobs"]
    for job in (leaf, http.get(f"/queues/{other}/jobs/{leaf['id']}").json()):
        assert (job["parentId"], job["parentQueue"]) == (right["id"], other)
    assert (right["parentId"], right["parentQueue"]) == (answer["root"]["id"], queue_name)
    assert http.get(f"/queues/{queue_name}/jobs/{answer['root']['id']}").json()["parentId"] is None
    shown = http.get(f"/flows/{flow_id}/tree").json()
    assert named(shown["tree"]) == [("top", [("left", []), ("right", [("leaf", [])])])]
    assert shown["roots"] == [answer["root"]]

    async def handle(job: Job) -> None:
        await job.report_usage(model="m", tokens={"in_put": 7})

    worked_off(url, handle, other, queue_name)
    found = http.get(f"/flows/{flow_id}").json()
    assert found["counts"] == {"completed": 4}
    assert found["usage"]["jobCount"] == 4
    assert found["usage"]["tokens"] == {"in_put": 28}
    assert found["budget"]["usedTokensByCategory"] == {"in_put": 28}

    ended = http.delete(f"/flows/{flow_id}").json()
    assert (ended["revoked"], ended["flagged"], ended["skipped"]) == (0, 0, 4)
    assert http.get(f"/flows/{flow_id}").status_code == 404
    assert http.get(f"/flows/{flow_id}/tree").status_code == 404
    assert http.delete(f"/flows/{flow_id}").status_code == 404
    assert resp.keys(f"{base}*") == []
    assert resp.execute("EXISTS", f"glide:{{{queue_name}}}:job:{answer['root']['id']}") == 1


def test_flows_with_equal_root_ids_in_two_queues_are_distinct(http: httpx.Client, queue_name: str, other: str) -> None:
    # W52: a flow's id was that of its root, and the second one overwrote the record of the first.
    def flow(queue: str) -> dict[str, Any]:
        return {"flow": {"name": queue, "queueName": queue, "opts": {"jobId": "same"}}}

    first = http.post("/flows", json=flow(queue_name)).json()
    second = http.post("/flows", json=flow(other)).json()
    assert first["root"]["id"] == second["root"]["id"] == "same"
    for made, queue in ((first, queue_name), (second, other)):
        (node,) = http.get(f"/flows/{made['flowId']}").json()["nodes"]
        assert (node["queueName"], node["name"]) == (queue, queue)


def test_graph_is_added_and_read(http: httpx.Client, queue_name: str, other: str, url: str) -> None:
    nodes = [
        {"name": "a", "queueName": queue_name, "data": 1},
        {"name": "b", "queueName": queue_name, "deps": ["a"]},
        {"name": "c", "queueName": other, "deps": ["a"]},
        {"name": "d", "queueName": queue_name, "deps": ["b", "c"]},
        {"name": "e", "queueName": queue_name, "deps": ["c"]},
    ]
    made = http.post("/flows", json={"dag": {"nodes": nodes}})
    assert made.status_code == 201, made.text
    answer = made.json()
    assert (answer["kind"], answer["nodeCount"], "root" in answer) == ("dag", 5, False)
    assert {root["name"] for root in answer["roots"]} == {"d", "e"}
    assert set(answer["jobs"]) == set("abcde")
    assert answer["jobs"]["c"]["queueName"] == other
    found = http.get(f"/flows/{answer['flowId']}").json()
    assert found["counts"] == {"waiting": 1, "waiting-children": 4}
    assert found["budget"] is None
    trees = {each["name"]: each for each in http.get(f"/flows/{answer['flowId']}/tree").json()["tree"]}
    assert {each["name"] for each in trees["d"]["children"]} == {"b", "c"}
    # What two of them wait for is shown with its own children once in each tree.
    assert named([trees["e"]]) == [("e", [("c", [("a", [])])])]

    left = {"d", "e"}

    async def handle(job: Job) -> None:
        left.discard(job.name)
        if not left:
            done.set()

    async def work() -> None:
        async with Worker(queue_name, handle, url), Worker(other, handle, url):
            await asyncio.wait_for(done.wait(), 20)

    done = asyncio.Event()
    asyncio.run(work())
    assert http.get(f"/flows/{answer['flowId']}").json()["counts"] == {"completed": 5}


def test_size_of_a_diamond_chain_is_linear(http: httpx.Client, queue_name: str) -> None:
    nodes: list[dict[str, Any]] = [{"name": "0", "queueName": queue_name}]
    for i in range(1, 41):
        below = str(i - 1)
        nodes += [{"name": f"{i}{side}", "queueName": queue_name, "deps": [below]} for side in "lr"]
        nodes.append({"name": str(i), "queueName": queue_name, "deps": [f"{i}l", f"{i}r"]})
    flow_id = http.post("/flows", json={"dag": {"nodes": nodes}}).json()["flowId"]
    text = http.get(f"/flows/{flow_id}/tree").text
    assert text.count('"name":') <= 2 * len(nodes)
    assert '"more":true' in text


def test_every_job_of_a_large_flow_has_the_flow_id(http: httpx.Client, queue_name: str, resp: RespClient) -> None:
    children = [{"name": f"c{i}", "queueName": queue_name} for i in range(250)]
    made = http.post("/flows", json={"flow": {"name": "top", "queueName": queue_name, "children": children}}).json()
    assert made["nodeCount"] == 251
    for member in resp.execute("SMEMBERS", f"glide:{{flow:{made['flowId']}}}:jobs"):
        key = f"glide:{{{queue_name}}}:job:{member.partition(':')[2]}"
        assert resp.execute("HGET", key, "flowId") == made["flowId"]
    ended = http.delete(f"/flows/{made['flowId']}").json()
    assert ended["revoked"] + ended["flagged"] == 251
    assert ended["skipped"] == 0


def test_revoking_a_flow_ends_waiting_and_flags_active_jobs(
    http: httpx.Client, queue_name: str, other: str, url: str
) -> None:
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

    async def handle(job: Job) -> None:
        revoked.update((await asyncio.to_thread(http.delete, f"/flows/{made['flowId']}")).json())
        assert await job.is_revoked()

    worked_off(url, handle, other)
    assert (revoked["revoked"], revoked["flagged"], revoked["skipped"]) == (3, 1, 0)
    statuses = {job["status"] for job in revoked["jobs"] if job["queueName"] == other}
    assert statuses == {"flagged"}
    counts = http.get(f"/queues/{queue_name}/counts").json()
    assert (counts["failed"], counts["waiting"], counts["delayed"]) == (3, 0, 0)


def test_deleted_jobs_are_counted_as_missing(http: httpx.Client, queue_name: str, resp: RespClient) -> None:
    made = http.post("/flows", json={"flow": {"name": "top", "queueName": queue_name}}).json()
    http.post(f"/queues/{queue_name}/drain")
    found = http.get(f"/flows/{made['flowId']}").json()
    assert found["counts"] == {"gone": 1}
    assert found["nodes"][0]["state"] is None
    assert http.get(f"/flows/{made['flowId']}/tree").status_code == 200
    assert http.delete(f"/flows/{made['flowId']}").json()["skipped"] == 1
    # A revocation must not recreate a missing job.
    assert resp.execute("EXISTS", f"glide:{{{queue_name}}}:job:{made['root']['id']}") == 0


def test_flow_record_of_a_node_peer_is_read(http: httpx.Client, queue_name: str, resp: RespClient) -> None:
    job = http.post(f"/queues/{queue_name}/jobs", json={"name": "n"}).json()["id"]
    base = f"glide:{{flow:{job}}}"
    resp.execute("HSET", f"{base}:meta", "createdAt", "5", "kind", "tree")
    resp.execute("SADD", f"{base}:jobs", f"{queue_name}:{job}", "junk")
    resp.execute("SADD", f"{base}:roots", f"{queue_name}:{job}")
    found = http.get(f"/flows/{job}").json()
    assert (found["createdAt"], found["counts"]) == (5, {"waiting": 1})
    assert http.delete(f"/flows/{job}").json()["revoked"] == 1
    assert resp.keys(f"{base}*") == []


@pytest.mark.parametrize(
    "body",
    [
        {}, {"flow": None}, {"flow": 1}, {"flow": {}}, {"flow": {"name": "n"}}, {"dag": {}}, {"dag": {"nodes": []}},
        {"flow": {"name": "n", "queueName": "Q"}, "dag": {"nodes": [{"name": "n", "queueName": "Q"}]}},
        {"dag": {"nodes": [{"name": "n", "queueName": "Q"}]}, "budget": {"maxTotalTokens": 5}},
        {"flow": {"name": "n", "queueName": "Q"}, "budget": {}},
        {"flow": {"name": "n", "queueName": "Q"}, "budget": None},
        {"flow": {"name": "n", "queueName": "Q"}, "budget": {"maxTotalTokens": 0}},
        {"flow": {"name": "n", "queueName": "Q", "queue": "Q"}},
        {"flow": {"name": "n", "queueName": "Q", "children": None}},
        {"flow": {"name": "n", "queueName": "Q", "children": [{"name": "n"}]}},
        {"flow": {"name": "n", "queueName": "Q", "opts": {"deduplication": {"id": "x"}}}},
        {"flow": {"name": "n", "queueName": "Q", "children": [{"name": "n", "queueName": "Q", "opts": {"delay": -1}}]}},
        {"dag": {"nodes": [{"name": "n", "queueName": "Q", "deps": ["m"]}]}},
        {"dag": {"nodes": [{"name": "n", "queueName": "Q", "deps": ["n"]}]}},
        {"dag": {"nodes": [{"name": "n", "queueName": "Q", "deps": [["n"]]}]}},
        {"dag": {"nodes": [{"name": "n", "queueName": "Q"}, {"name": "n", "queueName": "Q"}]}},
        {"dag": [{"name": "n", "queueName": "Q"}]},
    ],
)  # fmt: skip
def test_invalid_request_is_400(http: httpx.Client, queue_name: str, body: dict[str, Any], resp: RespClient) -> None:
    text = httpx.Request("POST", "http://x", json=body).content.decode().replace('"Q"', f'"{queue_name}"')
    refused = http.post("/flows", content=text, headers=JSON)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid"), refused.text
    assert resp.keys(f"glide:{{{queue_name}}}:job:*") == []


def test_too_deep_tree_is_400(http: httpx.Client, queue_name: str) -> None:
    def deep(levels: int) -> str:
        job = f'{{"name":"n","queueName":"{queue_name}"'
        return '{"flow":' + f'{job},"children":[' * (levels - 1) + job + "}" + "]}" * (levels - 1) + "}"

    assert http.post("/flows", content=deep(101), headers=JSON).status_code == 400
    assert http.post("/flows", content=deep(5_000), headers=JSON).status_code == 400
    made = http.post("/flows", content=deep(100), headers=JSON)
    assert made.status_code == 201
    assert http.get(f"/flows/{made.json()['flowId']}/tree").text.count('"children"') == 99


def test_existing_job_id_is_409(http: httpx.Client, queue_name: str, resp: RespClient) -> None:
    flow = {"flow": {"name": "n", "queueName": queue_name, "opts": {"jobId": "x"}}}
    assert http.post("/flows", json=flow).status_code == 201
    refused = http.post("/flows", json=flow)
    assert (refused.status_code, refused.json()["code"]) == (409, "duplicate")


def test_other_queues_are_403(url: str, queue_name: str, other: str) -> None:
    with running_proxy(url) as (http, _):
        made = http.post("/flows", json={"flow": tree(queue_name, other)}).json()
    with running_proxy(url, queues=[queue_name]) as (http, _):
        refused = http.post("/flows", json={"flow": tree(queue_name, other)})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        dag = {"nodes": [{"name": "n", "queueName": other}]}
        assert http.post("/flows", json={"dag": dag}).status_code == 403
        for path in ("", "/tree"):
            assert http.get(f"/flows/{made['flowId']}{path}").status_code == 403
        assert http.delete(f"/flows/{made['flowId']}").status_code == 403
        assert http.get("/flows/none").status_code == 404
        assert http.get("/flows/a%7Bb").status_code == 400
