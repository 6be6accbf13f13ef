"""How replies reach the event loops that wait for them.

**Delivery.** GLIDE's core writes the replies for all clients of a process into one pipe, and GLIDE reads that pipe in
one event loop: the one that created the first client. If that loop stops, is closed or blocks, no other loop receives
replies, not even timeouts. Here every loop that has a client reads the pipe, and passes each reply on to the loop that
waits for it; loops of our own threads read it only while they wait.

**Busy polling.** A server on the same host replies in less time than the operating system needs to suspend and resume a
thread, and GLIDE passes the reply through two threads of its own. While exactly one call is pending, the event loop can
therefore poll for the reply at every iteration instead of blocking. Other work of the loop is not delayed. The cost is
processor time of an otherwise idle loop, at most `LONGEST` per call. Whether it pays depends on the machine, so it is
measured: some calls are made the other way, and polling is used only while it makes calls a tenth faster. A process
that may use less than two processors never polls: it would stand still after it has used up its quota.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import weakref
from pathlib import Path
from typing import Any, ClassVar

from glide import glide_client

from glidemq_py._core.forks import new_lock

_glide: Any = glide_client
_NEEDED = (
    "_CompatFuture", "_async_pipe_read_fd", "_drain_stale_pipe_frames", "_on_async_pipe_readable", "_resolve_future",
)  # fmt: skip
_installed = False
_installing = new_lock()
_reading = new_lock()
_LINGER_S = 0.05
"""How long a loop of our own reads the pipe after its last reply, seconds."""


def read_replies_in(loop: asyncio.AbstractEventLoop, client: Any = None) -> None:
    """Read GLIDE's replies in this loop, which must be running and have a client. Idempotent.

    Args:
        loop: the loop.
        client: a client of one of `own_loops`: it reads replies only while calls of this client have none.
    """
    if not _install():
        return
    descriptor: int = _glide._async_pipe_read_fd
    if descriptor < 0:
        return
    if client is None:
        loop.add_reader(descriptor, _glide._on_async_pipe_readable)
        return
    reading = _Reading.of_loops.get(loop)
    if reading is None:
        reading = _Reading.of_loops[loop] = _Reading(loop)
    client._pending_futures = _Pending(reading)
    reading.begin()  # GLIDE has begun already


class _Pending(dict[int, Any]):
    """The calls of a client that have no reply yet, in a loop that reads the pipe only while there are some."""

    __slots__ = ("__weakref__", "_reading")
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, reading: _Reading) -> None:
        super().__init__()
        self._reading = reading
        reading.clients.add(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __setitem__(self, number: int, future: Any) -> None:
        super().__setitem__(number, future)
        self._reading.begin()


class _Reading:
    """Reads the pipe in one loop while calls wait there, and for a moment after.

    Every loop that reads it is woken up by each reply, also by those for other loops.
    """

    of_loops: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Reading]] = weakref.WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._reads = self._is_needed = False
        self.clients: weakref.WeakSet[_Pending] = weakref.WeakSet()

    def begin(self) -> None:
        """Read, because a call begins; called in the loop."""
        self._is_needed = True
        loop = None if self._reads else self._loop()
        if loop is not None:
            self._reads = True
            loop.add_reader(_glide._async_pipe_read_fd, _glide._on_async_pipe_readable)
            loop.call_later(_LINGER_S, self._look)

    def _look(self) -> None:
        loop = self._loop()
        if loop is None:
            return
        if self._is_needed or any(self.clients):
            self._is_needed = False
            loop.call_later(_LINGER_S, self._look)
        else:
            self._reads = False
            loop.remove_reader(_glide._async_pipe_read_fd)


def _install() -> bool:
    """Replace the three functions of GLIDE that assume a single event loop. Return False if GLIDE lacks any of them."""
    with _installing:  # two threads would each wrap the other's functions, which then wait for their own lock
        return _installed or _replace()


def _replace() -> bool:
    global _installed
    if not all(hasattr(_glide, name) for name in _NEEDED):
        return False
    read, current_loop, compatible = _glide._on_async_pipe_readable, asyncio._get_running_loop, _glide._CompatFuture

    def read_in_turn() -> None:
        # Two threads must not read parts of one frame. The pipe stays readable, so returning loses nothing.
        if _reading.acquire(blocking=False):
            try:
                read()
            finally:
                _reading.release()

    def resolve(future: Any, result: Any, client: Any) -> None:
        loop = client._loop
        if loop is not None and loop is not current_loop() and not isinstance(future, compatible):  # compatible: trio
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing in it waits any longer
                loop.call_soon_threadsafe(resolve, future, result, client)
        elif not future.done():
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    def deliver_stale_frames() -> None:
        # GLIDE discards frames left in the pipe after its loop was closed; they may be for other loops.
        descriptor: int = _glide._async_pipe_read_fd
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while poll.poll(0) and _reading.acquire(timeout=1):
            try:
                read()
            finally:
                _reading.release()

    _glide._resolve_future = resolve
    _glide._on_async_pipe_readable = read_in_turn
    _glide._drain_stale_pipe_frames = deliver_stale_frames
    _installed = True
    return True


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

    def __init__(self, *, wanted: bool = True) -> None:
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

    def begin(self) -> None:
        """Start, because the only pending call is about to be sent."""
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
            replied: the reply has arrived, so its time counts; False if another call was sent meanwhile.
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


def _processors() -> float:
    """Return how many processors this process may use: of the machine, its affinity, and the quota of its container."""
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(affine, _quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")))


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
            folders = (root, group, *(each for each in group.parents if each.is_relative_to(root)))
            found += map(_quota_of, folders)
    return min(found)


def _quota_of(folder: Path) -> float:
    """Return the quota of one control group, of version 2 or 1."""
    for texts in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):
            quota, period = " ".join((folder / text).read_text() for text in texts).split()
            return int(quota) / int(period) if quota not in ("max", "-1") else math.inf
    return math.inf
