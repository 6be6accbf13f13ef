"""Check the documents: their Python runs, their links resolve, their lists are complete.

A ``python`` block that follows the line ``<!-- runnable -->`` is run, on an embedded server per page.
Blocks of a page share their names and run in order; top-level `await` is allowed. A ``main()`` that the block does not
call is called as well; it may run for ever. A ``text`` block directly after such a block is its expected output. All
other ``python`` blocks must at least compile.
"""

import ast
import asyncio
import contextlib
import dis
import inspect
import io
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import glidemq_py
from glidemq_py import Queue, Worker, errors, records, sync
from tests.inside import embedded

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
RUNNABLE = "<!-- runnable -->"
SECONDS = 30
SECONDS_OF_A_SERVICE = 2
"""How long a ``main()`` without an end runs before it is cancelled."""
PENDING: set[str] = set()
"""Pages that may be linked before they are written. Take a page out as it comes; leave the set empty."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, text, the line it starts at, and whether it is marked as runnable."""

    language: str
    text: str
    line: int
    runnable: bool
    follows: bool
    """True if nothing but empty lines lies between it and the block before."""


def blocks_of(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    before, start, language = "", None, ""
    runnable = follows = False
    for number, line in enumerate(lines, 1):
        fence = re.match(r"\s*```(\w*)", line)
        if start is None and fence:
            start, language = number, fence[1]
            runnable, follows = before == RUNNABLE, before == "```"
        elif start is not None and line.strip() == "```":
            yield Block(language, "\n".join(lines[start : number - 1]), start, runnable, follows)
            start = None
        if line.strip():
            before = line.strip()


def compiled(page: Path, block: Block) -> CodeType:
    # The padding makes tracebacks name the page's own lines.
    source = "\n" * block.line + block.text
    return compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_compile(page: Path):
    for block in blocks_of(page):
        if block.language == "python":
            compiled(page, block)


@pytest.mark.parametrize("page", [page for page in PAGES if RUNNABLE in page.read_text(encoding="utf-8")], ids=name_of)
def test_runnable_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    names: dict[str, Any] = {"__name__": "page"}
    monkeypatch.chdir(tmp_path)
    with embedded.start_embedded() as server, asyncio.Runner() as runner:
        monkeypatch.setenv("GLIDEMQ_URL", server.url)
        printed = ""
        for block in blocks_of(page):
            if block.runnable and block.language == "python":
                printed = run_block(compiled(page, block), names, runner)
            elif block.language == "text" and block.follows and block.line:
                assert printed.rstrip() == block.text.rstrip(), f"{page.name}:{block.line}"
        runner.run(close_all(names))


def run_block(code: CodeType, names: dict[str, Any], runner: asyncio.Runner) -> str:
    async def finish(coroutine: Any):
        async with asyncio.timeout(SECONDS):
            await coroutine

    async def run_to_the_end(main: Any):
        running = asyncio.ensure_future(main())
        await asyncio.wait({running}, timeout=SECONDS_OF_A_SERVICE)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(finish(eval(code, names)))
        else:
            exec(code, names)
        is_called = any(each.opname == "LOAD_NAME" and each.argval == "main" for each in dis.get_instructions(code))
        main = names.pop("main", None)
        if main is not None and not is_called:
            runner.run(finish(run_to_the_end(main)))
    return printed.getvalue()


async def close_all(names: dict[str, Any]):
    for value in list(names.values()):
        if isinstance(value, (Queue, Worker, glidemq_py.QueueEvents)):
            await value.close()
        elif isinstance(value, (sync.Queue, sync.QueueEvents)):
            value.close()


WITHOUT_A_SERVER_OF_THEIR_OWN = {"spark.md"}
"""Pages whose programs need more than a server: tests/spark runs their programs."""


def test_every_page_to_learn_from_has_a_program_that_runs():
    pages = {page.name for page in (DOCS / "learn").glob("*.md") if RUNNABLE not in page.read_text(encoding="utf-8")}
    assert pages == WITHOUT_A_SERVER_OF_THEIR_OWN


# -- links -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if str(file.relative_to(ROOT)) in PENDING and not file.exists():
            continue
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors_of(file), f"{page.name} links to {target}"


def anchors_of(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return set(re.findall(r'<a id="([\w-]+)">', text)) | {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def test_every_page_stands_once_in_the_index():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = sorted(link for link in re.findall(r"\]\(([^)\s]+)\)", index) if link.endswith(".md"))
    assert listed == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.name != "index.md")


# -- references from code and documents --------------------------------------------------------------------------

SOURCES = sorted(
    path
    for folder in ("glidemq_py", "lua", "tests", "tools", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".lua")
)


@pytest.mark.slow
def test_paths_in_code_exist():
    """Paths of documents, of Lua files below lua/, and of tests that comments and docstrings name."""
    missing: list[str] = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for name, anchor in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", text):
            if not (ROOT / name).exists() or (anchor and anchor not in anchors_of(ROOT / name)):
                missing.append(f"{path.relative_to(ROOT)}: {name}#{anchor}")
        missing += [
            f"{path.relative_to(ROOT)}: {name}"
            for name in re.findall(r"(?<![\w/.])((?:glidemq_py|lua|tests|tools|examples)/[\w/]+\.(?:py|lua))\b", text)
            if not (ROOT / name).exists() and not (ROOT / "tests" / name).exists() and "zz_broken" not in name
        ]
    assert missing == []


def test_no_reference_leads_to_a_document_outside():
    """No file names a specification by its folder, or a section by its number: headings here have none."""
    pages = [*PAGES, *ROOT.glob("*.md"), *(ROOT / "tests").rglob("*.md"), *(ROOT / "lua").rglob("*.md")]
    found = [
        f"{path.relative_to(ROOT)}: {reference}"
        for path in sorted({*SOURCES, *pages})
        for reference in re.findall(r"\bspec/[\w-]+|\b[Ss]ections? \d+", path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md"], ids=name_of)
def test_paths_and_modules_in_documents_exist(page: Path):
    """Paths and dotted names of this package in `code`."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    missing: list[str] = []
    for code in re.findall(r"`([^`\n]+)`", text):
        if re.fullmatch(r"(?:glidemq_py|lua|tests|tools|examples|docs)/[\w/.-]+", code) and not (ROOT / code).exists():
            missing.append(code)
        if re.fullmatch(r"glidemq_py(?:\.\w+)+", code) and not _resolves(code):
            missing.append(code)
    # The changelog lists old names.
    assert page.name == "CHANGELOG.md" or missing == []


LOGGERS = {"glidemq_py.failures", "glidemq_py.worker.supervisor"}


def _resolves(name: str) -> bool:
    if name in LOGGERS:
        return True
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_marks_of_faults_have_an_anchor():
    anchors = anchors_of(DOCS / "design" / "compatibility.md")
    marks = {mark for path in SOURCES for mark in re.findall(r"\bW\d+\b", path.read_text(encoding="utf-8"))}
    assert {mark.lower() for mark in marks} <= anchors


# -- completeness ----------------------------------------------------------------------------------------------


def test_functions_page_names_every_function():
    page = (DOCS / "reference" / "functions.md").read_text(encoding="utf-8")
    exported = {
        name
        for path in (ROOT / "lua").glob("**/functions/*.lua")
        for name in re.findall(r"G\.export\('(\w+)'", path.read_text(encoding="utf-8"))
    }
    assert len(exported) > 90
    assert {name for name in exported if not re.search(rf"\b{name}\b", page)} == set()


def test_api_page_names_every_export():
    text = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    assert [name for name in [*glidemq_py.__all__, *records.__all__] if not re.search(rf"`{name}\b", text)] == []


@pytest.mark.parametrize(
    "holder",
    [
        Queue, Worker, glidemq_py.QueueEvents, glidemq_py.Job, glidemq_py.Producer, glidemq_py.ServerlessPool,
        glidemq_py.Broadcast,
    ],
)  # fmt: skip
def test_api_page_names_every_method(holder: type):
    text = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    public = [name for name, _ in inspect.getmembers(holder) if not name.startswith("_")]
    assert [name for name in public if not re.search(rf"`[^`]*\b{name}\b[^`]*`", text)] == []


def test_errors_page_names_every_error():
    text = (DOCS / "operate" / "errors.md").read_text(encoding="utf-8")
    assert [name for name in errors.__all__ if f"`{name}`" not in text] == []


def test_the_states_are_drawn_once_and_all_of_them():
    drawn = [page for page in PAGES if "stateDiagram" in page.read_text(encoding="utf-8")]
    assert drawn == [DOCS / "reference" / "states.md"]
    text = drawn[0].read_text(encoding="utf-8")
    arrows = re.findall(r"^ +(\S+) --> (\S+): .+$", text, flags=re.MULTILINE)
    assert len(arrows) == text.count("-->")
    named = {name.replace("_", "-") for arrow in arrows for name in arrow} - {"[*]"}
    assert named == {state.value for state in glidemq_py.JobState}
    assert {begin for begin, _ in arrows} == {end for _, end in arrows}, (
        "a state that nothing leads to, or that nothing leaves"
    )


def test_events_page_names_every_event():
    text = (DOCS / "learn" / "events.md").read_text(encoding="utf-8")
    sources = [path.read_text() for folder in ("core", "features") for path in (ROOT / "lua" / folder).rglob("*.lua")]
    emitted = {name for source in sources for name in re.findall(r"emit\([\w.]*events, '([a-z-]+)'", source)}
    assert {"added", "revoked", "stalled", "usage"} <= emitted
    assert [name for name in sorted(emitted) if not re.search(rf"^\|[^|]*`{name}`", text, re.MULTILINE)] == []
