"""Tests of the gateway's configuration: environment, file, flags, and their precedence."""

import re
from pathlib import Path

import pytest

from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway import Gateway
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


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--rate-limit", "-1"], "option '--rate-limit' = -1: must be an integer from 1 to 1,000,000,000"),
        (["--max-connections=0"], "option '--max-connections' = 0: must be an integer from 1 to 1,000,000"),
        (["--frame-timeout", "1ms"], "option '--frame-timeout' = 1: must be from 100 to 86,400,000 ms"),
        (["--webhook-networks", "1.2.3"], "option '--webhook-networks' = '1.2.3': must be networks such as"),
    ],
)
def test_flag_with_an_invalid_value_is_named(
    capsys: pytest.CaptureFixture[str], flags: list[str], error: str
) -> None:  # fmt: skip
    assert main(["--url", "valkey://127.0.0.1:1", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert error in line


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GlideMQValidationError, match=r"none\.toml"):
        settings_of({}, str(tmp_path / "none.toml"), {})


def test_every_setting_is_an_option() -> None:
    names = {setting.name for setting in SETTINGS} - {"url", "processes", "data_path", "log_level", "log_format"}
    assert names == set(GatewayOptions.__dataclass_fields__)


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
    assert "option '--tls-cert' = '/none.pem': is not a readable file" in lines[1]
    assert "option 'AUTH_TOKENS' = None: is required with --host '0.0.0.0'; --allow-anonymous disables" in lines[2]
    assert "option '--port' = 0: must not be 0 with several processes (--processes)" in lines[3]
    assert "processes" in lines[4]
    with pytest.raises(SystemExit):
        main(["--prot", "1"])


@pytest.mark.parametrize(
    ("environment", "file", "flags", "error"),
    [
        ({"HOST": "0.0.0.0"}, "", [], "'AUTH_TOKENS' = None: is required with HOST '0.0.0.0'; --allow-anonymous dis"),
        ({}, 'host = "0.0.0.0"', [], r"'AUTH_TOKENS' = None: is required with host '0.0.0.0'; --a.* \(in .*\.toml\)"),
        ({}, 'host = "::"', ["--host", "0.0.0.0"], "'AUTH_TOKENS' = None: is required with --host .*authentication$"),
        ({}, "", ["--tls-cert", "x"], "'--tls-key' = None: is required with --tls-cert$"),
        ({"TLS_KEY_FILE": "x"}, "", [], "'--tls-cert' = None: is required with TLS_KEY_FILE$"),
        ({}, 'tls_cert = "x"', [], r"'--tls-key' = None: is required with tls_cert \(in .*\.toml\)$"),
        ({}, "", ["--url", "http://x"], "'--url' = .*: must start"),
        ({}, 'url = "http://x"', [], r"'url' = .*: must start .* \(in .*\.toml\)$"),
        ({"GLIDEMQ_URL": "http://x"}, "", [], "'GLIDEMQ_URL' = .*: must start"),
        ({}, "", ["--backup", "nope://x"], "'--backup' = 'nope://x': must"),
        ({}, 'backup = "s3://b"\nbackup_storage = {endpoint = "x"}', [], r"'backup_storage.endpoint' = 'x': .* \(in"),
        ({"DATA_PATH": "/dev/null"}, "", [], "'DATA_PATH' = '/dev/null': must be a directory"),
    ],
)  # fmt: skip
def test_command_names_options_as_they_were_given(
    environment: dict[str, str], file: str, flags: list[str], error: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pytest.importorskip("obstore")
    for name in ("HOST", "GLIDEMQ_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if file:
        flags = ["--config", written(tmp_path, file), *flags]
    assert main(["--port", "0", *flags]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"option {error}", line), line


def test_other_destination_replaces_the_storage_of_the_variables_of_bunqueue(tmp_path: Path) -> None:
    environment = {"S3_BACKUP_ENABLED": "1", "S3_BUCKET": "b", "S3_SECRET_ACCESS_KEY": "secret"}
    folder = str(tmp_path)
    assert settings_of(environment, None, {"backup": folder}) == {"backup": folder}
    assert settings_of(environment, written(tmp_path, f'backup = "{folder}"'), {}) == {"backup": folder}
    other = settings_of(environment, None, {"backup": "s3://other"})
    assert other["backup_storage"] == {"region": "us-east-1", "secret_access_key": "secret"}
    own = 'backup = "gs://other"\nbackup_storage = {google_api_key = "k"}'
    assert settings_of(environment, written(tmp_path, own), {}) == {
        "backup": "gs://other", "backup_storage": {"google_api_key": "k"}
    }  # fmt: skip


@pytest.mark.parametrize("destination", ["{folder}", "file://{folder}", "s3://b"])
def test_secrets_of_the_storage_are_not_shown(destination: str, tmp_path: Path) -> None:
    storage = {"secret_access_key": "TOPSECRET", "region": "x", "nope": "TOPSECRET"}
    with pytest.raises(GlideMQValidationError) as caught:
        Gateway("valkey://127.0.0.1:1", backup=destination.format(folder=tmp_path), backup_storage=storage)
    assert str(caught.value).startswith("option 'backup_storage' = ***: ")
    assert "TOPSECRET" not in str(caught.value)


@pytest.mark.parametrize("name", ["endpoint", "AWS_ENDPOINT_URL"])
def test_ill_formed_endpoint_of_the_storage_is_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    with pytest.raises(GlideMQValidationError, match=f"^option 'backup_storage.{name}' = 'foo': must be a URL"):
        Gateway("valkey://127.0.0.1:1", backup="s3://b", backup_storage={name: "foo"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "foo")
    with pytest.raises(GlideMQValidationError, match=r"^option 'AWS_ENDPOINT_URL' = 'foo': must be a URL"):
        Gateway("valkey://127.0.0.1:1", backup="s3://b")


def test_folder_of_the_data_and_logs(tmp_path: Path) -> None:
    assert settings_of({"SQLITE_PATH": "b", "BQ_DATA_PATH": "a"}, None, {}) == {"data_path": "a"}
    found = settings_of({"LOG_LEVEL": "WARN", "LOG_FORMAT": "json"}, written(tmp_path, 'log_level = "debug"'), {})
    assert found == {"log_level": 10, "log_format": "json"}
