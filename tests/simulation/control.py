"""Remote control of the simulated workers, and the judgment of what they do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from glidemq_py import Queue, Worker
from glidemq_py.errors import GlideMQConnectionError, WorkerNotFoundError, WorkerTimeoutError
from tests.simulation.loop import PARTY, Party

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger

__all__ = ["Control"]

_TIMEOUT_MS = 4_000
_QUIET_S = 0.5
_ENDED = ("completed", "failed")
_FAULTS = (GlideMQConnectionError, WorkerNotFoundError, WorkerTimeoutError)


class Control:
    """Sends commands to workers and checks at once that those have obeyed.

    Args:
        ledger: gets the problems.
        worker_named: returns a running worker by its id, or None.
    """

    def __init__(self, ledger: Ledger, worker_named: Callable[[str], Worker | None]):
        self._ledger = ledger
        self._worker_named = worker_named
        self._by: Party | None = None
        self.obeyed = 0
        """Number of commands that workers have confirmed."""

    @property
    def is_idle(self) -> bool:
        """True if no command for a single worker is under way."""
        return self._by is None or self._by.dead

    async def command(self, queue: Queue, pick: random.Random):
        """Resize a worker, or let it be quiet for a while. One command at a time."""
        if not self.is_idle:
            return
        self._by = PARTY.get()
        try:
            workers = await queue.get_workers()
            known = [info.id for info in workers if self._worker_named(info.id) is not None]
            if known:
                await (self._resize if pick.random() < 0.5 else self._quiet)(queue, pick.choice(known), pick)
        except _FAULTS as error:
            self._failed(error)
        finally:
            self._by = None

    def _failed(self, error: Exception):
        if not self._ledger.loses_messages:
            self._ledger.found.append(f"a command failed without a fault: {error!r}")

    async def _resize(self, queue: Queue, name: str, pick: random.Random):
        slots = pick.randint(1, 20)
        await queue.workers.resize(slots, name, timeout=_TIMEOUT_MS)
        self.obeyed += 1
        worker = self._worker_named(name)
        if worker is not None and worker.concurrency != slots:
            self._ledger.found.append(f"worker {name} confirmed {slots} slots, but has {worker.concurrency}")

    async def _quiet(self, queue: Queue, name: str, pick: random.Random):
        try:
            await queue.workers.quiet(name, timeout=_TIMEOUT_MS)
            self.obeyed += 1
            worker = self._worker_named(name)
            if worker is not None and not worker.is_paused:
                self._ledger.found.append(f"worker {name} confirmed to be quiet, but fetches")
            await asyncio.sleep(0.1)  # jobs that it was fetching
            started = self._ledger.started[name]
            await asyncio.sleep(_QUIET_S * pick.random())
            if not self._ledger.loses_messages and self._ledger.started[name] != started:
                self._ledger.found.append(f"worker {name} is quiet, but has started a job")
        finally:
            await self._resume(queue, name)

    async def _resume(self, queue: Queue, name: str):
        for _ in range(5):
            if self._worker_named(name) is None:
                return
            try:
                await queue.workers.resume(name, timeout=_TIMEOUT_MS)
            except _FAULTS as error:
                self._failed(error)
                continue
            self.obeyed += 1
            worker = self._worker_named(name)
            if worker is not None and worker.is_paused:
                self._ledger.found.append(f"worker {name} confirmed to be resumed, but is quiet")
            return

    async def cancel(self, queue: Queue, job_id: str):
        """Cancel a job on the worker that runs it, until it has ended."""
        while True:
            job = await queue.get_job(job_id)
            if job is None or job.state in _ENDED:
                return
            try:
                found = await queue.workers.inspect(timeout=_TIMEOUT_MS)
                for name in [each.id for each in found if job_id in {running.id for running in each.jobs}]:
                    if await queue.workers.cancel(job_id, name, timeout=_TIMEOUT_MS):
                        self.obeyed += 1
                        self._ledger.cancelled.add(job_id)
            except (WorkerNotFoundError, WorkerTimeoutError) as error:
                self._failed(error)
            await asyncio.sleep(0.1)
