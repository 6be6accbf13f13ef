"""The options of a write, validated on the driver before a task starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.names import validate_job_name, validate_queue_name
from glidemq_py._core.queue_options import Compression
from glidemq_py._core.times import DAY_MS
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.spark.connection import Place
from glidemq_py.spark.given import Given

__all__ = ["Guarantee", "WriteOptions", "job_options", "renamed"]

Guarantee = Literal["atomic", "task", "append"]

BATCH_ROWS: Final = 250
"""Rows per call: about 1.5 ms of server time, which gives full speed and barely delays other clients."""
BATCH_BYTES: Final = 256 * 1024
_MAX_BATCH_ROWS: Final = 5_000
_MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
_MINUTE_MS: Final = 60_000
_MONTH_MS: Final = 30 * DAY_MS
_YEAR_MS: Final = 365 * DAY_MS

_PLAIN: Final = (
    ("delay", "delay"),
    ("priority", "priority"),
    ("attempts", "attempts"),
    ("ttl", "ttl"),
    ("timeout", "timeout"),
)
_JSON: Final = (("backoff", "backoff"), ("removeOnComplete", "remove_on_complete"), ("removeOnFail", "remove_on_fail"))
_OPTION_OF: Final = {
    "remove_on_complete": "removeOnComplete",
    "remove_on_fail": "removeOnFail",
    "ordering": "orderingKey",
    "job_id": "jobId",
}
_LARGE: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write; see ``docs/reference/spark.md``."""

    keys: QueueKeys
    place: Place
    job_name: str | None
    data_column: str
    data_format: Literal["auto", "json", "text"]
    compression: Compression
    guarantee: Guarantee
    write_id: str | None
    batch_size: int
    max_batch_bytes: int
    quiet: bool
    unique: bool
    drain: bool
    staging_ttl: int
    remember: int
    defaults: JobOptions

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Parse Spark's options.

        Raises:
            GlideMQValidationError: if an option is invalid.
        """
        given = Given(options)
        guarantee: Any = given.choice("guarantee", "atomic", ("atomic", "task", "append"))
        data_format: Any = given.choice("dataFormat", "auto", ("auto", "json", "text"))
        compression: Any = given.choice("compression", "none", ("none", "gzip"))
        unique = given.choice("duplicates", "skip", ("skip", "fail")) == "fail"
        write_id = given.checked("writeId", lambda text: validate_queue_name(text, "writeId"))
        if write_id is not None and streaming:
            raise GlideMQValidationError("writeId", write_id, "belongs to batch writes: a stream has its query's id")
        if write_id is not None and guarantee == "append":
            raise GlideMQValidationError(
                "writeId", write_id, "says nothing with guarantee 'append': nothing is remembered"
            )
        if unique and guarantee != "atomic":
            raise GlideMQValidationError(
                "duplicates", "fail", "needs guarantee 'atomic': a retried task would meet its own"
            )
        drain = given.choice("overwrite", "refuse", ("refuse", "drain")) == "drain"
        if drain and (streaming or guarantee != "atomic"):
            raise GlideMQValidationError("overwrite", "drain", "needs a frame and guarantee 'atomic'")
        ttl = given.whole("stagingTtl", DAY_MS, _MINUTE_MS, _MONTH_MS)
        return cls(
            keys=QueueKeys(given.prefix, given.queue),
            place=given.place,
            job_name=given.checked("jobName", lambda text: validate_job_name(text, "jobName")),
            data_column=given.text("dataColumn", "data"),
            data_format=data_format,
            compression=compression,
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
            defaults=_defaults(given),
        )


def _defaults(given: Given) -> JobOptions:
    chosen: dict[str, Any] = {}
    for option, name in _PLAIN:
        if option in given:
            chosen[name] = given.whole(option, 0, -_LARGE, _LARGE)
    for option, name in _JSON:
        if option in given:
            chosen[name] = given.value(option)
    if "lifo" in given:
        chosen["lifo"] = given.flag("lifo", False)
    if "orderingKey" in given:
        chosen["ordering"] = given.text("orderingKey")
    return job_options(chosen, "") if chosen else NO_OPTIONS


def job_options(chosen: dict[str, Any], where: str) -> JobOptions:
    """Return job options; errors name them as Spark users write them, after the prefix ``where``."""
    try:
        return JobOptions.parse(chosen)
    except GlideMQValidationError as error:
        raise renamed(error, where) from None


def renamed(error: GlideMQValidationError, where: str) -> GlideMQValidationError:
    """Return the error with the option name that Spark users write."""
    name, dot, rest = error.option.partition(".")
    return GlideMQValidationError(f"{where}{_OPTION_OF.get(name, name)}{dot}{rest}", error.value, error.problem)
