"""All faults at once, in random order, through a proxy, on a durable server, with two builds side by side."""

import signal
import time

from tests.chaos.fault_proxy import FaultProxy
from tests.chaos.fleet import Party
from tests.chaos.other_build import other_build
from tests.chaos.run import ChaosRun

NUMBER = 14
TITLE = "everything at once: the faults of rows 1, 2, 5, 7, 9, 10, 11 and 15"
LASTING = ("freeze", "delay", "resets", "slow", "memory")
"""Faults that last until the next of them, or until the server is killed; the others happen meanwhile."""
FAULTS = ("kill", "stop", "server", "functions", "cut", "half_open", "poison", *LASTING)
LOCK_MS = 2_000
POISON_S = 180.0
MAX_STALLED = 5


class _Faults:
    """Injects faults; one of those that last is under way at a time."""

    def __init__(self, run: ChaosRun):
        self._run = run
        self._server = run.start_server(appendonly="yes", appendfsync="always")
        self._proxy = run.closing(FaultProxy(self._server.url, seed=run.seed))
        run.use(self._server.url, run.client, parties=self._proxy.url)
        self._frozen: Party | None = None
        self.poison: list[str] = []

    def end_lasting(self):
        if self._frozen is not None:
            self._frozen.send(signal.SIGCONT)
            self._frozen = None
        proxy = self._proxy
        proxy.delay, proxy.reset_share, proxy.bytes_per_second = (0.0, 0.0), 0.0, 0.0
        self._run.client.execute("CONFIG", "SET", "maxmemory", 0)

    def inject(self, fault: str):
        run, proxy = self._run, self._proxy
        victims = [worker for worker in run.fleet.workers if worker.alive and worker is not self._frozen]
        victim = run.random.choice(victims)
        match fault:
            case "kill":
                victim.kill()
                run.fleet.replace_worker(victim)
            case "freeze":
                victim.send(signal.SIGSTOP)
                self._frozen = victim
            case "stop":
                victim.stop(starting=True)
                run.fleet.replace_worker(victim)
            case "server":
                run.serving("fetched again after the port was up", run.restart(self._server), 3)
            case "functions":
                run.client.execute("FUNCTION", "FLUSH")
            case "cut":
                proxy.cut()
            case "half_open":
                proxy.half_open()
            case "delay":
                proxy.delay = (0.05, 0.15)
            case "resets":
                proxy.reset_share = 0.01
            case "slow":
                proxy.bytes_per_second = 125_000
            case "memory":
                run.client.execute("CONFIG", "SET", "maxmemory", run.client.info("memory")["used_memory"])
            case _:
                self.poison.append(run.fleet.producer(1, kinds=("poison",), request_timeout=1_500).name + "-1")

    def replace_dead(self):
        """Replace the workers that a poison job has killed."""
        for worker in [worker for worker in self._run.fleet.workers if not worker.alive]:
            self._run.fleet.workers.remove(worker)
            self._run.fleet.replace_worker(worker)

    def wait_poison(self):
        """Wait until all poison jobs have failed."""
        run, deadline = self._run, time.monotonic() + POISON_S
        while left := [each for each in self.poison if run.client.execute("ZSCORE", run.key("failed"), each) is None]:
            if time.monotonic() > deadline:
                run.problem(f"poison jobs have not failed: {left}")
                return
            self.replace_dead()
            run.ledger.wait(lambda: False, 0.5)
        self.replace_dead()


def play(run: ChaosRun):
    faults = _Faults(run)
    options = {"lock_duration": LOCK_MS, "stalled_interval": 1_000, "max_stalled_count": MAX_STALLED}
    workers, producers = (10, 5) if run.long else (4, 2)
    other = str(other_build(run.folder / "other-build"))
    run.fleet.worker(options=options, work_ms=20, request_timeout=1_500, python_path=other)
    run.fleet_of(workers - 1, producers, jobs=500, rate=60, options=options, request_timeout=1_500, work_ms=20)
    counts = dict.fromkeys(FAULTS, 0)
    # The deaths that a poison job may cause take longer than a short form.
    order = [fault for fault in FAULTS if run.long or fault != "poison"]
    for number in run.faults(len(order), every=2, progress=40, least=len(order)):
        if number % len(order) == 0:
            run.random.shuffle(order)
        fault = order[number % len(order)]
        counts[fault] += 1
        if fault in LASTING or fault == "server":
            faults.end_lasting()
        faults.replace_dead()
        faults.inject(fault)
    faults.end_lasting()
    ended_at = time.monotonic()
    faults.wait_poison()
    run.expect(run.progress(10, 60) or not _producing(run), "no job is completed after the last fault")
    run.note(", ".join(f"{name} {count}" for name, count in counts.items()))
    run.note(f"last fault at {ended_at - run.began:.0f} s")


def _producing(run: ChaosRun) -> bool:
    return any(producer.alive for producer in run.fleet.producers)
