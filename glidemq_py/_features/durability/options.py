"""The option ``durable``: which failures added jobs must survive before the add returns."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal, TypedDict

from glidemq_py._core.checked_options import Converted, OptionValue, option, parse_nested
from glidemq_py._core.checks import check_bool, check_int
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError

_OPTION: Final = "durable"
_MAX_TIMEOUT: Final = 300_000
_MAX_REPLICAS: Final = 1_000

Replicas = int | Literal["all"]


class DurabilityDict(TypedDict, total=False):
    """`Durability` written as a mapping."""

    disk: bool
    replicas: Replicas
    timeout: Milliseconds


def _replicas(option: str, value: object) -> Replicas:
    if value == "all":
        return "all"
    if isinstance(value, str):
        raise GlideMQValidationError(option, value, "must be a number of replicas or 'all'")
    return check_int(option, value, 0, _MAX_REPLICAS)


class Durability(OptionValue, prefix=_OPTION, kw_only=True):
    """What must have an added job before its add returns.

    Args:
        disk: the append-only file of the primary, written to disk (``WAITAOF 1 0``): the job survives a crash of the
            server, and with ``appendfsync always`` a power loss (docs/operate/durability.md: why not with everysec).
        replicas: this many replicas, in memory (``WAIT``), or "all" that are connected: the job survives a failover.
            With fewer than all, a replica that does not have the job may become primary.
        timeout: how long to wait for the confirmation, in ms or as a timedelta, 1 ms to 5 minutes.

    Raises:
        GlideMQValidationError: an option is invalid, or neither ``disk`` nor ``replicas`` is given.
    """

    disk: bool = option(check_bool, default=True)
    replicas: Replicas = option(_replicas, default=0)
    timeout: Converted[int, Milliseconds] = option(partial(to_ms, minimum=1, maximum=_MAX_TIMEOUT), default=5_000)

    def _check_given(self) -> None:
        if not self.disk and not self.replicas:
            problem = "requires 'replicas': nothing would be confirmed"
            raise GlideMQValidationError(f"{_OPTION}.disk", self.disk, problem)


DurableInput = bool | Durability | DurabilityDict | None
"""A value of ``durable``: True (on disk), the options, False (do not wait), or None (as the queue)."""

_ON_DISK: Final = Durability()


def parse_durable(value: object) -> Durability | None:
    """Return the parsed option ``durable``; None if adds do not wait.

    Raises:
        GlideMQValidationError: the value is invalid.
    """
    if value is None or value is False:
        return None
    if value is True:
        return _ON_DISK
    return parse_nested(_OPTION, value, Durability, ", True or False")
