"""Public names that are imported on first use: the table that Python reads and the imports that type checkers read."""

import importlib
import pickle
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

import glidemq_py
from glidemq_py import options, records, sync, testing

PACKAGES = [glidemq_py, sync, testing, records, options]


@pytest.mark.parametrize("module", PACKAGES, ids=lambda module: module.__name__)
def test_python_and_type_checkers_read_the_same_names(module: ModuleType):
    typed = importlib.import_module(f"{module.__name__}{'.names' if hasattr(module, '__path__') else ''}_twin")
    assert typed.__all__ == module.__all__
    for name in module.__all__:
        assert getattr(module, name) is getattr(typed, name)
        assert vars(module)[name] is getattr(module, name)  # found without `__getattr__` from now on


@pytest.mark.parametrize("module", PACKAGES, ids=lambda module: module.__name__)
def test_dir_lists_all_public_names_and_no_helper(module: ModuleType):
    assert set(module.__all__) <= set(dir(module))
    assert [name for name in dir(module) if not name.startswith("_") and name not in module.__all__
            and not isinstance(getattr(module, name), ModuleType)] == []  # fmt: skip


def test_unknown_name_raises_attribute_error():
    module: Any = glidemq_py
    with pytest.raises(AttributeError, match=r"^module 'glidemq_py' has no attribute 'Qeue'$"):
        module.Qeue  # noqa: B018
    with pytest.raises(ImportError, match=r"^cannot import name 'Qeue' from 'glidemq_py'"):
        exec("from glidemq_py import Qeue")


@pytest.mark.parametrize("name", ["LeaseLostError", "JobCounts", "set_tracer"])
def test_former_name_raises_an_error_that_names_its_module(name: str):
    module = next(each for each in ("errors", "records", "telemetry") if name in getattr(glidemq_py, each).__all__)
    with pytest.raises(ImportError, match=rf"^{name} has moved: from glidemq_py\.{module} import {name}$"):
        exec(f"from glidemq_py import {name}")


def test_what_programs_import_by_name_is_short():
    assert len(glidemq_py.__all__) <= 90


@pytest.mark.slow
def test_a_fresh_process_has_submodules_star_import_and_pickles():
    """As with plain imports: `glidemq_py.errors` without an import of its own, `import *`, pickles of classes."""
    program = (
        "import pickle, sys, glidemq_py\n"
        "assert glidemq_py.errors.GlideMQError is glidemq_py.GlideMQError\n"
        "assert glidemq_py.telemetry.set_tracer is glidemq_py.telemetry.set_tracer\n"
        "assert pickle.loads(bytes.fromhex(sys.argv[1])) == glidemq_py.Backoff('fixed', 10)\n"
        "from glidemq_py import *\n"
        "assert Queue is glidemq_py.Queue and Job.__module__ == 'glidemq_py._job.job'\n"
    )
    given = pickle.dumps(glidemq_py.Backoff("fixed", 10)).hex()
    done = subprocess.run([sys.executable, "-c", program, given], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
