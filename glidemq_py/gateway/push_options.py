"""Options of PUSH and PUSHB: their fields, and the options of this package that have the same effect."""

from __future__ import annotations

import asyncio
import functools
import zoneinfo
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.job_options import MAX_TRACE_LINES
from glidemq_py._core.limits import MAX_COUNT
from glidemq_py._core.logs import get_logger
from glidemq_py._core.option_values import MAX_DEPENDENCIES, MAX_TAGS, parse_tags
from glidemq_py._core.payload import PackedValue, encode_data
from glidemq_py._core.times import SECOND_MS
from glidemq_py._features.schedulers.options import check_zone
from glidemq_py.errors import (
    AmbiguousResultError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    JobNotFoundError,
    JobStateError,
    LayoutChangedError,
)
from glidemq_py.gateway.chosen_ids import engine_id
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.job_objects import UNSTARTED, check_readers, stored_value
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.table import CommandError, Field, Given, Kind, is_map, is_number

T = TypeVar("T")

MAX_BACKOFF_MS: Final = 3_600_000
_YEAR_MS: Final = 31_536_000_000
_DAY_MS: Final = 86_400_000
_ATTEMPTS: Final = 3
_BACKOFF_MS: Final = 1_000
_NAME_CHARS: Final = 256
_MOST_PRIORITY: Final = 1_000_000
_MOST_GROUP_PRIORITY: Final = 2_046
_MOST_BYTES: Final = 2**53 - 1
_FIXED_JITTER: Final = 0.2
_EXPONENTIAL_JITTER: Final = 1.0

_CONTINUE: Final = "continueParentOnFailure"
CHILD_POLICIES: Final[Mapping[str, str]] = {
    "failParentOnFailure": "fail_parent", "ignoreDependencyOnFailure": "ignore", "removeDependencyOnFailure": "remove",
}  # fmt: skip
"""The option `on_failure` of each field that sets the effect of a failed child on its parent."""
_TEMPLATE_NAMES: Final = (
    "maxAttempts",
    "backoff",
    "timeout",
    "delay",
    "removeOnComplete",
    "removeOnFail",
    "stallTimeout",
)

JOB_FIELDS: Final = (
    Kind.ANY("name"), Kind.ANY("data"), Field("jobId", minimum=1), Field("customId", minimum=1),
    Kind.INTEGER("priority", -_MOST_PRIORITY, _MOST_PRIORITY, default=0),
    Kind.NUMBER("delay", 0, _YEAR_MS, default=0),
    Kind.INTEGER("maxAttempts", 1, 1_000, default=_ATTEMPTS),
    Kind.ANY("backoff"),
    Kind.NUMBER("ttl", 0, _YEAR_MS, default=0),
    Kind.NUMBER("timeout", 0, _DAY_MS, default=0),
    Field("uniqueKey", maximum=256), Kind.MAP("dedup"), Kind.TEXTS("dependsOn"),
    Kind.TEXTS("tags"),
    Field("groupId", maximum=256), Kind.FLAG("lifo", default=False),
    Kind.ANY("removeOnComplete"), Kind.ANY("removeOnFail"), Kind.FLAG("durable", default=False),
    Kind.INTEGER("groupMaxSize", 1, MAX_COUNT),
    Field("debounceId", maximum=256), Kind.NUMBER("debounceTtl", 0, _YEAR_MS),
    Kind.INTEGER("sizeLimit", 0, _MOST_BYTES),
    Kind.NUMBER("timestamp"), Kind.ANY("keepLogs"), Kind.ANY("repeat"),
    Kind.INTEGER("stackTraceLimit", 0, MAX_TRACE_LINES),
    Kind.NUMBER("stallTimeout", 0, _DAY_MS, default=0),
    Field("parentId", minimum=1), *(Kind.FLAG(name) for name in CHILD_POLICIES),
    Kind.UNSUPPORTED("childrenIds"), Kind.FLAG(_CONTINUE),
)  # fmt: skip

_NOT_IN_FLOWS: Final = ("uniqueKey", "dedup", "debounceId", "debounceTtl", "groupMaxSize", "repeat", _CONTINUE)
FLOW_FIELDS: Final = (
    *(field for field in JOB_FIELDS if field.name not in ("childrenIds", *_NOT_IN_FLOWS)),
    Kind.TEXTS("childrenIds"), *(Kind.UNSUPPORTED(name) for name in _NOT_IN_FLOWS),
)  # fmt: skip
"""The fields of the jobs of a flow."""

TEMPLATE_FIELDS: Final = tuple(field for field in JOB_FIELDS if field.name in _TEMPLATE_NAMES)
"""The options of the jobs of a cron job."""

Push = tuple[str, Any, dict[str, Any]]
"""Name, data and options of a job to add."""


def job_name_and_data(given: Given) -> tuple[str, Any]:
    """Return name and data of a job. Clients of older protocols sent the name as a part of the data.

    Raises:
        CommandError: If the name is invalid.
    """
    name, data = given["name"], given["data"]
    if name is None:
        name = "default"
        if is_map(data) and isinstance(data.get("name"), str):
            data = dict(data)
            name = data.pop("name")
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARS:
        raise CommandError(f"Job name must be a non-empty string of at most {_NAME_CHARS} characters")
    return name, stored_value(data)


def chosen_id(given: Given) -> str | None:
    """Return the id on the wire that the client has chosen for a job.

    Raises:
        CommandError: If there are two.
    """
    first: str | None = given["jobId"]
    second: str | None = given["customId"]
    if first is not None and second is not None and first != second:
        raise CommandError("jobId and customId must be equal")
    return first if first is not None else second


async def again(add: Callable[[], Awaitable[T]], added: Callable[[], Awaitable[T | None]] | None = None) -> T:
    """Add jobs, again if the reply was lost: their ids make it safe. After the request timeout, the time is over.

    Args:
        add: Adds them.
        added: Returns the reply if the first call has added them, else None. It is asked if the second one was refused,
            as the partitions have changed meanwhile.
    """
    try:
        return await add()
    except AmbiguousResultError as lost:
        return await once_more(lost, add, added)


async def once_more(
    lost: AmbiguousResultError, add: Callable[[], Awaitable[T]], added: Callable[[], Awaitable[T | None]] | None = None
) -> T:  # fmt: skip
    """Add jobs whose first call has failed with this error; see `again`."""
    if lost.timed_out:
        raise lost
    try:
        return await add()
    except LayoutChangedError:
        found = None if added is None else await added()
        if found is None:
            raise
        return found


async def push_of(ids: JobIds, queue: str, given: Given, beside: Container[str] = ()) -> Push:
    """Return the job to add, with its id.

    Args:
        ids: Makes and reads ids.
        queue: Name of the queue.
        given: Values of `JOB_FIELDS`.
        beside: Ids on the wire that clients have chosen for jobs of the same command.

    Raises:
        CommandError: If an option is invalid.
    """
    name, data = job_name_and_data(given)
    if data.__class__ is PackedValue:
        await check_readers("data", data, await ids.open_queue(queue))
    chosen = chosen_id(given)
    options: dict[str, Any] = {"job_id": await ids.make(queue) if chosen is None else engine_id(chosen)}
    _add_common(given, options)
    if given["stackTraceLimit"] is not None:
        options["stack_trace_limit"] = given["stackTraceLimit"]
    if given["ttl"]:
        options["ttl"] = max(1, round(given["ttl"]))
    _add_order(given, options)
    _add_unique_key(given, options)
    if given["sizeLimit"] is not None:
        _check_size(data, given["sizeLimit"])
    if given["tags"]:
        options["tags"] = _tags(given["tags"])
    if given["parentId"] is not None:
        if given["uniqueKey"] is not None or given["debounceId"]:
            raise CommandError("parentId is not supported with uniqueKey or debounceId")
        if given[_CONTINUE]:
            raise CommandError(f"{_CONTINUE} is not supported yet")
        options["parent"] = await _parent(ids, given["parentId"])
        options["on_failure"] = child_policy(given)
    if given["dependsOn"]:
        needed = dict.fromkeys(given["dependsOn"])
        if chosen in needed:
            raise CommandError(f"Job cannot depend on itself: {chosen}")
        if len(needed) > MAX_DEPENDENCIES:
            raise CommandError(f"dependsOn must have at most {MAX_DEPENDENCIES} ids")
        options["depends_on"] = [
            engine_id(each) if each in beside else await _dependency(ids, queue, each) for each in needed
        ]
    return name, data, options


_KEY_FIELDS = {"fair_key": "groupId", "deduplication": "a unique key"}


def reject_two_keys(queue: Queue, fields: Given, options: Given) -> None:
    """Check that a group and a unique key do not choose different partitions; see `key_of`.

    Raises:
        CommandError: If they do.
    """
    group, unique = options.get("fair_key"), options.get("deduplication")
    if group is not None and unique is not None and unique["id"] != group:
        field = "debounceId" if fields["uniqueKey"] is None else "uniqueKey"
        raise CommandError(
            f"{field} {unique['id']!r} must equal groupId {group!r}: queue {wire_name(queue.name)!r} is partitioned, "
            "and each chooses the partition of the job"
        )


def key_of(fields: Given, options: Given) -> str | None:
    """Return the text that chooses the partition of a job; None if it has none.

    Args:
        fields: The values of `JOB_KEY_FIELDS`.
        options: The options of this package that have the same effect.
    """
    if "deduplication" in options:
        return str(options["deduplication"]["id"])
    chosen: str | None = options.get("fair_key")
    return options["job_id"] if chosen is None and chosen_id(fields) is not None else chosen


async def reject_keys(queue: Queue, options: Given, command: str) -> None:
    """Reject options that would choose the partition of jobs whose name or id chooses it.

    Args:
        queue: The queue.
        options: Options of this package.
        command: Command or option of the protocol that adds the jobs.

    Raises:
        CommandError: If the queue is partitioned, and has such options.
        GlideMQConnectionError: If the server cannot be reached.
    """
    keys = [field for option, field in _KEY_FIELDS.items() if option in options]
    if not keys:
        return
    await queue._plain_link()
    if queue._partitions is not None:
        chooses = "the id of each job" if command == "PUSHF" else "the name of the scheduler"
        raise CommandError(
            f"{command} does not support {keys[0]} in the partitioned queue {wire_name(queue.name)!r}: {chooses} "
            "chooses the partition"
        )


def template_options(own: Given, given: Given) -> dict[str, Any]:
    """Return the options of the jobs of a cron job.

    Args:
        own: Values of `TEMPLATE_FIELDS`.
        given: Has `priority`, `uniqueKey` and `dedup`.

    Raises:
        CommandError: If an option is invalid.
    """
    options: dict[str, Any] = {}
    _add_common(own, options)
    if given["priority"]:
        options["rank"] = given["priority"]
    _add_unique_key(given, options)
    return options


def _add_common(given: Given, options: dict[str, Any]) -> None:
    options["attempts"] = given["maxAttempts"]
    if given["maxAttempts"] > 1:
        backoff = _backoff(given["backoff"])
        if backoff is not None:
            options["backoff"] = backoff
    for field in ("delay", "timeout"):
        if given[field]:
            options[field] = max(1, round(given[field]))
    for field, option in (("removeOnComplete", "remove_on_complete"), ("removeOnFail", "remove_on_fail")):
        kept = _retention(field, given[field])
        if kept is not None:
            options[option] = kept
    if given["stallTimeout"]:
        options["lock_duration"] = max(SECOND_MS, round(given["stallTimeout"]))


def _add_unique_key(given: Given, options: dict[str, Any]) -> None:
    if given["uniqueKey"] is not None:
        options["deduplication"] = _deduplication(given["uniqueKey"], given["dedup"] or {})
    elif given["dedup"]:
        raise CommandError("dedup requires uniqueKey")
    elif given.get("debounceId"):
        options["deduplication"] = _deduplication(given["debounceId"], {"ttl": given["debounceTtl"]})


def _check_size(data: Any, limit: int) -> None:
    size = len(encode_data(data, limit=_MOST_BYTES).encode("utf-8", "surrogatepass"))
    if size > limit:
        raise CommandError(f"data has {size} bytes, more than sizeLimit {limit}")


def _tags(given: Sequence[str]) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(given))
    if len(tags) > MAX_TAGS:
        raise CommandError(f"tags must have at most {MAX_TAGS} tags")
    for tag in tags:
        try:
            parse_tags("tags", (tag,))
        except GlideMQValidationError as error:
            raise CommandError(f"tags[{given.index(tag)}] {error.problem}") from None
    return tags


def _add_order(given: Given, options: dict[str, Any]) -> None:
    priority, group = given["priority"], given["groupId"]
    if group is None:
        if priority:
            options["rank"] = priority
        if given["lifo"]:
            options["lifo"] = True
        return
    if not group or "\0" in group:
        raise CommandError("groupId must be a non-empty string without NUL")
    if given["lifo"]:
        raise CommandError("lifo is not supported for jobs with a groupId")
    options["fair_key"], options["priority"] = group, group_priority(priority)


def group_priority(priority: int) -> int:
    """Return the priority within a fair key that a client's ``priority`` within a group is.

    In a group the lowest number is first. Ours begin at 1, and 0 comes last.

    Raises:
        CommandError: If ``priority`` is negative or too large.
    """
    if not 0 <= priority <= _MOST_GROUP_PRIORITY:
        raise CommandError(f"priority must be 0 to {_MOST_GROUP_PRIORITY} for jobs with a groupId")
    return priority + 1


def _backoff(value: Any) -> dict[str, Any] | None:
    kind: Any = "exponential"
    delay = _BACKOFF_MS
    if is_map(value):
        kind = value.get("type")
        if kind not in ("fixed", "exponential"):
            raise CommandError("backoff.type must be 'fixed' or 'exponential'")
        if value.get("delay") is None:
            raise CommandError("backoff.delay is required")
        delay = _milliseconds("backoff.delay", value["delay"])
    elif value is not None:
        delay = _milliseconds("backoff", value)
    if not delay:
        return None
    jitter = _FIXED_JITTER if kind == "fixed" else _EXPONENTIAL_JITTER
    return {"type": kind, "delay": delay, "jitter": jitter, "max_delay": max(delay, MAX_BACKOFF_MS)}


def _milliseconds(name: str, value: Any, maximum: int = _DAY_MS) -> int:
    if not is_number(value):
        raise CommandError(f"{name} must be a number")
    if not value >= 0:
        raise CommandError(f"{name} must be at least 0")
    if value > maximum:
        raise CommandError(f"{name} must be at most {maximum}")
    return round(value)


def _deduplication(key: str, given: Mapping[Any, Any]) -> dict[str, Any]:
    if not key:
        raise CommandError("uniqueKey must not be empty")
    found: dict[str, Any] = {"id": key}
    for name, value in given.items():
        if name not in ("ttl", "extend", "replace"):
            raise CommandError(f"dedup.{name} is not supported")
        if not value:
            continue
        if name == "ttl":
            found["ttl"] = max(1, _milliseconds("dedup.ttl", value, _YEAR_MS))
        elif value is not True:
            raise CommandError(f"dedup.{name} must be a boolean")
        else:
            found[name] = True
    if "extend" in found and "ttl" not in found:
        raise CommandError("dedup.extend requires dedup.ttl")
    return found


def _retention(field: str, value: Any) -> Any:
    if value is None or value is False:
        return None
    if value is True:
        return True
    if is_map(value):
        if value and value.keys() <= {"age", "count"}:
            return {name: _count(f"{field}.{name}", each) for name, each in value.items() if each is not None}
        raise CommandError(f"{field} must have age (seconds), count, or both")
    return _count(field, value) or True


def _count(name: str, value: Any) -> int:
    if not is_number(value) or not 0 <= value < 2**31 or value != int(value):
        raise CommandError(f"{name} must be an integer from 0 to {2**31 - 1}")
    return int(value)


_POLICIES: Final = frozenset((*CHILD_POLICIES, _CONTINUE))


def ineffective_policies(given: Mapping[Any, Any]) -> list[str]:
    """Return the names of the fields of a job, not checked yet, that need a `parentId`, which it has not."""
    if _POLICIES.isdisjoint(given) or given.get("parentId") is not None:
        return []
    return [name for name in (*CHILD_POLICIES, _CONTINUE) if given.get(name)]


def child_policy(given: Given) -> str:
    """Return the effect of a failed child on its parent. By default, the parent keeps waiting.

    Raises:
        CommandError: If several fields do.
    """
    found = [policy for name, policy in CHILD_POLICIES.items() if given[name]]
    if len(found) > 1:
        raise CommandError(f"only one of {', '.join(CHILD_POLICIES)} may be true")
    return found[0] if found else "wait"


async def _parent(ids: JobIds, job_id: str) -> tuple[str, str]:
    found = await ids.find(job_id)
    if found is None:
        raise CommandError(f"Parent job not found: {job_id}")
    return found


def missing_job(error: JobNotFoundError, options: Given) -> str:
    """Return the error of a job to add whose parent or dependency does not exist.

    Args:
        error: The error.
        options: The options of the job.
    """
    parent = options.get("parent")
    kind = "Parent" if parent is not None and parent[1] == error.job_id else "Dependency"
    return f"{kind} job not found: {error.job_id}"


async def _dependency(ids: JobIds, queue: str, job_id: str) -> str | tuple[str, str]:
    found = await ids.find(job_id)
    if found is None:
        raise CommandError(f"Dependency job not found: {job_id}")
    return found[1] if found[0] == queue else found


_log = get_logger(__name__)

_SHOWN: Final = 20
"""Ids in a log line."""


async def take_back(queue: str, added: Iterable[tuple[Queue, str]]) -> str:
    """Delete jobs, unless they have started; return what the error of the command adds if some were not deleted.

    A partition that does not reply is not called again. The ids of the jobs that were not deleted are logged.

    Args:
        queue: Name of the queue.
        added: The jobs, each with its queue or partition. Jobs that wait for others come before them: the deletion of
            a dependency may fail the jobs that wait for it.
    """
    left: list[str] = []
    silent = set[str]()
    cause: GlideMQError | None = None
    for part, job_id in added:
        if part.name not in silent:
            try:
                await again(lambda part=part, job_id=job_id: part.remove(job_id, states=UNSTARTED))  # type: ignore[misc]
                continue
            except JobStateError:
                continue
            except GlideMQError as error:
                cause = error
                if isinstance(error, AmbiguousResultError | GlideMQConnectionError):
                    silent.add(part.name)
        left.append(job_id if part._partition is None else part._partition.id_of(job_id))
    if not left:
        return ""
    shown = ", ".join(left[:_SHOWN]) + (", ..." if len(left) > _SHOWN else "")
    _log.warning(
        "gateway: queue %r: %d jobs of a rejected PUSHB were not deleted, and exist unless their add was lost: %s (%s)",
        wire_name(queue), len(left), shown, cause,
    )  # fmt: skip
    return f"; {len(left)} jobs of the command may exist, because deleting them failed"


async def zone_name(given: str | None) -> str | None:
    """Return the name of a time zone as it is installed; an unknown one as it was given, and None for no name."""
    if not given:
        return None
    try:
        return check_zone("tz", given)
    except GlideMQValidationError:
        return (await asyncio.to_thread(_installed)).get(given.casefold(), given)


@functools.cache
def _installed() -> dict[str, str]:
    """Return the names of all time zones by their lower-case names; takes a tenth of a second."""
    return {name.casefold(): name for name in zoneinfo.available_timezones()}
