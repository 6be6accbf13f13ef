"""Everything that producers, workers, operators, Node peers and deaths may do to a queue, in any order that Hypothesis
can think of, on a real server whose clock stands still between the steps. After every step the queue is what the model
says, and its consistency check finds nothing.

    python -m pytest tests/lua/test_state_machine.py                     the short form, the same steps each time
    GLIDEMQ_CHAOS=500 python -m pytest tests/lua/test_state_machine.py   500 long runs, new ones each time
    GLIDEMQ_SHRINK=1 ...                                                 and a run that fails is made short
"""

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from glidemq_py.testing import RespClient
from glidemq_py.wire.calls import control, limiting, steering, suspending, working
from glidemq_py.wire.calls.adding import row
from tests.lua import wire_support
from tests.lua.check_support import check
from tests.lua.family_rules import FamilyRules
from tests.lua.own_support import OwnQueue, Taken, library
from tests.lua.queue_model import ENDED, Job, Model
from tests.lua.suspension_rules import PATIENCE, SuspensionRules
from tests.lua.wire_support import WireQueue

CHAOS = int(os.environ.get("GLIDEMQ_CHAOS", "0"))
LOCK = 30_000
MAX_STALLED = 1
RATED = "rated"
KEYS = ("one", "two", "wide", "vary", RATED)
WIDTHS = {"one": 1, "two": 2, "wide": 3, RATED: 2}
RATE, WINDOW = 2, 100
CONSUMERS = ("py-1", "py-2")
MOMENTS = st.sampled_from((1, 10, 60, 100, 500))
PICK = st.integers(0, 10_000)
PHASES = (Phase.generate, Phase.shrink) if os.environ.get("GLIDEMQ_SHRINK") else (Phase.generate,)
_numbers = itertools.count()


class QueueMachine(SuspensionRules, FamilyRules, RuleBasedStateMachine):
    """One queue, two workers of ours, one peer."""

    def __init__(self, resp: RespClient) -> None:
        super().__init__()
        name = f"machine-{os.getpid()}-{next(_numbers)}"
        self.q = OwnQueue(resp, name)
        self.wire = WireQueue(resp, name)
        self.model = Model()
        self.hands: dict[str, Taken] = {}
        self.holder: dict[str, str] = {}
        self.dead: dict[str, Taken] = {}
        self.peer: dict[str, str] = {}
        self.dedup: dict[str, tuple[str, int]] = {}
        self.limit = 0
        self.run = self.q.run

    # -- producers ----------------------------------------------------------------------------------------

    @rule(
        kind=st.sampled_from(("plain", "plain", "delay", "priority", "lifo", "both")),
        ttl=st.sampled_from((0, 0, 0, 40)),
        count=st.integers(1, 4),
    )
    def add(self, kind: str, ttl: int, count: int) -> None:
        options = {"delay": {"delay": 50}, "priority": {"priority": 3}, "lifo": {"lifo": True},
                   "both": {"priority": 2, "delay": 30}}.get(kind, {})  # fmt: skip
        rows = [row("task", "{}", "{}", ttl=ttl, **options) for _ in range(count)]  # type: ignore[arg-type]
        for job_id in self.q.add(*rows):
            due = self.q.now + int(options.get("delay", 0))
            self.model.add(job_id, due=due, expire_at=self.q.now + ttl if ttl else None)

    @rule(
        key=st.sampled_from(KEYS), width=st.integers(1, 3), count=st.integers(1, 4),
        timed=st.sampled_from(({}, {}, {"delay": 40}, {"priority": 1}, {"ttl": 70})),
    )  # fmt: skip
    def add_ordered(self, key: str, width: int, count: int, timed: dict[str, int]) -> None:
        width = WIDTHS.get(key, width)
        rate = (RATE, WINDOW) if key == RATED else (0, 0)
        ordering: list[object] = [key, width, *rate, 0, 0, 0]
        for job_id in self.q.add(*(row("task", "{}", "{}", ordering=ordering, **timed) for _ in range(count))):
            self._added_to_group(job_id, key, width, timed)

    def _added_to_group(self, job_id: str, key: str, width: int, timed: dict[str, int]) -> None:
        now, ttl = self.q.now, timed.get("ttl")
        self.model.add(job_id, key, now + timed.get("delay", 0), now + ttl if ttl else None)
        group = self.model.groups[key]
        group.width = width
        group.rate, group.duration = (RATE, WINDOW) if key == RATED else (0, 0)

    @rule(name=st.sampled_from("ab"), mode=st.sampled_from(("simple", "throttle", "debounce")), delay=st.booleans())
    def add_deduplicated(self, name: str, mode: str, delay: bool) -> None:
        now, wait = self.q.now, 45 if delay else 0
        stands, at = self.dedup.get(name, ("", 0))
        job = self.model.jobs.get(stands)
        open_ = job is not None and job.state in ("ready", "active", "suspended", "waiting")
        replaceable = open_ and self.q.state(stands) in ("delayed", "prioritized")
        (result,) = self.q.add(row("task", "{}", "{}", delay=wait, deduplication=[name, 80, mode]))
        if mode == "throttle":
            expected = "skipped" if stands and now - at < 80 else "added"
        elif mode == "debounce" and now - at >= 80:
            expected = "added"
        elif mode == "debounce" and replaceable:
            expected = "replaced"
        else:
            expected = "skipped" if open_ else "added"
        outcome, job_id = ("added", result) if isinstance(result, str) else result
        assert (outcome, expected) == (expected, outcome)
        if outcome == "skipped":
            assert job_id == stands
            return
        if outcome == "replaced":
            assert job is not None
            job.state = "gone"
        self.dedup[name] = (job_id, now)
        self.model.add(job_id, due=now + wait)

    # -- workers ------------------------------------------------------------------------------------------

    @rule(
        consumer=st.sampled_from(CONSUMERS), want=st.integers(1, 6), lost=st.sampled_from((False, False, False, True))
    )
    def take(self, consumer: str, want: int, lost: bool) -> None:
        self._exchange(consumer, want, [])
        if lost:
            self._regain(consumer)

    def _exchange(self, consumer: str, want: int, rows: list[Any]) -> working.ExchangeReply:
        active = len(self.model.of("active"))
        reply = self.q.exchange(want, rows, consumer)
        room = max(0, self.limit - active) if self.limit else want
        jobs = [Taken(job, reply.now) for job in reply.jobs]
        if not rows:
            assert len(jobs) <= room, f"{len(jobs)} taken where {room} may run"
        assert not (self.model.paused and jobs)
        self._taken(consumer, jobs)
        return reply

    def _notice_failures(self) -> None:
        """Jobs that failed by themselves, before what came of it."""
        for job in self.model.of("ready"):
            if job.may_have_failed(self.q.now) and self.q.state(job.id) == "failed":
                job.state = "failed"

    def _taken(self, consumer: str, jobs: list[Taken]) -> None:
        self._notice_failures()
        for job in jobs:
            self.model.begin(job.id, self.q.now)
            self.hands[job.id] = job
            self.holder[job.id] = consumer

    def _regain(self, consumer: str) -> None:
        """The reply of the last exchange never came: everything that this worker does not know comes again."""
        mine = [job for job_id, job in (self.hands | self.dead).items() if self.holder[job_id] == consumer]
        known = [job for job in mine if job.processed_on != self.q.now or int(job.id) % 2 or job.id in self.dead]
        missing = {job.id: job for job in mine if job not in known}
        entries, ids = [job.entry for job in known if job.entry], [job.id for job in known if not job.entry]
        found: list[Taken] = []
        cursor = ""
        while True:
            reply = self.run(working.regain(self.q.meta, consumer, entries, 100, False, cursor, ids))
            found += [Taken(job, reply.now) for job in reply.jobs]
            cursor = reply.cursor
            if not cursor:
                break
        refused = {job_id for job_id in missing if self.q.state(job_id) == "failed"}
        assert {job.id for job in found} | refused == set(missing)
        for job_id in refused:
            assert self.model.jobs[job_id].may_have_failed(self.q.now)
            self.model.jobs[job_id].state = "failed"
            del self.hands[job_id]
        for job in found:
            assert self.q.finish(missing[job.id].completed()) == [3]
            self.hands[job.id] = job

    ENDS = st.sampled_from(
        ("ok", "ok", "ok", "away", "fail", "retry", "release", "later", "hold", "suspend", "patient", "wait")
    )

    @precondition(lambda self: self.hands)
    @rule(pick=PICK, ends=st.lists(ENDS, min_size=1, max_size=3), want=st.integers(0, 3))
    def finish(self, pick: int, ends: list[str], want: int) -> None:
        """One exchange of one worker, as workers make them: what is finished, and the next ones."""
        chosen = self._pick(self.hands, pick)
        consumer = self.holder[chosen]
        mine = [chosen, *(i for i in self.hands if self.holder[i] == consumer and i != chosen)]
        rows, expected = [], []
        for job_id, end in zip(mine, ends, strict=False):
            taken, job = self.hands.pop(job_id), self.model.jobs[job_id]
            finished, status = self._end(taken, job, end)
            rows.append(finished)
            expected.append(status)
        reply = self._exchange(consumer, want, rows)
        assert list(reply.statuses) == expected

    def _end(self, taken: Taken, job: Job, end: str) -> tuple[Any, int]:
        now = self.q.now
        if end == "hold" and job.key is None:
            end = "later"
        if end in ("ok", "away"):
            job.state = "completed"
            if end == "away":
                job.state = "gone"
            return taken.completed(keep=int(end == "away")), 0
        if end == "fail":
            job.state = "failed"
            return taken.failed(), 5
        if end in ("suspend", "patient"):
            return self._suspend(taken, job, 0 if end == "suspend" else PATIENCE)
        if end == "wait":
            return self._wait_for_children(taken, job)
        job.state = "ready"
        if end == "retry":
            job.due = now + 25
            return taken.failed(limit=1_000, backoff=25), 4
        if end == "release":
            job.due = 0
            return taken.released(), 6
        if end == "later":
            job.due = now + 35
            return working.delayed(*taken.token, 35, 0, None), STATUS_DELAYED
        job.due = 0
        assert job.key is not None
        group = self.model.groups[job.key]
        group.held_until = max(group.held_until, now + 20)
        return working.group_limited(*taken.token, 20, False, "front"), STATUS_LIMITED

    @precondition(lambda self: self.hands)
    @rule(pick=PICK)
    def finish_twice(self, pick: int) -> None:
        """The reply to a hand-in was lost, so it is handed in again."""
        job_id = self._pick(self.hands, pick)
        taken = self.hands.pop(job_id)
        assert self.q.finish(taken.completed()) == [0]
        assert self.q.finish(taken.completed()) == [1]
        self.model.jobs[job_id].state = "completed"

    @precondition(lambda self: self.hands)
    @rule(pick=PICK)
    def die(self, pick: int) -> None:
        """A worker forgets a job: it is not heard of again."""
        job_id = self._pick(self.hands, pick)
        self.dead[job_id] = self.hands.pop(job_id)

    def _beat(self) -> None:
        for consumer in CONSUMERS:
            jobs = [job.token for job_id, job in self.hands.items() if self.holder[job_id] == consumer]
            reply = self.run(working.heartbeat(self.q.meta, consumer, "{}", 60_000, jobs))
            revoked = [self.model.jobs[token[0]].revoked for token in jobs]
            assert reply.statuses == [7 if each else 0 for each in revoked]

    @rule()
    def heartbeat(self) -> None:
        self._beat()

    @rule(forget=st.booleans())
    def reclaim(self, forget: bool) -> None:
        """A lock's time goes by; the living say so, and the jobs of the dead are given to others."""
        if not (self.dead or forget):
            return
        self.q.advance(LOCK)
        self.wire.now = self.q.now
        self._beat()
        for job in self.dead.values():
            if job.entry and self.q.state(job.id) is not None:
                self.q.let_idle(job.entry, LOCK + 1)
        recovered, failed, cursor = set[str](), set[str](), ""
        while True:
            reply = self.run(working.reclaim(self.q.meta, "py-1", 1, LOCK, MAX_STALLED, False, cursor))
            recovered |= set(reply.recovered)
            failed |= set(reply.failed)
            cursor = reply.cursor
            if not cursor:
                break
        for job_id in self.dead:
            job = self.model.jobs[job_id]
            job.deaths += 1
            job.state, job.due = ("failed" if job_id in failed else "ready"), 0
        assert recovered | failed == set(self.dead)
        assert not recovered & failed
        assert all(self.model.jobs[job_id].deaths > MAX_STALLED for job_id in failed)
        for job_id, taken in self.dead.items():
            assert self.q.finish(taken.completed()) == [3], f"the dead worker's result for {job_id} counted"
        self.dead.clear()

    @rule(ms=MOMENTS)
    def wait(self, ms: int) -> None:
        self.q.advance(ms)
        self.wire.now = self.q.now

    # -- operators ----------------------------------------------------------------------------------------

    @rule()
    def pause_or_resume(self) -> None:
        self.model.paused = not self.model.paused
        assert self.run((control.pause if self.model.paused else control.resume)(self.q.meta))

    @rule(limit=st.sampled_from((0, 0, 1, 3)))
    def limit_queue(self, limit: int) -> None:
        self.run(limiting.limit_queue(self.q.meta, limit, False))
        self.limit = limit

    @precondition(lambda self: self.model.groups)
    @rule(pick=PICK, width=st.integers(1, 3))
    def limit_group(self, pick: int, width: int) -> None:
        key = self._pick(self.model.groups, pick)
        self.run(limiting.limit_group(self.q.meta, key, width, False, False))
        self.model.groups[key].width = width

    @precondition(lambda self: self.model.groups)
    @rule(pick=PICK)
    def hold_group(self, pick: int) -> None:
        group = self.model.groups[self._pick(self.model.groups, pick)]
        at = self.run(limiting.hold_group(self.q.meta, self._pick(self.model.groups, pick), 30, False))
        group.held_until = max(group.held_until, at)

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK)
    def remove(self, pick: int) -> None:
        job = self._any_job(pick)
        assert self.run(control.remove(self.q.meta, job.id)) == (job.state != "gone")
        self._let_go(job)
        if job.state == "failed":
            self.model.tell(job, "removed", job.policy or "fail_parent")
        job.state = "gone"

    def _let_go(self, job: Job) -> None:
        self.hands.pop(job.id, None)
        self.dead.pop(job.id, None)
        self.peer.pop(job.id, None)

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK)
    def revoke(self, pick: int) -> None:
        job = self._any_job(pick)
        outcome = self.run(steering.revoke(self.q.meta, job.id))
        if job.state == "gone":
            assert outcome == "not_found"
        elif job.state == "ready":
            job.revoked = True
            assert outcome in ("revoked", "flagged")
            assert (self.q.state(job.id) == "failed") == (outcome == "revoked")
        elif job.state in ("suspended", "waiting"):
            job.state, job.revoked = "failed", True
            assert outcome == "revoked"
        else:
            assert outcome == "flagged" or (job.state == "failed" and job.revoked)
            job.revoked = True

    @precondition(lambda self: self.model.of("failed"))
    @rule(pick=PICK, all_=st.booleans())
    def retry(self, pick: int, all_: bool) -> None:
        jobs = self.model.of("failed")
        if all_:
            jobs = [self.model.jobs[job_id] for job_id in self.q.redis("ZRANGE", "failed", 0, -1)]
            left = -1
            while left:
                _, left = self.run(steering.retry_jobs(self.q.meta, 5, 0, left, 0))
        else:
            jobs = [jobs[pick % len(jobs)]]
            assert self.run(control.retry(self.q.meta, jobs[0].id)) == "ok"
        for job in jobs:
            job.due, job.revoked, job.exempt, job.deaths = 0, False, True, 0
            job.holds = False
            job.state = "ready"

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK, priority=st.sampled_from((0, 1, 5)))
    def reprioritize(self, pick: int, priority: int) -> None:
        outcome = self.run(steering.reprioritize(self.q.meta, self._any_job(pick).id, priority))
        assert outcome not in ("lost", "held")

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK, delay=st.sampled_from((0, 55)))
    def redelay(self, pick: int, delay: int) -> None:
        job = self._any_job(pick)
        outcome = self.run(steering.redelay(self.q.meta, job.id, delay))
        assert outcome not in ("lost", "held")
        if outcome == "ok":
            job.due = self.q.now + delay

    @precondition(lambda self: self.model.of("ready"))
    @rule(pick=PICK)
    def promote(self, pick: int) -> None:
        jobs = self.model.of("ready")
        job = jobs[pick % len(jobs)]
        if self.run(steering.promote(self.q.meta, job.id)) == "ok":
            job.due = 0

    @rule(delayed=st.booleans())
    def drain(self, delayed: bool) -> None:
        before = {job.id: self.q.state(job.id) for job in self.model.of("ready")}
        cursor, total = "", 0
        while True:
            deleted, cursor = self.run(steering.drain(self.q.meta, delayed, cursor, 3, total))
            total += deleted
            if not cursor:
                break
        count = 0
        # A parent whose children are drained is ready, and may be drained as well.
        while gone := [job for job in self.model.of("ready") if self.q.state(job.id) is None]:
            for job in gone:
                job.state = "gone"
            count += len(gone)
        assert total == count
        for job in self.model.of("ready"):
            if job.id in before:
                assert not delayed
                assert before[job.id] == "delayed"

    @rule(state=st.sampled_from(ENDED))
    def clean(self, state: str) -> None:
        expected = {job.id for job in self.model.of(state)}
        cutoff, ids, more = -1, list[str](), True
        while more:
            cutoff, found, more = self.run(steering.clean(self.q.meta, state, 0, cutoff, 3, 1_000, len(ids)))
            ids += found
        assert set(ids) == expected
        for job_id in ids:
            job = self.model.jobs[job_id]
            if state == "failed":
                self.model.tell(job, "removed", job.policy or "fail_parent")
            job.state = "gone"

    # -- a Node peer --------------------------------------------------------------------------------------

    @rule(key=st.sampled_from((None, *KEYS)), kind=st.sampled_from(("plain", "delay", "priority", "lifo")))
    def peer_adds(self, key: str | None, kind: str) -> None:
        options = {"delay": {"delay": 50}, "priority": {"priority": 3}, "lifo": {"lifo": 1}}.get(kind, {})
        if key is None:
            self.model.add(self.wire.add(**options), due=self.q.now + options.get("delay", 0))
            return
        width = WIDTHS.get(key, 2)
        rate = {"rate_max": RATE, "rate_duration": WINDOW} if key == RATED else {}
        job_id = self.wire.add(ordering=key, concurrency=width, **rate, **options)
        self._added_to_group(job_id, key, width, options)

    @rule(count=st.integers(1, 2))
    def peer_takes(self, count: int) -> None:
        self.model.by_peer = True
        self._peer_takes(count)
        self._notice_failures()
        self.model.by_peer = False

    def _peer_takes(self, count: int) -> None:
        found = [(fields["jobId"], entry) for entry, fields in self.wire.read(count)]
        found += [(job_id, "") for job_id in self.wire.pop(1)]
        for job_id, entry in found:
            reply = self.wire.activate(job_id, entry)
            if isinstance(reply, dict):
                self.model.begin(job_id, self.q.now)
                self.peer[job_id] = entry
            elif reply == "REVOKED":
                self.wire.fail(job_id, entry, "revoked")
                assert self.model.jobs[job_id].revoked
            elif not entry:
                self.wire.redis("DECR", "list-active")

    @precondition(lambda self: self.peer)
    @rule(pick=PICK, end=st.sampled_from(("ok", "ok", "fail", "retry")))
    def peer_finishes(self, pick: int, end: str) -> None:
        job_id = self._pick(self.peer, pick)
        entry, job = self.peer.pop(job_id), self.model.jobs[job_id]
        if end == "ok":
            self._peer_completes(job_id, entry)
        elif end == "fail":
            assert self.wire.fail(job_id, entry) == "failed"
            self.model.by_peer = True
            job.state = "failed"
            self.model.by_peer = False
        else:
            assert self.wire.fail(job_id, entry, limit=1_000, backoff=25) == "retrying"
            job.state, job.due = "ready", self.q.now + 25

    def _peer_completes(self, job_id: str, entry: str) -> None:
        job = self.model.jobs[job_id]
        above: Any = None
        if job.parent is not None:
            parent = job.parent.id
            above = ((f"deps:{parent}", f"job:{parent}", "stream", "events"), self.q.key(job_id), parent)
        self.wire.complete(job_id, entry, parent=above)
        job.state = "completed"

    @rule()
    def peer_promotes(self) -> None:
        self.model.by_peer = True
        self.wire.promote()
        self._notice_failures()
        self.model.by_peer = False
        self.wire.call("promoteRateLimited", ["ratelimited", "stream"], self.wire.now)

    # -- what holds always --------------------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        self.the_queue_is_what_the_model_says()
        self.the_check_finds_nothing()

    def the_queue_is_what_the_model_says(self) -> None:
        self._notice_failures()
        for job in self.model.jobs.values():
            self.model.reconcile(job, self.q.state(job.id), self.q.now)
        counts = self.q.counts()
        for state in ENDED:
            assert counts[state] == len(self.model.of(state)), (state, counts)
        assert counts["active"] == len(self.model.of("active")), counts
        assert counts["waiting_children"] == len(self.model.of("waiting")), counts
        assert counts["suspended"] == len(self.model.of("suspended")), counts
        parked = sum(self.q.redis("ZCARD", f"groupq:{key}") for key in self.model.groups)
        waiting = counts["waiting"] + counts["delayed"] + counts["prioritized"] + parked
        assert waiting == len(self.model.of("ready")), counts

    def the_check_finds_nothing(self) -> None:
        found = check(self.q, looks=1)
        assert not found.findings, str(found)

    def teardown(self) -> None:
        """Whatever has happened, every job comes to its end, and nothing is left behind."""
        try:
            self._settle()
        finally:
            self.q.delete_everything()

    def _settle(self) -> None:
        if self.model.paused:
            self.pause_or_resume()
        self.limit_queue(0)
        self.reclaim(True)
        for job_id, entry in list(self.peer.items()):
            self._peer_completes(job_id, entry)
        self.sweep_suspended()
        for job in self.model.of("suspended"):
            assert self.run(suspending.signal(self.q.meta, job.id, "end", "")) == "resumed"
            job.state, job.due = "ready", 0
        for _ in range(200):
            rows = [job.completed() for job in self.hands.values()]
            for job_id in list(self.hands):
                self.model.jobs[job_id].state = "completed"
                del self.hands[job_id]
            self._exchange("py-1", 50, rows)
            self.the_queue_is_what_the_model_says()
            if not self.hands and not self.model.of("ready"):
                self.watch()
                if not self.model.of("ready"):
                    break
            self.wait(20)
        assert not self.model.of("waiting")
        assert not self.model.of("ready"), [(job, self.q.job(job.id)) for job in self.model.of("ready")]
        self.the_check_finds_nothing()
        assert self.q.redis("GET", "list-active") in (None, "0")
        assert self.q.entries() == []
        for key in self.model.groups:
            record = self.q.resp.hash(self.q.key(f"group:{key}"))
            assert record.get("active", "0") == "0", record
            # Marks are consumed when somebody comes to them.
            skipped = sum(name.startswith("skip:") for name in record)
            assert int(record["nextSeq"]) + skipped == int(self.q.redis("HGET", "ordering", key)) + 1, record

    # -- choosing -----------------------------------------------------------------------------------------

    def _any_job(self, pick: int) -> Job:
        jobs = list(self.model.jobs.values())
        # Those added last, as most others have ended.
        return jobs[-1 - pick % min(len(jobs), 12)]

    @staticmethod
    def _pick(among: dict[str, Any], pick: int) -> str:
        return list(among)[pick % len(among)]


STATUS_DELAYED, STATUS_LIMITED = 8, 9


@pytest.mark.timeout(0 if CHAOS else 300)
def test_a_queue_under_everything_at_once(resp: RespClient) -> None:
    wire_support.load(resp)
    assert library().functions
    machine: Callable[[], QueueMachine] = lambda: QueueMachine(resp)  # noqa: E731
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=CHAOS or 150,
            stateful_step_count=120 if CHAOS else 40,
            derandomize=not CHAOS,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=PHASES,
            report_multiple_bugs=False,
        ),
    )
