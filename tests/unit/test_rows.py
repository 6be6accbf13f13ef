"""Rows between Python and Lua: generated files are up to date, and no other code reads fields by number.

tools/generate_rows.py writes Lua's side (docs/design/protocol.md, "Rows").
"""

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from glidemq_py._core.calls import Argument, Flag, Packed, call
from tests.inside import Variant, adding, assemble, declared, pack, run, working
from tools.generate_rows import CALLS, ROWS, Layout, rendered

ROOT = Path(__file__).parents[2]
LUA = ROOT / "lua"
PACKAGE = ROOT / "glidemq_py"

LUA_EXCEPTIONS = {
    "core/rows.lua": "generated",
    "core/functions/_calls.lua": "generated",
    "core/lists.lua": "G.first reads lists, whose elements are all of one kind",
}
"""Lua files that may use a number as an index. The wire library reads the keys and arguments of Node's protocol."""

FOLDERS = (
    "_api",
    "_core",
    "_features",
    "_job",
    "_partitions",
    "_worker",
    "gateway",
    "spark",
    "sync",
    "telemetry",
)
"""Folders of the package that handle rows."""
OTHER_PROCESSES = ("_worker/sandbox/", "_worker/command/")
"""Their messages are no rows of server calls."""


@pytest.mark.parametrize("path", rendered())
def test_generated_files_are_up_to_date(path: str):
    assert (ROOT / path).read_text(encoding="utf-8") == rendered()[path], "run python -m tools.generate_rows"


def test_every_function_is_declared():
    assert {call.function for call in CALLS} == assemble(Variant.OWN).functions


def test_every_declared_field_has_one_position():
    for name, fields in (ROWS | {each.function: (*each.request, *each.args) for each in CALLS}).items():
        named = [field for field in fields if field != "_"]
        assert len(set(named)) == len(named), name


# -- Lua ---------------------------------------------------------------------------------------------------------


def lua_lines() -> Iterator[tuple[str, str]]:
    for path in sorted(LUA.rglob("*.lua")):
        name = path.relative_to(LUA).as_posix()
        if name not in LUA_EXCEPTIONS and not name.startswith("wire_library/"):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                yield f"{name}:{number}", line.split("--")[0]


def test_lua_reads_no_field_by_number():
    found = [f"{place}: {code.strip()}" for place, code in lua_lines() if re.search(r"\[-?\d+\]", code)]
    assert not found, "use G.rows, G.calls or G.first"


def test_lua_keeps_no_positions_of_its_own():
    statuses = {"PROMOTED, DROPPED, STOP, RETURNED", "PAUSED, EXHAUSTED, LIMITED, OUTBOX_PENDING"}
    for place, code in lua_lines():
        found = re.fullmatch(r"local ([A-Z_]+(?:, [A-Z_]+)+) = (\d+(?:, \d+)+)", code.strip())
        if found and found.group(1) not in statuses:
            numbers = [int(each) for each in found.group(2).split(", ")]
            assert any(b - a != 1 for a, b in pairwise(numbers)), f"{place}: {code.strip()}"


def test_lua_uses_declared_names_only():
    known: dict[str, dict[str, Any]] = {
        "rows": ROWS, "new": ROWS, "calls": {call.function: () for call in CALLS},
             "replies": {call.function: call.reply for call in CALLS if call.call.hot}}  # fmt: skip
    for place, code in lua_lines():
        for table, name in re.findall(r"\bG\.(rows|new|calls|replies)\.(\w+)", code):
            assert name in known[table], f"{place}: G.{table}.{name}"


def lua_text(name: str) -> str:
    return (LUA / name).read_text(encoding="utf-8")


def test_lua_reads_declared_fields_only():
    for path in LUA.rglob("*.lua"):
        text = path.read_text(encoding="utf-8")
        aliases = dict[str, str]()
        for names, values in re.findall(r"^local ([A-Z_, ]+) = ((?:G\.rows\.\w+(?:, )?)+)$", text, re.MULTILINE):
            rows = [value.removeprefix("G.rows.") for value in values.split(", ")]
            aliases |= dict(zip(names.split(", "), rows, strict=True))
        for alias, field in re.findall(r"\b([A-Z_]+)\.([a-z_]+)\b", text):
            if alias in aliases:
                assert field in ROWS[aliases[alias]], f"{path.name}: {alias}.{field}"


def test_lua_builds_rows_completely():
    for path in LUA.rglob("*.lua"):
        for name, given in tables(path.read_text(encoding="utf-8"), r"\bG\.new\.(\w+)\(\{"):
            fields = set(ROWS[name])
            assert given == fields, f"{path.name}: G.new.{name} without {fields - given}, with {given - fields}"


NO_REPLIES = {"failures.lua": "failed_at", "flow.lua": "building", "recover_stalled.lua": "orderingSeq"}
"""Files with a function that returns a table which is no reply, and a field of that table."""
OPTIONAL = {
    "reattach": {"budgets"},
    "broadcast_reattach": {"budgets"},
    "broadcast_heartbeat": {"commands", "layout"},
    "broadcast_recover_stalled": {"interval", "policy"},
}
"""Fields with a default, at the end of a reply."""


def test_lua_builds_replies_completely():
    """A function returns its reply as a table of names: with a field missing, the packed array would end there."""
    for path in sorted(LUA.glob("**/functions/[!_]*.lua")):
        text = path.read_text(encoding="utf-8")
        exported = re.findall(r"^G\.export\('(\w+)'", text, re.MULTILINE)
        replies = {
            call.function: set(call.reply)
            for call in CALLS
            if call.function in exported and call.reply and not call.call.hot
        }
        found = set[str]()
        for _, names in tables(text, r"\breturn( )\{"):
            if names and all(map(str.isidentifier, names)) and NO_REPLIES.get(path.name) not in names:
                fitting = {
                    name for name, reply in replies.items() if reply - OPTIONAL.get(name, set()) <= names <= reply
                }
                assert fitting, f"{path.name}: {sorted(names)} is no reply of {replies}"
                found |= fitting
        assert found == replies.keys(), path.name


def tables(text: str, start: str) -> list[tuple[str, set[str]]]:
    """Return the first group of each match of ``start``, which ends with a brace, and the names of its table."""
    return [(found[1], top_level_names(text[found.end() :])) for found in re.finditer(start, text)]


def top_level_names(text: str) -> set[str]:
    """Return the names that a Lua table constructor gives a value; ``text`` starts after its brace."""
    names, depth, part = set[str](), 0, ""
    for char in re.sub(r"'[^'\n]*'", "''", text):
        depth += (char in "({[") - (char in ")}]")
        if depth < 0 or (char == "," and depth == 0):
            names.add(part.partition("=")[0].strip())
            part = ""
            if depth < 0:
                break
        else:
            part += char
    return names - {""}


def test_the_row_of_a_fetched_job_is_built_in_order():
    """The hot path passes its fields by position: their names agree with the declared ones."""
    for name in ("core/fetch.lua", "features/broadcast/functions/_subscription_fetch.lua"):
        (given,) = re.findall(r"G\.fetched_job\(([^()]*?(?:'0'[^()]*)?)\)", lua_text(name))
        words = [re.sub(r"h\[(\w+)\]", r"\1", word).split()[0].lower() for word in given.replace("\n", " ").split(",")]
        same = {"attempts": "attempts_made", "stalled": "stalled_count", "trace": "stacktrace"}
        assert tuple(same.get(word, word) for word in words) == ROWS["fetched_job"], name
    (given,) = re.findall(
        r"earlier = redis\.call\('HMGET', key, 'attemptsMade', 'stacktrace', ([^)]*)", lua_text("core/fetch.lua")
    )
    fields = tuple(re.sub(r"([A-Z])", r"_\1", word).lower() for word in re.findall(r"'(\w+)'", given))
    assert fields == ROWS["earlier_run"]


# -- Python ------------------------------------------------------------------------------------------------------


class Two(NamedTuple):
    id: str
    values: list[str]


def test_a_row_has_the_same_fields_wherever_it_is_declared():
    assert declared("row_of_a_test")(Two) is Two
    with pytest.raises(TypeError, match=r"row 'fetched_job' has the fields \('id', .*, not \('id', 'values'\)"):
        declared("fetched_job")(Two)


def test_a_fetched_job_is_unpacked_in_order():
    tree = ast.parse(inspect.getsource(run))
    (names,) = [
        [name.id for name in target.elts if isinstance(name, ast.Name)]
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Tuple) and len(target.elts) == len(ROWS["fetched_job"])
    ]
    assert ["id" if name == "job_id" else name for name in names] == list(ROWS["fetched_job"])


def test_fields_of_a_new_job_are_in_order():
    parts: Any = {
        "name": "n", "data": "d", "opts": "{}", "job_id": "i", "delay": 5, "attempts": 6, "priority": 7, "lifo": True,
        "ttl": 9, "run_at": 10, "ordering": ["o"], "deduplication": ["u"], "parent": ["p", "q"],
        "rank": 5_000,
        "dependencies": ["wait", ["q", "1"]],
        "fair_key": "t",
        "batch": "glide:{q}:b",
    }  # fmt: skip
    named = {"job_id": "id", "fair_key": "fair"}
    given = {named.get(name, name): value for name, value in parts.items()}
    # Only replays append the last field, the names of its own.
    assert dict(zip(ROWS["new_job"], adding.row(**parts), strict=False)) == given
    for count in range(3, 13):  # cut after the last one given
        some = dict(list(parts.items())[:count])
        for (name, value), position in zip(some.items(), adding.row(**some), strict=False):
            assert position in (value, False), name


class Reply(NamedTuple):
    now: int
    rows: list[Two]
    kind: working.AttemptStatus
    more: int = 7


@call("declared_for_a_test", repeatable=True)
def example(rows: list[Two], quiet: Flag, mark: Argument[bool], n: Argument[int], name: str | None = None) -> Reply:
    """A call with every kind of argument."""
    ...


@call("packed_for_a_test", raw=True)
def packed_example(ids: Packed[list[str]]) -> list[int]:
    """A call with a packed list."""
    ...


def test_a_signature_is_the_layout_of_its_call():
    made = example("{q}:meta", [Two("i", ["v"])], True, mark=False, n=5)
    assert (made.function, made.key, made.repeatable) == ("declared_for_a_test", "{q}:meta", True)
    assert made.args == (pack([[["i", ["v"]]], 1, False]), "", "5")
    assert made.read(pack((1, [("i", ["v"])], 4))) == Reply(1, [Two("i", ["v"])], working.AttemptStatus.RETRYING)
    layout = Layout(example)
    assert (layout.request, layout.args, layout.reply) == (
        ("rows", "quiet", "name"),
        ("mark", "n"),
        tuple(Reply.__annotations__),
    )
    other = packed_example("{q}:meta", ["a"])
    assert (other.args, other.read((1, 2)), other.repeatable) == ((pack(["a"]),), [1, 2], False)
    layout = Layout(packed_example)
    assert (layout.packed, layout.packed_list) == ("ids", False)
    with pytest.raises(TypeError, match="'declared_for_a_test' is declared twice"):
        call("declared_for_a_test")(lambda: None)
    with pytest.raises(TypeError, match="missing"):
        example("{q}:meta", [])  # type: ignore[call-arg]


def test_only_the_request_of_a_hot_call_ends_after_its_last_field_that_is_given():
    made = working.exchange("{q}:meta", "c", 1, (), True, False)
    assert made.args == (pack(["c", 1, [], True]),)
    made = working.exchange("{q}:meta", "c", 1, (), True, False, idle="t")
    assert made.args == (pack(["c", 1, [], True, False, False, False, False, "t"]),)


def test_calls_that_only_read_are_repeatable():
    sources = (path.read_text(encoding="utf-8") for path in LUA.glob("*/**/functions/*.lua"))
    readers = {
        name for text in sources for name in re.findall(r"^G\.export\('(\w+)', { 'no-writes' }", text, re.MULTILINE)
    }
    assert {each.function for each in CALLS if each.function in readers and not each.call.repeatable} == set()


REPLIES = {"call", "command", "unpack", "decode"}
"""Functions that return the reply of the server, or a part of it."""
REPLY_TYPES = {"Any", "object", "bytes", "list[Any]", "list[bytes]", "list[object]"}
"""Types of parameters that may be a reply."""
SAME_ELEMENTS = {"enumerate", "zip", "list", "tuple", "sorted", "reversed"}
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def is_reply(node: ast.AST, names: set[str]) -> bool:
    """Return whether an expression is a reply or an element of one; fields with a name are not."""
    while isinstance(node, (ast.Await, ast.Subscript, ast.Starred)):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id in names
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in SAME_ELEMENTS or name == "cast":
        return any(is_reply(argument, names) for argument in node.args)
    return name in REPLIES


def bindings(function: Function) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each target in a function, and the expression that it, or its elements, are bound to."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            # The elements of a named field, such as `reply.rows`, are rows.
            yield node.target, node.iter.value if isinstance(node.iter, ast.Attribute) else node.iter


def reply_names(function: Function) -> set[str]:
    """Return the names in a function that may be a reply or an element of one."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    names = {each.arg for each in arguments if each.annotation and ast.unparse(each.annotation) in REPLY_TYPES}
    names |= {each.arg for each in arguments if each.arg in ("reply", "row")}
    before = -1
    while len(names) > before:
        before = len(names)
        for target, value in bindings(function):
            if is_reply(value, names):
                names |= {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    return names


def numbered(source: str) -> set[str]:
    """Return the expressions that read an element of a reply by its number; elements of named fields are rows."""
    found: set[str] = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, Function):
            by_number = [
                node for node in ast.walk(function) if isinstance(node, ast.Subscript) and is_number(node.slice)
            ]
            names = reply_names(function) if by_number else set()
            found |= {ast.unparse(node) for node in by_number if is_reply(node.value, names)}
    return found


def is_number(index: ast.expr) -> bool:
    """Return whether a subscript is an integer, such as 0 or -1."""
    value = index.operand if isinstance(index, ast.UnaryOp) else index
    return isinstance(value, ast.Constant) and type(value.value) is int


@pytest.mark.slow
def test_python_reads_no_field_by_number():
    paths = [path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py")]
    own = {path: path.relative_to(PACKAGE).as_posix() for path in paths}
    found = {
        name: expressions
        for path, name in own.items()
        if not name.startswith(OTHER_PROCESSES) and (expressions := numbered(path.read_text(encoding="utf-8")))
    }
    assert not found, "unpack the row into names, or use a NamedTuple of glidemq_py/_core/calls"


@pytest.mark.parametrize(
    "source",
    [
        "async def f(link):\n    return (await link.transport.call(page()))[0]",
        "async def f(link):\n    found = await link.transport.command('HMGET', 'k')\n    return found[1]",
        "async def f(link):\n    for row in (await link.transport.call(page())):\n        yield row[2]",
        "async def f(link):\n    found = await link.transport.call(page())\n    return [row[0] for row in found.rows]",
        "async def f(link):\n    a, b = await link.transport.call(page())\n    c = b\n    return c[-1]",
        "def f(packed: bytes):\n    return unpack(packed)[3]",
        "def f(found: Any):\n    return [name for name, *rest in found if rest[0]]",
        "call = Call('f', 'k', (), lambda reply: reply[0])",
    ],
)
def test_reads_by_number_are_found(source: str):
    assert numbered(source)
