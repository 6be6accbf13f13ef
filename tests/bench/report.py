"""What has to be reached, and the Markdown that says whether it was.

`ROWS` is the table of requirements; `LIMITS` says in words what stops each line from being faster now, and is
edited by hand when the engine changes.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from tests.bench.install import Peer
from tests.bench.measure import CASES, OURS, Figures

Medians = Mapping[tuple[str, str], Figures]

FIGURES = {"rate": "jobs/s", "cpu": "µs", "p50": "ms", "p99": "ms", "bytes": "bytes"}
"""Every figure a run yields, and its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One requirement: our figure against a peer's (a ratio) or against a fixed bound.

    With `peer`, ours divided by the peer's must be at least `required`; where less is better, at most.
    Without `peer`, our own figure must be at most `required`. `required` None: shown for information.
    """

    label: str
    case: str
    figure: str = "rate"
    peer: str | None = None
    peer_case: str | None = None
    required: float | None

    @property
    def less_is_better(self) -> bool:
        return self.figure != "rate"


ROWS = [
    Row(label="drain, async, concurrency 100", case="drain-100", peer="bullmq", required=12),
    Row(label="drain, async, concurrency 100", case="drain-100", peer="tarsk", required=2.5),
    Row(label="drain, async, concurrency 100", case="drain-100", peer="tarsk-bare", required=None),
    Row(label="drain, async, concurrency 100", case="drain-100", peer="bullmq-node", required=1.5),
    Row(label="drain, async, concurrency 10", case="drain-10", peer="bullmq", required=6),
    Row(label="drain, async, concurrency 1", case="drain-1", peer="bullmq", required=1.5),
    Row(
        label="drain, plain `def` in threads, 100",
        case="drain-threads",
        peer="bullmq",
        peer_case="drain-100",
        required=8,
    ),
    Row(label="drain, async, 100, both on uvloop", case="drain-uvloop", peer="bullmq", required=None),
    Row(label="`add` one by one", case="add-single", peer="bullmq", required=1.0),
    Row(
        label="`add` one by one, ours on uvloop",
        case="add-single-uvloop",
        peer="bullmq",
        peer_case="add-single",
        required=1.15,
    ),
    Row(label="`add` one by one, both on uvloop", case="add-single-uvloop", peer="bullmq", required=None),
    Row(label="100 `add` awaited together", case="add-together", peer="bullmq", required=5),
    Row(
        label="100 `add` awaited together, both on uvloop",
        case="add-together-uvloop",
        peer="bullmq",
        required=None,
    ),
    Row(label="`add_bulk` of 1000", case="add-bulk", peer="bullmq", required=4),
    Row(label="`add_bulk` of 1000, both on uvloop", case="add-bulk-uvloop", peer="bullmq", required=None),
    Row(label="idle worker, add to start, p50", case="idle", figure="p50", peer="bullmq", required=1.0),
    Row(label="idle worker, add to start, p99", case="idle", figure="p99", required=5),
    Row(label="idle worker, lateness of a delayed job, p99", case="delayed", figure="p99", required=25),
    Row(label="server CPU per job, drain at 100", case="drain-100", figure="cpu", required=20),
    Row(label="memory of a waiting job", case="memory", figure="bytes", required=900),
]

LIMITS: dict[tuple[str, str], str] = {
    ("drain-100", "rate"): "",
    ("drain-10", "rate"): "",
    ("drain-1", "rate"): "",
    ("drain-threads", "rate"): "",
    ("drain-uvloop", "rate"): "",
    ("add-single", "rate"): "",
    ("add-single-uvloop", "rate"): "",
    ("add-together", "rate"): "",
    ("add-together-uvloop", "rate"): "",
    ("add-bulk", "rate"): "",
    ("add-bulk-uvloop", "rate"): "",
    ("idle", "p50"): "",
    ("idle", "p99"): "",
    ("delayed", "p99"): "",
    ("drain-100", "cpu"): "",
    ("memory", "bytes"): "",
}
"""What limits a line now, by (case, figure)."""


PREAMBLE = """\
# Benchmarks

Written by `python -m tests.bench --write docs/benchmarks.md` (`python3 noxfile.py bench`); every figure on
this page is from one run, on one machine, against one server.

- {day}; {cpus} CPUs ({machine}), Python {python}, {server}, no persistence, loopback TCP.
- In our environment: {ours}. The Python peers run with hiredis, each library with its own defaults.
- The same 200-byte JSON payload everywhere; the handler reads one field of it and returns it as the result,
  which is stored (tarsk: `result_ttl`; "no results" is its default). Events and metrics are on where the
  library has them; ours is fenced throughout.
- A drain is one worker process and a queue filled beforehand; the time is that from the first to the last
  start of a handler, and all jobs must have been completed. Server CPU is what the server's INFO counts
  (user and system) from before that process starts until it has ended, divided by the jobs.
- Idle: one `add` each 8 ms from another process, worker at concurrency 10; delayed jobs one at a time,
  20 to 80 ms ahead.
- The libraries take turns within each measure; figures are medians of {rounds} runs. Absolute figures
  vary with the machine and its neighbours: read the ratios.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A row with its figures."""

    row: Row
    ours: float | None
    theirs: float | None

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's."""
        return self.ours / self.theirs if self.ours is not None and self.theirs else None

    def passed(self, margin: float = 1.0) -> bool | None:
        """Whether the requirement is met when it is made `margin` times easier.

        None where nothing is required or the peer was not measured; False where we ourselves failed to run.
        """
        required = self.row.required
        if required is None or (self.row.peer and self.theirs is None):
            return None
        judged = self.ratio if self.row.peer else self.ours
        if judged is None:
            return False
        return judged <= required * margin if self.row.less_is_better else judged >= required / margin


def verdicts(medians: Medians) -> list[Verdict]:
    """Every row whose case was run."""
    run = {case for case, _ in medians}
    return [
        Verdict(
            row=row,
            ours=medians.get((row.case, OURS), {}).get(row.figure),
            theirs=medians.get((row.peer_case or row.case, row.peer), {}).get(row.figure)
            if row.peer
            else None,
        )
        for row in ROWS
        if row.case in run and (row.required is not None or (row.peer_case or row.case, row.peer) in medians)
    ]


def markdown(
    medians: Medians, peers: Mapping[str, Peer], server: str, rounds: int, missing: list[str]
) -> str:
    """The whole page."""
    parts = [_preamble(server, rounds, missing), _requirements(medians, peers), _everything(medians, peers)]
    return "\n".join(parts)


def _preamble(server: str, rounds: int, missing: list[str]) -> str:
    text = PREAMBLE.format(
        day=datetime.datetime.now(tz=datetime.UTC).date(),
        cpus=os.cpu_count(),
        machine=platform.machine(),
        python=platform.python_version(),
        server=server,
        ours=_versions("valkey-glide", "orjson", "uvloop"),
        rounds=rounds,
    )
    return text + "".join(f"- Not measured: {reason}\n" for reason in missing)


def _requirements(medians: Medians, peers: Mapping[str, Peer]) -> str:
    lines = [
        "## Against what is required",
        "",
        "| measure | ours | against | theirs | ratio | required | result | what limits it now |",
        "| --- | ---: | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for verdict in verdicts(medians):
        row = verdict.row
        against = (
            "fixed bound" if row.peer is None else peers[row.peer].label if row.peer in peers else row.peer
        )
        ratio = "" if verdict.ratio is None else f"{verdict.ratio:.2f} x"
        cells = [
            row.label,
            _quantity(verdict.ours, row.figure),
            against,
            _quantity(verdict.theirs, row.figure) if row.peer else "",
            ratio,
            _required(row),
            {True: "pass", False: "**FAIL**", None: "-" if row.required is None else "not measured"}[
                verdict.passed()
            ],
            LIMITS.get((row.case, row.figure), ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _everything(medians: Medians, peers: Mapping[str, Peer]) -> str:
    keys = [key for key in peers if any(peer == key for _, peer in medians)]
    lines = ["## All figures", "", f"| measure | {' | '.join(peers[key].label for key in keys)} |"]
    lines.append("| --- |" + " ---: |" * len(keys))
    for case in CASES:
        for figure in FIGURES:
            values = [medians.get((case.key, key), {}).get(figure) for key in keys]
            if any(value is not None for value in values):
                label = (
                    f"{case.label.rsplit(' (', 1)[0]}: {'server CPU per job' if figure == 'cpu' else figure}"
                )
                lines.append(f"| {label} | {' | '.join(_quantity(value, figure) for value in values)} |")
    return "\n".join([*lines, ""])


def _required(row: Row) -> str:
    if row.required is None:
        return ""
    bound = f"{row.required:g} x" if row.peer else f"{row.required:g} {FIGURES[row.figure]}"
    return f"{'<=' if row.less_is_better else '>='} {bound}"


def _quantity(value: float | None, figure: str) -> str:
    if value is None:
        return "-"
    if figure == "rate":
        return f"{value:,.0f}"
    return f"{value:,.0f} bytes" if figure == "bytes" else f"{value:.2f} {FIGURES[figure]}"


def _versions(*names: str) -> str:
    found: list[str] = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)
