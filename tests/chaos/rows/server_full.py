"""The server reaches maxmemory, or its disk is full."""

import os
import subprocess
from functools import partial
from pathlib import Path

from glidemq_py.testing import ServerProcess, server_binary
from tests.chaos.run import ChaosRun

NUMBER = 10
TITLE = "server full:"
VARIANTS = ("memory", "disk")
TYPED = "ServerOutOfMemoryError"


def missing(variant: str) -> str:
    return "mounting a small disk needs root" if variant == "disk" and os.geteuid() else ""


def play(run: ChaosRun, variant: str) -> None:
    if variant == "memory":
        _memory(run)
    else:
        _disk(run)


def _memory(run: ChaosRun) -> None:
    run.start_server(maxmemory="12mb")
    for _ in run.faults(1):
        # No worker runs: the queue grows until adds are rejected.
        run.fleet.producer(400, payload=20_000, kinds=("plain", "priority", "bulk", "ordered", "delay", "flow"))
        full = run.ledger.wait(lambda: run.ledger.rejected[TYPED] >= 5, 60)
        run.expect(full, "no add was rejected with ServerOutOfMemoryError")
        wanted = run.ledger.completions + 20
        for _ in range(1 if run.fleet.workers else 2):
            worker = run.fleet.worker(options={"concurrency": 20})
            worker.wait_ready()
        # Completed jobs are kept: the memory has to be raised for the rest of the adds.
        drains = run.ledger.wait(partial(_completed, run, wanted), 60)
        run.expect(drains, "the backlog of a full server does not drain")
        run.client.execute("CONFIG", "SET", "maxmemory", "4gb")
        run.fleet.finish_producers(stop=False)
        run.wait_drained()
        used = int(run.client.info("memory")["used_memory"])
        if run.long:
            run.client.execute("CONFIG", "SET", "maxmemory", used + 5_000_000)


def _disk(run: ChaosRun) -> None:
    disk = run.closing(_Disk(run.folder / "disk"))
    config: dict[str, str | int] = {"appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": 0}
    server = ServerProcess(server_binary("valkey-9.1"), config=config)
    (disk.path / "data").mkdir()
    server._data_dir = disk.path / "data"
    run.closing(server)
    server.start()
    run.use(server.url, server.client(timeout=60))
    run.fleet_of(2, jobs=300, work_ms=50)
    for _ in run.faults(1, every=5, progress=80):
        before = _errors(run)
        disk.fill()
        full = run.ledger.wait(partial(_more_errors, run, before), 60)
        run.expect(full, "the full disk was not noticed")
        disk.free()
        run.expect(run.progress(20, 60), "no job is completed after space was freed")


def _errors(run: ChaosRun) -> int:
    return run.ledger.unsure.total() + run.ledger.errors.total() + len(run.ledger.problems)


def _completed(run: ChaosRun, wanted: int) -> bool:
    return run.ledger.completions >= wanted


def _more_errors(run: ChaosRun, before: int) -> bool:
    return _errors(run) > before


class _Disk:
    """A small tmpfs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)], check=True)

    def fill(self) -> None:
        filler = self.path / "filler"
        try:
            with filler.open("ab", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
        except OSError:
            return

    def free(self) -> None:
        (self.path / "filler").unlink()

    def close(self) -> None:
        subprocess.run(["umount", str(self.path)], check=True)
