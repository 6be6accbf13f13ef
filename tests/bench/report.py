"""The requirements of the benchmark, and the Markdown report of its results.

`ROWS` is the table of requirements. `LIMITS` names the bottleneck of each measure; it is edited by hand when the
engine changes.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from tests.bench.install import Peer
from tests.bench.measure import CASES, KINDS, OURS, OURS_SYNC, Runs, median

OURS_UVLOOP = f"{OURS}-uvloop"

FIGURES = {"rate": "jobs/s", "cpu": "µs", "p50": "ms", "p99": "ms", "bytes": "bytes"}
"""Unit of each figure of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One requirement: our figure compared with a peer's (a ratio) or with a fixed bound.

    With `peer`, our figure divided by the peer's must be at least `required`, or at most `required` if less is better.
    Without `peer`, our figure must be at most `required`. If `required` is None, the row is informational.
    """

    label: str
    case: str
    figure: str = "rate"
    ours: str = OURS
    peer: str | None = None
    required: float | None = None
    in_readme: bool = False
    """True for the few rows that the README shows."""

    @property
    def less_is_better(self) -> bool:
        return self.figure != "rate"


KIND_REQUIRED: dict[str, float | None] = {"lifo": None, "fair": None, "flow": 5, "broadcast": 5}
"""Required ratio to bullmq's rate for plain jobs, if it is not six."""

ROWS = [
    Row(label="drain, async, concurrency 100", case="drain-100", peer="bullmq", required=12, in_readme=True),
    Row(label="drain, async, concurrency 100", case="drain-100", peer="tarsk", required=2.5, in_readme=True),
    Row(label="drain, async, concurrency 100", case="drain-100", peer="tarsk-bare"),
    Row(label="drain, async, concurrency 100", case="drain-100", peer="bullmq-node", required=1.5, in_readme=True),
    Row(label="drain, async, 100, both on uvloop", case="drain-100", ours=OURS_UVLOOP, peer="bullmq-uvloop"),
    Row(label="drain, async, concurrency 10", case="drain-10", peer="bullmq", required=6),
    Row(label="drain, async, concurrency 1", case="drain-1", peer="bullmq", required=1.5),
    Row(label="drain, plain `def` in threads, 100", case="drain-threads", peer="bullmq", required=8, in_readme=True),
    *(
        Row(
            label=f"drain, async, 100: {what}, compared with plain jobs",
            case=f"kind-{kind}",
            peer="bullmq",
            required=KIND_REQUIRED.get(kind, 6),
        )
        for kind, what in KINDS.items()
    ),
    Row(label="`add` one by one", case="add-single-free", peer="bullmq", required=1.0, in_readme=True),
    Row(
        label="`add` one by one, ours on uvloop",
        case="add-single-free",
        ours=OURS_UVLOOP,
        peer="bullmq",
        required=1.15,
    ),
    # With free placement, the time is that of waking three threads and a server, and varies by a factor of two.
    Row(
        label="`add` one by one, blocking, one CPU", case="add-single-sync", ours=OURS_SYNC, peer="bullmq", required=1.5
    ),
    Row(label="`add` one by one, blocking", case="add-single-sync-free", ours=OURS_SYNC, peer="bullmq"),
    Row(label="`add` one by one, one CPU", case="add-single", peer="bullmq"),
    Row(label="`add` one by one, one CPU, ours on uvloop", case="add-single", ours=OURS_UVLOOP, peer="bullmq"),
    Row(label="`add` one by one, one CPU, both on uvloop", case="add-single", ours=OURS_UVLOOP, peer="bullmq-uvloop"),
    Row(label="100 `add` awaited together", case="add-together", peer="bullmq", required=5, in_readme=True),
    Row(
        label="100 `add` awaited together, both on uvloop",
        case="add-together",
        ours=OURS_UVLOOP,
        peer="bullmq-uvloop",
    ),
    Row(label="`add_bulk` of 1000", case="add-bulk", peer="bullmq", required=4, in_readme=True),
    Row(label="`add_bulk` of 1000, both on uvloop", case="add-bulk", ours=OURS_UVLOOP, peer="bullmq-uvloop"),
    Row(label="idle worker, add to start, p50", case="idle", figure="p50", peer="bullmq", required=1.0, in_readme=True),
    Row(label="idle worker, add to start, p99", case="idle", figure="p99", required=5),
    *(
        Row(
            label=f"idle worker, add to start: {KINDS[kind]}, p99",
            case=f"idle-{kind}",
            figure="p99",
            required=25,
        )
        for kind in ("prioritized", "ranked", "lifo")
    ),
    Row(label="idle worker, lateness of a delayed job, p99", case="delayed", figure="p99", required=25),
    Row(label="server CPU per job, drain at 100", case="drain-100", figure="cpu", required=20),
    Row(label="memory of a waiting job", case="memory", figure="bytes", required=900),
]

LIMITS: dict[tuple[str, str], str] = {
    ("drain-100", "rate"): "server: about 13 us per job, nine tenths of it in 7 commands; then 6 us of Python",
    ("drain-10", "rate"): "round trips: two calls in flight, each for five jobs",
    ("drain-1", "rate"): "one round trip per job: about 35 us of server, then the event loop and waking threads",
    ("drain-threads", "rate"): "GIL switches between the event loop and the threads",
    ("kind-ordered", "rate"): "server: the group's record, read and written once per call, and releasing its next job",
    ("kind-grouped", "rate"): "server: full groups park their jobs and release them later",
    ("kind-rated", "rate"): "server: the rate window of each group in a call",
    ("kind-limited", "rate"): "the worker's limit: one call at a time, so that the limit is never exceeded",
    ("kind-prioritized", "rate"): "server: due priority jobs are looked up before each fetch",
    ("kind-ranked", "rate"): "server: one member of a sorted set per job, removed, and indexed while active",
    ("kind-lifo", "rate"): "server: one list entry per job, popped, and indexed while active",
    ("kind-fair", "rate"): "server: the turn of each key, and the number of its active jobs",
    ("kind-flow", "rate"): "server: five more commands per child, on its parent's keys",
    ("kind-broadcast", "rate"): "server: the record of each result, and the lookup of each token",
    ("add-single", "rate"): "one round trip: about 25 us of Python and 13 us of server",
    ("add-single-free", "rate"): "one round trip, most of it waking threads and processes",
    ("add-together", "rate"): "Python: about 10 us per job (task, future, options, job object)",
    ("add-bulk", "rate"): "server: about 5 us per job (hash, stream entry, event)",
    ("idle", "p50"): "three hops: add, wake-up, exchange",
    ("idle", "p99"): "kernel scheduling on two CPUs",
    ("delayed", "p99"): "the event loop's timer, then one exchange",
    ("drain-100", "cpu"): "two HSET, two HMGET, XADD, ZADD, XREADGROUP per job, and the Lua around them",
    ("memory", "bytes"): "the payload turns the hash from a listpack into a hash table (any field over 64 bytes does)",
}
"""Bottleneck of each measure, by (case, figure)."""

SUMMARY_START = "<!-- BENCHMARK TABLE"
SUMMARY_END = "<!-- END OF BENCHMARK TABLE"
LAST_HEADING = "## All figures"
REPORT_COLUMNS = 8
"""Columns of the table of requirements."""

PREAMBLE = """\
# Benchmarks

Written by `python -m tests.bench --write docs/benchmarks.md` (`python3 noxfile.py bench`); all figures on
this page except those of features and Spark are from one run, on one machine, with one server.

- {day}; {cpus} CPUs ({machine}), Python {python}, {server}, no persistence, loopback TCP.
- Environment of glidemq_py: {ours}. The Python peers run with hiredis, each library with its own defaults.
- All libraries use the same 200-byte JSON payload. The handler reads one field and returns it as the result,
  which is stored (tarsk: `result_ttl`; "no results" is its default). Events and metrics are on if the
  library has them; glidemq_py uses fencing tokens throughout.
- A drain is one worker process and a queue filled beforehand. Its time runs from the first to the last start of
  a handler, and all jobs must have completed. Server CPU is the user and system time in the server's INFO,
  from before the worker process starts until it has exited, divided by the number of jobs.
- `add` one by one is measured twice: with server and client placed freely by the kernel (required), and with
  both on one CPU (informational). If only one process is busy at a time, the first is the rate of waking an
  idle CPU; on a virtual machine it varies twofold with the placement of the processes.
- Idle: one `add` every 8 ms from another process, worker at concurrency 10; delayed jobs one at a time,
  20 to 80 ms ahead.
- The libraries take turns within each measure. Figures are medians of {rounds} runs or more, and a ratio is the
  median over pairs of consecutive runs. Absolute figures vary with the machine and its load: compare the
  ratios.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A row with its figures."""

    row: Row
    ours: float | None
    theirs: float | None
    ratio: float | None
    """Our figure divided by the peer's: the median over pairs of consecutive runs."""

    def passed(self, margin: float = 1.0) -> bool | None:
        """Return whether the requirement, made `margin` times easier, is met.

        None if nothing is required or the peer was not measured; False if glidemq_py failed to run.
        """
        required = self.row.required
        if required is None or (self.row.peer and self.theirs is None):
            return None
        judged = self.ratio if self.row.peer else self.ours
        if judged is None:
            return False
        return judged <= required * margin if self.row.less_is_better else judged >= required / margin


def verdicts(found: Runs) -> list[Verdict]:
    """Return a verdict per measured row; informational rows only if the peer was measured too."""
    return [
        _verdict(found, row)
        for row in ROWS
        if (row.case, row.ours) in found and (row.required is not None or (row.case, row.peer) in found)
    ]


def _verdict(found: Runs, row: Row) -> Verdict:
    ours = found.get((row.case, row.ours), [])
    theirs = found.get((row.case, row.peer), []) if row.peer else []
    pairs = [(our[row.figure], their[row.figure]) for our, their in zip(ours, theirs, strict=False) if our and their]
    return Verdict(
        row=row,
        ours=median(ours, row.figure),
        theirs=median(theirs, row.figure),
        ratio=statistics.median(our / their for our, their in pairs) if pairs else None,
    )


def markdown(found: Runs, peers: Mapping[str, Peer], server: str, rounds: int, missing: list[str]) -> str:
    """Return the report as Markdown."""
    parts = [_preamble(server, rounds, missing), _requirements(found, peers), _everything(found, peers)]
    return "\n".join(parts)


def other_sections(page: str) -> str:
    """Return the sections of a page that other benchmarks have measured: those after the report of this one."""
    _, _, rest = page.partition(f"\n{LAST_HEADING}\n")
    _, heading, others = rest.partition("\n## ")
    return heading + others


def readme_with_summary(readme: str, page: str) -> str:
    """Replace the table between the marks of `readme` by a few rows of the report `page`.

    Raises:
        ValueError: if `readme` lacks the marks, or `page` lacks a row.
    """
    start, end = readme.index(SUMMARY_START), readme.index(SUMMARY_END)
    start = readme.index("\n", start) + 1
    return f"{readme[:start]}\n{_summary(page)}\n{readme[end:]}"


def _summary(page: str) -> str:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    lines = ["| measure | glidemq_py | compared with | peer | ratio |", "| --- | ---: | --- | ---: | ---: |"]
    wanted = [row for row in ROWS if row.in_readme]
    for row in wanted:
        same_label = [other.peer for other in ROWS if other.label == row.label]
        found = [cells for cells in rows if cells[0] == row.label and len(cells) == REPORT_COLUMNS]
        if len(found) != len(same_label):
            raise ValueError(f"the report has {len(found)} rows {row.label!r}: must be {len(same_label)}")
        label, *figures = found[same_label.index(row.peer)]
        lines.append(f"| {' | '.join([label, *figures[:4]])} |")
    return "\n".join([*lines, ""])


def _preamble(server: str, rounds: int, missing: list[str]) -> str:
    text = PREAMBLE.format(
        day=datetime.datetime.now(tz=datetime.UTC).date(),
        cpus=os.cpu_count(),
        machine=platform.machine(),
        python=platform.python_version(),
        server=server,
        ours=_versions("valkey-glide", "hiredis", "orjson", "uvloop"),
        rounds=rounds,
    )
    return text + "".join(f"- Not measured: {reason}\n" for reason in missing)


def _requirements(found: Runs, peers: Mapping[str, Peer]) -> str:
    lines = [
        "## Requirements",
        "",
        "| measure | glidemq_py | compared with | peer | ratio | required | result | bottleneck |",
        "| --- | ---: | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for verdict in verdicts(found):
        row = verdict.row
        against = "fixed bound" if row.peer is None else peers[row.peer].label if row.peer in peers else row.peer
        ratio = "" if verdict.ratio is None else f"{verdict.ratio:.2f} x"
        cells = [
            row.label,
            _quantity(verdict.ours, row.figure),
            against,
            _quantity(verdict.theirs, row.figure) if row.peer else "",
            ratio,
            _required(row),
            {True: "pass", False: "**FAIL**", None: "-" if row.required is None else "not measured"}[verdict.passed()],
            LIMITS.get((row.case, row.figure), ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _everything(found: Runs, peers: Mapping[str, Peer]) -> str:
    keys = [key for key in peers if any(peer == key for _, peer in found)]
    lines = [LAST_HEADING, "", f"| measure | {' | '.join(peers[key].label for key in keys)} |"]
    lines.append("| --- |" + " ---: |" * len(keys))
    for case in CASES:
        for figure in FIGURES:
            values = [median(found.get((case.key, key), []), figure) for key in keys]
            if any(value is not None for value in values):
                label = f"{case.label}: {'server CPU per job' if figure == 'cpu' else figure}"
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
