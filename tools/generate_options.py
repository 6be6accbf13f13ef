"""Generates the tables of options in docs/reference/configuration.md: run ``python -m tools.generate_options``.

Everything comes from the declaration of an option: its type and default from the signature, its meaning from the
docstring, and its allowed values from the error that it raises. A table is written between the comments
``<!-- options of X -->`` and ``<!-- end -->``; the text around them is written by hand. tests/unit/test_reference.py
fails if a table is out of date or an option is missing.
"""

# pyright: basic
# Introspection: most values have no static type.

from __future__ import annotations

import collections.abc
import importlib
import inspect
import re
import types
import typing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from glidemq_py._core.checks import Converted, OptionValue
from glidemq_py.errors import GlideMQValidationError

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "configuration.md"
HEAD = "| option | type | default | unit | allowed | meaning |\n| --- | --- | --- | --- | --- | --- |"
TABLE = re.compile(r"(<!-- options of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Options:
    """A class or function whose parameters are options.

    Attributes:
        place: dotted path of the class or function.
        needed: valid values of the options without a default.
        docs: dotted paths of other classes whose docstrings take precedence.
        hints: dotted path of a TypedDict with the types, for a signature without annotations.
        same_as: options that another table describes, by the name of that table.
        links: "more" links by option.
        probe: other options that are given while an option is checked.
    """

    place: str
    needed: dict[str, Any] = field(default_factory=dict[str, Any])
    docs: tuple[str, ...] = ()
    hints: str = ""
    same_as: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    links: dict[str, str] = field(default_factory=dict[str, str])
    probe: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @property
    def name(self) -> str:
        """The name in the comment before the table."""
        return self.place.rpartition(".")[2]


def _handler(_: object) -> None: ...


_WORKER_OPTIONS = (
    "connection", "concurrency", "prefix", "lock_duration", "stalled_interval", "max_stalled_count", "stalled_grace",
    "retry_on", "no_retry_on", "backoff_strategies", "limiter", "token_limiter", "batch", "sandbox", "lifespan",
    "serializer", "compression", "events", "metrics", "log_failures",
)  # fmt: skip

TABLES = (
    Options(
        "glidemq_py.Queue",
        {"name": "q"},
        links={
            "name": "../operate/limits.md#names",
            "connection": "../start/install.md#where-is-the-server",
            "default_job_options": "#joboptions",
            "serializer": "../learn/serializers.md",
            "dead_letter_queue": "../learn/dead-letters.md",
        },
    ),
    Options(
        "glidemq_py.Worker",
        {"queue_name": "q", "handler": _handler},
        docs=("glidemq_py._worker.options.WorkerOptions",),
        probe={"sandbox": {"handler": "module:function"}},
        links={
            "handler": "../learn/workers.md",
            "connection": "../start/install.md#where-is-the-server",
            "max_stalled_count": "../learn/guarantees.md#a-poison-job-fails-alone",
            "backoff_strategies": "../learn/retries.md#backoff",
            "limiter": "../learn/limits.md#a-worker",
            "token_limiter": "../learn/limits.md#tokens",
            "fair_key_preference": "../learn/fair-shares.md#preference-of-a-worker",
            "batch": "../learn/batch.md",
            "sandbox": "../learn/sandbox.md",
            "serializer": "../learn/serializers.md",
            "dead_letter_queue": "../learn/dead-letters.md",
            "log_failures": "../operate/logging.md#options",
        },
    ),
    Options("glidemq_py.BatchOptions", {"size": 1}),
    Options("glidemq_py.SandboxOptions"),
    Options("glidemq_py.FailureLogOptions"),
    Options("glidemq_py.RateLimit", {"max": 1, "duration": 1_000}),
    Options("glidemq_py.TokenLimiter", {"max_tokens": 1, "duration": 1_000}),
    Options(
        "glidemq_py.Broadcast",
        {"name": "q"},
        same_as={"Queue": ("connection", "prefix", "default_job_options", "compression", "serializer", "events")},
        links={"name": "../operate/limits.md#names"},
    ),
    Options(
        "glidemq_py.BroadcastWorker",
        {"name": "q", "handler": _handler, "subscription": "s"},
        same_as={"Worker": _WORKER_OPTIONS},
        links={"subjects": "../learn/broadcast.md"},
    ),
    Options(
        "glidemq_py.JobOptions",
        hints="glidemq_py._core.option_dicts_twin.JobOptionsDict",
        links={
            "backoff": "#backoff",
            "ttl": "../learn/order.md",
            "timeout": "../learn/timeouts.md",
            "remove_on_complete": "../learn/retention.md",
            "ordering": "../learn/ordering.md",
            "deduplication": "../learn/deduplication.md",
            "fallbacks": "../learn/fallbacks.md",
            "parent": "../learn/flows.md",
            "depends_on": "../learn/dependencies.md",
        },
    ),
    Options("glidemq_py.Ordering", {"key": "k"}),
    Options("glidemq_py.TokenBucket", {"capacity": 1, "refill_rate": 1}),
    Options("glidemq_py.Deduplication", {"id": "d"}),
    Options("glidemq_py.Backoff", {"type": "fixed"}),
    Options("glidemq_py.Fallback", {"model": "m"}),
    Options(
        "glidemq_py.Schedule",
        probe={
            **{name: {"pattern": "@daily"} for name in ("tz", "day_match")},
            **{name: {"every": 1_000} for name in ("start_date", "end_date", "limit", "immediately", "misfire")},
            "overlap": {"every": 1_000},
        },
    ),
    Options("glidemq_py.DeadLetterOptions", {"name": "d"}),
    Options("glidemq_py.Durability"),
    Options("glidemq_py.Budget", probe={"token_weights": {"max_total_tokens": 1}, "cost_unit": {"max_total_cost": 1},
                                        "on_exceeded": {"max_total_tokens": 1}}),
    Options("glidemq_py.KeepJobs"),
    Options("glidemq_py.ConnectionOptions"),
    Options("glidemq_py.IamCredentials", {"username": "u", "cluster_name": "c", "region": "r"}),
    Options(
        "glidemq_py.proxy.ProxyOptions",
        same_as={"Queue": ("prefix", "compression", "events")},
        links={"hosts": "../learn/proxy.md#requests-of-other-sites", "max_response": "../learn/proxy.md#pages"},
    ),
)  # fmt: skip

_UNITS = {
    "memory_limit": "bytes",
    "max_body": "bytes",
    "max_response": "bytes",
    "refresh_interval_seconds": "s",
    "age": "s",
}
"""Units of numbers that are no durations in milliseconds. A missing option is an error."""
_SHOWN: dict[str, list[str]] = {"ConnectionSource": [], "_JobLike": ["Job"]}
"""Documented names of internal types."""
_SHORTER = (
    (re.compile(r"^must (be|have) (?=.)"), lambda match: "" if match[1] == "be" else "has "),
    (re.compile(r", not _Invalid$"), ""),
    (re.compile(r"^an integer(?: \(\w+\))?(?: or a timedelta)?,? from ([\d,]+) to ([\d,]+)(?: ms)?$"), r"\1 to \2"),
)  # fmt: skip


class _Invalid:
    """A value that no option accepts."""

    def __repr__(self) -> str:
        return "an object"


def resolve(place: str) -> Any:
    """Return the object of a dotted path."""
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(module), name)


def page(text: str) -> str:
    """Return the page with every table replaced by the current one."""
    tables = {table.name: table for table in TABLES}
    return TABLE.sub(lambda match: f"{match[1]}{_table(tables[match[2]])}\n{match[3]}", text)


def _table(table: Options) -> str:
    holder = resolve(table.place)
    hints = _hints(table, holder)
    meanings = _meanings(holder)
    for place in table.docs:
        meanings |= _meanings(resolve(place))
    elsewhere = {option for options in table.same_as.values() for option in options}
    rows = [HEAD]
    parameters = inspect.signature(holder).parameters
    for option, parameter in parameters.items():
        if option not in elsewhere:
            meaning = meanings[option]
            if option in table.links:
                meaning = f"{meaning.rstrip('.')}. [More]({table.links[option]})"
            cells = (
                f"`{option}`", _typed(hints[option]), _default(parameter.default), _unit(option, hints[option]),
                _allowed(table, holder, option), meaning,
            )  # fmt: skip
            rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    for name, options in table.same_as.items():
        missing = [option for option in options if option not in parameters]
        assert not missing, f"{table.place} has no {missing}"
        names = ", ".join(f"`{option}`" for option in options)
        rows.append(f"| {names} | | | | | as for [`{name}`](#{name.lower()}) |")
    return "\n".join(rows)


def _hints(table: Options, holder: Any) -> dict[str, Any]:
    if table.hints:
        return typing.get_type_hints(resolve(table.hints))
    if isinstance(holder, type) and issubclass(holder, OptionValue):
        hints = typing.get_type_hints(holder)
        return {name: typing.get_args(hint)[1] if typing.get_origin(hint) is Converted else hint
                for name, hint in hints.items()}  # fmt: skip
    return typing.get_type_hints(inspect.getattr_static(holder, "__init__") if isinstance(holder, type) else holder)


def _meanings(holder: Any) -> dict[str, str]:
    """Return the descriptions of the arguments in a docstring, each in one line."""
    doc = inspect.getdoc(holder) or ""
    section = doc.partition("\nArgs:\n")[2]
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if not line.startswith("    "):
            break
        first = re.match(r" {4}(\w+): (.*)", line)
        if first is not None:
            name, found[first[1]] = first[1], first[2]
        else:
            found[name] += f" {line.strip()}"
    return {option: (text[:1].upper() + text[1:]).replace("``", "`") for option, text in found.items()}


def _typed(hint: Any) -> str:
    names = list(dict.fromkeys(_type_names(hint)))
    return f"`{' | '.join(names)}`"


def _type_names(hint: Any) -> list[str]:
    """Return the types of a union, in words of the documentation: TypedDicts are mappings, functions are callables."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return [name for argument in arguments for name in _type_names(argument)]
    if origin is typing.Literal:
        return [f'"{each}"' if isinstance(each, str) else repr(each) for each in arguments]
    if origin is collections.abc.Callable:
        return ["Callable"]
    if origin is not None:
        inner = ", ".join(" | ".join(_type_names(argument)) for argument in arguments)
        return [f"{origin.__name__}[{inner}]" if inner else origin.__name__]
    if hint is type(None):
        return ["None"]
    if typing.is_typeddict(hint):
        return ["Mapping"]
    if hint is Ellipsis:
        return ["..."]
    name = getattr(hint, "__name__", str(hint))
    return _SHOWN.get(name, [name])


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "needed"
    if isinstance(value, tuple) and value and hasattr(value[0], "host"):
        return f"`{value[0]}`"
    if type(value) is int and value >= 10_000:
        return f"`{value:_}`"
    return f"`{value!r}`".replace("'", '"')


def _unit(option: str, hint: Any) -> str:
    if option in _UNITS:
        return _UNITS[option]
    return "ms" if timedelta in typing.get_args(hint) else ""


def _allowed(table: Options, holder: Any, option: str) -> str:
    """Return what the error for an invalid value says."""
    given = table.needed | table.probe.get(option, {}) | {option: _Invalid()}
    try:
        holder(**given)
    except GlideMQValidationError as error:
        problem, name = error.problem, error.option.replace(" ", "_")
        assert name.endswith(option) or option.endswith(name), f"{table.place}: {option!r} requires another option"
    else:
        raise AssertionError(f"{table.place} accepts any {option!r}")
    for pattern, shorter in _SHORTER:
        problem = pattern.sub(shorter, problem)
    return problem


def main() -> None:
    """Write the tables."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
