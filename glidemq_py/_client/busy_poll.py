"""Busy polling: the event loop spins for a reply that comes soon, instead of suspending its thread.

A server on the same host replies in less time than the operating system needs to suspend and resume a thread, and
GLIDE passes the reply through two threads of its own. While exactly one call is pending, the event loop can therefore
poll for the reply at every iteration instead of blocking. Other work of the loop is not delayed. The cost is processor
time of an otherwise idle loop, at most `LONGEST` per call. Whether it pays depends on the machine, so it is measured:
some calls are made the other way, and polling is used only while it makes calls a tenth faster. A process that may use
less than two processors never polls: it would stand still after it has used up its quota.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from functools import cache
from pathlib import Path

LONGEST = 400e-6
"""Longest time to spin for one call, seconds. A lone add takes 60 to 300 microseconds, by the processor."""
_TRIAL = 4
"""Calls of a trial."""
_SHORTEST_BLOCK = 32
_LONGEST_BLOCK = 1_024
"""Calls between two trials; the number doubles with every trial that does not change the choice."""
_GAIN = 0.9
"""Polling is used if calls take at most this part of the time that they take without it."""


class PollChoice:
    """Chooses by measurement whether busy polling makes lone calls faster. Disabled with less than two processors.

    Calls are made in blocks, with or without polling; after each block, the other way is tried for a few calls.

    Args:
        wanted: False disables polling.

    Attributes:
        polls: whether the calls of the present block are polled for.
    """

    __slots__ = ("_asleep", "_block", "_polled", "_possible", "_prefers", "polls")

    def __init__(self, *, wanted: bool) -> None:
        self._possible = wanted and _processors() >= 2
        self._prefers = self.polls = self._possible
        self._polled = self._asleep = 0.0
        """Moving averages of the time of a call with and without polling, seconds; 0.0 if unknown."""
        self._block = _SHORTEST_BLOCK // 2

    def next_block(self, calls: int, took: float) -> int:
        """Set `polls` for the next block.

        Args:
            calls: measured calls of the block that has ended.
            took: their time together, seconds.

        Returns:
            The number of calls of the next block.
        """
        if not self._possible:
            return _LONGEST_BLOCK
        if calls:
            if self.polls:
                self._polled = _average(self._polled, took / calls)
            else:
                self._asleep = _average(self._asleep, took / calls)
        if self.polls is self._prefers:
            self.polls = not self._prefers
            return _TRIAL
        faster = not self._asleep or self._polled < self._asleep * _GAIN
        self._block = _SHORTEST_BLOCK if faster is not self._prefers else min(self._block * 2, _LONGEST_BLOCK)
        self._prefers = self.polls = faster
        return self._block


def _average(average: float, took: float) -> float:
    """Return the moving average after one more value; a value counts as four times the average at most."""
    return average + (min(took, average * 4) - average) / 2 if average else took


class BusyPoll:
    """Keeps the running event loop spinning between `begin` and `end`, if that makes calls faster.

    Args:
        wanted: False disables polling.
    """

    __slots__ = ("_awake", "_began", "_calls", "_choice", "_left", "_loop", "_posted", "_took", "_until")

    def __init__(self, *, wanted: bool = True) -> None:
        self._choice = PollChoice(wanted=wanted)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._awake = False
        self._posted = False
        self._until = 0.0
        self._began: float | None = None
        """When the only pending call was sent, seconds; None without such a call."""
        self._left = _TRIAL
        """Calls left of the present block."""
        self._calls = 0
        self._took = 0.0

    def begin(self, *, alone: bool = True) -> None:
        """Start, because a call is about to be sent; stop instead if it is not ``alone``, as others are pending."""
        if not alone:
            self._awake, self._began = False, None
            return
        if not self._left:
            self._left = self._choice.next_block(self._calls, self._took)
            self._calls, self._took = 0, 0.0
        self._left -= 1
        loop = self._loop = asyncio.get_running_loop()
        self._began = loop.time()
        if self._choice.polls:
            self._awake = True
            self._until = self._began + LONGEST
            if not self._posted:
                self._posted = True
                loop.call_soon(self._turn)

    def end(self, *, replied: bool = True) -> None:
        """Stop spinning.

        Args:
            replied: the reply has arrived, so its time counts.
        """
        self._awake = False
        began, self._began = self._began, None
        if began is not None and replied and self._loop is not None:
            self._calls += 1
            self._took += self._loop.time() - began

    def _turn(self) -> None:
        loop = self._loop
        if self._awake and loop is not None:
            if loop.time() < self._until:
                loop.call_soon(self._turn)
                return
            self._awake = False
        self._posted = False


@cache
def _processors() -> float:
    """Return how many processors this process may use: of the machine, its affinity, and the quota of its container."""
    return min(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        _quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")),
    )


def _quota(groups: Path, mounted: Path) -> float:
    """Return the smallest quota of the control groups of this process, in processors; infinite without any.

    Args:
        groups: File that lists the groups of the process.
        mounted: Where the control groups are mounted.
    """
    found = [math.inf]
    with contextlib.suppress(OSError, ValueError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            root = mounted / "cpu" if controllers else mounted
            group = root / path.lstrip("/")
            # In a container, the path may be that of the host while the mount shows the own group only.
            found += map(_quota_of, (root, group, *(each for each in group.parents if each.is_relative_to(root))))
    return min(found)


def _quota_of(folder: Path) -> float:
    """Return the quota of one control group, of version 2 or 1."""
    for texts in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):
            quota, period = " ".join((folder / text).read_text() for text in texts).split()
            return int(quota) / int(period) if quota not in ("max", "-1") else math.inf
    return math.inf
