"""The function library is flushed, a foreign library `glidemq` is loaded, and two builds of ours work side by side."""

import re

from tests.chaos.other_build import other_build
from tests.chaos.run import ChaosRun

NUMBER = 5
TITLE = "FUNCTION FLUSH every 5 s, a foreign `glidemq` library, two builds at once"
FOREIGN = "#!lua name=glidemq\nredis.register_function('glidemq_version', function() return 'foreign' end)\n"
PROCESSES = 5


def play(run: ChaosRun) -> None:
    run.start_server()
    run.no_stalls = True
    other = other_build(run.folder / "other-build")
    run.fleet.worker(python_path=str(other))
    run.fleet.producer(rate=100, python_path=str(other))
    run.fleet_of(2, jobs=250, rate=100)
    flushes = 0
    for _ in run.faults(4, every=5, progress=60):
        run.client.execute("FUNCTION", "FLUSH")
        run.client.execute("FUNCTION", "LOAD", "REPLACE", FOREIGN)
        flushes += 1

    def check() -> None:
        listed = run.client.execute("FUNCTION", "LIST")
        names = {dict(zip(row[::2], row[1::2], strict=True))["library_name"] for row in listed}
        run.expect(len(names) == 3, f"two builds and a foreign library expected, not {sorted(names)}")
        stats = run.client.info("commandstats").get("cmdstat_function|load", "calls=0")
        found = re.search(r"calls=(\d+)", stats)
        loads = int(found[1]) - flushes if found else 0
        run.bound("loads per flush and process", loads / (flushes + 1) / PROCESSES, 3, "")
        run.expect(not run.ledger.errors and not run.ledger.unsure, f"errors: {run.ledger.errors} {run.ledger.unsure}")

    run.checks.append(check)
