"""Propagation of the trace context from the producer to the handler, in the key ``otel`` of the opts JSON.

Peers that do not support the key ignore it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

__all__ = ["CONTEXT_START", "carrier_of", "context_of", "with_context", "without_context"]

CONTEXT_START: Final = '{"otel":{'
"""Start of opts JSON with a context written by `with_context`."""


def carrier_of(span: Span) -> str:
    """Return the context of a span as JSON text, or '' if the propagators write nothing.

    It contains ``traceparent``, ``tracestate`` and other fields of the propagators.
    """
    from opentelemetry import propagate, trace

    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    if not carrier:
        return ""
    # Without a closing brace inside, so that `without_context` can remove it without parsing.
    return "{" + json.dumps(carrier, separators=(",", ":"))[1:-1].replace("}", "\\u007d") + "}"


def with_context(opts: str, carrier: str) -> str:
    """Return the opts JSON with the context added, in place of another one."""
    opts = without_context(opts) if opts.startswith(CONTEXT_START) else opts
    return f'{{"otel":{carrier}}}' if opts == "{}" else f'{{"otel":{carrier},{opts[1:]}'


def without_context(opts: str) -> str:
    """Return the opts JSON without the context: similar jobs then have identical texts, which are cached."""
    end = opts.find("}", len(CONTEXT_START))
    rest = opts[end + 1 :]
    return "{" + rest[1:] if rest.startswith(",") else "{}"


def context_of(opts: Mapping[str, Any]) -> Context | None:
    """Return the context in stored options, or None."""
    carrier: Any = opts.get("otel")
    if not isinstance(carrier, dict) or not carrier:
        return None
    from opentelemetry import propagate

    pairs = cast("dict[object, object]", carrier)
    return propagate.extract({str(key): str(value) for key, value in pairs.items()})
