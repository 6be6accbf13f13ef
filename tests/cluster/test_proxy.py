"""The proxy on a cluster: a flow across slots, whose record is in another slot."""

import uuid
from typing import Any

from tests.server.proxy.support import running_proxy


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
