"""Generates the tables of commands and actions: run ``python -m tools.generate_commands``.

They are written between the comments ``<!-- commands -->`` or ``<!-- actions -->`` and ``<!-- end -->`` of two pages,
from the commands of `glidemq_py.cli.app` and the declarations of `glidemq_py._operate`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import typer

from glidemq_py._operate.actions import ACTIONS
from glidemq_py.cli import PASSED
from glidemq_py.cli.app import app

_DOCS: Final = Path(__file__).parent.parent / "docs"
PAGE: Final = _DOCS / "reference" / "command-line.md"
PAGES: Final = (PAGE, _DOCS / "operate" / "dashboard.md")
_TABLE: Final = re.compile(r"(<!-- (commands|actions) -->\n).*?(<!-- end -->)", re.DOTALL)
_COMMON: Final = ("--url", "--prefix", "--json", "--help")


def page(text: str) -> str:
    """Return the page with the current tables."""
    made = {"commands": _commands, "actions": _actions}
    return _TABLE.sub(lambda match: f"{match[1]}{made[match[2]]()}\n{match[3]}", text)


def _actions() -> str:
    rows: dict[str, list[Any]] = {}
    for action in ACTIONS.values():
        rows.setdefault(action.kind, []).append(action)
    lines = ["| action | role | effect | command | request of the proxy |", "| --- | --- | --- | --- | --- |"]
    for kind, of in sorted(rows.items()):
        texts = " ".join(" ".join((each.__doc__ or "").split("\n\n")[0].split()) for each in of)
        named = [each.command.replace("workers", "worker") for each in of if each.command]
        routes = [f"POST /queues/NAME{each.route[0]}".replace("{id}", "ID") for each in of if each.route]
        commands, requests = (", ".join(f"`{each}`" for each in some) for some in (named, routes))
        lines.append(f"| `{kind}` | {of[0].role} | {_cell(texts.replace('``', '`'))} | {commands} | {requests} |")
    return "\n".join(lines)


def _commands() -> str:
    root: Any = typer.main.get_command(app)
    single = [
        (name, each) for name, each in root.commands.items() if not hasattr(each, "commands") and name not in PASSED
    ]
    lines = [*_table("", single)]
    for name, group in root.commands.items():
        if hasattr(group, "commands"):
            shown = "worker" if name == "workers" else name
            lines += [
                "",
                f"### `glidemq {shown}`",
                "",
                group.help,
                "",
                *_table(f"{shown} ", list(group.commands.items())),
            ]
    return "\n".join(lines)


def _table(before: str, commands: list[tuple[str, Any]]) -> list[str]:
    lines = ["| command | effect | options |", "| --- | --- | --- |"]
    for name, command in commands:
        arguments = [_argument(each) for each in command.params if each.param_type_name == "argument"]
        usage = " ".join([f"glidemq {before}{name}", *arguments])
        effect = _cell(" ".join(command.help.split()))
        lines.append(f"| `{usage}` | {effect} | {_options(command)} |")
    return lines


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).strip("[]").rstrip(".").upper()
    many = f"{name}..." if parameter.nargs == -1 else name
    return many if parameter.required else f"[{many}]"


def _options(command: Any) -> str:
    found: list[str] = []
    for each in command.params:
        if each.param_type_name != "option" or each.opts[0] in _COMMON:
            continue
        kind = "N" if each.type_descriptor.annotation is int else "TEXT"
        value = "" if each.is_flag else f" {each.metavar or kind}"
        default = "" if each.is_flag or each.default in (None, [], "") else f" (default: {each.default})"
        found.append(f"`{', '.join(each.opts)}{value}`: {_cell(each.help or '')[:-1]}{default}")
    return "<br>".join(found)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the pages."""
    for each in PAGES:
        each.write_text(page(each.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
