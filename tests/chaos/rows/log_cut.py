"""Power loss: the append-only file is cut back to its last fsync, or to any byte after it, also in mid-record.

With durable adds, no acknowledged job is lost.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from glidemq_py.sync import Queue
from glidemq_py.testing import ServerProcess, server_binary
from tests.chaos.fsync_log import FsyncLog, compiler
from tests.chaos.run import QUEUE, ChaosRun

NUMBER = 3
TITLE = "power loss: tail of the AOF cut back to the last fsync, or after it, also in mid-record"
VARIANTS = ("", "durable")
CONFIG: dict[str, Any] = {"appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": 0}
APPENDED_S = 30
COPIES = 2
"""Further cuts of the same log per fault, on servers without clients."""


def missing(variant: str) -> str:
    return "the last fsync is recorded by a library that needs a C compiler" if variant and not compiler() else ""


def play(run: ChaosRun, variant: str = ""):
    config = {name.replace("-", "_"): value for name, value in CONFIG.items()}
    if variant:  # with everysec, WAITAOF of Valkey up to 9.1 replies before the fsync (docs/operate/durability.md)
        config["appendfsync"] = "always"
    log = FsyncLog(run.folder) if variant else None
    with _environment({} if log is None else log.environment()):
        server = run.start_server(**config)
    if variant:
        run.durable_adds = True
        run.expects_findings = True  # changes other than adds are those before the last fsync
        run.fleet.make_durable({"disk": True})
    run.fleet_of(2, jobs=500)
    cuts = 0
    for number in run.faults(3, every=3, progress=70):
        since = time.monotonic()
        synced = _synced(run, server)
        run.progress(40, 1)
        change = partial(_cut_all, run, server, synced, log, exactly=number % 3 == 0)
        with _environment({} if log is None else log.environment()):
            up_at = run.restart(server, change)
        # Jobs acknowledged before `synced` was read must not be lost.
        run.excuse(since, up_at)
        run.serving("workers fetched again after the port was up", up_at, 3, run.fleet.workers)
        cuts += 1 + COPIES
    run.note(f"{cuts} cuts; each cut log was checked without clients and without a repair")


@contextlib.contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the servers that are started meanwhile."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _synced(run: ChaosRun, server: ServerProcess) -> int:
    """Return a length of the log that is on the disk, with all writes that were acknowledged before this call.

    With everysec, the server may acknowledge a write two seconds before it appends it to its log.
    """
    log = _log(server.child.data_dir)
    begin = log.stat().st_size
    mark = f"mark {time.monotonic_ns()}"
    run.client.execute("SET", "chaos:synced", mark, "EX", 600)
    give_up_at = time.monotonic() + APPENDED_S
    while time.monotonic() < give_up_at:
        run.expect(run.client.execute("WAITAOF", 1, 0, 10_000)[0] == 1, "the server does not sync its log")
        with log.open("rb") as file:
            file.seek(begin)
            found = file.read().find(mark.encode())
        if found >= 0:
            return begin + found
        run.expect(not run.durable_adds, "a write that WAITAOF has confirmed is not in the log")
        time.sleep(0.02)  # nothing tells that a file has grown
    raise AssertionError(f"the server has not appended a write to its log for {APPENDED_S} s")


def _cut_all(run: ChaosRun, server: ServerProcess, synced: int, log: FsyncLog | None, *, exactly: bool):
    """Cut the log of the dead server, and copies of it at other bytes; check each for half-present jobs."""
    folder = server._data_dir
    assert folder is not None
    end = _log(folder).stat().st_size
    if log is not None:
        synced = max(synced, log.synced(_log(folder)))
    lengths = [synced if exactly else run.random.randint(synced, end)]
    lengths += [run.random.randint(synced, end) for _ in range(COPIES)]
    for length in lengths[::-1]:
        copy = ServerProcess(server_binary("valkey-9.1"), config=CONFIG)
        copy._data_dir = cut = run.folder / "cut"
        shutil.copytree(folder, cut)
        _cut(cut, length)
        try:
            copy.start(start_timeout=60_000)
            with Queue(QUEUE, copy.url) as queue:
                findings = queue.check(recheck_after=20).findings
            run.expect(
                not findings, f"log of {end} bytes cut to {length}: {[str(finding) for finding in findings[:5]]}"
            )
        finally:
            copy.close()
    _cut(folder, lengths[0])


def _cut(folder: Path, length: int):
    with _log(folder).open("r+b") as file:
        file.truncate(length)


def _log(folder: Path) -> Path:
    (log,) = folder.glob("**/*.incr.aof")
    return log
