"""A queue whose keys hold very many members each, as a hostile or careless writer leaves them."""

import random
from dataclasses import dataclass

from glidemq_py.testing import RespClient
from tests.lua.hostile_calls import Scene
from tests.lua.own_support import START, OwnQueue
from tests.wire_library import support as wire_support

CHUNK = 20_000
STATES = ("active", "waiting", "delayed", "prioritized", "completed", "failed", "suspended", "waiting-children",
          "group-waiting")  # fmt: skip
TOKENS = (("1", "1-0", 1, 1), ("2", "2-0", 1, 1), ("3", "", 1, 1))
"""Attempts of the jobs that the calls name: two of the stream, one of a list."""


@dataclass(frozen=True)
class Large:
    """A key with members `member`, where # is the number of the member; `value` is its score or value."""

    suffix: str
    kind: str
    member: str
    value: str = ""


_PAST = str(START - 10**9)

KEYS = (
    Large("completed", "zset", "#", _PAST), Large("failed", "zset", "#", _PAST), Large("scheduled", "zset", "#"),
    Large("suspended", "zset", "#", _PAST), Large("ratelimited", "zset", "k#", _PAST),
    Large("list-heartbeats", "zset", "#", _PAST), Large("list-popped", "zset", "#", _PAST),
    Large("workers", "zset", "py-#", _PAST), Large("invalidated", "zset", "t#", _PAST),
    Large("suspects", "zset", "#", "2"), Large("dedup-expiry", "zset", "d#", _PAST),
    Large("waiting-children", "zset", "#", _PAST), Large("remote-children", "zset", "glide:{o#}:", _PAST),
    Large("schedulers-due", "zset", "s#", _PAST), Large("writes", "zset", "w#", _PAST), Large("groupq:g", "zset", "#"),
    Large("lifo", "list", "#"), Large("priority", "list", "#"), Large("log:1", "list", "line"),
    Large("signals:1", "list", '{"name":"go","data":"1","receivedAt":1}'), Large("flow:token", "list", "junk"),
    Large("write:w1:try:attempt", "list", "junk"),
    Large("list-active-ids", "set", "#"), Large("deps:1", "set", "glide:{large}:#"),
    Large("parents:1", "set", "glide:{large}:#"), Large("write:w1:tried", "set", "attempt#"),
    Large("write:w1:queues", "set", "queue#"), Large("write:w1:won", "zset", "attempt#"),
    Large("write:w1:drivers", "set", "driver#"), Large("write-reports", "list", "junk"),
    Large("meta", "hash", "f#", "1"), Large("dedup", "hash", "d#", f"#:{_PAST}"), Large("rate", "hash", "f#", "1"),
    Large("ordering", "hash", "k#", "1"), Large("group:g", "hash", "skip:#", "1"),
    Large("orderdone:pending:g", "hash", "#", "1"), Large("group-watch", "hash", "k#", f"{_PAST}|0|1"),
    Large("failure-counts", "hash", "unknown|#", "1"), Large("failure-retries", "zset", "#"),
    Large("metrics:completed", "hash", "m:#:c", "1"), Large("metrics:failed", "hash", "m:#:c", "1"),
    Large("schedulers", "hash", "s#", '{"nextRun":1,"every":1000}'),
    Large("schedulers-own", "hash", "o#", '{"nextRun":1,"every":1000}'),
    Large("schedulers-ended", "hash", "s#", "1:1"), Large("stall-watch", "hash", "#", f"5|{_PAST}"),
    Large("losses", "hash", "py-#", "2"), Large("budget:flow", "hash", "charged:large:#:1", "1"),
    Large("flows", "hash", "token#", _PAST), Large("remote-parents", "hash", "#", '["glide:{o}:9"]'),
    Large("depvals:1", "hash", "glide:{large}:#", "v1"),
    Large(f"usage:{START - START % 60_000 - 60_000}", "hash", "tokens:#", "1"),
    Large("job:1", "hash", "depdone:glide:{large}:#", "1"), Large("job:1:sub:sub", "hash", "f#", "1"),
    Large("events", "stream", "#"), Large("results", "stream", "#"), Large("outbox", "stream", "#"),
    Large("wake", "stream", "#"), Large("jstream:1", "stream", "#"), Large("stream", "stream", "#"),
)  # fmt: skip

_FILL = """
local key, kind, member, value = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local call = redis.call
local function parts(text)
  local at = string.find(text, '#', 1, true)
  if at then return string.sub(text, 1, at - 1), string.sub(text, at + 1) end
  return text, nil
end
local before, after = parts(member)
local value_before, value_after = parts(value)
local commands = { zset = 'ZADD', set = 'SADD', list = 'RPUSH', hash = 'HSET' }
local batch, n = {}, 0
for i = tonumber(ARGV[4]), tonumber(ARGV[5]) do
  local m = after and before .. i .. after or before
  local v = value == '' and i or value_after and value_before .. i .. value_after or value
  if kind == 'stream' then call('XADD', key, i .. '-0', 'jobId', m, 'name', 'a', 'kind', 'child')
  elseif kind == 'pending' then call('XREADGROUP', 'GROUP', v, m, 'COUNT', 1, 'STREAMS', key, '>')
  elseif kind == 'group' then call('XGROUP', 'CREATE', key, m, '0')
  elseif kind == 'job' then
    call('HSET', key .. m, 'id', m, 'name', 'a', 'data', '1', 'opts', '{}', 'timestamp', i,
      'attemptsMade', 0, 'fence', 1, 'processedOn', 1, 'lastActive', 1, 'state', v)
  else
    if kind == 'zset' then
      batch[n + 1], batch[n + 2], n = v, m, n + 2
    elseif kind == 'hash' then
      batch[n + 1], batch[n + 2], n = m, v, n + 2
    else
      batch[n + 1], n = m, n + 1
    end
    if n >= 2000 then
      call(commands[kind], key, unpack(batch, 1, n))
      n = 0
    end
  end
end
if n > 0 then call(commands[kind], key, unpack(batch, 1, n)) end
"""
_SIZE = """
local sizes = {}
for i, key in ipairs(KEYS) do
  sizes[i] = redis.call(({zset = 'ZCARD', set = 'SCARD', list = 'LLEN', hash = 'HLEN', stream = 'XLEN'})[ARGV[i]], key)
end
return sizes
"""


class LargeQueue:
    """`prepare` refills the keys that the last call emptied, and sets the state of the jobs of `TOKENS`."""

    def __init__(self, client: RespClient, members: int, *, consumers: int = 5, groups: int = 2):
        self.client, self.members = client, members
        wire_support.load(client)
        self.q = OwnQueue(client, "large")
        self.consumers, self.groups = consumers, groups
        self._fill(Large("job:", "job", "#", "active"), first=2)
        self.prepare("active")

    def prepare(self, state: str):
        sizes = self.client.execute(
            "EVAL", _SIZE, len(KEYS), *(self.q.key(key.suffix) for key in KEYS), *(key.kind for key in KEYS)
        )  # fmt: skip
        for key, size in zip(KEYS, sizes, strict=True):
            if size < self.members * 0.8:
                self.q.redis("UNLINK", key.suffix)
                self._fill(key)
                if key.suffix == "stream":
                    self._read_stream()
        q = self.q
        for job_id, entry, fence, processed_on in TOKENS:
            q.redis("HDEL", f"job:{job_id}", "revoked", "childFailed", "building", "signals", "groupKey")
            fields = {"state": state, "fence": fence, "processedOn": processed_on, "lastActive": 1, "eid": entry,
                      "parentIds": "[]", "name": "a", "data": "1", "opts": "{}", "budgetKey": "flow"}  # fmt: skip
            q.redis("HSET", f"job:{job_id}", *(str(item) for pair in fields.items() for item in pair))
        q.redis("SET", "list-active", self.members)
        q.redis("SET", "id", self.members)
        q.redis("HSET", "write:w1", "state", "open", "home", "large", "query", "")
        q.redis("HSET", "group:g", "maxConcurrency", 1, "nextSeq", 1, "active", 1)
        q.redis("HDEL", "meta", "paused")
        for lock in ("reclaim", "reclaim:sub", "outbox", "groups", "schedules", "remote"):
            q.redis("UNLINK", f"lock:{lock}")

    def scene(self, rng: random.Random) -> Scene:
        return Scene(rng, self.q.base, self.q.now, ("1", "2", "3"), TOKENS, TOKENS[:1])

    def _fill(self, key: Large, first: int = 1, members: int = 0):
        last = members or self.members
        for start in range(first, last + 1, CHUNK):
            self.client.execute("EVAL", _FILL, 1, self.q.key(key.suffix), key.kind, key.member, key.value, start,
                                min(start + CHUNK - 1, last))  # fmt: skip

    def _read_stream(self):
        """Half of the entries are pending, spread over the consumers."""
        for group in ("workers", "sub"):
            self.client.execute("XGROUP", "CREATE", self.q.key("stream"), group, "0")
            self._fill(Large("stream", "pending", "py-#", group), members=self.consumers)
            for number in range(1, 6):
                self.client.execute("XREADGROUP", "GROUP", group, f"py-{number}", "COUNT", self.members // 10,
                                    "STREAMS", self.q.key("stream"), ">")  # fmt: skip
        if self.groups > 2:
            self._fill(Large("stream", "group", "group#"), members=self.groups)
