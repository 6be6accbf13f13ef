"""Hostile data in every key that a peer could write, and calls of every function on it, beside a queue at work."""

import time

from tests.chaos.run import ChaosRun
from tests.lua.hostile_calls import own_calls
from tests.lua.hostile_queue import CPU_LIMIT_US, OUR_FAULT, HostileQueue, MeasuredServer, measured
from tests.lua.own_support import library
from tests.wire_library import support as wire_support
from tests.wire_library.support import recorded_calls

NUMBER = 12
TITLE = "hostile data in every key that a peer could write; every function is called on it"
INJECTIONS = 1_000_000
SHORT_INJECTIONS = 3_000
MEMORY_MB = 50
"""What the server may need more than before, whatever is written to it."""


def play(run: ChaosRun):
    server = run.start_server()
    run.no_stalls = True
    measuring = run.closing(MeasuredServer(server))
    queue = HostileQueue(measuring.client)
    run.leaks.allow("*{hostile}*")
    run.fleet_of(1, jobs=100, rate=5 if run.long else 50)
    run.progress(20)
    before = _megabytes(run)
    wanted = INJECTIONS if run.long else SHORT_INJECTIONS
    until = time.monotonic() + (run.seconds or 0)
    calls = rejected = slowest = rounds = 0
    memory = 0.0
    while queue.injected < wanted or time.monotonic() < until:
        rounds += 1
        for wire in (False, True):
            loaded = wire_support.library() if wire else library()
            known = recorded_calls().keys() if wire else own_calls().keys()
            for name in sorted(loaded.functions):
                if queue.injected >= wanted and not run.long:
                    break
                seed = f"{run.seed}/{rounds}/{name}"
                cpu, error = measured(measuring, queue, name, wire, seed)
                calls, rejected, slowest = calls + 1, rejected + bool(error), max(slowest, cpu)
                ours = name in known and OUR_FAULT.search(error)
                run.expect(not ours, f"{seed}: {loaded.locate_error(error)}: {error}")
                run.expect(cpu <= CPU_LIMIT_US, f"{seed}: {cpu} microseconds of CPU")
        memory = max(memory, _megabytes(run) - before)
    run.bound("server CPU of the slowest call", slowest / 1_000, CPU_LIMIT_US / 1_000, "ms")
    run.bound("additional memory of the server", memory, MEMORY_MB, "MB")
    run.note(f"{queue.injected:,} injections, {calls:,} calls, {rejected:,} of them rejected with a reason")


def _megabytes(run: ChaosRun) -> float:
    return float(run.client.info("memory")["used_memory"]) / 1e6
