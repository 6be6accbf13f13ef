"""Tests of the command `python -m glidemq_py.proxy`."""

import signal
from pathlib import Path

import httpx
import pytest

from glidemq_py.proxy.__main__ import main
from tests.server.command import Command

pytestmark = pytest.mark.slow

TOKEN = "a-token-that-is-long-enough"
MODULE = "glidemq_py.proxy"


async def test_command_serves_until_sigterm(tmp_path: Path, url: str, queue_name: str):
    arguments = ("--url", url, "--port", "0", "--queue", queue_name)
    with Command(tmp_path, MODULE, *arguments, env={"GLIDEMQ_PROXY_TOKENS": f"another-long-token {TOKEN}"}) as command:
        (running,) = await command.printed(r"running on (http://127\.0\.0\.1:\d+)")
        async with httpx.AsyncClient(base_url=running[1], timeout=20) as http:
            assert (await http.get("/health")).json()["status"] == "ok"
            at = f"/queues/{queue_name}"
            assert (await http.post(f"{at}/jobs", json={"name": "n"})).status_code == 401
            http.headers["authorization"] = f"Bearer {TOKEN}"
            made = await http.post(f"{at}/jobs", json={"name": "n", "data": 5})
            assert made.status_code == 201
            assert (await http.get(f"{at}/jobs/{made.json()['id']}")).json()["data"] == 5
            assert (await http.get("/queues/other/counts")).status_code == 403
            async with http.stream("GET", f"{at}/events") as events:
                lines = events.aiter_lines()
                assert await anext(lines) == ": connected"
                command.signal(signal.SIGTERM)
                # The stream ends; the process does not wait for it.
                assert [line async for line in lines if line.startswith("data")] == []
        assert await command.ends() == -signal.SIGTERM
        assert TOKEN not in command.text
        assert "Traceback" not in command.text


async def test_invalid_option_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with Command(tmp_path, MODULE, "--queue", "a:b") as command:
        assert await command.ends() == 2
        assert "queues" in command.text
        assert len(command.lines) == 1
    assert main(["--url", "http://server"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "option 'connection' = 'http://***': must start with one of valkey://" in line
    for port in ("what", "99999", "-1"):
        with pytest.raises(SystemExit) as ended:
            main([f"--port={port}"])
        assert ended.value.code == 2
        assert f"argument --port: invalid port '{port}'" in capsys.readouterr().err


@pytest.mark.parametrize("public", [("--host", "0.0.0.0"), ("--host", "10.9.8.7"), ("--allowed-host", "*")])
def test_public_address_requires_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], public: tuple[str, str]
):
    monkeypatch.delenv("GLIDEMQ_PROXY_TOKENS", raising=False)
    assert main(["--url", "valkey://127.0.0.1:1", "--port", "0", *public]) == 2
    wanted = f"{public[1]} is not a local address: set GLIDEMQ_PROXY_TOKENS, or give --allow-anonymous"
    assert capsys.readouterr().err == f"python -m glidemq_py.proxy: {wanted}\n"


async def test_public_address_may_be_anonymous(tmp_path: Path, url: str):
    with Command(tmp_path, MODULE, "--url", url, "--port", "0", "--host", "0.0.0.0", "--allow-anonymous") as command:
        await command.printed("running on http://")
        command.signal(signal.SIGINT)
        assert await command.ends() in (-signal.SIGINT, 130)
