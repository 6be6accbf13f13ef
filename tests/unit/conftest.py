"""The tests of this folder start no process and no server, so that they take seconds."""

import subprocess

import croniter  # noqa: F401 - it starts a process when it is imported
import pytest


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch):
    """Fail a test that starts a process; tests/package has those of programs and installations."""

    def refuse(*arguments: object, **_: object):
        raise AssertionError(f"a unit test starts a process: {arguments[1:]}")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
