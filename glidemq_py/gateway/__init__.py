"""Gateway: serves clients of bunqueue's TCP protocol from the queues of this package.

A gateway process has no state besides its connections, so any number of them work side by side. The table of commands
(`glidemq_py.gateway.commands`) lists which commands exist; docs/learn/gateway.md shows it.
"""

from glidemq_py.gateway.client_names import (
    ClientIds,
    JobAddress,
    RestoredIds,
    client_queue_name,
    queue_name,
    restore_ids,
)
from glidemq_py.gateway.options import GatewayOptions
from glidemq_py.gateway.server import Gateway

__all__ = [
    "ClientIds", "Gateway", "GatewayOptions", "JobAddress", "RestoredIds", "client_queue_name", "queue_name",
    "restore_ids",
]  # fmt: skip
