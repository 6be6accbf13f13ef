"""Each later feature in a simulated fleet without faults, and faults of these features, which must be found."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from glidemq_py import ContextHeaders, Job, Worker
from tests.inside import parts, slot_pool
from tests.simulation.fleet import Fleet, simulate
from tests.simulation.mutations import FEATURE_FAULTS
from tests.simulation.pool import POOL_QUEUES
from tests.simulation.scenario import FEATURES, SETTINGS, Scenario, Work

STATES = ("failing", "retried", "delay", "stepped", "suspended", "pausing", "flow", "ordered")
"""Kinds of jobs with many states."""


def scenario(*kinds: str, jobs: int = 20, every: float = 0.02, **options: Any) -> Scenario:
    """Return a scenario without faults, with these kinds in turn."""
    work = tuple(Work(every * n, 6 * n, kinds[n % len(kinds)], n / jobs) for n in range(jobs))
    return Scenario(1, work, **{"workers": 2, **options})


FAULTS: dict[str, tuple[Scenario, str]] = {
    "wake_up_lost": (scenario("many", pool="list"), "of the idle queue"),
    "callback_early": (scenario("batch", pool="list"), "have not ended"),
    "callback_lost": (scenario("batch", pool="list"), "added 'success' 0 times"),
    "timeline_gap": (scenario(*STATES, settings=("timeline",)), "timeline of job"),
    "timeline_unbounded": (scenario(*STATES, settings=("timeline", "auto_retries")), "timeline of job"),
    "attempts_overwritten": (scenario(*STATES), "attempts of job"),
    "figures_overwritten": (scenario("plain", every=0.3, settings=("figures",)), "figures of 'plain'"),
    "retried_at_once": (scenario("failing", settings=("auto_retries",)), "ms after its failure"),
    "retried_too_often": (scenario("failing", settings=("auto_retries",)), "was requeued more than"),
    "old_failures_kept": (scenario("failing", settings=("max_age",)), "not drained"),
    "schedules_overlap": (scenario("exclusive"), "were unfinished"),
    "commands_lost": (scenario("controlled", jobs=3), "a command failed without a fault"),
    "not_staged": (scenario("replace"), "started while that was active"),
    "backlog_exceeded": (scenario("backlog"), "was added to a fair key with"),
    "promotion_incomplete": (scenario("promoted"), "(promoted) is lost"),
    "steps_forgotten": (scenario("durable_steps"), "has several results"),
    "requeued_out_of_order": (scenario("requeued", pool="list"), "was requeued before"),
}
"""For each fault, a scenario and a part of the problem that it must cause."""


@pytest.mark.parametrize("kind", dict.fromkeys(FEATURES))
@pytest.mark.parametrize("pool", ["list", "weights"])
def test_jobs_of_each_feature_end_without_faults(kind: str, pool: str):
    fleet = Fleet(scenario(kind, pool=pool))
    verdict = fleet.run()
    ledger = fleet.ledger
    assert verdict.problems == []
    assert ledger.carried > 0 or kind in ("exclusive", "controlled")
    assert verdict.completed + verdict.failed > 0 or kind == "controlled"
    assert (fleet.control.obeyed > 0) is (kind in ("cancelled", "controlled"))
    assert (len(ledger.batches) > 0) is (kind == "batch")
    assert (ledger.rejected_adds > 0) is (kind == "backlog")
    assert (len(ledger.requeues) > 0) is (kind == "requeued")
    assert (len(ledger.cancelled) > 0) is (kind == "cancelled")


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_a_queue_remembers_is_complete_without_faults(setting: str):
    fleet = Fleet(scenario("plain", *STATES, settings=(setting,)))
    verdict = fleet.run()
    assert verdict.problems == []
    if setting in ("timeline", "figures", "auto_retries"):
        assert fleet.history.judged[setting] > 2
    if setting in ("timeline", "figures"):
        assert fleet.history.judged["attempts"] > 3


@pytest.mark.parametrize("pool", ["list", "weights"])
def test_queues_of_a_busy_pool_share_its_slots(pool: str):
    """Far more jobs are ready than slots are free, in all queues."""
    fleet = Fleet(scenario("many", jobs=200, every=0.001, pool=pool))
    assert fleet.run().problems == []
    queues = {event[b"queue"].decode() for event in fleet.ledger.log}
    assert {*POOL_QUEUES[:3]} <= queues


@pytest.mark.parametrize("mutation", FEATURE_FAULTS)
def test_fault_of_a_feature_is_found(mutation: str):
    given, problem = FAULTS[mutation]
    fleet = Fleet(replace(given, mutation=mutation))
    fleet.drain_s = 15.0
    verdict = fleet.run()
    assert any(problem in each for each in verdict.problems), verdict.problems


def without_context(monkeypatch: pytest.MonkeyPatch):
    """Handlers do not get the context of the add."""

    @contextmanager
    def run(self: ContextHeaders, job: Job) -> Generator[None]:
        yield

    monkeypatch.setattr(ContextHeaders, "run", run)


def never_quiet(monkeypatch: pytest.MonkeyPatch):
    """Workers confirm to be quiet, but fetch."""
    monkeypatch.setattr(Worker, "pause", lambda self: None)


def not_strict(monkeypatch: pytest.MonkeyPatch):
    """A queue of a list does not wait for earlier ones."""
    monkeypatch.setattr(slot_pool.SlotPool, "_in_order", lambda self, engine: max(0, self.free))


def without_weights(monkeypatch: pytest.MonkeyPatch):
    """All queues have the same share."""
    charge = slot_pool.SlotPool.charge

    def equal(self: slot_pool.SlotPool, engine: Any, count: int):
        engine.virtual_time -= count / engine.weight - count
        charge(self, engine, count)

    monkeypatch.setattr(slot_pool.SlotPool, "charge", equal)


@pytest.mark.parametrize(
    ("break_it", "given", "problem"),
    [
        (without_context, scenario("plain"), "ran with the context of None"),
        (never_quiet, scenario("controlled", jobs=8, every=3.0), "confirmed to be quiet"),
        (not_strict, scenario("many", jobs=200, every=0.001, pool="list"), "has had a ready job"),
        (without_weights, scenario("many", jobs=200, every=0.001, pool="weights"), "starts, with"),
    ],
)
def test_fault_of_a_worker_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None], given: Scenario, problem: str, monkeypatch: pytest.MonkeyPatch
):
    assert simulate(given).problems == []
    break_it(monkeypatch)
    verdict = simulate(given)
    assert any(problem in each for each in verdict.problems), verdict.problems


def dividing(jobs: int = 120) -> Scenario:
    """Return a scenario in which several clients create the partitions of a queue, and others add to it."""
    work = tuple(Work(0.01 * n, n, "dividing" if n < 4 else "divided", n * 0.37 % 1) for n in range(jobs))
    return Scenario(1, work, workers=1, divided=2)


def test_partitions_are_created_without_loss():
    fleet = Fleet(dividing())
    assert fleet.run().problems == []
    assert fleet.divided.created >= 1
    assert len(fleet.divided.acknowledged) > 100
    assert len({event[b"queue"] for event in fleet.divided.log}) > 1


def test_key_with_jobs_in_several_partitions_is_found(monkeypatch: pytest.MonkeyPatch):
    """The partitions take turns, whatever keys jobs have."""
    monkeypatch.setattr(parts.PartQueues, "part_of", lambda self, key: self.queues[self.next_partition()])
    problems = simulate(dividing()).problems
    assert any("are active together" in each or "started in the order" in each for each in problems), problems
