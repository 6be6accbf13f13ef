"""The option `serializer`: JSON texts of a frame as a queue with its own serializer stores them, and back."""

from __future__ import annotations

import importlib
import json as stdlib_json
import math
import re
from functools import cache
from typing import Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._core.payload import decode_data, decode_result, encode_data, serializer_of
from glidemq_py._core.queue_options import Compression, Serializer
from glidemq_py.errors import GlideMQValidationError, SerializationError

__all__ = ["JSON", "check_serializer", "read_data", "read_result", "serializer_named", "stored_data"]

JSON: Final = "json"
"""The default: texts are stored as they are."""
_NAMED: Final = (JSON, "msgpack")
_TARGET: Final = re.compile(r"(?P<module>\w+(\.\w+)*):(?P<attribute>\w+(\.\w+)*)")
_MAYBE_INFINITE: Final = re.compile(r"[eE]\+?0*\d{3}|\d{309}\.|\d{100}[eE]")
"""Finds in a JSON text what may be a number beyond float64, which JSON readers take for an infinity: 1e400."""


def check_serializer(text: str) -> str:
    """Check the option.

    Raises:
        GlideMQValidationError: if it names no serializer.
    """
    serializer_named(text)
    return text


@cache
def serializer_named(text: str) -> Serializer:
    """Return the serializer with a name, or that of `module:attribute`: an object, or a callable that returns one.

    Each Python process of Spark imports the module once, so that keys stay out of the options, which Spark logs.

    Raises:
        GlideMQValidationError: if it cannot be imported, or is not a serializer.
    """
    if text in _NAMED:
        return serializer_of(text)
    target = _TARGET.fullmatch(text)
    if target is None:
        raise GlideMQValidationError("serializer", text, "must be json, msgpack or module:attribute")
    try:
        found: Any = importlib.import_module(target["module"])
        for name in target["attribute"].split("."):
            found = getattr(found, name)
        if isinstance(found, type) or not hasattr(found, "serialize"):
            found = found()
    except Exception as error:
        problem = f"could not be loaded by a Python process of Spark: {type(error).__name__}: {error}"
        raise GlideMQValidationError("serializer", text, problem) from error
    if not isinstance(found, Serializer):
        what = f"an object with serialize(value) and deserialize(text), not of a {type(found).__name__}"
        raise GlideMQValidationError("serializer", text, f"must be module:attribute of {what}")
    return found


def stored_data(text: str, name: str, compression: Compression, where: str) -> str:
    """Return a JSON text as the queue stores it.

    Raises:
        GlideMQValidationError: if it is not JSON, cannot be serialized, or is too large.
    """
    value = json.loads(text, where)
    if value is None:
        return text  # a serializer never gets None
    if _MAYBE_INFINITE.search(text):
        try:
            stdlib_json.loads(text, parse_float=_finite)
        except OverflowError as error:
            number = str(error)[:30]
            problem = f"contains the number {number}, which is out of the range of a float: it would become infinity"
            raise GlideMQValidationError(where, text, problem) from error
    return encode_data(value, serializer_named(name), compression, option=where)


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise OverflowError(number)
    return value


def read_data(text: str, name: str) -> str:
    """Return stored data as JSON text; data that cannot be deserialized is returned as stored."""
    try:
        return json.dumps(decode_data(text, serializer_named(name)))
    except SerializationError:
        return text


def read_result(text: str, name: str) -> str:
    """Return a stored result as JSON text; one that cannot be deserialized is returned as stored."""
    try:
        return json.dumps(decode_result(text, serializer_named(name)))
    except SerializationError:
        return text
