"""Generates the table of docs/operate/permissions.md: run ``python -m tools.generate_permissions``.

The table is written between the comments ``<!-- methods by role -->`` and ``<!-- end -->``, from tools/permissions.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tools.permissions import METHODS, ROLES

PAGE: Final = Path(__file__).parent.parent / "docs" / "operate" / "permissions.md"
_TABLE: Final = re.compile(r"(<!-- methods by role -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """Return the page with the current table."""
    head = f"| | {' | '.join(ROLES)} |\n| --- |{' --- |' * len(ROLES)}"
    return _TABLE.sub(lambda match: f"{match[1]}{head}\n{chr(10).join(_rows())}\n{match[2]}", text)


def _rows() -> list[str]:
    rows: list[str] = []
    for roles, methods in METHODS.items():
        marks = " | ".join("yes" if role in roles.split() else "-" for role in ROLES)
        for kind, names in methods.items():
            shown = ", ".join(name if " " in name else f"`{name}`" for name in names)
            rows.append(f"| {f'`{kind}`: ' if kind else ''}{shown} | {marks} |")
    return rows


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
