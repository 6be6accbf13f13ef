"""Filters of the templates: numbers, times, states and stored values as text; and charts and flows as SVG images."""

from __future__ import annotations

import json as stdlib_json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from markupsafe import Markup, escape

from glidemq_py._core import json_text as json
from glidemq_py._features.failed_attempts import FailureReason, reason_named
from glidemq_py._operate.conversion import CUT
from glidemq_py._operate.snapshots import FlowNode

_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
_LINE: Final = 160
_SHOWN: Final = 20_000
"""Characters of a value that a page shows."""
NONE: Final = "\N{EN DASH}"
_SPARK: Final = Markup(
    '<svg class="spark" role="img" viewBox="0 0 {} {}" preserveAspectRatio="none"><title>{}</title><path d="{}"/></svg>'
)
_PLOT: Final = Markup('<div class="plot" id="{}" role="img" aria-label="{}" data-plot="{}"></div>')
_FOREIGN: Final = re.compile(r"(site|dist)-packages|[/\\]lib[/\\]python\d|[/\\]glidemq_py[/\\]|<frozen ")


def number(value: float | None) -> str:
    """Return a number with separators; a dash for None."""
    return NONE if value is None else f"{value:,}"


def duration(ms: float | None) -> str:
    """Return a duration in at most two units: ``12 ms``, ``3.4 s``, ``5 min 20 s``, ``2 d 3 h``."""
    if ms is None:
        return NONE
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1_000:.3g} s"
    for at, (unit, size) in enumerate(_UNITS[:-1]):
        if ms >= size:
            following, smaller = _UNITS[at + 1]
            rest = int(ms % size // smaller)
            return f"{int(ms // size)} {unit}" + (f" {rest} {following}" if rest else "")
    raise AssertionError(ms)


def age(ms: float | None) -> str:
    """Return how long something lasts already: as `duration`, but in whole seconds."""
    if ms is None:
        return NONE
    return f"{min(round(ms / 1_000), 59)} s" if ms < 60_000 else duration(ms)


def size(number_of_bytes: int | None) -> str:
    """Return a number of bytes in MiB; a dash for None."""
    return NONE if number_of_bytes is None else f"{number_of_bytes / 2**20:,.0f} MiB"


def ago(ms: int | None, *, now: float | None = None) -> Markup:
    """Return a time as a ``<time>`` element: how long ago or in how long, with the full time as its title."""
    if not ms:
        return escape(NONE)
    try:
        at = datetime.fromtimestamp(ms / 1_000, UTC)
    except (OverflowError, OSError, ValueError):
        return escape(str(ms))
    passed = (time.time() if now is None else now) * 1_000 - ms
    text = "now" if abs(passed) < 1_000 else f"{age(passed)} ago" if passed > 0 else f"in {age(-passed)}"
    full = at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + " UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), full, text)


def hour(ms: int) -> Markup:
    """Return a time in ms as a ``<time>`` element with hour and minute, which the page shows in local time."""
    at = datetime.fromtimestamp(ms / 1_000, UTC)
    return Markup('<time class="hour" datetime="{}">{:%H:%M} UTC</time>').format(at.isoformat(), at)


def utc(ms: int) -> str:
    """Return a time in ms as text, for attributes."""
    try:
        return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return str(ms)


def in_zone(ms: int, zone: str) -> str:
    """Return the time of day of a time in ms in a time zone; only the zone if this machine does not know it."""
    try:
        return f"{datetime.fromtimestamp(ms / 1_000, ZoneInfo(zone)):%H:%M} {zone}"
    except (OverflowError, OSError, ValueError, KeyError):
        return zone


def clock(ms: int | None) -> Markup:
    """Return the time of day of a time in ms, as a ``<time>`` element, which the page shows in local time."""
    if not ms:
        return escape(NONE)
    at = datetime.fromtimestamp(ms / 1_000, UTC)
    text = at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + " UTC"
    return Markup('<time class="full" datetime="{}">{}</time>').format(at.isoformat(), text)


def short(text: str) -> str:
    """Return a text as one line of at most 160 characters."""
    line = " ".join(text[:1_000].split())
    return line if len(line) <= _LINE and len(text) <= 1_000 else f"{line[: _LINE - 1]}{CUT}"


def pretty(value: Any) -> str:
    """Return a stored value as indented JSON, cut to 20,000 characters."""
    text = _indented(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}\n… {len(text) - _SHOWN:,} more characters"


def frames(traceback: str) -> Markup:
    """Return a traceback in which frames of libraries recede, and the error stands out."""
    lines = list[Markup]()
    is_foreign = False
    for line in traceback.splitlines():
        is_foreign = _FOREIGN.search(line) is not None if line.startswith("  File ") else is_foreign
        kind = ("soft" if is_foreign else "frame") if line.startswith("  ") else "bad"
        lines.append(Markup('<span class="{}">{}</span>').format(kind, line))
    return Markup("\n").join(lines)


def is_complete(value: Any) -> bool:
    """Return True if `pretty` does not cut the value."""
    return len(_indented(value)) <= _SHOWN


def _indented(value: Any) -> str:
    try:
        return stdlib_json.dumps(json.loads(json.dumps(value)), indent=2, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def sparkline(counts: Iterable[int], *, width: int = 120, height: int = 20, label: str = "") -> Markup:
    """Return bars as an inline SVG image, one per number. Without a script, and readable by screen readers."""
    values = list(counts)
    most = max(values, default=0)
    step = width / max(len(values), 1)
    bars = [
        f"M{at * step:.1f} {height}v-{value / most * height:.1f}h{max(step - 0.6, 0.6):.1f}V{height}z"
        for at, value in enumerate(values)
        if value
    ]
    return _SPARK.format(width, height, label or f"{sum(values):,} in all, at most {most:,}", "".join(bars))


def plot(key: str, label: str, times: Iterable[int], *series: tuple[str, str, Sequence[float | None]]) -> Markup:
    """Return the place of a chart, which the script of the pages draws.

    Args:
        key: Id of the element.
        label: What screen readers read.
        times: Epoch ms, ascending.
        series: Its name, its kind, and a value per time; None = not measured. Kinds: completed, failed, waiting (with
            its own axis), time (in ms).
    """
    measured = [each for each in series if any(value is not None for value in each[2])]
    data = {"times": [at / 1_000 for at in times], "series": measured}
    return _PLOT.format(key, label, stdlib_json.dumps(data, separators=(",", ":")))


_MEANINGS: Final = {
    FailureReason.EXPLICIT_FAIL: (
        "Of an attempt: the handler raised an error, and attempts were left. "
        "Of a job: it failed before its attempts were used up."
    ),
    FailureReason.MAX_ATTEMPTS_EXCEEDED: "The handler raised an error, and no attempt was left.",
    FailureReason.TIMEOUT: "It ran longer than its timeout, or no signal came in time while it was suspended.",
    FailureReason.STALLED: "Its lock was not renewed in time although the worker seemed to be alive.",
    FailureReason.TTL_EXPIRED: "It did not start within its ttl.",
    FailureReason.WORKER_LOST: "The worker or the sandbox process died.",
    FailureReason.CHILD_FAILED: "A child of the job failed, so the job did not run, or did not continue.",
    FailureReason.CANCELLED: "The job was cancelled. It is retried only by its id, or with this reason.",
    FailureReason.UNKNOWN: "Another reason; the error describes it.",
}


def words(reason: str) -> str:
    """Return a reason of failures in plain words."""
    return reason_named(reason).words


def meaning(reason: str) -> str:
    """Return the meaning of a reason of failures; '' if it is unknown to this version."""
    return next((text for each, text in _MEANINGS.items() if each == reason), "")


FILTERS: Final[dict[str, Callable[..., str]]] = {
    "age": age, "ago": ago, "clock": clock, "duration": duration, "frames": frames, "hour": hour, "in_zone": in_zone,
    "meaning": meaning, "number": number, "words": words, "pretty": pretty, "short": short, "size": size, "utc": utc,
}  # fmt: skip


_WIDTH: Final = 210
_HEIGHT: Final = 44
_GAP_X: Final = 56
_GAP_Y: Final = 14
_SIBLINGS: Final = 8
"""Most siblings with the same name that have a box each."""
_FAILED: Final = 5
"""Failed ones of more, which have a box each."""
_BOXES: Final = 40
"""Boxes of the children of a job."""


@dataclass(frozen=True, slots=True)
class Box:
    """A job of the drawing, with the position of its upper left corner.

    Attributes:
        node: The job, without its children.
        x: Pixels from the left.
        y: Pixels from the top.
        states: Of a box for many siblings with the same name, ``node`` being one of them: how many have each state.
    """

    node: FlowNode
    x: int
    y: int
    states: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes of the jobs, and lines from each job to those it waits for as paths of SVG."""

    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    width: int
    height: int
    box_width: int = _WIDTH
    box_height: int = _HEIGHT


def state_of(node: FlowNode) -> str:
    """Return the state of a job of a flow; "deleted" if it does not exist any more."""
    return str(node.state or "deleted")


def _folded(children: Iterable[FlowNode]) -> list[tuple[FlowNode, Counter[str]]]:
    """Return what is drawn of siblings: many with the same name are one box, but some failed ones have their own."""
    kinds: dict[tuple[str, str], list[FlowNode]] = {}
    for child in children:
        kinds.setdefault((child.queue, child.name), []).append(child)
    found: list[tuple[FlowNode, Counter[str]]] = []
    for members in kinds.values():
        apart = members
        if len(members) > _SIBLINGS:
            apart = [each for each in members if each.state == "failed"][:_FAILED]
        found += [(each, Counter()) for each in apart]
        if apart is not members:
            rest = Counter(map(state_of, members))
            rest["failed"] -= len(apart)
            found.append((replace(members[0], children=()), +rest))
    if len(found) > _BOXES:
        rest = sum((states or Counter([state_of(each)]) for each, states in found[_BOXES:]), Counter[str]())
        found[_BOXES:] = [(replace(found[_BOXES][0], name="", children=()), rest)]
    return found


def draw(root: FlowNode) -> Drawing:
    """Return the drawing of a flow. A job that several others wait for is drawn below each of them."""
    boxes: list[Box] = []
    lines: list[str] = []
    rows = 0
    # Depth first without recursion: a flow may be deeper than Python's stack.
    stack: list[tuple[FlowNode, Mapping[str, int], int, bool]] = [(root, {}, 0, False)]
    middles: list[list[int]] = [[]]
    while stack:
        node, states, depth, is_done = stack.pop()
        if not is_done:
            stack.append((node, states, depth, True))
            middles.append([])
            stack += [(child, of, depth + 1, False) for child, of in reversed(_folded(node.children))]
            continue
        below = middles.pop()
        x = depth * (_WIDTH + _GAP_X)
        if below:
            middle = (below[0] + below[-1]) // 2
        else:
            middle = rows * (_HEIGHT + _GAP_Y) + _HEIGHT // 2
            rows += 1
        boxes.append(Box(replace(node, children=()), x, middle - _HEIGHT // 2, states))
        right, far = x + _WIDTH, x + _WIDTH + _GAP_X
        lines += [f"M{right} {middle} C{right + 28} {middle} {far - 28} {y} {far} {y}" for y in below]
        middles[-1].append(middle)
    width = max(box.x for box in boxes) + _WIDTH
    return Drawing(tuple(boxes), tuple(lines), width, rows * (_HEIGHT + _GAP_Y) - _GAP_Y)
