"""Pictures of `glidemq top`: each tab and the question, compared with those of the documents.

``GLIDEMQ_PICTURES=docs/operate/images`` writes them there. They are compared as a whole if textual has the version that
wrote them, and else by the texts that they show.
"""

from __future__ import annotations

import asyncio
import html
import importlib.metadata
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from glidemq_py import FailureReason, JobState
from glidemq_py._operate.filters import JobFilter
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.snapshots import JobPage, JobSummary, QueueSnapshot, ScheduleSnapshot
from glidemq_py.records import Failure

pytest.importorskip("textual", reason="needs the extra `cli`")
from glidemq_py.cli.top_screen import Top

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "operate" / "images"
NOW: Final = 1_800_000_000_000
MINUTE: Final = 60_000
SIZE: Final = (110, 14)


def queue(name: str, **counts: Any) -> QueueSnapshot:
    given: dict[str, Any] = dict.fromkeys(
        ("workers", "oldest_waiting", "waiting", "prioritized", "group_waiting", "active", "delayed", "suspended",
         "waiting_children", "completed", "failed", "outbox"), 0,
    )  # fmt: skip
    return QueueSnapshot(name=name, **{**given, "paused": False, **counts})


class Shop:
    """The queues of a shop, always in the same state."""

    async def list_queues(self) -> list[str]:
        return ["emails", "images", "orders"]

    async def get_queues(self, names: list[str]) -> list[QueueSnapshot]:
        return [
            queue("emails", workers=2, waiting=1_204, active=8, delayed=31, completed=98_211, failed=3,
                  oldest_waiting=95_000),
            queue("images", paused=True, waiting=40, completed=12, oldest_waiting=2 * 3_600_000),
            queue("orders", workers=4, active=2, completed=1_000, failed=1),
        ]  # fmt: skip

    async def get_jobs(self, name: str, wanted: JobFilter, *, count: int) -> JobPage:
        def job(number: int, job_name: str, progress: object) -> JobSummary:
            return JobSummary(
                id=str(number), name=job_name, queue=name, state=JobState.ACTIVE, added_at=NOW, due_at=None,
                started_at=NOW - number * 1_000, finished_at=None, run_time=None, attempts_made=number % 2,
                priority=0, group=None, fair_key=None, tags=(), error=None, error_type=None,
                progress=cast("Any", progress),
            )  # fmt: skip

        return JobPage(jobs=(job(17, "welcome", None), job(95, "invoice [b]", 40)), cursor="", examined=2)

    async def get_newest_failures(self, name: str, count: int) -> tuple[list[Failure], bool]:
        failure = Failure(
            job_id="12", name="welcome", reason=FailureReason.MAX_ATTEMPTS_EXCEEDED, error="smtp.example.org refused",
            error_type="ConnectionRefusedError", failed_at=NOW - 5 * MINUTE, attempts_made=3, auto_retries=0,
            next_retry_at=None, expires_at=None,
        )  # fmt: skip
        return [failure], False

    async def get_schedules(self, name: str) -> list[ScheduleSnapshot]:
        return [
            ScheduleSnapshot(
                name=f"{name}-digest", queue=name, when="0 3 * * *", timezone="UTC", overlap="allow", job_name="digest",
                data=None, paused_at=NOW if name == "images" else None, next_run=NOW + 90 * MINUTE, upcoming=(),
                last_run=NOW - 60 * MINUTE, runs=31, limit=None, skipped=0, last_job_id=None, last_runs=(),
            )
        ]  # fmt: skip


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the clock, in UTC."""
    monkeypatch.setattr("glidemq_py.cli.shell.time.time", lambda: NOW / 1_000)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def texts(picture: str) -> list[str]:
    """Return the texts of an SVG picture, line by line."""
    found: dict[str, str] = {}
    for y, text in re.findall(r'<text [^>]*?y="([\d.]+)"[^>]*>([^<]*)</text>', picture):
        found[y] = found.get(y, "") + html.unescape(text).replace("\xa0", " ")
    return [re.sub(r"\s+", " ", line).strip() for line in found.values()]


def compare(picture: str, name: str) -> None:
    """Compare a picture with that of the documents, or write it there."""
    mark = f"<!-- textual {importlib.metadata.version('textual')} -->\n"
    same_ids = mark + re.sub(r"terminal-\d+", "terminal", picture)
    chosen = os.environ.get("GLIDEMQ_PICTURES")
    if chosen:
        (Path(chosen) / name).write_text(same_ids, encoding="utf-8")
    stored = (IMAGES / name).read_text(encoding="utf-8")
    assert texts(same_ids) == texts(stored)
    if stored.startswith(mark):
        assert same_ids == stored, f"{name} looks different: take it again with GLIDEMQ_PICTURES"
    if not name.startswith("top-question"):
        assert f"images/{name}" in (IMAGES.parent / "shell.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ((), "top-queues.svg"), (("2",), "top-running.svg"), (("3",), "top-failures.svg"),
        (("4",), "top-schedules.svg"), (("2", "c"), "top-question.svg"),
    ],
)  # fmt: skip
async def test_pictures_of_tabs(keys: tuple[str, ...], name: str) -> None:
    app = Top(cast("Operator", Shop()), interval=3_600)
    async with app.run_test(size=SIZE) as pilot:
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        await pilot.pause()
        picture = app.export_screenshot(title="glidemq top")
        async with asyncio.timeout(30):
            while "palette" not in picture:  # the last word of the footer, which is drawn later on a busy machine
                await pilot.pause()
                picture = app.export_screenshot(title="glidemq top")
        compare(picture, name)
