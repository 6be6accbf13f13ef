"""Wheel, sdist and checkout are complete, generated files are current; imports point one way."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import glidemq_py

ROOT = Path(__file__).resolve().parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
SPARK_FINDS = "pyspark_glidemq.py"
LUA = {path.relative_to(ROOT / "lua").as_posix() for path in (ROOT / "lua").rglob("*.lua")}


def build(project: Path, target: str, into: Path) -> Path:
    """Build as `pip` does, without an isolated environment, which would need a network."""
    pytest.importorskip("hatchling", reason="hatchling, of the extra `test`, builds the package")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = into.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_lua_sources_and_nothing_foreign(wheel: Path):
    names = names_in(wheel)
    assert LUA
    assert {"glidemq_py/_client/memory/server.lua", "glidemq_py/_client/memory/codecs.lua"} <= names
    assert {name.removeprefix("glidemq_py/_lua/") for name in names if name.startswith("glidemq_py/_lua/")} == LUA
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "glidemq_py").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules | {SPARK_FINDS}
    assert "glidemq_py/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"glidemq_py", f"glidemq_py-{VERSION}.dist-info", SPARK_FINDS}


def test_wheel_lists_its_requirements(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"glidemq_py-{VERSION}.dist-info/METADATA").decode()
        entry_points = archive.read(f"glidemq_py-{VERSION}.dist-info/entry_points.txt").decode()
        assert "Apache License" in archive.read(f"glidemq_py-{VERSION}.dist-info/licenses/LICENSE").decode()
    assert "Name: glidemq-py\n" in metadata
    assert "Requires-Python: >=3.11\n" in metadata
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "glidemq = glidemq_py.testing.pytest_plugin" in entry_points


def test_links_of_the_packaged_readme_are_absolute(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"glidemq_py-{VERSION}.dist-info/METADATA").decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = f"{project['urls']['Homepage']}/blob/v{project['version']}/"
    assert "Description-Content-Type: text/markdown\n" in metadata
    packaged = re.findall(r"\]\(([^)]+)\)", metadata.split("\n\n", 1)[1])
    written = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [link.removeprefix(base) for link in packaged] == written
    assert all(link.startswith("https://") for link in packaged)
    assert len(packaged) > 50
    assert all((ROOT / link.partition("#")[0]).exists() for link in written if not link.startswith("https://"))


@pytest.mark.slow
def test_an_unpacked_wheel_assembles_its_library(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    script = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from glidemq_py._client.library_source import lua_root
print(lua_root())
"""
    command = [sys.executable, "-I", "-W", "error", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "glidemq_py" / "_lua"


def test_a_checkout_reads_its_own_lua_folder():
    """An edited file counts at once: an editable install must not leave a copy of the sources anywhere."""
    from glidemq_py._client.library_source import lua_root

    assert lua_root() == ROOT / "lua"


@pytest.mark.slow
def test_an_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path):
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4
        archive.extractall(tmp_path)
    [project] = tmp_path.iterdir()
    for generated in project.rglob("*_twin.py"):
        generated.unlink()  # as in a clone
    rebuilt = build(project, "wheel", tmp_path / "rebuilt")
    assert names_in(rebuilt) == names_in(wheel)


@pytest.mark.slow
def test_an_sdist_holds_the_repository(sdist: Path):
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    if listed.returncode:
        pytest.skip("not a git checkout")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    assert names == tracked | set(twins_in(ROOT)) | {"PKG-INFO"}


@pytest.mark.slow
def test_documents_in_an_sdist_pass_their_tests(sdist: Path, tmp_path: Path):
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4
        archive.extractall(tmp_path)
    [project] = tmp_path.iterdir()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/package/test_project_files.py"]
    environment = {**os.environ, "PYTHONPATH": str(project)}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a copy of the package and its tools, as git has them."""
    for name in ("glidemq_py", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*_twin.py"))
    return tmp_path


def twins_in(folder: Path) -> dict[str, str]:
    paths = (folder / "glidemq_py").rglob("*_twin.*")
    found = (path for path in paths if path.parent.name != "__pycache__")
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in found}


def test_changed_sources_renew_the_blocking_classes(clone: Path):
    """Without any package beside the standard library, and by several processes at the same time."""
    command = [sys.executable, "-I", "-S", "-W", "error", str(clone / "tools" / "generate_sync.py")]
    subprocess.check_call(command)
    assert twins_in(clone) == twins_in(ROOT)
    assert subprocess.check_output(command) == b"the blocking classes are current\n"
    source = clone / "glidemq_py" / "_api" / "lease.py"
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace('"""Complete the job with', '"""End the job with'), encoding="utf-8")
    assert [each.wait(60) for each in [subprocess.Popen(command) for _ in range(3)]] == [0, 0, 0]
    assert '"""End the job with' in twins_in(clone)["glidemq_py/sync/lease_twin.py"]


def test_a_checkout_without_the_blocking_classes_names_the_command(clone: Path):
    command = [sys.executable, "-c", "from glidemq_py import Queue"]
    done = subprocess.run(command, cwd=clone, env={**os.environ, "PYTHONPATH": str(clone)}, capture_output=True)
    assert b"run `python -m tools.generate_sync` in the checkout" in done.stderr


def test_extras_are_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"embedded", "speed", "test"} <= set(project["optional-dependencies"])
    required = {requirement.partition(">")[0] for requirement in project["dependencies"]}
    assert required == {
        "valkey-glide",
        "msgpack",
        "msgspec",
        "croniter",
        "opentelemetry-api",
        "typing-extensions",
    }


def test_the_installed_version_is_the_projects():
    try:
        installed = importlib.metadata.version("glidemq-py")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("glidemq-py is not installed in this environment: the tests run from the checkout")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert installed == project["version"]


def test_the_version_is_that_of_the_next_release():
    """Of a checkout with unreleased changes it is later than the last release, and as late as the features it lists."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert glidemq_py.__version__ == VERSION
    release, _, development = VERSION.partition(".dev")
    newest = re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)[0]
    unreleased = changelog.partition("## [Unreleased]")[2].partition("\n## ")[0].strip()
    assert (development != "") == (unreleased != "")
    assert release != newest if development else release == newest
    features = (ROOT / "lua" / "core" / "known_features.lua").read_text(encoding="utf-8")
    named = re.findall(r"\['[\w-]+:([\d.]+)'\]", features)
    assert named
    assert max(map(_numbers, named)) <= _numbers(release)
    assert _numbers(newest) <= _numbers(release)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_modules_do_not_shadow_the_standard_library():
    names = {path.stem for path in (ROOT / "glidemq_py").rglob("*") if path.suffix == ".py" or path.is_dir()}
    assert len(names) > 150
    assert names & sys.stdlib_module_names == set()


def test_imports_point_one_way():
    """The rooms of the architecture, as pyproject.toml lists them under `tool.importlinter`."""
    pytest.importorskip("importlinter", reason="import-linter, of the extra `test`, reads the imports")
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
    ]
    done = subprocess.run([*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
