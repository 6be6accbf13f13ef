"""The proxy on a cluster: a flow across slots, whose record is in another slot; a queue over several slots."""

import uuid
from typing import Any

from tests.server.proxy.support import running_proxy
from tests.server.proxy.test_proxy_partitions import (
    PARTITIONS,
    add_to_partitions,
    compare_routes,
    events_of,
    make_queue,
)


def test_flow_across_slots(cluster: Any) -> None:
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


def test_every_route_is_that_of_a_plain_queue(cluster: Any) -> None:
    assert list(compare_routes(cluster.url)) == []


def test_events_of_all_partitions_are_streamed_once(cluster: Any) -> None:
    name = f"q-{uuid.uuid4().hex[:8]}"
    make_queue(cluster.url, name, PARTITIONS)
    base, ids = f"/queues/{name}", list[str]()
    with running_proxy(cluster.url, keep_alive=200) as (http, _):

        def add() -> None:
            ids.extend(add_to_partitions(http, base))

        seen = events_of(http, f"{base}/events", PARTITIONS, add)
        assert sorted(data["jobId"] for _, _, data in seen) == sorted(ids)
        rest = [data["jobId"] for _, _, data in events_of(http, f"{base}/events", PARTITIONS + 1, add, seen[1][0])]
        assert rest[0] == seen[2][2]["jobId"]
        assert sorted(rest[1:]) == sorted(ids[PARTITIONS:])
