"""A cluster with replicas: a primary dies while its replica lags, and returns as a replica; it hands over (CLUSTER
FAILOVER); the queue's slot moves, atomically and key by key. With adds that all replicas confirm, none is lost.
"""

import time
from functools import partial

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
VARIANTS = ("", "durable")
DURABLE = {"disk": False, "replicas": 1, "timeout": 1_500}
"""Each primary has one replica."""


def play(run: ChaosRun, variant: str = ""):
    cluster = run.closing(ReplicatedCluster(server_binary("valkey-9.1")))
    cluster.start()
    run.control.start()
    run.use(cluster.url, cluster.bystander(QUEUE))
    run.expects_findings = True
    if variant:
        run.durable_adds = True
        run.fleet.make_durable(DURABLE)
    run.fleet_of(2, jobs=500, rate=60, request_timeout=3_000)
    lost = 0
    for number in run.faults(4, every=5, progress=60):
        primary, replica = cluster.owner(QUEUE)
        match number % 4:
            case 0:
                cluster.stop_replication(primary, replica)
                since, before = time.monotonic(), len(run.ledger.acknowledged)
                if variant:
                    lost += _add_unconfirmed(run)
                else:
                    run.ledger.wait(partial(_acknowledged, run, before + UNREPLICATED), 20)
                primary.kill()
                if not variant:
                    run.ledger.sync()
                    lost += len(run.ledger.acknowledged) - before
                _excuse(run, since)
                cluster.allow_replication(replica)
                died_at = time.monotonic()
                if variant:  # durable adds continue only when there is a replica again
                    cluster.wait_promoted(replica)
                else:
                    run.serving("served again after a death", died_at, LIMIT_S)
                primary.start(start_timeout=60_000)
                cluster.wait_replicating(primary)
                if variant:
                    run.serving("confirmed adds again after the old primary was back", time.monotonic(), LIMIT_S)
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
    how = "not confirmed" if variant else "acknowledged"
    run.note(f"{lost} adds were {how} while the replica of a primary that died did not receive them")


def _excuse(run: ChaosRun, since: float):
    """Excuse the adds that the dead primary acknowledged alone; a slow machine replicates, and reports them, later."""
    now = time.monotonic()
    lag = REPLICATION_S * max(1.0, run.control.slowdown(since, now))
    run.excuse(since - lag, now + min(lag, NODE_TIMEOUT_MS / 1000))


def _add_unconfirmed(run: ChaosRun) -> int:
    """Wait until some adds have failed because the replica does not confirm them; return how many."""
    unsure = run.ledger.unsure
    before = unsure["DurabilityError"]
    reached = run.ledger.wait(lambda: unsure["DurabilityError"] > before, 20)
    run.expect(reached, "adds were confirmed although the replica was disconnected")
    return unsure["DurabilityError"] - before


def _acknowledged(run: ChaosRun, least: int) -> bool:
    return len(run.ledger.acknowledged) >= least
