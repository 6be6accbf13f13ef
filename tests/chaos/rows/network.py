"""Faults of the network between the processes and the server."""

import time

from tests.chaos.fault_proxy import FaultProxy
from tests.chaos.run import ChaosRun

NUMBER = 9
TITLE = "network:"
VARIANTS = ("half_open", "delay", "resets", "slow")
TIMEOUT_MS = 1_000


def play(run: ChaosRun, variant: str):
    server = run.start_server()
    proxy = run.closing(FaultProxy(server.url, seed=run.seed))
    run.use(server.url, run.client, parties=proxy.url)
    # A lock outlives every fault, so that a stalled job is a false one.
    options = {"lock_duration": 20_000, "stalled_interval": 1_000}
    run.no_stalls = True
    slow = variant in ("delay", "slow")
    run.fleet_of(2, jobs=60 if slow else 250, rate=100, options=options, request_timeout=5_000 if slow else TIMEOUT_MS)
    if variant == "half_open":
        for _ in run.faults(2, every=5, progress=60):
            at = time.monotonic()
            proxy.half_open()
            run.serving("workers fetched again after", at, TIMEOUT_MS / 1000 + 1, run.fleet.workers)
        return
    if variant == "delay":
        proxy.delay = (0.05, 0.15)  # 200 +- 100 ms per round trip
    elif variant == "resets":
        proxy.reset_share = 0.01
    else:
        proxy.bytes_per_second = 125_000
    for _ in run.faults(1):
        run.expect(run.progress(20), "no job is completed through a bad network")
    run.finish_adding()
    if variant == "resets":
        run.note(f"{proxy.resets} connections reset")
