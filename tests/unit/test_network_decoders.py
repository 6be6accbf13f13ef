"""What the gateway, the dashboard and direct connections decode from the network: a result or a typed error.

`test_decoders.py` lists the other decoders. Frames, texts and headers come from clients that may not be authenticated.
"""

import asyncio
import contextlib
import ipaddress
import json
import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from glidemq_py._web.clients import NotAllowedError, check_site, digest, is_authorized
from glidemq_py.gateway.addresses import check_url, client_address
from glidemq_py.gateway.commands import COMMANDS
from glidemq_py.gateway.http_api import _query_of, _queue_of, _RefusedError
from glidemq_py.gateway.http_routes import json_text, json_value
from glidemq_py.gateway.job_ids import queue_number
from glidemq_py.gateway.session import check_fields
from glidemq_py.gateway.table import CommandError
from glidemq_py.gateway.values import MAX_UNAUTHENTICATED_FRAME, FrameReader, InvalidValueError, frame_of, value_of
from glidemq_py.gateway.web_socket import EventStream
from glidemq_py.gateway.webhook_registry import _webhook, check_secret
from tests.inside import direct as connections
from tests.inside import failures
from tests.unit.test_decoders import EXAMPLES, JSON, PACKED, TEXT, VALUES, as_json

FREE_BYTES = 8 * 2**20
NETWORKS = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fc00::/7"))
URLS = TEXT | st.from_regex(r"\A(https?|ftp)://[ -~]{0,60}\Z") | st.sampled_from(
    ["http://" + "a." * 5_000, "http://[" + ":" * 5_000, "http://[::ffff:7f00:1]", "http://0x7f.1", "http://\udcff"]
)  # fmt: skip
ADDRESSES = TEXT | st.ip_addresses().map(str)
LATIN = TEXT.map(lambda text: text.encode("latin-1", "replace").decode("latin-1"))
HEADERS = st.dictionaries(
    st.sampled_from(["host", "origin", "sec-fetch-site", "authorization"]),
    LATIN | st.sampled_from(["localhost:80", "http://localhost:80", "http://[", "Bearer \xff", "same-origin"]),
)

fuzzed = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@contextlib.contextmanager
def bounded(size: int) -> Iterator[None]:
    """Fail if the memory that is taken meanwhile exceeds 100 times the input and a constant."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * size + FREE_BYTES


# -- frames -------------------------------------------------------------------------------------------------------


@fuzzed
@given(st.lists(st.binary(max_size=40), max_size=6), st.binary(max_size=10), st.data())
def test_frames_do_not_depend_on_how_their_bytes_arrive(values: list[bytes], rest: bytes, data: st.DataObject):
    stream = b"".join(struct.pack(">I", len(value)) + value for value in values) + rest
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    whole, pieces = FrameReader(1_000), FrameReader(1_000)
    found = whole.feed(stream)
    assert found[: len(values)] == values
    assert [
        frame for a, b in zip([0, *cuts], [*cuts, None], strict=True) for frame in pieces.feed(stream[a:b])
    ] == found
    assert (pieces.oversized, pieces.has_partial) == (whole.oversized, whole.has_partial)


def test_header_of_a_large_frame_takes_no_memory():
    reader = FrameReader(MAX_UNAUTHENTICATED_FRAME)
    with bounded(4):
        assert reader.feed(b"\xff\xff\xff\xff") == []
    assert reader.oversized == 2**32 - 1
    assert reader.feed(b"x" * 100) == []
    assert not reader.has_partial


@fuzzed
@given(PACKED)
def test_value_of_a_frame(payload: bytes):
    with bounded(len(payload)):
        try:
            value = value_of(payload)
        except InvalidValueError:
            return
        assert value_of(frame_of(value)[4:]) is not Ellipsis


@fuzzed
@given(st.sampled_from(sorted(COMMANDS)), st.data())
def test_fields_of_commands(name: str, data: st.DataObject):
    """Fields have values of any type: the command is accepted, or rejected with a message for its client."""
    command = COMMANDS[name]
    names = [field.name for field in command.fields] or ["none"]
    fields = data.draw(st.dictionaries(st.sampled_from(names) | TEXT, VALUES, max_size=5))
    with contextlib.suppress(CommandError):
        assert {field.name for field in command.fields} == set(check_fields(command, fields))


# -- HTTP, WebSockets, events -------------------------------------------------------------------------------------


@fuzzed
@given(JSON | st.binary(max_size=60))
def test_json_texts(text: str | bytes):
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    with bounded(len(content)):
        try:
            value = json_value(content)
        except ValueError:
            return
        assert isinstance(json.loads(json_text({"ok": True, "value": value})), dict)


@fuzzed
@given(st.binary(max_size=80) | st.sampled_from([b"a=1&" * 5_000, b"%" * 5_000, b"=" * 5_000, b"&" * 5_000]))
def test_query_strings(text: bytes):
    with contextlib.suppress(_RefusedError):
        assert all(len(pair) == 2 for pair in _query_of({"query_string": text}))


@fuzzed
@given(TEXT)
def test_names_of_queues_in_paths(name: str):
    with contextlib.suppress(CommandError):
        assert _queue_of(name)


@fuzzed
@given(TEXT | st.from_regex(r"\A\d{1,30}-\d{1,30}(:.{0,20})?\Z") | st.sampled_from(["9" * 5_000 + "-1"]))
def test_id_of_the_last_event(text: str):
    state: Any = mock.Mock()
    assert EventStream(state, "q", text)._last is None or text[0].isdigit()


@fuzzed
@given(HEADERS)
def test_headers_of_requests(found: dict[str, str]):
    headers = Headers(found)
    try:
        check_site(headers, ["localhost"])
    except NotAllowedError:
        pass
    else:
        assert found.get("host", "").lower().startswith("localhost")
    assert not is_authorized(headers, [digest(b"a-token-that-nobody-guesses")])


@fuzzed
@given(ADDRESSES, st.lists(ADDRESSES, max_size=4).map(",".join))
def test_addresses_of_clients(peer: str, forwarded: str):
    """An address outside of the proxies' networks is believed only about itself."""
    found = client_address(peer, forwarded, NETWORKS)
    direct = client_address(peer, "", NETWORKS)
    if direct is None or not any(direct in network for network in NETWORKS):
        assert found == direct


# -- webhooks, ids ------------------------------------------------------------------------------------------------


@fuzzed
@given(URLS)
def test_urls_of_webhooks(url: str):
    with contextlib.suppress(CommandError):
        check_url(url, ())


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://0x7f.1/", "http://2130706433/", "http://[::1]/", "http://[::ffff:127.0.0.1]/",
        "http://169.254.169.254/", "http://[64:ff9b::7f00:1]/", "http://localhost./", "http://a.internal/",
        "http://user@example.com/", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_urls_into_the_network_of_the_gateway_are_rejected(url: str):
    with pytest.raises(CommandError):
        check_url(url, ())


@fuzzed
@example("\ud800")
@given(TEXT | TEXT.map(lambda text: "whsec_" + text))
def test_secrets_of_webhooks(secret: str):
    with contextlib.suppress(CommandError):
        assert check_secret(secret) == secret


@fuzzed
@given(JSON | as_json(["url", "events", "queue", "secret", "created", "since", "enabled"]))
def test_stored_webhooks(text: str):
    found = _webhook(text)
    assert found is None or isinstance(found.url, str)


@fuzzed
@given(TEXT | st.uuids().map(str))
def test_ids_of_jobs(job_id: str):
    assert queue_number(job_id) is None or queue_number(job_id) >= 0  # type: ignore[operator]


# -- replies on direct connections --------------------------------------------------------------------------------

RESP = st.binary(max_size=80) | st.sampled_from(
    [b"*-2\r\n", b"$-5\r\n", b"*1\r\n" * 50, b"%1\r\n" * 50, b":" + b"9" * 400 + b"\r\n", b"+" + b"x" * 5_000, b"_\r\n",
     b"#x\r\n", b",nan\r\n", b"(" + b"9" * 400 + b"\r\n", b"=3\r\nx\r\n", b">2\r\n+a\r\n+b\r\n", b"!3\r\nERR\r\n"]
)  # fmt: skip


def end_of(data: bytes, commands: int) -> tuple[list[asyncio.Future[Any]], bool]:
    """Send commands on a connection without a server, and receive bytes; return their futures, and whether it ended."""
    loop = asyncio.new_event_loop()
    try:
        transport = mock.Mock()
        transport.get_extra_info.side_effect = lambda name: None if name == "socket" else object()
        ended = mock.Mock()
        connection = connections.DirectConnection(loop, ended, mock.Mock())
        connection.connection_made(transport)
        futures = [connection.send(("GET", "x"), 100) for _ in range(commands)]
        connection.data_received(data)
        for future in futures:
            if future.done():
                future.exception()  # is retrieved
        return futures, ended.called
    finally:
        loop.close()


@fuzzed
@given(RESP, st.integers(0, 3))
def test_replies_on_direct_connections(data: bytes, commands: int):
    """Bytes are replies to the commands, wait for more bytes, or end the connection and with it every command."""
    futures, has_ended = end_of(data, commands)
    assert not has_ended or all(future.done() for future in futures)


@pytest.mark.parametrize("data", [b"?\r\n", b"+OK\r\n+OK\r\n"], ids=["malformed", "without a command"])
def test_unexpected_bytes_end_a_direct_connection(data: bytes):
    futures, has_ended = end_of(data, 1)
    assert has_ended
    assert futures[0].done()


def owner(reply: str) -> tuple[str, int] | None:
    """Return the node that a reply names as the owner of slot 3999."""
    return failures.moved_to(reply, "here").get(3_999)


@fuzzed
@given(st.text(max_size=80) | st.from_regex(r"MOVED [0-9]{1,6} \S{0,20}:[0-9]{0,6}"))
def test_reply_about_a_slot_of_a_cluster(reply: str):
    owner(reply)


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("MOVED 3999 127.0.0.1:6381", ("127.0.0.1", 6381)),
        ("MOVED 3999 fe80::1:6381", ("fe80::1", 6381)),
        ("MOVED 3999 ?:6381", None),
        ("MOVED 3999 :6381", ("here", 6381)),
        ("ASK 3999 127.0.0.1:6381", None),
    ],
)
def test_owner_of_a_slot_of_a_cluster(reply: str, found: tuple[str, int] | None):
    assert owner(reply) == found
