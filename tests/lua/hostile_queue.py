"""A queue with arbitrary values in any key, and a server that measures each call on it."""

import random
import re
from collections.abc import Sequence
from typing import Any

from glidemq_py.testing import RespClient, RespError, ServerProcess
from tests.inside import row as job_row
from tests.inside import working
from tests.lua.hostile_calls import ORDERING, Scene, command_of, own_arguments
from tests.lua.own_support import OwnQueue, escaped
from tests.wire_library import support as wire_support

__all__ = ["CPU_LIMIT_US", "OUR_FAULT", "HostileQueue", "MeasuredServer", "case", "command_of", "measured"]

CPU_LIMIT_US = 50_000
REPLY_SECONDS = 20
REPLAYS = 3

NUMBERS = ("nan", "inf", "-inf", "1e308", "-1e308", "1e400", "0x10", "-1", "0", "1.5", str(2**53), str(2**63 - 1),
           str(2**63), "9" * 400)  # fmt: skip
TEXTS = (*NUMBERS, "", "junk", "{", "[]", "null", '{"a":{}}', "\x00", "a:b", "9|" + "9" * 30, "9" * 30 + ":" + "9" * 30)
SCORES = ("inf", "-inf", "1e308", "-1e308", "-1", "0.5", str(2**42), str(2**53), str(2**63))
MEMBERS = ("", "nan", "inf", "0x10", "junk", "x||y", "||", "9" * 400)
KINDS = ("string", "list", "hash", "set", "zset", "stream")
OUR_FAULT = re.compile(
    r"attempt to|bad argument|stack overflow|too many results|invalid order function|nonexistent global|"
    r"Wrong number of args|must be strings or integers|not be NaN|expected statement|unhandled"
)


# Deletes the other keys of the queue, restores the dumped ones, and runs the commands.
_WRITE = """
local kept = { [ARGV[2]] = true }
local last = 3 + tonumber(ARGV[3])
for i = 4, last, 2 do
  redis.call('RESTORE', ARGV[i], 0, ARGV[i + 1], 'REPLACE')
  kept[ARGV[i]] = true
end
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  if not kept[key] then redis.call('UNLINK', key) end
end
local i = last + 1
while i <= #ARGV do
  redis.call(unpack(ARGV, i + 1, i + tonumber(ARGV[i])))
  i = i + 1 + tonumber(ARGV[i])
end
"""


class HostileQueue:
    """A queue with something in every key; `restore` brings it back, `spoil` makes it hostile."""

    def __init__(self, client: RespClient):
        self.client = client
        self.injected = 0
        """Hostile values written so far."""
        wire_support.load(client)
        self.q = OwnQueue(client, "hostile")
        self.fetched: list[tuple[str, str, int, int]] = []
        self.messages: list[tuple[str, str, int, int]] = []
        self._populate()
        # A short-lived key may have expired since it was listed.
        dumps = {s: self.q.redis("DUMP", s) for s in sorted(self.q.key_names())}
        self.dumps = {s: dump.encode("utf-8", "surrogateescape") for s, dump in dumps.items() if dump is not None}
        self.suffixes = sorted(self.dumps)
        self.kinds = {s: str(self.q.redis("TYPE", s)) for s in self.suffixes}
        self.members = {s: self._members(s) for s in self.suffixes}
        self.ids = [s.removeprefix("job:") for s in self.suffixes if s.startswith("job:") and ":sub:" not in s]

    def _populate(self):
        q = self.q
        q.put_job("parent", state="waiting-children", depsCompleted=0)
        q.add_job(name="a", parent=["parent", "hostile"])
        q.redis("ZADD", "waiting-children", q.now, "parent")
        q.add(*[job_row("a", "1", '{"removeOnFail":{"count":5},"lockDuration":2000}') for _ in range(4)])
        q.add(job_row("a", "1", "{}", "grouped", ordering=ORDERING), job_row("a", "1", "{}", ordering=ORDERING))
        q.add(*[job_row("a", "1", "{}", ordering=["h", 1, 0, 0, 0, 0, 0]) for _ in range(3)])
        q.add(job_row("a", "1", "{}", lifo=True), job_row("a", "1", "{}", lifo=True))
        q.add(job_row("a", "1", "{}", deduplication=["d", 1000, "throttle"]))
        fetched = q.fetch(12)
        ends: list[working.Finished]
        ends = [fetched[0].completed(), fetched[1].failed(), fetched[2].failed(limit=3, backoff=50)]
        ends += [working.suspended(*fetched[3].token, "why", 100), working.delayed(*fetched[4].token, 50)]
        q.finish(*ends)
        self.fetched = [job.token for job in fetched[5:]]
        q.add(*[job_row("a", "1", "{}", priority=p, delay=d) for p in (1, 3, 5) for d in (0, 100)])
        q.add(job_row("a", "1", "{}", delay=100, ttl=50), job_row("a", "1", "{}", lifo=True))
        self.fetched += [job.token for job in q.fetch(2)]
        q.redis("LPUSH", "priority", q.put_job("50", priority=1))
        q.redis("ZADD", "list-popped", q.now, "50")
        q.redis("ZADD", "suspects", 2, "50")
        q.redis("SET", "suspect-host", f"py-1|{q.now}|drain")
        q.redis("SADD", "list-active-ids", "50")
        q.redis(
            "ZADD", "suspended", q.now + 50, q.put_job("51", state="suspended", suspendTimeout=50, suspendedAt=q.now)
        )
        q.redis("HSET", "group:g", "rateMax", 2, "rateDuration", 1000, "rateWindowStart", q.now, "rateCount", 2)
        q.redis("HSET", "group:g", "skip:3", 1, "idleSince", f"2|{q.now}")
        q.redis("ZADD", "ratelimited", q.now, "g")
        q.redis("ZADD", "ratelimited", q.now + 50, "h")
        q.redis(
            "HSET", "meta", "globalConcurrency", 50, "rateLimitMax", 50, "rateLimitDuration", 1000, "maxLenEvents", 100
        )
        q.redis("HSET", "meta", "schedulesRev", 3, "groupSweep", 0, "peersSeen", q.now)
        q.redis("HSET", "rate", "windowStart", q.now, "count", 1)
        q.redis("HSET", "schedulers", "s", '{"nextRun":1,"every":1000}', "t", '{"repeatAfterComplete":100}')
        q.redis("HSET", "schedulers-own", "u", '{"nextRun":1}')
        q.redis("ZADD", "schedulers-due", 1, "s", 2, "t", q.now + 1000, "")
        q.redis("HSET", "stall-watch", self.fetched[0][0], f"5|{q.now}")
        q.redis("HSET", "budget:flow", "usedTokens", 5, "maxTotalTokens", 10, "exceeded", 0, "maxTokens", '{"in":4}')
        q.redis("XADD", "outbox", "*", "kind", "child", "to", "glide:{other}:", "parent", "9")
        q.redis("SADD", "deps:parent", q.key("1"), "glide:{other}:9")
        q.redis("HSET", "usage:" + str(q.now - q.now % 60_000), "jobCount", 1, "totalTokens", 5, "tokens:in", 5)
        q.redis("RPUSH", f"signals:{self.fetched[0][0]}", '{"name":"go","data":"1","receivedAt":1}')
        q.redis("HSET", "flows", "token", q.now)
        q.redis("HSET", "group-watch", "h", f"{q.now}|0|junk")
        q.redis("ZADD", "remote-children", q.now, "glide:{other}:")
        self._populate_writes_and_messages()
        q.make_group()
        for call in ("heartbeat", "recover_stalled", "update_job", "report_usage", "write_open", "write_stage"):
            q.fcall(call, q.meta, *own_arguments(self.scene(random.Random(1), ["1", "2"]), call))

    def _populate_writes_and_messages(self):
        q = self.q
        q.fcall(
            "broadcast_subscribe", q.meta, *own_arguments(self.scene(random.Random(1), ["1"]), "broadcast_subscribe")
        )
        self.client.execute("XGROUP", "CREATE", q.key("stream"), "sub", "0")
        reply = self.client.execute(
            "XREADGROUP", "GROUP", "sub", "py-b", "COUNT", 3, "STREAMS", q.key("stream"), ">"
        )  # fmt: skip
        self.messages = [(fields[1], entry, 2, q.now) for entry, fields in (reply[0][1] if reply else [])]

    def _members(self, suffix: str) -> list[str]:
        if self.kinds[suffix] == "zset":
            return sorted(self.q.redis("ZRANGE", suffix, 0, -1))
        return sorted(self.q.redis("HKEYS", suffix)) if self.kinds[suffix] == "hash" else []

    def scene(self, rng: random.Random, ids: Sequence[str] | None = None) -> Scene:
        fetched = self.fetched or [("1", "", 1, self.q.now)]
        return Scene(rng, self.q.base, self.q.now, ids or self.ids, fetched, self.messages)

    def restore(self):
        """Bring back the original data, without any key that was added."""
        self._start_batch()
        self._write()

    def spoil(self, rng: random.Random):
        """Bring back the original data; make some keys of a foreign type, and write junk to some keys or all."""
        self._start_batch()
        for _ in range(rng.choice((0, 0, 1, 5))):
            self._replace(rng, rng.choice(self.suffixes))
        share = rng.choice((0.05, 0.3, 1.0))
        for suffix in self.suffixes:
            if rng.random() < share:
                self._spoil_key(rng, suffix)
        self._write()

    # -- hostile data: a batch of commands, sent in one script because there are a hundred keys ------------------

    def _start_batch(self):
        self._batch: list[tuple[Any, ...]] = []
        self._kind_now, self._members_now = dict(self.kinds), dict(self.members)

    def _write(self):
        flat: Any = [escaped(self.q.base) + ":*", self.q.key("clock"), 2 * len(self.dumps)]
        for suffix, dump in self.dumps.items():
            flat += (self.q.key(suffix), dump)
        for command, suffix, *arguments in self._batch:
            flat += (2 + len(arguments), command, self.q.key(suffix), *arguments)
        self.client.execute("EVAL", _WRITE, 0, *flat)

    def _replace(self, rng: random.Random, suffix: str):
        kind = rng.choice([kind for kind in KINDS if kind != self.kinds[suffix]])
        command: dict[str, tuple[str, ...]] = {
            "string": ("SET", "junk"), "list": ("RPUSH", "junk"), "hash": ("HSET", "junk", "junk"),
            "set": ("SADD", "junk"), "zset": ("ZADD", "1", "junk"), "stream": ("XADD", "*", "junk", "junk"),
        }  # fmt: skip
        name, *arguments = command[kind]
        self._batch += [("UNLINK", suffix), (name, suffix, *arguments)]
        self._kind_now[suffix], self._members_now[suffix] = kind, ["junk"]
        self.injected += 1

    def _spoil_key(self, rng: random.Random, suffix: str):
        kind, before = self._kind_now[suffix], len(self._batch)
        write = self._batch.append
        if kind == "string":
            write(("SET", suffix, rng.choice(TEXTS)))
        elif kind == "list":
            write((rng.choice(("LPUSH", "RPUSH")), suffix, rng.choice(MEMBERS)))
        elif kind == "set":
            write(("SADD", suffix, rng.choice(MEMBERS)))
        elif kind == "stream":
            field = rng.choice(("jobId", "junk", "retryGroup"))
            write(("XADD", suffix, "*", field, rng.choice((*MEMBERS, *self.ids))))
        elif kind == "zset":
            for member in sorted({rng.choice(self._members_now[suffix]), rng.choice(MEMBERS), rng.choice(self.ids)}):
                write(("ZADD", suffix, rng.choice(SCORES), member))
        elif kind == "hash":
            fields = [field for field in self._members_now[suffix] if field != "state" or rng.random() < 0.1]
            for field in rng.sample(fields, min(len(fields), rng.choice((1, 3, 100)))):
                write(("HSET", suffix, field, rng.choice(TEXTS)))
        self.injected += len(self._batch) - before


class MeasuredServer:
    """A private server on which a hanging call is stopped."""

    def __init__(self, process: ServerProcess):
        self.process = process
        self.client = process.client(timeout=REPLY_SECONDS)

    def close(self):
        self.client.close()

    def cpu_of(self, command: Sequence[Any]) -> tuple[int, str]:
        """Microseconds of one FCALL, and its error or ''."""
        self.client.execute("CONFIG", "RESETSTAT")
        error = ""
        try:
            self.client.execute(*command)
        except RespError as reply:
            error = str(reply)
        except OSError:
            self.process.kill()
            raise AssertionError(f"the server hangs in {command[1]}") from None
        stats = self.client.info("commandstats").get("cmdstat_fcall", "usec=0")
        found = re.search(r"usec=(\d+)", stats)
        return int(found[1]) if found else 0, error


def case(queue: HostileQueue, name: str, wire: bool, seed: str) -> list[Any]:
    """The data and the call of one seed, always the same."""
    rng = random.Random(seed)
    queue.spoil(rng)
    return command_of(queue, name, wire, rng)


def measured(server: MeasuredServer, queue: HostileQueue, name: str, wire: bool, seed: str) -> tuple[int, str]:
    """Return the microseconds of server CPU and the error of the case of one seed; a slow one is measured again."""
    cpu, error = server.cpu_of(case(queue, name, wire, seed))
    replays = 0
    while cpu > CPU_LIMIT_US and replays < REPLAYS:
        cpu = min(cpu, server.cpu_of(case(queue, name, wire, seed))[0])
        replays += 1
    return cpu, error
