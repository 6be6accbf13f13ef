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
REFUSED = "ServerNotReadyError"
"""The error of a call that the server rejects because it cannot write its log (MISCONF)."""
SINGLE_RUNS = frozenset({"plain", "priority", "lifo", "delay", "bulk", "expiring", "unique"})


def missing(variant: str) -> str:
    return "mounting a small disk needs root" if variant == "disk" and os.geteuid() else ""


def play(run: ChaosRun, variant: str):
    if variant == "memory":
        _memory(run)
    else:
        _disk(run)


def _memory(run: ChaosRun):
    run.start_server(maxmemory="12mb")
    for _ in run.faults(1, progress=0):
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


def _disk(run: ChaosRun):
    disk = run.closing(_Disk(run.folder / "disk"))
    config: dict[str, str | int] = {"appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": 0}
    server = ServerProcess(server_binary("valkey-9.1"), config=config)
    (disk.path / "data").mkdir()
    server._data_dir = disk.path / "data"
    run.closing(server)
    server.start()
    run.use(server.url, server.client(timeout=60))
    # A lock outlives the fault: only its own worker can end a job that was running.
    run.no_stalls = True
    run.fleet_of(2, jobs=300, options={"lock_duration": 30_000, "stalled_interval": 1_000}, work_ms=400, rate=60)
    kept: set[str] = set()
    for _ in run.faults(1, every=5, progress=80):
        before = run.ledger.unsure[REFUSED]
        disk.fill()
        full = run.ledger.wait(partial(_refused, run, before), 60)
        run.expect(full, f"no add was rejected with {REFUSED}: the full disk was not noticed")
        # The running jobs end while no result can be written.
        run.ledger.wait(partial(_none_runs, run), 10)
        run.ledger.sync()
        kept |= _unreported(run)
        disk.free()
        run.expect(run.progress(20, 60), "no job is completed after space was freed")

    def check():
        again = [job_id for job_id in kept if len(run.ledger.started[job_id]) != 1]
        run.expect(kept, "no job ended while the disk was full")
        run.expect(not again, f"results were not kept, their jobs ran again: {again[:10]}")
        run.note(f"{len(kept)} results of plain jobs kept while the disk was full, and reported later")

    run.checks.append(check)


def _refused(run: ChaosRun, before: int) -> bool:
    return run.ledger.unsure[REFUSED] > before


def _none_runs(run: ChaosRun) -> bool:
    return not any(run.ledger.active.values())


def _unreported(run: ChaosRun) -> set[str]:
    """Return jobs of one attempt whose handler has ended, and whose result the server has not accepted."""
    ledger = run.ledger
    return {
        job_id
        for job_id, steps in ledger.ended.items()
        if steps and ledger.attempted.get(job_id) in SINGLE_RUNS and not ledger.ends["completed"].get(job_id)
    }


def _completed(run: ChaosRun, wanted: int) -> bool:
    return run.ledger.completions >= wanted


class _Disk:
    """A small tmpfs."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)], check=True)

    def fill(self):
        filler = self.path / "filler"
        try:
            with filler.open("ab", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
        except OSError:
            return

    def free(self):
        (self.path / "filler").unlink()

    def close(self):
        subprocess.run(["umount", str(self.path)], check=True)
