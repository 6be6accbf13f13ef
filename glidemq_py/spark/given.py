"""Parse Spark's options: all of them are strings, with lower-case names. Unknown names and invalid values are rejected.

The options of a view (``CREATE TEMPORARY VIEW ... USING glidemq``) serve reads and writes, so each accepts the options
of the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from glidemq_py._client.connect import URL_VARIABLE
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._core import json_text as json
from glidemq_py._core.checks import check_choice, check_int, reject_unknown
from glidemq_py._core.names import validate_prefix, validate_queue_name
from glidemq_py._core.queue_options import DEFAULT_PREFIX
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.errors.base import SECRET
from glidemq_py.spark.connection import Place

__all__ = ["NAMES", "Given"]

NAMES: Final = (
    # server
    "queue", "prefix", "url", "addresses", "host", "port", "username", "password", "passwordEnv", "tls", "cluster",
    "database", "requestTimeout",
    # writing
    "jobName", "dataColumn", "dataFormat", "compression", "guarantee", "writeId", "batchSize", "maxBatchBytes",
    "events", "duplicates", "overwrite", "stagingTtl", "rememberWrites",
    # defaults of jobs
    "delay", "priority", "attempts", "backoff", "ttl", "timeout", "orderingKey", "lifo", "removeOnComplete",
    "removeOnFail",
    # reading
    "view", "state", "numPartitions", "fetchSize", "startingOffsets", "maxOffsetsPerTrigger", "failOnDataLoss",
)  # fmt: skip
"""Every option, as spelled in the documentation."""

_SPARK: Final = frozenset({"path", "checkpointlocation", "queryname"})
"""Options that Spark adds. `path` is the argument of `save("name")` and `load("name")`: the queue."""
_KNOWN: Final = {name.lower(): name for name in NAMES}
_URL_PARTS: Final = (
    "addresses",
    "host",
    "port",
    "username",
    "password",
    "tls",
    "cluster",
    "database",
    "requestTimeout",
)
_DEFAULT_TIMEOUT_MS: Final = 30_000


class Given:
    """The given options.

    Args:
        options: options as passed by PySpark.

    Raises:
        UnknownOptionError: if an option does not exist.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts: dict[str, str] = {}
        for name, text in options.items():
            lower = name.lower()
            if lower in _KNOWN:
                self._texts[_KNOWN[lower]] = text
            elif lower == "path":
                self._texts.setdefault("path", text)
            elif lower not in _SPARK:
                reject_unknown(name, text, NAMES)

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def text(self, name: str, default: str = "") -> str:
        """Return an option as given."""
        return self._texts.get(name, default)

    def whole(self, name: str, default: int, minimum: int, maximum: int) -> int:
        """Return an integer option."""
        text = self._texts.get(name)
        if text is None:
            return default
        digits = text.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
            raise GlideMQValidationError(name, text, "must be an integer")
        return check_int(name, int(text), minimum, maximum)

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean option."""
        text = self._texts.get(name)
        if text is None:
            return default
        if text.strip().lower() in ("true", "false"):
            return text.strip().lower() == "true"
        raise GlideMQValidationError(name, text, "must be true or false")

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """Return an option with fixed choices."""
        return check_choice(name, self._texts.get(name, default).strip().lower(), choices)

    def value(self, name: str) -> Any:
        """Return a JSON option, such as ``{"type": "exponential", "delay": 1000}``, a number or true."""
        try:
            return json.loads(self._texts[name], name)
        except GlideMQValidationError:
            problem = 'must be JSON: a number, true, false or an object such as {"count": 100}'
            raise GlideMQValidationError(name, self._texts[name], problem) from None

    def checked(self, name: str, check: Callable[[str], Any]) -> Any:
        """Return an option converted by `check`, or None if it is not given."""
        text = self._texts.get(name)
        return None if text is None else check(text)

    # -- server -----------------------------------------------------------------------------------------------

    @property
    def queue(self) -> str:
        """Return the queue's name.

        Raises:
            GlideMQValidationError: if no queue is given, or the name is invalid.
        """
        name = self._texts.get("queue", self._texts.get("path", ""))
        if not name:
            problem = (
                'is required: .option("queue", "emails"), or .save("emails"). With a column "queue" too: rows '
                "with null there go to this queue, and the write is committed there"
            )
            raise GlideMQValidationError("queue", None, problem)
        path = self._texts.get("path")
        if path is not None and path != name:
            raise GlideMQValidationError("path", path, f"is not the option 'queue' ({name!r}); give one of them")
        return validate_queue_name(name, "queue")

    @property
    def prefix(self) -> str:
        """Return the first part of every key."""
        return validate_prefix(self._texts.get("prefix", DEFAULT_PREFIX))

    @property
    def place(self) -> Place:
        """Return the server: the option ``url`` or its parts, else the driver's GLIDEMQ_URL, else localhost."""
        given = [name for name in _URL_PARTS if name in self._texts]
        url = self._texts.get("url") or (None if given else os.environ.get(URL_VARIABLE))
        password_env = self._texts.get("passwordEnv", "")
        if password_env and "password" in self._texts:
            raise GlideMQValidationError("passwordEnv", password_env, "cannot be given together with 'password'")
        if url:
            if given:
                raise GlideMQValidationError(given[0], SECRET, "cannot be given together with 'url'")
            return Place(options=ConnectionOptions.from_url(url), password_env=password_env)
        return Place(options=self._from_parts(password_env), password_env=password_env)

    def _from_parts(self, password_env: str) -> ConnectionOptions:
        if "addresses" in self._texts and ("host" in self._texts or "port" in self._texts):
            raise GlideMQValidationError(
                "addresses", self._texts["addresses"], "cannot be given together with 'host' or 'port'"
            )
        port = self.whole("port", 6379, 1, 65_535)
        text = self._texts.get("addresses") or f"{self._texts.get('host', 'localhost')}:{port}"
        return ConnectionOptions(
            [part.strip() for part in text.split(",")],
            cluster=self.flag("cluster", False),
            tls=self.flag("tls", False),
            username=self._texts.get("username"),
            # A placeholder if the password comes from the executors' environment.
            password=self._texts.get("password") or ("?" if password_env else None),
            database_id=self.whole("database", 0, 0, 2**31 - 1),
            request_timeout=self.whole("requestTimeout", _DEFAULT_TIMEOUT_MS, 1, 86_400_000),
            client_name="glidemq-spark",
        )
