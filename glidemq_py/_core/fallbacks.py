"""The job option `fallbacks`: other ways to run a job, one for each retry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import JSONEncoder
from typing import Any, Final, TypedDict, cast

from glidemq_py._core.checked_options import Converted, OptionValue, option, parse_nested
from glidemq_py._core.checks import check_text
from glidemq_py.errors import GlideMQValidationError

MAX_FALLBACKS: Final = 100
MAX_TEXT: Final = 1_024
MAX_METADATA: Final = 65_536
"""Most characters of the JSON of a fallback's metadata."""
_encode: Final = JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class _RequiredKeys(TypedDict):
    model: str


class FallbackDict(_RequiredKeys, total=False):
    """`Fallback` as a mapping."""

    provider: str
    metadata: Mapping[str, Any]


def _check_text(option: str, value: object) -> str:
    return check_text(option, value, maximum=MAX_TEXT)


def _check_metadata(option: str, metadata: Any) -> dict[str, Any]:
    if not isinstance(metadata, Mapping):
        raise GlideMQValidationError(option, metadata, "must be a mapping")
    given = cast("Mapping[object, Any]", metadata)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise GlideMQValidationError(option, given, "keys must be str")
        fields[name] = value
    try:
        size = len(_encode(fields))
    except (TypeError, ValueError, RecursionError) as error:
        raise GlideMQValidationError(option, given, f"is not JSON: {error}") from None
    if size > MAX_METADATA:
        raise GlideMQValidationError(option, given, f"must be at most {MAX_METADATA} characters of JSON")
    return fields


def _metadata_to_wire(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    return dict(metadata) or None


class Fallback(OptionValue, prefix="fallbacks"):
    """An alternative to use after an attempt has failed.

    Args:
        model: name of the model, 1..1,024 characters.
        provider: provider of the model, 1..1,024 characters, or None.
        metadata: mapping of JSON values for the handler, at most 65,536 characters of JSON.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    model: str = option(_check_text)
    provider: str | None = option(_check_text, default=None, kw_only=True)
    metadata: Converted[Mapping[str, Any], Mapping[str, Any] | None] = option(
        _check_metadata, default=None, encode=_metadata_to_wire, kw_only=True
    )

    def _check_given(self) -> None:
        self.__dict__.setdefault("metadata", {})


FallbacksInput = Sequence[Fallback | FallbackDict | str]
"""Accepted values of the option `fallbacks`; a str is a model."""


def parse_fallbacks(option: str, given: object) -> tuple[Fallback, ...]:
    """Return valid fallbacks; otherwise raise GlideMQValidationError, which names the position."""
    items: Any = given
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise GlideMQValidationError(option, items, f"must be a list of fallbacks, not {type(items).__name__}")
    if len(items) > MAX_FALLBACKS:
        raise GlideMQValidationError(option, items, f"must have at most {MAX_FALLBACKS} entries")
    return tuple(_parse(f"{option}[{position}]", item) for position, item in enumerate(items))


def _parse(option: str, item: object) -> Fallback:
    return parse_nested(option, {"model": item} if isinstance(item, str) else item, Fallback)


def read_fallbacks(stored: Any) -> tuple[Fallback, ...]:
    """Parse the fallbacks of a stored job. The chain ends before the first invalid one, since positions matter."""
    if not isinstance(stored, list):
        return ()
    kept: list[Fallback] = []
    items = cast("Any", stored)
    for item in items[:MAX_FALLBACKS]:
        known: object = item
        if isinstance(item, dict):
            known = Fallback.from_wire(cast("dict[str, Any]", item))
        try:
            kept.append(_parse("fallbacks", known))
        except GlideMQValidationError:
            break
    return tuple(kept)


def current_fallback(chain: Sequence[Fallback], index: int) -> Fallback | None:
    """Return the fallback of an attempt; ``index`` is its position in the chain, 0 = no fallback in use."""
    return chain[index - 1] if 0 < index <= len(chain) else None
