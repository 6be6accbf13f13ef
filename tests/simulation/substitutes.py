"""What the package's modules see instead of the real time, chance, host and process while a simulation runs."""

from __future__ import annotations

import contextlib
import importlib
import random
import secrets
import socket
import sys
import time
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

from tests.inside import run as runs
from tests.simulation.loop import PARTY, SimulatedLoop

__all__ = ["EPOCH_S", "substituted"]

EPOCH_S: Final = 1_800_000_000.0
"""Wall-clock time at virtual time 0."""


class _Time:
    """The module `time`: virtual, and wrong by the skew of the party that reads it."""

    def __init__(self, loop: SimulatedLoop):
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.now

    perf_counter = monotonic

    def clock_gettime(self, clock: int) -> float:
        return self._loop.now

    def time(self) -> float:
        party = PARTY.get()
        return EPOCH_S + self._loop.now + (0.0 if party is None else party.skew)

    def time_ns(self) -> int:
        return round(self.time() * 1e9)

    def monotonic_ns(self) -> int:
        return round(self._loop.now * 1e9)

    def sleep(self, seconds: float):
        raise NotImplementedError(f"code of a simulation blocks for {seconds} s")

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextlib.contextmanager
def substituted(loop: SimulatedLoop, chance: random.Random) -> Iterator[None]:
    """Within this context, the modules of the package use the loop's time and ``chance``."""
    libraries = importlib.import_module(
        "glidemq_py._worker.maintenance.libraries"
    )  # on first use it is too late for a change
    by_module = {
        id(time): _Time(loop),
        id(random): chance,
        id(secrets): SimpleNamespace(token_hex=lambda count: f"{chance.getrandbits(8 * count):0{2 * count}x}"),
        id(socket): SimpleNamespace(gethostname=lambda: "host"),
    }
    changed: list[tuple[Any, str, Any]] = [(libraries, "_HOLDER", vars(libraries)["_HOLDER"])]
    setattr(libraries, "_HOLDER", "process")  # noqa: B010 - random, once per process
    for name, module in list(sys.modules.items()):
        if not name.startswith("glidemq_py.") or name.startswith("glidemq_py._client.memory"):
            continue
        for attribute, value in list(vars(module).items()):
            other = by_module.get(id(value))
            if other is not None:
                changed.append((module, attribute, value))
                setattr(module, attribute, other)

    def stable_hash(run: runs.Run) -> int:
        return zlib.crc32(run.job.id.encode())

    before = random.getstate()
    random.seed(chance.getrandbits(32))  # of fakeredis
    hashed: Any = runs.Run
    hashed.__hash__ = stable_hash
    try:
        yield
    finally:
        random.setstate(before)
        del hashed.__hash__
        for module, attribute, value in changed:
            setattr(module, attribute, value)
