"""The generated files of a checkout: written from source texts alone, renewed when the sources change, and needed."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools.generate_sync import TWINS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a copy of the package and the generator, as git has them."""
    ignored = shutil.ignore_patterns("__pycache__", "*_twin.py")
    shutil.copytree(ROOT / "glidemq_py", tmp_path / "glidemq_py", ignore=ignored)
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=ignored)
    return tmp_path


def generate(clone: Path) -> str:
    """Write the files, without any package beside the standard library."""
    command = [sys.executable, "-I", "-S", "-W", "error", str(clone / "tools" / "generate_sync.py")]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


def generated(folder: Path) -> dict[str, str]:
    paths = (folder / "glidemq_py").rglob("*_twin.py")
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def test_files_are_those_of_the_sources(clone: Path):
    assert len(generate(clone).splitlines()) == len(TWINS)
    assert generated(clone) == generated(ROOT)
    assert generate(clone) == "the blocking classes are current\n"


def test_changed_sources_renew_the_files(clone: Path):
    generate(clone)
    source = clone / "glidemq_py" / "_features" / "leases" / "lease.py"
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace('"""Complete the job with its result.', '"""End the job.'), encoding="utf-8")
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(generate, [clone] * 3))
    assert '"""End the job.' in generated(clone)["glidemq_py/sync/lease_twin.py"]
    assert len(generated(clone)) == len(TWINS)
    assert list(clone.rglob("*.tmp")) == []


@pytest.mark.parametrize("statement", ["from glidemq_py import Queue", "from glidemq_py.sync import Queue"])
def test_a_checkout_without_the_files_names_the_command(clone: Path, statement: str):
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    run = subprocess.run(
        [sys.executable, "-c", statement], env=environment, cwd=clone, capture_output=True, text=True, timeout=100
    )
    assert "_twin', which is not committed; run `python -m tools.generate_sync`" in run.stderr.splitlines()[-1]
