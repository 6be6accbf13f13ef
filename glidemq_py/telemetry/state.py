"""Telemetry state of the process, and its OpenTelemetry meter.

Without a tracer or meter, `TELEMETRY.on` is False and nothing is recorded.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from opentelemetry import metrics

from glidemq_py.errors import GlideMQValidationError
from glidemq_py.telemetry import names
from glidemq_py.telemetry.names import TRACER_NAME

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

__all__ = ["TELEMETRY", "Meter", "OtelMeter", "Telemetry", "is_tracing_enabled", "otel_meter", "set_tracer"]

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Bucket bounds recommended by the conventions."""


class OtelMeter:
    """A `Meter` over instruments of the global provider."""

    def __init__(self) -> None:
        meter = metrics.get_meter(names.TRACER_NAME)
        self._sent = meter.create_counter(
            names.SENT, "{message}", "Number of messages producer attempted to send to the broker."
        )
        self._consumed = meter.create_counter(
            names.CONSUMED, "{message}", "Number of messages that were delivered to the application."
        )
        self._operation = meter.create_histogram(
            names.OPERATION_DURATION, "s", "Duration of messaging operation initiated by a client.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )  # fmt: skip
        self._process = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def sent(self, queue: str, operation: str, jobs: int, seconds: float, error: str | None) -> None:
        """See `Meter`."""
        attributes = _attributes(operation, "send", queue, error)
        self._sent.add(jobs, attributes)
        self._operation.record(seconds, attributes)

    def began(self, queue: str, jobs: int, waits: tuple[float, ...]) -> None:
        """See `Meter`."""
        self._consumed.add(jobs, _attributes("process", "process", queue, None))

    def ran(self, queue: str, jobs: int, seconds: float, error: str | None) -> None:
        """See `Meter`."""
        self._process.record(seconds, _attributes("process", "process", queue, error))

    def settled(self, queue: str, outcome: str) -> None:
        """Do nothing: the conventions have no such metric."""

    def stalled(self, queue: str, recovered: int, failed: int) -> None:
        """Do nothing: the conventions have no such metric."""


def _attributes(operation: str, kind: str, queue: str, error: str | None) -> dict[str, Any]:
    attributes = names.attributes(operation, kind, queue)
    if error is not None:
        attributes[names.ERROR_TYPE] = error
    return attributes


@cache
def otel_meter() -> OtelMeter:
    """Return the meter of this process; its instruments are created once."""
    return OtelMeter()


_PROXIES: Final = frozenset({"ProxyTracerProvider", "NoOpTracerProvider", "_ProxyMeterProvider", "NoOpMeterProvider"})
"""Types of OpenTelemetry's global providers if none is set."""


class Meter(Protocol):
    """Records operations of this process's queues and workers. Times are in seconds, ``error`` is an exception type."""

    def sent(self, queue: str, operation: str, jobs: int, seconds: float, error: str | None) -> None:
        """Record that one operation added jobs or failed."""
        ...

    def began(self, queue: str, jobs: int, waits: tuple[float, ...]) -> None:
        """Record the start of a handler; ``waits`` are the waiting times of first attempts."""
        ...

    def ran(self, queue: str, jobs: int, seconds: float, error: str | None) -> None:
        """Record the end of a handler."""
        ...

    def settled(self, queue: str, outcome: str) -> None:
        """Record the outcome of an attempt: completed, failed, retrying, delayed, ..., stale."""
        ...

    def stalled(self, queue: str, recovered: int, failed: int) -> None:
        """Record stalled jobs that were recovered or failed."""
        ...


class Telemetry:
    """Tracer and meters of this process.

    Attributes:
        on: True if there is a tracer or a meter. If False, the other attributes are not used.
        tracer: tracer of the spans, or None.
        meters: meters that record operations.
    """

    __slots__ = ("_added", "_own_tracer", "meters", "on", "tracer")

    def __init__(self) -> None:
        self.on = False
        self.tracer: Tracer | None = None
        self.meters: tuple[Meter, ...] = ()
        self._own_tracer: Tracer | None = None
        self._added: tuple[Meter, ...] = ()

    def set_tracer(self, tracer: Tracer | None) -> None:
        """Set the tracer; None restores that of the global provider, if there is one."""
        self._own_tracer = tracer
        self.detect_providers()

    def add_meter(self, meter: Meter) -> None:
        """Add a meter."""
        self._added = (*self._added, meter)
        self.detect_providers()

    def remove_meter(self, meter: Meter) -> None:
        """Remove a meter."""
        self._added = tuple(each for each in self._added if each is not meter)
        self.detect_providers()

    def detect_providers(self) -> None:
        """Detect the global providers. Called when a queue connects, a worker starts, or a tracer or meter changes.

        A provider can only be set if OpenTelemetry is imported; if it is not, this does not import it.
        """
        tracer, meters = self._own_tracer, self._added
        if tracer is None and _has_provider("trace", "TRACER"):
            from opentelemetry import trace

            tracer = trace.get_tracer(TRACER_NAME)
        if _has_provider("metrics", "METER"):
            meters = (*meters, otel_meter())
        self.tracer = tracer
        self.meters = meters
        self.on = tracer is not None or bool(meters)


def _has_provider(signal: str, variable: str) -> bool:
    if f"OTEL_PYTHON_{variable}_PROVIDER" not in os.environ and f"opentelemetry.{signal}" not in sys.modules:
        return False
    if signal == "trace":
        from opentelemetry import trace

        return type(trace.get_tracer_provider()).__name__ not in _PROXIES
    from opentelemetry import metrics

    return type(metrics.get_meter_provider()).__name__ not in _PROXIES


TELEMETRY: Final = Telemetry()
"""Telemetry state of this process."""


def set_tracer(tracer: Tracer | None) -> None:
    """Set the OpenTelemetry tracer for spans, instead of that of the global provider.

    Args:
        tracer: result of `TracerProvider.get_tracer`; None restores the global provider, if one is set.

    Raises:
        GlideMQValidationError: ``tracer`` is not a tracer.
    """
    if tracer is not None and not callable(getattr(tracer, "start_span", None)):
        raise GlideMQValidationError("tracer", tracer, "must be a tracer, such as from TracerProvider.get_tracer")
    TELEMETRY.set_tracer(tracer)


def is_tracing_enabled() -> bool:
    """Return True if spans are created: a tracer or a global tracer provider is set."""
    TELEMETRY.detect_providers()
    return TELEMETRY.tracer is not None
