"""Layout of the package: names of modules, their least size, and the folders of features in both languages."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "glidemq_py"
MODULES = sorted(each for each in PACKAGE.rglob("*.py") if not each.stem.endswith("_twin"))
LEAST_LINES = 40

SMALL = {
    "_job/message.py": "only workers of broadcasts load messages",
    "_job/current.py": "commands label log records, without loading jobs",
    "_features/deduplication.py": "a module per feature",
    "_features/delays.py": "a module per feature",
    "options.py": "a list of names to import",
    "integrations/django_admin/apps.py": "Django requires this module",
    "integrations/django_admin/models.py": "Django requires this module",
}
"""Modules below `LEAST_LINES` and their reasons. `__init__.py` and `__main__.py` need none."""

ONLY_LUA = {
    "gateway": "glidemq_py/gateway is a public package",
    "ordering_groups": "limits of groups, glidemq_py/_features/limits.py, and an option",
    "retention": "an option, glidemq_py/_core/option_values.py",
    "retries": "an option, glidemq_py/_core/option_values.py",
    "maintenance": "its Python side is glidemq_py/_worker/maintenance",
    "partitions": "its Python side is glidemq_py/_partitions",
    "ranks": "options and methods of glidemq_py/_features/priorities.py",
    "requeue": "methods of failed jobs and dead letters: glidemq_py/_features/failures.py and dead_letters.py",
}
ONLY_PYTHON = {
    "cleaning": "the server's side of the index by age is in lua/features/retention",
    "durable_adds": "the server's side is in lua/features/durability",
    "failed_attempts": "the server's side is in lua/features/failures",
    "failure_policy": "the server's side is in lua/features/failures",
    "usage_summaries": "reads what usage.py reports",
    "typed_values": "runs in producers and workers",
}


def lines(module: Path) -> int:
    return len(module.read_text(encoding="utf-8").splitlines())


def test_small_modules_have_a_reason():
    small = {
        module.relative_to(PACKAGE).as_posix()
        for module in MODULES
        if module.name not in ("__init__.py", "__main__.py") and lines(module) < LEAST_LINES
    }
    assert small == SMALL.keys()


def test_no_module_has_the_name_of_one_of_the_standard_library():
    names = {part for module in MODULES for part in module.relative_to(PACKAGE).with_suffix("").parts}
    assert names & sys.stdlib_module_names == set()


def test_features_have_the_same_name_in_lua_and_python():
    lua = {each.name for each in (ROOT / "lua" / "features").iterdir() if each.is_dir()}
    python = {each.stem for each in (PACKAGE / "_features").iterdir() if not each.name.startswith("__")}
    assert lua - python == ONLY_LUA.keys()
    assert python - lua == ONLY_PYTHON.keys()


def test_architecture_names_every_package_in_its_layout():
    layout = architecture().split("\nglidemq_py/ ")[1].split("\n```")[0]
    # A line that begins a group has its names first, and text after two or more spaces.
    lines_of_names = re.findall(r"^  (\w+(?: \w+)*) {2,}\S", layout, re.MULTILINE)
    named = sorted(name for line in lines_of_names for name in line.split())
    assert named == sorted(modules_in(PACKAGE))


def test_architecture_names_every_module_of_the_worker():
    table = architecture().split("\nThe modules of `_worker`:\n\n")[1].split("\n\n")[0]
    columns = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    named = sorted(name for column in columns for name in re.findall(r"`(\w+)/?`", column))
    assert named == sorted(modules_in(PACKAGE / "_worker"))


def architecture() -> str:
    return (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")


def modules_in(folder: Path) -> set[str]:
    """Return the names of the modules and packages directly in a folder."""
    packages = {each.parent.name for each in folder.glob("*/__init__.py")}
    modules = {each.stem for each in folder.glob("*.py") if not each.stem.endswith(("__init__", "_twin"))}
    return packages | modules


@pytest.mark.parametrize("folder", ["glidemq_py", "lua"])
def test_no_folder_collects_what_has_no_place(folder: str):
    parts = {part for file in (ROOT / folder).rglob("*") for part in file.relative_to(ROOT).with_suffix("").parts}
    assert parts & {"utils", "util", "helpers", "common", "manager", "misc"} == set()
