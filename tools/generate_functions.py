"""Generates the reference of the server functions: run ``python -m tools.generate_functions``.

In docs/reference/functions.md, the headers of the Lua files stand between ``<!-- header of <file below lua/> -->`` and
``<!-- end -->``, each with the functions that the file exports and their flags. The table of all functions stands
after ``<!-- functions -->``. The text around them is written by hand. tests/unit/test_reference.py fails if a part is
out of date, or if a function has no section.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LUA = ROOT / "lua"
PAGE = ROOT / "docs" / "reference" / "functions.md"
HEADER = re.compile(r"(<!-- header of ([\w/.]+) -->\n).*?(<!-- end -->)", re.DOTALL)
TABLE = re.compile(r"(<!-- functions -->\n).*?(<!-- end -->)", re.DOTALL)
EXPORT = re.compile(r"G\.export\('(\w+)', \{(.*?)\}")


def exported() -> dict[str, tuple[str, str]]:
    """Return the file below lua/ and the flags of each exported function of our own library, by its name."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(LUA.glob("**/functions/*.lua")):
        for name, flags in EXPORT.findall(path.read_text(encoding="utf-8")):
            found[name] = path.relative_to(LUA).as_posix(), ", ".join(re.findall(r"[\w-]+", flags))
    return found


def page(text: str) -> str:
    """Return the page with every generated part replaced by the current one."""
    functions = exported()

    def header(match: re.Match[str]) -> str:
        file = match[2]
        rows = [f"`lua/{file}`", "", "```text", *leading_comment(LUA / file), "```"]
        return match[1] + "\n".join(rows) + f"\n{match[3]}"

    text = HEADER.sub(header, text)
    anchors = _sections(text)
    rows = ["| function | flags | file |", "| --- | --- | --- |"]
    for name, (file, flags) in sorted(functions.items()):
        shown = f"[{name}](#{anchors[name]})" if name in anchors else name
        rows.append(f"| {shown} | {f'`{flags}`' if flags else ''} | `lua/{file}` |")
    return TABLE.sub(lambda match: match[1] + "\n".join(rows) + f"\n{match[2]}", text)


def leading_comment(path: Path) -> list[str]:
    """Return the lines of the comments above the first code of a Lua file, without their dashes."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("--"):
            break
        lines.append(line[2:].removeprefix(" "))
    return "\n".join(lines).strip("\n").splitlines()


def _sections(text: str) -> dict[str, str]:
    """Return the anchor of the section about each function: its own, or the one with the header of its file."""
    found: dict[str, str] = {}
    by_file: dict[str, str] = {}
    anchor = ""
    for line in text.splitlines():
        if line.startswith("## "):
            anchor = re.sub(r"[^\w\- ]", "", line[3:].lower()).replace(" ", "-")
            found.update((name, anchor) for name in line[3:].split(", "))
        elif marker := re.fullmatch(r"<!-- header of ([\w/.]+) -->", line):
            by_file[marker[1]] = anchor
    for name, (file, _) in exported().items():
        if name not in found and file in by_file:
            found[name] = by_file[file]
    return found


def main() -> None:
    """Write the generated parts of the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
