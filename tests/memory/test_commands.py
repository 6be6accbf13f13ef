"""The commands of the in-memory server reply to functions as those of a real server do.

The same function runs random commands on both: keys of every type, arguments as Lua passes them, wrong types, wrong
numbers of arguments, unusual forms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from glidemq_py.testing import MemoryServer, RespClient

_packer: Any = msgpack

# Replies are packed by the function itself, so both servers return the same bytes for the same values. `entry:2` in the
# arguments is the id of the second entry that was added.
PROBE = """#!lua name=glidemq_probe
redis.register_function('glidemq_probe', function(keys, args)
  local replies, ids = {}, {}
  for i, command in ipairs(cmsgpack.unpack(args[1])) do
    for j, argument in ipairs(command) do
      local number = type(argument) == 'string' and string.match(argument, '^entry:(%d)$')
      if number then command[j] = ids[tonumber(number)] or '1-1' end
    end
    local reply = redis.pcall(unpack(command))
    if command[1] == 'XADD' and type(reply) == 'string' then ids[#ids + 1] = reply end
    replies[i] = reply
  end
  return cmsgpack.pack(replies)
end)
"""

KEYS = ("probe:{p}:a", "probe:{p}:b")
MISSING = "probe:{p}:none"
FIELDS = ("f", "g", "h", 1, 2.5)
VALUES = ("", "v", "7", "-3", "x y", "\xff", 0, 12, -4, 1_800_000_000_123, 2.5, 0.1, "9223372036854775807")
SCORES = (0, 1, 2, 2.5, -1, 1_800_000_000_123, "3", "-2", "0.1", 0.3, "1e3", "1e-9", "1.50", "+inf", "-inf", "x", "")
BOUNDS = (*SCORES, "(1", "(2.5", "(+inf", "(-inf", "(x")
INDEXES = (0, 1, 2, -1, -2, 10, "0", "-1", "x")

key = st.sampled_from(KEYS)
field, value = st.sampled_from(FIELDS), st.sampled_from(VALUES)
score, bound, index = st.sampled_from(SCORES), st.sampled_from(BOUNDS), st.sampled_from(INDEXES)
entry = st.sampled_from(("entry:1", "entry:2", "entry:3", "5-1", "0-0", "x", 7))
stored = st.sampled_from(("entry:1", "entry:2", "entry:3", "5-1"))  # fakeredis looks at ids before the key
group = st.sampled_from(("one", "two"))
with_scores = st.sampled_from(((), ("WITHSCORES",), ("WITH",)))
amount = st.sampled_from((1, -1, 5, "3", "-0", "x", "1.5", "9223372036854775807", 2**62))


def flat(*parts: Any) -> st.SearchStrategy[list[Any]]:
    """Return a strategy of commands: words, values, and groups of values."""
    strategies = [part if isinstance(part, st.SearchStrategy) else st.just(part) for part in parts]

    def join(values: tuple[Any, ...]) -> list[Any]:
        return [word for each in values for word in (each if isinstance(each, tuple) else (each,))]

    return st.tuples(*strategies).map(join)


def some(strategy: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=most).map(tuple)


def pairs(first: st.SearchStrategy[Any], second: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    every = st.lists(st.tuples(first, second), min_size=1, max_size=3)
    return every.map(lambda found: tuple(word for pair in found for word in pair))


COMMANDS = st.one_of(
    *(flat(name, key) for name in
      ("GET", "INCR", "DECR", "HGETALL", "HLEN", "HKEYS", "LLEN", "RPOP", "SCARD", "XLEN", "ZCARD", "EXISTS", "TYPE")),
    *(flat(name, some(key)) for name in ("DEL", "UNLINK", "EXISTS")),
    flat("SET", key, value, st.sampled_from(((), (), ("NX",), ("PX", 60_000), ("NX", "PX", "60000"), ("PX", 0), ("XX",),
                                             ("EX", 60), ("NX", "XX"), ("PX",)))),
    flat("INCRBY", key, amount), flat("PEXPIRE", key, st.sampled_from((60_000, "60000", "x", -1))),
    flat("EXPIRE", key, st.sampled_from((60, "60", "x", -1))),
    flat("HGET", key, field), flat("HMGET", key, some(field)), flat("HSET", key, pairs(field, value)),
    flat("HSET", key, some(value)), flat("HSETNX", key, field, value), flat("HINCRBY", key, field, amount),
    flat("HDEL", key, some(field)), flat("HEXISTS", key, field),
    flat("ZADD", key, st.sampled_from(((), (), (), ("NX",), ("XX",), ("GT",), ("CH",))), pairs(score, field)),
    flat("ZADD", key, some(score)), flat("ZREM", key, some(field)), flat("ZSCORE", key, field),
    flat("ZCOUNT", key, bound, bound), flat("ZRANGE", key, index, index, with_scores),
    flat("ZRANGEBYSCORE", key, bound, bound, with_scores),
    flat("ZRANGEBYSCORE", key, bound, bound, st.sampled_from(((), ("WITHSCORES",))), "LIMIT", index, index),
    flat("RPUSH", key, some(value)), flat("RPOP", key, index), flat("LRANGE", key, index, index),
    flat("SADD", key, some(value)), flat("SISMEMBER", key, value),
    flat("XADD", key, "*", pairs(field, value)), flat("XADD", key, "*", some(value)),
    flat("XADD", key, "MAXLEN", st.sampled_from(("~", "=")), st.sampled_from((2, "1", -1, "x")), "*", "f", value),
    flat("XADD", key, "NOMKSTREAM", "*", "f", value),
    flat("XACK", key, group, some(entry)), flat("XDEL", key, some(stored)),
    flat("XGROUP", "CREATE", key, group, st.sampled_from(("0", "$")), st.sampled_from(((), ("MKSTREAM",)))),
    flat("XGROUP", "SETID", key, group, st.sampled_from(("$", "0"))),
    flat("XREADGROUP", "GROUP", group, st.sampled_from(("c", "d")), "COUNT", st.sampled_from((1, 2, "x")), "STREAMS",
         key, st.sampled_from((">", ">", "0"))),
    flat("XREADGROUP", "GROUP", group, "c", "NOACK", "STREAMS", *KEYS, ">", ">"),
    flat("XPENDING", key, group),
    flat(st.sampled_from(("HSCAN", "SSCAN", "ZSCAN")), MISSING, st.sampled_from((0, "0")), "COUNT", 10),
    flat(st.sampled_from(("HRANDFIELD", "ZRANDMEMBER")), MISSING, st.sampled_from((1, "20"))),
    flat("XINFO", st.sampled_from(("STREAM", "GROUPS", "CONSUMERS")), MISSING),
    flat(st.sampled_from(("HGET", "ZADD", "XACK", "SET", "RPOP", "XREADGROUP", "XGROUP", "EXISTS")), some(key, 2)),
)  # fmt: skip

STATE = [
    [*command[:1], each, *command[1:]] for each in KEYS
    for command in (["TYPE"], ["TTL"], ["GET"], ["HGETALL"], ["LRANGE", 0, -1], ["ZRANGE", 0, -1, "WITHSCORES"],
                    ["SCARD"], ["XRANGE", "-", "+"], ["XPENDING", "one", "-", "+", 10], ["XPENDING", "two"])
]  # fmt: skip
"""Reads both keys, whatever they contain."""

_ID = re.compile(rb"\d{13}-\d+")


def run(server: RespClient | MemoryServer, commands: list[list[Any]]) -> list[Any]:
    """Run the commands in the function and return their replies."""
    packed = _packer.packb(commands)
    reply = server.execute("FCALL", "glidemq_probe", 1, KEYS[0], packed)
    raw = reply.encode("utf-8", "surrogateescape") if isinstance(reply, str) else reply
    ids: dict[bytes, bytes] = {}
    return [comparable(each, ids) for each in _packer.unpackb(raw, raw=True, strict_map_key=False)]


def comparable(reply: Any, ids: dict[bytes, bytes]) -> Any:
    """Return a reply without times and texts of errors, of which fakeredis words some differently."""
    if isinstance(reply, dict):
        return "error" if b"err" in reply else reply
    if isinstance(reply, list):
        return [comparable(each, ids) for each in reply]
    if isinstance(reply, bytes) and _ID.fullmatch(reply):
        return ids.setdefault(reply, b"id %d" % len(ids))
    return reply


@pytest.fixture
def probed(resp: RespClient) -> Iterator[RespClient]:
    """A real server with the function."""
    resp.execute("FUNCTION", "LOAD", "REPLACE", PROBE)
    yield resp
    resp.execute("FUNCTION", "DELETE", "glidemq_probe")
    resp.execute("DEL", *KEYS)


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(COMMANDS, min_size=1, max_size=14))
@example([["ZADD", KEYS[0], "+inf", "f"], ["ZRANGEBYSCORE", KEYS[0], "-inf", "+inf"], ["ZCOUNT", KEYS[0], 0, "+inf"]])
@example([["RPUSH", KEYS[0], "v", "7", 12], ["RPOP", KEYS[0], 2], ["RPOP", KEYS[0], 5], ["EXISTS", KEYS[0]]])
def test_commands_reply_as_those_of_a_server(probed: RespClient, commands: list[list[Any]]):
    server = MemoryServer()
    probed.execute("DEL", *KEYS)
    server.execute("FUNCTION", "LOAD", "REPLACE", PROBE)
    commands = [*commands, *STATE]
    assert run(server, commands) == run(probed, commands)
