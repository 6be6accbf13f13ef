"""Clients add and run jobs through two gateways, beside a worker; a gateway, a client or the server is killed
(SIGKILL) and replaced.
"""

import contextlib
import re
import socket
import time

from tests.chaos.fleet import Party
from tests.chaos.run import ChaosRun

NUMBER = 20
TITLE = "two gateways, their clients and a worker: a gateway, a client or the server killed every 2 s"
LOCK_MS, INTERVAL_MS = 2_000, 1_000
LIMIT_S = (LOCK_MS + INTERVAL_MS) / 1000 + 1
WORK_MS = 20
START_S = 60.0
_ERROR = re.compile(r" ERROR .*glidemq_py\.gateway")


def play(run: ChaosRun):
    server = run.start_server(appendonly="yes", appendfsync="always")
    run.leaks.allow("*:wake-channels", "*:gateway:*")
    with run.queue() as queue:
        queue.settings.set_stalled_policy(stalled_interval=INTERVAL_MS, max_stalled_count=1_000, stalled_grace=0)
    ports = [_free_port(), _free_port()]
    gateways = [_started(run.fleet.gateway(port), port) for port in ports]
    workers = [run.fleet.gateway_client("work", ports, work_ms=WORK_MS) for _ in range(3)]
    workers.append(run.fleet.worker(options={"lock_duration": LOCK_MS, "concurrency": 2}, work_ms=WORK_MS))
    for each in workers:
        each.wait_ready()
    for _ in range(2):
        run.fleet.gateway_client("produce", ports, rate=60)
    counts = {"gateway": 0, "client": 0, "server": 0}
    for number in run.faults(6, progress=60):
        what = ("gateway", "client", "gateway", "server")[number % 4]
        counts[what] += 1
        if what == "gateway":
            index = counts[what] % 2
            gateways[index].kill()
            gateways[index] = _started(run.fleet.gateway(ports[index]), ports[index])
        elif what == "client":
            index = run.random.randrange(3)
            workers[index].wait_active()
            run.killed(workers[index].kill(), LIMIT_S)
            workers[index] = run.fleet.gateway_client("work", ports, work_ms=WORK_MS)
        else:
            run.restart(server)
    run.note(", ".join(f"{what} {count}" for what, count in counts.items()))
    run.checks.append(lambda: _stop(run, gateways))


def _stop(run: ChaosRun, gateways: list[Party]):
    for each in gateways:
        each.stop()
        run.expect(not any(_ERROR.search(line) for line in each.lines()), f"{each.name} logged an error")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _started(gateway: Party, port: int) -> Party:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return gateway
        if not gateway.alive:
            break
        time.sleep(0.05)
    raise AssertionError(f"{gateway.name} does not listen: {gateway.lines()[-5:]}")
