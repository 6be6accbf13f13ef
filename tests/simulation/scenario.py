"""What happens in a simulation: the work and the faults, drawn from a seed, as values that can be shrunk and stored."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tests.simulation.network import MESSAGE_FAULTS, MessageFault

__all__ = ["FEATURES", "KINDS", "SETTINGS", "SHARES", "Act", "Scenario", "Work", "draw"]

KINDS: Final = (
    "plain", "plain", "plain", "bulk", "priority", "lifo", "delay", "ordered", "ordered", "wide", "limited", "bucket",
    "retried", "failing", "stepped", "flow", "failing_flow", "simple", "throttle", "debounce", "scheduler", "ttl",
    "suspended", "pausing", "timeout",
)  # fmt: skip
ACTS: Final = ("kill_worker", "freeze_worker", "close_worker", "kill_producer", "failover", "restart_server",
               "lose_functions", "skew_clock")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """One step of a producer: when, of what kind, and its number, which names the jobs."""

    at: float
    number: int
    kind: str
    chance: float
    """From 0 to 1: selects the details of the kind."""


@dataclass(frozen=True, slots=True)
class Act:
    """A fault of a party or of the server."""

    at: float
    kind: str
    party: int
    amount: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that decides a run.

    Attributes:
        seed: of the latencies, the handlers' durations and the package's own chance.
        work: steps of the producers, by time.
        messages: faults of messages.
        acts: faults of parties, by time.
        workers: number of workers.
        concurrency: of each worker.
        mutation: name of a fault built into the server functions; see `mutations`.
        lease_holders: number of parties that fetch jobs without a worker.
        subscribers: number of workers of each subscription of the broadcast; 0 = there is no broadcast.
        pooled_workers: number of workers that serve a second queue too, and wait for wake-up channels.
        maintainers: number of parties that run the maintenance tasks without a worker.
        savers: number of parties that create backups.
        settings: of the queue; see `history.SETTINGS`.
        divided: number of workers of the partitioned queue.
        pool: how the workers of several queues share their slots, "list" or "weights"; "" = there are none.
    """

    seed: int
    work: tuple[Work, ...]
    messages: tuple[MessageFault, ...] = ()
    acts: tuple[Act, ...] = ()
    workers: int = 4
    concurrency: int = 5
    mutation: str | None = None
    lease_holders: int = 0
    subscribers: int = 0
    pooled_workers: int = 0
    maintainers: int = 0
    savers: int = 0
    settings: tuple[str, ...] = ()
    pool: str = ""
    divided: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        given: dict[str, Any] = json.loads(text)
        return cls(**{
            **given,
            "work": tuple(Work(**each) for each in given["work"]),
            "messages": tuple(MessageFault(**each) for each in given["messages"]),
            "acts": tuple(Act(**each) for each in given["acts"]),
            "settings": tuple(given.get("settings", ())),
        })  # fmt: skip

    def keep(self, work: Iterable[Work], messages: Iterable[MessageFault], acts: Iterable[Act]) -> Scenario:
        return replace(self, work=tuple(work), messages=tuple(messages), acts=tuple(acts))


def draw(
    seed: int,
    jobs: int = 300,
    *,
    faults: bool = True,
    kinds: Iterable[str] = KINDS,
    mutation: str | None = None,
    extras: bool = True,
    backups: bool = True,
    shares: bool = True,
    features: bool = True,
) -> Scenario:
    """Return the scenario of a seed.

    Args:
        seed: any number.
        jobs: about how many jobs.
        faults: False: nothing goes wrong.
        kinds: of the work.
        mutation: see `Scenario`.
        extras: False: no leases, broadcast and durable adds, as in seeds that were found before there were any.
        backups: False: no backups either.
        shares: False: no fair keys, limits per name and dependencies either.
        features: False: no batches, timelines, remote control and other later features either.
    """
    drawn = _draw(seed, jobs, faults=faults, kinds=kinds, mutation=mutation)
    if not extras:
        return drawn
    drawn = _with_extras(drawn, faults=faults)
    if not backups:
        return drawn
    drawn = _with_backups(drawn, faults=faults)
    if not shares:
        return drawn
    drawn = _with_shares(drawn)
    return _with_features(drawn, faults=faults) if features else drawn


def _draw(seed: int, jobs: int, *, faults: bool, kinds: Iterable[str], mutation: str | None) -> Scenario:
    chance = random.Random(f"scenario {seed}")
    among = list(kinds)
    # Some seeds have few kinds, so that those meet more often.
    if chance.random() < 0.3:
        among = chance.sample(among, min(len(among), 3))
    rate = chance.choice((30, 100, 300))
    work: list[Work] = []
    at, number = 0.0, 0
    while number < jobs:
        at += chance.expovariate(rate)
        kind = chance.choice(among)
        work.append(Work(round(at, 4), number, kind, chance.random()))
        number += _WEIGHTS.get(kind, 1)
    workers, concurrency = chance.randint(1, 5), chance.choice((1, 2, 5, 10, 20))
    if not faults:
        return Scenario(seed, tuple(work), workers=workers, concurrency=concurrency, mutation=mutation)
    messages = _messages(chance, 12 * jobs + 200)
    acts = sorted((*_acts(chance, at + 5, workers, jobs), *_clock_steps(seed, at + 5)), key=lambda act: act.at)
    return Scenario(seed, tuple(work), messages, tuple(acts), workers, concurrency, mutation)


_WEIGHTS: Final = {"bulk": 5, "flow": 3, "failing_flow": 3, "scheduler": 3}


def _messages(chance: random.Random, count: int) -> tuple[MessageFault, ...]:
    often = chance.choice((0.0, 0.01, 0.05, 0.2))
    faults: list[MessageFault] = []
    number = 0
    while often:
        number += 1 + int(chance.expovariate(often))
        if number > count:
            break
        faults.append(MessageFault(number, chance.choice(MESSAGE_FAULTS), round(chance.random(), 4)))
    return tuple(faults)


def _acts(chance: random.Random, seconds: float, workers: int, jobs: int) -> tuple[Act, ...]:
    """Return faults of parties: up to twelve per 300 jobs."""
    pick: Callable[[], str] = lambda: chance.choice(ACTS)  # noqa: E731
    acts = [
        Act(round(chance.uniform(0, seconds), 4), pick(), chance.randrange(workers), round(chance.random(), 4))
        for _ in range(chance.choice((0, 2, 5, 12)) * max(1, jobs // 300))
    ]
    return tuple(sorted(acts, key=lambda act: act.at))


def _clock_steps(seed: int, seconds: float) -> tuple[Act, ...]:
    """Return steps of the server's clock, drawn apart from the other faults, which stay those of known seeds."""
    chance = random.Random(f"clock {seed}")
    count = chance.choice((0, 0, 0, 1, 2))
    return tuple(Act(round(chance.uniform(0, seconds), 4), "step_clock", 0, round(chance.random(), 4))
                 for _ in range(count))  # fmt: skip


def _with_extras(drawn: Scenario, *, faults: bool) -> Scenario:
    """Add leases, a broadcast and durable adds, drawn apart from the rest."""
    chance = random.Random(f"extras {drawn.seed}")
    holders, subscribers = chance.choice((0, 0, 1, 2)), chance.choice((0, 0, 0, 1, 2))
    durable, messages = chance.choice((0.0, 0.0, 0.2)), 0.15 if subscribers else 0.0
    work: list[Work] = []
    for each in drawn.work:
        luck = chance.random()
        kind = "durable" if luck < durable else "message" if luck > 1 - messages else each.kind
        work.append(replace(each, kind=kind))
    acts = [*drawn.acts]
    if faults:
        end = (work[-1].at if work else 0.0) + 5
        for kind, count in (("kill_holder", holders), ("kill_subscriber", 2 * subscribers)):
            for _ in range(chance.choice((0, 1, 3)) if count else 0):
                at, amount = round(chance.uniform(0, end), 4), round(chance.random(), 4)
                acts.append(Act(at, kind, chance.randrange(count), amount))
    later = random.Random(f"later extras {drawn.seed}")  # drawn apart, so that earlier seeds keep the other extras
    pooled, maintainers = (
        later.choice((0, 0, drawn.workers, later.randint(0, drawn.workers))),
        later.choice((0, 0, 1, 2)),
    )
    if faults and maintainers:
        end = (work[-1].at if work else 0.0) + 5
        acts += [Act(round(later.uniform(0, end), 4), "kill_maintainer", later.randrange(maintainers),
                     round(later.random(), 4)) for _ in range(later.choice((0, 1, 3)))]  # fmt: skip
    acts.sort(key=lambda act: act.at)
    return replace(
        drawn, work=tuple(work), acts=tuple(acts), lease_holders=holders, subscribers=subscribers,
        pooled_workers=pooled, maintainers=maintainers,
    )  # fmt: skip


def _with_backups(drawn: Scenario, *, faults: bool) -> Scenario:
    """Add backups, drawn apart from the rest, to every fourth seed."""
    chance = random.Random(f"backups {drawn.seed}")
    savers = chance.choice((0, 0, 0, 1))
    acts = [*drawn.acts]
    if faults and savers:
        end = drawn.work[-1].at if drawn.work else 0.0
        acts += [Act(round(chance.uniform(0, end), 4), "kill_saver", 0, round(chance.random(), 4))
                 for _ in range(chance.choice((0, 1, 3)))]  # fmt: skip
        acts.sort(key=lambda act: act.at)
    return replace(drawn, acts=tuple(acts), savers=savers)


SHARES: Final = ("fair", "fair", "named", "dependent")
_SHARED: Final = ("plain", "priority", "lifo", "delay", "retried", "ttl")


def _with_shares(drawn: Scenario) -> Scenario:
    """Replace jobs by some with fair keys, limited names or dependencies, in half of the seeds; drawn apart."""
    chance = random.Random(f"shares {drawn.seed}")
    share = chance.choice((0.0, 0.0, 0.3, 0.9))
    work = [
        replace(each, kind=chance.choice(SHARES)) if chance.random() < share and each.kind in _SHARED else each
        for each in drawn.work
    ]
    return replace(drawn, work=tuple(work))


FEATURES: Final = (
    "batch", "batch", "replace", "replace", "backlog", "promoted", "requeued", "exclusive", "cancelled", "controlled",
    "many", "many", "many", "durable_steps", "durable_steps",
)  # fmt: skip
_POOLED: Final = {"batch", "requeued", "many"}
SETTINGS: Final = ("timeline", "figures", "auto_retries", "max_age", "max_entries")
"""Settings of the queue that a scenario may have: `Queue.timelines.set`, `metrics_by_name.set`, the failure policy."""


def _with_features(drawn: Scenario, *, faults: bool) -> Scenario:
    """Replace jobs by some of later features, in half of the seeds, and set up the queue; drawn apart."""
    chance = random.Random(f"features {drawn.seed}")
    share = chance.choice((0.0, 0.0, 0.1, 0.4))
    settings = tuple(name for name in SETTINGS if chance.random() < 0.25)
    among = FEATURES if chance.random() < 0.6 else tuple(chance.sample(FEATURES, 3))
    work = tuple(
        replace(each, kind=chance.choice(among)) if chance.random() < share and each.kind in _SHARED else each
        for each in drawn.work
    )
    pool = chance.choice(("list", "weights")) if any(each.kind in _POOLED for each in work) else ""
    acts = [*drawn.acts]
    if faults and pool:
        end = drawn.work[-1].at if drawn.work else 0.0
        acts += [Act(round(chance.uniform(0, end), 4), "kill_pool", chance.randrange(2), round(chance.random(), 4))
                 for _ in range(chance.choice((0, 1, 3)))]  # fmt: skip
        acts.sort(key=lambda act: act.at)
    return _with_partitions(replace(drawn, work=work, acts=tuple(acts), settings=settings, pool=pool), faults=faults)


def _with_partitions(drawn: Scenario, *, faults: bool) -> Scenario:
    """Replace jobs by some of a queue that gets partitions, in every fifth seed. Some of the first may create them."""
    chance = random.Random(f"partitions {drawn.seed}")
    workers = chance.choice((0, 0, 0, 0, 2))
    if not workers:
        return drawn
    creators = chance.randint(0, 3)
    work: list[Work] = []
    for each in drawn.work:
        if each.kind in _SHARED and chance.random() < 0.4:
            creates = creators > 0 or chance.random() < 0.02
            creators -= 1
            each = replace(each, kind="dividing" if creates else "divided")
        work.append(each)
    acts = [*drawn.acts]
    if faults:
        end = drawn.work[-1].at if drawn.work else 0.0
        acts += [Act(round(chance.uniform(0, end), 4), "kill_divided", chance.randrange(2), round(chance.random(), 4))
                 for _ in range(chance.choice((0, 1, 3)))]  # fmt: skip
        acts.sort(key=lambda act: act.at)
    return replace(drawn, work=tuple(work), acts=tuple(acts), divided=workers)
