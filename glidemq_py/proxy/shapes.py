"""Convert between the JSON of the protocol (camelCase) and Python values."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from glidemq_py._core.checks import reject_unknown
from glidemq_py._features.usage.calls import JobUsage
from glidemq_py._job import Job
from glidemq_py.errors import GlideMQError, GlideMQValidationError
from glidemq_py.proxy.camel import camel
from glidemq_py.proxy.schemas import JOB_OPTIONS

__all__ = ["dead_letter_shape", "job_options", "job_shape", "members_of", "name_and_data", "snake"]

_NO_VALUE: Final = "must have a value or be omitted"
_HUMP: Final = re.compile(r"(?<=[a-z])([A-Z])")
_NESTED: Final = ("backoff", "removeOnComplete", "removeOnFail", "deduplication", "ordering")
_KNOWN: Final = tuple(JOB_OPTIONS["properties"])


def snake(name: str) -> str:
    """Return a camelCase name in snake case."""
    return _HUMP.sub(r"_\1", name).lower()


def members_of(given: Any, where: str, known: Collection[str]) -> dict[str, Any]:
    """Return an object of a request if all its members are known and not null.

    Raises:
        GlideMQValidationError: if a member is unknown or null.
    """
    if not isinstance(given, dict):
        raise GlideMQValidationError(where, given, "must be an object")
    members = cast("dict[str, Any]", given)
    for name, value in members.items():
        if name not in known:
            reject_unknown(f"{where}.{name}", value, known)
        if value is None:
            raise GlideMQValidationError(f"{where}.{name}", None, _NO_VALUE)
    return members


def _snake(value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        return value
    members = cast("dict[str, Any]", value)
    for name, each in members.items():
        if each is None:
            raise GlideMQValidationError(f"{where}.{name}", None, _NO_VALUE)
    return {snake(name): _snake(each, f"{where}.{name}") for name, each in members.items()}


def job_options(body: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return the member ``opts`` of a request as keyword options of `Queue.add`.

    Raises:
        GlideMQValidationError: if it is not an object, or an option is unknown or null.
    """
    if "opts" not in body:
        return {}
    place = f"{where}opts"
    options = members_of(body["opts"], place, _KNOWN)
    return {
        snake(name): _snake(value, f"{place}.{name}") if name in _NESTED else value for name, value in options.items()
    }


def name_and_data(body: Mapping[str, Any], where: str = "") -> tuple[str, Any]:
    """Return the name and data of a job to add."""
    if "name" not in body:
        raise GlideMQValidationError(f"{where}name", None, "is required")
    return body["name"], body.get("data")


def job_shape(job: Job[Any, Any], *, with_data: bool = True) -> dict[str, Any]:
    """Return a job as JSON. Values that cannot be decoded are their stored text, and listed in ``asText``."""
    found: dict[str, Any] = {
        "id": job.id, "name": job.name, "opts": job.opts, "timestamp": job.timestamp,
        "attemptsMade": job.attempts_made, "state": job.state, "progress": job.progress,
        "failedReason": job.failed_reason, "finishedOn": job.finished_on, "processedOn": job.processed_on,
        "parentId": job.parent_id, "parentQueue": job.parent_queue, "usage": _usage_shape(job.usage),
    }  # fmt: skip
    if with_data:
        for name, stored in (("data", job._data_text), ("returnvalue", job._result_text)):
            try:
                found[name] = getattr(job, name)
            except GlideMQError:
                found[name] = stored
                found["asText"] = [*found.get("asText", ()), name]
    return found


def _usage_shape(usage: JobUsage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    shape: dict[str, Any] = camel(usage)
    shape["latencyMs"] = shape.pop("latency")
    return shape


def dead_letter_shape(letter: Job[Any, Any]) -> dict[str, Any]:
    """Return a dead-letter entry as JSON."""
    envelope = cast("dict[str, Any]", letter.data)
    return {
        "id": letter.id, "name": letter.name, "data": envelope.get("data"),
        "originalQueue": str(envelope.get("originalQueue", "")),
        "originalJobId": str(envelope.get("originalJobId", "")),
        "failedReason": envelope.get("failedReason"), "attemptsMade": envelope.get("attemptsMade") or 0,
        "timestamp": letter.timestamp,
    }  # fmt: skip
