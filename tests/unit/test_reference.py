"""The generated parts of docs/reference are current."""

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glidemq_py
from tests.bench import sizing
from tests.bench.scale import _HEAD, Point, _table
from tools import generate_functions, generate_options

NOT_OPTIONS = {"Address", "DagNode", "FlowJob", "JobRef", "JobSpec", "VectorField"}
"""Specifications of jobs, servers and fields, not options."""


def test_tables_of_options_are_current() -> None:
    text = generate_options.PAGE.read_text(encoding="utf-8")
    assert generate_options.page(text) == text, "run python -m tools.generate_options"


def test_every_class_of_options_has_a_table() -> None:
    classes = {
        name
        for name in glidemq_py.__all__
        if inspect.isclass(each := getattr(glidemq_py, name)) and dataclasses.is_dataclass(each)
        if "Args:" in (inspect.getdoc(each) or "") and name not in NOT_OPTIONS
    }
    assert {"JobOptions", "ConnectionOptions", "Budget"} <= classes
    text = generate_options.PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"<!-- options of (\w+) -->", text)
    assert sorted(shown) == sorted(table.name for table in generate_options.TABLES)
    assert classes - set(shown) == set()


def _check_signature(holder: type | Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(holder).parameters if name != "self"]


@pytest.mark.parametrize("table", generate_options.TABLES, ids=lambda table: table.name)
def test_every_option_has_a_row_with_type_default_and_allowed_values(table: generate_options.Options) -> None:
    text = generate_options.PAGE.read_text(encoding="utf-8")
    section = text.split(f"<!-- options of {table.name} -->\n")[1].partition("<!-- end -->")[0]
    rows = [re.split(r"(?<!\\)\| ", line) for line in section.splitlines()[2:]]
    elsewhere = {option for options in table.same_as.values() for option in options}
    own = {re.findall(r"\w+", row[1])[0]: [cell.strip() for cell in row[2:]] for row in rows if row[2].strip("| ")}
    assert own.keys() == set(_check_signature(generate_options.resolve(table.place))) - elsewhere
    for option, (kind, default, _, allowed, meaning) in own.items():
        assert all((kind, default, allowed, len(meaning) > 5)), option


# -- server functions ------------------------------------------------------------------------------------------


def test_headers_of_functions_are_current() -> None:
    text = generate_functions.PAGE.read_text(encoding="utf-8")
    assert generate_functions.page(text) == text, "run python -m tools.generate_functions"


def test_every_file_with_functions_is_shown_once() -> None:
    text = generate_functions.PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"<!-- header of ([\w/.]+) -->", text)
    files = {file for file, _ in generate_functions.exported().values()}
    assert len(files) > 40
    assert files - set(shown) == set()
    assert len(shown) == len(set(shown))


def test_every_function_links_to_its_section() -> None:
    text = generate_functions.PAGE.read_text(encoding="utf-8")
    table = text.split("<!-- functions -->\n")[1].partition("<!-- end -->")[0]
    functions = generate_functions.exported()
    assert re.findall(r"(?m)^\| \[(\w+)\]\(#", table) == sorted(functions)
    for file, _ in functions.values():
        assert generate_functions.leading_comment(generate_functions.LUA / file), f"{file} has no header"


# -- the page about sizing -------------------------------------------------------------------------


def test_needs_follow_from_the_printed_costs():
    cost = sizing.planned(sizing.table_on_page("costs"))
    assert sizing.need_table(cost) == sizing.table_on_page("needs"), "python -m tests.bench.sizing --recompute"
    assert sizing.plot(cost) == sizing.PLOT.read_text(encoding="utf-8")


def test_costs_are_read_as_they_are_printed():
    plain = sizing.Cost(9.12, 15.0, 3.04, 8.2, 258, 257, 0, 783.4, 1331)
    logged = sizing.Cost(11.4, 20.88, 9, 9, 9, 9, 1434, 9, 9)
    assert sizing.planned(sizing.cost_table(plain, logged)) == sizing.Cost(
        11.4, 20.9, 3.0, 8.2, 258, 257, 1434, 783, 1331
    )
    need = sizing.Need.of(1_000_000, sizing.planned(sizing.cost_table(plain, logged)))
    assert (need.producers, need.workers, need.primaries) == (5, 14, 57)


# -- the benchmark reports in docs have the text that their generator writes -----------------------


PAGE = Path(__file__).parents[2] / "docs" / "cost-by-size.md"


def test_cost_by_size_has_the_text_of_its_generator() -> None:
    table = _table("Waiting jobs", [Point(1_000, 5.59, 13.51, 6.55, 1.79, 2.70, "exchange")])
    assert PAGE.read_text().startswith("\n".join([_HEAD, *table[:4]]))
