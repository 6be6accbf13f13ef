"""Configuration of the command: environment variables (those of bunqueue), a TOML file, and flags, which count most."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from glidemq_py._core.command_line import hide_secrets, parse_duration, parse_port
from glidemq_py.errors import GlideMQValidationError

__all__ = ["SETTINGS", "Setting", "settings_of"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: Its name in the file, and as an argument of `Gateway`.
        help: Its meaning and default.
        parse: Parses the text of a flag or an environment variable.
        kinds: Types in the file.
        variable: The environment variable, or "".
        parse_variable: Parses the variable, if not as the flag.
        metavar: Shown in the help.
        is_secret: If True, there is no flag, because it would appear in process listings.
    """

    name: str
    help: str
    parse: Callable[[str], Any] = str
    kinds: tuple[type, ...] = (str,)
    variable: str = ""
    parse_variable: Callable[[str], Any] | None = None
    metavar: str | None = None
    is_secret: bool = False

    @property
    def flag(self) -> str:
        """Its flag on the command line."""
        return f"--{self.name.replace('_', '-')}"


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number")
    return int(text)


def _texts(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _tokens(text: str) -> list[str] | None:
    return _texts(text) or None


SETTINGS: Final = (
    Setting("url", "URL of the server; default: GLIDEMQ_URL, else a private embedded server"),
    Setting("host", "address to listen on (127.0.0.1)", variable="HOST"),
    Setting("port", "port to listen on (6789); 0 = any free port", parse_port, (int,), "TCP_PORT"),
    Setting("prefix", "first part of every key (glide)"),
    Setting("tokens", "tokens of clients", _tokens, (list,), "AUTH_TOKENS", is_secret=True),
    Setting(
        "allow_anonymous",
        "serve other machines without tokens: every client that reaches the gateway may use the queues", kinds=(bool,),
    ),
    Setting("max_connections", "open connections (20000)", _whole, (int,), metavar="N"),
    Setting(
        "frame_timeout", "time between two reads of an incomplete frame (60s)", parse_duration, (int, str),
        "TCP_IDLE_TIMEOUT_MS", _whole, "TIME",
    ),
    Setting(
        "max_unsent", "unread bytes of answers before a connection is closed (67108864)", _whole, (int,),
        "TCP_MAX_WRITE_QUEUE_BYTES", metavar="BYTES",
    ),
    Setting(
        "shutdown_timeout", "time for running commands at SIGTERM (30s)", parse_duration, (int, str),
        "SHUTDOWN_TIMEOUT_MS", _whole, "TIME",
    ),
    Setting("processes", "gateway processes that share the port (1)", _whole, (int,), metavar="N"),
    Setting(
        "share_port", "let other gateways of this machine listen on the same port; --processes does so", kinds=(bool,)
    ),
    Setting("tls_cert", "PEM file of the certificate chain; read again when it changes, or at SIGHUP",
            variable="TLS_CERT_FILE", metavar="FILE"),
    Setting("tls_key", "PEM file of its key", variable="TLS_KEY_FILE", metavar="FILE"),
    Setting(
        "webhook_networks", "networks to which webhooks may be sent besides public ones, separated by commas", _texts,
        (list,), metavar="NETWORKS",
    ),
    Setting("webhook_timeout", "time of one attempt to deliver a webhook (10s)", parse_duration, (int, str),
            metavar="TIME"),
    Setting(
        "webhook_attempts", "attempts to deliver a webhook (8)", _whole, (int,), "WEBHOOK_MAX_RETRIES", metavar="N"
    ),
    Setting(
        "webhook_backoff", "time before the second attempt, doubled with each (1s)", parse_duration, (int, str),
        "WEBHOOK_RETRY_DELAY_MS", _whole, "TIME",
    ),
)  # fmt: skip
_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def settings_of(environment: Mapping[str, str], file: str | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings by name.

    Args:
        environment: Environment variables; an empty one counts as absent.
        file: Path of the TOML file, or None.
        flags: Parsed flags by name; None counts as not given.

    Raises:
        GlideMQValidationError: If a value is ill-formed, or the file cannot be read or has an unknown name.
    """
    found: dict[str, Any] = {}
    for setting in SETTINGS:
        text = environment.get(setting.variable) if setting.variable else None
        if text:
            found[setting.name] = _parsed(setting.variable, text, setting.parse_variable or setting.parse)
    if file is not None:
        found |= _file_settings(file)
    return found | {name: value for name, value in flags.items() if value is not None}


def _parsed(name: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except argparse.ArgumentTypeError as error:
        raise GlideMQValidationError(name, text, str(error)) from None


def _file_settings(path: str) -> dict[str, Any]:
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise GlideMQValidationError("config", path, f"cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise GlideMQValidationError("config", path, f"is not TOML: {hide_secrets(str(error))}") from None
    return {name: _checked(path, name, value) for name, value in given.items()}


def _checked(path: str, name: str, value: Any) -> Any:
    setting = _BY_NAME.get(name)
    if setting is None:
        similar = get_close_matches(name, _BY_NAME, 1)
        problem = f"has the unknown setting {name!r}" + (f"; did you mean {similar[0]!r}?" if similar else "")
        raise GlideMQValidationError("config", path, problem)
    if type(value) not in setting.kinds:
        kinds = " or ".join({"str": "text", "int": "a whole number", "bool": "true or false", "list": "a list"}[
            kind.__name__] for kind in setting.kinds)  # fmt: skip
        raise GlideMQValidationError("config", path, f"{name}: must be {kinds}")
    if isinstance(value, str) and setting.parse is parse_duration:
        return _parsed(name, value, parse_duration)
    return value
