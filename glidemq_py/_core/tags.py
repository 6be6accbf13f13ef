"""The job option `tags`, and tags of stored jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from glidemq_py._core.checks import check_iterable, check_text
from glidemq_py.errors import GlideMQValidationError

MAX_TAGS: Final = 20
MAX_LENGTH: Final = 64
"""Maximum length of a tag, characters."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

TagsInput = Sequence[str]


def parse_tags(option: str, value: Any) -> tuple[str, ...]:
    """Return checked tags, each once.

    Raises:
        GlideMQValidationError: If it is not an iterable of texts, or has too many or too long ones.
    """
    tags = tuple(dict.fromkeys(_tag(option, tag) for tag in check_iterable(option, value, "tags")))
    if len(tags) > MAX_TAGS:
        raise GlideMQValidationError(option, tags, f"has {len(tags)} tags; must have at most {MAX_TAGS}")
    return tags


def _tag(option: str, tag: object) -> str:
    text = check_text(option, tag, maximum=MAX_LENGTH)
    if _CONTROL.search(text):
        raise GlideMQValidationError(option, text, "must not contain control characters")
    return text


def parse_tags_filter(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the tags that jobs must have, given one, several or None."""
    if value is None:
        return ()
    return (_tag("tags", value),) if isinstance(value, str) else parse_tags("tags", value)


def tags_to_wire(tags: tuple[str, ...]) -> list[str] | None:
    """Return the stored form; None if there are no tags: these only override the queue's default."""
    return list(tags) or None


def read_tags(stored: object) -> tuple[str, ...]:
    """Return the tags in the options of a stored job; a peer's values of other types are ignored."""
    if not isinstance(stored, list):
        return ()
    return tuple(tag for tag in cast("list[object]", stored) if isinstance(tag, str))


def encoded_tags(tags: Iterable[str]) -> list[str]:
    """Return the texts that the stored options of a job with these tags contain."""
    return [json.dumps(tag, ensure_ascii=False) for tag in tags]
