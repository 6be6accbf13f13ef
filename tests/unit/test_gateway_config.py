"""Tests of the gateway's configuration: environment, file, flags, and their precedence."""

from pathlib import Path
from typing import Any

import pytest

from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway.__main__ import main
from glidemq_py.gateway.config import SETTINGS, settings_of
from glidemq_py.gateway.options import GatewayOptions


def written(folder: Path, text: str) -> str:
    path = folder / "gateway.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_flags_outrank_the_file_and_the_file_outranks_the_environment(tmp_path: Path) -> None:
    environment = {"TCP_PORT": "1", "HOST": "::1", "TCP_IDLE_TIMEOUT_MS": "5000", "AUTH_TOKENS": "a, b,", "PORT": "x"}
    file = written(tmp_path, 'port = 2\nprefix = "p"\nframe_timeout = "7s"\nshutdown_timeout = 100\n')
    found = settings_of(environment, file, {"prefix": "q", "host": None})
    assert found == {
        "port": 2, "host": "::1", "frame_timeout": 7_000, "tokens": ["a", "b"], "prefix": "q", "shutdown_timeout": 100
    }  # fmt: skip
    GatewayOptions(**found)


def test_empty_variables_count_as_absent() -> None:
    assert settings_of({"TCP_PORT": "", "AUTH_TOKENS": ""}, None, {}) == {}


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"TCP_PORT": "70000"}, "TCP_PORT"),
        ({"TCP_IDLE_TIMEOUT_MS": "60s"}, "TCP_IDLE_TIMEOUT_MS"),
        ({"SHUTDOWN_TIMEOUT_MS": "-1"}, "SHUTDOWN_TIMEOUT_MS"),
        ({"TCP_MAX_WRITE_QUEUE_BYTES": "1e6"}, "TCP_MAX_WRITE_QUEUE_BYTES"),
    ],
)
def test_ill_formed_variable_is_named(environment: dict[str, str], error: str) -> None:
    with pytest.raises(GlideMQValidationError, match=error):
        settings_of(environment, None, {})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("prot = 1", "unknown setting 'prot'; did you mean 'port'?"),
        ("zzz = 1", "unknown setting 'zzz'"),
        ('port = "1"', "port: must be a whole number"),
        ("port = true", "port: must be a whole number"),
        ("allow_anonymous = 1", "allow_anonymous: must be true or false"),
        ('tokens = "a"', "tokens: must be a list"),
        ('frame_timeout = "7"', "frame_timeout"),
        ("port = ", "is not TOML"),
    ],
)
def test_ill_formed_file_is_named(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(GlideMQValidationError) as caught:
        settings_of({}, written(tmp_path, text), {})
    assert error in str(caught.value)
    assert "gateway.toml" in str(caught.value) or "frame_timeout" in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GlideMQValidationError, match=r"none\.toml"):
        settings_of({}, str(tmp_path / "none.toml"), {})


def test_every_setting_is_an_option() -> None:
    names = {setting.name for setting in SETTINGS} - {"url", "processes"}
    assert names == set(GatewayOptions.__dataclass_fields__)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tls_cert": "c.pem"}, "tls_key"),
        ({"tls_key": "k.pem"}, "tls_cert"),
    ],
)
def test_certificate_and_key_belong_together(options: dict[str, Any], error: str) -> None:
    with pytest.raises(GlideMQValidationError, match=error):
        GatewayOptions(**options)


def test_command_reports_invalid_settings_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOST", raising=False)
    assert main(["--config", written(tmp_path, "prot = 1")]) == 2
    assert main(["--tls-cert", "/none.pem", "--tls-key", "/none.pem"]) == 2
    assert main(["--host", "0.0.0.0"]) == 2
    assert main(["--processes", "2", "--port", "0"]) == 2
    assert main(["--processes", "0"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert "did you mean 'port'" in lines[0]
    assert "tls_cert" in lines[1]
    assert "tokens" in lines[2]
    assert "port" in lines[3]
    assert "processes" in lines[4]
    with pytest.raises(SystemExit):
        main(["--prot", "1"])
