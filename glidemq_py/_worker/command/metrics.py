"""`--metrics-port`: serves Prometheus metrics of this process and of its workers' queues from a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glidemq_py._core.logs import get_logger
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import GlideMQValidationError

__all__ = ["serve_metrics"]

_log = get_logger("glidemq_py.worker")

_OPTION = "--metrics-port"


def serve_metrics(workers: Sequence[Worker], port: int) -> None:
    """Serve ``/metrics`` on all addresses until the process ends.

    Raises:
        GlideMQValidationError: If the port cannot be opened, or prometheus-client is not installed.
    """
    try:
        from prometheus_client import REGISTRY, start_http_server

        from glidemq_py.telemetry.prometheus import ProcessMetrics, QueueCollector
    except ImportError as error:
        raise GlideMQValidationError(_OPTION, port, str(error)) from None
    ProcessMetrics()
    by_server: dict[tuple[int, str], list[Worker]] = {}
    for worker in workers:
        by_server.setdefault((_identity(worker._connection), worker._keys.prefix), []).append(worker)
    for (_, prefix), group in by_server.items():
        names = sorted({worker.queue_name for worker in group})
        connection: Any = group[0]._connection
        REGISTRY.register(QueueCollector(names, connection, prefix=prefix))
    try:
        start_http_server(port)
    except OSError as error:
        raise GlideMQValidationError(_OPTION, port, f"cannot open the port: {error}") from None
    _log.info("serving metrics on port %d", port)


def _identity(connection: object) -> int:
    """Return a key that is equal for connections that are known to use the same server."""
    return hash(connection) if isinstance(connection, str) else id(connection)
