"""Measures Python source with `ast`: lines, functions, classes, branches."""

import ast
import sysconfig
import time
import tokenize
import warnings
from pathlib import Path
from typing import Any

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Each of these adds a path through a function (McCabe); `and`/`or` and comprehensions are counted separately.
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)


def standard_library() -> Path:
    """Return the folder of this Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def python_files(folder: Path) -> list[Path]:
    """Return every .py file below the folder, except installed packages."""
    files = (path for path in folder.rglob("*.py") if path.is_file())
    return sorted(path for path in files if _SKIPPED_FOLDERS.isdisjoint(path.relative_to(folder).parts))


def measure_file(path: Path, shown_as: str) -> dict[str, Any]:
    """Measure one file.

    Raises SyntaxError, UnicodeDecodeError or ValueError where it is not Python of this version, and OSError
    where it cannot be read.
    """
    started = time.thread_time()
    with tokenize.open(path) as file:  # finds the encoding as the interpreter does
        source = file.read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        tree = ast.parse(source, shown_as)
    functions = classes = 0
    complexity, most_complex = 0, ""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, _FUNCTIONS):
            functions += 1
            ways = 1 + _branches(node)
            if ways > complexity:
                complexity, most_complex = ways, node.name
    return {
        "lines": source.count("\n") + (not source.endswith("\n") and bool(source)),
        "functions": functions,
        "classes": classes,
        "complexity": complexity,
        "most_complex": most_complex,
        "cpu_ms": round((time.thread_time() - started) * 1000, 2),
    }


def _branches(function: ast.AST) -> int:
    """Count the branches of a function without its nested functions."""
    found = 0
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(node, _BRANCHES):
            found += 1
        elif isinstance(node, ast.BoolOp):
            found += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            found += 1 + len(node.ifs)
        waiting.extend(ast.iter_child_nodes(node))
    return found
