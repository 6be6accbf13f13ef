"""Limits of groups and of the queue, for the machine of test_state_machine.py: token buckets and costs, rate windows,
the queue's own rate and tokens, and what happens when they are changed while jobs run."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.inside import limits as limiting
from tests.inside import row
from tests.lua.own_support import OwnQueue
from tests.lua.queue_model import Model, Window

PAID = "paid"
CAPACITY, REFILL = 3_000, 20_000
"""Millitokens, and millitokens a second: a token comes in 50 ms."""
QUEUE_WINDOW, TOKEN_WINDOW, TOKEN_MAX = 80, 60_000, 100
"""A token counter expires by the server's real clock, so its window is long."""
PICK = st.integers(0, 10_000)


class LimitRules:
    """A part of the machine."""

    q: OwnQueue
    model: Model
    run: Any
    window: Window
    """The queue's own rate, or that of a worker."""
    tokens: dict[int, int]
    """Reported by finished jobs, by window."""

    def _pick(self, among: Any, pick: int) -> str:
        raise NotImplementedError

    def _added_to_group(self, job_id: str, key: str, concurrency: int, timed: dict[str, int]):
        raise NotImplementedError

    @rule(cost=st.sampled_from((0, 0, 500, 2_000, 9_000)), count=st.integers(1, 3), delay=st.sampled_from((0, 0, 20)))
    def add_paid(self, cost: int, count: int, delay: int):
        """Add jobs with a cost; a job that costs more than the bucket holds is not added."""
        if cost <= CAPACITY:
            self.model.group(PAID).set_bucket(CAPACITY, REFILL)
        ordering: list[object] = [PAID, 2, 0, 0, CAPACITY, REFILL, cost]
        for result in self.q.add(*(row("task", "{}", "{}", ordering=ordering, delay=delay) for _ in range(count))):
            if cost > CAPACITY:
                assert result == ["cost", ""]
            else:
                self._added_to_group(result, PAID, 2, {"delay": delay})
                self.model.jobs[result].cost = cost or 1_000

    @precondition(lambda self: self.model.groups)
    @rule(
        pick=PICK, rate=st.sampled_from((False, 0, (1, 60), (3, 120))),
        bucket=st.sampled_from((False, 0, (1_000, 20_000), (4_000, 50_000))),
    )  # fmt: skip
    def change_limits_of_group(self, pick: int, rate: limiting.Setting, bucket: limiting.Setting):
        key = self._pick(self.model.groups, pick)
        group = self.model.groups[key]
        # Limits first: they apply to the jobs that the call fetches.
        if rate is not False:
            group.set_rate_limit(*(rate if isinstance(rate, tuple) else (0, 0)))
        if bucket is not False:
            group.set_bucket(*(bucket if isinstance(bucket, tuple) else (0, 0)))
        self.run(limiting.limit_group(self.q.meta, key, False, rate, bucket))

    @precondition(lambda self: self.model.groups)
    @rule(pick=PICK, ms=st.sampled_from((1, 20, 90)))
    def block_group_again(self, pick: int, ms: int):
        """An earlier pause is replaced."""
        key = self._pick(self.model.groups, pick)
        at = self.run(limiting.block_group(self.q.meta, key, ms, True))
        assert at == self.q.now + ms
        self.model.groups[key].limited_until = at

    @rule(most=st.sampled_from((0, 0, 2, 5)))
    def limit_rate_of_queue(self, most: int):
        self.run(limiting.limit_queue(self.q.meta, False, (most, QUEUE_WINDOW) if most else 0))
        self.window.most, self.window.duration = most, QUEUE_WINDOW

    def _tokens_left(self) -> bool:
        return self.tokens.get(self.q.now // TOKEN_WINDOW, 0) < TOKEN_MAX

    def _report_tokens(self, reported: list[int]):
        if sum(reported):
            number = self.q.now // TOKEN_WINDOW
            self.tokens[number] = self.tokens.get(number, 0) + sum(reported)
