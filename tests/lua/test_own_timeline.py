"""Test the recording of a job's changes of state."""

import re
from pathlib import Path

from glidemq_py._features.timeline import TimelineEntry, read_timeline
from tests.inside import set_settings
from tests.lua.own_support import OwnQueue


def timeline(q: OwnQueue, job_id: str = "1") -> list[TimelineEntry]:
    return read_timeline(q.job(job_id).get("timeline", ""), int(q.job(job_id).get("timestamp", 0)))


def turn_on(q: OwnQueue, sample: int = 1_000_000, entries: int = 50):
    q.run(set_settings(q.meta, timeline=f"{sample}|{entries}"))


def test_sampled(q: OwnQueue):
    turn_on(q, sample=300_000)
    for _ in range(300):
        q.add_job()
    while jobs := q.fetch(100):
        q.finish(*(job.completed() for job in jobs))
    lengths = [len(timeline(q, str(number))) for number in range(1, 301)]
    assert set(lengths) == {0, 3}
    assert 50 < lengths.count(3) < 130


LUA = Path(__file__).parents[2] / "lua"
UNRECORDED = {
    # A message has a state per subscription, and no timeline.
    "features/broadcast",
    # Records of writes, not of jobs.
    "features/staged_writes",
    # A restored job has the timeline of the backup.
    "features/backup",
}


def test_every_change_of_state_is_recorded():
    changes = [
        path for folder in ("core", "features") for path in sorted((LUA / folder).rglob("*.lua"))
        if re.search(r"(?:'HSET', |G\.set\()[^\n]*'state', ", path.read_text())
        and "/".join(path.relative_to(LUA).parts[:2]) not in UNRECORDED
    ]  # fmt: skip
    assert len(changes) > 12
    assert [
        path.name for path in changes if "timeline" not in path.read_text() and "G.note_" not in path.read_text()
    ] == []
