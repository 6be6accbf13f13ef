"""What has to be reached, and the Markdown that says whether it was.

`ROWS` is the table of requirements; `LIMITS` says in words what stops each line from being faster now, and is
edited by hand when the engine changes.
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
    ours: str = OURS
    peer: str | None = None
    required: float | None = None

    @property
    def less_is_better(self) -> bool:
        return self.figure != "rate"


KIND_REQUIRED: dict[str, float | None] = {"lifo": None, "flow": 5, "broadcast": 5}
"""Times bullmq's plain rate, where it is not six."""

ROWS = [
    Row(label="drain, async, concurrency 100", case="drain-100", peer="bullmq", required=12),
    Row(label="drain, async, concurrency 100", case="drain-100", peer="tarsk", required=2.5),
    Row(label="drain, async, concurrency 100", case="drain-100", peer="tarsk-bare"),
    Row(label="drain, async, concurrency 100", case="drain-100", peer="bullmq-node", required=1.5),
    Row(label="drain, async, 100, both on uvloop", case="drain-100", ours=OURS_UVLOOP, peer="bullmq-uvloop"),
    Row(label="drain, async, concurrency 10", case="drain-10", peer="bullmq", required=6),
    Row(label="drain, async, concurrency 1", case="drain-1", peer="bullmq", required=1.5),
    Row(label="drain, plain `def` in threads, 100", case="drain-threads", peer="bullmq", required=8),
    *(
        Row(
            label=f"drain, async, 100: {what}, against plain ones",
            case=f"kind-{kind}",
            peer="bullmq",
            required=KIND_REQUIRED.get(kind, 6),
        )
        for kind, what in KINDS.items()
    ),
    Row(label="`add` one by one", case="add-single-free", peer="bullmq", required=1.0),
    Row(
        label="`add` one by one, ours on uvloop",
        case="add-single-free",
        ours=OURS_UVLOOP,
        peer="bullmq",
        required=1.15,
    ),
    # Of three threads and a server, the time placed freely is that of wake-ups alone, and differs twofold by itself.
    Row(
        label="`add` one by one, blocking, one CPU", case="add-single-sync", ours=OURS_SYNC, peer="bullmq", required=1.5
    ),
    Row(label="`add` one by one, blocking", case="add-single-sync-free", ours=OURS_SYNC, peer="bullmq"),
    Row(label="`add` one by one, one CPU", case="add-single", peer="bullmq"),
    Row(label="`add` one by one, one CPU, ours on uvloop", case="add-single", ours=OURS_UVLOOP, peer="bullmq"),
    Row(label="`add` one by one, one CPU, both on uvloop", case="add-single", ours=OURS_UVLOOP, peer="bullmq-uvloop"),
    Row(label="100 `add` awaited together", case="add-together", peer="bullmq", required=5),
    Row(
        label="100 `add` awaited together, both on uvloop",
        case="add-together",
        ours=OURS_UVLOOP,
        peer="bullmq-uvloop",
    ),
    Row(label="`add_bulk` of 1000", case="add-bulk", peer="bullmq", required=4),
    Row(label="`add_bulk` of 1000, both on uvloop", case="add-bulk", ours=OURS_UVLOOP, peer="bullmq-uvloop"),
    Row(label="idle worker, add to start, p50", case="idle", figure="p50", peer="bullmq", required=1.0),
    Row(label="idle worker, add to start, p99", case="idle", figure="p99", required=5),
    *(
        Row(
            label=f"idle worker, add to start: {KINDS[kind]}, p99",
            case=f"idle-{kind}",
            figure="p99",
            required=25,
        )
        for kind in ("prioritized", "lifo")
    ),
    Row(label="idle worker, lateness of a delayed job, p99", case="delayed", figure="p99", required=25),
    Row(label="server CPU per job, drain at 100", case="drain-100", figure="cpu", required=20),
    Row(label="memory of a waiting job", case="memory", figure="bytes", required=900),
]

LIMITS: dict[tuple[str, str], str] = {
    ("drain-100", "rate"): "the server: about 12 us a job, half of it Lua around 7 commands; then 6 us of Python",
    ("drain-10", "rate"): "round trips: two calls are under way, each for five jobs",
    ("drain-1", "rate"): "one round trip a job: about 35 us of server, 70 us of event loop and GLIDE",
    ("drain-threads", "rate"): "the GIL changing hands between the loop and the threads",
    ("kind-ordered", "rate"): "the server: the group's record, read and written once a call, and waking its next job",
    ("kind-grouped", "rate"): "the server: groups that are full park what comes, and wake it again",
    ("kind-rated", "rate"): "the server: the window of each group that a call touches",
    ("kind-limited", "rate"): "the worker's limit: one call at a time, so that it is never overdrawn",
    ("kind-prioritized", "rate"): "the server: due priorities are looked for before each take",
    ("kind-lifo", "rate"): "the server: one list entry a job, popped and indexed while active",
    ("kind-flow", "rate"): "the server: five commands more for a child, in its parent's keys",
    ("kind-broadcast", "rate"): "the server: the record of each result, and the look-up of each token",
    ("add-single", "rate"): "one round trip: about 25 us of Python and GLIDE, 13 us of server",
    ("add-single-free", "rate"): "one round trip, most of it waking threads and processes",
    ("add-together", "rate"): "Python: about 10 us a job (task, future, options, job object)",
    ("add-bulk", "rate"): "the server: about 5 us a job (hash, stream entry, event)",
    ("idle", "p50"): "three hops: add, wake-up, exchange",
    ("idle", "p99"): "the kernel's scheduling of two CPUs",
    ("delayed", "p99"): "the event loop's timer, then one exchange",
    ("drain-100", "cpu"): "two HSET, two HMGET, XADD, ZADD, XREADGROUP a job, and Lua around them",
    ("memory", "bytes"): "the payload makes the hash a table (any field over 64 bytes does)",
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
- `add` one by one is measured twice: with the kernel free to place server and client, which is judged, and with
  both on one CPU, for information. Where only one process is busy at a time, the first is the rate of waking a
  sleeping CPU, and on a virtual machine it differs twofold with where the processes happen to be.
- Idle: one `add` each 8 ms from another process, worker at concurrency 10; delayed jobs one at a time,
  20 to 80 ms ahead.
- The libraries take turns within each measure; figures are medians of {rounds} runs or more, and a ratio is the
  median over pairs of neighbouring runs. Absolute figures vary with the machine and its neighbours: read the
  ratios.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A row with its figures."""

    row: Row
    ours: float | None
    theirs: float | None
    ratio: float | None
    """Ours divided by the peer's: the median over pairs of neighbouring runs."""

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


def verdicts(found: Runs) -> list[Verdict]:
    """Every row that we were run for; those without a requirement only where the peer was measured too."""
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
    """The whole page."""
    parts = [_preamble(server, rounds, missing), _requirements(found, peers), _everything(found, peers)]
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


def _requirements(found: Runs, peers: Mapping[str, Peer]) -> str:
    lines = [
        "## Against what is required",
        "",
        "| measure | ours | against | theirs | ratio | required | result | what limits it now |",
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
    lines = ["## All figures", "", f"| measure | {' | '.join(peers[key].label for key in keys)} |"]
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
