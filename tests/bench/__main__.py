"""Command line of the benchmark: ``python -m tests.bench [--quick] [--only drain,add] [--peers bullmq]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench.install import FINDERS, Peer, PeerMissingError, find_peer
from tests.bench.measure import CASES, OURS, Bench, Case, Runs, run_cases
from tests.bench.report import markdown, other_sections, readme_with_summary, verdicts
from tests.bench.server import running_server

QUICK_PEERS = (OURS, "bullmq")
REPORT = Path("docs/benchmarks.md")


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print the report; return 1 if a requirement is not met."""
    options = _parser().parse_args(arguments)
    if options.summary:
        readme = Path(options.summary)
        text = readme_with_summary(readme.read_text(encoding="utf-8"), REPORT.read_text(encoding="utf-8"))
        readme.write_text(text, encoding="utf-8")
        return 0
    wanted = options.peers.split(",") if options.peers else list(QUICK_PEERS if options.quick else FINDERS)
    peers, missing = find_peers([OURS, *(key for key in wanted if key != OURS)])
    for text in missing:
        _say(f"not measured: {text}")
    rounds = options.rounds or (1 if options.quick else 3)
    found, server = run(peers, chosen_cases(options.only), rounds, quick=options.quick)
    page = markdown(found, peers, server, rounds, missing)
    print(page)
    if options.write:
        target = Path(options.write)
        others = other_sections(target.read_text(encoding="utf-8")) if target.exists() else ""
        target.write_text(page + others, encoding="utf-8")
    failed = [verdict.row.label for verdict in verdicts(found) if verdict.passed() is False]
    _say(f"{len(failed)} requirements not met: {', '.join(failed)}" if failed else "all requirements met")
    return 1 if failed else 0


def run(peers: dict[str, Peer], cases: list[Case], rounds: int, *, quick: bool, tiny: bool = False) -> tuple[Runs, str]:
    """Run `cases` on a private server; return their figures and the server's version.

    Args:
        peers: the measured libraries.
        cases: what to measure.
        rounds: runs per measure.
        quick: shorter runs.
        tiny: so short that the figures say nothing, to test that each case runs.
    """
    with running_server() as server:
        bench = Bench(server=server, peers=peers)
        if quick:
            bench.drain_seconds, bench.add_seconds = 0.4, 0.3
            bench.idle_jobs, bench.delayed_jobs, bench.memory_jobs = 80, 35, 2_000
        if tiny:
            bench.drain_seconds, bench.add_seconds, bench.memory_jobs = 0.03, 0.1, 1_000
        return run_cases(bench, cases, rounds, _say), server.version()


def chosen_cases(only: str | None) -> list[Case]:
    """Return the cases named by `only` (comma-separated keys or key prefixes), or all cases."""
    names = only.split(",") if only else [""]
    exact = {case.key for case in CASES}.intersection(names)
    starts = tuple(name for name in names if name not in exact)
    return [case for case in CASES if case.key in exact or case.key.startswith(starts)]


def find_peers(keys: list[str]) -> tuple[dict[str, Peer], list[str]]:
    """Return the libraries that can be measured here, and the reason for each one that cannot."""
    peers: dict[str, Peer] = {}
    missing: list[str] = []
    for key in keys:
        try:
            peers[key] = find_peer(key)
        except PeerMissingError as reason:
            missing.append(f"{key}: {reason}")
    return peers, missing


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure glidemq_py and its peers.")
    parser.add_argument("--quick", action="store_true", help="short runs, once each, with bullmq (Python) only")
    parser.add_argument("--only", help=f"comma-separated prefixes of: {', '.join(case.key for case in CASES)}")
    parser.add_argument("--peers", help=f"comma-separated, from: {', '.join(FINDERS)} (glidemq_py always runs)")
    parser.add_argument(
        "--rounds",
        type=int,
        help="runs per measure (default 3, quick 1; some measures take twice as many or more)",
    )
    parser.add_argument("--write", metavar="FILE", help="also write the report to FILE")
    parser.add_argument("--summary", metavar="FILE", help=f"measure nothing; copy a summary of {REPORT} into FILE")
    return parser


def _say(text: str):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
