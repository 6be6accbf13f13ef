"""Write the blocking classes, which are not committed: ``python -m tools.generate_sync``.

A blocking class has the names, arguments, types and docstrings of an asynchronous one, and runs its coroutines
(glidemq_py/_client/portal.py). Only source texts are read, as builds of the package (hatch_build.py) lack what it
imports. Builds, nox and tests/conftest.py write the files when the sources have changed.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import hashlib
import inspect
import os
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "glidemq_py"
AREAS = (
    "glidemq_py._api.areas.Jobs",
    "glidemq_py._features.limits.Limits",
    "glidemq_py._features.limits.Groups",
    "glidemq_py._features.fair_keys.FairKeys",
    "glidemq_py._features.schedulers.area.Schedulers",
    "glidemq_py._features.failures.Failures",
    "glidemq_py._api.dead_letters.DeadLetters",
    "glidemq_py._api.leasing.Leases",
    "glidemq_py._features.remote_control.Workers",
    "glidemq_py._api.job_batches.JobBatches",
    "glidemq_py._features.backup.area.Backups",
    "glidemq_py._features.usage_summaries.Usage",
    "glidemq_py._api.areas.Vectors",
    "glidemq_py._features.timeline.Timelines",
    "glidemq_py._features.metrics_by_name.NamedMetrics",
    "glidemq_py._api.areas.Settings",
)
"""Classes of the areas of `Queue`, such as ``queue.limits``. Their blocking forms load at first use."""

TWINS = {
    "glidemq_py._job.job.Job": "glidemq_py._job.job_twin.BlockingJob",
    "glidemq_py._job.message.Message": "glidemq_py._job.message_twin.BlockingMessage",
    "glidemq_py._worker.tasks.Task": "glidemq_py._worker.task_twin.BlockingTask",
    "glidemq_py._api.lease.Lease": "glidemq_py.sync.lease_twin.Lease",
    "glidemq_py._api.job_batch.JobBatch": "glidemq_py.sync.job_batch_twin.JobBatch",
    "glidemq_py._api.job_queue.Queue": "glidemq_py.sync.queue_twin.Queue",
    "glidemq_py._api.flow_producer.FlowProducer": "glidemq_py.sync.flow_producer_twin.FlowProducer",
    "glidemq_py._api.producer.Producer": "glidemq_py.sync.producer_twin.Producer",
    "glidemq_py._api.broadcast.Broadcast": "glidemq_py.sync.broadcast_twin.Broadcast",
    "glidemq_py._api.queue_events.QueueEvents": "glidemq_py.sync.queue_events_twin.QueueEvents",
    "glidemq_py._api.leasing.LeaseContext": "glidemq_py.sync.lease_context_twin.LeaseContext",
    "glidemq_py._worker.maintenance.queues.Maintenance": "glidemq_py.sync.maintenance_twin.Maintenance",
    "glidemq_py._worker.maintenance.queues.Scheduler": "glidemq_py.sync.scheduler_twin.Scheduler",
    "glidemq_py._api.backup_schedule.BackupSchedule": "glidemq_py.sync.backup_schedule_twin.BackupSchedule",
    **{area: f"glidemq_py.sync.{area.rpartition('.')[2].lower()}_twin.{area.rpartition('.')[2]}" for area in AREAS},
}
"""The asynchronous classes and the blocking ones. glidemq_py/sync/driving.py has the ``QueueCore`` of a `Queue` that
users create, and the hand-written methods of a `Lease` in ``LeaseTwin``."""

OMITTED = {"Broadcast.queue", "Task.queue"}
"""Members without a blocking counterpart."""

WRITTEN = {"Job.run": "glidemq_py._job.blocking_runtime.run"}
"""Methods whose blocking form is a function, and its place."""

SWAPPED = {
    "AsyncIterator": "collections.abc.Iterator",
    "Connection": "glidemq_py._client.transport.BlockingConnection",
    "DataT": "glidemq_py._job.contents.DataT",
    "ResultT": "glidemq_py._job.contents.ResultT",
    "ContextT": "glidemq_py._job.contents.ContextT",
}
"""Names of the asynchronous classes, and what blocking ones have instead."""

_JOB = r"Job(\[.*\])?"
MAKERS = {
    "Self": ("type(self)(", ")"),
    rf"(Iterator\[)?{_JOB}\]?": ("Job(", ")"),
    rf"{_JOB} \| None": ("None if (found := ", ") is None else Job(found)"),
    rf"list\[{_JOB}\]": ("[Job(each) for each in ", "]"),
    rf"dict\[str, {_JOB}\]": ("{name: Job(each) for name, each in ", ".items()}"),
    rf"list\[VectorMatch\[{_JOB}\]\]": ("[VectorMatch(Job(each.job), each.score) for each in ", "]"),
    r"list\[Lease\[.*\]\]": ("[Lease(each) for each in ", "]"),
    r"LeaseReport\[Lease\[.*\]\]": ("Lease._of_report(", ")"),
    "LeaseContext": ("LeaseContext(", ")"),
    r"(Iterator\[)?JobBatch\]?": ("JobBatch(", ")"),
}
"""The code before and behind a result that converts it, by its type, whose names are imported."""

DRIVING = "glidemq_py.sync.driving"
BASE = "glidemq_py._client.runtime.Twin"
SERVICE = "BackgroundService"
"""Base of the services, whose blocking ones run them in the portal."""
OF_SERVICES = frozenset(("start", "run", "close"))
"""Methods of `BlockingService`."""
WIDTH = 120
OF_JOBS = """A `{0}` with blocking methods. Attributes, arguments and errors are those of `{0}`.

Handlers that are plain functions get it as `{0}.blocking`. Its methods then raise `EventLoopError` in an event loop's
thread: they would wait for themselves."""
OF_TASKS = """A `{0}` with blocking methods, for code without an event loop: views, scripts, plain functions.

Arguments, types and errors are those of `{0}`. Jobs are added on a connection of its own, which is made like that of
its worker and opened at the first use."""
WORDING = {
    "An ``async ": "A ``",
    "an ``async ": "a ``",
    "``async ": "``",
    "``await ": "``",
    "The connection is that of the running event loop.\n\n": "",
    "Several event loops and threads may share": "Threads may share",
    "shared by event loops, threads": "shared by threads",
    " (docs/learn/event-loops.md).": ".",
    "Its jobs may be in different queues.":
        "Its jobs may be in different queues. In returned nodes, ``node.job.blocking`` has blocking methods.",
    " Each event loop has its own connection, which closes with the loop.": "",
    "Closes the connections of all event loops, except a client passed by the caller.":
        "A client passed by the caller is not closed.",
    "Close the connections of all event loops, except a client passed by the caller.":
        "Close the connections, except a client passed by the caller.",
    "Concurrent adds of one event loop are sent in batches; a single add is sent immediately.":
        "Adds of several threads at the same time are sent together; a single add is sent immediately.",
    "It is bound to the event loop of its first use; use in another loop raises `EventLoopError`.":
        "A `close` in another thread ends the iteration within a second.",
    "Function or coroutine function, called with the `QueueEvent`.":
        "Function, called with the `QueueEvent` in a separate thread.",
    " EventLoopError: If another event loop uses or used the object.": "",
    "; may be called from any event loop.": ".",
    ", an existing GLIDE client, or None.": ", or None.",
    " A client is only the template for a separate connection.": "",
    ", an existing GLIDE client (never closed by the queue),": ",",
    ", an existing GLIDE client (never closed by the producer),": ",",
    "Closes the connections": "Closes the connection",
    " until cancelled.":
        " until interrupted. It runs in the background, over connections of its own. Start it after a fork: a forked "
        "process does not have it.",
    "does not close them.": "does not close them, and closing them does not stop it.",
    "Closing the scheduler does not close the queue.": "Closing one of the two does not close the other.",
}  # fmt: skip
"""Phrases of the asynchronous docstrings, and their form for blocking code."""

OPTIONS = "glidemq_py._core.job_options"
OPTION_DICTS = "glidemq_py._core.option_dicts_twin"
"""The module with `JobOptions`, and that with the types of keyword options."""

NAMES = {
    "glidemq_py": "glidemq_py.names_twin",
    "glidemq_py.sync": "glidemq_py.sync.names_twin",
    "glidemq_py.testing": "glidemq_py.testing.names_twin",
    "glidemq_py.records": "glidemq_py.records_twin",
    "glidemq_py.options": "glidemq_py.options_twin",
}
"""Modules whose names are imported on first use, and those with the same imports for type checkers."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Module:
    """A module of the package, as its source text has it."""

    def __init__(self, name: str) -> None:
        self.name = name
        path = ROOT / name.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        self.body = ast.parse(path.read_text(encoding="utf-8")).body
        self._origins: dict[str, str] = {}
        for node in self.body:
            for each in node.body if isinstance(node, ast.If) else (node,):
                if isinstance(each, ast.ImportFrom):
                    self._origins |= {at.asname or at.name: f"{each.module}.{at.name}" for at in each.names}
                elif isinstance(each, ast.Import):
                    self._origins |= {at.name: at.name for at in each.names}

    def origin(self, name: str) -> str:
        """Return the qualified name of what the module imports or defines as ``name``."""
        return self._origins.get(name, f"{self.name}.{name}")

    def find(self, name: str) -> tuple[_Module, ast.stmt | None]:
        """Return a function or class that the module defines or imports, and its module."""
        module, _, original = self._origins.get(name, "").rpartition(".")
        return _module(module).find(original) if module.startswith(PACKAGE) else (self, self.defined(name))

    def defined(self, name: str) -> ast.stmt | None:
        """Return a function or class that the module defines; None if it does not."""
        return next((each for each in self.body if getattr(each, "name", "") == name), None)


_module = functools.cache(_Module)


class _Names(ast.NodeTransformer):
    """Replaces the names in a signature by those of blocking code, and lets the twin import them."""

    def __init__(self, twin: _Twin, module: _Module) -> None:
        self._twin, self._module = twin, module

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._twin.use(self._module, node.id))


class _Twin:
    """The text of one blocking class."""

    def __init__(self, source: str, target: str) -> None:
        module, _, self._source = source.rpartition(".")
        self.module, _, self._name = target.rpartition(".")
        self._home = _module(module)
        found = self._home.find(self._source)[1]
        assert isinstance(found, ast.ClassDef)
        self._class = found
        self._of_core = not self.module.startswith(f"{PACKAGE}.sync")
        self._of_job = self.module.startswith(f"{PACKAGE}._job")
        self._methods = found
        if self._of_core:  # the class itself has `blocking`, and imports the twin
            self._home, base = self._home.find(ast.unparse(found.bases[0]).partition("[")[0])
            assert isinstance(base, ast.ClassDef)
            self._methods = base
        self._is_service = any(ast.unparse(each) == SERVICE for each in found.bases)
        self._imports: dict[str, str] = {}
        self._late_imports: list[str] = []
        self._done = {name.partition(".")[2] for name in OMITTED if name.startswith(f"{self._source}.")}
        self._parts: list[str] = []

    def text(self, digest: str) -> str:
        """Return the text of the file."""
        driving = _module(DRIVING)
        base, core = f"{self._source}Twin", f"{self._source}Core"
        written, made = driving.defined(base), driving.find(core)[1]
        generic = (
            each.slice for each in self._class.bases
            if isinstance(each, ast.Subscript) and ast.unparse(each.value) != "Area"
        )  # fmt: skip
        names = [each.id for base in generic for each in ast.walk(base) if isinstance(each, ast.Name)]
        of = f"[{', '.join(self.use(self._home, each) for each in names)}]" if names else ""
        decorators = [f"@{self._renamed(self._home, each)}" for each in self._methods.decorator_list]
        if isinstance(written, ast.ClassDef):
            self._done |= {each.name for each in written.body if isinstance(each, Function)}
            bases = [self._import(f"{DRIVING}.{base}") + of]
        elif self._is_service:
            self._done |= OF_SERVICES
            origin = f"{self._home.name}.{self._methods.name}"
            bases = [f"{self._import(f'{DRIVING}.BlockingService')}[{self._import(origin, core)}]"]
            self._constructor(core)
        elif made is not None:
            bases = [f"{self._import(BASE)}[{self._import(f'{DRIVING}.{core}')}{of}]"]
            self._constructor(core)
        else:
            origin = f"{self._home.name}.{self._methods.name}"
            bases = [f"{self._import(BASE)}[{self._import(origin, core)}{of}]"]
        if self._of_job:
            self._import("glidemq_py._job.blocking_runtime.wait_for")
        elif not self._is_service:
            self._import("glidemq_py._client.portal.drive")
            if not self._of_core:
                bases.append(self._import("glidemq_py._core.misuse.BlockingOnly"))
        self._add_class(self._home, self._methods)
        if of:
            bases.append(self._import("typing.Generic") + of)
        return "\n".join((
            f'"""`{self._name}` for blocking code.\n\nSources: {digest}.',
            'Generated by ``python -m tools.generate_sync``; do not edit.\n"""\n',
            "from __future__ import annotations\n",
            *sorted(self._imports.values(), key=lambda line: (f" {PACKAGE}." in line, line.split())),
            *(["\nif TYPE_CHECKING:", *sorted(self._late_imports)] if self._late_imports else []),
            f'\n__all__ = ["{self._name}"]\n\n',
            *decorators,
            f"class {self._name}({', '.join(bases)}):",
            _quoted(self._doc(), 4),
            "\n    __slots__ = ()\n",
            "\n".join(self._parts),
        ))  # fmt: skip

    def _doc(self) -> str:
        """Return the docstring of the class; what it says of attributes is in those of the properties."""
        if self._of_core:
            return (OF_JOBS if self._of_job else OF_TASKS).format(self._source)
        doc = re.sub(r"\n\nAttributes:\n(    .*\n?)+", "\n\n", ast.get_docstring(self._class) or "").strip()
        summary, _, rest = blocking_doc(doc).partition("\n\n")
        rest, args, sections = rest.partition("Args:")
        if rest and f"{self._home.name}.{self._source}" not in AREAS:
            rest = f"The blocking form of `{PACKAGE}.{self._source}`. {rest}"
        texts = [summary, *rest.strip().split("\n\n")]
        return "\n\n".join((*(textwrap.fill(each, WIDTH - 4) for each in texts), args + sections)).strip()

    def _renamed(self, module: _Module, node: ast.AST | None) -> str:
        """Return a part of a signature in blocking code."""
        return "None" if node is None else ast.unparse(_Names(self, module).visit(copy.deepcopy(node)))

    def use(self, module: _Module, name: str) -> str:
        """Return the name that blocking code has for a name in a signature, and import it."""
        if hasattr(builtins, name):
            return name
        origin = module.origin(name)
        if origin in TWINS:
            return self._import(TWINS[origin], name)
        return self._import(SWAPPED.get(name, origin), SWAPPED.get(name, name).rpartition(".")[2])

    def _import(self, origin: str, name: str = "") -> str:
        module, _, original = origin.rpartition(".")
        name = name or original
        if module != self.module:
            renamed = original if original == name else f"{original} as {name}"
            line = f"from {module} import {renamed}" if module else f"import {name}"
            assert self._imports.setdefault(name, line) == line, f"{self.module}: two imports of {name}: {line}"
        return name

    def _add_class(self, module: _Module, node: ast.ClassDef) -> None:
        """Add the members of a class, then those of its bases."""
        for position, each in enumerate(node.body):
            match each:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                    self._property(module, name, annotation, self._attribute_doc(name, node.body[position + 1 :]))
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._method(module, each)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute(value=ast.Name(id=holder), attr=attr)):
                    # A function in the module of its feature.
                    found, function = _module(module.origin(holder)).find(attr)
                    if name == attr and isinstance(function, Function):
                        self._method(found, function)
                case _:
                    pass
        for base in node.bases:
            name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            if name != SERVICE and module.origin(name).startswith(PACKAGE):
                found, definition = module.find(name)
                assert isinstance(definition, ast.ClassDef)
                self._add_class(found, definition)

    def _is_new(self, name: str) -> bool:
        """Return True for the first public member of a name."""
        is_new = not name.startswith("_") and name not in self._done
        self._done.add(name)
        return is_new

    def _property(self, module: _Module, name: str, annotation: ast.expr, doc: str) -> None:
        if not self._is_new(name):
            return
        area = module.origin(ast.unparse(annotation).partition("[")[0])
        if area in AREAS:
            self._area(name, area, ast.unparse(annotation), doc)
            return
        kind = self._renamed(module, annotation)
        value = f"self._core.{name}".join(self._maker(kind))
        self._parts.append(
            f"    @property\n    def {name}(self) -> {kind}:\n{_quoted(doc, 8)}\n        return {value}\n"
        )

    def _area(self, name: str, area: str, kind: str, doc: str) -> None:
        """Add the property of an area, whose module is imported at first use."""
        module, _, twin = TWINS[area].rpartition(".")
        self._import("typing.TYPE_CHECKING")
        self._late_imports.append(f"    from {module} import {twin}")
        body = f"        from {module} import {twin}\n\n        return {twin}(self._core.{name})\n"
        self._parts.append(f"    @property\n    def {name}(self) -> {kind}:\n{_quoted(doc, 8)}\n{body}")

    def _method(self, module: _Module, node: Function) -> None:
        name, doc = node.name, blocking_doc(ast.get_docstring(node) or "")
        if name in ("__aenter__", "__aexit__", "__aiter__"):
            self._protocol(module, node)
        elif any(ast.unparse(each) == "property" for each in node.decorator_list):
            assert node.returns is not None
            self._property(module, name, node.returns, doc)
        elif self._is_new(name):
            if f"{self._source}.{name}" in WRITTEN:
                found = self._import(WRITTEN[f"{self._source}.{name}"], f"{name}_blocking")
                self._parts.append(f"    {name} = {found}\n")
                return
            args, kind, passed = self._signature(module, node)
            before, after = self._maker(kind)
            core = "self._core"
            if kind.startswith("Iterator["):
                before, after = "iterate(", f", {before[:-1] or 'lambda item: item'})"
                self._import("glidemq_py._client.portal.iterate")
            elif self._is_service:
                act = "_ask" if isinstance(node, ast.AsyncFunctionDef) else "_notify"
                before, after, core = f"self.{act}(lambda service: ", ")", "service"
            elif isinstance(node, ast.AsyncFunctionDef):
                before, after = before + ("wait_for(self._core, " if self._of_job else "drive("), ")" + after
            start = "        " if kind in ("None", "NoReturn") else "        return "
            head = _wrapped(f"    def {name}(", args, f") -> {kind}:", 4)
            body = _wrapped(f"{start}{before}{core}.{name}(", passed, ")" + after, 8)
            decorators = [f"    @{self._renamed(module, each)}\n" for each in node.decorator_list]
            self._parts.append(f"{''.join(decorators)}{head}\n{_quoted(doc, 8)}\n{body}\n")

    def _signature(self, module: _Module, node: Function) -> tuple[str, str, str]:
        """Return the parameters of a method, its result type, and the arguments that it passes on."""
        args = copy.deepcopy(node.args)
        (*args.posonlyargs, *args.args)[0].annotation = None  # self: the type of the asynchronous class
        words = [each.arg for each in [*args.posonlyargs, *args.args] if each.arg != "self"]
        words += [f"*{args.vararg.arg}"] if args.vararg else []
        words += [f"{each.arg}={each.arg}" for each in args.kwonlyargs]
        words += [f"**{args.kwarg.arg}"] if args.kwarg else []
        return self._renamed(module, args), self._renamed(module, node.returns), ", ".join(words)

    def _constructor(self, core: str) -> None:
        """Add an ``__init__`` that creates the asynchronous object."""
        node = next(each for each in self._class.body if isinstance(each, Function) and each.name == "__init__")
        args, _, passed = self._signature(self._home, node)
        lines = [f"    @{self._renamed(self._home, each)}" for each in node.decorator_list]
        lines += [_wrapped("    def __init__(", args, ") -> None:", 4)]
        if self._is_service:
            named = ", ".join(f"{each.arg}={each.arg}" for each in [*node.args.args[1:], *node.args.kwonlyargs])
            lines += [_wrapped("        super().__init__(", f"{core}, {named}", ")", 8)]
        else:
            lines += [_wrapped(f"        super().__init__({core}(", passed, "))", 8)]
        self._parts.append("\n".join(lines) + "\n")

    def _protocol(self, module: _Module, node: Function) -> None:
        """Add ``__enter__``, ``__iter__``, or ``__exit__``, which closes the object as that of the other class does."""
        args, kind, passed = self._signature(module, node)
        body = "drive(self._core.__aenter__())\nreturn self"
        if node.name == "__aexit__":
            body = "\n".join(map(ast.unparse, node.body)).replace("await ", "")
            if "self._" in body:
                body = f"return drive(self._core.__aexit__({passed}))"
        elif node.name == "__aenter__" and kind != "Self":
            found = self._import(TWINS["glidemq_py._api.lease.Lease"])
            body = f"found = drive(self._core.__aenter__())\nreturn None if found is None else {found}(found)"
        elif node.name == "__aiter__":
            self._import("glidemq_py._client.portal.iterate")
            body = "return iterate(aiter(self._core), lambda item: item)"
        head = f"    def {node.name.replace('__a', '__')}({args}) -> {kind}:\n"
        self._parts.append(head + textwrap.indent(body, " " * 8) + "\n")

    def _maker(self, kind: str) -> tuple[str, str]:
        """Return the code before and behind a result of a type that converts it."""
        if self._of_job:
            return "", ""
        found = next((maker for pattern, maker in MAKERS.items() if re.fullmatch(pattern, kind)), ("", ""))
        assert found[0] or not re.search(r"\bJob\b", kind), f"MAKERS has no conversion for the result type {kind}"
        return found

    def _attribute_doc(self, name: str, after: list[ast.stmt]) -> str:
        """Return the docstring of an attribute: its entry in that of the class, or the string behind it."""
        doc = ast.get_docstring(self._class) or ""
        found = re.search(rf"^    {name}: (.*(?:\n {{8,}}.*)*)", doc.partition("Attributes:")[2], re.MULTILINE)
        if found:
            return blocking_doc(textwrap.fill(" ".join(found.group(1).split()), 105))
        text = (
            ast.literal_eval(after[0].value) if after and isinstance(after[0], ast.Expr) else f"See `{self._source}`."
        )
        return blocking_doc(inspect.cleandoc(text))


def option_dicts(digest: str) -> str:
    """Return the text of the types of keyword options, whose fields are those of `JobOptions`."""
    module = _module(OPTIONS)
    options = module.defined("JobOptions")
    assert isinstance(options, ast.ClassDef)
    own, published, imports = list[str](), list[str](), {"from typing import TypedDict"}
    for each in options.body:
        match each:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(func=ast.Name(id="option"), keywords=words)):
                given = each.annotation
                if isinstance(given, ast.Subscript) and isinstance(given.slice, ast.Tuple):  # Converted
                    given = given.slice.elts[1]
                own.append(f"    {name}: {ast.unparse(given)}")
                published += [] if any(word.arg == "message" for word in words) else own[-1:]
                used = {node.id for node in ast.walk(given) if isinstance(node, ast.Name)}
                origins = (module.origin(each).rpartition(".") for each in used if not hasattr(builtins, each))
                imports |= {f"from {origin} import {name}" for origin, _, name in origins}
            case _:
                pass
    return "\n".join((
        f'"""The types of keyword options.\n\nSources: {digest}.',
        'Generated by ``python -m tools.generate_sync``; do not edit.\n"""\n',
        "from __future__ import annotations\n",
        *sorted(imports, key=lambda line: (f" {PACKAGE}." in line, line.split())),
        "\n\nclass JobOptionsDict(TypedDict, total=False):",
        '    """The keyword options of `Queue.add`; see `JobOptions` for meaning and units."""\n',
        *own,
        "\n\nclass PublishOptionsDict(TypedDict, total=False):",
        '    """The keyword options of `Broadcast.publish`; see `JobOptions` for meaning and units."""\n',
        *published,
        "",
    ))  # fmt: skip


def public_names(source: str, digest: str) -> str:
    """Return the text with the imports of the names that a module imports on first use."""
    calls = (each for node in _module(source).body for each in ast.walk(node) if isinstance(each, ast.Call))
    table = next(each.args[1] for each in calls if ast.unparse(each.func) == "_import_on_first_use")
    named = [
        (module, *each.partition(" as ")[::2])
        for module, names in ast.literal_eval(table).items()
        for each in names.split(", ")
    ]
    return "\n".join((
        f'"""Public names of `{source}`, for type checkers.\n\nSources: {digest}.',
        'Generated by ``python -m tools.generate_sync``; do not edit.\n"""\n',
        *sorted(f"from {module} import {name} as {public or name}" for module, name, public in named),
        "\n__all__ = [",
        *sorted(f'    "{public or name}",' for _, name, public in named),
        "]\n",
    ))  # fmt: skip


def blocking_doc(doc: str) -> str:
    """Return an asynchronous docstring with the wording for blocking code."""
    for old, new in WORDING.items():
        words = r"\s+".join(re.escape(word) for word in old.split(" "))
        doc = re.sub(words, new, doc)
    return doc


def _quoted(doc: str, indent: int) -> str:
    """Return a docstring as source text."""
    text = textwrap.indent(doc.replace("\\", "\\\\"), " " * indent).strip()
    end = "\n" + " " * indent if "\n" in text else ""
    return f'{" " * indent}"""{text}{end}"""'


def _wrapped(start: str, inside: str, end: str, indent: int) -> str:
    """Return a line of code; a long one has what is in its parentheses on lines of its own."""
    if len(start + inside + end) <= WIDTH:
        return start + inside + end
    within = " " * (indent + 4)
    filled = textwrap.fill(
        inside, WIDTH, initial_indent=within, subsequent_indent=within, break_long_words=False, break_on_hyphens=False
    )
    return f"{start}\n{filled}\n{' ' * indent}{end}"


def _digest() -> str:
    """Return a hash of this file and of all modules of the package that are not generated."""
    paths = [path for path in sorted((ROOT / PACKAGE).rglob("*.py")) if not path.name.endswith("_twin.py")]
    names = (path.relative_to(ROOT).as_posix().encode() for path in paths)
    return hashlib.sha256(b"".join((*names, *(path.read_bytes() for path in (Path(__file__), *paths))))).hexdigest()


def write_twins() -> list[str]:
    """Write the blocking classes if the sources have changed, and return the files. Several processes may do so."""
    digest = _digest()
    modules = {source: target.rpartition(".")[0] for source, target in TWINS.items()} | {OPTIONS: OPTION_DICTS} | NAMES
    targets = {source: ROOT / (module.replace(".", "/") + ".py") for source, module in modules.items()}
    if all(path.exists() and f"Sources: {digest}." in path.read_text(encoding="utf-8") for path in targets.values()):
        return []
    for source, path in targets.items():
        if source in NAMES:
            text = public_names(source, digest)
        else:
            text = option_dicts(digest) if source == OPTIONS else _Twin(source, TWINS[source]).text(digest)
        ast.parse(text)
        new = path.with_suffix(f".{os.getpid()}.tmp")
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    for path in set((ROOT / PACKAGE).rglob("*_twin.py")).difference(targets.values()):
        path.unlink(missing_ok=True)  # its class has moved
    return [str(path.relative_to(ROOT)) for path in targets.values()]


if __name__ == "__main__":
    print("\n".join(write_twins()) or "the blocking classes are current")
