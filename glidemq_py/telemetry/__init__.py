"""Telemetry: OpenTelemetry spans and metrics, and a Prometheus collector.

Nothing here reaches into queues or workers: they tell it what they do, where `TELEMETRY.on` says that somebody listens.
Importing this package loads neither OpenTelemetry nor prometheus-client.
"""

from glidemq_py.telemetry.state import is_tracing_enabled, set_tracer

__all__ = ["is_tracing_enabled", "set_tracer"]
