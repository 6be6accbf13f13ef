"""Settings of a process of a chaos run: one JSON object in the environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

__all__ = ["FEATURED", "KINDS", "PartySettings"]

_VARIABLE: Final = "GLIDEMQ_CHAOS_PARTY"

KINDS: Final = (
    "plain", "priority", "lifo", "delay", "ordered", "expiring", "unique", "retried", "failing", "stepped", "logged",
    "bulk", "flow", "ranked", "fair", "fair_delayed", "limited", "dependent", "steps",
)  # fmt: skip
"""Kinds of jobs. `retried` fails at its first attempt, `failing` at every one, `stepped` delays itself once, `logged`
writes a log line and its progress, `expiring` has a time to live that is never reached, `unique` a deduplication id,
`ranked` a rank, `fair` one of five fair keys, `limited` a name of which two jobs may run at a time. `dependent` is a
pair, one of which depends on the other. `steps` has three durable steps, and sleeps after each.
"""

FEATURED: Final = frozenset({"ranked", "fair", "fair_delayed", "limited", "steps"})
"""Kinds for which the queue lists a feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartySettings:
    """Settings of a producer or worker.

    Attributes:
        party: name of the process in the ledger.
        url, queue: of its queue.
        pipe: the ledger's pipe.
        seed: seed of its random choices.
        jobs: number of adds of a producer; None: until SIGTERM.
        kinds: kinds of its jobs.
        rate: adds per second, on average; 0: as fast as possible.
        work_ms: duration of a job, at most.
        payload: bytes of a job's data.
        options: options of the Worker.
        request_timeout: of its connection, ms.
        retention: options of every job.
        durable: the option `durable` of a producer's queue and flows.
        queues: queues of a worker that serves several, earlier ones first; empty: only `queue`.
        environment_changes: additional environment variables.
        python_path: of the process; None: this repository.
    """

    party: str
    url: str
    queue: str
    pipe: str
    seed: int
    jobs: int | None = None
    kinds: tuple[str, ...] = KINDS
    rate: float = 0.0
    work_ms: float = 5.0
    payload: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    request_timeout: int | None = None
    python_path: str | None = None
    retention: dict[str, Any] = field(default_factory=dict)
    environment_changes: dict[str, str] = field(default_factory=dict)
    durable: dict[str, Any] | None = None
    queues: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        return {_VARIABLE: json.dumps(asdict(self)), "GLIDEMQ_URL": self.url, **self.environment_changes}

    @classmethod
    def read(cls) -> Self:
        stored = json.loads(os.environ[_VARIABLE])
        return cls(**{**stored, "kinds": tuple(stored["kinds"]), "queues": tuple(stored["queues"])})

    def connection(self) -> str:
        """Return the URL with the client's name and the request timeout."""
        timeout = "" if self.request_timeout is None else f"&request_timeout={self.request_timeout}"
        return f"{self.url}{'&' if '?' in self.url else '?'}client_name={self.party}{timeout}"
