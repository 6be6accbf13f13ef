"""Parser of the opts JSON of a stored job. Unlike the options of new jobs, invalid stored options are never rejected.

Peers in other languages validate less (they accept negative delays and any backoff), and a worker must be able to run
their jobs: invalid options are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

from glidemq_py._core.job_options import NO_OPTIONS, WIRE_NAMES, JobOptions
from glidemq_py._features.fallbacks import read_fallbacks
from glidemq_py._features.retries import Backoff
from glidemq_py.errors import GlideMQValidationError


@lru_cache(maxsize=1024)
def read_stored_options(text: str) -> JobOptions:
    """Return the options of a stored job, given the text of its `opts` field; invalid options are ignored.

    Similar jobs have the same text, so the last 1024 texts are cached.
    """
    if text == "{}":
        return NO_OPTIONS
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError):
        return NO_OPTIONS
    if not isinstance(stored, dict):
        return NO_OPTIONS
    kept: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", stored).items():
        known = _READERS.get(key)
        if known is None or value is None:
            continue
        name, reader = known
        try:
            # Each option is parsed alone: one invalid value must not affect the others.
            kept[name] = getattr(JobOptions(**{name: reader(value)}), name)
        except GlideMQValidationError:
            continue
    if kept.get("lifo") and ("ordering" in kept or kept.get("priority")):
        del kept["lifo"]  # the server ignores it in this combination
    if "deduplication" in kept:
        kept.pop("parent", None)
    return JobOptions(**kept) if kept else NO_OPTIONS


def _same(value: Any) -> Any:
    return value


def _backoff(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    given = cast("Mapping[str, Any]", value)
    return Backoff(
        given.get("type", ""),
        given.get("delay") or 0,
        jitter=given.get("jitter") or 0.0,
        max_delay=given.get("maxDelay"),
    )


def _retention(value: Any) -> Any:
    """Return a retention as glide-mq for Node reads it: 0 means keep all. This package never writes 0."""
    if not isinstance(value, Mapping):
        return value or False
    given = cast("Mapping[str, Any]", value)
    return {name: given[name] for name in ("age", "count") if given.get(name)} or False


def _ordering(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return None
    given = cast("Mapping[str, Any]", value)
    rate, bucket = given.get("rateLimit"), given.get("tokenBucket")
    if isinstance(bucket, Mapping):
        read = cast("Mapping[str, Any]", bucket)
        bucket = {"capacity": read.get("capacity"), "refill_rate": read.get("refillRate")}
    kept = {
        "key": given.get("key"),
        "concurrency": given.get("concurrency"),
        "rate_limit": rate,
        "token_bucket": bucket,
    }
    return {name: each for name, each in kept.items() if each}


_DECODERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "backoff": _backoff,
    "remove_on_complete": _retention,
    "remove_on_fail": _retention,
    "ordering": _ordering,
    "fallbacks": read_fallbacks,
}
_READERS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    key: (name, _DECODERS.get(name, _same)) for key, name in WIRE_NAMES.items()
}


def stored_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with stored names (``removeOnFail``) or Python names as keyword arguments of `JobOptions`.

    `JobOptions` validates them; unknown names are not changed.
    """
    named: dict[str, Any] = {}
    for key, value in given.items():
        known = _READERS.get(key)
        if known is not None and value is not None:
            name, reader = known
            named[name] = reader(value) if name in ("backoff", "ordering") and isinstance(value, Mapping) else value
        else:
            named[key] = value
    return named
