"""The queues of a worker: one name, a list of names (strict order), or a mapping of names to weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from glidemq_py._core.checks import check_int
from glidemq_py._core.keys import validate_queue_name
from glidemq_py.errors import GlideMQValidationError

MAX_QUEUES: Final = 10_000
MAX_WEIGHT: Final = 1_000
_OPTION: Final = "queue_name"


class QueueSelection(NamedTuple):
    """The queues of a worker.

    Attributes:
        names: Names of the queues.
        weights: Weight of each queue; 1 each in a list.
        weighted: True for a mapping.
        several: False for one queue: a list or mapping of one is the same as its name.
    """

    names: tuple[str, ...]
    weights: tuple[int, ...]
    weighted: bool
    several: bool


def parse_queues(value: object) -> QueueSelection:
    """Return the queues of the option ``queue_name`` of a worker.

    Raises:
        GlideMQValidationError: If a name or weight is invalid, a name occurs twice, or there is none.
    """
    if isinstance(value, str):
        return QueueSelection((validate_queue_name(value, _OPTION),), (1,), False, False)
    if isinstance(value, Mapping):
        given: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        names = _names(list(given), given)
        weights = tuple(check_int(f"{_OPTION}[{name!r}]", given[name], minimum=1, maximum=MAX_WEIGHT) for name in names)
        return QueueSelection(names, weights, True, len(names) > 1)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        listed: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        names = _names(listed, listed)
        return QueueSelection(names, (1,) * len(names), False, len(names) > 1)
    raise GlideMQValidationError(
        _OPTION, value, "must be a name, a list of names (strict order), or a mapping of names to weights"
    )


def _names(values: list[Any], given: object) -> tuple[str, ...]:
    if not values:
        raise GlideMQValidationError(_OPTION, given, "must name at least one queue")
    if len(values) > MAX_QUEUES:
        raise GlideMQValidationError(_OPTION, f"{len(values)} queues", f"must name at most {MAX_QUEUES:,} queues")
    names = tuple(validate_queue_name(name, f"{_OPTION}[{at}]") for at, name in enumerate(values))
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise GlideMQValidationError(_OPTION, name, "is named twice")
        seen.add(name)
    return names
