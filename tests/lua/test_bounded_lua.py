"""The Lua sources: every loop and every read is bounded by a constant, never by the content of a key."""

import re
from collections.abc import Iterator
from pathlib import Path

LUA = Path(__file__).resolve().parents[2] / "lua"
SOURCES = {path.relative_to(LUA).as_posix(): path.read_text(encoding="utf-8") for path in sorted(LUA.rglob("*.lua"))}

EXCEPTIONS = {
    ("core/active_list_jobs.lua", "'SMEMBERS', q.list_taken"): "once: the active list jobs of an older wire library",
    ("core/active_list_jobs.lua", "'ZRANGE', q.list_active_ids, 0, -1, 'WITHSCORES'"): (
        "once: the active list jobs of older builds"
    ),
    ("core/consumers.lua", "'XINFO', 'GROUPS', q.stream"): "after number_of_groups",
    (
        "core/consumers.lua",
        "'XINFO', 'CONSUMERS', q.stream, name",
    ): "after has_few_consumers or a check of the number of consumers",
    ("core/finish.lua", "'XTRIM', q.stream, 'MINID', '=', kept"): (
        "deletes what the call has acknowledged; where others changed the group, nodes of 100 entries"
    ),
    ("core/functions/counts.lua", "'HKEYS', q.ordering"): "after HLEN",
    ("core/find_waiting.lua", "'LREM', place.list, place.rank, id"): "LPOS has found the job near that end",
    ("features/backup/functions/backup.lua", "'HGETALL', key"): "after HLEN",
    ("features/consistency/functions/repair.lua", "'LREM', q.P .. place, rank, id"): "after LPOS with MAXLEN",
    (
        "features/broadcast/functions/_subscription.lua",
        "'XPENDING', q.stream, group",
    ): "after has_few_consumers or a check of the number of consumers",
    ("features/broadcast/functions/_subscription.lua", "'XTRIM', q.stream, 'MAXLEN', '=', length - #found"): (
        "deletes the entries that a read with COUNT has found"
    ),
    ("features/failures/functions/failure_stats.lua", "'HGETALL', q.failure_counts"): "after HLEN",
    ("features/flows/parents.lua", "'SMEMBERS', deps"): "after SCARD",
    ("features/metrics/metrics.lua", "'HKEYS', key"): "after HLEN",
    ("features/metrics_by_name/functions/metrics_by_name.lua", "'HGETALL', key"): "after HLEN",
    ("features/staged_writes/functions/_stage.lua", "'HGETALL', w.manifest"): "after HLEN",
    ("features/streams/functions/stream_chunk.lua", "'XADD', key, 'MAXLEN', '=', keep, '*', unpack(r.fields)"): (
        "deletes one chunk; of a stream that others have filled, whole nodes of 100 entries"
    ),
    ("features/usage/functions/usage.lua", "'HGETALL', bucket"): "after HLEN",
    ("wire_library/_common.lua", "'HGETALL', key"): "after HLEN",
}
"""Reads of a whole key that is known to be small, by file and arguments, with the reason."""

WHOLE = {
    "SMEMBERS", "HGETALL", "HKEYS", "HVALS", "KEYS", "SORT", "SORT_RO", "SDIFF", "SDIFFSTORE", "SINTER", "SINTERSTORE",
    "SUNION", "SUNIONSTORE", "ZDIFF", "ZINTER", "ZUNION", "ZUNIONSTORE", "ZINTERSTORE", "ZRANGESTORE", "COPY", "DUMP",
    "DEL", "FLUSHDB", "LREM", "LINSERT", "ZREMRANGEBYSCORE", "ZREMRANGEBYRANK", "ZREMRANGEBYLEX", "XAUTOCLAIM",
}  # fmt: skip
"""Commands whose work grows with the key, or, like DEL, may grow with it."""

NEEDS = {
    "ZRANGEBYSCORE": "LIMIT", "ZREVRANGEBYSCORE": "LIMIT", "ZRANGEBYLEX": "LIMIT", "ZREVRANGEBYLEX": "LIMIT",
    "XREADGROUP": "COUNT", "XREAD": "COUNT", "SCAN": "COUNT", "SSCAN": "COUNT", "HSCAN": "COUNT", "ZSCAN": "COUNT",
    "LPOS": "MAXLEN",
}  # fmt: skip
"""Commands that need an option to be bounded."""


def calls(source: str) -> Iterator[list[str]]:
    """The arguments of each server call whose command is a text in the source."""
    for match in re.finditer(r"\bp?call\(\s*(?=')", source):
        depth, parts, quoted = 0, [""], False
        for letter in source[match.end() :]:
            quoted ^= letter == "'"
            depth += 0 if quoted else (letter in "({[") - (letter in ")}]")
            if depth < 0:
                break
            if letter == "," and depth == 0 and not quoted:
                parts.append("")
            else:
                parts[-1] += letter
        yield [" ".join(part.split()) for part in parts]


def unbounded(arguments: list[str]) -> bool:
    command, *rest = (argument.strip("'") for argument in arguments)
    if command in WHOLE:
        return True
    if command in NEEDS:
        return NEEDS[command] not in rest
    if command in ("ZRANGE", "ZREVRANGE", "LRANGE"):
        return rest[1:3] == ["0", "-1"]
    if command in ("XRANGE", "XREVRANGE"):
        return "COUNT" not in rest and rest[1] != rest[2]
    if command == "XPENDING":
        return len(rest) == 2 or "IDLE" in rest
    if command == "XINFO":
        return rest[0] in ("GROUPS", "CONSUMERS") or "FULL" in rest
    return command in ("XTRIM", "XADD") and "=" in rest


def test_every_loop_has_a_counter():
    """`for` over a range or a table ends; `while` and `repeat` may not."""
    loops = [
        f"{name}:{number}"
        for name, source in SOURCES.items()
        for number, line in enumerate(source.splitlines(), start=1)
        if re.search(r"\b(while|repeat)\b", re.sub(r"--.*|'[^']*'", "", line))
    ]
    assert loops == []


def test_every_read_is_bounded():
    found = {
        (name, ", ".join(arguments))
        for name, source in SOURCES.items()
        for arguments in calls(source)
        if unbounded(arguments)
    }
    assert found == EXCEPTIONS.keys()


def test_unbounded_reads_are_recognized():
    source = """
      redis.call('SMEMBERS', key)
      redis.pcall('ZRANGE', key, 0, -1)
      redis.call('ZRANGEBYSCORE', key, '-inf', G.int(now))
      redis.call('XRANGE', key, '-',
        '+')
      redis.call('XPENDING', key, group)
      redis.call('LPOS', key, f(a, b))
    """
    bounded = """
      redis.call('ZRANGE', key, 0, most - 1)
      redis.call('XRANGE', key, entry, entry)
      redis.call('XPENDING', key, group, '-', '+', 10)
      redis.call('SSCAN', key, cursor, 'COUNT', 100)
    """
    assert [unbounded(arguments) for arguments in calls(source)] == [True] * 6
    assert [unbounded(arguments) for arguments in calls(bounded)] == [False] * 4
