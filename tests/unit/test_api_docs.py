"""Every public object has a docstring."""

import inspect
from collections.abc import Iterator

import pytest

import glidemq_py


def _public() -> Iterator[tuple[str, object]]:
    for name in glidemq_py.__all__:
        if name.startswith("__"):
            continue
        thing = getattr(glidemq_py, name)
        yield name, thing
        if not inspect.isclass(thing):
            continue
        for member, value in vars(thing).items():
            if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                yield f"{name}.{member}", value


@pytest.mark.parametrize(("name", "thing"), [pytest.param(*pair, id=pair[0]) for pair in _public()])
def test_it_has_a_docstring(name: str, thing: object):
    if isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    doc = vars(thing).get("__doc__") if inspect.isclass(thing) else getattr(thing, "__doc__", None)
    assert doc, name
    assert not doc.startswith((f"{name}(", "dict(")), f"{name} has only the docstring that dataclasses make"
    assert doc.strip()[0].isupper() or doc.strip()[0] in "`\"'(*", name


def test_every_exported_name_exists_once():
    assert sorted(set(glidemq_py.__all__)) == sorted(glidemq_py.__all__)
    for name in glidemq_py.__all__:
        assert hasattr(glidemq_py, name)


def test_errors_are_one_tree():
    errors = [thing for _, thing in _public() if inspect.isclass(thing) and issubclass(thing, BaseException)]
    assert errors
    assert all(issubclass(error, glidemq_py.GlideMQError) for error in errors)


def test_package_has_a_docstring():
    assert glidemq_py.__doc__
