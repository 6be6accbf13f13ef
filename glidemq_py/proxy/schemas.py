"""JSON Schemas of requests and responses, used in the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from glidemq_py._core.job_states import JobCounts
from glidemq_py.proxy.camel import camel
from glidemq_py.proxy.endpoint import Schema

__all__ = [
    "AS_TEXT", "BOOLEAN", "BUDGET", "COUNT", "COUNTS", "CURSOR", "DATA", "END", "ENTRY", "ENTRY_ID", "FLAG",
    "FLOW_BUDGET", "FLOW_ID", "FLOW_JOB", "FLOW_MEMBER", "FLOW_NODE", "FLOW_REF", "FLOW_SUMMARY", "FLOW_TREE",
    "FLOW_USAGE", "INTEGER", "JOB", "JOB_ID", "JOB_NAME", "JOB_OPTIONS", "LETTER", "LIMIT", "METRICS", "NEXT",
    "PLACE", "PUBLISH_OPTIONS", "QUEUE_NAME", "RATE_LIMIT", "SCHEDULE", "SCHEDULER_NAME", "SUSPENDED", "TEXT",
    "USAGE", "USAGE_SUMMARY", "WAIT_OPTIONS", "WORKER", "listed", "record", "schema_of",
]  # fmt: skip

TEXT: Final[Schema] = {"type": "string"}
INTEGER: Final[Schema] = {"type": "integer"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
DATA: Final[Schema] = {"description": "Any JSON value."}
FLAG: Final[Schema] = {"type": "boolean", "default": False}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
PLACE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**53}
LIMIT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 100}
CURSOR: Final[Schema] = {
    "type": "string", "pattern": "^[A-Za-z0-9_-]{6,4096}$", "description": "The cursor of the previous page.",
}  # fmt: skip
END: Final[Schema] = {"type": "integer", "minimum": -1, "maximum": 2**53}
_MS: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 315_360_000_000}
_MS_POSITIVE: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 315_360_000_000}
_NUMBER: Final[Schema] = {"type": "number"}

QUEUE_NAME: Final[Schema] = {
    "type": "string", "minLength": 1, "maxLength": 256, "pattern": r"^[^{}:*?\[\]\\/\x00-\x1f\x7f]+$",
}  # fmt: skip
JOB_ID: Final[Schema] = {
    "type": "string", "minLength": 1, "maxLength": 256, "pattern": r"^[^{}:/\x00-\x1f\x7f]+$",
}  # fmt: skip
SCHEDULER_NAME: Final[Schema] = {
    "type": "string", "minLength": 1, "maxLength": 256, "pattern": r"^[^/\x00-\x1f\x7f]+$",
}  # fmt: skip
FLOW_ID: Final[Schema] = {
    "type": "string", "minLength": 1, "maxLength": 256, "pattern": r"^[^{}/\x00-\x1f\x7f]+$",
}  # fmt: skip
JOB_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 1024}
ENTRY_ID: Final[Schema] = {"type": "string", "pattern": r"^[0-9]{1,19}(-[0-9]{1,19})?$"}


def record(needed: list[str] | None = None, /, **members: Schema) -> dict[str, Any]:
    """Return the schema of an object with these members and no others."""
    found: dict[str, Any] = {"type": "object", "properties": members, "additionalProperties": False}
    if needed:
        found["required"] = needed
    return found


def listed(schema: Schema, most: int | None = None) -> dict[str, Any]:
    """Return the schema of an array."""
    found: dict[str, Any] = {"type": "array", "items": schema}
    if most is not None:
        found["maxItems"] = most
    return found


def schema_of(name: str) -> dict[str, Any]:
    """Return a reference to a schema among the components of the document, which allows recursion."""
    return {"$ref": f"#/components/schemas/{name}"}


def _or_none(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


NEXT: Final[Schema] = {"anyOf": [CURSOR, {"type": "null"}], "description": "Where to continue; null = the end."}
AS_TEXT: Final[Schema] = {
    **listed(TEXT), "description": "Members that are given as JSON text because they are nested too deeply.",
}  # fmt: skip

RATE_LIMIT: Final[Schema] = record(
    ["max", "duration"], max={"type": "integer", "minimum": 1, "maximum": 2**31 - 1}, duration=_MS_POSITIVE
)
_RETENTION: Final[Schema] = {
    "anyOf": [
        BOOLEAN,
        {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        {
            **record(
                age={"type": "integer", "minimum": 1, "maximum": 315_360_000},
                count={"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
            ),
            "minProperties": 1,
        },
    ]
}
_BACKOFF: Final[Schema] = {
    "anyOf": [
        _MS,
        record(
            ["type"],
            type={"type": "string", "minLength": 1, "maxLength": 128},
            delay=_MS,
            maxDelay=_MS,
            jitter={"type": "number", "minimum": 0, "maximum": 1},
        ),
    ]
}
_KEY: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 256}
_OPTIONS: Final[dict[str, Schema]] = {
    "jobId": JOB_ID,
    "delay": _MS,
    "priority": {"type": "integer", "minimum": 0, "maximum": 2047},
    "attempts": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
    "backoff": _BACKOFF,
    "timeout": _MS_POSITIVE,
    "removeOnComplete": _RETENTION,
    "removeOnFail": _RETENTION,
    "deduplication": record(["id"], id=_KEY, ttl=_MS_POSITIVE, mode={"enum": ["simple", "throttle", "debounce"]}),
    "ttl": _MS_POSITIVE,
    "lockDuration": {"type": "integer", "minimum": 1_000, "maximum": 86_400_000},
    "ordering": record(
        ["key"],
        key=_KEY,
        concurrency={"type": "integer", "minimum": 1, "maximum": 1_000_000},
        rateLimit=RATE_LIMIT,
        tokenBucket=record(["capacity", "refillRate"], capacity=_NUMBER, refillRate=_NUMBER),
    ),
    "cost": {"type": "number", "minimum": 0.001, "maximum": 1e9},
    "lifo": BOOLEAN,
}
JOB_OPTIONS: Final[Schema] = record(None, **_OPTIONS)
WAIT_OPTIONS: Final[Schema] = record(
    None,
    **{name: schema for name, schema in _OPTIONS.items() if not name.startswith("removeOn")},
    waitTimeout={"type": "integer", "minimum": 1, "maximum": 600_000, "default": 30_000},
)

_MOMENT: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**42 - 1}
_TIMES: Final[dict[str, Schema]] = {
    "every": _MS_POSITIVE,
    "pattern": {"type": "string", "minLength": 1},
    "repeatAfterComplete": _MS_POSITIVE,
    "tz": {"type": "string", "minLength": 1},
    "startDate": _MOMENT,
    "endDate": _MOMENT,
    "limit": {"type": "integer", "minimum": 1, "maximum": 2**53 - 1},
    "misfire": {"enum": ["fire_once", "fire_all", "skip"]},
    "dayMatch": {"enum": ["and", "or"]},
}
SCHEDULE: Final[Schema] = {
    **record(None, **_TIMES, immediately=BOOLEAN),
    "description": "Exactly one of every, pattern and repeatAfterComplete; milliseconds, and epoch milliseconds.",
}
ENTRY: Final[Schema] = record(
    None, **_TIMES, template={"type": "object"}, nextRun=INTEGER, lastRun=INTEGER, iterationCount=COUNT, lastJobId=TEXT
)

PUBLISH_OPTIONS: Final = record(
    None,
    **{name: _OPTIONS[name] for name in ("jobId", "delay", "attempts", "backoff", "timeout", "ttl")},
    deduplication=record(["id", "mode"], id=_KEY, ttl=_MS_POSITIVE, mode={"enum": ["throttle"]}),
)
_FLOW_OPTIONS: Final = record(None, **{name: each for name, each in _OPTIONS.items() if name != "deduplication"})
_FLOW_MEMBERS: Final[dict[str, Schema]] = {
    "name": JOB_NAME, "queueName": QUEUE_NAME, "data": DATA, "opts": _FLOW_OPTIONS
}  # fmt: skip
FLOW_JOB: Final[Schema] = record(["name", "queueName"], **_FLOW_MEMBERS, children=listed(schema_of("FlowJob")))
FLOW_NODE: Final[Schema] = record(["name", "queueName"], **_FLOW_MEMBERS, deps=listed(TEXT))
FLOW_REF: Final[Schema] = record(["id", "queueName"], id=TEXT, queueName=TEXT, name=_or_none(TEXT))
_LIMIT: Final[Schema] = {"type": "number", "exclusiveMinimum": 0, "maximum": 2**53}
_LIMITS: Final[Schema] = {"type": "object", "additionalProperties": _LIMIT}
BUDGET: Final[Schema] = record(
    None, maxTotalTokens=_LIMIT, maxTokens=_LIMITS, maxTotalCost=_LIMIT, maxCosts=_LIMITS,
    tokenWeights={"type": "object", "additionalProperties": {"type": "number", "minimum": 0, "maximum": 2**53}},
    costUnit={"type": "string", "minLength": 1, "maxLength": 32}, onExceeded={"enum": ["fail", "pause"]},
)  # fmt: skip

_AMOUNTS: Final[Schema] = {"type": "object", "additionalProperties": _NUMBER}
USAGE: Final[Schema] = record(
    model=_or_none(TEXT), provider=_or_none(TEXT), tokens=_AMOUNTS, totalTokens=_NUMBER, costs=_AMOUNTS,
    totalCost=_NUMBER, costUnit=_or_none(TEXT), latencyMs=_or_none(_NUMBER), cached=_or_none(BOOLEAN),
)  # fmt: skip
_SUMS: Final[dict[str, Schema]] = {
    "jobCount": COUNT, "tokens": _AMOUNTS, "totalTokens": _NUMBER, "costs": _AMOUNTS, "totalCost": _NUMBER,
    "costUnit": _or_none(TEXT), "models": {"type": "object", "additionalProperties": COUNT},
}  # fmt: skip
FLOW_USAGE: Final[Schema] = record(list(_SUMS), **_SUMS)
USAGE_SUMMARY: Final[Schema] = record(
    ["startTime", "endTime", "bucketSizeMs", "queues", "perQueue", *_SUMS], startTime=INTEGER, endTime=INTEGER,
    bucketSizeMs=INTEGER, queues=listed(TEXT), **_SUMS,
    perQueue={"type": "object", "additionalProperties": FLOW_USAGE},
)  # fmt: skip
_FLOW_BUDGET: Final[dict[str, Schema]] = {
    "maxTotalTokens": _or_none(_NUMBER), "maxTokens": _AMOUNTS, "tokenWeights": _AMOUNTS,
    "maxTotalCost": _or_none(_NUMBER), "maxCosts": _AMOUNTS, "costUnit": _or_none(TEXT), "onExceeded": TEXT,
    "usedTokens": _NUMBER, "usedCost": _NUMBER, "usedTokensByCategory": _AMOUNTS, "usedCostsByCategory": _AMOUNTS,
    "exceeded": BOOLEAN,
}  # fmt: skip
FLOW_BUDGET: Final[Schema] = record(list(_FLOW_BUDGET), **_FLOW_BUDGET)
_FLOW_NODE: Final[dict[str, Schema]] = {
    "id": TEXT, "queueName": TEXT, "name": _or_none(TEXT), "state": _or_none(TEXT), "timestamp": INTEGER,
    "attemptsMade": INTEGER, "progress": DATA, "failedReason": _or_none(TEXT), "processedOn": _or_none(INTEGER),
    "finishedOn": _or_none(INTEGER),
}  # fmt: skip
FLOW_MEMBER: Final[Schema] = record(list(_FLOW_NODE), **_FLOW_NODE, asText=AS_TEXT)
FLOW_TREE: Final[Schema] = record(
    ["id", "queueName"], **_FLOW_NODE, asText=AS_TEXT, children=listed(schema_of("FlowTree")), more={"const": True}
)
FLOW_SUMMARY: Final[dict[str, Schema]] = {
    "flowId": TEXT, "kind": {"enum": ["tree", "dag"]}, "createdAt": INTEGER,
    "counts": {"type": "object", "additionalProperties": COUNT}, "roots": listed(FLOW_REF), "usage": FLOW_USAGE,
    "budget": _or_none(FLOW_BUDGET),
}  # fmt: skip

_SIGNAL: Final[Schema] = record(name=TEXT, data=DATA, receivedAt=INTEGER, asText=AS_TEXT)
SUSPENDED: Final[Schema] = record(
    reason=_or_none(TEXT), suspendedAt=INTEGER, timeout=_or_none(INTEGER), signals=listed(_SIGNAL)
)
JOB: Final[Schema] = record(
    ["id", "name"],
    id=TEXT, name=TEXT, data=DATA, opts={"type": "object"}, timestamp=INTEGER, attemptsMade=INTEGER,
    state=_or_none(TEXT), progress=DATA, returnvalue=DATA, failedReason=_or_none(TEXT), finishedOn=_or_none(INTEGER),
    processedOn=_or_none(INTEGER), parentId=_or_none(TEXT), parentQueue=_or_none(TEXT), usage=_or_none(USAGE),
    suspend=_or_none(SUSPENDED), asText=AS_TEXT,
)  # fmt: skip
LETTER: Final[Schema] = record(
    id=TEXT, name=TEXT, data=DATA, originalQueue=TEXT, originalJobId=TEXT, failedReason=_or_none(TEXT),
    attemptsMade=INTEGER, timestamp=INTEGER, asText=AS_TEXT,
)  # fmt: skip
COUNTS: Final[Schema] = record(None, **{name: BOOLEAN if name == "paused" else COUNT for name in camel(JobCounts())})
METRICS: Final[Schema] = record(
    count=COUNT, data=listed(record(timestamp=INTEGER, count=COUNT, avgDuration=COUNT)),
    meta=record(resolution=TEXT),
)  # fmt: skip
WORKER: Final[Schema] = record(id=TEXT, addr=TEXT, pid=INTEGER, startedAt=INTEGER, age=INTEGER, activeJobs=INTEGER)
