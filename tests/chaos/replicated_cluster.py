"""A cluster of three primaries with a replica each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from glidemq_py._client.embedded import free_port
from glidemq_py.testing import ClusterProcess, RespClient, RespError, ServerProcess

__all__ = ["NODE_TIMEOUT_MS", "ReplicatedCluster"]

NODE_TIMEOUT_MS: Final = 2_000
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.02


class ReplicatedCluster:
    """Six nodes on this machine. `start`, `close`, `url`; `owner` is the primary of a queue's slot."""

    def __init__(self, binary: Path) -> None:
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
            bus = free_port()
            replica = ServerProcess(self._binary, config={**primary._config, "cluster-port": bus}).start()
            self.replicas.append(replica)
            with primary.client() as client, replica.client() as other:
                client.execute("CLUSTER", "MEET", "127.0.0.1", replica.port, bus)
                primary_id = client.execute("CLUSTER", "MYID")
                _until(lambda other=other, primary_id=primary_id: _replicates(other, primary_id))
        for replica in self.replicas:
            self.wait_replicating(replica)
        return self

    def close(self) -> None:
        for node in self.replicas:
            node.close()
        self._cluster.close()

    def wait_replicating(self, node: ServerProcess) -> None:
        """Wait until the node is a replica in sync with its primary."""
        with node.client() as client:
            _until(lambda: _in_sync(client))

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

    def move_slot(self, key: str) -> None:
        """Move the key's hash slot to another shard, atomically."""
        source, _ = self.owner(key)
        with source.client(timeout=60) as client:
            slot = client.execute("CLUSTER", "KEYSLOT", key)
            own = client.execute("CLUSTER", "MYID")
            rows = client.execute("CLUSTER", "SLOTS")
            target = next(primary for _, _, primary, *_ in rows if primary[2] != own)
            client.execute("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target[2])
        _until(lambda: self.owner(key)[0].port == target[1])

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


def _until(reached: object) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the cluster did not reach its state"
        time.sleep(_POLL_S)
