"""Move a queue's hash slot between two nodes of a cluster: key by key, or atomically by Valkey 9."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from glidemq_py.testing import ClusterProcess, RespClient

__all__ = ["SlotMover"]

_KEYS_PER_STEP = 5


class SlotMover:
    """Moves the hash slot of one queue.

    Args:
        cluster: a cluster of at least two primaries.
        name: name of the queue.
    """

    def __init__(self, cluster: ClusterProcess, name: str):
        self._nodes = [node.client(timeout=60) for node in cluster.nodes]
        self._ports = [node.port for node in cluster.nodes]
        self._ids: list[str] = [client.execute("CLUSTER", "MYID") for client in self._nodes]
        self.slot: int = self._nodes[0].execute("CLUSTER", "KEYSLOT", name)
        self.moved_keys = 0
        owners = [i for i, client in enumerate(self._nodes) if self._owns(client)]
        (self.owner,) = owners

    def _owns(self, client: RespClient) -> bool:
        me = client.execute("CLUSTER", "MYID")
        return any(
            first <= self.slot <= last and node[2] == me for first, last, node, *_ in client.execute("CLUSTER", "SLOTS")
        )

    def close(self):
        for client in self._nodes:
            client.close()

    def target(self) -> int:
        return (self.owner + 1) % len(self._nodes)

    async def run(self, step: Callable[[], Any]) -> Any:
        """Run one step in a thread, so that the event loop under test continues."""
        return await asyncio.to_thread(step)

    def begin(self):
        """Send SETSLOT IMPORTING and MIGRATING."""
        source, target = self._nodes[self.owner], self._nodes[self.target()]
        target.execute("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self._ids[self.owner])
        source.execute("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self._ids[self.target()])

    def write_at_target(self, *command: str):
        """Execute a command at the target as a client does that was redirected by ASK."""
        target = self._nodes[self.target()]
        target.execute("ASKING")
        target.execute(*command)

    def move_keys(self, at_most: int = 1_000_000, *, replace: bool = False) -> int:
        """MIGRATE a few keys at a time, until none is left or ``at_most`` have moved. Return the number moved.

        Without ``replace``, a key that already exists at the target is BUSYKEY, at which a tool stops.
        """
        options = ("REPLACE",) if replace else ()
        source, port = self._nodes[self.owner], self._ports[self.target()]
        moved = 0
        while moved < at_most:
            keys = source.execute("CLUSTER", "GETKEYSINSLOT", self.slot, min(_KEYS_PER_STEP, at_most - moved))
            if not keys:
                break
            source.execute("MIGRATE", "127.0.0.1", port, "", 0, 5_000, *options, "KEYS", *keys)
            moved += len(keys)
        self.moved_keys += moved
        return moved

    def end(self):
        """Send SETSLOT NODE, to the target first."""
        new = self.target()
        for i in (new, self.owner, *(i for i in range(len(self._nodes)) if i not in (new, self.owner))):
            self._nodes[i].execute("CLUSTER", "SETSLOT", self.slot, "NODE", self._ids[new])
        self.owner = new

    def leftovers(self) -> dict[int, list[str]]:
        """Return the keys of the slot at nodes that do not own it."""
        found = {
            i: client.execute("CLUSTER", "GETKEYSINSLOT", self.slot, 1_000)
            for i, client in enumerate(self._nodes)
            if i != self.owner
        }
        return {i: keys for i, keys in found.items() if keys}

    def keys_at_source(self) -> list[str]:
        """Return the keys still at the source."""
        return sorted(self._nodes[self.owner].execute("CLUSTER", "GETKEYSINSLOT", self.slot, 1_000))

    def keys_at_target(self) -> list[str]:
        """Return the keys already at the target."""
        return sorted(self._nodes[self.target()].execute("CLUSTER", "GETKEYSINSLOT", self.slot, 1_000))

    def move_atomically(self):
        """Run CLUSTER MIGRATESLOTS of Valkey 9, and wait until the target owns the slot."""
        source, new = self._nodes[self.owner], self.target()
        source.execute("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", self.slot, self.slot, "NODE", self._ids[new])
        deadline = time.monotonic() + 120
        while not all(self._owned_by(client, new) for client in self._nodes):
            if time.monotonic() > deadline:
                raise TimeoutError(str(source.execute("CLUSTER", "GETSLOTMIGRATIONS")))
            time.sleep(0.01)
        self.owner = new

    def _owned_by(self, client: RespClient, index: int) -> bool:
        return any(
            first <= self.slot <= last and node[2] == self._ids[index]
            for first, last, node, *_ in client.execute("CLUSTER", "SLOTS")
        )
