"""Writes the blocking twins: ``python -m tests.twins`` after a public method of `Queue`, `Producer` or `Job` changed.

A twin has the names, arguments and types of its class, and each of its methods runs the coroutine of that class
(glidemq_py/_client/runtime.py). tests/unit/test_sync_twins.py compares the two. Ruff formats the files if it is
installed.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
HEAD = '"""{}\n\nWritten by ``python -m tests.twins``; do not edit.\n"""\n\nfrom __future__ import annotations\n'
TYPE_VARIABLES = ("DataT", "ResultT")
SWAPPED = {"AsyncIterator": "Iterator", "Connection": "BlockingConnection"}
SWAPPED_IMPORTS = {
    "Iterator": "from collections.abc import Iterator",
    "BlockingConnection": "from glidemq_py._client.connect import BlockingConnection",
    "Self": "from typing import Self",
    "cast": "from typing import cast",
}
_JOB = r"Job(\[.*\])?"
JOBS = {
    _JOB: "twin_of",
    rf"Iterator\[{_JOB}\]": "twin_of",
    rf"{_JOB} \| None": "twin_if_any",
    rf"list\[{_JOB}\]": "twins_of",
    rf"dict\[str, {_JOB}\]": "twins_by_name",
    rf"list\[VectorMatch\[{_JOB}\]\]": "twins_in_matches",
}
"""Functions of glidemq_py/sync/driving.py by the results that they are for."""


@dataclass(slots=True, kw_only=True)
class Twin:
    """One class to be written: where it comes from, where it goes, and how its methods run."""

    source: str
    target: str
    title: str
    doc: str
    held: str
    """Name of the attribute with the object whose coroutines are run."""
    run: str
    """What runs a coroutine."""
    head: list[str]
    """Lines before the class; `import`s are sorted in."""
    start: str
    """Lines of the class before its methods."""
    left_out: frozenset[str] = frozenset()
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    """Attributes that `__init__` sets, with their types."""
    bases: str = ""
    init: str = ""
    """What `__init__` makes of its arguments; empty where `start` has an `__init__`."""


TWINS = (
    Twin(
        source="glidemq_py._job.job.Job",
        target="glidemq_py/_job/blocking.py",
        title="`BlockingJob`: a job for code that blocks.",
        doc="""A `Job` whose methods block. Attributes, arguments and errors are those of `Job`.

    Handlers that are plain functions get one as `Job.blocking`, and the queues of `glidemq_py.sync` hand out no others.
    A handler's must not be used on the event loop's own thread: it would wait for itself, and raises RuntimeError.
    """,
        held="_job",
        run="wait_for(self._job, {})",
        head=["from glidemq_py._job.job import Job", "from glidemq_py._job.blocking_runtime import wait_for"],
        start='''    __slots__ = ("_job",)

    def __init__(self, job: Job[DataT, ResultT]) -> None:
        """Made by queues and jobs."""
        self._job = job

    def __repr__(self) -> str:
        return repr(self._job)
''',
        left_out=frozenset({"blocking", "from_record"}),
    ),
    Twin(
        source="glidemq_py._api.queue.Queue",
        target="glidemq_py/sync/queue.py",
        title="`Queue` for code that blocks.",
        doc="""A queue of jobs, for code that blocks; any number of threads may share one.

    Names, arguments and errors are those of `glidemq_py.Queue`. A client of your own is one of valkey-glide-sync.
    """,
        held="_core",
        run="run_immediately({})",
        head=[
            "from glidemq_py._client.runtime import run_immediately",
            "from glidemq_py._job import BlockingJob as Job",
            "from glidemq_py.sync.driving import QueueCore",
        ],
        start="",
        init="self._core: QueueCore[DataT, ResultT] = QueueCore({})",
        attributes={"name": "str", "options": "QueueOptions"},
    ),
    Twin(
        source="glidemq_py._api.flow_producer.FlowProducer",
        target="glidemq_py/sync/flows.py",
        title="`FlowProducer` for code that blocks.",
        doc="""Adds flows and reads them back; any number of threads may share one.

    Names, arguments and errors are those of `glidemq_py.FlowProducer`. In the nodes that it returns,
    ``node.job.blocking`` is the job whose methods block.
    """,
        held="_core",
        run="run_immediately({})",
        head=[
            "from glidemq_py._client.runtime import run_immediately",
            "from glidemq_py._job import BlockingJob as Job",
            "from glidemq_py.sync.driving import FlowCore",
        ],
        start="",
        init="self._core = FlowCore({})",
        attributes={"options": "QueueOptions"},
    ),
    Twin(
        source="glidemq_py._api.producer.Producer",
        target="glidemq_py/sync/producer.py",
        title="`Producer` for code that blocks.",
        doc="""Adds jobs to one queue and answers with their ids; any number of threads may share one.

    Names, arguments and errors are those of `glidemq_py.Producer`. A client of your own is one of valkey-glide-sync.
    """,
        held="_core",
        run="run_immediately({})",
        head=[
            "from glidemq_py._client.runtime import run_immediately",
            "from glidemq_py.sync.driving import ProducerCore",
        ],
        start="",
        init="self._core: ProducerCore[DataT] = ProducerCore({})",
        attributes={"name": "str"},
    ),
    Twin(
        source="glidemq_py._features.broadcast.broadcast.Broadcast",
        target="glidemq_py/sync/broadcast.py",
        title="`Broadcast` for code that blocks.",
        doc="""Publishes messages of which every subscription gets each; any number of threads may share one.

    Names, arguments and errors are those of `glidemq_py.Broadcast`. A client of your own is one of valkey-glide-sync.
    """,
        held="_core",
        run="run_immediately({})",
        head=[
            "from glidemq_py._client.runtime import run_immediately",
            "from glidemq_py._job import BlockingJob as Job",
            "from glidemq_py.sync.driving import BroadcastCore",
        ],
        start="",
        init="self._core: BroadcastCore[DataT] = BroadcastCore({})",
        left_out=frozenset({"queue"}),
        attributes={"name": "str"},
    ),
)


class _Writer:
    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        module, _, name = twin.source.rpartition(".")
        self._class: type = getattr(importlib.import_module(module), name)
        self._needed: dict[str, ModuleType] = {}
        self._makers: set[str] = set()
        self._parts: list[str] = []
        self._done = set(twin.left_out)

    def text(self) -> str:
        """The whole file."""
        twin = self._twin
        for cls in self._class.__mro__:
            if cls.__module__.startswith("glidemq_py"):
                self._of_class(cls)
        for name, kind in twin.attributes.items():
            self._property(name, kind, f"See `{self._class.__name__}`.")
            self._needed |= dict.fromkeys(_names(kind), sys.modules[self._class.__module__])
        body = "\n".join(self._parts)
        held = [name for name in TYPE_VARIABLES if re.search(rf"\b{name}\b", body + twin.start)]
        name = self._class.__name__ if twin.held == "_core" else f"Blocking{self._class.__name__}"
        head = [*self._imports(), *twin.head]
        if held:
            head += ["from typing import Generic", "from typing_extensions import TypeVar"]
        lines = [HEAD.format(twin.title), *sorted(set(head)), "", f'__all__ = ["{name}"]', ""]
        lines += [f'{each} = TypeVar("{each}", default=Any)' for each in held]
        generic = f"(Generic[{', '.join(held)}])" if held else ""
        lines += [f"class {name}{generic}:", f'    """{twin.doc}"""', twin.start, body]
        if twin.held == "_core":
            lines.append("\n    def __repr__(self) -> str:\n        return repr(self._core)\n")
        return "\n".join(lines)

    def _imports(self) -> list[str]:
        found = [f"from glidemq_py.sync.driving import {maker}" for maker in self._makers]
        found += ["from typing import Any"]  # ruff takes out what is not used
        for name, module in self._needed.items():
            if name in SWAPPED_IMPORTS:
                found.append(SWAPPED_IMPORTS[name])
            elif name not in TYPE_VARIABLES and not any(line.endswith(f" {name}") for line in self._twin.head):
                found.append(_import_of(name, module))
        return found

    def _of_class(self, cls: type) -> None:
        module = sys.modules[cls.__module__]
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
        for node in found.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                if not node.target.id.startswith("_") and node.target.id not in self._done:
                    self._need(node.annotation, module)
                    self._property(node.target.id, ast.unparse(node.annotation), f"See `{self._class.__name__}`.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._method(node, module, _asynchronous=isinstance(node, ast.AsyncFunctionDef))

    def _property(self, name: str, kind: str, doc: str) -> None:
        if name in self._done:
            return
        self._done.add(name)
        value = f"self.{self._twin.held}.{name}"
        self._parts.append(
            f'    @property\n    def {name}(self) -> {_swapped(kind)}:\n        """{doc}"""\n        return {value}\n'
        )

    def _method(self, node: ast.FunctionDef | ast.AsyncFunctionDef, module: ModuleType, *, _asynchronous: bool) -> None:
        name = node.name
        if name == "__init__" and self._twin.init:
            return self._make(node, module)
        if name == "__aenter__":
            return self._enter()
        if name.startswith("_") or name in self._done:
            return None
        decorators = {ast.unparse(each) for each in node.decorator_list}
        if "property" in decorators:
            assert node.returns is not None
            self._need(node.returns, module)
            return self._property(name, ast.unparse(node.returns), _summary(node, self._class))
        self._done.add(name)
        self._need(node, module)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self._need(default, module)
        kind = "None" if node.returns is None else _swapped(ast.unparse(node.returns))
        value = f"self.{self._twin.held}.{name}({_passed(node.args)})"
        jobs = self._jobs(kind) if self._twin.held == "_core" else ""
        if kind.startswith("Iterator["):
            self._needed["iterate_now"] = importlib.import_module("glidemq_py._client.runtime")
            value = f"iterate_now({value}, {jobs or 'lambda item: item'})"
        else:
            if _asynchronous:
                value = self._twin.run.format(value)
            value = f"{jobs}({value})" if jobs else value
        verb = "" if kind in ("None", "NoReturn") else "return "
        args = _swapped(ast.unparse(node.args))
        doc = _summary(node, self._class)
        self._parts.append(f'    def {name}({args}) -> {kind}:\n        """{doc}"""\n        {verb}{value}\n')
        return None

    def _jobs(self, kind: str) -> str:
        """The function that makes twins of the jobs in a result of that kind; '' where there are none."""
        found = next((maker for pattern, maker in JOBS.items() if re.fullmatch(pattern, kind)), "")
        assert found or not re.search(r"\bJob\b", kind), f"which function makes twins of the jobs in a {kind}?"
        if found:
            self._makers.add(found)  # not imported: that package imports what is being written
        return found

    def _make(self, node: ast.FunctionDef | ast.AsyncFunctionDef, module: ModuleType) -> None:
        self._done.add("__init__")
        self._need(node, module)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self._need(default, module)
        made = self._twin.init.format(_passed(node.args).replace("connection", 'cast("Any", connection)', 1))
        self._needed["cast"] = importlib.import_module("typing")
        self._parts.insert(0, f"    def __init__({_swapped(ast.unparse(node.args))}) -> None:\n        {made}\n")

    def _enter(self) -> None:
        if "__enter__" in self._done:
            return
        self._done.add("__enter__")
        self._needed["Self"] = importlib.import_module("typing")
        start = self._twin.run.format(f"self.{self._twin.held}.__aenter__()")
        self._parts.append(
            f"    def __enter__(self) -> Self:\n        {start}\n        return self\n\n"
            "    def __exit__(self, *_: object) -> None:\n        self.close()\n"
        )

    def _need(self, node: ast.AST, module: ModuleType) -> None:
        """Note the names that an annotation, a default or a signature holds."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            arguments += [each for each in (node.args.vararg, node.args.kwarg) if each is not None]
            for each in [*(argument.annotation for argument in arguments), node.returns]:
                if each is not None:
                    self._need(each, module)
            return
        for name in _names(ast.unparse(node)):
            self._needed[SWAPPED.get(name, name)] = module


def _names(text: str) -> set[str]:
    found = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return {name for name in found if not hasattr(builtins, name)}


def _import_of(name: str, module: ModuleType) -> str:
    """The import by which `module` has the name, or one of the module's own name."""
    if isinstance(getattr(module, name, None), ModuleType):
        return f"import {name}"
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    said = name if alias.asname is None else f"{alias.name} as {name}"
                    return f"from {node.module} import {said}"
    return f"from {module.__name__} import {name}"


def _swapped(text: str) -> str:
    for old, new in SWAPPED.items():
        text = re.sub(rf"\b{old}\b", new, text)
    return text


def _passed(args: ast.arguments) -> str:
    """The arguments as they are passed on."""
    words = [each.arg for each in [*args.posonlyargs, *args.args] if each.arg != "self"]
    words += [f"*{args.vararg.arg}"] if args.vararg else []
    words += [f"{each.arg}={each.arg}" for each in args.kwonlyargs]
    words += [f"**{args.kwarg.arg}"] if args.kwarg else []
    return ", ".join(words)


def _summary(node: ast.FunctionDef | ast.AsyncFunctionDef, cls: type) -> str:
    """First paragraph of a docstring, and where the rest stands."""
    doc = ast.get_docstring(node) or ""
    first, _, rest = doc.partition("\n\n")
    text = " ".join(first.split())
    where = f"`{cls.__name__}.{node.name}`"
    lines = [f"{text} See {where}." if rest else text]
    while len(lines[-1]) > 105:
        cut = lines[-1].rfind(" ", 0, 105)
        lines[-1:] = [lines[-1][:cut], lines[-1][cut + 1 :]]
    if len(lines) == 1:
        return lines[0]
    return "\n        ".join(lines) + "\n        "


def main() -> None:
    """Write every twin."""
    for twin in TWINS:
        target = ROOT / twin.target
        target.write_text(_Writer(twin).text(), encoding="utf-8")
        if importlib.util.find_spec("ruff"):
            ruff = [sys.executable, "-m", "ruff"]
            subprocess.run([*ruff, "check", "-q", "--fix", "--select", "I,F401", str(target)], check=True, cwd=ROOT)
            subprocess.run([*ruff, "format", "-q", str(target)], check=True, cwd=ROOT)
        print(twin.target)


if __name__ == "__main__":
    main()
