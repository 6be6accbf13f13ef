"""Put each fault into a copy of the project and run tests on it: `python -m tests.faults [NAME...] [-- ARGUMENTS]`.

Without names: all faults. Without arguments for pytest: the unit and contract rings. A fault is found if a test fails
that passes without it. The exit code is 1 if a fault was not found.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.seeded import FAULTS, ROOT, Fault

RINGS = ["tests/unit", "tests/contract", "-m", "not slow"]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "--timeout", "60"]
LEFT_OUT = shutil.ignore_patterns(".git", ".nox*", ".venv", "*_cache", "site", "dist")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", re.MULTILINE)
FIRST_LINE = re.compile(r"^E +(.+)$", re.MULTILINE)


def run(tree: Path, arguments: list[str]) -> tuple[int, str]:
    """Return the exit code and the output of pytest in a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [*PYTEST, *arguments], cwd=tree, env=environment, text=True, stdout=-1, stderr=-2, check=False
    )
    return done.returncode, done.stdout


def find(fault: Fault, tree: Path, arguments: list[str]) -> tuple[bool, str]:
    """Return whether a test finds a fault, and which one with its first line, or what happened instead."""
    path = tree / fault.file
    original = path.read_text(encoding="utf-8")
    fault.apply(tree)
    try:
        code, output = run(tree, ["-x", *arguments])
    finally:
        path.write_text(original, encoding="utf-8")
    if code == 0:
        return False, f"NOT FOUND: {fault.breaks}"
    failed = FAILED.search(output)
    if failed is None:
        return False, f"pytest ended with {code} and no failed test\n{output[-3000:]}"
    if run(tree, [failed[1]])[0] != 0:
        return False, f"{failed[1]} fails without the fault as well\n{output[-3000:]}"
    line = FIRST_LINE.search(output)
    return True, f"found by {failed[1]}: {line[1][:120] if line else ''}"


def main(arguments: list[str]) -> int:
    """Report each fault; return the exit code."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    names, given = arguments[:end], arguments[end + 1 :] or RINGS
    chosen = [fault for fault in FAULTS if not names or fault.name in names]
    if unknown := set(names) - {fault.name for fault in FAULTS}:
        print(f"unknown faults: {', '.join(sorted(unknown))}; known: {', '.join(fault.name for fault in FAULTS)}")
        return 2
    missed = 0
    with tempfile.TemporaryDirectory(prefix="glidemq-faults-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
        for fault in chosen:
            found, text = find(fault, tree, given)
            missed += not found
            print(f"{fault.name}: {text}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults found")
    return int(missed > 0)


sys.exit(main(sys.argv[1:]))
