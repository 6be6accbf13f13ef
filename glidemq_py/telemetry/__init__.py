"""Telemetry: OpenTelemetry spans and metrics, and a Prometheus collector.

Queues and workers report to this package if `TELEMETRY.on` is set. Importing it loads neither OpenTelemetry nor
prometheus-client.
"""

from glidemq_py.telemetry.state import is_tracing_enabled, set_tracer

__all__ = ["is_tracing_enabled", "set_tracer"]
