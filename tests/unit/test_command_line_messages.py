"""Messages of the command lines: complete sentences, and addresses without secrets are shown."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py import ConnectionOptions, library
from glidemq_py._core.command_line import PROGRAM, ArgumentParser, hide_secrets
from glidemq_py.dashboard.__main__ import main as dashboard_main
from glidemq_py.errors import hide_urls
from glidemq_py.gateway.__main__ import main as gateway_main
from glidemq_py.proxy.__main__ import main as proxy_main
from glidemq_py.testing import RespClient
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.inside import TargetError, WorkerArguments, read_arguments, target

SECRET = "hunter2"


PIECES = [" ", "'", '"', "/", "#", "@", "?", ")", "(", ":", "6379", "127.0.0.1", "localhost", "***", "valkey://", "\n",
          " (choose from ", "a.b", ","]  # fmt: skip
passwords = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


@given(
    passwords, passwords, st.sampled_from(["u:", ":", "h:1 u:", "u.v:"]), st.sampled_from(["@h", "@127.0.0.1:1", ""])
)
def test_no_part_of_a_password_is_printed(before: str, after: str, user: str, host: str) -> None:
    url = f"valkey://{user}{before}{SECRET}{after}{host}"
    parser = Recording(prog="x")
    parser.add_argument("--url", choices=["a", "b"])
    for argv in (["--url", url], ["--nope", url], [f"--nope={url}"]):
        with pytest.raises(SystemExit):
            parser.parse_args(argv)
        assert "error: " in parser.message
        assert SECRET not in parser.message
    assert SECRET not in hide_secrets(f"{url!r} is invalid") + hide_urls(url)


class Recording(ArgumentParser):
    """Keeps its last message."""

    message = ""

    def exit(self, status: int = 0, message: str | None = None) -> None:  # type: ignore[override]
        self.message = message or ""
        raise SystemExit(status)

    def print_usage(self, file: object = None) -> None:
        pass


# -- no command line prints the password of a URL, for any error in its arguments ------------------


URLS = [
    f"valkey://u:{SECRET}@h:x",
    f"valkey://u:{SECRET}",
    f"valkey://u:a b'{SECRET}@h:x",
    f"valkey:/u:{SECRET}@h",
    f"u:{SECRET}@h",
    f"http://u:{SECRET}@h",
    f"valkey://u:a#{SECRET}",
]


def run_worker(argv: Sequence[str]) -> object:
    return target.load_workers(read_arguments(argv))


@pytest.mark.parametrize(
    ("name", "run", "arguments"),
    [
        ("dashboard", dashboard_main, ["--url", "http://h"]),
        ("proxy", proxy_main, ["--url", "http://h"]),
        ("gateway", gateway_main, ["--url", "http://h"]),
    ],
)
def test_errors_name_the_command_that_was_called(
    name: str, run: Callable[[Sequence[str]], object], arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert capfd.readouterr().err.startswith(f"python -m glidemq_py.{name}: ")
    token = PROGRAM.set(f"glidemq {name}")
    try:
        assert run(arguments) == 2
    finally:
        PROGRAM.reset(token)
    assert capfd.readouterr().err.startswith(f"glidemq {name}: ")


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "run", [run_worker, library.main, proxy_main, dashboard_main], ids=["worker", "library", "proxy", "dashboard"]
)
@pytest.mark.parametrize(
    "arguments",
    [
        lambda url: ["check", "--url", url],
        lambda url: ["check", f"--url={url}"],
        lambda url: ["check", "--urll", url],
        lambda url: ["check", "--queue", "q", url],
        lambda url: [url],
        lambda url: ["--log-level", url],
        lambda url: ["--port", url, "--metrics-port", url],
        lambda url: ["check", "--queue", url],
        lambda url: ["check", "--prefix", url],
        lambda url: ["check", "--concurrency", url, "--max-memory", url],
    ],
)
def test_no_command_shows_the_password(
    run: Callable[[Sequence[str]], object],
    arguments: Callable[[str], list[str]],
    url: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
):
    with caplog.at_level(logging.DEBUG):
        try:
            code = run(arguments(url))
        except SystemExit as end:
            code = end.code
        except TargetError as error:
            code = str(error)
    assert code not in (0, None)
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err + caplog.text + str(code)


def test_values_that_hold_a_url_have_a_repr_without_it():
    url = f"valkey://u:{SECRET}@h:1"
    for value in (WorkerArguments(url=url), GlideMQServer.at(url), ConnectionOptions.from_url(url)):
        assert SECRET not in repr(value) + str(value)


@pytest.mark.parametrize("make", [RespClient.from_url, GlideMQServer.at])
@pytest.mark.parametrize("url", URLS)
def test_tools_for_tests_do_not_show_the_password(make: Callable[[str], object], url: str):
    with pytest.raises(ValueError, match="connection") as caught:
        make(url)
    assert SECRET not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize("public", [("--host", "0.0.0.0"), ("--host", "10.9.8.7"), ("--allowed-host", "*")])
def test_a_public_dashboard_requires_tokens(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], public: tuple[str, str]
) -> None:
    monkeypatch.delenv("GLIDEMQ_DASHBOARD_TOKENS", raising=False)
    assert dashboard_main(["--url", "valkey://127.0.0.1:1", "--port", "0", "--allow-changes", *public]) == 2
    assert capfd.readouterr().err == (
        f"python -m glidemq_py.dashboard: {public[1]} is not a local address: set GLIDEMQ_DASHBOARD_TOKENS, "
        "such as 'alice=7f31c9aa'\n"
    )
