"""A Node peer, for the machine of test_state_machine.py: a producer, a worker and an operator that call the documented
functions as a client in another language does, with its own clock."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.lua.own_support import Fetched, OwnQueue
from tests.lua.queue_model import ENDED, Job, Model
from tests.wire_library.support import GROUP, WireQueue

LOCK = 30_000
MAX_STALLED = 1
SUSPEND_TIMEOUT = 45
SKEW = 3_600_000
"""The peer's clock is so far behind."""
PICK = st.integers(0, 10_000)
STEPS = ("later", "suspend", "patient", "front", "back", "limited", "defer", "wait")


class PeerRules:
    """A part of the machine."""

    q: OwnQueue
    wire: WireQueue
    model: Model
    active_jobs: dict[str, Fetched]
    dead: dict[str, Fetched]
    peer: dict[str, str]
    """Jobs it works on, and their entries."""
    unread: dict[str, str]
    """Jobs whose entries it has read, and not begun."""
    lost: dict[str, str]
    """Jobs of a peer that died."""

    def _any_job(self, pick: int) -> Job:
        raise NotImplementedError

    def _pick(self, among: Any, pick: int) -> str:
        raise NotImplementedError

    def _let_go(self, job: Job):
        raise NotImplementedError

    def _notice_failures(self):
        raise NotImplementedError

    def _beat(self):
        raise NotImplementedError

    # -- its worker ---------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 2), begin=st.booleans())
    def peer_takes(self, count: int, begin: bool):
        self.model.by_peer = True
        found = [(fields["jobId"], entry) for entry, fields in self.wire.read(count)]
        found += [(job_id, "") for job_id in self.wire.pop(1)] if begin else []
        for job_id, entry in found:
            if begin:
                self._peer_begins(job_id, entry)
            else:
                self.unread[job_id] = entry
                self.model.jobs[job_id].untouched = ""
        self._notice_failures()
        self.model.by_peer = False

    @precondition(lambda self: self.unread)
    @rule()
    def peer_begins_what_it_has_read(self):
        self.model.by_peer = True
        for job_id, entry in list(self.unread.items()):
            del self.unread[job_id]
            self._peer_begins(job_id, entry)
        self._notice_failures()
        self.model.by_peer = False

    def _peer_begins(self, job_id: str, entry: str):
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
    @rule(pick=PICK, end=st.sampled_from(("ok", "ok", "next", "fail", "retry")))
    def peer_finishes(self, pick: int, end: str):
        job_id = self._pick(self.peer, pick)
        entry, job = self.peer.pop(job_id), self.model.jobs[job_id]
        if end == "ok" or (end == "next" and job.parent):
            self._peer_completes(job_id, entry)
        elif end == "next":
            self._peer_completes_and_fetches(job, entry)
        elif end == "fail":
            assert self.wire.fail(job_id, entry) == "failed"
            self.model.by_peer = True
            job.state = "failed"
            self.model.by_peer = False
        else:
            assert self.wire.fail(job_id, entry, limit=1_000, backoff=25) == "retrying"
            job.state, job.due, job.deaths = "ready", self.q.now + 25, 0

    def _peer_completes(self, job_id: str, entry: str):
        job = self.model.jobs[job_id]
        above: Any = None
        if job.parent is not None:
            parent = job.parent.id
            above = ((f"deps:{parent}", f"job:{parent}", "stream", "events"), self.q.key(job_id), parent)
        self.wire.complete(job_id, entry, parent=above)
        job.state = "completed"

    def _peer_completes_and_fetches(self, job: Job, entry: str):
        self.wire.make_group()
        self.model.by_peer = True
        word, ended, *following = self.wire.complete_and_fetch(job.id, entry)
        assert ended == job.id
        job.state = "completed"
        self._notice_failures()
        if word == "NEXT_REVOKED":
            assert self.model.jobs[following[0]].revoked
            self.wire.fail(following[0], following[1], "revoked")
        elif word == "NEXT_HASH":
            assert following[2:]
            self.model.begin(following[0], self.q.now)
            self.peer[following[0]] = following[1]
        self._notice_failures()
        self.model.by_peer = False

    @precondition(lambda self: self.peer)
    @rule(pick=PICK, step=st.sampled_from(STEPS))
    def peer_steps_aside(self, pick: int, step: str):
        job_id = self._pick(self.peer, pick)
        job, entry = self.model.jobs[job_id], self.peer[job_id]
        if step in ("front", "back", "limited") and job.key is None:
            return
        del self.peer[job_id]
        now, key = self.wire.now, f"job:{job_id}"
        if step != "defer":
            job.deaths = 0
        if step == "later":
            keys = [key, "stream", "scheduled", "events"]
            assert self.wire.call("moveActiveToDelayed", keys, job_id, entry, now, now + 35, GROUP, "", 0) == "ok"
            job.state, job.due = "ready", self.q.now + 35
        elif step in ("suspend", "patient"):
            self._peer_suspends(job, entry, 0 if step == "suspend" else SUSPEND_TIMEOUT)
        elif step == "wait":
            keys = [key, "stream", "events"]
            answer = self.wire.call("moveToWaitingChildren", keys, job_id, entry, GROUP, now, 0)
            assert answer == ("ok" if job.open_children() else "completed")
            job.due, job.state = 0, "waiting" if job.open_children() else "ready"
        elif step == "defer":
            assert self.wire.call("deferActive", ["stream", key, "list-active"], job_id, entry, GROUP, 0) == 1
            job.due, job.state = 0, "ready"
        else:
            self._peer_limits_group(job, entry, step)

    def _peer_suspends(self, job: Job, entry: str, timeout: int):
        keys = [f"job:{job.id}", "stream", "events", "suspended"]
        assert self.wire.call("suspend", keys, job.id, entry, GROUP, self.wire.now, "", timeout, 0) == "ok"
        job.state, job.due = ("ready", 0) if job.early else ("suspended", job.due)
        job.deadline = self.q.now + timeout if timeout and not job.early else None
        job.early = False

    def _peer_limits_group(self, job: Job, entry: str, how: str):
        word, place = ("fail", "front") if how == "limited" else ("requeue", how)
        arguments = (job.id, entry, GROUP, 20, self.wire.now, 0, word, place, "max")
        at = int(self.wire.call("rateLimitGroup", [f"job:{job.id}", "stream"], *arguments))
        assert job.key is not None
        self.model.groups[job.key].limited_until = at
        self.model.by_peer = True
        if word == "fail":
            job.state = "failed"
        else:
            # Its slot is free, and its turn is over.
            job.state, job.due, job.holds = "ready", 0, False
        self.model.by_peer = False

    @precondition(lambda self: self.peer or self.unread)
    @rule()
    def peer_dies(self):
        self.lost |= self.peer | self.unread
        self.peer.clear()
        self.unread.clear()

    def _peer_beats(self, at: int):
        for job_id in self.peer:
            self.wire.redis("HSET", f"job:{job_id}", "lastActive", at)

    @rule()
    def peer_recovers_stalled(self):
        """Recover stalled jobs as a peer: those of dead workers, including ours, and no others."""
        self.q.advance(LOCK)
        self.wire.now = self.q.now
        self._beat()
        self._peer_beats(self.wire.now)
        self.q.make_group()
        for entry, consumer in self.q.pending():
            beaten = any(job.entry == entry for job in self.active_jobs.values())
            self.q.let_idle(entry, 0 if beaten else LOCK + 1, consumer)
        self.model.by_peer = True
        self._notice_failures()
        self.wire.recover_stalled(LOCK, MAX_STALLED)
        self.wire.recover_list_jobs(LOCK, MAX_STALLED)
        for job_id in [job_id for job_id in self.peer if self.q.state(job_id) == "failed"]:
            # The recovery of stalled jobs also ends expired jobs, active or not, as documented.
            assert self.model.jobs[job_id].may_have_failed(self.q.now)
            self.model.jobs[job_id].state = "failed"
            del self.peer[job_id]
        for job_id in [*self.dead, *self.lost, *self.unread]:
            job = self.model.jobs[job_id]
            job.deaths += 1
            if self.q.state(job_id) == "failed":
                assert job.deaths > MAX_STALLED or job.may_have_failed(self.q.now)
                job.state = "failed"
            else:
                job.state, job.due = "ready", 0
        self.model.by_peer = False
        for job_id, fetched in self.dead.items():
            refused = self.q.finish(fetched.completed())
            assert refused == [3 if self.q.state(job_id) else 2], f"the dead worker's result for {job_id} counted"
        self.dead.clear()
        self.lost.clear()
        self.unread.clear()

    # -- its producers and operators ----------------------------------------------------------------------

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK)
    def peer_removes(self, pick: int):
        job = self._any_job(pick)
        assert self.wire.remove(job.id) == (job.state != "gone")
        self._let_go(job)
        self.model.by_peer = True
        job.state = "gone"
        self.model.by_peer = False

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK)
    def peer_revokes(self, pick: int):
        job = self._any_job(pick)
        outcome = self.wire.revoke(job.id)
        if job.state == "gone":
            assert outcome == "not_found"
            return
        job.revoked = True
        assert outcome == ("revoked" if job.state == "ready" else "flagged")
        if job.state == "ready":
            self.unread.pop(job.id, None)
            self.lost.pop(job.id, None)
        self.model.by_peer = True
        if job.state == "ready":
            job.state = "failed"
        self.model.by_peer = False

    @precondition(lambda self: self.model.of("failed"))
    @rule(count=st.integers(0, 2))
    def peer_retries(self, count: int):
        ids = self.q.redis("ZRANGE", "failed", 0, (count or 0) - 1)
        assert self.wire.call("retryJobs", ["failed", "scheduled", "events", "id"], count, self.wire.now) == len(ids)
        for job_id in ids:
            job = self.model.jobs[job_id]
            self.model.by_peer = True
            job.due, job.revoked, job.exempt, job.deaths, job.holds = self.q.now, False, True, 0, False
            job.state = "ready"
            self.model.by_peer = False

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK, delay=st.sampled_from((0, 55)), priority=st.sampled_from((None, 0, 1, 5)))
    def peer_changes(self, pick: int, delay: int, priority: int | None):
        job = self._any_job(pick)
        keys = [f"job:{job.id}", "stream", "scheduled", "events"]
        job.untouched = ""
        if priority is not None:
            self.wire.call("changePriority", keys, job.id, priority, GROUP)
        elif self.wire.call("changeDelay", keys, job.id, delay, self.wire.now, GROUP) == "ok":
            job.due = self.q.now + delay

    @precondition(lambda self: self.model.of("ready"))
    @rule(pick=PICK)
    def peer_promotes_one(self, pick: int):
        jobs = self.model.of("ready")
        job = jobs[pick % len(jobs)]
        job.untouched = ""
        if self.wire.call("promoteJob", [f"job:{job.id}", "stream", "scheduled", "events"], job.id) == "ok":
            job.due = 0

    @rule(delayed=st.booleans())
    def peer_drains(self, delayed: bool):
        keys = ["stream", "scheduled", "events", "id", "lifo", "priority"]
        self.model.by_peer = True
        total = self.wire.call("drain", keys, int(delayed), GROUP)
        count = 0
        while gone := [job for job in self.model.of("ready") if self.q.state(job.id) is None]:
            for job in gone:
                job.state = "gone"
            count += len(gone)
        self.model.by_peer = False
        assert total == count

    @rule(state=st.sampled_from(ENDED))
    def peer_cleans(self, state: str):
        ids = self.wire.call("clean", [state, "events", "id"], self.wire.now, 3)
        self.model.by_peer = True
        for job_id in ids:
            assert self.model.jobs[job_id].state == state
            self.model.jobs[job_id].state = "gone"
        self.model.by_peer = False

    @rule()
    def peer_heals(self):
        assert self.wire.call("healListActive", ["id"]) == 0

    @rule()
    def peer_promotes(self):
        for job in self.model.of("ready"):
            if job.untouched == "priority":
                job.untouched = ""  # from now on it existing in the peer's list
        self.model.by_peer = True
        self.wire.promote()
        self._notice_failures()
        self.wire.call("promoteRateLimited", ["ratelimited", "stream"], self.wire.now)
        self._notice_failures()
        self.model.by_peer = False
