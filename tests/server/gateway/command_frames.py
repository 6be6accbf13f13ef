"""Frames generated from the table of commands: good, without a field, with a value of another type, extreme."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

from glidemq_py.gateway.commands import COMMANDS
from glidemq_py.gateway.table import Command, Field, Kind

__all__ = ["EXTREMES", "GOOD", "OTHER_TYPES", "bad_frames", "beyond", "named_in", "random_command", "random_value"]

GOOD: Final[Mapping[str, Mapping[str, Any]]] = {
    "Hello": {"protocolVersion": 2, "capabilities": ["pipelining"]},
    "PUSH": {"queue": "$queue", "name": "n", "data": {"a": 1}, "priority": 5, "maxAttempts": 2, "tags": ["t"]},
    "PUSHB": {"queue": "$queue", "jobs": [{"data": 1}, {"name": "n", "data": None, "delay": 60_000}]},
    "PULL": {"queue": "$queue", "timeout": 0, "owner": "w", "lockTtl": 30_000},
    "PULLB": {"queue": "$queue", "count": 2, "timeout": 0, "owner": "w"},
    "ACK": {"id": "$active", "token": "$token", "result": {"r": 1}},
    "ACKB": {"ids": ["$active"], "tokens": ["$token"], "results": [1]},
    "FAIL": {"id": "$active", "token": "$token", "error": "on purpose", "stack": ["at a"]},
    "PUSHF": {"jobs": [{"id": "$new", "queue": "$queue", "input": {"name": "n", "data": {"a": 1}}}]},
    "UpdateParent": {"childId": "$waiting", "parentId": "$delayed"},
    "RemoveChildDependency": {"id": "$child"},
    "RemoveUnprocessedChildren": {"id": "$parent"},
    "GetChildrenValues": {"id": "$parent"},
    "GetFailedChildrenValues": {"id": "$parent"},
    "GetIgnoredChildrenFailures": {"id": "$parent"},
    "GetJob": {"id": "$waiting"},
    "GetJobByCustomId": {"customId": "$chosen"},
    "GetState": {"id": "$waiting"},
    "GetResult": {"id": "$completed"},
    "GetProgress": {"id": "$active"},
    "Cancel": {"id": "$waiting"},
    "Progress": {"id": "$active", "progress": 50, "message": "half"},
    "Update": {"id": "$waiting", "data": {"b": 2}},
    "ChangePriority": {"id": "$waiting", "priority": 7},
    "ChangeDelay": {"id": "$delayed", "delay": 5_000},
    "MoveToDelayed": {"id": "$active", "token": "$token", "delay": 5_000},
    "MoveToWaitingChildren": {"id": "$active", "token": "$token"},
    "WaitJob": {"id": "$completed", "timeout": 10},
    "Promote": {"id": "$delayed"},
    "Discard": {"id": "$waiting"},
    "MoveToWait": {"id": "$active", "token": "$token"},
    "Clean": {"queue": "$queue", "grace": 0, "state": "completed", "limit": 10},
    "TrimEvents": {"queue": "$queue", "maxLength": 100},
    "GetJobs": {"queue": "$queue", "state": ["waiting", "delayed"], "limit": 10, "offset": 0, "asc": False},
    "PromoteJobs": {"queue": "$queue", "count": 1},
    "Dlq": {"queue": "$queue", "count": 5, "filter": {"reason": "max_attempts_exceeded"}},
    "RetryDlq": {"queue": "$queue", "jobId": "$failed"},
    "RetryCompleted": {"queue": "$queue", "id": "$completed"},
    "RemoveDlqJob": {"queue": "$queue", "jobId": "$failed"},
    "SetDlqConfig": {"queue": "$queue", "config": {"autoRetry": True, "maxEntries": 100}},
    "SetStallConfig": {"queue": "$queue", "config": {"maxStalls": 2, "stallInterval": 30_000}},
    "Cron": {"name": "$queue", "queue": "$queue", "data": {}, "repeatEvery": 3_600_000, "jobName": "tick"},
    "CronDelete": {"name": "$cron"},
    "CronGet": {"name": "$cron"},
    "JobHeartbeat": {"id": "$active", "token": "$token", "duration": 30_000},
    "JobHeartbeatB": {"ids": ["$active"], "tokens": ["$token"]},
    "ExtendLock": {"id": "$active", "token": "$token", "duration": 30_000},
    "ExtendLocks": {"ids": ["$active"], "tokens": ["$token"], "durations": [30_000]},
    "RateLimit": {"queue": "$queue", "limit": 1_000, "duration": 1_000, "ttl": 60_000},
    "SetConcurrency": {"queue": "$queue", "limit": 100},
    "GetQueueLimits": {"queue": "$queue", "maxJobs": 1},
    "SetGroupRateLimit": {"queue": "$queue", "groupId": "g", "max": 100, "duration": 1_000},
    "SetGroupConcurrency": {"queue": "$queue", "groupId": "g", "concurrency": 10},
    "RateLimitGroup": {"queue": "$queue", "groupId": "g", "duration": 1},
    "GetDeduplicationJobId": {"queue": "$queue", "deduplicationId": "d"},
    "RemoveDeduplicationKey": {"queue": "$queue", "deduplicationId": "d"},
    "RemoveJobDeduplicationKey": {"id": "$waiting"},
    "AddLog": {"id": "$waiting", "message": "m", "level": "warn"},
    "GetLogs": {"id": "$waiting", "start": 0, "end": -1},
    "ClearLogs": {"id": "$waiting", "keepLogs": 1},
    "RegisterWorker": {"name": "w", "queues": ["$queue"], "workerId": "$worker", "pid": 1},
    "UnregisterWorker": {"workerId": "$worker"},
    "ListWorkers": {"queue": "$queue"},
    "Heartbeat": {"id": "$worker", "activeJobs": 1, "processed": 2, "failed": 0},
    "AddWebhook": {"url": "https://hooks.invalid/a", "events": ["job.completed"], "queue": "$queue", "secret": "s"},
    "RemoveWebhook": {"webhookId": "$webhook"},
    "SetWebhookEnabled": {"id": "$webhook", "enabled": False},
    "Metrics": {"queue": "$queue", "type": "completed", "start": 0, "end": -1},
}  # fmt: skip
"""The fields of a good frame of each command; `$...` are the queue and jobs of that state. Default: the required."""

OTHER_TYPES: Final[tuple[Any, ...]] = (True, 7, 1.5, "text", b"bytes", [], ["a"], [1], {}, {"a": 1})
_FITTING: Final[Mapping[Kind, tuple[type, ...]]] = {
    Kind.TEXT: (str,), Kind.QUEUE: (str,), Kind.STRICT_QUEUE: (str,), Kind.NUMBER: (int, float),
    Kind.INTEGER: (int,), Kind.POSITIVE: (int,), Kind.FLAG: (bool,), Kind.TEXTS: (list,), Kind.LIST: (list,),
    Kind.MAP: (dict,),
}  # fmt: skip
EXTREMES: Final[tuple[Any, ...]] = (
    0, -1, 2**31, 2**53, -(2**63), 2**64 - 1, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"), "",
    "x" * 257, "x" * 70_000, "\x00", "a\r\nb", "{a}", "é" * 128, "\U0001f600" * 128, "../..", "%3A%25", "*", b"",
    b"\xff" * 257, [None] * 2_000, [[[[[[]]]]]], {"": None}, {"__proto__": 1}, {str(n): n for n in range(500)},
)  # fmt: skip


def good_fields(command: Command, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a frame that is executed, with the queue and jobs of `values` by name."""
    fields = GOOD.get(command.name)
    if fields is None:
        fields = {field.name: f"${field.name}" for field in command.fields if field.required}
    return {name: _filled(value, values) for name, value in fields.items()}


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and value.startswith("$"):
        return values[value[1:]]
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    if isinstance(value, dict):
        return {name: _filled(each, values) for name, each in value.items()}
    return value


def beyond(field: Field) -> Iterator[Any]:
    """Yield values of the right type that are outside the limits of a field."""
    if field.kind in (Kind.NUMBER, Kind.INTEGER, Kind.POSITIVE):
        yield from (float("nan"), float("inf"), float("-inf"))
        if field.minimum is not None:
            yield from (field.minimum - 1, -1e300)
        if field.maximum is not None and field.maximum < 2**53:
            yield from (field.maximum + 1, 1e300, 2**64 - 1)
        if field.kind is not Kind.NUMBER:
            yield 1.5
    elif field.kind is Kind.TEXT:
        if field.minimum:
            yield ""
        if field.maximum is not None:
            yield "x" * (int(field.maximum) + 1)
    elif field.kind in (Kind.QUEUE, Kind.STRICT_QUEUE):
        yield from ("", "q" * 257, "a{b}")
        if field.kind is Kind.STRICT_QUEUE:
            yield from ("a b", "a\x00", "é")
    elif field.kind is Kind.TEXTS:
        yield from ([1], ["a", None], [["a"]])


def bad_frames(command: Command, good: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], Field]]:
    """Yield frames that must be rejected: a description, the fields, and the field that the error must name."""
    for field in command.fields:
        if field.required:
            yield f"without {field.name}", {name: value for name, value in good.items() if name != field.name}, field
            yield f"{field.name} null", {**good, field.name: None}, field
        fitting = _FITTING.get(field.kind)
        if fitting is not None:
            for value in OTHER_TYPES:
                is_flag = isinstance(value, bool)
                if is_flag != (field.kind is Kind.FLAG) or not isinstance(value, fitting):
                    yield f"{field.name} = {value!r}", {**good, field.name: value}, field
        for value in beyond(field):
            yield f"{field.name} = {str(value)[:20]}", {**good, field.name: value}, field


def named_in(error: str, field: Field) -> bool:
    """Return whether an error names a field; those of queues are recorded texts of the protocol."""
    if field.kind in (Kind.QUEUE, Kind.STRICT_QUEUE):
        return error.startswith("Queue name ")
    return field.name in error


# -- fuzzing -----------------------------------------------------------------------------------------------------


def random_value(pick: random.Random, depth: int = 0) -> Any:
    """Return any value, seldom a large one."""
    chance = pick.random()
    if chance < 0.3:
        return pick.choice(OTHER_TYPES)
    if chance < 0.5:
        return pick.choice(EXTREMES)
    if chance < 0.65:
        return pick.choice((0, 1, -1, 2, 10, 0.5, 1e12, 2**40))
    if chance < 0.8:
        return "".join(
            chr(pick.choice((pick.randrange(128), pick.randrange(0xD800)))) for _ in range(pick.randrange(12))
        )
    if depth > 3:
        return None
    if chance < 0.9:
        return [random_value(pick, depth + 1) for _ in range(pick.randrange(4))]
    return {
        pick.choice(("a", "name", "data", "id", "queue", 1, "ttl")): random_value(pick, depth + 1)
        for _ in range(pick.randrange(4))
    }


_SLOW: Final = frozenset({"timeout"})
"""Fields that may let a command wait: fuzzed frames keep their short values."""


def random_command(pick: random.Random, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a frame of a random command: good, or with some fields changed, missing or added."""
    command = pick.choice(tuple(COMMANDS.values()))
    frame: dict[str, Any] = {"cmd": command.name, **good_fields(command, values)}
    if command.name == "WaitJob":
        frame["timeout"] = 1
    for field in command.fields:
        chance = pick.random()
        if field.name in _SLOW or chance > 0.3:
            continue
        if chance < 0.05:
            frame.pop(field.name, None)
        elif chance < 0.15:
            outside = list(beyond(field))
            frame[field.name] = pick.choice(outside) if outside else random_value(pick)
        else:
            frame[field.name] = random_value(pick)
    if pick.random() < 0.05:
        frame[pick.choice(("extra", "__proto__", "toString", ""))] = random_value(pick)
    return frame
