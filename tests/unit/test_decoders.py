"""Every function that decodes data from outside: it returns a result or raises a typed error, in bounded memory.

decoders.txt lists them; a search of the sources fails for one that is not there. GLIDEMQ_FUZZ_EXAMPLES sets the
number of inputs per decoder.
"""

import argparse
import ast
import base64
import contextlib
import importlib
import io
import json
import os
import re
import tracemalloc
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glidemq_py import JSON_SERIALIZER, ConnectionOptions, GlideMQError  # noqa: F401
from glidemq_py.proxy.responses import seal_cursor
from tests import inside
from tests.inside import PAYLOAD_LIMIT, Call
from tools.generate_rows import CALLS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = int(os.environ.get("GLIDEMQ_FUZZ_EXAMPLES", "30"))
FREE_BYTES = 24 * PAYLOAD_LIMIT
"""Memory that a call may take beside 100 times its input: data is decompressed up to the limit of a payload."""

# -- inputs ---------------------------------------------------------------------------------------------------

TEXT = (
    st.text()
    | st.text(st.characters(), max_size=40)
    | st.sampled_from(["", "\x00", "\udcff", "9" * 5_000, "-", "1e999"])
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def as_json(keys: list[str]) -> st.SearchStrategy[str]:
    """Return JSON texts of objects that have some of these keys."""
    from json import dumps

    return st.dictionaries(st.sampled_from(keys) | st.text(max_size=5), JSON_VALUES, max_size=6).map(dumps)


JSON = (
    TEXT
    | JSON_VALUES.map(repr)
    | as_json(["a"])
    | st.sampled_from(["[" * 100_000, '{"a":' * 50_000, "9" * 100_000, "1e400"])
)
PACKED = st.binary(max_size=60) | VALUES.map(lambda value: packed(value)) | st.sampled_from(
    [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
     b"\xdd\x7f\xff\xff\xff" * 40, b"\x91" * 5_000]
)  # fmt: skip
STORED = JSON | st.binary(max_size=40).map(lambda b: "gz:" + b.decode("latin-1")) | TEXT.map(lambda text: "gz:" + text)
STORED |= PACKED.map(lambda b: "mp:" + base64.b64encode(b).decode()) | TEXT.map(lambda text: "mp:" + text)


def packed(value: Any) -> bytes:
    """Pack a value as the server does; integers beyond 64 bits become text."""
    return bytes(msgpack.packb(value, default=str, unicode_errors="surrogatepass") if fits(value) else b"\xc0")


def fits(value: Any) -> bool:
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    if isinstance(value, list):
        return all(map(fits, value))
    return all(map(fits, value.values())) if isinstance(value, dict) else True


URLS = TEXT | st.from_regex(r"\A(valkeys?|rediss?)(\+cluster)?://[ -~]{0,60}\Z") | st.sampled_from(
    ["valkey://" + "h," * 20_000, "valkey://h?" + "a=1&" * 20_000, "valkey://[" + ":" * 50_000]
)  # fmt: skip
CRON = TEXT | st.text("0123456789*/,-?LW# MONJANsun@", max_size=60) | st.sampled_from(
    ["1-59/1," * 20_000 + "1 * * * *", "* " * 50_000, "@" * 50_000, "*/99999999999 * * * *"]
)  # fmt: skip
FIELDS = st.dictionaries(TEXT, TEXT | st.none(), max_size=5)
RECORDS = st.dictionaries(
    st.sampled_from(["name", "data", "opts", "timestamp", "attemptsMade", "parentIds", "parentQueues", "stacktrace",
                     "progress", "returnvalue", "finishedOn", "usage:tokens", "budgetKey", "state"]) | TEXT,
    STORED | st.none(), max_size=8,
)  # fmt: skip
ARGUMENTS = st.lists(
    TEXT.filter(lambda text: "\x00" not in text) | st.sampled_from(
        ["--queue", "--url", "--concurrency", "--port", "--processes", "--max-memory", "--log-level", "--prefix", "x:y",
         "9" * 5_000, "valkey://h",
         "--check", "--host", "--grace", "check", "30s", "5m"]),
    max_size=6,
)  # fmt: skip
SPARK = st.dictionaries(
    st.sampled_from(["queue", "url", "jobName", "guarantee", "batchSize", "maxBatchBytes", "view", "states",
                     "fetchSize",
                     "partitions", "startingOffsets", "compression", "stagingTtl", "writeId", "overwrite",
                     "connection",
                     "jobOptions",
                     "maxOffsetsPerTrigger"]) | TEXT,
    TEXT | URLS, max_size=6,
)  # fmt: skip


LEASE_TOKENS = st.lists(JSON_VALUES | st.just("q") | st.just(["glide", "q"]), max_size=9).map(
    lambda items: "l1." + base64.urlsafe_b64encode(json.dumps(items).encode()).decode().rstrip("=")
) | st.sampled_from(["l1." + "W1tb" * 1_000, "l1." + "A" * 100_000])
PAIRS = st.tuples(st.binary(max_size=9), st.binary(max_size=9)).map(list)


# -- the tables -----------------------------------------------------------------------------------------------


class Decoder(NamedTuple):
    """How to call a decoder with one input, what the inputs are (an expression), and the errors of its contract."""

    decode: Callable[[Any], object]
    inputs: str
    errors: tuple[type[BaseException], ...] = (GlideMQError,)


def of(place: str):
    """Return the function of "module:name"."""
    module, _, name = place.partition(":")
    return attrgetter(name)(importlib.import_module(f"glidemq_py.{module}"))


def attributes(found: object, names: str) -> object:
    return [getattr(found, name) for name in names.split()]


def sealed(text: str) -> str:
    try:
        return seal_cursor("place", text)
    except ValueError:
        return text


def listed(line: str) -> tuple[str, Decoder]:
    """Return the place of a line of decoders.txt, and how it is tried."""
    found = re.fullmatch(r"(\S+) <- (.*?)(?: => (.*?))?(?: ! (\w+))?", line)
    assert found is not None, line
    known = vars(argparse) | vars(inside) | globals()
    errors = (GlideMQError, *([eval(found[4], known)] if found[4] else ()))

    def decode(value: Any) -> object:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return eval(found[3] or "f(value)", {**known, "f": of(found[1]), "value": value})

    return found[1], Decoder(decode, found[2], errors)


LINES = (ROOT / "tests/unit/decoders.txt").read_text(encoding="utf-8").splitlines()
DECODERS = dict(listed(line) for line in LINES if re.match(r"\S+ <- ", line)) | {
    # Replies of our functions.
    f"call {each.function}": Decoder(Call(each.function, "k", (), each.call.read).read, "PACKED")
    for each in CALLS
}
ELSEWHERE = {line for line in LINES if re.fullmatch(r"[\w.]+:[\w.]+", line)}


# -- the tests ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("inputs", dict.fromkeys(each.inputs for each in DECODERS.values()))
def test_a_result_or_a_typed_error(inputs: str):
    found = {place: each for place, each in DECODERS.items() if each.inputs == inputs}

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
    @given(eval(inputs, vars(argparse) | vars(inside) | globals()))
    def decode(value: Any):
        for place, decoder in found.items():
            try:
                with contextlib.suppress(*decoder.errors):
                    decoder.decode(value)
            except BaseException as error:
                error.add_note(place)
                raise

    with mock.patch.dict(os.environ, {"GLIDEMQ_URL": "valkey://h"}):
        decode()


BOMBS: dict[str, list[Any]] = {
    "_core.payload:decode_data": ["[" * 1_000_000, "9" * 1_000_000, '"' + "\\u0000" * 170_000 + '"'],
    "_core.json_text:_loads_stdlib": ["[" * 1_000_000, '{"a":' * 200_000],
    "_core.json_text:_loads_orjson": ["[" * 1_000_000, '{"a":' * 200_000, "9" * 1_000_000],
    "call count_parked": [b"\xdd\xff\xff\xff\xff" * 100_000, b"\x91" * 1_000_000, b"\xdf\x00\x0f\xff\xff"],
    "call flow_nodes": [b"\xdc\xff\xff" * 300_000],
    "_worker.sandbox.framing:_unpack": [b"\xdd\xff\xff\xff\xff" * 100_000],
    "_worker.command.arguments:parse_size": ["9" * 1_000_000, "9" * 400],
    "_core.command_line:parse_duration": ["9" * 1_000_000 + "h", "9" * 400 + "ms"],
    "_features.schedulers.cron:parse_cron": ["0-59," * 200_000 + "1 * * * *", "*" * 1_000_000],
    "_client.connection_options:parse_url": ["valkey://" + "h," * 200_000, "valkey://h?" + "a=b&" * 100_000],
    "_core.job_options:read_stored_options": ['{"attempts":' + "9" * 1_000_000 + "}"],
}


@pytest.mark.parametrize(
    "place",
    # It makes many addresses, which takes a second.
    [pytest.param(place, marks=pytest.mark.slow if place.endswith("parse_url") else ()) for place in BOMBS],
)
def test_a_megabyte_of_nonsense_takes_bounded_memory(place: str):
    decoder = DECODERS[place]
    for value in BOMBS[place]:
        tracemalloc.start()
        try:
            with contextlib.suppress(*decoder.errors):
                decoder.decode(value)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 100 * len(value) + FREE_BYTES


@pytest.mark.slow
def test_a_compressed_bomb_stops_at_the_limit_of_a_payload():
    import base64
    import gzip

    text = "gz:" + base64.b64encode(gzip.compress(b"0" * 200 * PAYLOAD_LIMIT)).decode()
    tracemalloc.start()
    try:
        with pytest.raises(GlideMQError):
            of("_core.payload:decode_data")(text, JSON_SERIALIZER)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < FREE_BYTES


def decoders_in_the_sources() -> set[str]:
    """Return the functions that are named like decoders, or take the bytes of a reply."""
    found = set[str]()
    for path in (ROOT / "glidemq_py").rglob("*.py"):
        place = (
            path.relative_to(ROOT / "glidemq_py").with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        )
        if place.partition(".")[0] != "testing" and "memory" not in place:
            found |= {f"{place}:{name}" for name in _decoders_of(ast.parse(path.read_text(encoding="utf-8")), "")}
    return found


def _decoders_of(tree: ast.AST, prefix: str) -> set[str]:
    found = set[str]()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found |= _decoders_of(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            named = re.match(r"_?(parse|decode|loads?|unpack|read|from)(_|$)", node.name)
            replies = [arg for arg in node.args.args if arg.annotation is not None and arg.arg == "reply"
                       and "bytes" in ast.unparse(arg.annotation)]  # fmt: skip
            if named or replies:
                found.add(prefix + node.name)
    return found


@pytest.mark.slow
def test_every_decoder_is_listed():
    found = decoders_in_the_sources()
    assert len(found) > 80
    assert found - DECODERS.keys() - ELSEWHERE == set(), "add them to decoders.txt"
    assert ELSEWHERE - found == set(), "these do not exist"
