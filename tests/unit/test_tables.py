"""Values and errors of expressions: each case of a file in tables/ is a test (tables/README.md describes the form)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

import glidemq_py
from glidemq_py import errors, records
from tests import inside

SECRET: Final = "hunter2"
"""No error of any row shows it."""
FOLDER: Final = Path(__file__).with_name("tables")
ROW: Final = re.compile(r"(?s)(.*?)(?:\s+(->|!)\s+(.*))?")
FOR: Final = re.compile(r"(?s)(.*?) for (\w+(?:, \w+)*) in (.*)")
ERROR: Final = re.compile(
    r"(?s)(?:([A-Z]\w+(?:Error|Exit)) ?)?([^:=~]+?)?(?: = (\[.*\]|\{.*\}|\S+))?(?: ~ (\S+))?(?:: (.*))?"
)  # fmt: skip


@dataclass
class Table:
    """A case: a title, the forms in which each row is evaluated, and rows with their lines."""

    title: str
    forms: list[str] = field(default_factory=list[str])
    lets: list[str] = field(default_factory=list[str])
    rows: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


def read(path: Path) -> Iterator[Table]:
    """Yield the cases of a file; what stands before the first one holds for all."""
    table = Table("")
    text = path.read_text(encoding="utf-8")
    assert "glidemq_py._" not in text, f"{path.name}: private names come from tests/inside.py"
    for found in re.finditer(r"(?m)^[^# \n].*(\n .*)*", text):
        line = found[0]
        if line.startswith("== "):
            yield table
            table = Table(line[3:])
        elif line.startswith("of "):
            table.forms.append(line[3:])
        elif line.startswith(("let ", "from ", "import ", "class ", "def ", "async def ")):
            table.lets.append(line.removeprefix("let "))
        else:
            table.rows.append((text.count("\n", 0, found.start()) + 1, line))
    yield table


def forms_of(table: Table, known: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each form, with the value of its name."""
    for form in table.forms or ["..."]:
        if found := FOR.fullmatch(form):
            for value in eval(found[3], known):
                names = found[2].split(", ")
                yield found[1], {**known, **dict(zip(names, value if names[1:] else (value,), strict=True))}
        else:
            yield form, known


def outcome(source: str, known: dict[str, Any]) -> Any:
    """Return the value of an expression, or of what it awaits."""

    async def value() -> Any:
        return await found

    found = eval(source, known)
    return asyncio.run(value()) if inspect.iscoroutine(found) else found


def shown_by(error: BaseException) -> str:
    value = getattr(error, "value", None)
    return "".join([str(error), repr(error), repr(value), *traceback.format_exception(error)])


def problem(source: str, sign: str | None, expected: str, known: dict[str, Any]) -> str | None:
    """Return how the outcome of an expression differs from the expected one."""
    kind, option, value, suggestion, text = ("", "", "", "", "")
    if sign == "!":
        expected = re.sub(r"{(\w+)}", lambda name: str(known[name[1]]), expected)
        kind, option, value, suggestion, text = ERROR.fullmatch(expected).groups("")  # type: ignore[union-attr]
    error = eval(kind or "GlideMQValidationError", known) if sign == "!" else ()
    try:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            found = outcome(source, known)
    except error as raised:
        shown = f"{raised}{printed.getvalue()}"
        if SECRET in shown + ("" if isinstance(raised, SystemExit) else shown_by(raised)):
            return f"shows {shown_by(raised)}"
        if option and (
            (option != "*" and raised.option != option)
            or not shown.startswith((f"option {raised.option!r} =", f"option {raised.option!r}:"))
        ):
            return f"names {raised.option!r}: {shown}"
        if value and raised.value != eval(value, known):
            return f"has the value {raised.value!r}"
        if suggestion and (type(raised).__name__, str(raised.suggestion)) != ("UnknownOptionError", suggestion):
            return f"suggests {raised!r}"
        pattern = re.sub(r"\\\$$", "$", ".*".join(map(re.escape, text.split(" ... "))))
        return None if re.search(pattern, shown, re.DOTALL) else f"says {shown!r}"
    except Exception as raised:
        return f"raises {raised!r}"
    if sign == "!":
        return f"is {found!r}"
    wanted = True if sign is None else eval(expected, known)
    return None if found == wanted and type(found) is type(wanted) else f"is {found!r}"


def tables() -> Iterator[Any]:
    for path in sorted(FOLDER.glob("*.txt")):
        first, *others = read(path)
        for table in others:
            yield pytest.param(path.name, first, table, id=f"{path.stem}: {table.title}")


@pytest.mark.parametrize(("name", "first", "table"), list(tables()))
def test_table(name: str, first: Table, table: Table):
    known = {name: getattr(kind, name) for kind in (glidemq_py, errors, records) for name in kind.__all__} | vars(
        inside
    )
    for line in first.lets + table.lets:
        exec(line, known)
    problems: list[str] = []
    assert table.rows
    for number, row in table.rows:
        source, sign, expected = ROW.fullmatch(row).groups()  # type: ignore[union-attr]
        for form, names in forms_of(table, known):
            whole = re.sub(r"\.\.\.(?!\.)", source.replace("\\", r"\\"), form)
            found = problem(whole, sign, expected or "", names)
            if found is not None:
                problems.append(f"tables/{name}:{number}: {whole} {sign or ''} {expected or ''}\n    {found}")
    if problems:
        pytest.fail(f"{table.title}\n" + "\n".join(problems), pytrace=False)
