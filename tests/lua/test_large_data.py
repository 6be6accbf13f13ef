"""Every function of both libraries, over queues whose keys hold very many members.

A call may run a limited number of commands on the server, which is the same on every machine, and use a limited time of
its CPU. Whether it fails does not matter here.

    GLIDEMQ_LARGE=200000 python -m pytest tests/lua/test_large_data.py     members per key, in every state of the jobs
"""

import contextlib
import os
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from glidemq_py.testing import RespClient, RespError
from tests.inside import Library
from tests.lua.hostile_calls import command_of
from tests.lua.large_queue import STATES, LargeQueue
from tests.lua.own_support import library
from tests.server.worker_support import StartServer
from tests.wire_library import support as wire_support

pytestmark = pytest.mark.slow

LONG = int(os.environ.get("GLIDEMQ_LARGE", "0"))
MEMBERS = LONG or 10_000
CROWD = 6_000
"""More consumers and groups than a call reads."""
COMMANDS_MAX = 12_000
"""A raised limit starts at most 1,000 parked jobs, with ten commands each."""
CPU_LIMIT_US = 50_000
BARE_COMMANDS = 30_000
"""On a slow or busy machine, a call may take as long as this many commands of a script."""
REPLAYS = 6

BARE = "for i = 1, tonumber(ARGV[1]) do redis.call('HGET', KEYS[1], 'a') end"


def cpu_of(client: RespClient) -> int:
    """Microseconds of CPU that the server's main thread has used; unlike the time of a command, without its waiting."""
    info = client.info("cpu")
    used = (info["used_cpu_user_main_thread"], info["used_cpu_sys_main_thread"])
    return round(sum(float(seconds) for seconds in used) * 1_000_000)


def measure(client: RespClient, command: Sequence[Any]) -> tuple[int, int]:
    """Commands that the call has run, and microseconds of CPU."""
    client.execute("CONFIG", "RESETSTAT")
    before = cpu_of(client)
    with contextlib.suppress(RespError):
        client.execute(*command)
    cpu = cpu_of(client) - before
    statistics = client.info("commandstats").values()
    return sum(int(found[1]) for each in statistics if (found := re.match(r"calls=(\d+)", each))), cpu


@pytest.fixture(params=[False, True], ids=["members", "consumers"])
def large(request: pytest.FixtureRequest, private_server: StartServer) -> Iterator[LargeQueue]:
    with private_server().client(timeout=120) as client:
        if request.param:
            yield LargeQueue(client, MEMBERS, consumers=CROWD, groups=CROWD)
        else:
            yield LargeQueue(client, MEMBERS)


def fault_of(queue: LargeQueue, name: str, wire: bool, state: str) -> str:
    """Return why the call does too much, '' if it does not. The least CPU of several replays counts."""
    least, limit = 0, CPU_LIMIT_US
    for _ in range(REPLAYS):
        queue.prepare(state)
        commands, cpu = measure(queue.client, command_of(queue, name, wire, random.Random(f"{name}{state}")))
        if commands > COMMANDS_MAX:
            return f"{name}, jobs {state}: {commands} commands"
        if cpu <= limit:
            return ""
        least = min(least or cpu, cpu)
        bare = ("EVAL", BARE, 1, queue.q.key("none"), BARE_COMMANDS)
        limit = max(limit, measure(queue.client, bare)[1])
    return f"{name}, jobs {state}: {least} microseconds of CPU" if least > limit else ""


def test_work_of_a_call_is_bounded(large: LargeQueue):
    faults: list[str] = []
    for wire in (False, True):
        loaded: Library = wire_support.library() if wire else library()
        for name in sorted(loaded.functions):
            states = STATES if LONG else ("active", random.Random(name).choice(STATES[1:]))
            faults += [fault_of(large, name, wire, state) for state in states]
    assert [fault for fault in faults if fault] == []
