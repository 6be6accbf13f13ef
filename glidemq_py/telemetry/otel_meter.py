"""OpenTelemetry metrics of the messaging conventions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from opentelemetry import metrics

from glidemq_py.telemetry import names
from glidemq_py.telemetry.names import Meter, Start

__all__ = ["OtelMeter", "otel_meter"]

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Bucket bounds recommended by the conventions."""


class OtelMeter(Meter):
    """A `Meter` over instruments of the global provider."""

    def __init__(self) -> None:
        meter = metrics.get_meter(names.TRACER_NAME, schema_url=names.SCHEMA_URL)
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

    def sent(
        self, queue: str, operation: str, jobs: Sequence[str], seconds: float, error: str | None,
        server: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """See `Meter`."""
        attributes = _attributes(operation, "send", queue, error, server)
        self._sent.add(len(jobs), attributes)
        self._operation.record(seconds, attributes)

    def began(self, queue: str, jobs: Sequence[Start], server: Mapping[str, Any]) -> None:
        """See `Meter`."""
        self._consumed.add(len(jobs), _attributes("process", "process", queue, None, server))

    def ran(
        self, queue: str, jobs: Sequence[Start], seconds: float, error: str | None, server: Mapping[str, Any]
    ) -> None:
        """See `Meter`."""
        self._process.record(seconds, _attributes("process", "process", queue, error, server))


def _attributes(operation: str, kind: str, queue: str, error: str | None, server: Mapping[str, Any]) -> dict[str, Any]:
    attributes = names.attributes(operation, kind, queue, server)
    if error is not None:
        attributes[names.ERROR_TYPE] = error
    return attributes


@cache
def otel_meter() -> OtelMeter:
    """Return the meter of this process; its instruments are created once."""
    return OtelMeter()
