"""Steps: the parts of a handler whose results are stored with the job (``lua/features/steps/steps.lua``).

A stored step is the text ``<when, epoch ms> <how often> <state> <facts>``, a newline, and its result as the data of a
job is encoded. The facts are a JSON object with the names of the fields of `Step`; absent ones have their defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, cast

from glidemq_py._client.transport import JobTransport
from glidemq_py._core import json_text as json
from glidemq_py._core.payload import JSON_SERIALIZER, decode_data
from glidemq_py._core.queue_options import Serializer
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import SerializationError


class StepState(StrEnum):
    """States of a `Step`."""

    DONE = "done"
    """It has a result."""
    RETRYING = "retrying"
    """An attempt has failed, and others are left."""
    FAILED = "failed"
    """All attempts have failed."""
    SLEEPING = "sleeping"
    """`Job.sleep` has begun."""
    AWAITING = "awaiting"
    """`Job.wait_for_signal` has begun, with a timeout."""
    EXPIRED = "expired"
    """Its signal did not come in time."""
    GATHERING = "gathering"
    """`Job.gather` has added its children."""


class Step(NamedTuple):
    """A stored step of a job.

    Attributes:
        name: name of the step; that of a wait for a signal is ``signal <name>``.
        state: state of the step.
        ordinal: 1 for the first step of this name in a run, 2 for the second, ...
        function: the function of the step, or the method of `Job`.
        stored_at: when this state was stored, epoch ms of the server's clock.
        took: duration of the last attempt, ms.
        attempts: number of attempts that have ended.
        pause: ms from ``stored_at`` to the next attempt, to the end of the sleep, or to the deadline of the signal.
        children: number of children that it waits for.
        error: message of the last error, or None.
        error_type: its type, or None.
        traceback: its traceback, or None.
        result: the result, encoded as the data of a job; None without one.
    """

    name: str
    state: StepState
    ordinal: int = 1
    function: str = ""
    stored_at: int = 0
    took: int = 0
    attempts: int = 0
    pause: int = 0
    children: int = 0
    error: str | None = None
    error_type: str | None = None
    traceback: str | None = None
    result: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Identity of the step."""
        return self.name, self.ordinal

    @property
    def due_at(self) -> int:
        """When its pause ends, epoch ms of the server's clock."""
        return self.stored_at + self.pause

    def value(self, serializer: Serializer = JSON_SERIALIZER) -> Any:
        """Return the decoded result, given the serializer of the queue; None without one."""
        return None if self.result is None else decode_data(self.result, serializer)


_NO_FACTS: Final = frozenset(("state", "stored_at", "result"))
_NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)
_DEFAULTS: Final = ("", "", *Step._field_defaults.values())


def text_of_step(step: Step) -> str:
    """Return the text to store, without the time."""
    found = zip(Step._fields, step, _DEFAULTS, strict=True)
    facts = {name: value for name, value, default in found if value != default and name not in _NO_FACTS}
    return f"{step.state} {json.dumps(facts)}" + ("" if step.result is None else f"\n{step.result}")


def parse_step(text: object) -> tuple[Step, int] | None:
    """Return the step of a stored text, and how often it was stored; None if it was deleted, or is malformed."""
    if not isinstance(text, str):
        return None
    head, separator, result = text.partition("\n")
    try:
        at, version, state, facts = head.split(" ", 3)
        known: Mapping[str, Any] = json.loads(facts)
        step = Step(
            state=StepState(state), stored_at=int(at), result=result if separator else None,
            **{name: known[name] for name in Step._fields if name in known and name not in _NO_FACTS},
        )  # fmt: skip
        return step, int(version)
    except (ValueError, TypeError, SerializationError):
        return None


def parse_last(text: object) -> int:
    """Return the number of the last step, of the field ``steps``."""
    return int(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else 0


async def read_steps(link: QueueLink[JobTransport], job_id: str) -> list[Step]:
    """Return the stored steps of a job, in the order in which they were first stored."""
    key = link.keys.job(job_id)
    stored = await link.command("HGET", key, "steps")
    last = parse_last(None if stored is None else stored.decode())
    if not last:
        return []
    texts = await link.command("HMGET", key, *(f"step:{number}" for number in range(1, last + 1)))
    found = [parse_step(None if each is None else cast("bytes", each).decode("utf-8", "replace")) for each in texts]
    return [step for step, _ in filter(None, found)]
