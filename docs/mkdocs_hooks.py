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
    from mkdocs.structure.nav import Navigation
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


def on_post_build(config: MkDocsConfig) -> None:
    """Write ``llms.txt``: the pages by section, each with its first paragraph."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    section = ""
    for page in _pages:
        at = page.ancestors[-1].title if page.ancestors else "Home"
        if at != section:
            lines += ["", f"## {at}", ""]
            section = at
        lines.append(f"- [{page.title}]({page.canonical_url}): {_first_paragraph(page.markdown or '')}")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _first_paragraph(markdown: str) -> str:
    text = re.sub(r"(?s)^```.*?^```", "", markdown, flags=re.MULTILINE)
    paragraphs = (" ".join(each.split()) for each in text.split("\n\n"))
    found = next((each for each in paragraphs if each and each[0] not in "#<`!|-["), "")
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", found)


_pages: list[Page] = []
"""The pages in the order of the navigation."""


def on_nav(nav: Navigation, **_: object) -> Navigation:
    """Keep the pages for ``llms.txt``."""
    _pages[:] = nav.pages
    return nav


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links to programs into links to their pages, links to pages for developers into ones to the repository."""
    markdown = _to_repository(markdown, Path(page.file.src_uri).parent)
    depth = page.file.src_uri.count("/")

    def target(match: re.Match[str]) -> str:
        name = match.group(2).rstrip("/")
        found = next((n for n in (name, f"{name}/main", "index") if _is_example(n)), "index")
        return f"]({'../' * depth}examples/{found}.md)"

    return LINK.sub(target, markdown)
