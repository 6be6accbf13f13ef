"""Run simulations: `python -m tests.simulation --runs 1000`, or `--minutes 30`, or `--seed 17` for one of them."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from pathlib import Path

from tests.simulation.fleet import simulate
from tests.simulation.mutations import MUTATIONS
from tests.simulation.runs import Totals, run_seeds
from tests.simulation.scenario import Scenario, draw
from tests.simulation.shrink import shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed only; a failing run is shrunk")
    parser.add_argument("--first", type=int, default=0, help="first seed of many")
    parser.add_argument("--runs", type=int, help="number of seeds")
    parser.add_argument("--at-least", type=int, metavar="JOBS", help="run seeds until so many jobs were simulated")
    parser.add_argument("--minutes", type=float, help="run seeds for so long")
    parser.add_argument("--jobs", type=int, default=300, help="about how many jobs a run has (part of the seed)")
    parser.add_argument("--quiet-world", action="store_true", help="no faults")
    parser.add_argument("--no-extras", action="store_true", help="no leases, broadcast and durable adds")
    parser.add_argument("--no-backups", action="store_true", help="no backups (implied by --no-extras)")
    parser.add_argument("--no-shares", action="store_true", help="no fair keys, limits per name and dependencies")
    parser.add_argument("--no-features", action="store_true", help="no batches, timelines, remote control, ...")
    parser.add_argument("--mutation", choices=MUTATIONS, help="build this fault into the server functions")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", type=Path, help="run the scenario in this file")
    parser.add_argument("--save", type=Path, help="write the shrunk scenario to this file")
    parser.add_argument("--shrink", type=float, default=120.0, metavar="SECONDS", help="how long to shrink a failure")
    args = parser.parse_args()
    if args.seed is None and args.replay is None:
        return _run_many(args)
    if args.replay is not None:
        scenario = Scenario.from_json(args.replay.read_text())
    else:
        scenario = draw(args.seed, args.jobs, faults=not args.quiet_world, mutation=args.mutation,
                        extras=not args.no_extras, backups=not args.no_backups, shares=not args.no_shares,
                        features=not args.no_features)  # fmt: skip
    verdict = simulate(scenario)
    print(f"seed {verdict.seed}: {verdict.jobs} jobs, {verdict.messages} messages, {verdict.simulated_s:.1f} simulated "
          f"seconds, trace {verdict.trace}, faults {dict(verdict.faults)}")  # fmt: skip
    print("\n".join(verdict.problems) or "no problems")
    if verdict.problems and args.shrink and args.replay is None:
        smaller = shrink(scenario, verdict, seconds=args.shrink)
        print(f"\nshrunk to {len(smaller.work)} steps of work, {len(smaller.messages)} faults of messages and "
              f"{len(smaller.acts)} of parties:")  # fmt: skip
        for each in (*smaller.work, *smaller.messages, *smaller.acts):
            print(f"  {each}")
        print("\n".join(simulate(smaller).problems))
        if args.save is not None:
            args.save.write_text(smaller.to_json())
            print(f"replay: python -m tests.simulation --replay {args.save}")
    return 1 if verdict.problems else 0


def _run_many(args: argparse.Namespace) -> int:
    began, totals = time.monotonic(), Totals()
    seeds: itertools.count[int] | range = itertools.count(args.first)
    if args.minutes is None and args.at_least is None:
        seeds = range(args.first, args.first + (args.runs or 100))
    until = None if args.minutes is None else began + 60 * args.minutes
    options = {"jobs": args.jobs, "faults": not args.quiet_world, "mutation": args.mutation,
               "extras": not args.no_extras, "backups": not args.no_backups, "shares": not args.no_shares,
               "features": not args.no_features}  # fmt: skip
    most = args.at_least if args.at_least is not None else sys.maxsize
    for verdict in run_seeds(seeds, options, args.processes, until, lambda: totals.jobs >= most):
        totals.add(verdict)
        for problem in verdict.problems[:5]:
            print(f"seed {verdict.seed}: {problem}", flush=True)
        if verdict.problems:
            print(f"  replay: {totals.replay(verdict.seed, options)}", flush=True)
    print(totals.report(time.monotonic() - began))
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
