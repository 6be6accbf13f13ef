"""A cluster of three primaries with a replica each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from glidemq_py.testing import ClusterProcess, RespClient, RespError, ServerProcess
from tests.inside import embedded

__all__ = ["NODE_TIMEOUT_MS", "ReplicatedCluster"]

NODE_TIMEOUT_MS: Final = 2_000
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.02
_KEYS_PER_STEP: Final = 20


class ReplicatedCluster:
    """Six nodes on this machine. `start`, `close`, `url`; `owner` is the primary of a queue's slot."""

    def __init__(self, binary: Path):
        config: dict[str, str | int] = {
            "cluster-node-timeout": NODE_TIMEOUT_MS,
            "appendonly": "yes",
            "appendfsync": "everysec",
        }
        self._cluster = ClusterProcess(binary, config=config)
        self._binary = binary
        self.replicas: list[ServerProcess] = []

    @property
    def nodes(self) -> list[ServerProcess]:
        return [*self._cluster.nodes, *self.replicas]

    @property
    def url(self) -> str:
        return "valkey+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> ReplicatedCluster:
        self._cluster.start()
        for primary in self._cluster.nodes:
            bus = embedded.free_port()
            replica = ServerProcess(self._binary, config={**primary._config, "cluster-port": bus}).start()
            self.replicas.append(replica)
            with primary.client() as client, replica.client() as other:
                client.execute("CLUSTER", "MEET", "127.0.0.1", replica.port, bus)
                primary_id = client.execute("CLUSTER", "MYID")
                _until(lambda other=other, primary_id=primary_id: _replicates(other, primary_id))
        for replica in self.replicas:
            self.wait_replicating(replica)
        _until(self._every_node_knows_the_replicas)
        return self

    def _every_node_knows_the_replicas(self) -> bool:
        """Return whether every node lists a replica for every slot; the news takes a few messages between the nodes."""
        for node in self.nodes:
            with node.client() as client:
                if any(len(row) < 4 for row in client.execute("CLUSTER", "SLOTS")):
                    return False
        return True

    def close(self):
        for node in self.replicas:
            node.close()
        self._cluster.close()

    def wait_replicating(self, node: ServerProcess):
        """Wait until the node is a replica in sync with its primary."""
        with node.client() as client:
            _until(lambda: _in_sync(client))

    @staticmethod
    def wait_promoted(replica: ServerProcess):
        """Wait until the replica has become a primary."""
        with replica.client() as client:
            _until(lambda: client.info("replication")["role"] == "master")

    def owner(self, key: str) -> tuple[ServerProcess, ServerProcess]:
        """Return the primary of the key's slot, and its replica."""
        for node in self.nodes:
            if not node.is_running():
                continue
            with node.client() as client:
                slot = client.execute("CLUSTER", "KEYSLOT", key)
                for first, last, primary, *replicas in client.execute("CLUSTER", "SLOTS"):
                    if first <= slot <= last and replicas:
                        return self._node(primary[1]), self._node(replicas[0][1])
        raise AssertionError(f"no primary with a replica for {key}")

    def move_slot(self, key: str):
        """Move the key's hash slot to another shard, atomically."""
        source, _ = self.owner(key)
        with source.client(timeout=60) as client:
            slot = client.execute("CLUSTER", "KEYSLOT", key)
            own = client.execute("CLUSTER", "MYID")
            rows = client.execute("CLUSTER", "SLOTS")
            target = next(primary for _, _, primary, *_ in rows if primary[2] != own)
            client.execute("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target[2])
        _until(lambda: self.owner(key)[0].port == target[1])

    def move_slot_by_key(self, key: str):
        """Move the key's hash slot to another shard, a few keys at a time (MIGRATE), while clients use it."""
        source, _ = self.owner(key)
        target = next(node for node in self._primaries() if node is not source)
        with source.client(timeout=60) as old, target.client(timeout=60) as new:
            slot = old.execute("CLUSTER", "KEYSLOT", key)
            old_id, new_id = old.execute("CLUSTER", "MYID"), new.execute("CLUSTER", "MYID")
            new.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
            old.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
            while keys := old.execute("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_PER_STEP):
                old.execute("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "REPLACE", "KEYS", *keys)
            for client in (new, old):
                client.execute("CLUSTER", "SETSLOT", slot, "NODE", new_id)
        _until(lambda: self.owner(key)[0] is target)

    def _primaries(self) -> list[ServerProcess]:
        with self._cluster.nodes[0].client() as client:
            return [self._node(primary[1]) for _, _, primary, *_ in client.execute("CLUSTER", "SLOTS")]

    @staticmethod
    def stop_replication(primary: ServerProcess, replica: ServerProcess):
        """Let the replica fall behind: it is disconnected, and reconnects with a password that the primary rejects."""
        with primary.client() as client, replica.client() as other:
            other.execute("CONFIG", "SET", "primaryauth", "wrong")
            client.execute("CLIENT", "KILL", "TYPE", "replica")
            _until(lambda: other.info("replication")["master_link_status"] == "down")

    @staticmethod
    def allow_replication(replica: ServerProcess):
        """Undo `stop_replication`."""
        with replica.client() as client:
            client.execute("CONFIG", "SET", "primaryauth", "")

    def bystander(self, key: str) -> RespClient:
        """Return a raw client whose home is a node of another shard."""
        shard = self.owner(key)
        return next(node for node in self._cluster.nodes if node not in shard).client(timeout=60)

    def _node(self, port: int) -> ServerProcess:
        return next(node for node in self.nodes if node.port == port)


def _replicates(client: RespClient, primary_id: str) -> bool:
    try:
        client.execute("CLUSTER", "REPLICATE", primary_id)
    except RespError as error:
        if "Unknown node" in str(error):
            return False
        raise
    return True


def _in_sync(client: RespClient) -> bool:
    found = client.info("replication")
    return found["role"] == "slave" and found["master_link_status"] == "up"


def _until(reached: object):
    deadline = time.monotonic() + _PATIENCE_S
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the cluster did not reach its state"
        time.sleep(_POLL_S)
