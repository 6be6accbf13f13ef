"""A cluster with replicas: a primary dies and returns as a replica, or hands over (CLUSTER FAILOVER); a slot moves."""

import time

from glidemq_py.testing import server_binary
from tests.chaos.replicated_cluster import NODE_TIMEOUT_MS, ReplicatedCluster
from tests.chaos.run import QUEUE, ChaosRun

NUMBER = 4
TITLE = "3 primaries + 3 replicas: primary killed, CLUSTER FAILOVER, slot moved, old primary back as a replica"
LIMIT_S = 2 * NODE_TIMEOUT_MS / 1000 + 2
REPLICATION_S = 1.0
"""What was acknowledged so shortly before the death of a primary may not have been replicated."""


def play(run: ChaosRun) -> None:
    cluster = run.closing(ReplicatedCluster(server_binary("valkey-9.1")))
    cluster.start()
    run.use(cluster.url, cluster.bystander(QUEUE))
    run.expects_findings = True
    run.fleet_of(2, jobs=500, rate=60, request_timeout=3_000)
    for number in run.faults(3, every=5, progress=60):
        primary, replica = cluster.owner(QUEUE)
        match number % 3:
            case 0:
                run.excuse(REPLICATION_S)
                primary.kill()
                run.serving("served again after a death", time.monotonic(), LIMIT_S)
                primary.start(start_timeout=60_000)
                cluster.wait_replicating(primary)
            case 1:
                with replica.client() as client:
                    client.execute("CLUSTER", "FAILOVER")
                run.serving("served again after CLUSTER FAILOVER", time.monotonic(), LIMIT_S)
                cluster.wait_replicating(primary)
            case _:
                cluster.move_slot(QUEUE)
                run.serving("served again after a move of the slot", time.monotonic(), LIMIT_S)
        run.client.close()  # its connections may be those of a dead node
