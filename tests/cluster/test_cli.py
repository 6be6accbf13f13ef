"""`glidemq` on a cluster: every primary is examined, and a flow is read across slots."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import FlowProducer
from tests.server.cli_support import Shell

pytest.importorskip("typer", reason="needs the extra `cli`")


@pytest.mark.slow
def test_commands_work_on_a_cluster(
    cluster: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    shell = Shell(cluster.url, capfd, monkeypatch)
    first, second = (f"q-{uuid.uuid4().hex[:8]}" for _ in range(2))

    async def add() -> str:
        async with FlowProducer(cluster.url) as flows:
            leaf: Any = {"name": "leaf", "queue": second, "data": {}}
            node = await flows.add({"name": "top", "queue": first, "data": {}, "children": [leaf]})
            return node.job.id

    root = asyncio.run(add())
    assert [each["name"] for each in shell("queue", "ls", first, second, "--json").json()] == [first, second]
    assert shell("flow", "show", first, root, "--json").json()["children"][0]["queue"] == second
    found = shell("doctor", first, "--json").json()
    nodes = {each["subject"] for each in found if each["check"] == "connection"}
    assert len(nodes) == 3
    assert {each["subject"] for each in found if each["check"] == "library"} == nodes
    assert shell("queue", "obliterate", first, "--yes", "--force").code == 0
