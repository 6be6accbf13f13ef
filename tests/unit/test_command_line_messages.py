"""Messages of the command lines: complete sentences, and addresses without secrets are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py import library
from glidemq_py._core.command_line import ArgumentParser, hide_secrets
from glidemq_py._worker.command.arguments import read_arguments
from glidemq_py.errors.base import hide_urls

SECRET = "hunter2"


def printed_by(run: Callable[[Sequence[str]], object], argv: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        run(argv)
    return capfd.readouterr().err


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:6379", "has no scheme; did you mean valkey://127.0.0.1:6379?"),
        (f"valkey://h:1#{SECRET}", "must have no fragment; write # in a password as %23"),
        ("valkey://127.0.0.1:7901?tls_ca=/x", "requires 'tls' (in a URL, valkeys://)"),
        (f"valkey://u:{SECRET}", "with a port from 1 to 65535; if it is user:password, @host is missing after it"),
        (f"valkey://h?password={SECRET}", "belongs before the host: valkey://user:password@host"),
    ],
)
@pytest.mark.parametrize("run", [read_arguments, library.main])
def test_reason_for_an_invalid_url_is_printed_completely(
    run: Callable[[Sequence[str]], object], url: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = printed_by(run, ["check", "--url", url], capfd)
    assert f"{message}\n" in text
    assert SECRET not in text


def test_choices_after_a_url_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    text = printed_by(library.main, [f"valkey://u:{SECRET} (choose from {SECRET})@h"], capfd)
    assert "(choose from " in text
    assert SECRET not in text


def test_address_without_a_secret_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert "unrecognized arguments: valkey://redis:6379/1" in printed_by(
        library.main, ["check", "valkey://redis:6379/1"], capfd
    )


@pytest.mark.parametrize(
    "url",
    ["valkey://127.0.0.1:1", "rediss://[::1]:6379", "valkey://localhost", "valkeys+cluster://db.example.org/0",
     "redis://redis:6379"],
)  # fmt: skip
def test_harmless_address_is_kept(url: str) -> None:
    assert hide_urls(f"invalid: {url!r}") == f"invalid: {url!r}"


@pytest.mark.parametrize(
    "rest",
    [f"u:{SECRET}", f"h?{SECRET}", f"127.0.0.1:1#{SECRET}", f"127.0.0.1 {SECRET}", f"127.0.0.1' {SECRET}", "u:1234",
     f"127.0.0.1:6379, valkey://u:{SECRET}@h", f"127.0.0.1:6379/{SECRET}", f"h:6379?a={SECRET}"],
)  # fmt: skip
def test_other_urls_are_hidden(rest: str) -> None:
    assert hide_urls(f"invalid: valkey://{rest}") == "invalid: valkey://***"


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
