"""Jupyter: what notebooks show of queues, jobs and flows."""

from __future__ import annotations

import html.parser
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import FlowJob, FlowProducer, Queue
from glidemq_py import sync as blocking

pytest.importorskip("IPython")
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = "<script>alert(1)</script>\x1b[2J"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Any]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell: Any = InteractiveShell()
    shell.run_line_magic("load_ext", "glidemq_py.integrations.jupyter")
    yield shell
    shell.history_manager.enabled = False
    InteractiveShell.clear_instance()


class Balance(html.parser.HTMLParser):
    """Checks that elements are closed, in order; collects the text."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.kinds: set[str] = set()
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any):
        self.open.append(tag)
        self.kinds.add(tag)

    def handle_endtag(self, tag: str):
        assert self.open.pop() == tag

    def handle_data(self, data: str):
        self.text += f" {data}"


def shown(shell: Any, value: Any) -> Balance:
    """What a notebook shows for a value."""
    formats, _ = shell.display_formatter.format(value)
    return Balance(formats["text/html"])


def without_times(text: str) -> list[str]:
    """Return the words of a text, without the seconds that jobs have waited."""
    return re.sub(r"\d+(\.\d+)? s\b", "", text).split()


def test_the_cells_of_the_page_run(shell: Any, url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLIDEMQ_URL", url)
    page = (ROOT / "docs" / "integrate" / "jupyter.md").read_text(encoding="utf-8")
    cells = re.findall(r"^```i?python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(cells) >= 4
    for cell in cells:
        shell.run_cell(cell).raise_error()
    shell.run_cell("queue.obliterate(force=True)").raise_error()


def test_the_example_runs(shell: Any, url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLIDEMQ_URL", url)
    notebook = json.loads((ROOT / "examples" / "with_jupyter.ipynb").read_text(encoding="utf-8"))
    results: list[Any] = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "the notebook is committed with outputs"
            done = shell.run_cell("".join(cell["source"]))
            done.raise_error()
            results.append(done.result)
    assert "there is no page 0" in Balance(results[-2].data).text
    shell.run_cell("with Queue('notebook') as used: used.obliterate(force=True)").raise_error()


async def test_queues_show_their_state(shell: Any, url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.add(HOSTILE, {"text": HOSTILE})
        await queue.add("later", delay=60_000)
        await queue.pause()
        # In a running event loop, as in a notebook.
        found = shown(shell, queue)
        with blocking.Queue(queue_name, url) as same:
            assert without_times(shown(shell, same).text) == without_times(found.text)
        assert f"{queue_name} (paused)" in found.text
        assert "<script>alert(1)</script>\\x1b[2J" in found.text
        assert found.kinds <= {"table", "tr", "th", "td"}
    unreachable = shown(shell, Queue("emails", "valkey://127.0.0.1:1"))
    assert "emails" in unreachable.text
    assert "127.0.0.1:1" in unreachable.text


def test_the_command_shows_queues_and_jobs(shell: Any, url: str, queue_name: str):
    with blocking.Queue(queue_name, url) as queue:
        job = queue.add("welcome", {"to": HOSTILE})
        everything = shown(shell, shell.run_line_magic("glidemq", f"--url {url}"))
        assert queue_name in everything.text
        assert "welcome" in shown(shell, shell.run_line_magic("glidemq", queue_name)).text
        details = shown(shell, shell.run_line_magic("glidemq", f"{queue_name} {job.id}"))
        assert "alert(1)" in details.text
        assert details.kinds <= {"table", "tr", "td"}
        assert "has no job 99" in shown(shell, shell.run_line_magic("glidemq", f"{queue_name} 99")).text
        other = shown(shell, shell.run_line_magic("glidemq", f"--prefix nobody-{queue_name}"))
        assert other.text.strip() == "no queues"
    for line, message in (
        ("a b c", "unrecognized arguments: c"),
        ("'a{b'", "a{b"),
        ("--url ftp://x", "must start with"),
    ):
        with pytest.raises(UsageError, match=message):
            shell.run_line_magic("glidemq", line)
    # Invalid options are not remembered.
    assert "no queue" in shown(shell, shell.run_line_magic("glidemq", queue_name)).text


async def test_flows_show_the_states_of_their_jobs(shell: Any, url: str, queue_name: str):
    leaves = [FlowJob(HOSTILE, queue_name), *(FlowJob(f"leaf {n}", queue_name) for n in range(600))]
    async with FlowProducer(url) as flows:
        node = await flows.add(FlowJob("root", queue_name, children=leaves))
        found = await flows.get_flow(queue_name, node.job.id)
        assert found is not None
        tree = shown(shell, found)
        assert "602 jobs" in tree.text
        assert "601 waiting, 1 waiting-children" in tree.text
        assert "and 102 more" in tree.text
        assert tree.kinds <= {"div", "strong", "ul", "li", "small", "span", "p"}
        small = shown(shell, await flows.add(FlowJob("alone", queue_name)))
        assert "alone" in small.text
    shown_by_command = shown(shell, shell.run_line_magic("glidemq", f"--url {url} {queue_name} {node.job.id}"))
    assert "leaf 7" in shown_by_command.text
