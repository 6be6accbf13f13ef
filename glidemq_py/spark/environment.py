"""What Spark needs around itself: Java, PySpark, and worker processes whose Python has this package too.

Spark's own messages about these are poor (``JAVA_GATEWAY_EXITED``, ``DATA_SOURCE_NOT_FOUND``), and come before any code
of ours runs. So there is something to ask: ``python -m glidemq_py.spark``, or `missing` in a program.
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
    """What keeps Spark from starting here, or from finding the data source: sentences, none where all is well.

    Args:
        workers: look at the Python of Spark's processes too.
    """
    return [problem for problem in (_packages(), _java(), _worker_python() if workers else "") if problem]


def _packages() -> str:
    absent = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        return f'not installed: {", ".join(absent)}; pip install "glidemq-py[spark]"'
    version = importlib.metadata.version("pyspark")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < (4, 1):
        return f'PySpark is {version}, and must be 4.1 or later; pip install "glidemq-py[spark]"'
    return ""


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    need = f"Spark needs Java {OLDEST_JAVA} or later"
    if java is None:
        return f"there is no Java: {need}. Install one (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME"
    where = f"{java} (from JAVA_HOME)" if home else java
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{need}, and {where} cannot be run: {error}"
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if found is None:
        return f"{need}, and {where} does not tell its version"
    return f"{need}, and {where} is Java {found[1]}" if int(found[1]) < OLDEST_JAVA else ""


def _worker_python() -> str:
    """Spark's Python processes run what PYSPARK_PYTHON names, else `python3`: not the Python of the program."""
    named = os.environ.get("PYSPARK_PYTHON")
    command = named or "python3"
    python = shutil.which(command)
    cure = f"set PYSPARK_PYTHON={sys.executable}"
    what = f"PYSPARK_PYTHON={named}" if named else "PYSPARK_PYTHON is not set, and `python3`"
    if python is None:
        return f"{what} is not there: {cure}"
    if Path(python).absolute() == Path(sys.executable).absolute():
        return ""
    code = "import sys; del sys.path[0]; import pyspark_glidemq, pyarrow; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{what} ({python}) cannot be run: {error}. {cure[0].upper()}{cure[1:]}"
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it ended"])[-1]
        return f"{what} ({python}) cannot import the data source ({reason}): {cure}"
    if done.stdout.split() != [str(number) for number in sys.version_info[:2]]:
        return f"{what} ({python}) is another version of Python than this: {cure}"
    return ""


def main() -> int:
    """Print what is missing; 1 if anything is."""
    problems = missing()
    sys.stderr.writelines(f"{escape_control(problem)}\n" for problem in problems)
    if not problems:
        sys.stdout.write("Spark finds everything that the data source needs\n")
    return 1 if problems else 0
