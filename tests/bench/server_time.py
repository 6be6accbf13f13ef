"""Measure the server time of calls: in total, and of the longest."""

from __future__ import annotations

import json
from typing import Any

from tests.bench.peers.protocol import payload
from tests.bench.server import BenchServer

JOBS = 2_000
"""Hashes that the control writes, reads and removes."""

DATA = json.dumps(payload(1), separators=(",", ":"))
"""What a job carries."""

CONTROL = """
local data = ARGV[1]
for i = 1, tonumber(ARGV[2]) do
  local key = 'control:' .. string.format('%.0f', i)
  redis.call('HSET', key, 'id', '1', 'name', 'noop', 'data', data, 'opts', '{}', 'timestamp', '1795238735053',
    'attemptsMade', '0', 'delay', '0', 'priority', '0', 'maxAttempts', '0', 'state', 'waiting')
end
for i = 1, tonumber(ARGV[2]) do
  local key = 'control:' .. string.format('%.0f', i)
  redis.call('HMGET', key, 'id', 'name', 'data', 'opts', 'state', 'timestamp')
  redis.call('HSET', key, 'state', 'active', 'processedOn', '1795238735053', 'lastActive', '1795238735053')
end
for i = 1, tonumber(ARGV[2]) do
  local key = 'control:' .. string.format('%.0f', i)
  redis.call('HMGET', key, 'state', 'processedOn', 'fence', 'groupKey')
  redis.call('UNLINK', key)
end
"""
"""What the server needs for hashes like ours, in a key of their own each, beside the same backlog: the more memory
there is, and the more scattered, the more of it is far from the processor, whoever asks for it."""


class Gauge:
    """Reads how much of the server's time our functions took.

    Args:
        server: The server.
        cpu: Read the CPU time of the server's main thread, which includes reading and replying, instead of the time
            inside functions. Other processes on the machine interrupt the latter, not the former.
    """

    def __init__(self, server: BenchServer, cpu: bool = False):
        self._server = server
        self._cpu = cpu
        self._began = 0.0
        server.call("CONFIG", "SET", "slowlog-log-slower-than", "500", "slowlog-max-len", "100000")
        self.start()

    def start(self):
        """Count from now."""
        self._server.call("SLOWLOG", "RESET")
        # Release freed memory now, so that the first measured call does not.
        self._server.call("MEMORY", "PURGE")
        self._server.call("EVAL", CONTROL, "0", DATA, str(JOBS))
        self._server.call("CONFIG", "RESETSTAT")
        self._began = self._main_thread()

    def _main_thread(self) -> float:
        cpu = self._server.info("cpu")
        return (float(cpu["used_cpu_user_main_thread"]) + float(cpu["used_cpu_sys_main_thread"])) * 1_000_000

    def microseconds(self) -> float:
        """Return the time since `start`."""
        if self._cpu:
            return self._main_thread() - self._began
        stats = self._server.info("commandstats")
        fields = dict(part.split("=") for part in stats.get("cmdstat_fcall", "usec=0").split(","))
        return float(fields["usec"])

    def control(self) -> float:
        """Microseconds for one hash like a job's, written, read, changed and removed by a bare script."""
        self._server.call("CONFIG", "RESETSTAT")
        began = self._main_thread()
        self._server.call("EVAL", CONTROL, "0", DATA, str(JOBS))
        if self._cpu:
            return (self._main_thread() - began) / JOBS
        stats = self._server.info("commandstats")["cmdstat_eval"]
        return float(dict(part.split("=") for part in stats.split(","))["usec"]) / JOBS

    def longest(self, percent: int = 100) -> tuple[float, str]:
        """The longest call since `start`: ms, and which function it was; (0.5, '') if none took longer.

        percent: of 99, say, the longest of all calls but the longest hundredth.
        """
        log: list[Any] = self._server.call("SLOWLOG", "GET", "-1")
        calls = [(entry[2] / 1000, entry[3]) for entry in log if entry[3][0].upper() in (b"FCALL", b"FCALL_RO")]
        left_out = self._calls() * (100 - percent) // 100
        if len(calls) <= left_out:
            return 0.5, ""
        ms, words = sorted(calls, key=lambda call: -call[0])[left_out]
        return ms, str(words[1].decode().rpartition("_")[2] if len(words) > 1 else "")

    def _calls(self) -> int:
        stats = self._server.info("commandstats")
        lines = (stats.get(f"cmdstat_{name}", "calls=0") for name in ("fcall", "fcall_ro"))
        return sum(int(line.split(",")[0].removeprefix("calls=")) for line in lines)
