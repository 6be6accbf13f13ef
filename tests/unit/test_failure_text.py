"""The tracebacks that a failed attempt stores."""

import json

import pytest

from glidemq_py._job.failure_text import stacktraces_with


class ReversedError(Exception):
    """An error whose stack begins with the failed code, as that of a client."""

    innermost_first = True

    def __init__(self, stack: str):
        super().__init__("no")
        self.sandbox_traceback = stack


def raised() -> ValueError:
    try:
        raise ValueError("no")
    except ValueError as error:
        return error


def test_newest_traceback_is_last():
    stored = json.loads(stacktraces_with('["first"]', raised()))
    assert stored[0] == "first"
    assert stored[1].startswith("Traceback")
    assert stored[1].endswith("ValueError: no\n")


def test_last_lines_of_a_traceback_are_kept():
    (text,) = json.loads(stacktraces_with(None, raised(), 2))
    assert text.splitlines()[0].strip() == 'raise ValueError("no")'
    assert text.endswith("\nValueError: no\n")


@pytest.mark.parametrize(("lines", "stored"), [(1, ["a"]), (2, ["a\nb"]), (9, ["a\nb\nc"]), (None, ["a\nb\nc"])])
def test_first_lines_of_a_reversed_stack_are_kept(lines, stored):
    assert json.loads(stacktraces_with(None, ReversedError("a\nb\nc"), lines)) == stored


def test_start_of_a_long_reversed_stack_is_kept():
    (text,) = json.loads(stacktraces_with(None, ReversedError("start" + "x" * 10_000)))
    assert text.startswith("start")
    assert len(text) == 8_192


def test_limit_of_zero_stores_none():
    assert json.loads(stacktraces_with('["first"]', raised(), 0)) == ["first"]
    assert json.loads(stacktraces_with(None, raised(), 0)) == []
