"""The options of reads, validated on the driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from glidemq_py._core.checks import check_choice
from glidemq_py._core.keys import QueueKeys
from glidemq_py._partitions.layout import split_partition_id
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.spark.options import Given, Place

__all__ = ["FINISHED", "STATES", "VIEWS", "ReadOptions"]

STATES: Final = (
    "completed", "failed", "waiting", "active", "delayed", "prioritized", "group-waiting", "suspended",
    "waiting-children",
)  # fmt: skip
"""States that have an index."""
FINISHED: Final = ("completed", "failed")
"""States that a stream reads."""
VIEWS: Final = ("jobs", "counts", "events", "writes")
_STREAM_ID: Final = re.compile(r"\d{1,15}(-\d{1,15})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read; see ``docs/reference/spark.md``."""

    keys: QueueKeys
    place: Place
    view: Literal["jobs", "counts", "events", "writes"]
    states: tuple[str, ...]
    partitions: int
    fetch_size: int
    starting: str
    starting_at: int | None
    max_offsets: int | None
    fail_on_loss: bool
    serializer: str

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """Parse Spark's options.

        Raises:
            GlideMQValidationError: if an option is invalid.
        """
        given = Given(options)
        view: Any = given.choice("view", "jobs", VIEWS)
        if view in ("counts", "writes") and streaming:
            raise GlideMQValidationError("view", view, "cannot be read as a stream; use 'jobs' or 'events'")
        if view == "events" and not streaming:
            raise GlideMQValidationError(
                "view", view, "is read as a stream (readStream, with availableNow for the existing entries)"
            )
        starting = given.text("startingOffsets", "latest").strip().lower()
        if view == "events":
            _, starting = split_partition_id(starting)  # the column eventId has the partition
        if starting not in ("earliest", "latest") and _STREAM_ID.fullmatch(starting) is None:
            what = "an event's id" if view == "events" else "the number of a finished job"
            raise GlideMQValidationError("startingOffsets", starting, f"must be earliest, latest or {what}")
        starting_at = given.checked("startingTimestamp", _epoch_ms)
        if starting_at is not None and "startingOffsets" in given:
            raise GlideMQValidationError(
                "startingTimestamp", starting_at, "cannot be given together with 'startingOffsets'"
            )
        return cls(
            keys=QueueKeys(given.prefix, given.queue),
            place=given.place,
            view=view,
            states=_states(given.text("state"), FINISHED if streaming else STATES),
            partitions=given.whole("numPartitions", 4, 1, 1_000),
            fetch_size=given.whole("fetchSize", 500, 1, 5_000),
            starting=starting,
            starting_at=starting_at,
            max_offsets=given.whole("maxOffsetsPerTrigger", 0, 1, 2**31) if "maxOffsetsPerTrigger" in given else None,
            fail_on_loss=given.flag("failOnDataLoss", True),
            serializer=given.serializer,
        )


def _epoch_ms(text: str) -> int:
    """Return a time given in epoch ms, or in ISO 8601 with a time zone."""
    text = text.strip()
    if re.fullmatch(r"\d{1,15}", text, re.ASCII):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        problem = "must be milliseconds since 1970, or ISO 8601 with a time zone, such as 2026-01-31T12:00:00Z"
        raise GlideMQValidationError("startingTimestamp", text, problem)
    return max(0, int(found.timestamp() * 1_000))


def _states(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    if not text.strip():
        return known
    return tuple(dict.fromkeys(check_choice("state", part.strip().lower(), known) for part in text.split(",")))
