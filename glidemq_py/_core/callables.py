"""Validation of user functions: their parameters are checked when they are registered, not at the first call."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from glidemq_py.errors import GlideMQValidationError

__all__ = ["check_callable", "signature_of"]

_F = TypeVar("_F", bound=Callable[..., Any])


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function. On Python 3.14, annotations that are not yet defined stay references.

    Raises:
        ValueError: the function has no signature, as some built-in functions.
        TypeError: the signature of this type of object is not supported.
    """
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def check_callable(option: str, function: _F, *arguments: str) -> _F:
    """Return a function that can be called with these positional arguments.

    Args:
        option: name of the option, for the error.
        function: the function to check. It is accepted if it has no readable signature.
        arguments: names of the positional arguments, for the error.

    Raises:
        GlideMQValidationError: not callable, or not with this number of arguments.
    """
    shape = f"must be a callable with the parameters ({', '.join(arguments)})"
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
