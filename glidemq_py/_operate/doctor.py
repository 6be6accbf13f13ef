"""`examine`: problems of a server and its queues, each with what to do about it; and the permissions of users."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, Final

from glidemq_py._client.async_client import findings_of
from glidemq_py._client.library_source import Variant, assemble
from glidemq_py._client.shared_reads import glide_of
from glidemq_py._features.broadcast import Subscription
from glidemq_py._features.consistency.calls import NODE_WORKER, NODE_WORKER_REMEDY, endangers_steps
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.snapshots import QueueSnapshot, record
from glidemq_py.errors import GlideMQConnectionError, GlideMQError, GlideMQValidationError, PermissionDeniedError

_PINGS: Final = 5
_SLOW_MS: Final = 10
_CLOCK_MS: Final = 1_000
_FULL: Final = 0.8
_WAITED_MS: Final = 60_000
_INFO: Final = ("INFO", "server", "memory", "persistence", "replication", "cluster")
_ERRORS: Final = ("eviction", "cluster", "replica", "version")


class Severity(StrEnum):
    """How bad a diagnosis is."""

    OK = "ok"
    NOTE = "note"
    """Something to know; nothing is wrong."""
    WARNING = "warning"
    """Jobs are late, or may be lost when something else fails."""
    ERROR = "error"
    """Jobs are lost or do not run."""


@record
class Diagnosis:
    """One thing that was examined.

    Attributes:
        check: Subject of the check: connection, latency, clock, version, eviction, aof, replicas, memory, persistence,
            library, permissions, queue.
        severity: How bad it is.
        subject: The node or queue; '' = the server.
        problem: Text of the finding.
        remedy: What to do; '' if nothing is wrong.
    """

    check: str
    severity: Severity
    subject: str
    problem: str
    remedy: str = ""


async def examine(
    operator: Operator,
    queues: Iterable[str] = (),
    *,
    max_wait: int = _WAITED_MS,
    user: str | None = None,
    role: str = "",
) -> list[Diagnosis]:
    """Examine the server and some queues, with a bounded number of short commands.

    Args:
        operator: the operator.
        queues: names of queues.
        max_wait: ms that a job may wait before its queue gets a warning.
        user: name of a user of the server, whose permissions are examined, by some hundred commands; '' = that of this
            connection, None = do not examine them.
        role: the role whose permissions the user should have; '' = report the roles whose permissions it has.

    Raises:
        GlideMQValidationError: the user or the role does not exist.
        GlideMQConnectionError: the server cannot be reached.
    """
    transport = await operator.transport()
    found = await _timing(transport.command)
    nodes = await _nodes(transport)
    if nodes is None:
        remedy = "allow the command INFO (docs/operate/permissions.md)"
        found.append(_warning("permissions", "", "INFO is not permitted: the configuration was not examined", remedy))
    given = operator.accepted
    accepted = {kind for kind, allowed in (("eviction", given.allow_eviction), ("aof", given.allow_no_aof)) if allowed}
    for node, info in (nodes or {}).items():
        found += configuration(node, info, cluster=transport.is_cluster, accepted=accepted)
    found += await _library(transport)
    if user is not None:
        found.append(await _permissions(operator, user, role))
    for name in dict.fromkeys(queues):
        try:
            queue = await operator.get_queue(name)
            schedules = 0 if queue.workers else len(await operator.get_schedules(name))
            late = queue.ready and queue.oldest_waiting > max_wait
            subscriptions = await operator.get_subscriptions(name) if late else ()
            has_only_waiting = queue.waiting and queue.waiting == queue.unfinished and not queue.workers
            source = (
                await operator.get_dead_letter_source(name) if has_only_waiting and not queue.is_broadcast else None
            )
            found += queue_findings(queue, max_wait, schedules, subscriptions, source)
            found += await _steps(operator, name)
        except GlideMQConnectionError:
            raise
        except GlideMQError as error:
            remedy = "upgrade this program, or grant the permission that is named"
            found.append(_error("queue", name, str(error), remedy))
    return found


def _diagnosis(severity: Severity, check: str, subject: str, problem: str, remedy: str = "") -> Diagnosis:
    return Diagnosis(check=check, severity=severity, subject=subject, problem=problem, remedy=remedy)


_ok, _note, _warning, _error = (partial(_diagnosis, severity) for severity in Severity)


async def _timing(command: Callable[..., Awaitable[Any]]) -> list[Diagnosis]:
    """Measure the round trip and the offset of the clocks; the best of several tries, since each may be delayed."""
    times, offsets = list[float](), list[tuple[float, float]]()
    for _ in range(_PINGS):
        started, wall = time.perf_counter(), time.time()
        seconds, microseconds = await command("TIME")
        took = (time.perf_counter() - started) * 1_000
        times.append(took)
        offsets.append((took, (int(seconds) + int(microseconds) / 1e6 - wall) * 1_000 - took / 2))
    middle = statistics.median(times)
    text = f"{middle:.1f} ms per round trip"
    if middle > _SLOW_MS:
        latency = _warning("latency", "", text, "run this command and the workers near the server, and check its load")
    else:
        latency = _ok("latency", "", text)
    offset = min(offsets)[1]
    text = f"the server's clock is {abs(offset):.0f} ms {'ahead of' if offset > 0 else 'behind'} this machine's"
    if abs(offset) > _CLOCK_MS:
        remedy = "synchronize the clocks (NTP): run_at and schedules with start_date use this machine's clock"
        return [latency, _warning("clock", "", text, remedy)]
    return [latency, _ok("clock", "", text)]


async def _nodes(transport: Any) -> dict[str, dict[str, str]] | None:
    """Return the fields of INFO per primary; None if it is not permitted."""
    try:
        if glide := glide_of(transport):
            from glidemq_py._client.library_publishing import on_primaries

            replies = await on_primaries(glide, list(_INFO))
        else:
            replies = {"": await transport.command(*_INFO)}
    except GlideMQConnectionError:
        raise
    except GlideMQError:
        return None
    return {node: _fields(reply) for node, reply in replies.items()}


def _fields(reply: Any) -> dict[str, str]:
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def configuration(
    node: str, info: Mapping[str, str], *, cluster: bool, accepted: Container[str] = ()
) -> Iterator[Diagnosis]:
    """Yield the diagnoses of one server by its INFO; ``accepted``: checks whose problems the user accepts."""
    name = "valkey" if "valkey_version" in info else "redis"
    yield _ok(
        "connection", node, f"{name} {info.get(f'{name}_version', '?')}, {'cluster' if cluster else 'standalone'}"
    )
    kinds = set[str]()
    for finding in findings_of(info, cluster=cluster):
        problem, _, remedy = finding.text.rpartition("; ")
        kinds.add(finding.kind)
        severity = Severity.ERROR if finding.kind in _ERRORS else Severity.WARNING
        if finding.kind == "unknown":
            severity, problem, remedy = Severity.NOTE, finding.text, ""
        elif finding.kind in accepted:
            severity, remedy = Severity.NOTE, "accepted by the options of the connection"
        elif not problem:  # the remedy stands after a colon
            problem, _, remedy = finding.text.rpartition(": ")
        yield Diagnosis(check=finding.kind, severity=severity, subject=node, problem=problem, remedy=remedy)
    if "aof" not in kinds and info.get("aof_enabled") == "1":
        yield _ok("aof", node, "the append-only file is on")
    if not kinds & {"eviction", "volatile"} and "maxmemory_policy" in info:
        yield _ok("eviction", node, "maxmemory-policy is noeviction")
    yield from _persistence(node, info)
    yield from _replicas(node, info)
    yield from _memory(node, info)


def _persistence(node: str, info: Mapping[str, str]) -> Iterator[Diagnosis]:
    for field, what in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if info.get(field, "ok") != "ok":
            problem = f"the last write of the {what} failed"
            remedy = "check the disk of the server (space, permissions) and its log"
            yield _error("persistence", node, problem, remedy)  # fmt: skip


def _replicas(node: str, info: Mapping[str, str]) -> Iterator[Diagnosis]:
    if info.get("role") != "master":
        return
    number = int(info.get("connected_slaves", "0") or 0)
    if not number:
        remedy = "add a replica, or create backups (glidemq backup)"
        problem = "no replica: if the server's disk is lost, all jobs are lost"
        yield _note("replicas", node, problem, remedy)
        return
    states = [info.get(f"slave{n}", "") for n in range(number)]
    late = [each for each in states if "state=online" not in each]
    if late:
        problem = f"{len(late)} of {number} replicas {'is' if len(late) == 1 else 'are'} not online"
        yield _warning("replicas", node, problem, "check the log of the replica and the network between the two")
    else:
        yield _ok("replicas", node, f"{number} online")


def _memory(node: str, info: Mapping[str, str]) -> Iterator[Diagnosis]:
    used, most = int(info.get("used_memory", "0")), int(info.get("maxmemory", "0"))
    shown = f"{used / 2**20:,.0f} MiB"
    if not most:
        yield _ok("memory", node, f"{shown} in use, no maxmemory")
    elif used > most * _FULL:
        remedy = "raise maxmemory, keep fewer finished jobs (remove_on_complete), or delete some: glidemq queue clean"
        yield _warning("memory", node, f"{shown} of {most / 2**20:,.0f} MiB in use; adds fail when it is full", remedy)
    else:
        yield _ok("memory", node, f"{shown} of {most / 2**20:,.0f} MiB in use")


async def _library(transport: Any) -> list[Diagnosis]:
    library = assemble(Variant.OWN)
    if not (glide := glide_of(transport)):
        return []
    from glidemq_py._client.library_publishing import published

    try:
        nodes = await published(glide, library.name)
    except GlideMQConnectionError:
        raise
    except GlideMQError as error:
        remedy = "allow FUNCTION LIST, or load the library as an administrator: glidemq library load"
        return [_warning("library", "", str(error), remedy)]
    found: list[Diagnosis] = []
    for node, listed in sorted(nodes.items()):
        if listed:
            found.append(_ok("library", node, f"{library.name} is loaded"))
        else:
            problem = f"{library.name} is not loaded; the first client with permission loads it"
            remedy = "where clients may not FUNCTION LOAD: glidemq library load"
            found.append(
                _note("library", node, problem, remedy)
            )  # fmt: skip
    return found


async def _permissions(operator: Operator, user: str, role: str) -> Diagnosis:
    """Compare the permissions of a user with those of a role, or of all roles."""
    transport = await operator.transport()
    try:
        name = user or await user_name(transport)
        lacks = {
            each: await missing_permissions(transport, name, each, operator.prefix)
            for each in ([role] if role else ROLES)
        }
    except PermissionDeniedError as error:
        remedy = "run it as an administrator, and name the user: glidemq doctor --user NAME"
        problem = f"the permissions of this user were not examined: +{error.permission} is required"
        return _note("permissions", user, problem, remedy)
    complete = [each for each, missing in lacks.items() if not missing]
    if complete:
        plural = "s" if len(complete) > 1 else ""
        return _ok("permissions", name, f"user {name!r} has the permissions of the role{plural} {', '.join(complete)}")
    nearest = min(lacks, key=lambda each: len(lacks[each]))
    text = " ".join(f"+{each}" for each in lacks[nearest])
    problem = f"user {name!r} lacks permissions of the role {nearest}: {text}"
    return _warning("permissions", name, problem, "grant them (docs/operate/permissions.md)")


def queue_findings(
    queue: QueueSnapshot, max_wait: int, schedules: int = 0, subscriptions: Collection[Subscription] = (),
    source: str | None = None,
) -> list[Diagnosis]:  # fmt: skip
    """Return the diagnoses of a queue.

    Args:
        queue: the queue.
        max_wait: ms that a job may wait before the queue gets a warning.
        schedules: number of its schedules, if it has no worker.
        subscriptions: its subscriptions, if it is a broadcast and its oldest unread message has waited for longer.
        source: the queue whose dead letter queue it is, if all its jobs are waiting and it has no worker.
    """
    found: list[Diagnosis] = []
    name = queue.name
    if source is not None:
        entries = "1 dead-letter entry" if queue.ready == 1 else f"{queue.ready:,} dead-letter entries, the oldest"
        problem, remedy = f"{entries} of queue {source!r}", f"list them: glidemq dlq ls {source}"
        found.append(_note("queue", name, problem, remedy))
    elif queue.paused and queue.ready:
        problem = f"paused, with {_ready(queue)}{'' if queue.is_broadcast else ' to run'}"
        remedy = f"if it is not intended: glidemq queue resume {name}"
        found.append(_note("queue", name, problem, remedy))
    elif queue.unfinished and not queue.workers:
        delayed = f", {queue.delayed:,} delayed" if queue.delayed else ""
        unfinished = f"{_ready(queue)}{delayed}" if queue.is_broadcast else _jobs(queue.unfinished, "unfinished ")
        problem = f"{unfinished} and no live worker"
        found.append(_warning("queue", name, problem, "start one: glidemq worker MODULE:WORKER"))
    elif subscriptions and queue.oldest_waiting > max_wait:
        found.append(_slow_subscription(queue, subscriptions))
    elif queue.ready and queue.oldest_waiting > max_wait:
        problem = f"{_jobs(queue.ready)} ready, and the oldest has waited for {queue.oldest_waiting // 1_000:,} s"
        remedy = "start more workers or raise their concurrency; see also the limits: glidemq queue show " + name
        found.append(_warning("queue", name, problem, remedy))
    if schedules and not queue.workers:
        problem = f"{schedules:,} schedule{'' if schedules == 1 else 's'} and no live worker, which adds their jobs"
        found.append(_warning("queue", name, problem, "start a worker of this queue, a Scheduler or a Maintenance"))
    if queue.outbox and not queue.workers:
        several = f"{queue.outbox:,} results for other queues are"
        results = "1 result for another queue is" if queue.outbox == 1 else several
        problem = f"{results} not delivered, and no worker delivers them"
        found.append(_warning("queue", name, problem, "start a worker of this queue, or a Maintenance"))
    if queue.failed:
        problem, remedy = f"{_jobs(queue.failed, 'failed ')} kept", f"look at the failures: glidemq failures ls {name}"
        found.append(_note("queue", name, problem, remedy))
    workers = f"{queue.workers} worker{'' if queue.workers == 1 else 's'}"
    return found or [_ok("queue", name, f"{workers}, {_ready(queue)}")]


async def _steps(operator: Operator, name: str) -> list[Diagnosis]:
    """Return the finding of a queue whose jobs have steps, and that workers of glide-mq for Node serve."""
    queue = await operator.queue(name)
    if not await endangers_steps(await queue._first_connected()):
        return []
    return [_error("steps", name, NODE_WORKER, NODE_WORKER_REMEDY)]


def _ready(queue: QueueSnapshot) -> str:
    """Return the number of ready jobs or unread messages."""
    if not queue.is_broadcast:
        return f"{_jobs(queue.ready)} ready"
    number = "more than 1,000" if queue.unread is None else f"{queue.unread:,}"
    return f"{number} unread message{'' if queue.unread == 1 else 's'}"


def _slow_subscription(queue: QueueSnapshot, subscriptions: Collection[Subscription]) -> Diagnosis:
    slowest = min(subscriptions, key=lambda each: tuple(map(int, each.last_delivered.split("-"))))
    unread = "more than 1,000" if slowest.waiting is None else f"{slowest.waiting:,}"
    messages, age = "message" if slowest.waiting == 1 else "messages", queue.oldest_waiting // 1_000
    problem = f"subscription {slowest.name!r} has {unread} unread {messages}, and the oldest has waited for {age:,} s"
    remedy = "start a worker of the subscription, or more; if it is not used any more: Broadcast.remove_subscription"
    return _warning("queue", queue.name, problem, remedy)


def _jobs(number: int, kind: str = "") -> str:
    return f"{number:,} {kind}job{'' if number == 1 else 's'}"


_COMMANDS: Final = {
    "probe": """
        info fcall time hget hmget zrange zscore get xinfo|consumers xinfo|groups xinfo|stream
    """,
    "observer": """
        info fcall time exists get hexists hget hgetall hkeys hlen hmget hscan lindex llen lrange scard
        sismember smembers sscan zcard zcount zmscore zrange zrangebyscore zrank zscan zscore xlen xpending
        xrange xrevrange xread xinfo|consumers xinfo|groups xinfo|stream
    """,
    "producer": """
        info fcall time exists get set incrby expire pexpire persist ttl unlink hget hmget hset hsetnx hdel
        hexists hincrby hkeys hlen lindex llen lrange rpush sadd scard sismember zadd zcard zcount zrange
        zrangebyscore zrank zrem zscore xadd xlen xpending xrange xrevrange xread xgroup|create xgroup|setid
        xinfo|groups xinfo|stream
    """,
    "worker": """
        info fcall time exists type unlink expire pexpire pttl persist rename ttl get set incrby decr hget hmget
        hgetall hset hsetnx hdel hexists hincrby hincrbyfloat hkeys hlen hrandfield hscan lindex llen lpop lpos
        lpush lrange lrem lset ltrim rpop rpush sadd scard sismember smembers spop srandmember srem sscan zadd
        zcard zcount zmscore zrandmember zrange zrangebyscore zrank zpopmin zrem zscore xack xadd xclaim xdel
        xlen xpending xrange xrevrange xread xreadgroup xtrim xgroup|create xgroup|delconsumer xgroup|setid
        xinfo|consumers xinfo|groups xinfo|stream
    """,
    "operator": """
        info fcall time exists type unlink expire pexpire pttl persist rename ttl scan get set incrby decr hget
        hmget hgetall hset hsetnx hdel hexists hincrby hincrbyfloat hkeys hlen hrandfield hscan lindex llen lpop
        lpos lpush lrange lrem lset ltrim rpush sadd scard sismember smembers spop srandmember srem sscan zadd
        zcard zcount zmscore zrandmember zrange zrangebyscore zrank zrem zscan zscore xack xadd xdel xlen
        xpending xrange xrevrange xread xtrim xgroup|create xgroup|destroy xgroup|setid xinfo|consumers
        xinfo|groups xinfo|stream
    """,
    "app": """
        info fcall time exists type unlink expire pexpire pttl persist rename ttl scan get set incrby decr hget
        hmget hgetall hset hsetnx hdel hexists hincrby hincrbyfloat hkeys hlen hrandfield hscan lindex llen lpop
        lpos lpush lrange lrem lset ltrim rpop rpush sadd scard sismember smembers spop srandmember srem sscan
        zadd zcard zcount zmscore zrandmember zrange zrangebyscore zrank zpopmin zrem zscan zscore xack xadd
        xclaim xdel xlen xpending xrange xrevrange xread xreadgroup xtrim xgroup|create xgroup|delconsumer
        xgroup|destroy xgroup|setid xinfo|consumers xinfo|groups xinfo|stream
    """,
}
ROLES: Final[dict[str, tuple[str, ...]]] = {role: tuple(text.split()) for role, text in _COMMANDS.items()}
"""The commands of each role, as on the page."""

_MOVABLE: Final = {
    "fcall": ("name", "1", "{key}"),
    "xread": ("STREAMS", "{key}", "0"),
    "xreadgroup": ("GROUP", "workers", "name", "STREAMS", "{key}", ">"),
}
"""Arguments of the commands whose keys have no fixed position."""
_MOST: Final = 7
_ARITY: Final = "wrong number of arguments"


async def user_name(transport: Any) -> str:
    """Return the name of this connection's user. Raises PermissionDeniedError without ``+acl|whoami``."""
    reply = await transport.command("ACL", "WHOAMI")
    return reply.decode() if isinstance(reply, bytes) else str(reply)


async def missing_permissions(transport: Any, user: str, role: str, prefix: str) -> list[str]:
    """Return the commands of a role that the server would deny to a user, by ``ACL DRYRUN``.

    Raises:
        GlideMQValidationError: The role or the user does not exist.
        PermissionDeniedError: This connection's user lacks ``+acl|dryrun``.
    """
    if role not in ROLES:
        raise GlideMQValidationError("role", role, f"must be one of {', '.join(ROLES)}")
    key = f"{prefix}:{{doctor}}:meta"
    found = await asyncio.gather(*(_is_allowed(transport, user, command, key) for command in ROLES[role]))
    return [command for command, allowed in zip(ROLES[role], found, strict=True) if not allowed]


async def _is_allowed(transport: Any, user: str, command: str, key: str) -> bool:
    words = command.split("|")
    if command in _MOVABLE:
        return await _dry_run(transport, user, [*words, *(each.format(key=key) for each in _MOVABLE[command])])
    for number in range(_MOST):  # `COMMAND INFO` has the number of arguments, and GLIDE cannot read its reply
        try:
            return await _dry_run(transport, user, [*words, *[key] * number])
        except GlideMQError as error:
            if isinstance(error, PermissionDeniedError) or _ARITY not in str(error):
                raise
    return False


async def _dry_run(transport: Any, user: str, words: list[str]) -> bool:
    try:
        return await transport.command("ACL", "DRYRUN", user, *words) in (b"OK", "OK")
    except GlideMQConnectionError:
        raise
    except GlideMQError as error:
        if f"User '{user}' not found" in str(error):
            raise GlideMQValidationError("user", user, "does not exist on the server") from None
        raise
