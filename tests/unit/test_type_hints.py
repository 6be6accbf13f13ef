"""`typing.get_type_hints` resolves the annotations of all public functions and methods, as documentation tools do."""

import inspect
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import glidemq_py
from glidemq_py import dashboard, errors, gateway, library, proxy, spark, sync, telemetry, testing


def functions_of(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, value in inspect.getmembers_static(kind):
        if not name.startswith("_") or name == "__init__":
            found = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            yield f"{kind.__name__}.{name}", found


def public_functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in module.__all__:
        value = getattr(module, name)
        yield from functions_of(value) if inspect.isclass(value) else [(name, value)]


MODULES = [glidemq_py, sync, testing, proxy, gateway, dashboard, spark, telemetry, library]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_hints_of_public_functions_resolve(module: ModuleType) -> None:
    failures: list[str] = []
    seen = 0
    for name, value in public_functions(module):
        function = inspect.unwrap(value) if callable(value) else None
        if inspect.isfunction(function):
            seen += 1
            try:
                typing.get_type_hints(function)
            except NameError as error:
                failures.append(f"{name}: {error}")
    assert failures == []
    assert seen > 0


@pytest.mark.parametrize("module", [*MODULES, errors], ids=lambda m: m.__name__)
def test_hints_of_public_classes_resolve(module: ModuleType) -> None:
    """Also of errors, which name the module `glidemq_py.errors` as their own but are defined in another."""
    failures: list[str] = []
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            try:
                typing.get_type_hints(value)
            except NameError as error:
                failures.append(f"{name}: {error}")
    assert failures == []
