"""The processes of a chaos run: producers and workers, to be killed, frozen and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.chaos.ledger import Ledger
from tests.chaos.settings import PartySettings

__all__ = ["Fleet", "Party"]

ROOT: Final = Path(__file__).resolve().parents[2]
_PATIENCE_S: Final = 90.0


class Party:
    """One process. Its output goes to a file; `lines` returns it."""

    def __init__(self, settings: PartySettings, arguments: list[str], folder: Path, ledger: Ledger):
        self.settings = settings
        self.name = settings.party
        self._ledger = ledger
        self._log = folder / f"{self.name}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": settings.python_path or str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **settings.environment(),
        }
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.started_at = time.monotonic()
        # A waiter of the ledger must notice a process that ended without a line.
        threading.Thread(target=self._watch, daemon=True, name=f"watch {self.name}").start()

    def _watch(self):
        self.process.wait()
        self._ledger.wake()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def lines(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()

    def send(self, number: signal.Signals):
        self.process.send_signal(number)

    def wait_ready(self):
        self._wait(lambda: self.name in self._ledger.ready, "start")

    def wait_active(self, jobs: int = 1):
        """Wait until so many jobs run in this process."""
        self._wait(lambda: len(self._ledger.active[self.name]) >= jobs, f"run {jobs} jobs")

    def _wait(self, reached: Any, what: str):
        self._ledger.wait(lambda: reached() or not self.alive, _PATIENCE_S)
        if not reached():
            end = "\n".join(self.lines()[-15:])
            raise AssertionError(f"{self.name} did not {what} (exit code {self.process.poll()}); its log:\n{end}")

    def kill(self) -> frozenset[str]:
        """Kill the process (SIGKILL); return the ids of the jobs that it was running."""
        self.send(signal.SIGKILL)
        self.process.wait()
        self._ledger.sync()
        return frozenset(self._ledger.active.pop(self.name, ()))

    def stop(self, seconds: float = _PATIENCE_S, *, starting: bool = False) -> float:
        """Send SIGTERM and wait for the end of the process; return the seconds that took.

        `starting`: it may be so young that SIGTERM ends Python itself.
        """
        begin = time.monotonic()
        self.send(signal.SIGTERM)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"{self.name} did not stop within {seconds} s of SIGTERM") from None
        self._ledger.sync()
        if code != 0 and not (starting and code == -signal.SIGTERM and self.name not in self._ledger.ready):
            end = "\n".join(self.lines()[-15:])
            raise AssertionError(f"{self.name} ended with code {code} after SIGTERM; its log:\n{end}")
        return time.monotonic() - begin


class Fleet:
    """Starts the processes of a run and ends them.

    Args:
        ledger: where they record what they do.
        folder: where their logs go.
        base: settings that they share.
    """

    def __init__(self, ledger: Ledger, folder: Path, base: PartySettings):
        self._ledger = ledger
        self._folder = folder
        self.base = base
        self._numbers = {"producer": 0, "worker": 0, "holder": 0, "gateway": 0}
        self.producers: list[Party] = []
        self.workers: list[Party] = []
        self.parties: list[Party] = []
        """All processes ever started."""

    def _settings(self, role: str, changes: dict[str, Any]) -> PartySettings:
        self._numbers[role] += 1
        return replace(self.base, party=f"{role}{self._numbers[role]}", **changes)

    def make_durable(self, durability: dict[str, Any]):
        """Let later producers add durable jobs only."""
        self.base = replace(self.base, durable=durability)

    def producer(self, jobs: int | None = None, **changes: Any) -> Party:
        """Start a producer of so many adds; None: until it is stopped."""
        settings = self._settings("producer", {"jobs": jobs, **changes})
        party = Party(settings, ["tests.chaos.producer"], self._folder, self._ledger)
        self.producers.append(party)
        self.parties.append(party)
        return party

    def worker(self, *arguments: str, module: str = "tests.chaos.worker_target:worker", **changes: Any) -> Party:
        """Start a worker from the command line; `changes` are fields of PartySettings."""
        settings = self._settings("worker", changes)
        party = Party(
            settings, ["glidemq_py.worker", module, "--log-level", "warning", *arguments], self._folder, self._ledger
        )
        self.workers.append(party)
        self.parties.append(party)
        return party

    def holder(self, **changes: Any) -> Party:
        """Start a process that fetches leases; it is stopped with the workers."""
        settings = self._settings("holder", changes)
        party = Party(settings, ["tests.chaos.lease_holder"], self._folder, self._ledger)
        self.workers.append(party)
        self.parties.append(party)
        return party

    def gateway(self, port: int) -> Party:
        """Start a gateway on a port."""
        arguments = ["glidemq_py.gateway", "--url", self.base.url, "--port", str(port), "--log-level", "warn"]
        party = Party(self._settings("gateway", {}), arguments, self._folder, self._ledger)
        self.parties.append(party)
        return party

    def gateway_client(self, what: str, ports: list[int], **changes: Any) -> Party:
        """Start a client of gateways that adds jobs (`produce`) or runs them (`work`)."""
        role = "producer" if what == "produce" else "worker"
        ports_changes = {"environment_changes": {"GATEWAY_PORTS": ",".join(map(str, ports))}}
        settings = self._settings(role, {**ports_changes, **changes})
        party = Party(settings, ["tests.chaos.gateway_client", what], self._folder, self._ledger)
        (self.producers if role == "producer" else self.workers).append(party)
        self.parties.append(party)
        return party

    def replace_worker(self, old: Party) -> Party:
        """Start a worker with the settings of one that ended."""
        names = ("url", "work_ms", "options", "request_timeout", "queue", "python_path", "queues")
        return self.worker(**{name: getattr(old.settings, name) for name in names})

    def finish_producers(self, *, stop: bool, seconds: float = 180.0):
        """Wait until all producers have had their adds acknowledged; `stop`: stop them."""
        for party in self.producers:
            if stop and party.alive:
                party.wait_ready()  # before that, SIGTERM ends Python itself
                party.send(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        for party in self.producers:
            try:
                code = party.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{party.name} did not finish its adds: {party.lines()[-5:]}") from None
            if code != 0:
                raise AssertionError(f"{party.name} ended with code {code}: {party.lines()[-15:]}")

    def finish(self, party: Party):
        """Stop a producer, and wait until its adds are acknowledged."""
        party.stop()
        self.producers.remove(party)

    def stop_workers(self):
        """Stop all workers (SIGTERM) at the same time; fail if one does not end with exit code 0."""
        alive = [party for party in self.workers if party.alive]
        for party in alive:
            party.wait_ready()  # before that, SIGTERM ends Python itself
        for party in alive:
            party.send(signal.SIGTERM)
        for party in alive:
            try:
                code = party.process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{party.name} did not stop after SIGTERM") from None
            if code != 0:
                raise AssertionError(f"{party.name} ended with code {code}: {party.lines()[-15:]}")

    def close(self):
        for party in self.parties:
            if party.alive:
                party.send(signal.SIGKILL)
            party.process.wait()
