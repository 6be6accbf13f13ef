"""Test pause, remove, retry, update_job, locks and obliterate."""

import re
from pathlib import Path

import pytest

from glidemq_py._features.streams.job_api import _append as chunk
from tests.inside import AttemptStatus as S
from tests.inside import administration, row
from tests.lua.own_support import Fetched, OwnQueue

LUA = Path(__file__).parents[2] / "lua"


def work(q: OwnQueue, jobs: int):
    """Two events a job, added one by one and completed five at a time, as time goes by."""
    for n in range(1, jobs + 1):
        q.advance(n % 3)
        q.add_job()
        if n % 5 == 0:
            q.finish(*(job.completed() for job in q.fetch(5)))


@pytest.mark.slow
def test_event_retention_can_be_raised(q: OwnQueue):
    assert q.run(administration.set_settings(q.meta, maxLenEvents="3000")) == 1
    q.add(*[row("task", "{}", "{}") for _ in range(900)])
    work(q, 1_500)
    for _ in range(100):
        q.add_job(priority=1)
        q.finish(q.take_one().failed("boom"))
    assert 3_000 <= q.redis("XLEN", "events") <= 3_300
    assert q.run(administration.set_settings(q.meta, maxLenEvents=None)) == 1
    assert q.redis("HGET", "meta", "maxLenEvents") is None
    q.run(administration.pause(q.meta))
    assert q.redis("XLEN", "events") <= 1_100


@pytest.mark.parametrize("kind", ["log", "jstream"])
def test_numbered_append_is_made_once_in_any_order(q: OwnQueue, kind: str):
    q.add_job()

    def append(job: Fetched, number: int) -> S:
        token = (job.fence, job.processed_on)
        if kind == "log":
            return q.run(administration.append_job_log(q.meta, "1", str(number), 0, token, str(number)))
        status, entry = q.run(chunk(q.meta, "1", *token, 0, ["n", str(number)], str(number)))
        if status in (S.OK, S.ALREADY) and str(number) not in old:
            assert q.redis("XRANGE", "jstream:1", entry, entry) == [[entry, ["n", str(number)]]]
        return status

    def appended() -> list[int]:
        if kind == "log":
            return [int(each) for each in q.redis("LRANGE", "log:1", 0, -1)]
        return [int(fields[1]) for _, fields in q.redis("XRANGE", "jstream:1", "-", "+")]

    first = q.take_one()
    sent = [1, *range(65, 1, -1), 70, 68, 100]  # 65 - 2 < 64: all may be in flight together
    old = {"1", *(str(number) for number in range(62, 66))}  # no longer among the newest 64 chunks
    assert {append(first, number) for number in sent} == {S.OK}
    assert {append(first, number) for number in sent} == {S.ALREADY}
    assert append(first, 67) == S.OK  # lost at first
    assert append(first, 67) == S.ALREADY
    assert len(q.job("1")["appended"]) < 300
    q.finish(first.released())
    assert append(first, 101) == S.STALE
    assert append(q.take_one(), 1) == S.OK  # another attempt counts anew
    assert appended() == [*sent, 67, 1]


def test_obliterate_deletes_every_key_even_of_a_foreign_type(q: OwnQueue):
    names = (LUA / "core" / "queue.lua").read_text(encoding="utf-8").partition("SUFFIXES = ")[2].partition("\n\n")[0]
    suffixes = set(re.sub(r"' *\n? *\.\. '|'", "", names).split()) - {"meta"}
    assert len(suffixes) > 50
    for suffix in suffixes:
        q.redis("SET", suffix, "foreign")
    assert q.obliterate()[-1] == ("done", 0)
    assert q.key_names() == set()
