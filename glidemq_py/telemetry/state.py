"""Who listens: one value a process. While nobody does, `TELEMETRY.on` is False and nothing else is ever computed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, Protocol

from glidemq_py.errors import GlideMQValidationError
from glidemq_py.telemetry.names import TRACER_NAME

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

__all__ = ["TELEMETRY", "Meter", "Telemetry", "is_tracing_enabled", "set_tracer"]

_PROXIES: Final = frozenset({"ProxyTracerProvider", "NoOpTracerProvider", "_ProxyMeterProvider", "NoOpMeterProvider"})
"""What stands in OpenTelemetry's globals while nobody has set a provider."""


class Meter(Protocol):
    """Counts what queues and workers of this process do. Times are seconds; ``error`` is an exception's type name."""

    def sent(self, queue: str, operation: str, jobs: int, seconds: float, error: str | None) -> None:
        """Jobs were added by one operation, or could not be."""
        ...

    def began(self, queue: str, jobs: int, waits: tuple[float, ...]) -> None:
        """A handler was called with so many jobs; ``waits``: of those that were begun for the first time."""
        ...

    def ran(self, queue: str, jobs: int, seconds: float, error: str | None) -> None:
        """The handler has ended."""
        ...

    def settled(self, queue: str, outcome: str) -> None:
        """The server has taken the end of an attempt: completed, failed, retrying, delayed, ..., stale."""
        ...

    def stalled(self, queue: str, recovered: int, failed: int) -> None:
        """Jobs that had lost their worker were made ready again, or failed for good."""
        ...


class Telemetry:
    """What this process tells, and whom.

    Attributes:
        on: whether anybody listens; the only thing that is looked at otherwise.
        tracer: makes spans; None where nobody wants any.
        meters: who counts.
    """

    __slots__ = ("_added", "_own_tracer", "meters", "on", "tracer")

    def __init__(self) -> None:
        self.on = False
        self.tracer: Tracer | None = None
        self.meters: tuple[Meter, ...] = ()
        self._own_tracer: Tracer | None = None
        self._added: tuple[Meter, ...] = ()

    def set_tracer(self, tracer: Tracer | None) -> None:
        """Make spans with this tracer; None goes back to the one of the global provider, if there is one."""
        self._own_tracer = tracer
        self.look()

    def add_meter(self, meter: Meter) -> None:
        """Have somebody count."""
        self._added = (*self._added, meter)
        self.look()

    def remove_meter(self, meter: Meter) -> None:
        """Have them count no more."""
        self._added = tuple(each for each in self._added if each is not meter)
        self.look()

    def look(self) -> None:
        """See whether providers have been set: when a queue connects, when a worker starts, when somebody says so.

        Who has set one has imported OpenTelemetry, so where that is not loaded nothing is.
        """
        tracer, meters = self._own_tracer, self._added
        if tracer is None and _has_provider("trace", "TRACER"):
            from opentelemetry import trace

            tracer = trace.get_tracer(TRACER_NAME)
        if _has_provider("metrics", "METER"):
            from glidemq_py.telemetry.otel_meter import otel_meter

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
"""Of this process."""


def set_tracer(tracer: Tracer | None) -> None:
    """Make spans with an OpenTelemetry tracer of your own, in place of that of the global provider.

    Args:
        tracer: from `TracerProvider.get_tracer`; None goes back to the global provider, if one is set.

    Raises GlideMQValidationError for what is no tracer.
    """
    if tracer is not None and not callable(getattr(tracer, "start_span", None)):
        raise GlideMQValidationError("tracer", tracer, "must be a tracer, from TracerProvider.get_tracer")
    TELEMETRY.set_tracer(tracer)


def is_tracing_enabled() -> bool:
    """True if spans are made: a tracer or a global tracer provider is set."""
    TELEMETRY.look()
    return TELEMETRY.tracer is not None
