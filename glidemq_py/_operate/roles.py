"""Whether a user of the server has the permissions of a role (docs/operate/permissions.md)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from glidemq_py.errors import GlideMQConnectionError, GlideMQError, GlideMQValidationError, PermissionDeniedError

# fmt: off
ROLES: Final[dict[str, tuple[str, ...]]] = {
    "probe": (
        "info", "fcall", "time", "hget", "hmget", "zrange", "zscore", "get", "xinfo|consumers", "xinfo|groups",
        "xinfo|stream",
    ),
    "observer": (
        "info", "fcall", "time", "exists", "get", "hexists", "hget", "hgetall", "hkeys", "hlen", "hmget", "hscan",
        "lindex", "llen", "lrange", "scard", "sismember", "smembers", "sscan", "zcard", "zcount", "zmscore",
        "zrange", "zrangebyscore", "zrank", "zscan", "zscore", "xlen", "xpending", "xrange", "xrevrange", "xread",
        "xinfo|consumers", "xinfo|groups", "xinfo|stream",
    ),
    "producer": (
        "info", "fcall", "time", "exists", "get", "set", "incrby", "expire", "pexpire", "persist", "ttl", "unlink",
        "hget", "hmget", "hset", "hsetnx", "hdel", "hexists", "hincrby", "hkeys", "hlen", "lindex", "llen",
        "lrange", "rpush", "sadd", "scard", "sismember", "zadd", "zcard", "zcount", "zrange", "zrangebyscore",
        "zrank", "zrem", "zscore", "xadd", "xlen", "xpending", "xrange", "xrevrange", "xread", "xgroup|create",
        "xgroup|setid", "xinfo|groups", "xinfo|stream",
    ),
    "worker": (
        "info", "fcall", "time", "exists", "type", "unlink", "expire", "pexpire", "pttl", "persist", "rename",
        "ttl", "get", "set", "incrby", "decr", "hget", "hmget", "hgetall", "hset", "hsetnx", "hdel", "hexists",
        "hincrby", "hincrbyfloat", "hkeys", "hlen", "hrandfield", "hscan", "lindex", "llen", "lpop", "lpos",
        "lpush", "lrange", "lrem", "lset", "ltrim", "rpop", "rpush", "sadd", "scard", "sismember", "smembers",
        "spop", "srandmember", "srem", "sscan", "zadd", "zcard", "zcount", "zmscore", "zrandmember", "zrange",
        "zrangebyscore", "zrank", "zpopmin", "zrem", "zscore", "xack", "xadd", "xclaim", "xdel", "xlen", "xpending",
        "xrange", "xrevrange", "xread", "xreadgroup", "xtrim", "xgroup|create", "xgroup|delconsumer",
        "xgroup|setid", "xinfo|consumers", "xinfo|groups", "xinfo|stream",
    ),
    "operator": (
        "info", "fcall", "time", "exists", "type", "unlink", "expire", "pexpire", "pttl", "persist", "rename",
        "ttl", "scan", "get", "set", "incrby", "decr", "hget", "hmget", "hgetall", "hset", "hsetnx", "hdel",
        "hexists", "hincrby", "hincrbyfloat", "hkeys", "hlen", "hrandfield", "hscan", "lindex", "llen", "lpop",
        "lpos", "lpush", "lrange", "lrem", "lset", "ltrim", "rpush", "sadd", "scard", "sismember", "smembers",
        "spop", "srandmember", "srem", "sscan", "zadd", "zcard", "zcount", "zmscore", "zrandmember", "zrange",
        "zrangebyscore", "zrank", "zrem", "zscan", "zscore", "xack", "xadd", "xdel", "xlen", "xpending", "xrange",
        "xrevrange", "xread", "xtrim", "xgroup|create", "xgroup|destroy", "xgroup|setid", "xinfo|consumers",
        "xinfo|groups", "xinfo|stream",
    ),
    "app": (
        "info", "fcall", "time", "exists", "type", "unlink", "expire", "pexpire", "pttl", "persist", "rename",
        "ttl", "scan", "get", "set", "incrby", "decr", "hget", "hmget", "hgetall", "hset", "hsetnx", "hdel",
        "hexists", "hincrby", "hincrbyfloat", "hkeys", "hlen", "hrandfield", "hscan", "lindex", "llen", "lpop",
        "lpos", "lpush", "lrange", "lrem", "lset", "ltrim", "rpop", "rpush", "sadd", "scard", "sismember",
        "smembers", "spop", "srandmember", "srem", "sscan", "zadd", "zcard", "zcount", "zmscore", "zrandmember",
        "zrange", "zrangebyscore", "zrank", "zpopmin", "zrem", "zscan", "zscore", "xack", "xadd", "xclaim", "xdel",
        "xlen", "xpending", "xrange", "xrevrange", "xread", "xreadgroup", "xtrim", "xgroup|create",
        "xgroup|delconsumer", "xgroup|destroy", "xgroup|setid", "xinfo|consumers", "xinfo|groups", "xinfo|stream",
    ),
}
# fmt: on
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
