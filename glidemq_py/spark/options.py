"""The options of reads and writes, validated on the driver, and connections. Spark passes strings, names in lower case.

Unknown names and invalid values are rejected. The options of a view (``CREATE TEMPORARY VIEW ... USING glidemq``) serve
reads and writes, so each accepts the options of the other. Executors receive pickled connection options, never a
connection: each process keeps one connection per server between tasks. A password from the environment is read in the
process that uses it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, get_args, get_type_hints

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.transport import URL_VARIABLE
from glidemq_py._core import json_text as json
from glidemq_py._core.checks import camel_case, check_choice, check_int, reject_unknown
from glidemq_py._core.forks import new_lock
from glidemq_py._core.job_options import NO_OPTIONS, OPTION_NAMES, JobOptions, unsupported_in
from glidemq_py._core.keys import DEFAULT_PREFIX, QueueKeys, validate_job_name, validate_prefix, validate_queue_name
from glidemq_py._core.option_values import Backoff
from glidemq_py._core.queue_options import Compression
from glidemq_py._core.times import DAY_MS
from glidemq_py.errors import SECRET, ClosedError, GlideMQValidationError
from glidemq_py.spark.serializers import JSON, check_serializer

if TYPE_CHECKING:
    from glidemq_py._client.portal import BlockingTransport

__all__ = [
    "COLUMNS",
    "NAMES",
    "OPTS_COLUMN",
    "PYTHON_NAMES",
    "WHOLE",
    "Given",
    "Guarantee",
    "Place",
    "WriteOptions",
    "job_options",
    "renamed",
    "transport_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The server to connect to.

    Attributes:
        options: connection options.
        password_env: name of the executors' environment variable that holds the password, or ''.
    """

    options: ConnectionOptions
    password_env: str = field(default="")

    def resolve(self) -> ConnectionOptions:
        """Return the options with the password from this process's environment.

        Raises:
            GlideMQValidationError: if the environment variable is not set, or the password is invalid.
        """
        if not self.password_env:
            return self.options
        password = os.environ.get(self.password_env)
        if not password:
            raise GlideMQValidationError(
                "passwordEnv", self.password_env, "is not set in the environment of this process"
            )
        names = [name for name in ConnectionOptions.__dataclass_fields__ if name != "password"]
        try:
            return ConnectionOptions(password=password, **{name: getattr(self.options, name) for name in names})
        except GlideMQValidationError as error:
            raise GlideMQValidationError("passwordEnv", SECRET, error.problem) from None


_open: dict[tuple[int, Place, int], BlockingTransport] = {}
"""Open connections by process id, place and lane: a fork must not use its parent's connection."""
_checked: set[tuple[int, Place]] = set()
"""Process ids and places whose servers' configurations were checked."""


_opening: Final = new_lock()
_REUSED: Final = "pyspark.daemon"
"""The main module of the processes that Spark keeps for further tasks."""


def transport_of(place: Place, lane: int = 0, *, check: bool = False) -> BlockingTransport:
    """Return the connection of this process.

    Args:
        place: the server.
        lane: a number other than 0 is a further connection, for another thread.
        check: check the server's configuration. Only planning does, on the driver, so that each finding is logged once.

    Raises:
        GlideMQConnectionError: if the server cannot be reached.
        ConnectionRejectedError: if ``check`` is given and the server may evict keys.
        ConnectionRejectedError: if ``check`` is given and the server is a cluster node, and ``cluster`` is not set.
    """
    key = (os.getpid(), place, lane)
    found = _open.get(key)
    if found is not None and (not check or key[:2] in _checked):
        return found
    with _opening:  # several threads of a driver may make first use of the format
        found = _open.get(key)
        if found is None:
            found = _connect(place.resolve(), check=check)
            _open[key] = found
            _freeze_modules()
        elif check and key[:2] not in _checked:
            _connect(place.resolve(), check=True).close()
        if check:
            _checked.add(key[:2])
    return found


def _connect(options: ConnectionOptions, *, check: bool) -> BlockingTransport:
    # GLIDE is imported to connect: many of Spark's Python processes only plan, and their start is what a batch costs.
    from glidemq_py._client.portal import BlockingTransport

    return BlockingTransport(options, check=check)


_frozen: set[int] = set()
"""Ids of the processes whose modules the garbage collector ignores."""


def _freeze_modules() -> None:
    """Let the garbage collector ignore what exists now, once per reused process of Spark.

    Spark runs a full collection after each task and each step of planning. With the modules of PySpark, PyArrow and
    GLIDE it takes 20 to 40 ms of CPU time, at the same time as the next task or the commit.
    """
    main, pid = getattr(sys.modules.get("__main__"), "__spec__", None), os.getpid()
    if main is not None and main.name == _REUSED and pid not in _frozen:
        _frozen.add(pid)
        gc.collect()
        gc.freeze()


def forget(place: Place) -> None:
    """Close the connection of this process; the next use opens a new one."""
    found = _open.pop((os.getpid(), place, 0), None)
    if found is not None:
        with contextlib.suppress(ClosedError, OSError):
            found.close()


WHOLE: Final = ("byte", "short", "integer", "long")
_TYPES: Final[dict[Any, tuple[str, ...]]] = {
    int: WHOLE, bool: ("boolean",), datetime: ("timestamp",), Backoff: (*WHOLE, "string"), NoneType: (),
}  # fmt: skip
"""The types of a column by those of an option; others are strings."""
_KEYS: Final = {"ordering": "orderingKey", "deduplication": "deduplicationId"}
"""Options whose columns contain a part of them."""
_HINTS: Final = get_type_hints(JobOptions)


def _column_types(hint: Any) -> tuple[str, ...]:
    kinds = get_args(hint)
    stored = get_args(kinds[0]) or kinds  # of `Converted`
    return tuple(each for kind in stored for each in _TYPES.get(kind, ("string",)))


PYTHON_NAMES: Final = {
    _KEYS.get(name, camel_case(name)): name for name in OPTION_NAMES if name not in unsupported_in("spark")
}
"""Names of options of a job in Python, by those of options and columns."""
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "queue": ("string",), "name": ("string",),
    **{column: _column_types(_HINTS[name]) for column, name in PYTHON_NAMES.items()},
}  # fmt: skip
"""Options of a job that a column may contain, with the types of the column."""
OPTS_COLUMN: Final = (
    "is not supported: a row's options have columns of their own, such as 'deduplicationId', 'timeout', 'backoff', "
    "'removeOnComplete' and 'removeOnFail'"
)
"""What to use instead of the column `opts` of version 0.1.0."""
_COLUMN: Final = "column."

_INSTEAD: Final = {
    "topic": 'use .option("queue", "name")',
    "subscribe": 'use .option("queue", "name")',
    "subscribePattern": 'use .option("queue", "name"), one read per queue, and union',
    "assign": 'use .option("queue", "name")',
    "endingOffsets": "use .trigger(availableNow=True), which stops at the end of what exists now",
    "endingTimestamp": "use .trigger(availableNow=True) and a filter on the time",
    "includeHeaders": "headers of a job are in the column 'opts': get_json_object(opts, '$.headers')",
    "minPartitions": 'use .option("numPartitions", n), the largest number of partitions',
    "kafka.bootstrap.servers": 'use .option("url", ...) or .option("addresses", ...)',
    "jobId": 'each job has its own; use .option("column.jobId", "<column>")',
    "runAt": 'use .option("column.runAt", "<column>")',
    "name": 'use .option("jobName", ...) for all rows, or .option("column.name", "<column>")',
    "data": 'use .option("dataColumn", "<column>"), or leave it out: all columns together are the data',
    "deduplicationId": 'each job has its own; use .option("column.deduplicationId", "<column>")',
    "opts": 'use the option itself, such as .option("attempts", 3), or .option("column.attempts", "<column>")',
}
"""Options of other data sources, and columns that are no options, with what to use instead."""

NAMES: Final = (
    # server
    "queue", "prefix", "url", "addresses", "host", "port", "username", "password", "passwordEnv", "tls", "cluster",
    "database", "requestTimeout",
    # stored values
    "serializer",
    # writing
    "jobName", "dataColumn", "dataFormat", "nonFinite", "compression", "guarantee", "writeId", "batchSize",
    "maxBatchBytes", "events", "duplicates", "overwrite", "stagingTtl", "rememberWrites", "onRepeat", "publishTimeout",
    # defaults of jobs
    *(name for name in PYTHON_NAMES if name not in _INSTEAD),
    # reading
    "view", "state", "columns", "numPartitions", "fetchSize", "startingOffsets", "startingTimestamp",
    "maxOffsetsPerTrigger", "failOnDataLoss",
    # columns of a write that contain options
    *(_COLUMN + name for name in COLUMNS),
)  # fmt: skip
"""Every option, as spelled in the documentation."""

_SPARK: Final = frozenset({"path", "checkpointlocation", "queryname"})
"""Options that Spark adds. `path` is the argument of `save("name")` and `load("name")`: the queue."""
_TABLE: Final = frozenset({"provider", "owner", "location", "comment", "external", "is_managed_location"})
"""Properties of a table, which Spark passes with the options when CREATE TABLE asks for its columns."""
_TABLE_OPTION: Final = "option."
_LOST: Final = (
    "of a table has no effect: Spark does not pass the options of CREATE TABLE to Python data sources. Use CREATE "
    "TEMPORARY VIEW, or give the options in each statement: FROM t WITH (queue = 'emails')"
)
_OTHERS: Final = {name.lower(): name for name in _INSTEAD}
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
        GlideMQValidationError: if it is an option of another data source, or only a column.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts: dict[str, str] = {}
        is_table = "provider" in options
        for name, text in options.items():
            lower = name.lower()
            if is_table and (lower in _TABLE or lower.startswith(_TABLE_OPTION)):
                continue
            if is_table and f"{_TABLE_OPTION}{name}" in options:
                raise GlideMQValidationError(_KNOWN.get(lower, name), SECRET, _LOST)
            if lower in _KNOWN:
                self._texts[_KNOWN[lower]] = text
            elif lower == "path":
                self._texts.setdefault("path", text)
            elif lower in _OTHERS or lower.startswith("kafka."):
                spelled = _OTHERS.get(lower, name)
                problem = _INSTEAD.get(spelled, "options of Kafka have no effect here; remove it")
                raise GlideMQValidationError(spelled, text, f"is not supported: {problem}")
            elif lower == f"{_COLUMN}opts":
                raise GlideMQValidationError(lower, text, OPTS_COLUMN)
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
                "with null there go to this queue, and the write is committed there. Spark does not pass the options "
                "of CREATE TABLE: use CREATE TEMPORARY VIEW, or FROM t WITH (queue = 'emails')"
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
    def serializer(self) -> str:
        """Return the name of the serializer of data and results, or its `module:attribute`, which can be loaded."""
        return check_serializer(self._texts.get("serializer", JSON).strip())

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
            return Place(options=_named("url", ConnectionOptions.from_url, url), password_env=password_env)
        where = "addresses" if "addresses" in self._texts else "host"
        return Place(options=_named(where, self._from_parts, password_env), password_env=password_env)

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


_T = TypeVar("_T")
_CONNECTION_NAMES: Final = {"request_timeout": "requestTimeout", "database_id": "database"}


def _named(where: str, parse: Callable[[str], _T], given: str) -> _T:
    """Return parsed connection options; errors name the option that Spark users wrote."""
    try:
        return parse(given)
    except GlideMQValidationError as error:
        name = _CONNECTION_NAMES.get(error.option, error.option)
        if name == "connection" or name.partition(".")[0] == "addresses":
            name = where
        error.option = name
        error.args = (name, *error.args[1:])
        raise


Guarantee = Literal["atomic", "append"]

BATCH_ROWS: Final = 250
"""Rows per call: about 1.5 ms of server time, which gives full speed and barely delays other clients."""
BATCH_BYTES: Final = 256 * 1024
_MAX_BATCH_ROWS: Final = 5_000
_MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
_MINUTE_MS: Final = 60_000
_PUBLISH_TIMEOUT_MS: Final = 60_000
_MONTH_MS: Final = 30 * DAY_MS
_YEAR_MS: Final = 365 * DAY_MS

_KEPT: Final = 'a number, true, false or an object such as {"count": 100}'
_FORMS: Final = {
    "backoff": 'ms, or an object such as {"type": "exponential", "delay": 1000}',
    "removeOnComplete": _KEPT,
    "removeOnFail": _KEPT,
}
"""What an option of JSON may be."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SPARK_NAMES: Final = {python: name for name, python in PYTHON_NAMES.items()}
_LARGE: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write; see ``docs/reference/spark.md``."""

    keys: QueueKeys
    place: Place
    job_name: str | None
    data_column: str
    data_format: Literal["auto", "json", "text"]
    non_finite: Literal["null", "string", "reject"]
    compression: Compression
    serializer: str
    guarantee: Guarantee
    write_id: str | None
    batch_size: int
    max_batch_bytes: int
    quiet: bool
    unique: bool
    drain: bool
    staging_ttl: int
    remember: int
    on_repeat: Literal["skip", "warn", "fail"]
    publish_timeout: int
    defaults: JobOptions
    columns: tuple[tuple[str, str], ...]
    """Options of jobs, and the columns that contain them, as given by the options `column.<option>`."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Parse Spark's options.

        Raises:
            GlideMQValidationError: if an option is invalid.
        """
        given = Given(options)
        guarantee = _guarantee(given)
        data_format: Any = given.choice("dataFormat", "auto", ("auto", "json", "text"))
        non_finite: Any = given.choice("nonFinite", "null", ("null", "string", "reject"))
        compression: Any = given.choice("compression", "none", ("none", "gzip"))
        unique = given.choice("duplicates", "skip", ("skip", "fail")) == "fail"
        write_id = given.checked("writeId", lambda text: validate_queue_name(text, "writeId"))
        if write_id is not None and streaming:
            raise GlideMQValidationError("writeId", write_id, "belongs to batch writes: a stream has its query's id")
        if write_id is not None and guarantee == "append":
            problem = "has no effect with guarantee 'append'; remove it or use 'atomic'"
            raise GlideMQValidationError("writeId", write_id, problem)
        if unique and guarantee != "atomic":
            raise GlideMQValidationError(
                "duplicates", "fail", "needs guarantee 'atomic': a retried task would meet its own"
            )
        drain = given.choice("overwrite", "refuse", ("refuse", "drain")) == "drain"
        if drain and (streaming or guarantee != "atomic"):
            raise GlideMQValidationError("overwrite", "drain", "needs a frame and guarantee 'atomic'")
        on_repeat: Any = given.choice("onRepeat", "warn", ("skip", "warn", "fail"))
        if "onRepeat" in given and write_id is None:
            raise GlideMQValidationError("onRepeat", on_repeat, "requires 'writeId': other writes never repeat")
        ttl = given.whole("stagingTtl", DAY_MS, _MINUTE_MS, _MONTH_MS)
        return cls(
            keys=QueueKeys(given.prefix, given.queue),
            place=given.place,
            job_name=given.checked("jobName", lambda text: validate_job_name(text, "jobName")),
            data_column=given.text("dataColumn", "data"),
            data_format=data_format,
            non_finite=non_finite,
            compression=compression,
            serializer=given.serializer,
            guarantee=guarantee,
            write_id=write_id,
            batch_size=given.whole("batchSize", BATCH_ROWS, 1, _MAX_BATCH_ROWS),
            max_batch_bytes=given.whole("maxBatchBytes", BATCH_BYTES, 1, _MAX_BATCH_BYTES),
            quiet=given.choice("events", "none", ("none", "each")) == "none",
            unique=unique,
            drain=drain,
            staging_ttl=ttl,
            # A write without a reusable id is only remembered as long as one of its tasks may be alive.
            remember=given.whole("rememberWrites", _MONTH_MS if write_id or streaming else ttl, _MINUTE_MS, _YEAR_MS),
            on_repeat=on_repeat,
            publish_timeout=given.whole("publishTimeout", _PUBLISH_TIMEOUT_MS, 0, DAY_MS),
            defaults=_defaults(given),
            columns=_mapped_columns(given),
        )


def _guarantee(given: Given) -> Guarantee:
    if given.text("guarantee").strip().lower() == "task":
        problem = "is not supported: use 'atomic' (exactly one job for each row), or 'append' (at least one, at once)"
        raise GlideMQValidationError("guarantee", "task", problem)
    return cast("Guarantee", given.choice("guarantee", "atomic", ("atomic", "append")))


def _mapped_columns(given: Given) -> tuple[tuple[str, str], ...]:
    columns = [(name, given.text(_COLUMN + name)) for name in COLUMNS if _COLUMN + name in given]
    for name, column in columns:
        explicit = "jobName" if name == "name" else name
        if explicit in given and name != "queue":
            problem = f"cannot be given together with {explicit!r}; remove one of them"
            raise GlideMQValidationError(_COLUMN + name, column, problem)
    return tuple(columns)


def _defaults(given: Given) -> JobOptions:
    chosen: dict[str, Any] = {}
    for name in PYTHON_NAMES:
        if name in given:
            kinds = COLUMNS[name]
            chosen[name] = (
                given.whole(name, 0, -_LARGE, _LARGE) if kinds == WHOLE
                else given.flag(name, False) if kinds == _TYPES[bool]
                else given.text(name)
            )  # fmt: skip
    return job_options(chosen)


def _value(name: str, given: Any) -> Any:
    if name == "runAt":
        try:
            return _EPOCH + timedelta(milliseconds=given)
        except OverflowError:
            raise GlideMQValidationError(name, given, "is out of range") from None
    if name == "deduplicationId":
        return {"id": given}
    if name not in _FORMS or not isinstance(given, str):
        return given
    try:
        return json.loads(given, name)
    except GlideMQValidationError:
        raise GlideMQValidationError(name, given, f"must be JSON: {_FORMS[name]}") from None


def job_options(chosen: Mapping[str, Any]) -> JobOptions:
    """Return job options, given by the names and values of Spark's options and columns; errors have these names too."""
    if not chosen:
        return NO_OPTIONS
    try:
        return JobOptions.parse({PYTHON_NAMES[name]: _value(name, value) for name, value in chosen.items()})
    except GlideMQValidationError as error:
        raise renamed(error) from None


def renamed(error: GlideMQValidationError) -> GlideMQValidationError:
    """Return the error with the option name that Spark users write."""
    name, dot, rest = error.option.partition(".")
    if error.option in ("ordering.key", "deduplication.id"):
        dot = rest = ""
    return GlideMQValidationError(f"{_SPARK_NAMES.get(name, name)}{dot}{rest}", error.value, error.problem)
