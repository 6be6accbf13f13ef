"""Tests of the requirement check of the Spark data source. They need neither Java nor PySpark."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glidemq_py.spark import environment
from tests.spark.conftest import ROOT


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with only the test's programs; PySpark counts as installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(environment, "_packages", str)
    return tmp_path


def put(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_missing_java_is_reported(place: Path):
    (problem,) = environment.missing()
    assert problem.startswith("Java not found: Spark needs Java 17 or later. Install it")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'openjdk version \"1.8.0_392\"' >&2", "is Java 1"),
        ("echo 'openjdk version \"11.0.21\" 2023' >&2", "is Java 11"),
        ("echo hello", "printed no version"),
        ("echo 'openjdk version \"17.0.15\" 2025' >&2", None),
        ("echo 'openjdk version \"25\" 2025' >&2", None),
    ],
)
@pytest.mark.parametrize("home", [False, True])
def test_java_version_is_checked(
    place: Path, monkeypatch: pytest.MonkeyPatch, script: str, problem: str | None, home: bool
):
    java = put(place / "home" / "bin" / "java" if home else place / "java", script)
    if home:
        monkeypatch.setenv("JAVA_HOME", str(place / "home"))
    found = environment.missing()
    assert len(found) == (problem is not None)
    if problem is not None:
        assert found[0].startswith("Spark needs Java 17 or later; ")
        assert str(java) in found[0]
        assert found[0].endswith(problem)


def test_java_home_without_java_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch):
    put(place / "java", "echo 'version \"17\"'")
    monkeypatch.setenv("JAVA_HOME", str(place / "nowhere"))
    (problem,) = environment.missing()
    assert "(from JAVA_HOME) cannot be run" in problem


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (
            "echo 'ModuleNotFoundError: nothing of that kind' >&2; exit 1",
            "cannot import the data source (ModuleNotFoundError",
        ),
        ("echo 2 7", "has another Python version than this process"),
        (None, "not found"),
    ],
)
def test_unsuitable_worker_python_is_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, problem: str
):
    put(place / "java", "echo 'version \"17\"'")
    monkeypatch.delenv("PYSPARK_PYTHON")
    if script is not None:
        put(place / "python3", script)
    (found,) = environment.missing()
    assert found.startswith("PYSPARK_PYTHON is not set, and `python3`")
    assert problem in found
    assert f"et PYSPARK_PYTHON={sys.executable}" in found


def test_missing_packages_are_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    packages = environment._packages
    assert packages() == 'not installed: pyspark, pyarrow, pandas; pip install "glidemq-py[spark]"'
    monkeypatch.setattr(importlib.util, "find_spec", str)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.5.4")
    assert "PySpark is 3.5.4: must be 4.1 or later" in packages()


def test_command_prints_missing_requirements(place: Path):
    done = subprocess.run(
        [sys.executable, "-m", "glidemq_py.spark"], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "Java not found" in done.stderr
