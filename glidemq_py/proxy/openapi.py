"""Generate the OpenAPI document from the tables of endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from glidemq_py.proxy.endpoint import Endpoint
from glidemq_py.proxy.schemas import FLOW_ID, FLOW_JOB, FLOW_TREE, JOB_ID, QUEUE_NAME, SCHEDULER_NAME, TEXT, record

__all__ = ["document"]

_PARAMETERS: Final = {"name": QUEUE_NAME, "id": JOB_ID, "scheduler": SCHEDULER_NAME, "flow": FLOW_ID}
_REFUSALS: Final = {
    400: "The request is invalid; `error` names the member and the reason.",
    408: "The body was not complete in time.",
    415: "The content type is not application/json.",
    401: "The bearer token is missing or wrong.",
    403: "The queue is not available through the proxy, or the request comes from another site.",
    404: "The object does not exist.",
    405: "The path does not support the method.",
    409: "A job with this id already exists.",
    413: "The body, or the stored job, is too large.",
    500: "The awaited job failed, or an internal error occurred.",
    503: "The server is unreachable or out of memory, the proxy is closing, or the scheduler is locked.",
    504: "The wait timed out.",
}
_REFUSAL: Final = record(["error", "code"], error=TEXT, code=TEXT)


def document(endpoints: Iterable[Endpoint], *, version: str, secured: bool) -> dict[str, Any]:
    """Return the OpenAPI document.

    Args:
        endpoints: all endpoints.
        version: version of the package.
        secured: whether requests need a token.
    """
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, secured)
    components: dict[str, Any] = {"schemas": {"Refusal": _REFUSAL, "FlowJob": FLOW_JOB, "FlowTree": FLOW_TREE}}
    if secured:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "glidemq_py proxy", "version": version, "description": "A job queue over HTTP."},
        "paths": paths,
        "components": components,
    }


def _operation(endpoint: Endpoint, secured: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": endpoint.run.__name__.strip("_"), "summary": endpoint.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": _PARAMETERS[name]}
              for name in re.findall(r"{(\w+)}", endpoint.path)),
            *({"name": name, "in": "query", "required": name in endpoint.needed, "schema": schema}
              for name, schema in endpoint.query.items()),
        ],
        "responses": _responses(endpoint),
    }  # fmt: skip
    if endpoint.body is not None:
        content = {"application/json": {"schema": endpoint.body, "example": endpoint.example}}
        found["requestBody"] = {"required": endpoint.body_needed, "content": content}
    if secured and not endpoint.open:
        found["security"] = [{"token": []}]
    return found


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, schema in endpoint.answers.items():
        if schema is None:
            content: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
        else:
            content = {"application/json": {"schema": schema}}
        found[str(status)] = {"description": "Success." if status < 300 else "", "content": content}
    refusal = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    for status, text in _REFUSALS.items():
        found[str(status)] = {"description": text, "content": refusal}
    return found
