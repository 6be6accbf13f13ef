"""Check Spark's requirements: Java, PySpark, and worker processes whose Python has this package.

Spark's own messages about them are unclear (``JAVA_GATEWAY_EXITED``, ``DATA_SOURCE_NOT_FOUND``) and appear before any
code of this package runs. Run ``python -m glidemq_py.spark``, or call `missing`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from glidemq_py._core.logs import escape_control

__all__ = ["main", "missing"]

OLDEST_JAVA: Final = 17
_PACKAGES: Final = ("pyspark", "pyarrow", "pandas")
_PATIENCE_S: Final = 60


def missing(*, workers: bool = True) -> list[str]:
    """Return a message per missing requirement; an empty list if Spark and the data source can start.

    Args:
        workers: check the Python of Spark's worker processes as well.
    """
    return [problem for problem in (_packages(), _java(), _worker_python() if workers else "") if problem]


def _packages() -> str:
    absent = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        return f'not installed: {", ".join(absent)}; pip install "glidemq-py[spark]"'
    version = importlib.metadata.version("pyspark")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < (4, 1):
        return f'PySpark is {version}: must be 4.1 or later; pip install "glidemq-py[spark]"'
    return ""


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    need = f"Spark needs Java {OLDEST_JAVA} or later"
    if java is None:
        return f"Java not found: {need}. Install it (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME"
    where = f"{java} (from JAVA_HOME)" if home else java
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{need}; {where} cannot be run: {error}"
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if found is None:
        return f"{need}; {where} printed no version"
    return f"{need}; {where} is Java {found[1]}" if int(found[1]) < OLDEST_JAVA else ""


def _worker_python() -> str:
    """Check the Python of Spark's workers: PYSPARK_PYTHON, else `python3`, not the Python of the program."""
    named = os.environ.get("PYSPARK_PYTHON")
    command = named or "python3"
    python = shutil.which(command)
    cure = f"set PYSPARK_PYTHON={sys.executable}"
    what = f"PYSPARK_PYTHON={named}" if named else "PYSPARK_PYTHON is not set, and `python3`"
    if python is None:
        return f"{what} not found: {cure}"
    if Path(python).absolute() == Path(sys.executable).absolute():
        return ""
    code = "import sys; del sys.path[0]; import pyspark_glidemq, pyarrow; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{what} ({python}) cannot be run: {error}. {cure[0].upper()}{cure[1:]}"
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it exited"])[-1]
        return f"{what} ({python}) cannot import the data source ({reason}): {cure}"
    if done.stdout.split() != [str(number) for number in sys.version_info[:2]]:
        return f"{what} ({python}) has another Python version than this process: {cure}"
    return ""


def main() -> int:
    """Print the missing requirements; return 1 if there are any."""
    problems = missing()
    sys.stderr.writelines(f"{escape_control(problem)}\n" for problem in problems)
    if not problems:
        sys.stdout.write("all requirements of the Spark data source are met\n")
    return 1 if problems else 0
