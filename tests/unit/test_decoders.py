"""Every function that decodes data from outside: it returns a result or raises a typed error, in bounded memory.

`DECODERS` lists them; a search of the sources fails for one that is in neither table. GLIDEMQ_FUZZ_EXAMPLES sets the
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
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glidemq_py import JSON_SERIALIZER, MSGPACK_SERIALIZER, ConnectionOptions, GlideMQError
from glidemq_py.dashboard import __main__ as dashboard_command
from glidemq_py.proxy import __main__ as proxy_command
from glidemq_py.proxy.pages import seal_cursor
from tests.inside import PAYLOAD_LIMIT, Call, config_of
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
    """How to call a decoder with one input, the inputs, and the errors that are part of its contract."""

    decode: Callable[[Any], object]
    inputs: st.SearchStrategy[Any]
    errors: tuple[type[BaseException], ...] = (GlideMQError,)


def of(place: str):
    """Return the function of "module:name"."""
    module, _, name = place.partition(":")
    found: Any = importlib.import_module(f"glidemq_py.{module}")
    for each in name.split("."):
        found = getattr(found, each)
    return found


def one(place: str, inputs: st.SearchStrategy[Any], *others: Any, **options: Any) -> tuple[str, Decoder]:
    return place, Decoder(lambda value: of(place)(value, *others, **options), inputs)


def command(place: str, run: Callable[[list[str]], object]) -> tuple[str, Decoder]:
    def decode(arguments: list[str]):
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            run(arguments)

    return place, Decoder(decode, ARGUMENTS, (GlideMQError, SystemExit))


def decode_options(place: str, streaming: bool) -> tuple[str, Decoder]:
    return place, Decoder(lambda value: of(place)(value, streaming=streaming), SPARK)


def scheduler(text: str) -> object:
    entry = of("_features.schedulers.entry:Entry")(text)
    return entry.next_run, entry.waits, entry.last_job_id, entry.schedule, entry.template


DECODERS = dict(
    [
        # Values of jobs.
        one("_core.json_text:_loads_stdlib", JSON),
        one("_core.json_text:_loads_orjson", JSON),
        one("_core.payload:decode_data", STORED, JSON_SERIALIZER),
        (
            "_core.payload:MSGPACK_SERIALIZER",
            Decoder(
                lambda text: of("_core.payload:decode_data")(text, MSGPACK_SERIALIZER),
                STORED | PACKED.map(lambda b: b.decode("latin-1")),
            ),
        ),
        one("_core.payload:decode_result", STORED, JSON_SERIALIZER),
        one("_core.payload:decode_progress", STORED | st.none()),
        one("_core.payload:stored_text", STORED),
        (
            "_core.record:JobRecord.parse",
            Decoder(lambda fields: of("_core.record:JobRecord.parse")("1", fields), RECORDS),
        ),
        one(
            "_core.job_options:read_stored_options",
            as_json(["attempts", "backoff", "delay", "ordering", "removeOnFail"]) | JSON,
        ),
        one("_core.job_options:JobOptions.parse", VALUES),
        one("_core.queue_options:JobSpec.parse", VALUES),
        one("_core.names:parse_job_id", VALUES),
        one(
            "_features.backup.manifest:parse_manifest",
            JSON_VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60),
        ),
        (
            "_features.backup.calls:unpack_bytes",
            Decoder(Call("f", "k", (), of("_features.backup.calls:unpack_bytes")).read, PACKED),
        ),
        one("_core.fallbacks:read_fallbacks", VALUES),
        one("_core.headers:read_headers", VALUES),
        one("_core.tags:read_tags", VALUES),
        (
            "_partitions.stored:parse_layout",
            Decoder(
                lambda text: of("_partitions.stored:parse_layout")("q", text),
                as_json(["version", "names"]) | STORED,
            ),
        ),
        one("_core.logs:parse_log_line", TEXT | st.sampled_from(["[ERROR] ", "[WARNING]x", "[DEBUG]  y"])),
        one(
            "_features.failed_attempts:read_failed_attempts",
            STORED | st.lists(JSON_VALUES, max_size=9).map(lambda items: "\n".join(map(json.dumps, items))),
        ),
        one("_features.iteration:read_cursor", TEXT | as_json(["cursor", "done"])),
        one("_features.metrics_by_name:read_metrics_by_name_setting", st.none() | st.binary(max_size=60)),
        one("_features.timeline:read_timeline", STORED, st.integers()),
        one("_features.timeline:read_timeline_setting", st.none() | st.binary(max_size=60)),
        one("_features.failure_policy:read_failure_policy", st.none() | st.binary(max_size=60)),
        one("_features.failure_policy:read_attempt_history", st.none() | st.binary(max_size=60)),
        one("_features.suspend:parse_signals_field", JSON | st.none()),
        one("_job.typed_tasks:Resolved.read_own_keys", JSON | st.none()),
        one(
            "_features.suspend:parse_signals",
            st.lists(as_json(["name", "data", "receivedAt"]) | JSON, max_size=3),
        ),
        one("_features.suspend:_parse", JSON),
        one("_features.usage:read_amounts", JSON | st.none()),
        one("_features.usage:read_usage", FIELDS | RECORDS | st.none()),
        one(
            "_features.usage:read_budget",
            RECORDS.map(lambda fields: {k: v for k, v in fields.items() if v is not None}),
        ),
        one("_features.usage_summaries:decode_name", st.binary(max_size=40)),
        one(
            "_features.flows.job_api:_names",
            st.binary(max_size=60) | JSON.map(lambda text: text.encode(errors="replace")) | st.none(),
        ),
        (
            "_features.schedulers.entry:Entry",
            Decoder(
                scheduler,
                JSON
                | as_json(
                    [
                        "pattern",
                        "every",
                        "nextRun",
                        "lastRun",
                        "template",
                        "tz",
                        "startDate",
                        "endDate",
                        "limit",
                        "misfire",
                        "dayMatch",
                        "overlap",
                        "buffered",
                    ]
                ),
            ),
        ),
        (
            "_features.vectors:hits_of",
            Decoder(lambda value: of("_features.vectors:hits_of")(value, "s"), VALUES),
        ),
        (
            "_features.vectors:vector_fields_of",
            Decoder(of("_features.vectors:vector_fields_of"), VALUES),
        ),
        (
            "_client.event_reader:event_of",
            Decoder(
                lambda value: of("_client.event_reader:event_of")(*value),
                st.tuples(st.binary(max_size=30), st.lists(PAIRS, max_size=4)),
            ),
        ),
        (
            "_client.connect_errors:_from_reply",
            Decoder(
                lambda value: of("_client.connect_errors:_from_reply")(config_of(ConnectionOptions("h")), value),
                st.binary(max_size=80) | st.sampled_from([b"-NOAUTH x", b"+PONG\r\n", b"-", b"-\r\n"]),
            ),
        ),
        (
            "_features.leases.tokens:decode_token",
            Decoder(
                lambda text: of("_features.leases.tokens:decode_token")("glide", "q", text),
                VALUES | TEXT | LEASE_TOKENS,
            ),
        ),
        # Replies of our functions.
        *((f"call {each.function}", Decoder(Call(each.function, "k", (), each.read).read, PACKED)) for each in CALLS),
        one(
            "_features.client_workers:read_client_worker",
            st.binary() | JSON.map(lambda text: text.encode("utf-8", "replace")),
        ),
        # Texts of users.
        one("_client.connection_url:parse_url", URLS | VALUES),
        one("_client.connection_url:parse_addresses", URLS | VALUES),
        one("_client.connection_url:Address.parse", TEXT | VALUES),
        one("_client.connection_options:ConnectionOptions.from_url", URLS),
        one("_client.connection_options:ConnectionOptions.parse", URLS | VALUES),
        one("_features.schedulers.cron:parse_cron", CRON, "and"),
        (
            "_core.command_line:parse_duration",
            Decoder(
                of("_core.command_line:parse_duration"),
                TEXT | st.from_regex(r"\A\d{1,400}(\.\d+)?(ms|s|m|h)\Z"),
                (GlideMQError, argparse.ArgumentTypeError),
            ),
        ),
        (
            "_core.command_line:parse_port",
            Decoder(
                of("_core.command_line:parse_port"),
                TEXT | st.from_regex(r"\A\d{1,5000}\Z"),
                (GlideMQError, argparse.ArgumentTypeError),
            ),
        ),
        (
            "_worker.command.arguments:parse_size",
            Decoder(
                of("_worker.command.arguments:parse_size"),
                TEXT | st.from_regex(r"\A\d{1,400}[KMG]i?B?\Z"),
                (GlideMQError, argparse.ArgumentTypeError),
            ),
        ),
        one("_worker.sandbox.target:parse_target", TEXT),
        command("_worker.command.arguments:read_arguments", of("_worker.command.arguments:read_arguments")),
        command("library:_parser", lambda arguments: of("library:_parser")().parse_args(arguments)),
        command("proxy.__main__:_parser", lambda arguments: proxy_command._parser().parse_args(arguments)),
        command("dashboard.__main__:_parser", lambda arguments: dashboard_command._parser().parse_args(arguments)),
        (
            "dashboard.filters:parse_filter",
            Decoder(
                lambda text: of("dashboard.filters:parse_filter")(text, None),
                TEXT | TEXT.map(lambda text: f"since:{text}") | TEXT.map(lambda text: f"data:{text}={text}"),
            ),
        ),
        (
            "proxy.pages:open_cursor",
            Decoder(
                lambda text: of("proxy.pages:open_cursor")("place", text),
                TEXT | st.none() | TEXT.map(lambda text: sealed(text)),
            ),
        ),
        one("_worker.sandbox.framing:_unpack", PACKED),
        # Options of Spark.
        decode_options("spark.options:WriteOptions.parse", False),
        decode_options("spark.read_options:ReadOptions.parse", False),
        one("spark.columns:_plain", st.lists(STORED | st.none(), max_size=3), "data", "json"),
        one("spark.serializers:read_data", STORED, "msgpack"),
        one("spark.serializers:read_result", STORED, "msgpack"),
    ]
)


def sealed(text: str) -> str:
    try:
        return seal_cursor("place", text)
    except ValueError:
        return text


ELSEWHERE: dict[str, set[str]] = {
    "written by the dashboard itself, under a random id": {"_operate.job_actions:_Place.parse"},
    "part of MSGPACK_SERIALIZER": {"_core.payload:_unpack"},
    "arguments of the application, not data from outside": {
        "_core.checked_options:parse_nested",
        "_features.broadcast:parse_subjects",
        "_features.budgets:parse_budget",
        "_core.queue_options:parse_dead_letter_queue",
        "_core.queue_options:parse_durable",
        "_core.deduplication:Deduplication.parse",
        "_core.fallbacks:parse_fallbacks",
        "_core.fallbacks:_parse",
        "_features.flows.definition:FlowJob.parse",
        "_features.many_queues:parse_queues",
        "_core.headers:parse_headers",
        "_core.tags:parse_tags",
        "_core.tags:parse_tags_filter",
        "_core.queue_options:parse_middleware",
        "_features.flows.definition:DagNode.parse",
        "_core.job_references:parse_dependencies",
        "_core.job_references:parse_parent",
        "_core.limits:Ordering.parse",
        "_core.retention:parse_retention",
        "_core.retries:Backoff.parse",
        "_features.vectors:VectorField.parse",
        "_worker.options:parse_failure_log",
        "gateway.webhooks.addresses:parse_networks",
        "_client.connection_url:Address._from_parts",
        "_core.checked_options:OptionValue.from_wire",
        "spark.options:Given._from_parts",
        "spark.columns:read_columns",
    },
    "part of a decoder above": {
        "_core.retries:Backoff.read",
        "_features.schedulers.cron:_read",
        "_features.schedulers.cron:_read_token",
        "_features.leases.lease:Lease.from_token",
        "sync.driving:LeaseTwin.from_token",
        "_api.adds:Plan._read_reply",
        "_job.job:Job._decode_result",
        "_job.job:Job._from_record",
        "_features.schedulers.queue_api:read_scheduler",
        "_job.typed_tasks:Resolved.read",
        "_job.typed_tasks:Resolved.read_result",
        "_client.connect_errors:_from_text",
        "_client.connect_errors:_is_alert",
        "_features.staged_writes:_reports",
        "_worker.sandbox.framing:unpack_error",
        "_core.calls:Call.read",
        "_features.streams.queue_api:ChunkWatch._wake",
    },
    "reads the reply of a declared call, all of which are tried": {
        "_core.calls:Declaration.read",
        "_core.calls.reading:_workers",
        "_features.job_batches.calls:_numbers",
        "_features.limits:_group",
        "_features.outbox:_read",
        "_features.remote_control:_texts",
        "_features.usage:_summed",
    },
    "reads a file, a module or the server, and decodes with the functions above": {
        "_client.glide_config:_read",
        "_client.connect_errors:_from_server",
        "_client.library_loading:load_arguments",
        "_client.glide_faults:read_replies_in",
        "_features.consistency.checking:GroupScan.read_all",
        "_features.consistency.checking:GroupScan._read_without_record",
        "_worker.command.target:load_workers",
        "integrations.jupyter:load_ipython_extension",
        "_worker.sandbox.child:load",
        "_worker.sandbox.target:load_target",
        "_worker.sandbox.target:_load_module",
        "_worker.sandbox.target:_load_file",
        "spark.events_reader:EventsReader.read",
        "spark.counts_reader:CountsReader.read",
        "spark.reader:JobsReader.read",
        "spark.results_reader:ResultsReader.read",
        "spark.reports:WritesReader.read",
        "telemetry.prometheus:QueueCollector._read",
        "sync.queue_twin:Queue.read_stream",
        "_job.contents:JobContents._from_state",
        "_worker.failure_log:_from_the_handler_on",
    },
}


# -- the tests ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("place", DECODERS)
def test_a_result_or_a_typed_error(place: str):
    decoder = DECODERS[place]

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
    @given(decoder.inputs)
    def decode(value: Any):
        with contextlib.suppress(*decoder.errors):
            decoder.decode(value)

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
    "_client.connection_url:parse_url": ["valkey://" + "h," * 500_000, "valkey://h?" + "a=b&" * 250_000],
    "_core.job_options:read_stored_options": ['{"attempts":' + "9" * 1_000_000 + "}"],
}


@pytest.mark.parametrize(
    "place",
    # It makes half a million addresses, which takes seconds.
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
    others = set[str]().union(*ELSEWHERE.values())
    assert found - DECODERS.keys() - others == set(), "add them to DECODERS, or to ELSEWHERE with the reason"
    assert others - found == set(), "these do not exist"
