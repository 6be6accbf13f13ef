"""The filter box: words such as ``name:welcome tag:vip data:customer=7 error:refused since:2h``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any, Final

from glidemq_py._operate.operating import JobFilter
from glidemq_py._operate.parsing import pairs_of, time_of
from glidemq_py._operate.snapshots import JobSummary
from glidemq_py.dashboard.texts import redacted
from glidemq_py.errors import GlideMQValidationError

__all__ = ["KEYS", "STATES", "parse_filter", "suggestions", "without_state"]

KEYS: Final = ("state", "name", "id", "group", "fair", "tag", "since", "until", "data", "error", "type")
STATES: Final = (
    "waiting", "prioritized", "group-waiting", "active", "delayed", "waiting-children", "suspended", "completed",
    "failed",
)  # fmt: skip
_SUGGESTED: Final = 100
_FIELDS: Final = {"fair": "fair_key", "type": "error_type"}


def parse_filter(text: str, state: str | None, hidden: Iterable[str] = ()) -> tuple[JobFilter, str | None]:
    """Return the filter of a text, and the id of the only job that it names, if any.

    Args:
        text: words separated by spaces; quotes hold words together. A word without a key is an id.
        state: state of the jobs; None = all. A word ``state:failed`` has precedence.
        hidden: names of keys whose values the pages hide.

    Raises:
        GlideMQValidationError: a word has an unknown key or an ill-formed value, or compares a hidden value.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise GlideMQValidationError("filter", text, f"is not closed: {error}") from None
    found: dict[str, Any] = {"state": state}
    tags: list[str] = []
    data: dict[str, Any] = {}
    job_id: str | None = None
    for word in words:
        key, colon, value = word.partition(":")
        if not colon or key not in KEYS:
            if colon and key.isalpha():
                raise GlideMQValidationError("filter", word, f"must begin with one of {', '.join(KEYS)} and a colon")
            key, value = "id", word
        match key:
            case "id":
                job_id = value
            case "state":
                if value not in STATES:
                    raise GlideMQValidationError("filter", word, f"must name one of the states {', '.join(STATES)}")
                found["state"] = value
            case "tag":
                tags.append(value)
            case "since" | "until":
                found[key] = time_of("filter", value)
            case "data":
                pair = pairs_of("filter", [value])
                if redacted(pair, hidden) != pair:
                    raise GlideMQValidationError("filter", "data:***", "compares a value that these pages hide")
                data |= pair
            case _:
                found[_FIELDS.get(key, key)] = value
    return JobFilter(**found, tags=tuple(tags), data=data or None), job_id


def without_state(text: str) -> str:
    """Return a valid filter without its words ``state:...``, which the page shows otherwise."""
    words = shlex.split(text)
    kept = [word for word in words if not word.startswith("state:")]
    return text if len(kept) == len(words) else shlex.join(kept)


def suggestions(jobs: Iterable[JobSummary], names: Iterable[str]) -> list[str]:
    """Return the suggestions of the filter box.

    Args:
        jobs: the jobs on the page, whose names, groups, fair keys, tags and types of errors are suggested.
        names: further names of jobs.
    """
    found: set[tuple[str, str]] = {("name", name) for name in names}
    for each in jobs:
        values = (("name", each.name), ("group", each.group), ("fair", each.fair_key), ("type", each.error_type))
        found.update((key, value) for key, value in values if value)
        found.update(("tag", tag) for tag in each.tags)
    known = sorted(found, key=lambda word: (KEYS.index(word[0]), word[1]))[:_SUGGESTED]
    return [
        *(f"{key}:{shlex.quote(value)}" for key, value in known),
        *(f"state:{state}" for state in STATES),
        "since:1h",
        "until:1h",
        *(f"{key}:" for key in ("id", "tag", "data", "group", "fair", "error", "type")),
    ]
