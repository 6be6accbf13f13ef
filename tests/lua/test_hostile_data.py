"""Every function of both libraries, on queues with arbitrary values in any key.

No call hangs, none takes more than 50 ms of the server's CPU, and every error is one of the server about the data, not
one of Lua about our code.

    GLIDEMQ_CHAOS=50 python -m pytest tests/lua/test_hostile_data.py   50 rounds instead of a few, new ones each time
"""

import os
import random
from collections.abc import Iterator

import pytest

from tests.inside import Library
from tests.lua.hostile_calls import command_of, own_calls
from tests.lua.hostile_queue import CPU_LIMIT_US, OUR_FAULT, HostileQueue, MeasuredServer, measured
from tests.lua.own_support import library
from tests.server.worker_support import StartServer
from tests.wire_library import support as wire_support
from tests.wire_library.support import recorded_calls

pytestmark = pytest.mark.slow

CHAOS = int(os.environ.get("GLIDEMQ_CHAOS", "0"))
ROUNDS = CHAOS or 3
SEED = random.randrange(10**9) if CHAOS else 20_260_701


@pytest.fixture
def hostile(private_server: StartServer) -> Iterator[tuple[MeasuredServer, HostileQueue]]:
    server = MeasuredServer(private_server())
    try:
        yield server, HostileQueue(server.client)
    finally:
        server.client.close()


@pytest.mark.parametrize("wire", [False, True], ids=["own", "wire"])
def test_no_data_makes_a_function_hang_or_crash(hostile: tuple[MeasuredServer, HostileQueue], wire: bool):
    server, queue = hostile
    loaded: Library = wire_support.library() if wire else library()
    known = recorded_calls().keys() if wire else own_calls().keys()
    assert known - loaded.functions == set(), "these functions are gone: remove them from hostile_calls.txt"
    faults = []
    for number in range(ROUNDS):
        for name in sorted(loaded.functions):
            seed = f"{SEED}/{number}/{name}"
            cpu, error = measured(server, queue, name, wire, seed)
            if name in known and OUR_FAULT.search(error):
                faults.append(f"{seed}: {loaded.locate_error(error)}: {error}")
            if cpu > CPU_LIMIT_US:
                faults.append(f"{seed}: {cpu} microseconds of CPU")
    assert faults == []


@pytest.mark.parametrize("wire", [False, True], ids=["own", "wire"])
def test_every_function_works_on_sound_data(hostile: tuple[MeasuredServer, HostileQueue], wire: bool):
    """The arguments are plausible: without hostile data nothing fails. A function that hostile_calls.txt does not
    know yet is called all the same, with arguments of any kind, and must not hang.
    """
    server, queue = hostile
    errors = {}
    for name in sorted(recorded_calls() if wire else own_calls()):
        queue.restore()
        _, error = server.cpu_of(command_of(queue, name, wire, random.Random(name)))
        if error:
            errors[name] = error
    assert errors == {}


def test_obliterate_leaves_nothing(hostile: tuple[MeasuredServer, HostileQueue]):
    _, queue = hostile
    assert queue.q.obliterate(force=True)[-1][0] == "done"
    assert {name.partition(":")[0] for name in queue.q.key_names()} == {"budget", "usage"}, (
        "which belong to no job here"
    )
