"""The cost of features: ``python -m tests.bench.features [--rounds 5] [--seconds 2] [--only fair]``.

Each variant is compared with its base: drains of the same jobs without the feature. The variants alternate, so that a
slow minute of a shared machine falls on all of them, and the ratios are those of neighbours in time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import NamedTuple

from tests.bench.install import find_peer
from tests.bench.measure import OURS, PLAIN, Bench, Figures, drain
from tests.bench.server import running_server


class Variant(NamedTuple):
    """Jobs of a kind of our driver, compared with those of another."""

    kind: str
    label: str
    base: str
    required: float
    """Least ratio of the rate."""


VARIANTS = (
    Variant("timeline", "timeline of every job", PLAIN, 0.8),
    Variant("timeline-sampled", "timeline of one job of a hundred", PLAIN, 0.8),
    Variant("by-name", "figures per job name and minute", PLAIN, 0.95),
    Variant("ranked", "100 ranks", PLAIN, 0.6),
    Variant("fair", "1,000 fair keys", PLAIN, 0.6),
    Variant("failing", "jobs that fail once, with attempt history", "failing-unrecorded", 0.8),
)


def measure(rounds: int, seconds: float, only: str = "") -> dict[str, list[Figures]]:
    """Return the figures of each kind, one per round."""
    wanted = [variant for variant in VARIANTS if variant.kind.startswith(only)]
    kinds = list(dict.fromkeys(kind for variant in wanted for kind in (variant.base, variant.kind)))
    found: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    with running_server() as server:
        bench = Bench(server=server, peers={OURS: find_peer(OURS)}, drain_seconds=seconds)
        for number in range(rounds):
            for kind in kinds if number % 2 == 0 else reversed(kinds):
                found[kind].append(drain(100, kind=kind)(bench, OURS))
    return found


def table(found: dict[str, list[Figures]]) -> list[str]:
    """Return the lines of a Markdown table: medians of the ratios, and of the figures."""
    lines = [
        "| | jobs/s | of base | required | server CPU per job, us | of base |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for variant in VARIANTS:
        if variant.kind not in found:
            continue
        ours, base = found[variant.kind], found[variant.base]
        rate, cpu = (_ratio(ours, base, figure) for figure in ("rate", "cpu"))
        lines.append(
            f"| {variant.label} | {_median(ours, 'rate'):,.0f} | {rate:.2f} | {variant.required} "
            f"| {_median(ours, 'cpu'):.1f} ({_median(base, 'cpu'):.1f}) | {cpu:.2f} |"
        )
    return lines


def _median(runs: list[Figures], figure: str) -> float:
    return statistics.median(run[figure] for run in runs)


def _ratio(ours: list[Figures], base: list[Figures], figure: str) -> float:
    return statistics.median(one[figure] / other[figure] for one, other in zip(ours, base, strict=True))


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.features", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a drain")
    parser.add_argument(
        "--only", default="", help="prefix of the variants: " + ", ".join(each.kind for each in VARIANTS)
    )
    given = parser.parse_args(arguments)
    for line in table(measure(given.rounds, given.seconds, given.only)):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
