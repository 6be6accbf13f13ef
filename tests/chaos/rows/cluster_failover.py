"""A cluster with replicas: a primary dies while its replica lags, and returns as a replica; it hands over (CLUSTER
FAILOVER); the queue's slot moves, atomically and key by key.
"""

import time

from glidemq_py.testing import server_binary
from tests.chaos.replicated_cluster import NODE_TIMEOUT_MS, ReplicatedCluster
from tests.chaos.run import QUEUE, ChaosRun

NUMBER = 4
TITLE = (
    "3 primaries + 3 replicas: primary killed with a lagging replica, CLUSTER FAILOVER, slot moved at once and by key"
)
LIMIT_S = 2 * NODE_TIMEOUT_MS / 1000 + 2
REPLICATION_S = 1.0
"""What was acknowledged so shortly before the end of replication may not have been replicated."""
UNREPLICATED = 50
"""Adds that only the primary has received when it dies."""


def play(run: ChaosRun) -> None:
    cluster = run.closing(ReplicatedCluster(server_binary("valkey-9.1")))
    cluster.start()
    run.use(cluster.url, cluster.bystander(QUEUE))
    run.expects_findings = True
    run.fleet_of(2, jobs=500, rate=60, request_timeout=3_000)
    lost = 0
    for number in run.faults(4, every=5, progress=60):
        primary, replica = cluster.owner(QUEUE)
        match number % 4:
            case 0:
                cluster.stop_replication(primary, replica)
                since = time.monotonic()
                lost += _acknowledge(run)
                primary.kill()
                run.excuse(time.monotonic() - since + REPLICATION_S)
                cluster.allow_replication(replica)
                run.serving("served again after a death", time.monotonic(), LIMIT_S)
                primary.start(start_timeout=60_000)
                cluster.wait_replicating(primary)
            case 1:
                with replica.client() as client:
                    client.execute("CLUSTER", "FAILOVER")
                run.serving("served again after CLUSTER FAILOVER", time.monotonic(), LIMIT_S)
                cluster.wait_replicating(primary)
            case 2:
                cluster.move_slot(QUEUE)
                run.serving("served again after a move of the slot", time.monotonic(), LIMIT_S)
            case _:
                cluster.move_slot_by_key(QUEUE)
                run.serving("served again after a move by key", time.monotonic(), LIMIT_S)
        run.client.close()  # its connections may be those of a dead node
    run.note(f"{lost} adds were acknowledged while the replica of a primary that died did not receive them")


def _acknowledge(run: ChaosRun) -> int:
    """Wait until some more adds are acknowledged; return how many."""
    known = run.ledger.acknowledged
    before = len(known)
    run.ledger.wait(lambda: len(known) >= before + UNREPLICATED, 20)
    return len(known) - before
