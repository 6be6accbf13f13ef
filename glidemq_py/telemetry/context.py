"""The context of a trace, carried from whoever adds a job to the handler that runs it: key ``otel`` of the opts JSON.

Peers that do not know the key leave it alone (wrinkles.md W90).
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
"""How opts begin into which a context was written by us."""


def carrier_of(span: Span) -> str:
    """The context of a span as JSON text: ``traceparent``, ``tracestate`` and what else the propagators write; '' if
    they write nothing."""
    from opentelemetry import propagate, trace

    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    if not carrier:
        return ""
    # No brace within, so that it can be cut out without being parsed.
    return "{" + json.dumps(carrier, separators=(",", ":"))[1:-1].replace("}", "\\u007d") + "}"


def with_context(opts: str, carrier: str) -> str:
    """Opts JSON that bears the context."""
    return f'{{"otel":{carrier}}}' if opts == "{}" else f'{{"otel":{carrier},{opts[1:]}'


def without_context(opts: str) -> str:
    """Opts JSON as it was before `with_context`: so that those of one kind are the same text again."""
    end = opts.find("}", len(CONTEXT_START))
    rest = opts[end + 1 :]
    return "{" + rest[1:] if rest.startswith(",") else "{}"


def context_of(opts: Mapping[str, Any]) -> Context | None:
    """The context that stored options bear; None where they bear none."""
    carrier: Any = opts.get("otel")
    if not isinstance(carrier, dict) or not carrier:
        return None
    from opentelemetry import propagate

    pairs = cast("dict[object, object]", carrier)
    return propagate.extract({str(key): str(value) for key, value in pairs.items()})
