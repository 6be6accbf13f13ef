"""A shorter way into fakeredis's commands, which take most of a simulation's time.

fakeredis prepares every command by a general procedure (arity, types, notifications). Here its outcome is computed once
per command and number of arguments. A test compares whole runs with and without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fakeredis import _msgs as msgs
from fakeredis._commands import Key
from fakeredis._core import CommandItem
from fakeredis._helpers import SimpleError
from fakeredis._socket._resp import convert_to_resp2

from glidemq_py._client.memory.store import Store

__all__ = ["shortcut"]

_SHORT: Final = frozenset((
    b"DEL", b"EXISTS", b"GET", b"HDEL", b"HEXISTS", b"HGET", b"HGETALL", b"HINCRBY", b"HLEN", b"HMGET", b"HSET",
    b"HSETNX", b"INCR", b"INCRBY", b"LLEN", b"LPOP", b"LPUSH", b"LRANGE", b"LREM", b"RPOP", b"RPUSH", b"SADD", b"SCARD",
    b"SISMEMBER", b"SREM", b"UNLINK", b"XACK", b"XADD", b"XDEL", b"XLEN", b"XRANGE", b"ZADD", b"ZCARD", b"ZCOUNT",
    b"ZRANGE", b"ZRANGEBYSCORE", b"ZREM", b"ZSCORE", b"XREADGROUP",
))  # fmt: skip
"""Commands of which `Store.execute` corrects nothing; a reading of streams that fails is corrected."""
_PLAIN: Final = frozenset((bytes, int, type(None)))

Execute = Callable[..., Any]


class _Plan:
    """What to do with the arguments of a command: decode some, and look up the keys."""

    def __init__(self, signature: Any, count: int) -> None:
        repeat = signature.repeat
        types = [*signature.fixed]
        types += [repeat[n % len(repeat)] for n in range(count - len(types))]
        self.decoded = [
            (n, each.decode) for n, each in enumerate(types) if not isinstance(each, Key) and each is not bytes
        ]
        self.keys = [(n, each) for n, each in enumerate(types) if isinstance(each, Key)]
        flags = signature.flags
        self.creates = msgs.FLAG_DO_NOT_CREATE not in flags
        self.removes_empty = msgs.FLAG_LEAVE_EMPTY_VAL not in flags
        self.converts = msgs.FLAG_SKIP_CONVERT_TO_RESP2 not in flags


def shortcut(store: Store) -> Execute:
    """Return a faster `Store.execute`."""
    usual, database = store.execute, store._database
    plans: dict[tuple[bytes, int], tuple[_Plan, Any]] = {}

    def plan_of(name: bytes, args: list[bytes]) -> tuple[_Plan, Any]:
        _, function, signature = store._found.get((True, name)) or store._found.setdefault(
            (True, name), store._find(True, name)
        )
        signature.check_arity(args, (7, 2))
        found = plans[name, len(args)] = _Plan(signature, len(args)), function
        return found

    def execute(name: bytes, args: list[bytes], *, script: bool) -> Any:
        if not script or name not in _SHORT:
            return usual(name, args, script=script)
        try:
            found = plans.get((name, len(args)))
            plan, function = plan_of(name, args) if found is None else found
            values: list[Any] = [*args]
            for n, decode in plan.decoded:
                values[n] = decode(values[n])
            for n, key in plan.keys:
                if key.missing_return is not Key.UNSPECIFIED and values[n] not in database:
                    return key.missing_return
            items: list[CommandItem] = []
            for n, key in plan.keys:
                item, default, kind = database.get(values[n]), None, key.type_
                if kind is not None:
                    if item is None:
                        if plan.creates and kind is not bytes:
                            default = kind()
                    elif type(item.value) is not kind:
                        raise SimpleError(msgs.WRONGTYPE_MSG)
                values[n] = CommandItem(values[n], database, item, default=default)
                items.append(values[n])
            reply = function(*values)
            if plan.converts and type(reply) not in _PLAIN:
                reply = convert_to_resp2(reply, "valkey")
        except (SimpleError, AttributeError):
            return usual(name, args, script=script)  # the same error, corrected
        for each in items:
            each.writeback(remove_empty_val=plan.removes_empty)
        return reply

    return execute
