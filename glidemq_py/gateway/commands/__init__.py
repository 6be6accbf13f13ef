"""The commands of the protocol, in one file per subject."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from glidemq_py.gateway.commands import (
    adding,
    connection,
    control,
    cron,
    dead_letters,
    deduplication,
    fetching,
    flows,
    groups,
    jobs,
    limits,
    locks,
    monitoring,
    reporting,
    webhooks,
)
from glidemq_py.gateway.session import Command

__all__ = ["COMMANDS", "PROTOCOL"]

_GROUPS: Final = (
    connection, adding, fetching, reporting, flows, jobs, control, dead_letters, cron, locks, limits, groups,
    deduplication, webhooks, monitoring,
)  # fmt: skip

COMMANDS: Final[Mapping[str, Command]] = {command.name: command for group in _GROUPS for command in group.COMMANDS}
"""The commands that a gateway executes, by name."""

PROTOCOL: Final[Mapping[str, tuple[str, ...]]] = {
    group: tuple(name for name, command in COMMANDS.items() if command.group == group)
    for group in dict.fromkeys(command.group for command in COMMANDS.values())
}
"""All commands of protocol 3 by group."""
