"""Check the types of the documents' Python with mypy: ``python -m tools.check_documents``.

The blocks of a page that the tests run, and all blocks of the pages to start with, are one program, with the line
numbers of the page. Top-level `await` is in a coroutine there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^(<!-- runnable -->\n+)?```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ALL_BLOCKS = "docs/start"


def program_of(page: Path) -> str:
    """Return the checked blocks of a page as a program."""
    text = page.read_text(encoding="utf-8")
    is_complete = page.is_relative_to(ROOT / _ALL_BLOCKS)
    lines = [""] * (text.count("\n") + 1)
    for block in _BLOCK.finditer(text):
        if block[1] or is_complete:
            first = text.count("\n", 0, block.start(2))
            for number, line in enumerate(block[2].splitlines(), first):
                lines[number] = f"    {line}" if line else ""
    if not any(lines):
        return ""
    lines[0] = "async def page() -> None:"
    return "\n".join(lines) + "\n"


def main() -> int:
    """Check the programs of all pages; return mypy's exit code."""
    mypy = [sys.executable, "-m", "mypy", "--config-file=", "--check-untyped-defs", "--disable-error-code=no-redef"]
    programs = {page: program_of(page) for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
    with tempfile.TemporaryDirectory() as folder:
        for page, program in programs.items():
            if program:
                name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
                Path(folder, f"{name}.py").write_text(program, encoding="utf-8")
        environment = {**os.environ, "MYPYPATH": str(ROOT)}
        return subprocess.run([*mypy, "."], cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
