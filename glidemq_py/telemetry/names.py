"""Names of spans, attributes and metrics: the messaging conventions of OpenTelemetry 1.44, and those of glide-mq.

Also what meters record. See https://opentelemetry.io/docs/specs/semconv/messaging/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

TRACER_NAME: Final = "glide-mq"
"""Name of the tracer and the meter, as in glide-mq for Node."""
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""Version of the conventions; backends use it to translate renamed attributes."""

BATCH_COUNT: Final = "messaging.batch.message_count"
MESSAGE_ID: Final = "messaging.message.id"
ERROR_TYPE: Final = "error.type"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
SYSTEM: Final = "glidemq"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

SENT: Final = "messaging.client.sent.messages"
CONSUMED: Final = "messaging.client.consumed.messages"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"

QUEUE: Final = "glide-mq.queue"
JOB_NAME: Final = "glide-mq.job.name"
JOB_ID: Final = "glide-mq.job.id"
JOB_DELAY: Final = "glide-mq.job.delay"
JOB_PRIORITY: Final = "glide-mq.job.priority"
FLOW_NAME: Final = "glide-mq.flow.name"
FLOW_CHILDREN: Final = "glide-mq.flow.childCount"
FLOW_NODES: Final = "glide-mq.flow.nodeCount"


class Start(NamedTuple):
    """The start of an attempt of a job."""

    name: str
    wait: float | None
    """Seconds from ready to the start; None for later attempts."""
    late: float | None
    """Seconds from the time until which the job was delayed to the start; None if it was not delayed."""


class Meter:
    """Records operations of this process's queues and workers; a method that a subclass lacks records nothing.

    Times are in seconds, ``error`` is an exception type, ``server`` the attributes of the server.
    """

    def sent(
        self, queue: str, operation: str, jobs: Sequence[str], seconds: float, error: str | None,
        server: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Record that one operation added the jobs with these names, or failed."""

    def began(self, queue: str, jobs: Sequence[Start], server: Mapping[str, Any]) -> None:
        """Record the start of a handler."""

    def ran(
        self, queue: str, jobs: Sequence[Start], seconds: float, error: str | None, server: Mapping[str, Any]
    ) -> None:
        """Record the end of a handler."""

    def job_reported(self, queue: str, name: str, outcome: str) -> None:
        """Record the outcome of an attempt: completed, failed, cancelled, ..., stale. Of leases, name is ''."""

    def step_stored(self, queue: str, name: str, state: str) -> None:
        """Record the new state of a step of a job with this name: done, retrying, failed, sleeping, ..."""

    def fired(self, queue: str, schedule: str, jobs: int, late: float) -> None:
        """Record that a scheduler added jobs, ``late`` seconds after the time of the first."""

    def interrupted(self, reason: str) -> None:
        """Record that a connection was interrupted."""

    def stalled(self, queue: str, recovered: int, failed: int) -> None:
        """Record stalled jobs that were recovered or failed."""


def span_name(operation: str, queue: str) -> str:
    """Return the span name ``{operation} {destination}``."""
    return f"{operation} {queue}"


def server_of(transport: object) -> dict[str, Any]:
    """Return the attributes of the server: of a cluster, its first configured node. Empty if it is in memory."""
    addresses: Any = getattr(getattr(transport, "config", None), "addresses", None)
    if not addresses:
        return {}
    return {SERVER_ADDRESS: addresses[0].host, SERVER_PORT: addresses[0].port}


def attributes(operation: str, kind: str, queue: str, server: Mapping[str, Any]) -> dict[str, Any]:
    """Return the common attributes of spans and measurements; ``kind`` is "send" or "process"."""
    found = {
        **server,
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }
    if kind == "process":
        found[CONSUMER_GROUP] = "workers"
    return found
