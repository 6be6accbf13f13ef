"""What importing costs: which modules an import loads, and that any module of the package can be imported first."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import glidemq_py

PACKAGE = Path(glidemq_py.__file__).parent
ROOT = PACKAGE.parent

GLIDE = {"glide", "glide_shared", "trio", "cffi", "google.protobuf"}
EXTRAS = {"fastapi", "pydantic", "uvicorn", "pyspark", "pandas", "pyarrow", "fakeredis", "lupa", "pytest"}
TELEMETRY = {"opentelemetry", "prometheus_client"}

CHEAP = {"asyncio", "ssl", "croniter", "msgspec", "glidemq_py._api", "glidemq_py._worker", "glidemq_py._job"}
"""What a program pays only for the names that it uses."""

FORBIDDEN = {
    "import glidemq_py": GLIDE | EXTRAS | TELEMETRY | CHEAP,
    "from glidemq_py import GlideMQError, JobNotFoundError": GLIDE | EXTRAS | TELEMETRY | CHEAP,
    "from glidemq_py import Queue, Worker, QueueEvents, FlowProducer": GLIDE | EXTRAS | {"msgspec"},
    "from glidemq_py._features.typed_values import Codec; Codec(list[int])": GLIDE | EXTRAS,
    "from glidemq_py import *": GLIDE | EXTRAS,
    "from glidemq_py.sync import *": GLIDE | EXTRAS,
    "import glidemq_py.spark": GLIDE | EXTRAS | TELEMETRY | CHEAP,
    "import glidemq_py.spark.options": GLIDE | EXTRAS | {"glidemq_py._api", "glidemq_py._worker"},
    "import glidemq_py.testing": GLIDE | EXTRAS | TELEMETRY | CHEAP,
    "import glidemq_py.testing.pytest_plugin": GLIDE | (EXTRAS - {"pytest"}) | TELEMETRY | CHEAP,
    "import glidemq_py.library": GLIDE | EXTRAS | TELEMETRY,
    "import glidemq_py.cli": GLIDE | EXTRAS | TELEMETRY | CHEAP | {"typer", "rich"},
    "import glidemq_py.cli.app": GLIDE
    | EXTRAS
    | TELEMETRY
    | {"croniter", "rich", "glidemq_py._api", "glidemq_py._job"},
    "import glidemq_py._worker.command.supervisor": GLIDE | EXTRAS | TELEMETRY | {"glidemq_py._api"},
}
"""Per statement, the modules and packages that it must not load."""

PROGRAM = """
import json, os, sys
given = json.loads(sys.argv[1])
for statement in given:
    if os.fork() == 0:
        try:
            exec(statement)
            loaded = sorted(sys.modules)
        except BaseException as error:
            loaded = f"{type(error).__name__}: {error}"
        print(json.dumps([statement, loaded]), flush=True)
        os._exit(0)
    os.wait()
"""


def run(statements: list[str]) -> dict[str, list[str] | str]:
    """Run each statement in a process of its own, forked from one that has imported nothing; return its modules."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(statements)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert set(found) == set(statements), done.stderr
    return found


@pytest.mark.slow
def test_imports_load_only_what_they_need():
    for statement, loaded in run(list(FORBIDDEN)).items():
        assert isinstance(loaded, list), (statement, loaded)
        names = {".".join(name.split(".")[:length]) for name in loaded for length in (1, 2)}
        assert names & FORBIDDEN[statement] == set(), statement


HELP = """
import contextlib, io, runpy
sys.argv[1:] = ["--help"]
with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
    runpy.run_module({module!r}, run_name="__main__")
assert "usage: " in shown.getvalue()
"""


def test_help_of_the_commands_loads_neither_glide_nor_workers():
    statements = [HELP.format(module=module) for module in ("glidemq_py.worker", "glidemq_py.library")]
    for statement, loaded in run(statements).items():
        assert isinstance(loaded, list), (statement, loaded)
        forbidden = GLIDE | EXTRAS | {"croniter", "glidemq_py._worker.worker", "glidemq_py._api.job_queue"}
        assert set(loaded) & forbidden == set(), statement


# -- import order -----------------------------------------------------------------------------------------------


def modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield the modules that statements import when they run: not those for type checkers or inside functions."""
    for node in statements:
        if isinstance(node, ast.If):
            runs = node.orelse if ast.unparse(node.test) == "TYPE_CHECKING" else [*node.body, *node.orelse]
            yield from imported(runs)
        elif isinstance(node, ast.Try):
            yield from imported([*node.body, *node.orelse, *node.finalbody])
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph() -> dict[str, set[str]]:
    """Return which modules of the package the import of each one imports, packages before their modules."""
    paths, found = modules(), {}
    for module, path in paths.items():
        targets: set[str] = set()
        for name in imported(ast.parse(path.read_text(encoding="utf-8")).body):
            parts = name.split(".")
            targets |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
        own = module.split(".")
        around = {".".join(own[:length]) for length in range(1, len(own) + 1)}
        found[module] = (targets & set(paths)) - around
    return found


@pytest.mark.slow
def test_no_module_imports_itself_through_others():
    """Without cycles, any module can be imported first, as the package's `__init__` imports hardly any."""
    edges = graph()
    assert len(edges) > 100
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize(("log_format", "is_written"), [(None, True), ("json", False)])
def test_core_writes_no_lines_of_its_own_into_a_json_log(log_format: str | None, is_written: bool):
    program = (
        "from glide_shared.logger import Level, Logger\n"
        "from glidemq_py._client.async_client import limit_logs\n"
        "from glidemq_py._worker.command.arguments import set_up_logs\n"
        "limit_logs()\n"  # a module of the user connects
        f"set_up_logs(None, {log_format!r})\n"
        "limit_logs()\n"
        "Logger.log(Level.ERROR, 'pubsub', 'lost the server')\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ("lost the server" in run.stdout + run.stderr) == is_written


def test_without_a_time_zone_database_utc_works_and_a_zone_names_the_package():
    code = (
        "import sys; sys.modules['tzdata'] = None; import zoneinfo; zoneinfo.reset_tzpath(['/nowhere'])\n"
        "from glidemq_py import Schedule\n"
        "assert len(Schedule(pattern='0 7 * * *').preview(2)) == len(Schedule(pattern='@daily', tz='UTC').preview(2))\n"
        "Schedule(pattern='0 7 * * *', tz='Europe/Berlin')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "option 'tz' = 'Europe/Berlin'" in done.stderr
    assert "pip install tzdata" in done.stderr
