"""Settings of a backup of a queue without partitions, which is restored into a partitioned one.

The restore writes them to partition 0. As when the number of partitions changes, the others get copies, and each gets
its share of the limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glidemq_py._api.partitioned_changes import CHOOSING, copy_to_partitions, divide_limits, forget_limits, limits_of
from glidemq_py._api.partitioned_writes import CHANGING
from glidemq_py._core import json_text as json
from glidemq_py._features.backup.restoring import BackedUpSettings
from glidemq_py._features.fair_keys.options import NAME_PREFIX
from glidemq_py._features.partitions.layout import Layout
from glidemq_py._features.schedulers.entry import Entry
from glidemq_py.errors import GlideMQError

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue
    from glidemq_py._api.partitioned import PartitionedQueue

__all__ = ["apply_to_partitions", "mismatch"]

_CONCURRENCY, _RATE, _TEMPORARY = b"globalConcurrency", b"rateLimitMax", b"temporaryLimits"


def mismatch(settings: BackedUpSettings, partitions: int) -> str | None:
    """Return why the settings cannot apply to so many partitions, or None."""
    for option, number in _numbers(settings).items():
        if 0 < number < partitions:
            return f"its limit {option!r} is {number}; call Queue.set_partitions with a smaller number before"
    for text in (*settings["schedulers"].values(), *settings["schedulers-own"].values()):
        chosen = _choosing(text.decode("utf-8", "replace"))
        if chosen is not None:
            return f"a scheduler creates jobs with {chosen!r}, which would choose a partition"
    return None


def _numbers(settings: BackedUpSettings) -> dict[str, int]:
    """Return the limits of the queue and of names; 0 = none."""
    meta = settings["meta"]
    held = meta.get(CHANGING.encode())
    if held:  # a change of its partitions was interrupted: these are its limits
        found: Any = json.loads(held.decode())
        numbers = {"concurrency": found["concurrency"] or 0, "max": found["rate"][0] if found["rate"] else 0}
        for name, (concurrency, rate) in found["names"].items():
            numbers |= {f"concurrency of name {name!r}": concurrency or 0, f"max of name {name!r}": (rate or [0])[0]}
        return numbers
    numbers = {"concurrency": _number(meta.get(_CONCURRENCY)), "max": _number(meta.get(_RATE))}
    for name in _limited_names(settings):
        _, concurrency, most, *_ = settings["fair-limits"][f"{NAME_PREFIX}{name}".encode()].split(b"|") + [b""] * 2
        numbers |= {f"concurrency of name {name!r}": _number(concurrency), f"max of name {name!r}": _number(most)}
    return numbers


def _number(text: bytes | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _limited_names(settings: BackedUpSettings) -> list[str]:
    keys = (key.decode("utf-8", "replace") for key in settings["fair-limits"])
    return [key.removeprefix(NAME_PREFIX) for key in keys if key.startswith(NAME_PREFIX)]


def _choosing(text: str) -> str | None:
    """Return the option of a scheduler's jobs that would choose a partition, or None."""
    try:
        options = Entry(text).template.options
    except GlideMQError:
        return None  # it is invalid, so it adds no jobs
    return next((option for option in CHOOSING if getattr(options, option) is not None), None)


async def apply_to_partitions(home: Queue[Any, Any], restored: PartitionedQueue, settings: BackedUpSettings) -> None:
    """Give all partitions the settings that were written to partition 0, and divide the limits of the backup.

    Limits that the backup does not contain remain as they are in the partitions.
    """
    plain = Layout.plain(home.name)
    before, meta = home._with_layout(plain), settings["meta"]
    held = bool(meta.get(CHANGING.encode()))
    if not held:
        await forget_limits(home)
    own = await restored.queues[0].get_global_limits()
    limits = (await limits_of(home, before))._replace(
        concurrency=own.concurrency if _CONCURRENCY in meta else None,
        concurrency_ttl=own.concurrency_ttl if _TEMPORARY in meta else None,
    )
    await copy_to_partitions(before, restored, plain)
    if not held:
        names = set(_limited_names(settings))
        limits = limits._replace(
            rate=limits.rate if _RATE in meta else None,
            names={name: each for name, each in limits.names.items() if name in names},
        )
        if _CONCURRENCY in meta and limits.concurrency is None:
            await restored.run("set_global_concurrency", (0,), {})
        if _RATE in meta and limits.rate is None:
            await restored.run("remove_global_rate_limit", (), {})
    await divide_limits(home, restored, limits)
    if limits.concurrency is not None:
        await restored.run("set_global_concurrency", (limits.concurrency,), {"ttl": limits.concurrency_ttl})
    await forget_limits(home)
