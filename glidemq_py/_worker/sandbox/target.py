"""The name of a sandboxed handler: ``package.module:function``, or a file with or without ``:function``."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from glidemq_py._worker.handlers import check_handler
from glidemq_py.errors import GlideMQValidationError

DEFAULT_FUNCTION: Final = "handler"
_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_MODULE = re.compile(rf"(?P<module>{_NAME}):(?P<function>{_NAME})")
_FILE = re.compile(rf"(?P<file>.+\.py)(?::(?P<function>{_NAME}))?", re.DOTALL)
_FILE_MODULE = "glidemq_sandboxed_{}"


@dataclass(frozen=True, slots=True)
class Target:
    """A function in a module, or in a file.

    Attributes:
        place: Name of the module, or absolute path of the file.
        is_file: True if ``place`` is a path.
        function: Name of the function.
    """

    place: str
    is_file: bool
    function: str


def parse_target(text: str) -> Target:
    """Parse the name of a handler without importing it.

    Raises:
        GlideMQValidationError: If the name is invalid, or the file or module does not exist.
    """
    file = _FILE.fullmatch(text)
    if file is not None:
        path = Path(file["file"]).absolute()
        if not path.is_file():
            raise GlideMQValidationError("handler", text, f"there is no file {str(path)!r}")
        return Target(str(path), True, file["function"] or DEFAULT_FUNCTION)
    module = _MODULE.fullmatch(text)
    if module is None:
        raise GlideMQValidationError("handler", text, 'must be "module:function" or the path of a .py file')
    top = module["module"].partition(".")[0]
    # Finding a submodule would import its package, which only the sandbox's processes may do.
    if top not in sys.modules and importlib.util.find_spec(top) is None:
        raise GlideMQValidationError("handler", text, f"there is no module {top!r}")
    return Target(module["module"], False, module["function"])


def load_target(target: Target) -> Callable[[Any], Any]:
    """Import and return the function; called in the sandbox's process. Errors of the import are raised.

    Raises:
        LookupError: If it does not exist or is not a function.
    """
    found: Any = _load_file(target.place) if target.is_file else _load_module(target.place)
    for name in target.function.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise LookupError(f"{target.place} has no {target.function!r}") from None
    if not callable(found):
        raise LookupError(f"{target.function!r} of {target.place} is {type(found).__name__}, not a function")
    try:
        function: Callable[[Any], Any] = check_handler(found, "job")
    except GlideMQValidationError as error:
        raise LookupError(f"{target.function!r} of {target.place} {error.problem}") from None
    return function


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise LookupError(f"there is no module {error.name!r}") from None
        raise


def _load_file(path: str) -> Any:
    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as for a script, so that it can import its neighbors
    name = _FILE_MODULE.format(re.sub(r"\W", "_", Path(path).stem))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LookupError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
