"""The options of a read, validated on the driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from glidemq_py._core.checks import check_choice
from glidemq_py._core.keys import QueueKeys
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.spark.connection import Place
from glidemq_py.spark.given import Given

__all__ = ["STATES", "ReadOptions"]

STATES: Final = (
    "completed", "failed", "waiting", "active", "delayed", "prioritized", "group-waiting", "suspended",
    "waiting-children",
)  # fmt: skip
"""States that have an index."""
_STREAM_ID: Final = re.compile(r"\d{1,15}(-\d{1,15})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read; see ``docs/reference/spark.md``."""

    keys: QueueKeys
    place: Place
    states: tuple[str, ...]
    partitions: int
    fetch_size: int
    starting: str
    max_offsets: int | None
    fail_on_loss: bool

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """Parse Spark's options.

        Raises:
            GlideMQValidationError: if an option is invalid.
        """
        given = Given(options)
        view = given.choice("view", "jobs", ("jobs", "events"))
        if view == "jobs" and streaming:
            raise GlideMQValidationError("view", view, 'cannot be read as a stream; .option("view", "events") can')
        if view == "events" and not streaming:
            raise GlideMQValidationError(
                "view", view, "is read as a stream (readStream, with availableNow for what is there)"
            )
        starting = given.text("startingOffsets", "latest").strip().lower()
        if starting not in ("earliest", "latest") and _STREAM_ID.fullmatch(starting) is None:
            raise GlideMQValidationError("startingOffsets", starting, "must be earliest, latest or an event's id")
        return cls(
            keys=QueueKeys(given.prefix, given.queue),
            place=given.place,
            states=_states(given.text("state")),
            partitions=given.whole("numPartitions", 4, 1, 1_000),
            fetch_size=given.whole("fetchSize", 500, 1, 5_000),
            starting=starting,
            max_offsets=given.whole("maxOffsetsPerTrigger", 0, 1, 2**31) if "maxOffsetsPerTrigger" in given else None,
            fail_on_loss=given.flag("failOnDataLoss", True),
        )


def _states(text: str) -> tuple[str, ...]:
    if not text.strip():
        return STATES
    return tuple(dict.fromkeys(check_choice("state", part.strip().lower(), STATES) for part in text.split(",")))
