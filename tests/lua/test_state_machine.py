"""Run random operations of producers, workers, operators, Node peers and crashes on a real server whose clock stops
between the steps. After every step the queue equals the model, and the consistency check finds nothing.

    python -m pytest tests/lua/test_state_machine.py                     the short form, the same steps each time
    GLIDEMQ_CHAOS=500 python -m pytest tests/lua/test_state_machine.py   500 long runs, new ones each time
    GLIDEMQ_SHRINK=1 ...                                                 and a run that fails is made short
"""

import itertools
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from glidemq_py.testing import RespClient
from tests.inside import administration, outbox, row, working
from tests.inside import limits as limiting
from tests.inside import suspend as suspending
from tests.lua.check_support import check
from tests.lua.flow_rules import FlowRules
from tests.lua.limit_rules import PAID, QUEUE_WINDOW, TOKEN_MAX, TOKEN_WINDOW, LimitRules
from tests.lua.own_support import Fetched, OwnQueue, library
from tests.lua.peer_rules import SKEW, PeerRules
from tests.lua.queue_model import ENDED, Job, Model, Window
from tests.lua.retention_rules import KEEP, RetentionRules
from tests.lua.scheduler_rules import SchedulerRules
from tests.lua.suspension_rules import SUSPEND_TIMEOUT, SuspensionRules
from tests.wire_library import support as wire_support
from tests.wire_library.support import WireQueue

CHAOS = int(os.environ.get("GLIDEMQ_CHAOS", "0"))
LOCK = 30_000
MAX_STALLED = 1
RATED = "rated"
KEYS = ("one", "two", "wide", "vary", RATED)
WIDTHS = {"one": 1, "two": 2, "wide": 3, RATED: 2, PAID: 2}
RATE, WINDOW = 2, 100
CONSUMERS = ("py-1", "py-2")
MOMENTS = st.sampled_from((1, 10, 60, 100, 500))
PICK = st.integers(0, 10_000)
PHASES = (Phase.generate, Phase.shrink) if os.environ.get("GLIDEMQ_SHRINK") else (Phase.generate,)
_numbers = itertools.count()


class QueueMachine(
    SuspensionRules, FlowRules, RetentionRules, LimitRules, SchedulerRules, PeerRules, RuleBasedStateMachine
):  # fmt: skip
    """One queue, two workers of ours, one peer."""

    def __init__(self, resp: RespClient):
        super().__init__()
        name = f"machine-{os.getpid()}-{next(_numbers)}"
        self.q = OwnQueue(resp, name)
        self.wire = WireQueue(resp, name)
        self.model = Model()
        self.active_jobs: dict[str, Fetched] = {}
        self.holder: dict[str, str] = {}
        self.dead: dict[str, Fetched] = {}
        self.peer: dict[str, str] = {}
        self.unread: dict[str, str] = {}
        self.lost: dict[str, str] = {}
        self.dedup: dict[str, tuple[str, int]] = {}
        self.limit = 0
        self.window = Window()
        self.tokens: dict[int, int] = {}
        self.run = self.q.run

    # -- producers ----------------------------------------------------------------------------------------

    @rule(
        kind=st.sampled_from(("plain", "plain", "delay", "priority", "lifo", "both")),
        ttl=st.sampled_from((0, 0, 0, 40)),
        count=st.integers(1, 4),
        removes=st.sampled_from((False, False, True)),
    )
    def add(self, kind: str, ttl: int, count: int, removes: bool):
        kinds: dict[str, dict[str, Any]] = {"delay": {"delay": 50}, "priority": {"priority": 3}, "lifo": {"lifo": True},
                 "both": {"priority": 2, "delay": 30}}  # fmt: skip
        options = kinds.get(kind, {})
        opts = '{"removeOnFail":true}' if removes else "{}"
        rows = [row("task", "{}", opts, ttl=ttl, **options) for _ in range(count)]
        for job_id in self.q.add(*rows):
            due = self.q.now + int(options.get("delay", 0))
            job = self.model.add(job_id, due=due, expire_at=self.q.now + ttl if ttl else None)
            job.removes, job.untouched = removes, kind if kind in ("plain", "lifo", "priority") else ""

    @rule(
        key=st.sampled_from(KEYS), concurrency=st.integers(1, 3), count=st.integers(1, 4),
        timed=st.sampled_from(({}, {}, {"delay": 40}, {"priority": 1}, {"ttl": 70})),
    )  # fmt: skip
    def add_ordered(self, key: str, concurrency: int, count: int, timed: Any):
        concurrency = WIDTHS.get(key, concurrency)
        rate = (RATE, WINDOW) if key == RATED else (0, 0)
        ordering: list[object] = [key, concurrency, *rate, 0, 0, 0]
        for job_id in self.q.add(*(row("task", "{}", "{}", ordering=ordering, **timed) for _ in range(count))):
            self._added_to_group(job_id, key, concurrency, timed)
            if key == RATED:
                self.model.group(key).set_rate_limit(RATE, WINDOW)

    def _added_to_group(self, job_id: str, key: str, concurrency: int, timed: Any):
        now, ttl = self.q.now, timed.get("ttl")
        self.model.add(job_id, key, now + timed.get("delay", 0), now + ttl if ttl else None)
        self.model.groups[key].concurrency = concurrency

    @rule(
        name=st.sampled_from("ab"), mode=st.sampled_from(("simple", "throttle", "debounce")), delay=st.booleans(),
        key=st.sampled_from((None, None, "one", "wide")),
    )  # fmt: skip
    def add_deduplicated(self, name: str, mode: str, delay: bool, key: str | None):
        now, wait = self.q.now, 45 if delay else 0
        existing, at = self.dedup.get(name, ("", 0))
        job = self.model.jobs.get(existing)
        open_ = job is not None and job.state in ("ready", "active", "suspended", "waiting")
        replaceable = open_ and self.q.state(existing) in ("delayed", "prioritized")
        group: Any = {} if key is None else {"ordering": [key, WIDTHS[key], 0, 0, 0, 0, 0]}
        (result,) = self.q.add(row("task", "{}", "{}", delay=wait, deduplication=[name, 80, mode], **group))
        if mode == "throttle":
            expected = "skipped" if existing and now - at < 80 else "added"
        elif now - at >= 80:
            expected = "added"
        elif mode == "debounce" and replaceable:
            expected = "replaced"
        else:
            expected = "skipped" if open_ else "added"
        outcome, job_id = ("added", result) if isinstance(result, str) else result
        assert (outcome, expected) == (expected, outcome)
        if outcome == "skipped":
            assert job_id == existing
            return
        if outcome == "replaced":
            assert job is not None
            job.state = "gone"
        self.dedup[name] = (job_id, now)
        if key is None:
            self.model.add(job_id, due=now + wait)
        else:
            self._added_to_group(job_id, key, WIDTHS[key], {"delay": wait})

    # -- workers ------------------------------------------------------------------------------------------

    @rule(
        consumer=st.sampled_from(CONSUMERS), want=st.integers(1, 6), lost=st.sampled_from((False, False, False, True)),
        limiter=st.sampled_from((None, None, (3, QUEUE_WINDOW))), counts=st.booleans(),
    )  # fmt: skip
    def fetch(self, consumer: str, want: int, lost: bool, limiter: tuple[int, int] | None, counts: bool):
        self._exchange(consumer, want, [], limiter, [] if counts else None)
        if lost:
            self._reattach(consumer)

    def _exchange(
        self, consumer: str, want: int, rows: Any, limiter: tuple[int, int] | None = None,
        reported: list[int] | None = None,
    ) -> working.ExchangeReply:  # fmt: skip
        """reported: tokens of each row, by a worker that has such a limit."""
        now, active = self.q.now, len(self.model.of("active"))
        tokens = None if reported is None else (TOKEN_MAX, TOKEN_WINDOW, reported)
        held = self._held(consumer)
        hosted = self.q.redis("EXISTS", "suspect-host")
        reply = self.run(
            working.exchange(self.q.meta, consumer, want, rows, False, False, held, limiter=limiter, tokens=tokens)
        )
        room = min(want, self._room(limiter))
        if self.model.paused or (tokens and not self._tokens_left()):
            room = 0
        # Jobs whose entries a peer has read count as active; reported jobs free their slots.
        active += sum(self.model.jobs[job_id].state == "ready" for job_id in (self.unread | self.lost))
        if self.limit and not rows:
            room = min(room, max(0, self.limit - active))
        jobs = [Fetched(job, reply.now) for job in reply.jobs]
        assert len(jobs) <= room, f"{len(jobs)} fetched where {room} may be"
        self._fetched(consumer, jobs)
        if self.window.most or limiter:
            self._spend(limiter, now, len(jobs))
        hosted |= self.q.redis("EXISTS", "suspect-host")
        if want and len(jobs) < room and not (self.limit and rows) and not hosted:
            self._nothing_was_left(jobs)
        return reply

    def _held(self, consumer: str) -> working.Held:
        jobs = [self.model.jobs[job_id] for job_id in self.active_jobs if self.holder[job_id] == consumer]
        limits = [job.limit for job in jobs if job.limit]
        return len(jobs), len(limits), min(limits, default=0)

    def _room(self, limiter: tuple[int, int] | None) -> int:
        if not self.window.most and limiter:
            left = Window(*limiter, self.window.start, self.window.count).left(self.q.now)
        else:
            left = self.window.left(self.q.now)
        return 1_000 if left is None else max(0, left)

    def _spend(self, limiter: tuple[int, int] | None, now: int, number: int):
        """The counter belongs to the queue, even if the limit is the worker's."""
        used = Window(*limiter) if limiter and not self.window.most else self.window
        used.start, used.count = self.window.start, self.window.count
        used.spend(now, number)
        self.window.start, self.window.count = used.start, used.count

    def _nothing_was_left(self, fetched: list[Fetched]):
        """A worker that got less than it wanted has got all that could run."""
        held = self.unread | self.lost
        limited = {
            key for key in self.model.groups if float(self.q.redis("ZSCORE", "ratelimited", key) or 0) > self.q.now
        }
        for job in self.model.of("ready"):
            if job.id not in held and job.key not in limited and self.model.must_be_fetched(job, self.q.now):
                raise AssertionError(f"{job} was left behind: {self.q.job(job.id)}, {[each.id for each in fetched]}")

    def _notice_failures(self):
        """Record jobs that failed on the server, before their effects."""
        for job in self.model.of("ready"):
            if job.may_have_failed(self.q.now) and self.q.state(job.id) in ("failed", None):
                job.state = "failed"

    def _fetched(self, consumer: str, jobs: list[Fetched]):
        self._notice_failures()
        for job in jobs:
            self.model.begin(job.id, self.q.now)
            self.active_jobs[job.id] = job
            self.holder[job.id] = consumer
        if any(self.model.jobs[job.id].limit and self.model.jobs[job.id].key is None for job in jobs):
            mine = [self.model.jobs[job_id] for job_id in self.active_jobs if self.holder[job_id] == consumer]
            limits = [job.limit for job in mine if job.limit]
            assert len(limits) <= min(limits) or any(job.key for job in mine if job.limit), mine

    def _reattach(self, consumer: str):
        """The reply of the last exchange never came: everything that this worker does not know comes again."""
        mine = [job for job_id, job in (self.active_jobs | self.dead).items() if self.holder[job_id] == consumer]
        known = [job for job in mine if job.processed_on != self.q.now or int(job.id) % 2 or job.id in self.dead]
        missing = {job.id: job for job in mine if job not in known}
        entries, ids = [job.entry for job in known if job.entry], [job.id for job in known if not job.entry]
        found: list[Fetched] = []
        cursor = ""
        while True:
            reply = self.run(working.reattach(self.q.meta, consumer, entries, 100, False, cursor, ids))
            found += [Fetched(job, reply.now) for job in reply.jobs]
            cursor = reply.cursor
            if not cursor:
                break
        refused = {job_id for job_id in missing if self.q.state(job_id) in ("failed", None)}
        assert {job.id for job in found} | refused == set(missing)
        for job_id in refused:
            assert self.model.jobs[job_id].may_have_failed(self.q.now)
            self.model.jobs[job_id].state = "failed"
            del self.active_jobs[job_id]
        for job in found:
            assert self.q.finish(missing[job.id].completed()) == [3]
            self.active_jobs[job.id] = job

    ENDS = st.sampled_from(
        (
            "ok", "ok", "ok", "away", "kept", "aged", "fail", "retry", "release", "later", "front", "back", "limited",
            "suspend", "patient", "wait",
        )
    )  # fmt: skip

    @precondition(lambda self: self.active_jobs)
    @rule(
        pick=PICK, ends=st.lists(ENDS, min_size=1, max_size=3), want=st.integers(0, 3),
        tokens=st.sampled_from((None, None, 0, 20)),
    )  # fmt: skip
    def finish(self, pick: int, ends: list[str], want: int, tokens: int | None):
        """Make one exchange of one worker: report finished jobs and fetch the next ones."""
        chosen = self._pick(self.active_jobs, pick)
        consumer = self.holder[chosen]
        mine = [chosen, *(i for i in self.active_jobs if self.holder[i] == consumer and i != chosen)]
        rows, expected = [], []
        for job_id, end in zip(mine, ends, strict=False):
            fetched, job = self.active_jobs.pop(job_id), self.model.jobs[job_id]
            if end == "aged" and "kept" in ends:
                end = "ok"
            finished, status = self._end(fetched, job, end)
            rows.append(finished)
            expected.append(status)
        reported = None if tokens is None else [tokens] * len(rows)
        self._report_tokens(reported or [])
        reply = self._exchange(consumer, want, rows, reported=reported)
        assert list(reply.statuses) == expected
        self._trimmed(ends[: len(rows)])

    def _end(self, fetched: Fetched, job: Job, end: str) -> tuple[Any, int]:
        now = self.q.now
        if end in ("front", "back", "limited") and job.key is None:
            end = "later"
        if end in ("ok", "away", "kept", "aged"):
            job.state = "completed"
            if end == "away":
                job.state = "gone"
            return fetched.completed(keep=KEEP.get(end, 0)), 0
        if end == "fail":
            job.state = "failed"
            return fetched.failed(keep=int(job.removes)), 5
        if end in ("suspend", "patient"):
            return self._suspend(fetched, job, 0 if end == "suspend" else SUSPEND_TIMEOUT)
        if end == "wait":
            return self._wait_for_children(fetched, job)
        if end in ("front", "back", "limited"):
            return self._limit_group(fetched, job, end)
        job.state = "ready"
        if end == "release":
            job.due = 0
            return fetched.released(), 6
        job.deaths = 0
        if end == "retry":
            job.due = now + 25
            return fetched.failed(limit=1_000, backoff=25), 4
        job.due = now + 35
        return working.delayed(*fetched.token, 35), STATUS_DELAYED

    def _limit_group(self, fetched: Fetched, job: Job, how: str) -> tuple[Any, int]:
        assert job.group is not None
        job.group.limited_until = max(job.group.limited_until, self.q.now + 20)
        place = "fail" if how == "limited" else how
        finished = working.group_limited(*fetched.token, 20, 0, place, int(job.removes))
        if how == "limited":
            job.state = "failed"
            return finished, 5
        job.state, job.due, job.deaths = "ready", 0, 0
        if how == "back":
            job.holds = False
        return finished, STATUS_LIMITED

    @precondition(lambda self: self.active_jobs)
    @rule(pick=PICK)
    def finish_twice(self, pick: int):
        """Repeat a report whose reply was lost."""
        job_id = self._pick(self.active_jobs, pick)
        fetched = self.active_jobs.pop(job_id)
        assert self.q.finish(fetched.completed()) == [0]
        assert self.q.finish(fetched.completed()) == [1]
        self.model.jobs[job_id].state = "completed"

    @precondition(lambda self: self.active_jobs)
    @rule(pick=PICK)
    def die(self, pick: int):
        """A worker forgets a job: it is not heard of again."""
        job_id = self._pick(self.active_jobs, pick)
        self.dead[job_id] = self.active_jobs.pop(job_id)

    def _beat(self):
        for consumer in CONSUMERS:
            jobs = [job.token for job_id, job in self.active_jobs.items() if self.holder[job_id] == consumer]
            reply = self.run(working.heartbeat(self.q.meta, consumer, "{}", 60_000, jobs))
            revoked = [self.model.jobs[token[0]].revoked for token in jobs]
            assert reply.statuses == [7 if each else 0 for each in revoked]

    @rule()
    def heartbeat(self):
        self._beat()

    @rule(forget=st.booleans())
    def recover_stalled(self, forget: bool):
        """Advance by a lock duration, renew the locks of live workers, and recover the jobs of dead ones."""
        if not (self.dead or forget):
            return
        self.q.advance(LOCK)
        self.wire.now = self.q.now
        self._beat()
        self._peer_beats(self.q.now - SKEW)
        self.q.make_group()
        for entry, consumer in self.q.pending():
            beaten = any(job.entry == entry for job in self.active_jobs.values())
            self.q.let_idle(entry, 0 if beaten else LOCK + 1, consumer)
        recovered, failed, cursor = set[str](), set[str](), ""
        while True:
            reply = self.run(working.recover_stalled(self.q.meta, "py-1", 1, LOCK, MAX_STALLED, False, cursor))
            recovered |= set(reply.recovered)
            failed |= set(reply.failed)
            cursor = reply.cursor
            if not cursor:
                break
        assert recovered | failed >= set(self.dead)
        assert not recovered & failed
        # A job that the peer read or started and does not renew counts as stalled at the second check.
        foreign = recovered | failed - set(self.dead)
        assert (recovered | failed) - set(self.dead) <= set(self.lost | self.unread), foreign
        for job_id in recovered | failed:
            job = self.model.jobs[job_id]
            if job.state == "active":
                self._charge(job)
            assert (job_id in failed) == (job.deaths > MAX_STALLED)
            job.state, job.due, job.untouched = ("failed" if job_id in failed else "ready"), 0, ""
            self.lost.pop(job_id, None)
            self.unread.pop(job_id, None)
        for job_id, fetched in self.dead.items():
            refused = self.q.finish(fetched.completed())
            assert refused == [3 if self.q.state(job_id) else 2], f"the dead worker's result for {job_id} counted"
        self.dead.clear()

    def _charge(self, job: Job):
        """Count a stall if the job was alone or the only suspect; other jobs become suspects."""
        limit, deaths = (
            int(self.q.redis("HGET", f"job:{job.id}", name) or 0) for name in ("suspectLimit", "stalledCount")
        )
        if deaths > job.deaths:
            together = [each for each in self.dead if self.holder[each] == self.holder[job.id]]
            assert deaths == job.deaths + 1
            assert job.limit == 1 or job.id not in self.dead or len(together) == 1, (job, together)
        else:
            assert limit > 0
            assert not job.limit or limit < job.limit
        job.limit, job.deaths = limit, deaths

    @rule(ms=MOMENTS)
    def wait(self, ms: int):
        self.q.advance(ms)
        self.wire.now = self.q.now

    # -- operators ----------------------------------------------------------------------------------------

    @rule(on=st.booleans())
    def set_dead_letter_queue(self, on: bool):
        """Configure a dead-letter queue: from now on every failure creates an entry."""
        kinds = "failed,stalled,expired,revoked,cost,malformed"
        self.run(outbox.dead_letter_queue(self.q.meta, "dead" if on else "", kinds if on else ""))
        self.q.redis("UNLINK", "outbox")
        self.model.dead_letters = [] if on else None

    @rule()
    def pause_or_resume(self):
        self.model.paused = not self.model.paused
        assert self.run((administration.pause if self.model.paused else administration.resume)(self.q.meta))

    @rule(limit=st.sampled_from((0, 0, 1, 3)))
    def limit_queue(self, limit: int):
        self.run(limiting.limit_queue(self.q.meta, limit, False))
        self.limit = limit

    @precondition(lambda self: self.model.groups)
    @rule(pick=PICK, concurrency=st.integers(1, 3))
    def limit_group(self, pick: int, concurrency: int):
        key = self._pick(self.model.groups, pick)
        self.run(limiting.limit_group(self.q.meta, key, concurrency, False, False))
        self.model.groups[key].concurrency = concurrency

    @precondition(lambda self: self.model.groups)
    @rule(pick=PICK)
    def block_group(self, pick: int):
        key = self._pick(self.model.groups, pick)
        at = self.run(limiting.block_group(self.q.meta, key, 30, False))
        assert at >= max(self.model.groups[key].limited_until, self.q.now + 30)
        self.model.groups[key].limited_until = at

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK)
    def remove(self, pick: int):
        job = self._any_job(pick)
        assert self.run(administration.remove(self.q.meta, job.id)) == (job.state != "gone")
        self._let_go(job)
        if job.state == "failed":
            self.model.notify_parent(job, "removed", job.policy or "fail_parent")
        job.state = "gone"

    def _let_go(self, job: Job):
        self.active_jobs.pop(job.id, None)
        self.dead.pop(job.id, None)
        for place in (self.peer, self.unread, self.lost):
            place.pop(job.id, None)

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK)
    def revoke(self, pick: int):
        job = self._any_job(pick)
        outcome = self.run(administration.revoke(self.q.meta, job.id))
        if job.state == "gone":
            assert outcome == "not_found"
        elif job.state == "ready":
            job.revoked = True
            assert outcome in ("revoked", "flagged")
            assert (self.q.state(job.id) in ("failed", None)) == (outcome == "revoked")
        elif job.state in ("suspended", "waiting"):
            job.state, job.revoked = "failed", True
            assert outcome == "revoked"
        else:
            assert outcome == "flagged" or (job.state == "failed" and job.revoked)
            job.revoked = True

    @precondition(lambda self: self.model.of("failed"))
    @rule(pick=PICK, all_=st.booleans())
    def retry(self, pick: int, all_: bool):
        jobs = self.model.of("failed")
        if all_:
            ids = self.q.redis("ZRANGE", "failed", 0, -1)
            # Cancelled jobs are requeued only by their ids.
            jobs = [self.model.jobs[each] for each in ids if self.q.job(each).get("failedReason") != "revoked"]
            left, kept = -1, 0
            while left:
                _, left, kept = self.run(administration.requeue_jobs(self.q.meta, 5, 0, left, 0, kept=kept))
        else:
            jobs = [jobs[pick % len(jobs)]]
            assert self.run(administration.requeue_job(self.q.meta, jobs[0].id)) == "ok"
        for job in jobs:
            job.due, job.revoked, job.exempt, job.deaths = 0, False, True, 0
            job.holds = False
            job.state = "ready"

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK, priority=st.sampled_from((0, 1, 5)))
    def change_priority(self, pick: int, priority: int):
        job = self._any_job(pick)
        outcome = self.run(administration.change_priority(self.q.meta, job.id, priority))
        assert outcome != "lost"
        assert outcome != "held" or job.id in self.unread | self.lost
        job.untouched = ""

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK, delay=st.sampled_from((0, 55)))
    def change_delay(self, pick: int, delay: int):
        job = self._any_job(pick)
        outcome = self.run(administration.change_delay(self.q.meta, job.id, delay))
        assert outcome != "lost"
        assert outcome != "held" or job.id in self.unread | self.lost
        job.untouched = ""
        if outcome == "ok":
            job.due = self.q.now + delay

    @precondition(lambda self: self.model.of("ready"))
    @rule(pick=PICK)
    def promote(self, pick: int):
        jobs = self.model.of("ready")
        job = jobs[pick % len(jobs)]
        job.untouched = ""
        if self.run(administration.promote(self.q.meta, job.id)) == "ok":
            job.due = 0

    @precondition(lambda self: self.model.of("ready"))
    @rule(batch=st.sampled_from((1, 3, 100)))
    def promote_all(self, batch: int):
        delayed = [job for job in self.model.of("ready") if self.q.state(job.id) == "delayed"]
        cursor, promoted = "", 0
        while True:
            piece = self.run(administration.promote_jobs(self.q.meta, batch, 0, cursor, ""))
            promoted, cursor = promoted + piece.promoted, piece.cursor
            if not cursor:
                break
        assert promoted == len(delayed)
        for job in delayed:
            assert self.q.state(job.id) != "delayed"
            job.untouched, job.due = "", 0

    @rule(delayed=st.booleans())
    def drain(self, delayed: bool):
        before = {job.id: self.q.state(job.id) for job in self.model.of("ready")}
        cursor, total = "", 0
        while True:
            deleted, cursor = self.run(administration.drain(self.q.meta, delayed, cursor, 3, total))
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
            if job.id in before and job.id not in self.unread | self.lost:
                assert not delayed
                assert before[job.id] == "delayed"

    @rule(state=st.sampled_from(ENDED))
    def clean(self, state: str):
        expected = {job.id for job in self.model.of(state)}
        cutoff, ids, more = -1, list[str](), True
        while more:
            cutoff, found, more = self.run(administration.clean(self.q.meta, state, 0, cutoff, 3, 1_000, len(ids)))
            ids += found
        assert set(ids) == expected
        for job_id in ids:
            job = self.model.jobs[job_id]
            if state == "failed":
                self.model.notify_parent(job, "removed", job.policy or "fail_parent")
            job.state = "gone"

    # -- a Node peer: the rest of it is in peer_rules.py ------------------------------------------------------

    @rule(key=st.sampled_from((None, *KEYS, PAID)), kind=st.sampled_from(("plain", "delay", "priority", "lifo")))
    def peer_adds(self, key: str | None, kind: str):
        kinds: dict[str, dict[str, Any]] = {"delay": {"delay": 50}, "priority": {"priority": 3}, "lifo": {"lifo": 1}}
        options = kinds.get(kind, {})
        if key is None:
            job = self.model.add(self.wire.add(**options), due=self.q.now + options.get("delay", 0))
            job.untouched = kind if kind in ("plain", "lifo") else ""
            return
        concurrency = WIDTHS.get(key, 2)
        rate = {"rate_max": RATE, "rate_duration": WINDOW} if key == RATED else {}
        job_id = self.wire.add(ordering=key, concurrency=concurrency, **rate, **options)
        # Fields that a peer does not set are removed.
        self.model.group(key).set_rate_limit(RATE if rate else 0, WINDOW)
        self.model.group(key).set_bucket(0, 0)
        self._added_to_group(job_id, key, concurrency, options)

    # -- what holds always --------------------------------------------------------------------------------

    @invariant()
    def all_is_well(self):
        self.the_queue_is_what_the_model_says()
        self.the_check_finds_nothing()

    def the_queue_is_what_the_model_says(self):
        self._notice_failures()
        for job in self.model.jobs.values():
            self.model.reconcile(job, self.q.state(job.id), self.q.now)
        counts = self.q.counts()
        for state in ENDED:
            assert counts[state] == len(self.model.of(state)), (state, counts)
        held = sum(self.model.jobs[job_id].state == "ready" for job_id in (self.unread | self.lost))
        assert counts["active"] == len(self.model.of("active")) + held, counts
        assert counts["waiting_children"] == len(self.model.of("waiting")), counts
        assert counts["suspended"] == len(self.model.of("suspended")), counts
        parked = sum(self.q.redis("ZCARD", f"groupq:{key}") for key in self.model.groups)
        waiting = counts["waiting"] + counts["delayed"] + counts["prioritized"] + parked
        assert waiting + held == len(self.model.of("ready")), counts
        if self.model.dead_letters is not None:
            entries = self.q.redis("XRANGE", "outbox", "-", "+")
            dead_letters = [fields[fields.index("id") + 1] for _, fields in entries if "dead" in fields]
            assert sorted(dead_letters) == sorted(self.model.dead_letters)

    def the_check_finds_nothing(self):
        found = check(self.q, looks=1)
        assert not found.findings, str(found)

    def teardown(self):
        """Assert that every job ends and no key is left."""
        try:
            self._finish_everything()
        finally:
            self.q.delete_everything()

    def _finish_everything(self):
        if self.model.paused:
            self.pause_or_resume()
        self.limit_queue(0)
        self.limit_rate_of_queue(0)
        self.peer_begins_what_it_has_read()
        self.peer_recovers_stalled()
        for job_id, entry in list(self.peer.items()):
            self._peer_completes(job_id, entry)
        self.sweep_suspended()
        for job in self.model.of("suspended"):
            assert self.run(suspending.deliver_signal(self.q.meta, job.id, "end", "")) == "resumed"
            job.state, job.due = "ready", 0
        for _ in range(200):
            rows = [job.completed() for job in self.active_jobs.values()]
            for job_id in list(self.active_jobs):
                self.model.jobs[job_id].state = "completed"
                del self.active_jobs[job_id]
            self._exchange("py-1", 50, rows)
            self.the_queue_is_what_the_model_says()
            if not self.active_jobs and not self.model.of("ready"):
                self.watch()
                if not self.model.of("ready"):
                    break
            self.wait(500)
        assert not self.model.of("waiting")
        assert not self.model.of("ready"), [(job, self.q.job(job.id)) for job in self.model.of("ready")]
        self.the_check_finds_nothing()
        assert self.q.redis("GET", "list-active") in (None, "0")
        assert self.q.entries() == []
        for key in self.model.groups:
            record = self.q.resp.hash(self.q.key(f"group:{key}"))
            assert record.get("active", "0") == "0", record
            # Marks are consumed when a fetch reaches them.
            skipped = sum(name.startswith("skip:") for name in record)
            issued = int(self.q.redis("HGET", "ordering", key) or 0)
            assert int(record.get("nextSeq", "1")) + skipped == issued + 1, record

    # -- choosing -----------------------------------------------------------------------------------------

    def _any_job(self, pick: int) -> Job:
        jobs = list(self.model.jobs.values())
        # Those added last, as most others have ended.
        return jobs[-1 - pick % min(len(jobs), 12)]

    @staticmethod
    def _pick(among: Any, pick: int) -> str:
        return list(among)[pick % len(among)]


STATUS_DELAYED, STATUS_LIMITED = 8, 9


@pytest.mark.slow
@pytest.mark.timeout(0 if CHAOS else 1_000)
def test_queue_state_machine(resp: RespClient):
    wire_support.load(resp)
    assert library().functions
    machine: Any = lambda: QueueMachine(resp)  # noqa: E731
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=CHAOS or 60,
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
