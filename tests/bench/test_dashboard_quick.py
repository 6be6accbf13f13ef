"""Tests that the benchmark of the dashboard runs; its figures are not tested."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("starlette", reason="needs the extra `dashboard`")
from tests.bench.dashboard import OPEN, PAGES, fill, measure
from tests.bench.server import running_server


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_every_page_is_measured():
    with running_server() as server:
        asyncio.run(fill(server, 12, 40))
        rows = asyncio.run(measure(server, 0.5, 1))
    assert len(rows) == 2 * len(PAGES) + len(OPEN) + 1
    assert all(row.value > 0 for row in rows if row.unit == "ms" and "longest call" not in row.label)
    assert all("| yes |" in row.text() or "| no |" in row.text() for row in rows)
