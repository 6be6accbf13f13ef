"""Simulated fleets: the real library, queues and workers under virtual time, with faults of every kind.

A failure prints the command that replays and shrinks it. `python -m tests.simulation --minutes 30` runs more seeds.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.inside import around, records
from tests.simulation.fleet import Fleet, simulate
from tests.simulation.mutations import MUTATIONS, PLANTED
from tests.simulation.runs import Totals, run_seed
from tests.simulation.scenario import KINDS, Act, Scenario, Work, draw
from tests.simulation.shrink import shrink, sort_of

JOBS = 100
LEAST_JOBS, SHARDS, JOBS_OF_A_RUN = 4_000, 2, 1_000
"""Of the long test. Runs of many jobs cost less per job. `noxfile.py simulation`, as in CI, simulates 100,000 jobs."""
MUTATION_SEEDS = 200
"""A fault built into the server functions must be found within so many seeds."""
FINDS = {"no_fencing": (11, 30), "no_repeat_check": (16, 30), "no_id_check": (2, 40)}
"""Seeds and jobs of short runs that found such a fault, to be tried first. A change of the code may change a run."""
MOST_CALLS = 650_000
"""Of Python functions of the package and of the simulation in an idle hour, without those of the in-memory server:
612,000 with Python 3.11, fewer with later versions."""
OURS = tuple(str(Path(__file__).parents[2] / name) for name in ("glidemq_py", "tests"))
SHRINKING_RUNS = 12
"""Runs that make a scenario smaller: a number, as a time limit would use all its time."""

FOUND: list[tuple[int, int, str, str]] = [
    (1, 60, "extras", "the exception of a loading task was never retrieved if the connection was closed meanwhile"),
    (1122, 300, "extras", "a replica with a history that an earlier failover had ended took over"),  # of the simulation
    (22, 300, "backups", "two queues of a worker pumped each other without end while a call of each was in flight"),
    (1000003, 1000, "shares", "a backup lacked jobs that were deleted unread, and that a failover brought back"),
    (1000008, 1000, "shares", "a run ended while jobs waited in ordering groups"),  # of the simulation
    (1000072, 1000, "shares", "a killed producer took the last step of the work"),  # of the simulation
]
"""Seeds that have found a fault: seed, jobs, what came into the runs later, and the fault."""


def check(totals: Totals, options: Mapping[str, Any], problems: list[str]):
    commands = "\n".join(totals.replay(seed, options) for seed in totals.failed)
    assert not totals.failed, "\n".join([*problems, "replay:", commands])


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_fleets_lose_and_repeat_nothing(shard: int):
    """All shards together simulate 4,000 jobs. Processes of pytest-xdist run them side by side."""
    totals, problems = Totals(), list[str]()
    options = {"jobs": JOBS_OF_A_RUN}
    for seed in itertools.count(shard, SHARDS):
        verdict = run_seed(seed, options)
        totals.add(verdict)
        problems += verdict.problems[:5]
        if totals.jobs >= LEAST_JOBS / SHARDS:
            break
    print(totals.report(totals.cpu_s))
    check(totals, options, problems)
    assert totals.faults["failover"] > 3
    assert totals.faults["kill_worker"] > 3


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_jobs_of_each_kind_end_without_faults(kind: str):
    scenario = Scenario(1, tuple(Work(0.05 * n, n, kind, n / 8) for n in range(8)), workers=2)
    verdict = simulate(scenario)
    assert verdict.problems == []
    assert verdict.completed + verdict.failed > 0


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(1, tuple(Work(0.05 * n, n, "plain", n / 40) for n in range(40)), workers=1, lease_holders=2),
        Scenario(1, tuple(Work(0.05 * n, n, "message", n / 8) for n in range(8)), workers=1, subscribers=2),
        Scenario(1, tuple(Work(0.05 * n, n, "durable", n / 8) for n in range(8)), workers=2),
        Scenario(1, tuple(Work(0.3 * n, n, "plain", n / 40) for n in range(20)), workers=2, pooled_workers=2),
        Scenario(
            1,
            tuple(Work(0.05 * n, n, "plain", n / 40) for n in range(40)),
            (),
            (Act(0.5, "kill_maintainer", 0, 1),),
            workers=0,
            lease_holders=2,
            maintainers=2,
        ),
    ],
    ids=["leases", "broadcast", "durable", "wake_channels", "maintenance"],
)
def test_extras_end_without_faults(scenario: Scenario):
    fleet = Fleet(scenario)
    verdict = fleet.run()
    assert verdict.problems == []
    assert verdict.completed == sum(work.kind != "message" for work in scenario.work)
    published = len(fleet.ledger.published)
    assert {len(found) for found in fleet.subscriptions.processed.values()} == {published}
    assert len(fleet.ledger.durable) + published in (0, 8)


@pytest.mark.slow
@pytest.mark.parametrize("faults", [False, True], ids=["quiet", "faults"])
def test_backups_under_traffic_have_each_lasting_job_once(faults: bool):
    """Jobs are added, run, retried, delayed and removed while backups are made, and the party is killed twice."""
    kinds = ("plain", "retried", "delay", "ordered", "flow", "suspended", "priority", "lifo")
    work = tuple(Work(0.02 * n, n, kinds[n % len(kinds)], n / 150) for n in range(150))
    acts = (Act(0.7, "kill_saver", 0, 0.2), Act(1.2, "failover", 0, 0.3), Act(2.2, "kill_saver", 0, 0.2))
    fleet = Fleet(Scenario(1, work, (), acts if faults else (), workers=2, savers=1))
    verdict = fleet.run()
    made = fleet.backups.made
    assert verdict.problems == []
    assert len(made) > 3
    assert max(len(backup.lasting) for backup in made) > 50
    assert (fleet.failovers > 0) is faults


def test_job_that_a_backup_lacks_is_found(monkeypatch: pytest.MonkeyPatch):
    """The judgment of backups is tested: a reader that loses one record of each batch."""

    async def lossy(read: Any, reader: Any, rows: Sequence[Any]):
        await read(reader, rows[1:])

    around(monkeypatch, records.RecordReader, "_take", lossy)
    verdict = simulate(Scenario(1, tuple(Work(0.02 * n, n, "plain", n / 50) for n in range(50)), savers=1))
    assert verdict.problems
    assert all(" lacks job " in problem for problem in verdict.problems)


def adds_during_failovers(mutation: str | None = None) -> Scenario:
    """Half of the adds are durable; each failover loses what the replica had not confirmed."""
    kinds = ("durable", "plain")
    work = tuple(Work(0.01 * n, n, kinds[n % 2], n / 100) for n in range(100))
    acts = tuple(Act(0.1 + 0.2 * n, "failover", 0, 0.3) for n in range(4))
    return Scenario(1, work, (), acts, workers=2, mutation=mutation)


def test_planted_fault_is_found():
    (mutation,) = PLANTED
    verdict = simulate(adds_during_failovers(mutation))
    assert verdict.problems
    assert all("(durable) is lost" in problem for problem in verdict.problems)


def test_durable_adds_survive_failovers_that_lose_others():
    fleet = Fleet(adds_during_failovers())
    verdict = fleet.run()
    assert verdict.problems == []
    ended = {job_id for job_id, names in fleet.ledger.events().items() if "completed" in names}
    assert len(fleet.ledger.durable) == 50
    assert fleet.ledger.durable <= ended
    assert verdict.excused > 0


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "jobs", "later", "fault"), FOUND)
def test_seed_that_found_a_fault(seed: int, jobs: int, later: str, fault: str):
    verdict = run_seed(seed, {"jobs": jobs, later: False})
    assert verdict.problems == [], fault


@pytest.mark.slow
def test_run_depends_on_its_seed_only():
    """The checksum covers every command and reply with its time."""
    outputs: list[str] = []
    for hash_seed in ("0", "4711"):
        command = [sys.executable, "-m", "tests.simulation", "--seed", "7", "--jobs", "60", "--shrink", "0"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        outputs.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert outputs[0] == outputs[1]
    assert "trace" in outputs[0]
    assert simulate(draw(7, 60)).trace == simulate(draw(7, 60)).trace != simulate(draw(8, 60)).trace


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_fault_built_into_the_functions_is_found_and_shrunk(mutation: str):
    for seed, jobs in (FINDS[mutation], *((seed, JOBS) for seed in range(MUTATION_SEEDS))):
        scenario = draw(seed, jobs, mutation=mutation)
        verdict = simulate(scenario)
        if verdict.problems:
            break
    else:
        pytest.fail(f"{mutation} was not found within {MUTATION_SEEDS} seeds")
    smaller = shrink(scenario, verdict, seconds=300, runs=SHRINKING_RUNS)
    assert len(smaller.to_json()) < len(scenario.to_json())
    again = simulate(Scenario.from_json(smaller.to_json()))
    assert {sort_of(problem) for problem in again.problems} & {sort_of(problem) for problem in verdict.problems}


@pytest.mark.slow
def test_idle_fleet_uses_little():
    """An hour without jobs is simulated: a worker with the default options polls, sends heartbeats, and looks for
    stalled jobs; two producers poll for suspended jobs. The function calls stand for the processor time: unlike it,
    they do not depend on the machine or on the tests beside this one."""
    fleet = Fleet(Scenario(1, (), workers=1))
    fleet.idle_s, fleet.lock_ms, fleet.stalled_ms = 3_600, 30_000, 30_000
    calls = 0

    def count(frame: FrameType, event: str, _: Any):
        nonlocal calls
        if event == "call":
            place = frame.f_code.co_filename
            calls += place.startswith(OURS) and "_client/memory" not in place

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        verdict = fleet.run()
    finally:
        sys.setprofile(before)
    assert verdict.problems == []
    assert verdict.simulated_s > 3_600
    assert verdict.messages < 9_500
    assert fleet.loop.steps < 47_500
    assert fleet.server.executed < 13_700
    assert calls < MOST_CALLS
