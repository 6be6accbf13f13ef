"""Whether a user's function can be called the way it will be: asked when it is given, not when it is first needed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from glidemq_py.errors import GlideMQValidationError

__all__ = ["check_callable", "signature_of"]

_F = TypeVar("_F", bound=Callable[..., Any])


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Its signature, annotations unevaluated where they may name what is defined further down.

    Raises:
        ValueError, TypeError: it tells none, as some built-in ones.
    """
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def check_callable(option: str, function: _F, *arguments: str) -> _F:
    """A function that takes these arguments by position.

    Args:
        option: what was given, for the error.
        function: the user's.
        arguments: what it is called with, for the error.

    Raises:
        GlideMQValidationError: it is no function, or cannot be called so.
    """
    shape = f"must be a function that takes ({', '.join(arguments)})"
    if not callable(function):
        raise GlideMQValidationError(option, function, shape)
    try:
        signature = signature_of(function)
    except (ValueError, TypeError):
        return function
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise GlideMQValidationError(option, function, f"{shape}, not {_shown(signature)}: {error}") from None
    return function


def _shown(signature: inspect.Signature) -> str:
    empty = inspect.Parameter.empty
    bare = [each.replace(annotation=empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=empty))
