"""What a drained queue must not hold: pending entries, active slots, sequence numbers that no job has, open work."""

from __future__ import annotations

from typing import Final

from glidemq_py.testing import RespClient, RespError

__all__ = ["left_behind"]

_EMPTY: Final = {
    "list-active-ids": "SCARD", "list-heartbeats": "ZCARD", "list-popped": "ZCARD", "outbox": "XLEN", "flows": "HLEN",
    "priority": "LLEN", "lifo": "LLEN", "ratelimited": "ZCARD", "remote-parents": "HLEN", "scheduled": "ZCARD",
    "ranked-above": "ZCARD", "ranked-below": "ZCARD", "delayed-own": "ZCARD", "fair": "ZCARD", "fair-keys": "ZCARD",
    "fair-blocked": "ZCARD", "fair-delayed": "ZCARD", "fair-active": "HLEN", "fair-running": "HLEN",
    "stream": "XLEN", "suspects": "ZCARD", "suspended": "ZCARD", "waiting-children": "ZCARD", "writes": "ZCARD",
}  # fmt: skip


def left_behind(client: RespClient, base: str) -> list[str]:
    """Return what is left in a queue whose jobs have all ended, one text each. `base`: `glide:{queue}:`."""
    found: list[str] = []
    try:
        pending = int(client.execute("XPENDING", f"{base}stream", "workers")[0])
    except RespError:  # no worker has created the group
        pending = 0
    if pending:
        found.append(f"{pending} pending entries")
    for suffix, command in _EMPTY.items():
        count = int(client.execute(command, base + suffix))
        if count:
            found.append(f"{suffix}: {count} entries")
    active = int(client.execute("GET", f"{base}list-active") or 0)
    if active:
        found.append(f"list-active: {active}")
    issued = client.hash(f"{base}ordering")
    for group, last in issued.items():
        found += _of_group(client, base, group, int(last))
    return found


def _of_group(client: RespClient, base: str, group: str, last: int) -> list[str]:
    record = client.hash(f"{base}group:{group}")
    found: list[str] = []
    if int(record.get("active", "0")):
        found.append(f"group {group}: {record['active']} slots")
    following = int(record.get("nextSeq", "0"))
    if following and following != last + 1:
        found.append(f"group {group}: waits for sequence {following}, the last issued is {last}")
    skipped = [field for field in record if field.startswith("skip:")]
    if skipped:
        found.append(f"group {group}: {len(skipped)} skip marks")
    parked = int(client.execute("ZCARD", f"{base}groupq:{group}"))
    if parked:
        found.append(f"group {group}: {parked} parked jobs")
    return found
