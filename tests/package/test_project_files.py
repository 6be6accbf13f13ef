"""Workflow, hooks, templates and documents name sessions, commands and versions that exist."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

yaml: Any = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NOXFILE = (ROOT / "noxfile.py").read_text(encoding="utf-8")
SESSIONS = set(re.findall(r"\w+", re.findall(r"^SESSIONS = \((.*?)\)", NOXFILE, re.DOTALL | re.MULTILINE)[0]))
VERSIONS = [
    found[1] for each in PROJECT["project"]["classifiers"] if (found := re.fullmatch(r".*Python :: (3\.\d+)", each))
]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", ".ci/run")),
    *(ROOT / ".github").glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "tests" / "README.md",
]


def runs(job: dict[str, Any]) -> list[str]:
    """Return the commands of a job, once per value of its matrix."""
    matrix = job["strategy"]["matrix"]
    ((key, values),) = matrix.items()
    return [
        re.sub(rf"\$\{{\{{ matrix\.{key} \}}\}}", value, step["run"])
        for step in job["steps"]
        if "run" in step
        for value in values
    ]


def test_workflow_runs_existing_sessions():
    commands = [command for job in WORKFLOW["jobs"].values() for command in runs(job)]
    started = {command.split()[2] for command in commands if command.startswith("python3 noxfile.py")}
    assert started == {"lint", "types", "coverage", "docs", "audit", "release", "simulation", "tests"}
    assert started <= SESSIONS


def test_workflow_tests_every_supported_python():
    assert WORKFLOW["jobs"]["tests"]["strategy"]["matrix"]["python"] == VERSIONS
    assert PROJECT["project"]["requires-python"] == f">={VERSIONS[0]}"


def test_steps_of_the_workflow_are_complete():
    for job in WORKFLOW["jobs"].values():
        assert job["timeout-minutes"] <= 60
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])
        assert job["steps"][0]["uses"].startswith("actions/checkout@")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_name_existing_sessions(path: Path):
    for line in re.findall(r"python3 noxfile\.py ((?:[a-z_]+ ?)+)", path.read_text(encoding="utf-8")):
        assert line.split()[0] in SESSIONS, line


class InstalledExtras:
    """A nox session that records what it installs, and runs nothing."""

    posargs = ()

    def __init__(self):
        self.extras: set[str] = set()

    def install(self, *arguments: str):
        """Record the extras of the package."""
        for each in arguments:
            if found := re.fullmatch(r"\.\[(.*)\]", each):
                self.extras.update(found[1].split(","))

    def skip(self, *_: object): ...

    def run(self, *_: object, **__: object): ...


def test_sessions_with_all_extras_have_them_all(monkeypatch: pytest.MonkeyPatch):
    nox: Any = ModuleType("nox")  # the environment of the tests has none
    nox.options, nox.session = SimpleNamespace(), lambda function: function
    monkeypatch.setitem(sys.modules, "nox", nox)
    specification = importlib.util.spec_from_file_location("noxfile_under_test", ROOT / "noxfile.py")
    assert specification is not None
    assert specification.loader is not None
    noxfile: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(noxfile)
    monkeypatch.setattr(noxfile, "_group", lambda name: [])
    monkeypatch.setattr(noxfile, "_run_all", lambda session, *commands: None)
    monkeypatch.setattr(noxfile, "AUDIT_SERVICE", (ROOT / "noxfile.py").as_uri())
    extras = set(PROJECT["project"]["optional-dependencies"])
    types, audit = InstalledExtras(), InstalledExtras()
    noxfile.types(types)
    noxfile.audit(audit)
    assert types.extras == extras
    assert audit.extras == extras - {"test"}


def test_hooks_of_pre_commit():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    names = [hook["id"] for repository in hooks for hook in repository["hooks"]]
    assert {"ruff-check", "ruff-format", "luacheck"} <= set(names)
    assert all("rev" in repository for repository in hooks if repository["repo"] != "local")


@pytest.mark.parametrize("name", ["bug_report.yml", "feature_request.yml"])
def test_issue_templates(name: str):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text(encoding="utf-8"))
    assert form.keys() == {"name", "description", "labels", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)


def test_every_placeholder_is_listed():
    """Facts that are not known yet stand in one marked place each."""
    listed = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Placeholders\n")[1]
    marked = {
        path.name for path in (ROOT / name for name in ("pyproject.toml", "mkdocs.yml", "SECURITY.md", "README.md"))
        if "PLACEHOLDER" in path.read_text(encoding="utf-8")
    }  # fmt: skip
    assert marked == set(re.findall(r"\| `(\w+\.\w+)`", listed))
