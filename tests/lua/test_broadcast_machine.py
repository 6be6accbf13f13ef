"""Run random operations of a publisher, two subscriptions and their workers on a real server whose clock stops between
the steps. The model predicts every reply exactly: which messages a fetch returns, in which order, and what is pending.

Ages of messages are those of stream entries, which have the server's own time: retention by age has its own tests.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from glidemq_py.testing import RespClient
from tests.inside import broadcast, row, working
from tests.lua.own_support import Fetched, OwnQueue
from tests.lua.test_state_machine import CHAOS, PHASES

CREATED = "0-0"
LOCK, MAX_STALLED = 600_000, 1
ATTEMPTS, BACKOFF = 3, 25
PATTERNS: Final[dict[str, list[str] | None]] = {"all": None, "some": ["^news%.a$"]}
"""The subscriptions, with the subjects that they get."""
SUBJECTS = ("news.a", "news.a", "news.b")
OK, REPEATED, GONE, STALE, RETRYING, FAILED, RELEASED = range(7)
CONSUMERS = ("py-1", "py-2")
GROUPS = st.sampled_from(tuple(PATTERNS))
PICK = st.integers(0, 10_000)
_numbers = itertools.count()


@dataclass(eq=False)
class Entry:
    """An entry of the stream: a message, or a further attempt of one subscription."""

    number: int
    message: str
    subject: str
    only: str | None = None


@dataclass
class Subscription:
    """What a subscription has read, and what is pending: by entry, with the consumer, or None if it was released."""

    read: int
    pending: dict[Entry, str | None] = field(default_factory=dict)
    attempts: dict[Entry, Fetched] = field(default_factory=dict)
    """The attempt that may report, of each entry that a consumer holds."""


class BroadcastMachine(RuleBasedStateMachine):
    """One broadcast, two subscriptions, two workers of each."""

    def __init__(self, resp: RespClient):
        super().__init__()
        self.q = OwnQueue(resp, f"news-{os.getpid()}-{next(_numbers)}")
        self.run = self.q.run
        self.stream: list[Entry] = []
        self.alive: dict[str, str] = {}
        """Subjects of the messages that exist."""
        self.subs: dict[str, Subscription] = {}
        self.delayed: list[tuple[int, str]] = []
        """Due time and member of each further attempt."""
        self.failures: dict[tuple[str, str], int] = {}
        self.stalls: dict[tuple[str, str], int] = {}
        self.ended: list[tuple[str, str, Fetched]] = []
        """Attempts that have ended: subscription, consumer, attempt."""
        self.numbers = itertools.count(1)

    # -- the publisher ------------------------------------------------------------------------------------

    @rule(subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=4), most=st.sampled_from((0, 0, 3, 6)))
    def publish(self, subjects: list[str], most: int):
        rows = [row(subject, "{}", "{}") for subject in subjects]
        for message, subject in zip(self.run(broadcast.publish(self.q.meta, rows, False, most, 0)).results, subjects,
                                    strict=True):  # fmt: skip
            self.alive[message] = subject
            self._append(message)
        if most:
            self._trim(most)

    def _append(self, message: str, only: str | None = None):
        self.stream.append(Entry(next(self.numbers), message, self.alive[message], only))

    def _trim(self, most: int):
        """The oldest entries are deleted, with their messages, whether or not a subscription has read them."""
        removed = self.stream[: max(0, len(self.stream) - most)]
        del self.stream[: len(removed)]
        for entry in removed:
            self.alive.pop(entry.message, None)
            for group in self.subs:
                self.failures.pop((entry.message, group), None)
                self.stalls.pop((entry.message, group), None)

    # -- subscriptions ------------------------------------------------------------------------------------

    @rule(group=GROUPS, old=st.booleans())
    def subscribe(self, group: str, old: bool):
        self.run(broadcast.subscribe(self.q.meta, group, CREATED if old else "$"))
        if group not in self.subs:
            self.subs[group] = Subscription(0 if old else self._last())

    def _last(self) -> int:
        """Return the number of the newest entry so far, whether or not it still exists."""
        number = next(self.numbers)
        self.numbers = itertools.count(number)
        return number - 1

    @precondition(lambda self: self.subs)
    @rule(group=GROUPS)
    def unsubscribe(self, group: str):
        assert self.run(broadcast.unsubscribe(self.q.meta, group, True)) == ("ok" if group in self.subs else "gone")
        self.subs.pop(group, None)
        # A subscription of the same name counts deliveries from one again, so the tokens of attempts may recur.
        self.ended = [each for each in self.ended if each[0] != group]

    # -- workers ------------------------------------------------------------------------------------------

    @rule(
        group=GROUPS, consumer=st.sampled_from(CONSUMERS), want=st.integers(0, 4),
        ends=st.lists(st.sampled_from(("ok", "ok", "retry", "retry", "fail", "release")), max_size=3),
    )  # fmt: skip
    def exchange(self, group: str, consumer: str, want: int, ends: list[str]):
        """Report messages of one worker and fetch the next ones."""
        sub = self.subs.get(group)
        mine = [] if sub is None else [entry for entry, by in sub.pending.items() if by == consumer]
        rows, expected = [], []
        for entry, end in zip(mine, ends, strict=False):
            assert sub is not None
            finished, status = self._end(group, sub, entry, end, consumer)
            rows.append(finished)
            expected.append(status)
        reply = self._call(group, consumer, want, rows)
        assert list(reply.statuses) == expected
        self._promote()
        got = [Fetched(job, reply.now) for job in reply.jobs]
        if want and sub is None:
            sub = self.subs[group] = Subscription(0)  # a fetch creates the subscription
        entries = self._fetch(group, sub, consumer, want) if want and sub is not None else []
        assert [job.id for job in got] == [entry.message for entry in entries]
        for job, entry in zip(got, entries, strict=True):
            assert sub is not None
            assert int(job.fields["attemptsMade"]) == self.failures.get((entry.message, group), 0) * self._knows(job)
            sub.pending[entry], sub.attempts[entry] = consumer, job

    @staticmethod
    def _knows(job: Fetched) -> bool:
        """A first delivery of an original entry does not read what an earlier subscription of this name did."""
        return job.fence != 2

    def _call(self, group: str, consumer: str, want: int, rows: Any) -> working.ExchangeReply:
        reply = self.run(broadcast.exchange(
            self.q.meta, consumer, want, rows, False, False, group, PATTERNS[group], CREATED, lambda _: None
        ))  # fmt: skip
        assert isinstance(reply, working.ExchangeReply)
        return reply

    def _end(self, group: str, sub: Subscription, entry: Entry, end: str, consumer: str) -> tuple[Any, int]:
        job, key = sub.attempts.pop(entry), (entry.message, group)
        if end == "release":
            # A trimmed entry cannot be released: it ends.
            if entry in self.stream:
                sub.pending[entry] = None
            else:
                del sub.pending[entry]
            return job.released(), RELEASED
        self.ended.append((group, consumer, job))
        self._leave(sub, entry)
        if end == "ok":
            return job.completed(), OK
        limit = ATTEMPTS if end == "retry" else 0
        finished = job.failed(limit=limit, backoff=BACKOFF)
        if entry.message not in self.alive:
            return finished, GONE
        self.failures[key] = count = self.failures.get(key, 0) + 1
        self.stalls.pop(key, None)
        if count >= limit:
            return finished, FAILED
        self.delayed.append((self.q.now + BACKOFF, f"{entry.message}||{group}"))
        return finished, RETRYING

    def _leave(self, sub: Subscription, entry: Entry):
        sub.pending.pop(entry, None)
        if entry.only and entry in self.stream:
            self.stream.remove(entry)

    def _promote(self):
        """Due attempts are appended to the stream, for their subscription only, if their message still exists."""
        for due, member in sorted(self.delayed):
            message, _, group = member.partition("||")
            if due <= self.q.now:
                self.delayed.remove((due, member))
                if message in self.alive:
                    self._append(message, group)

    def _fetch(self, group: str, sub: Subscription, consumer: str, want: int) -> list[Entry]:
        """Return what a fetch must return: released entries first, then unread ones, in the order of the stream."""
        found: list[Entry] = []
        released = sorted((entry for entry, by in sub.pending.items() if by is None), key=lambda entry: entry.number)
        for entry in released[:want]:
            if entry in self.stream and entry.message in self.alive:
                found.append(entry)
            else:
                self._leave(sub, entry)
        for entry in [each for each in self.stream if each.number > sub.read]:
            if len(found) >= want:
                break
            sub.read = entry.number
            if entry.only not in (None, group):
                continue
            if entry.message not in self.alive:
                self._leave(sub, entry)
            elif entry.only or PATTERNS[group] is None or entry.subject == "news.a":
                found.append(entry)
        return found

    @precondition(lambda self: self.ended)
    @rule(pick=PICK)
    def report_again(self, pick: int):
        """Repeat a report whose reply was lost: it changes nothing."""
        group, consumer, job = self.ended[-1 - pick % min(len(self.ended), 5)]
        (status,) = self._call(group, consumer, 0, [job.completed()]).statuses
        self._promote()
        assert status == (REPEATED if job.id in self.alive else GONE)

    @precondition(lambda self: any(sub.attempts for sub in self.subs.values()))
    @rule(pick=PICK, group=GROUPS)
    def crash(self, pick: int, group: str):
        """A worker stops renewing the lock of a message; another worker recovers it; the late report is rejected."""
        sub = self.subs.get(group)
        held = [] if sub is None else [entry for entry in sub.attempts if entry in self.stream]
        if sub is None or not held:
            return
        entry = held[pick % len(held)]
        consumer, job, key = sub.pending[entry], sub.attempts.pop(entry), (entry.message, group)
        assert consumer is not None
        self.q.redis("XCLAIM", "stream", group, consumer, 0, job.entry, "IDLE", LOCK + 1, "JUSTID")
        reply = self.run(broadcast.recover_stalled(self.q.meta, "py-2", 1, LOCK, MAX_STALLED, False, "", group, 0))
        if entry.message not in self.alive:
            assert not reply.recovered
            assert not reply.failed
            del sub.pending[entry]
            return
        self.stalls[key] = self.stalls.get(key, 0) + 1
        fails = self.stalls[key] > MAX_STALLED
        assert (list(reply.failed), list(reply.recovered)) == (([job.id], []) if fails else ([], [job.id]))
        if fails:
            self._leave(sub, entry)
        else:
            sub.pending[entry] = None
        (status,) = self._call(group, consumer, 0, [job.completed()]).statuses
        self._promote()
        assert status == (REPEATED if fails else STALE)

    @rule(ms=st.sampled_from((1, 10, 60)))
    def wait(self, ms: int):
        self.q.advance(ms)

    # -- what holds always --------------------------------------------------------------------------------

    @invariant()
    def the_broadcast_is_what_the_model_says(self):
        assert self.q.redis("XLEN", "stream") == len(self.stream)
        assert self.q.redis("ZCARD", "scheduled") == len(self.delayed)
        page = self.run(broadcast.subscriptions(self.q.meta))
        released = {name: sum(by is None for by in sub.pending.values()) for name, sub in self.subs.items()}
        pending = {name: len(sub.pending) for name, sub in self.subs.items()}
        assert {each.name: each.pending for each in page.rows} == pending
        assert {each.name: each.released for each in page.rows} == released

    def _is_behind(self, sub: Subscription) -> bool:
        return bool(sub.pending) or any(entry.number > sub.read for entry in self.stream)

    def teardown(self):
        """Assert that every message of every subscription can be fetched and completed."""
        try:
            for _ in range(50):
                self.q.advance(BACKOFF)
                for group, consumer in itertools.product(self.subs, CONSUMERS):
                    self.exchange(group, consumer, 20, ["ok"] * 20)
                if not self.delayed and not any(self._is_behind(sub) for sub in self.subs.values()):
                    break
            assert not any(self._is_behind(sub) for sub in self.subs.values())
            assert not self.subs or not self.delayed
            self.the_broadcast_is_what_the_model_says()
        finally:
            self.q.delete_everything()


@pytest.mark.slow
def test_broadcast_state_machine(resp: RespClient):
    machine: Any = lambda: BroadcastMachine(resp)  # noqa: E731
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=CHAOS or 40, stateful_step_count=120 if CHAOS else 30, derandomize=not CHAOS, deadline=None,
            database=None, print_blob=True, suppress_health_check=list(HealthCheck), phases=PHASES,
            report_multiple_bugs=False,
        ),
    )  # fmt: skip
