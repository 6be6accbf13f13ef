"""Telemetry state of the process. Without a tracer or meter, `TELEMETRY.on` is False and nothing is recorded."""

from __future__ import annotations

import os
import sys
from typing import Final

from opentelemetry.trace import Tracer

from glidemq_py._client.failures import observe_interruptions
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.telemetry.names import SCHEMA_URL, TRACER_NAME, Meter

__all__ = ["TELEMETRY", "Telemetry", "is_tracing_enabled", "set_tracer"]

_PROXIES: Final = frozenset({"ProxyTracerProvider", "NoOpTracerProvider", "_ProxyMeterProvider", "NoOpMeterProvider"})
"""Types of OpenTelemetry's global providers if none is set."""


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
        observe_interruptions(self._interrupted)

    def _interrupted(self, reason: str) -> None:
        for meter in self.meters:
            meter.interrupted(reason)

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

            tracer = trace.get_tracer(TRACER_NAME, schema_url=SCHEMA_URL)
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
