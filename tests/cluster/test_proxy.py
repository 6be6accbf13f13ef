"""The proxy on a cluster: a flow across slots, whose record is in another slot; a queue over several slots."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.server.gateway.script import Case
from tests.server.player import cases_of
from tests.server.proxy.support import running_proxy
from tests.server.proxy.test_proxy_partitions import (
    PARTITIONS,
    add_to_partitions,
    events_of,
    make_queue,
)
from tests.server.test_transcripts import FOLDER, play_for_operators


def test_flow_across_slots(cluster: Any):
    first, second = (f"q-{uuid.uuid4().hex[:8]}" for _ in range(2))
    leaf = {"name": "leaf", "queueName": second}
    with running_proxy(cluster.url) as (http, _):
        made = http.post("/flows", json={"flow": {"name": "top", "queueName": first, "children": [leaf]}})
        assert made.status_code == 201, made.text
        at = f"/flows/{made.json()['flowId']}"
        assert http.get(at).json()["counts"] == {"waiting-children": 1, "waiting": 1}
        (tree,) = http.get(f"{at}/tree").json()["tree"]
        assert tree["children"][0]["queueName"] == second
        assert http.delete(at).json()["revoked"] == 2
        assert http.get(at).status_code == 404


@pytest.mark.parametrize(("path", "case", "count"), [each for each in cases_of(FOLDER / "proxy") if each.values[2] > 1])
async def test_transcript(
    cluster_url: str, queue_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    cluster_resp: Any, path: Path, case: Case, count: int,
):  # fmt: skip
    with running_proxy(cluster_url) as (client, _):
        await play_for_operators(
            cluster_url, queue_name, path, case, count, caplog, monkeypatch, shell=None, port=client.base_url.port or 0,
            server=cluster_resp, most_replayed=100,
        )  # fmt: skip


def test_events_of_all_partitions_are_streamed_once(cluster: Any):
    name = f"q-{uuid.uuid4().hex[:8]}"
    make_queue(cluster.url, name, PARTITIONS)
    base, ids = f"/queues/{name}", list[str]()
    with running_proxy(cluster.url, keep_alive=200) as (http, _):

        def add():
            ids.extend(add_to_partitions(http, base))

        seen = events_of(http, f"{base}/events", PARTITIONS, add)
        assert sorted(data["jobId"] for _, _, data in seen) == sorted(ids)
        rest = [data["jobId"] for _, _, data in events_of(http, f"{base}/events", PARTITIONS + 1, add, seen[1][0])]
        assert rest[0] == seen[2][2]["jobId"]
        assert sorted(rest[1:]) == sorted(ids[PARTITIONS:])
