"""Generates the table of docs/learn/gateway.md: run ``python -m tools.generate_gateway``.

The table is written between the comments ``<!-- gateway commands -->`` and ``<!-- end -->``, from the table of commands
of `glidemq_py.gateway.commands`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from glidemq_py.gateway.commands import COMMANDS, PROTOCOL
from glidemq_py.gateway.table import Field, Kind

PAGE: Final = Path(__file__).parent.parent / "docs" / "learn" / "gateway.md"
_TABLE: Final = re.compile(r"(<!-- gateway commands -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """Return the page with the current table."""
    rows = [_row(group, name) for group, names in PROTOCOL.items() for name in names]
    counts = f"{len(COMMANDS)} of {len(rows)} commands are supported."
    table = "\n".join(["| group | command | fields | effect |", "| --- | --- | --- | --- |", *rows])
    return _TABLE.sub(lambda match: f"{match[1]}{counts}\n\n{table}\n{match[2]}", text)


def _row(group: str, name: str) -> str:
    command = COMMANDS.get(name)
    if command is None:
        return f"| {group} | `{name}` | | not yet |"
    fields = ", ".join(_shown(field) for field in command.fields if field.kind is not Kind.UNSUPPORTED)
    return f"| {group} | `{name}` | {fields} | {command.summary} |"


def _shown(field: Field) -> str:
    limits = "" if field.maximum is None else f" {field.minimum or 0:,.0f}..{field.maximum:,.0f}"
    return f"`{field.name}` ({field.kind}{limits}{', required' if field.required else ''})"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
