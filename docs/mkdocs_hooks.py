"""MkDocs hooks: show the programs of examples/ as pages.

Documents link to `../../examples/flows.py`, which is right where the repository is browsed. On the site each program
becomes a page `examples/flows.md`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
FOR_DEVELOPERS = (
    "design/", "operate/chaos.md", "reference/functions.md", "reference/data-model.md", "reference/wire-library.md",
)  # fmt: skip
"""Pages that the site leaves out, as in mkdocs.yml."""
PAGE_LINK = re.compile(r"\]\(((?:\.\./)*[\w./-]+\.md)(#[\w-]+)?\)")
LINK = re.compile(r"\]\(((?:\.\./)+)examples/([\w/]*?)(?:\.py|\.ipynb|/)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page per program, and an index of them."""
    from mkdocs.structure.files import File

    rows = ["# Examples", "", "Each program runs as it is and is part of the test suite.", ""]
    for path in sorted(EXAMPLES.rglob("*.py")):
        name = path.relative_to(EXAMPLES).with_suffix("").as_posix()
        source = path.read_text(encoding="utf-8")
        summary = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        if path.name == "__init__.py":
            continue
        page = f"# {path.name}\n\n```python\n{source}```\n"
        files.append(File.generated(config, f"examples/{name}.md", content=page))
        rows.append(f"- [{name}.py]({name}.md): {summary}")
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        files.append(File.generated(config, f"examples/{path.stem}.md", content=_notebook(path)))
        rows.append(f"- [{path.name}]({path.stem}.md): a notebook")
    files.append(File.generated(config, "examples/index.md", content="\n".join(rows) + "\n"))
    return files


def _is_example(name: str) -> bool:
    return any((EXAMPLES / f"{name}{suffix}").exists() for suffix in (".py", ".ipynb"))


def _notebook(path: Path) -> str:
    """Return the page of a notebook: its texts and code, without outputs."""
    parts = [f"# {path.name}"]
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else re.sub(r"(?m)^#", "##", text))
    return "\n\n".join(parts) + "\n"


def _to_repository(markdown: str, folder: Path) -> str:
    """Replace links of a page in ``folder`` to pages that the site leaves out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def target(match: re.Match[str]) -> str:
        path = os.path.normpath(folder / match[1])
        if not path.startswith(FOR_DEVELOPERS):
            return match[0]
        return f"]({project['urls']['Homepage']}/blob/main/docs/{path}{match[2] or ''})"

    return PAGE_LINK.sub(target, markdown)


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links to programs into links to their pages, links to pages for developers into ones to the repository."""
    markdown = _to_repository(markdown, Path(page.file.src_uri).parent)
    depth = page.file.src_uri.count("/")

    def target(match: re.Match[str]) -> str:
        name = match.group(2).rstrip("/")
        found = next((n for n in (name, f"{name}/main", "index") if _is_example(n)), "index")
        return f"]({'../' * depth}examples/{found}.md)"

    return LINK.sub(target, markdown)
