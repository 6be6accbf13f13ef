"""Power loss: the append-only file is cut back to an earlier length, also in the middle of a record."""

import time
from functools import partial
from pathlib import Path

from glidemq_py.testing import ServerProcess
from tests.chaos.run import ChaosRun

NUMBER = 3
TITLE = "power loss: tail of the AOF cut, also in mid-record"


def play(run: ChaosRun) -> None:
    server = run.start_server(appendonly="yes", appendfsync="everysec")
    run.fleet_of(2, jobs=500)
    for _ in run.faults(3, every=3, progress=70):
        synced, since = _log(server).stat().st_size, time.monotonic()
        run.progress(40, 1)

        # Jobs acknowledged since the length was read may be lost, jobs before may not.
        run.serving("served again after", run.restart(server, partial(_cut, run, server, synced)), 3)
        run.excuse(time.monotonic() - since)
    run.note("the check after each cut must be clean without a repair")


def _cut(run: ChaosRun, server: ServerProcess, synced: int) -> None:
    log = _log(server)
    length = run.random.randint(synced, log.stat().st_size)
    with log.open("r+b") as file:
        file.truncate(length)


def _log(server: ServerProcess) -> Path:
    (log,) = (server.child.data_dir if server.is_running() else server._data_dir or Path()).glob("**/*.incr.aof")
    return log
