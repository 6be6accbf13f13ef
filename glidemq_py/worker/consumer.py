"""A worker's name in the consumer group."""

from __future__ import annotations

import os
import re
import secrets
import socket

__all__ = ["consumer_name"]


def consumer_name() -> str:
    """Unlike those of Node peers (`worker-...`), so that recovery knows whose heartbeat to look for."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:48]
    return f"py-{host}-{os.getpid()}-{secrets.token_hex(4)}"
