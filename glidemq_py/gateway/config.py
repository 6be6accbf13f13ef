"""Configuration of the command: environment variables (those of bunqueue), a TOML file, and flags, which count most.

Errors name options as the administrator has given them. Without a URL, a private server may keep its data in a folder.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from glidemq_py._client.embedded import EmbeddedServer, make_private, open_private, start_embedded
from glidemq_py._client.transport import URL_VARIABLE
from glidemq_py._core.checks import check_int, check_option
from glidemq_py._core.command_line import PREFIX_VARIABLE, hide_secrets, parse_duration, parse_port
from glidemq_py._features.backup.store import check_endpoint
from glidemq_py.errors import SECRET, EmbeddedServerError, GlideMQValidationError
from glidemq_py.gateway.options import GatewayOptions

if sys.platform != "win32":
    import fcntl


MOST_QUEUES_VARIABLE: Final = "METRICS_MAX_QUEUES"
"""Environment variable with the maximum number of queues that have series of their own in `Prometheus`."""
_MOST_PROCESSES: Final = 1_000


class _Type(NamedTuple):
    """A type of settings.

    Attributes:
        parse: Parses the text of a flag or an environment variable.
        kinds: Types in the file.
        metavar: Shown in the help.
        parse_variable: Parses the variable, if not as the flag.
    """

    parse: Callable[[str], Any] = str
    kinds: tuple[type, ...] = (str,)
    metavar: str | None = None
    parse_variable: Callable[[str], Any] | None = None


_TEXT: Final = _Type()


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: Its name in the file, and as an argument of `Gateway`.
        help: Its meaning and default.
        type: Its type.
        variable: The environment variable, or "".
        metavar: Shown in the help, if not that of the type.
        is_secret: If True, there is no flag, because it would appear in process listings.
        also: Other names of the environment variable; the first that is set counts.
    """

    name: str
    help: str
    type: _Type = _TEXT
    variable: str = ""
    metavar: str | None = None
    is_secret: bool = False
    also: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """Its flag on the command line."""
        return f"--{self.name.replace('_', '-')}"


def _whole(text: str) -> int:
    if re.fullmatch(r"-?[0-9]{1,15}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"{text!r}: must be true or false")
    return text.lower() in ("true", "1")


def _level(text: str) -> int:
    level = _LEVELS.get(text.lower())
    if level is None:
        raise argparse.ArgumentTypeError(f"{text!r}: must be one of {', '.join(_LEVELS)}")
    return level


def _format(text: str) -> str:
    if text not in ("text", "json"):
        raise argparse.ArgumentTypeError(f"{text!r}: must be text or json")
    return text


def _texts(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _tokens(text: str) -> list[str]:
    found = _texts(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: must contain a token; leave it empty for no authentication")
    return found


_LEVELS: Final = {"debug": 10, "info": 20, "warn": 30, "warning": 30, "error": 40, "critical": 50}

_PORT: Final = _Type(parse_port, (int,))
_WHOLE: Final = _Type(_whole, (int,), "N")
_FLAG: Final = _Type(_flag, (bool,))
_DURATION: Final = _Type(parse_duration, (int, str), "TIME", _whole)
_TEXTS: Final = _Type(_texts, (list,))

SETTINGS: Final = (
    Setting("url", "URL of the server; default: GLIDEMQ_URL, else that of glidemq dev, or a private one"),
    Setting(
        "data_path",
        "without a URL: directory of the embedded server's data; default: they are deleted at the end",
        variable="DATA_PATH",
        metavar="FOLDER",
        also=("BUNQUEUE_DATA_PATH", "BQ_DATA_PATH", "SQLITE_PATH"),
    ),
    Setting("host", "address to listen on (127.0.0.1)", variable="HOST"),
    Setting("port", "port to listen on (6789); 0 = any free port", _PORT, "TCP_PORT"),
    Setting("http_port", "port of the HTTP API, 0 = any free port; default: no HTTP API", _PORT, "HTTP_PORT"),
    Setting(
        "cors_origins",
        "origins whose pages may use the HTTP API, separated by commas; * = any",
        _TEXTS,
        "CORS_ALLOW_ORIGIN",
        metavar="ORIGINS",
    ),
    Setting("metrics_auth", "require a token for /prometheus", _FLAG, "METRICS_AUTH"),
    Setting(
        "trusted_proxies",
        "networks of proxies whose X-Forwarded-For the rate limit uses, separated by commas",
        _TEXTS,
        "TRUSTED_PROXIES",
        metavar="NETWORKS",
    ),
    Setting("prefix", f"first part of every key; default: {PREFIX_VARIABLE}, else glide", variable=PREFIX_VARIABLE),
    Setting("tokens", "tokens of clients", _Type(_tokens, (list,)), "AUTH_TOKENS", is_secret=True),
    Setting(
        "allow_anonymous",
        "serve other machines without tokens: every client that reaches the gateway may use the queues",
        _FLAG,
    ),
    Setting("max_connections", "open connections (20000)", _WHOLE),
    Setting("frame_timeout", "time from the first to the last byte of a frame (60s)", _DURATION, "TCP_IDLE_TIMEOUT_MS"),
    Setting(
        "max_unsent",
        "unread bytes of answers before a connection is closed (67108864)",
        _WHOLE,
        "TCP_MAX_WRITE_QUEUE_BYTES",
        metavar="BYTES",
    ),
    Setting("shutdown_timeout", "time for running commands at SIGTERM (30s)", _DURATION, "SHUTDOWN_TIMEOUT_MS"),
    Setting("processes", "gateway processes that share the port (1)", _WHOLE),
    Setting("share_port", "let other gateways of this machine listen on the same port; --processes does so", _FLAG),
    Setting(
        "tls_cert",
        "PEM file of the certificate chain; read again when it changes, or at SIGHUP",
        variable="TLS_CERT_FILE",
        metavar="FILE",
    ),
    Setting("tls_key", "PEM file of its key", variable="TLS_KEY_FILE", metavar="FILE"),
    Setting(
        "rate_limit",
        "frames of a connection, and HTTP requests of an address, per window; default: no limit",
        _WHOLE,
        "RATE_LIMIT_MAX_REQUESTS",
    ),
    Setting("rate_limit_window", "length of the window (60s)", _DURATION, "RATE_LIMIT_WINDOW_MS"),
    Setting("max_completed", "completed jobs of a queue to keep; default: all", _WHOLE, "BUNQUEUE_MAX_COMPLETED_JOBS"),
    Setting(
        "backup",
        "directory or URL such as s3://bucket/prefix for backups of all queues; default: none",
        metavar="DESTINATION",
    ),
    Setting("backup_every", "time between the backups of a queue (6h)", _DURATION, "S3_BACKUP_INTERVAL"),
    Setting("backup_keep", "backups of a queue to keep (7)", _WHOLE, "S3_BACKUP_RETENTION"),
    Setting("backup_storage", "options of the store of backups", _Type(kinds=(dict,)), is_secret=True),
    Setting("log_level", "debug, info (the default), warn or error", _Type(_level), "LOG_LEVEL", metavar="LEVEL"),
    Setting(
        "log_format", "text (the default), or json: one object per line", _Type(_format), "LOG_FORMAT", metavar="FORMAT"
    ),
    Setting(
        "webhook_networks",
        "networks to which webhooks may be sent besides public ones, separated by commas",
        _TEXTS,
        metavar="NETWORKS",
    ),
    Setting("webhook_timeout", "time of one attempt to deliver a webhook (10s)", _DURATION),
    Setting("webhook_attempts", "attempts to deliver a webhook (8)", _WHOLE, "WEBHOOK_MAX_RETRIES"),
    Setting(
        "webhook_backoff", "time before the second attempt, doubled with each (1s)", _DURATION, "WEBHOOK_RETRY_DELAY_MS"
    ),
)
_OF_PROGRAMS: Final = "an integer (milliseconds) or a timedelta, "
"""Part of the error of a duration that no variable, file or flag can follow."""
_KIND_NAMES: Final[Mapping[type, str]] = {
    str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "a table",
}  # fmt: skip
_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def given_names() -> GivenNames:
    """Return the names of all settings, of which none is given yet."""
    return GivenNames({each.name: each.variable or each.name if each.is_secret else each.flag for each in SETTINGS})


def settings_of(
    environment: Mapping[str, str], file: str | None, flags: Mapping[str, Any], names: GivenNames | None = None
) -> dict[str, Any]:
    """Return the given settings by name.

    Args:
        environment: Environment variables; an empty one counts as absent.
        file: Path of the TOML file, or None.
        flags: Parsed flags by name; None counts as not given.
        names: Notes how each setting was given.

    Raises:
        GlideMQValidationError: If a value is ill-formed, or the file cannot be read or has an unknown name.
    """
    found: dict[str, Any] = {}
    names = given_names() if names is None else names
    for setting in SETTINGS:
        for variable in (setting.variable, *setting.also) if setting.variable else ():
            text = environment.get(variable)
            if text:
                value = _parsed(variable, text, setting.type.parse_variable or setting.type.parse)
                found[setting.name] = _checked(setting, variable, value)
                names.add(setting.name, variable)
                break
    most = environment.get(MOST_QUEUES_VARIABLE)
    if most:
        most_queues(most)
    of_bunqueue = _s3_settings(environment)
    found |= of_bunqueue
    for name in of_bunqueue:
        names.add(name, "S3_BUCKET" if name == "backup" else "S3_...")
    if file is not None:
        of_file = _file_settings(file)
        found |= of_file
        for name in of_file:
            names.add_file(file, name)
    for name, value in flags.items():
        if value is not None:
            found[name] = _checked(_BY_NAME[name], _BY_NAME[name].flag, value)
            names.add(name, _BY_NAME[name].flag)
    if of_bunqueue and not _S3_URL.match(found["backup"]) and found["backup_storage"] is of_bunqueue["backup_storage"]:
        del found["backup_storage"]  # the file or a flag names a destination of another kind
    return found


def most_queues(text: str) -> int:
    """Return the value of `MOST_QUEUES_VARIABLE`.

    Raises:
        GlideMQValidationError: If it is invalid.
    """
    value = _parsed(MOST_QUEUES_VARIABLE, text, _whole)
    return check_int(MOST_QUEUES_VARIABLE, value, 0, 1_000_000)


_S3_URL: Final = re.compile("s3a?://", re.IGNORECASE)
_S3_STORAGE: Final[Mapping[str, tuple[str, ...]]] = {
    "access_key_id": ("S3_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"),
    "secret_access_key": ("S3_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY"),
    "session_token": ("S3_SESSION_TOKEN", "AWS_SESSION_TOKEN"),
    "endpoint": ("S3_ENDPOINT", "AWS_ENDPOINT"),
    "region": ("S3_REGION", "AWS_REGION"),
}
"""Options of the store, and the environment variables of bunqueue."""


def _s3_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the backup that bunqueue's variables S3_... request; none without S3_BACKUP_ENABLED."""
    enabled = environment.get("S3_BACKUP_ENABLED")
    if not enabled or not _parsed("S3_BACKUP_ENABLED", enabled, _flag):
        return {}
    bucket = environment.get("S3_BUCKET") or environment.get("AWS_BUCKET")
    if not bucket:
        raise GlideMQValidationError("S3_BUCKET", None, "is required with S3_BACKUP_ENABLED")
    storage: dict[str, str] = {"region": "us-east-1"}
    for name, variables in _S3_STORAGE.items():
        variable = next((each for each in variables if environment.get(each)), None)
        if variable is not None:
            text = environment[variable]
            storage[name] = check_endpoint(variable, text) if name == "endpoint" else text
    if storage.get("endpoint", "").lower().startswith("http://"):
        storage["allow_http"] = "true"
    hosted = environment.get("S3_VIRTUAL_HOSTED_STYLE")
    if hosted and _parsed("S3_VIRTUAL_HOSTED_STYLE", hosted, _flag):
        storage["virtual_hosted_style_request"] = "true"
    prefix = (environment.get("S3_BACKUP_PREFIX") or "backups/").strip("/")
    return {"backup": f"s3://{bucket}/{prefix}".rstrip("/"), "backup_storage": storage}


def _parsed(name: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except argparse.ArgumentTypeError as error:
        problem = str(error).rpartition(f"{text!r}: ")[2]  # the text is part of the message anyway
        raise GlideMQValidationError(name, text, problem) from None


def _checked(setting: Setting, name: str, value: Any) -> Any:
    """Return a value; if it is invalid, the error has the name that the user has given."""
    if setting.name == "processes":
        return check_int(name, value, 1, _MOST_PROCESSES)
    if value is None:
        return None
    try:
        check_option(GatewayOptions, setting.name, name, value)
    except GlideMQValidationError as error:
        problem = error.problem.replace(_OF_PROGRAMS, "")
        raise GlideMQValidationError(error.option, error.value, problem) from None
    return value


def _file_settings(path: str) -> dict[str, Any]:
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise GlideMQValidationError("config", path, f"cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise GlideMQValidationError("config", path, f"is not TOML: {hide_secrets(str(error))}") from None
    return {name: _of_file(path, name, value) for name, value in given.items()}


def _of_file(path: str, name: str, value: Any) -> Any:
    setting = _BY_NAME.get(name)
    if setting is None:
        similar = get_close_matches(name, _BY_NAME, 1)
        problem = f"has the unknown setting {name!r}" + (f"; did you mean {similar[0]!r}?" if similar else "")
        raise GlideMQValidationError("config", path, problem)
    if type(value) not in setting.type.kinds:
        kinds = " or ".join(_KIND_NAMES[kind] for kind in setting.type.kinds)
        shown = SECRET if setting.is_secret else value
        raise GlideMQValidationError(name, shown, f"must be {kinds} (in {path})")
    try:
        if isinstance(value, str) and setting.type.parse in (parse_duration, _level, _format):
            value = _parsed(name, value, setting.type.parse)
        return _checked(setting, name, value)
    except GlideMQValidationError as error:
        raise GlideMQValidationError(error.option, error.value, f"{error.problem} (in {path})") from None


_IN_TEXT: Final = re.compile(r"\b([a-z]+(?:_[a-z]+)+|host(?= '))(?:=True)?")
"""A name of an option in the text of an error: other names without an underscore are words."""


class GivenNames:
    """Where each setting comes from.

    Args:
        usual: Names of settings that were not given, and the flags or variables that give them.
    """

    def __init__(self, usual: Mapping[str, str]) -> None:
        self._usual = usual
        self._given: dict[str, str] = {}
        self._file: str | None = None
        self._of_file: set[str] = set()

    def add(self, name: str, given: str) -> None:
        """Note that a setting was given by this variable or flag."""
        self._given[name] = given
        self._of_file.discard(name)

    def add_file(self, path: str, name: str) -> None:
        """Note that a setting was given in the file."""
        self._given[name] = name
        self._file = path
        self._of_file.add(name)

    def shared(self, name: str, cause: str) -> None:
        """Note that a setting follows from another one."""
        self._given[name] = self.of(cause)

    def of(self, name: str) -> str:
        """Return how a setting was given, or can be given."""
        return self._given.get(name) or self._usual.get(name, name)

    def translated(self, error: GlideMQValidationError) -> GlideMQValidationError:
        """Return an error about options of `Gateway` with the names that the administrator knows."""
        name, _, field = error.option.partition(".")
        if name == "connection":
            option = self._given.get("url", URL_VARIABLE)
            name = "url"
        else:
            option = self.of(name)
        concerned = {name}

        def replaced(found: re.Match[str]) -> str:
            if found[1] not in self._usual:
                return found[0]
            concerned.add(found[1])
            return self.of(found[1])

        problem = _IN_TEXT.sub(replaced, error.problem)
        if concerned & self._of_file:
            problem = f"{problem} (in {self._file})"
        return GlideMQValidationError(f"{option}.{field}" if field else option, error.value, problem)


_START_MS: Final = 600_000
"""Maximum time for reading the data at the start."""


@contextmanager
def kept_server(path: str) -> Generator[EmbeddedServer]:
    """Run a server on a directory, with an append-only file, and set GLIDEMQ_URL to its URL.

    Args:
        path: The directory; it is created if it does not exist.

    Raises:
        GlideMQValidationError: If the path is a file or cannot be used, or another gateway uses it.
        EmbeddedServerError: If the server does not start.
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise GlideMQValidationError("data_path", path, "must be a directory, not a file")
    try:
        make_private(folder)
        lock = open_private(folder / "gateway.lock")
    except OSError as error:
        raise GlideMQValidationError("data_path", path, f"cannot be used: {error.strerror}") from None
    with lock as held:
        _hold(held, path)
        server = start_embedded(folder, start_timeout=_START_MS)
        os.environ[URL_VARIABLE] = server.url
        try:
            yield server
        finally:
            del os.environ[URL_VARIABLE]
            server.stop(flush=True)


def _hold(file: IO[bytes], path: str) -> None:
    if sys.platform == "win32":
        raise EmbeddedServerError("the embedded server does not run on Windows")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise GlideMQValidationError("data_path", path, "is used by another gateway") from None
