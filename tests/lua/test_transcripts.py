"""Transcripts of the server functions: each case of a file in transcripts/ is a test on one server.

transcripts/README.md tells how they are read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Budget
from glidemq_py.testing import RespError
from tests.inside import FailureRow, Row, failed_attempts, row, working
from tests.inside import timeline as timelines
from tests.lua import job_places
from tests.lua.check_support import check, findings, repaired
from tests.lua.own_support import BAND, NODE_CONSUMER, START, Fetched, OwnQueue, as_dict
from tests.server.gateway.script import Case, look_up
from tests.server.player import Player, Request, cases_of, play
from tools.generate_rows import CALLS

FUNCTIONS = {each.function: each.call for each in CALLS}
MINUTE = START - START % 60_000


def as_row(fields: dict[str, Any]) -> Row:
    """Return the row of an add; data and options may be values, and an ordering its first fields."""
    given = {"name": "task", "data": {}, "opts": {}, **fields}
    name, data, opts = (given.pop(each) for each in ("name", "data", "opts"))
    if "ordering" in given:
        given["ordering"] = (given["ordering"] + [0] * 6)[:7]
    texts = [each if isinstance(each, str) else json.dumps(each, separators=(",", ":")) for each in (data, opts)]
    return row(name, texts[0], texts[1], **given)


def names(statuses: Sequence[int]) -> list[str]:
    return [working.AttemptStatus(status).name.lower() for status in statuses]


class Verbs:
    """Steps beside the methods of `OwnQueue`, commands of the server, and functions of the library."""

    def __init__(self, q: OwnQueue):
        self._q = q

    def run(self, function: str, *args: Any, **options: Any) -> Any:
        return self._q.run(FUNCTIONS[function](self._q.meta, *args, **options))

    def anew(self):
        self._q.delete_everything()
        self._q.set_time(START)

    def add(self, name: str = "task", **fields: Any) -> Any:
        return self.bulk([{"name": name, **fields}])[0]

    def bulk(self, rows: Sequence[dict[str, Any]], quiet: bool = False) -> list[Any]:
        return self._q.add(*map(as_row, rows), quiet=quiet)

    def many(self, count: int, **fields: Any) -> list[Any]:
        return self.bulk([fields] * count)

    def marks(self) -> list[str]:
        """Return the marks of plain jobs in the stream."""
        marks = [entry.get("plain", entry.get("chosen")) for entry in self._q.entries()]
        return [mark for mark in marks if mark]

    def fair_keys(self, want: int) -> list[str]:
        """Fetch jobs; return their fair keys."""
        return [self._q.job(job.id)["fairKey"] for job in self._q.fetch(want)]

    def arrange(self, place: str) -> str:
        """Put a job into a place."""
        found: str = getattr(job_places, place)(self._q)
        return found

    def failing(self, count: int) -> list[str]:
        """Fail jobs, a millisecond apart."""
        ids = [self._q.add_job() for _ in range(count)]
        for job in self._q.fetch(count):
            self._q.advance(1)
            self.fail(job)
        return ids

    def exchange(
        self, want: int = 1, finished: Sequence[Any] = (), consumer: str = "py-1", quiet: bool = False,
        no_metrics: bool = False, **more: Any,
    ):  # fmt: skip
        reply: Any = self._q.run(working.exchange(self._q.meta, consumer, want, finished, quiet, no_metrics, **more))
        fields = dict(zip(working.ExchangeReply.__annotations__, reply, strict=True))
        return fields | {"jobs": [Fetched(job, reply.now) for job in reply.jobs]}

    def lease(
        self, want: int = 1, finished: Sequence[Any] = (), lock: int = 30_000, expiry: str = "STALL",
        limits: Sequence[int] = (), owner: str = "me", consumer: str = "leases",
    ):  # fmt: skip
        leasing = working.Leasing(owner, lock, working.Expiry[expiry], limits)
        return self.exchange(want, finished, consumer, leasing=leasing)

    def report(self, jobs: Sequence[Fetched]) -> list[str]:
        """Complete leased jobs."""
        return names(self.lease(0, [job.completed() for job in jobs])["statuses"])

    def extend(self, job: Fetched, ms: int, limit: int = 0):
        return self.run("extend_leases", ms, [(*job.token, limit)])

    def limited(self, job: Fetched, ms: int) -> str:
        """Report that the group of a job is rate limited."""
        return self.finish(working.group_limited(*job.token, ms, 0, "front", 0))[0]

    def suspend(self, job: Fetched, reason: str = "", timeout: int = 0) -> str:
        return self.finish(working.suspended(*job.token, reason, timeout))[0]

    def signal(self, job_id: str, name: str = "go", data: str = "") -> str:
        return str(self.run("signal", job_id, name, data))

    def timeline(self, sample: int = 1_000_000, entries: int = 50):
        """Let jobs record their changes of state."""
        self.run("set_settings", ["timeline", f"{sample}|{entries}"])

    def states(self, job_id: str = "1") -> list[tuple[Any, ...]]:
        """Return state, time and worker of each change."""
        record = self._q.job(job_id)
        return [*timelines.read_timeline(record.get("timeline", ""), int(record.get("timestamp", 0)))]

    def attempts(self, job_id: str = "1") -> list[Any]:
        """Return the failed attempts of a job."""
        return [*failed_attempts.read_failed_attempts(self._q.job(job_id).get("failedAttempts", ""))]

    def fail_one(self, limit: int = 0, kind: str = "ValueError", trace: Any = ("t",)) -> str:
        """Fetch a job and fail it."""
        job, text = self._q.take_one(), trace if isinstance(trace, str) else json.dumps(trace)
        self._q.finish(working.failed(*job.token, "boom", kind, text, limit, 0))
        return job.id

    def failures(self, cursor: str = "", count: int = 100):
        reply = self.run("failures_page", [], False, False, False, cursor, count)
        return {"rows": [FailureRow(*each) for each in reply.rows], "cursor": reply.cursor}

    def policy(self) -> list[int]:
        """Run the failure policy until it has no more to do; return how many jobs were requeued and deleted."""
        retried, deleted, first, more = 0, 0, True, True
        while more:
            reply = self.run("run_failure_policy", first)
            retried, deleted, first, more = retried + reply.retried, deleted + reply.deleted, False, reply.more
        return [retried, deleted, reply.wait]

    def figures(self, number: int, *rows: tuple[int, Any]) -> bool:
        """Report completed jobs by minute, counted from this one, and name; return whether figures are wanted."""
        made = [
            working.NameMetrics(MINUTE + at * 60_000, name, 1, 0, 0, [1, 3, 3, 1], [1, 5, 5, 1]) for at, name in rows
        ]
        reply = self.exchange(0, by_name=working.NameMetricsReport(number, made))
        return bool(reply["flags"] & working.ExchangeFlags.BY_NAME)

    def read_figures(self, minutes: int = 60, last: int = 0) -> list[list[Any]]:
        """Return minute, name, and number of completed jobs."""
        found, cursor, first = list[list[Any]](), 0, True
        while cursor or first:
            last, rows, cursor = self.run("metrics_by_name", last, minutes, False, cursor)
            found, first = found + [[(row[0] - MINUTE) // 60_000, *row[1:3]] for row in rows], False
        return sorted(found, key=lambda each: (each[0], str(each[1])))

    def beat(self, jobs: Sequence[Fetched]) -> list[str]:
        """Send a heartbeat; return the status of each job."""
        return names(self.run("heartbeat", "py-1", "", 60_000, [job.token for job in jobs]).statuses)

    def recovered(self) -> list[str]:
        """Look at everything, page by page; return the recovered jobs."""
        ids, cursor = list[str](), "-"
        while cursor:
            reply = self._q.recover_stalled(cursor=cursor.strip("-"))
            ids, cursor = ids + reply.recovered, reply.cursor
        return ids

    def ended_elsewhere(self, job: str, at: int, state: str = "completed"):
        """Finish a job as the library of another client does: with its own clock, and without a number."""
        self._q.redis("ZADD", state, START + at, job)
        fields = {"id": job, "state": state, "finishedOn": START + at, "returnvalue": "1"}
        self._q.redis("HSET", f"job:{job}", *(str(part) for field in fields.items() for part in field))

    def run_one(self) -> str:
        self._q.add_job()
        job = self._q.take_one()
        self.complete(job)
        return job.id

    def numbered(self) -> list[list[Any]]:
        """Return number, job and state of the entries of the result sequence."""
        return [[int(at.partition("-")[2]), row[1], row[5]] for at, row in self._q.redis("XRANGE", "results", "-", "+")]

    def searched(self) -> int:
        """Look for results without a number; return how many got one."""
        found, cursor = 0, "-"
        while cursor:
            reply = self.run("results_find", cursor.strip("-"), 100)
            found, cursor = found + reply.found, reply.cursor
        return found

    def read_results(self) -> list[Any]:
        """Return the jobs of the result sequence, and how many results were removed."""
        last = self.run("results_range").last
        page = self.run("results_page", 0, last, 100, ["completed", "failed"], ["returnvalue"])
        assert page.last == last
        return [[job for job, _, _ in page.rows], page.removed]

    def promoted(self, batch: int) -> int:
        """Promote all jobs; return how many they were."""
        promoted, cursor = 0, "-"
        while cursor:
            piece = self.run("promote_jobs", batch, 0, cursor.strip("-"), "")
            assert piece.promoted < batch + 1_000  # jobs with one due time that are promoted together
            promoted, cursor = promoted + piece.promoted, piece.cursor
        return promoted

    def wait(self, name: str = "glidemq_py:wake:test:1", want: int = 1):
        """Fetch as a worker that waits at a channel."""
        return self.exchange(want, channel=working.WakeChannel(name, True))

    def budget(self, flow: str, **limits: Any) -> str:
        """Create the budget of a flow; return its key."""
        return str(self.run("create_budget", flow, Budget(**limits).to_fields()))

    def limited_flow(self, limits: dict[str, Any]) -> str:
        return self.budget("1", **limits)

    def budgeted(self, key: str) -> str:
        """Add a job with a budget, as a flow does."""
        job_id = self._q.put_job(str(self._q.redis("INCR", "id")), budgetKey=key)
        self._q.push_entry(job_id)
        return job_id

    def hash(self, suffix: str) -> dict[str, str]:
        return self._q.resp.hash(self._q.key(suffix))

    def exceeded(self) -> list[str]:
        """Return the jobs that have exceeded a budget."""
        return [event["jobId"] for event in self._q.events() if event["event"] == "budget-exceeded"]

    def signals(self, job_id: str) -> list[str]:
        """Return the names of the signals that a job's record has."""
        return [signal["name"] for signal in json.loads(self._q.job(job_id)["signals"])]

    def beside(self, want: int, held: Sequence[int] = (0, 0, 0), consumer: str = "py-1") -> list[Fetched]:
        """Fetch as a worker that has so many jobs, and so many suspects with the least limit."""
        self.run("heartbeat", consumer, "{}", 86_400_000, [])
        jobs: list[Fetched] = self.exchange(want, consumer=consumer, held=tuple(held))["jobs"]
        return jobs

    def dies(self, jobs: Sequence[Fetched], consumer: str = "py-1", max_stalled: int = 1) -> list[list[str]]:
        """Let the process of a worker die with its jobs; return what recovery recovers and fails."""
        for job in jobs:
            self.idle(job, 30_000, consumer)
        self._q.advance(30_000)
        self._q.redis("UNLINK", f"w:{consumer}")
        recovered, failed, cursor = list[str](), list[str](), "-"
        while cursor:
            reply = self._q.recover_stalled(max_stalled, hold=1, cursor=cursor.strip("-"))
            recovered, failed, cursor = recovered + reply.recovered, failed + reply.failed, reply.cursor
        return [recovered, failed]

    def lost(self, count: int, consumer: str = "py-1") -> list[str]:
        """Let new jobs die together."""
        ids = self.many(count)
        assert self.dies(self.beside(count, consumer=consumer), consumer)[0] == ids
        return ids

    def looked(self) -> list[str]:
        """Return the subjects of what one look of the check finds."""
        return [finding.subject for finding in check(self._q, looks=1).findings]

    def family(self) -> str:
        """Return a job that waits for two children in its queue."""
        self.add("parent")
        parent = self._q.take_one()
        self.many(2, name="child", parent=[parent.id, self._q.name])
        assert self.finish(working.waiting_children(*parent.token)) == ["waiting_children"]
        return parent.id

    def parent_of_failed(self, parent: str, age: int):
        """Make a parent that waits for two children that have failed without telling it."""
        self._q.put_job(parent, state="waiting-children")
        self._q.redis("ZADD", "waiting-children", self._q.now + age, parent)
        for child in (f"{parent}-0", f"{parent}-1"):
            self._q.put_job(child, state="failed", failedReason="no", opts='{"onFailure":"ignore"}')
            self._q.redis("SADD", f"deps:{parent}", self._q.key(child))

    def idle(self, job: Fetched, ms: int, consumer: str = "py-1"):
        """Set the idle time of a job's entry, if it has one."""
        if job.entry:
            self._q.let_idle(job.entry, ms, consumer)

    def register(self, policy: str = "", consumer: str = "py-1"):
        """Register a worker with a policy for stalled jobs, or none."""
        info = {"lockDuration": 30_000} | ({"stalledPolicy": policy} if policy else {})
        self.run("heartbeat", consumer, json.dumps(info), 60_000, [])

    def stalled(self, consumer: str = "py-1", idle: int = 90_000, **options: Any) -> str:
        """Add a job, fetch it and let its lock expire."""
        self._q.add_job(**options)
        job = self._q.take_one(consumer)
        self.idle(job, idle, consumer)
        self._q.advance(idle)
        return job.id

    def made(self, kind: str, job: Fetched, **options: Any):
        return getattr(job, kind)(**options)

    def finish(self, *rows: Any) -> list[str]:
        return names(self._q.finish(*rows))

    def _end(self, kind: str, jobs: Any, *args: Any, **options: Any):
        many = jobs if isinstance(jobs, list) else [jobs]
        statuses = self.finish(*(getattr(job, kind)(*args, **options) for job in many))
        return statuses if many is jobs else statuses[0]

    complete = partialmethod(_end, "completed")
    fail = partialmethod(_end, "failed")
    release = partialmethod(_end, "released")
    hand_back = partialmethod(_end, "returned")

    def wakes(self) -> int:
        """Return how many entries wake an idle worker."""
        reply = self._q.resp.execute(
            "XREADGROUP", "GROUP", "wakers", "py-1", "COUNT", 10, "NOACK", "STREAMS",
            self._q.key("stream"), self._q.key("wake"), ">", ">",
        )  # fmt: skip
        return sum(len(entries) for _, entries in reply or [])

    def declare(self):
        """Let every kind of failure make an entry of the dead letter queue."""
        return self.run("dead_letter_queue", "dlq", "failed,stalled,expired,cost,revoked,malformed")

    def letters(self) -> list[dict[str, str]]:
        """Return the entries of the outbox, without their failed attempts."""
        entries = [as_dict(flat) for _, flat in self._q.redis("XRANGE", "outbox", "-", "+")]
        return [{name: text for name, text in each.items() if name != "failedAttempts"} for each in entries]

    def drained(self, delayed: bool = False) -> int:
        """Drain to the end; return how many jobs that were."""
        deleted, cursor = 0, "-"
        while cursor:
            piece = self.run("drain", delayed, cursor.strip("-"), 250, deleted)
            assert piece.deleted <= 250
            deleted, cursor = deleted + piece.deleted, piece.cursor
        return deleted

    def requeued(self, want: int, batch: int) -> int:
        retried, left, kept = 0, -1, 0
        while left:
            piece = self.run("requeue_jobs", batch, want and want - retried, left, retried, kept=kept)
            retried, left, kept = retried + piece.retried, piece.left, piece.kept
        return retried

    def keys(self, beginning: str = "") -> list[str]:
        return sorted(name for name in self._q.key_names() if name.startswith(beginning))

    def present(self) -> dict[str, int]:
        """Return the numbers of jobs by state, without 0."""
        return {state: count for state, count in self._q.counts().items() if count}

    def pages(self, state: str, count: int = 7, name: str | None = None, newest: bool = False) -> list[str]:
        """Return the ids on all pages of a state."""
        ids, cursor = list[str](), "-"
        while cursor:
            rows, cursor = self.run("page", state, cursor.strip("-"), count, ("state",), name, newest=newest)
            assert len(rows) <= count
            ids += [each[0] for each in rows]
        return ids

    def content(self) -> int:
        """Return a number that stands for the content of all keys."""
        return hash(tuple((name, self._q.redis("DUMP", name)) for name in sorted(self._q.key_names())))

    def check(self, repair: bool = False):
        return check(self._q, repair=repair)

    def findings(self) -> list[list[str]]:
        return findings(check(self._q))

    def repaired(self) -> list[list[str]]:
        return repaired(self._q)


class LuaPlayer(Player):
    """Calls verbs, methods of the queue, commands of the server on its keys, and functions of the library."""

    async def _command(self, request: Request):
        q, verbs, verb = self._known["q"], self._known["verbs"], request.verb.removeprefix("$")
        if verb.isupper():
            call: Any = partial(q.redis, verb)
        elif "." in verb:
            call = look_up(self._known, verb)
        else:
            call = getattr(verbs, verb, None) or getattr(q, verb, None) or partial(verbs.run, verb)
        await self._call(request, call, RespError)


@pytest.mark.parametrize(("path", "case", "partitions"), cases_of(Path(__file__).with_name("transcripts")))
async def test_transcript(
    q: OwnQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, path: Path, case: Case,
    partitions: int,
):  # fmt: skip
    known = {"q": q, "resp": q.resp, "verbs": Verbs(q), "start": START, "band": BAND, "node": NODE_CONSUMER,
             "newlines": "\n" * 5_000}  # fmt: skip
    await play(LuaPlayer(caplog, monkeypatch, **known), path, case)
