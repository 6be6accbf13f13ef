"""The job option `fallbacks`: alternatives (such as models) for the attempts after the first.

Handlers read `Job.current_fallback`; nothing is applied automatically. The field `fallbackIndex` of the job hash counts
which one is current.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import JSONEncoder
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from glidemq_py._core.checks import check_mapping, check_text
from glidemq_py.errors import GlideMQValidationError

__all__ = [
    "Fallback",
    "FallbackDict",
    "FallbacksInput",
    "JobFallbacks",
    "parse_fallbacks",
    "read_fallbacks",
]

MAX_FALLBACKS: Final = 100
MAX_TEXT: Final = 1_024
MAX_METADATA: Final = 65_536
"""Most characters of the JSON of a fallback's metadata."""
_FIELDS: Final = ("model", "provider", "metadata")
_encode: Final = JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class _RequiredKeys(TypedDict):
    model: str


class FallbackDict(_RequiredKeys, total=False):
    """`Fallback` as a mapping."""

    provider: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, init=False)
class Fallback:
    """An alternative to use after an attempt has failed.

    Args:
        model: name of the model, 1..1,024 characters.
        provider: provider of the model, 1..1,024 characters, or None.
        metadata: mapping of JSON values for the handler, at most 65,536 characters of JSON.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    model: str
    provider: str | None
    metadata: Mapping[str, Any]

    def __init__(self, model: str, *, provider: str | None = None, metadata: Mapping[str, Any] | None = None) -> None:
        keep = object.__setattr__
        keep(self, "model", check_text("fallbacks.model", model, maximum=MAX_TEXT))
        if provider is not None:
            check_text("fallbacks.provider", provider, maximum=MAX_TEXT)
        keep(self, "provider", provider)
        keep(self, "metadata", _checked(metadata))

    def to_wire(self) -> dict[str, Any]:
        """Return the fallback as in the opts JSON, without empty fields."""
        wire: dict[str, Any] = {"model": self.model}
        if self.provider is not None:
            wire["provider"] = self.provider
        if self.metadata:
            wire["metadata"] = dict(self.metadata)
        return wire


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
    if isinstance(item, Fallback):
        return item
    try:
        if isinstance(item, str):
            return Fallback(item)
        fields = check_mapping("fallbacks", item, _FIELDS)
        if "model" not in fields:
            raise GlideMQValidationError("fallbacks.model", None, "is required")
        return Fallback(**fields)
    except GlideMQValidationError as error:
        raise GlideMQValidationError(error.option.replace("fallbacks", option, 1), error.value, error.problem) from None


def read_fallbacks(stored: Any) -> tuple[Fallback, ...]:
    """Parse the fallbacks of a stored job. The chain ends before the first invalid one, since positions matter."""
    if not isinstance(stored, list):
        return ()
    kept: list[Fallback] = []
    items = cast("Any", stored)
    for item in items[:MAX_FALLBACKS]:
        known: object = item
        if isinstance(item, dict):
            fields = cast("dict[str, Any]", item)
            known = {name: fields[name] for name in _FIELDS if fields.get(name)}
        try:
            kept.append(_parse("fallbacks", known))
        except GlideMQValidationError:
            break
    return tuple(kept)


def _checked(metadata: Any) -> dict[str, Any]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise GlideMQValidationError("fallbacks.metadata", metadata, "must be a mapping")
    given = cast("Mapping[object, Any]", metadata)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise GlideMQValidationError("fallbacks.metadata", given, "keys must be str")
        fields[name] = value
    try:
        size = len(_encode(fields))
    except (TypeError, ValueError, RecursionError) as error:
        raise GlideMQValidationError("fallbacks.metadata", given, f"is not JSON: {error}") from None
    if size > MAX_METADATA:
        raise GlideMQValidationError("fallbacks.metadata", given, f"must be at most {MAX_METADATA} characters of JSON")
    return fields


class JobFallbacks:
    """The fallback properties of `Job`."""

    fallback_index: int = 0
    """Position in the chain of fallbacks, which is the number of retried attempts; 0 = no fallback in use."""

    if TYPE_CHECKING:

        @property
        def opts(self) -> Mapping[str, Any]:
            """See `Job`."""
            ...

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The chain of fallbacks that the job was added with."""
        return read_fallbacks(self.opts.get("fallbacks"))

    @property
    def current_fallback(self) -> Fallback | None:
        """The fallback of this attempt: None for the first attempt, then each of `fallbacks` in turn.

        It is None again if there are more attempts than fallbacks; check `fallback_index` to distinguish the two.
        """
        index = self.fallback_index
        if index <= 0:
            return None
        chain = self.fallbacks
        return chain[index - 1] if index <= len(chain) else None
