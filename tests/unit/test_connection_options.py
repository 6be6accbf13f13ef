"""Connection options and URLs: accepted and rejected values; passwords are never shown."""

import re
import traceback
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from glide_shared.config import (
    GlideClientConfiguration,
    GlideClusterClientConfiguration,
    ReadFrom,
    ServiceType,
)
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py import Address, ConnectionOptions, IamCredentials, Queue, Worker
from glidemq_py._client.connection_url import is_clearly_path
from glidemq_py.errors import GlideMQValidationError, UnknownOptionError
from tests.inside import check_connection, config_of

PEM = b"-----BEGIN CERTIFICATE-----\n"
IAM = IamCredentials(username="u", cluster_name="c", region="eu-central-1")


def test_defaults():
    options = ConnectionOptions()
    assert options.addresses == (Address("127.0.0.1", 6379),)
    assert (options.request_timeout, options.connection_timeout) == (30_000, 5_000)
    assert (options.cluster, options.tls, options.database_id, options.read_from) == (
        False,
        False,
        0,
        "primary",
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("localhost", Address("localhost")),
        ("localhost:7000", Address("localhost", 7000)),
        ("10.0.0.1:1", Address("10.0.0.1", 1)),
        ("[::1]:7000", Address("::1", 7000)),
        ("[::1]", Address("::1")),
        ("fe80::1", Address("fe80::1")),
        (("h", 7), Address("h", 7)),
        (Address("h"), Address("h")),
    ],
)
def test_addresses(written, expected):
    assert Address.parse(written) == expected
    assert Address.parse(str(expected)) == expected


@pytest.mark.parametrize(
    "written",
    [
        "",
        "h:",
        "h:x",
        "h:0",
        "h:65536",
        "[::1",
        "[::1]7",
        "a b",
        "h:99999999",
        7,
        None,
        (),
        ("h",),
        ("h", "7"),
        ("h", True),
        "a/b",
    ],
)
def test_bad_addresses(written):
    with pytest.raises(GlideMQValidationError, match="addresses"):
        Address.parse(written)


@pytest.mark.parametrize("written", [[], {}, b"h", 7, None, [None], ("127.0.0.1", 6379)])
def test_bad_address_lists(written):
    with pytest.raises(GlideMQValidationError, match="addresses"):
        ConnectionOptions(written)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("valkey://localhost", ConnectionOptions(["localhost"])),
        ("redis://localhost:7000/", ConnectionOptions(["localhost:7000"])),
        ("valkeys://h", ConnectionOptions(["h"], tls=True)),
        ("rediss://h/3", ConnectionOptions(["h"], tls=True, database_id=3)),
        ("valkey+cluster://h1:1,h2:2", ConnectionOptions(["h1:1", "h2:2"], cluster=True)),
        ("valkeys+cluster://h/0", ConnectionOptions(["h"], cluster=True, tls=True)),
        ("VALKEY://h", ConnectionOptions(["h"])),
        ("valkey://[::1]:7,h2", ConnectionOptions(["[::1]:7", "h2"])),
        ("valkey://u:p@h", ConnectionOptions(["h"], username="u", password="p")),
        ("valkey://:p%40%2F%3A@h", ConnectionOptions(["h"], password="p@/:")),
        ("valkey://u:a:b@h", ConnectionOptions(["h"], username="u", password="a:b")),
        (
            "valkey://h?request_timeout=1000&connection_timeout=7&inflight_requests_limit=9&client_name=me",
            ConnectionOptions(
                ["h"],
                request_timeout=1000,
                connection_timeout=timedelta(milliseconds=7),
                inflight_requests_limit=9,
                client_name="me",
            ),
        ),
        (
            "valkey://h?read_from=az_affinity&client_az=a",
            ConnectionOptions(["h"], read_from="az_affinity", client_az="a"),
        ),
        ("valkeys://h?tls_insecure=true", ConnectionOptions(["h"], tls=True, tls_insecure=True)),
        ("valkey://h?busy_poll=false", ConnectionOptions(["h"], busy_poll=False)),
        ("valkey://h?direct=false", ConnectionOptions(["h"], direct=False)),
        (
            "valkeys://h?tls_ca=/etc/ca.pem&tls_cert=/etc/cert.pem&tls_key=/etc/key.pem",
            ConnectionOptions(
                ["h"], tls=True, tls_ca=Path("/etc/ca.pem"), tls_cert="/etc/cert.pem", tls_key="/etc/key.pem"
            ),
        ),
        ("valkey://h?allow_eviction=true", ConnectionOptions(["h"], allow_eviction=True)),
        ("valkey://h?allow_no_aof=1", ConnectionOptions(["h"], allow_no_aof=True)),
    ],
)
def test_urls(url, expected):
    assert ConnectionOptions.from_url(url) == expected
    assert ConnectionOptions.parse(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        None,
        7,
        "localhost:6379",
        "http://h",
        "valkey:/h",
        "valkey://",
        "valkey://h,",
        "valkey://h:x",
        "valkey://h/x",
        "valkey://h/0/1",
        "valkey://h/-1",
        "valkey+cluster://h/1",
        "valkey://h#x",
        "valkey://u@h",
        "valkey://h?request_timeout",
        "valkey://h?request_timeout=1.5",
        "valkey://h?request_timeout=0",
        "valkey://h?request_timeout=1&request_timeout=2",
        "valkey://h?read_from=somewhere",
        "valkey://h?read_from=az_affinity",
        "valkey://h?client_az=a",
        "valkey://h?tls_insecure=true",
        "valkey://h?tls_insecure=perhaps",
        "valkey://h?password=x",
        "valkey://h?tls=true",
        "valkey://h?cluster=true",
        "valkey://h?database_id=1",
        "valkey://h?tls_ca=x",
        "valkeys://h?tls_cert=x",
        "valkeys://h?tls_key=x",
        "valkeys://h?tls_ca=",
        "valkey://h?client_name=a%20b",
        "valkey://:p%zz@h",
        "valkey://:%ff@h",
    ],
)
def test_bad_urls(url):
    with pytest.raises(GlideMQValidationError):
        ConnectionOptions.from_url(url)


def test_unknown_query_parameter_is_rejected_with_a_suggestion():
    with pytest.raises(UnknownOptionError, match="did you mean 'request_timeout'"):
        ConnectionOptions.from_url("valkey://h?requestTimeout=5")
    with pytest.raises(UnknownOptionError, match="did you mean 'request_timeout'"):
        ConnectionOptions.parse({"requestTimeout": 5})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"cluster": 1}, "cluster"),
        ({"tls": "yes"}, "tls"),
        ({"username": "u"}, "username"),
        ({"username": ""}, "username"),
        ({"password": ""}, "password"),
        ({"password": b"x"}, "password"),
        ({"password": "\ud800"}, "password"),
        ({"iam": IAM}, "iam"),
        ({"iam": IAM, "username": "u", "tls": True}, "username"),
        ({"iam": IAM, "password": "p", "tls": True}, "password"),
        ({"iam": {"region": "x"}}, "iam"),
        ({"read_from": "replica"}, "read_from"),
        ({"read_from": "az_affinity"}, "read_from"),
        ({"client_az": "a"}, "client_az"),
        ({"request_timeout": 0}, "request_timeout"),
        ({"request_timeout": 1.5}, "request_timeout"),
        ({"connection_timeout": True}, "connection_timeout"),
        ({"inflight_requests_limit": 0}, "inflight_requests_limit"),
        ({"database_id": -1}, "database_id"),
        ({"database_id": 1, "cluster": True}, "database_id"),
        ({"tls_insecure": True}, "tls_insecure"),
        ({"tls_ca": PEM}, "tls_ca"),
        ({"tls_ca": "", "tls": True}, "tls_ca"),
        ({"tls_ca": b"", "tls": True}, "tls_ca"),
        ({"tls_ca": b"no certificate", "tls": True}, "tls_ca"),
        ({"tls_ca": PEM.decode(), "tls": True}, "tls_ca"),
        ({"tls_ca": 7, "tls": True}, "tls_ca"),
        ({"tls_ca": PEM, "tls": True, "tls_insecure": True}, "tls_ca"),
        ({"tls_cert": "cert.pem", "tls_key": "key.pem"}, "tls_cert"),
        ({"tls_cert": "cert.pem", "tls": True}, "tls_cert"),
        ({"tls_key": PEM, "tls": True}, "tls_key"),
        ({"tls_cert": "cert.pem", "tls_key": PEM, "tls": True}, "tls_key"),
        ({"allow_eviction": 1}, "allow_eviction"),
        ({"allow_no_aof": "yes"}, "allow_no_aof"),
        ({"client_name": "a b"}, "client_name"),
        ({"busy_poll": 1}, "busy_poll"),
        ({"direct": 1}, "direct"),
    ],
)
def test_invalid_options_are_rejected_by_name(options, named):
    with pytest.raises(GlideMQValidationError) as caught:
        ConnectionOptions(**options)
    assert caught.value.option == named


@pytest.mark.parametrize(
    "wrong",
    [
        {"cluster_name": ""},
        {"region": None},
        {"username": ""},
        {"service": "s3"},
        {"refresh_interval_seconds": 0},
        {"refresh_interval_seconds": 1.5},
    ],
)
def test_bad_iam_credentials(wrong):
    with pytest.raises(GlideMQValidationError, match=r"option 'iam\."):
        IamCredentials(**{"username": "u", "cluster_name": "c", "region": "r"} | wrong)


def test_iam():
    options = ConnectionOptions(["h"], tls=True, iam=IAM)
    assert options.iam is not None
    assert options.iam.service == "elasticache"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://x", "option 'connection' = 'http://***': must start with one of valkey://, "),
        (f"HTTPS://u:{'hunter2'}@x/y", "option 'connection' = 'https://***': must start with one of valkey://, "),
        ("postgres+hunter2://x", "option 'connection' = ***: must start with one of valkey://, "),
        ("valky://x", "; did you mean valkey://?"),
        ("valkey://h?tls_ca=/etc/ca.pem", "option 'tls_ca' = '/etc/ca.pem': requires 'tls'"),
        ("valkeys://h?tls_cert=client.crt", "option 'tls_cert' = 'client.crt': requires 'tls_key'"),
        ("valkey://u:1?tls_ca=hunter2", "option 'tls_ca' = ***: requires 'tls'"),
        ("valkey://redis:6379/?colour=1", "has the unknown query parameter 'colour'; known: read_from, client_az, "),
        ("valkey://10.0.0.7?tls_cas=1", "has the unknown query parameter 'tls_cas'; did you mean 'tls_ca'?"),
        ("valkey://u:1?hunter2=1", "has an unknown query parameter; known: read_from, "),
        (
            "valkey://u:hunter2",
            "host 1 must be host or host:port, with a port from 1 to 65535; if it is user:password, "
            "@host is missing after it",
        ),
        ("valkey://u:hunter2@h:x", "host 1 must be host or host:port, with a port from 1 to 65535"),
    ],
)
def test_message_shows_values_that_are_not_secret(url: str, message: str):
    with pytest.raises(GlideMQValidationError) as caught:
        ConnectionOptions.from_url(url)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("form", ["{}\n", "{}\r\n", " {}", '"{}"', "'{}'", '{}"'])
def test_quotes_and_line_ends_around_a_url_are_named(form: str):
    with pytest.raises(GlideMQValidationError, match="no quotes, white space or line end around it") as caught:
        ConnectionOptions.from_url(form.format("valkey://user:hunter2@localhost:6379"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", [7, None, [], object()])
def test_invalid_connection_is_rejected(value):
    with pytest.raises(GlideMQValidationError, match="must be a URL"):
        ConnectionOptions.parse(value)


def test_str_is_fit_for_logs():
    options = ConnectionOptions(["h:1", "[::1]:2"], tls=True, username="u", password="hunter2", database_id=3)
    assert str(options) == "valkeys://h:1,[::1]:2/3"


# -- secrets ------------------------------------------------------------------------------------------------


def test_repr_hides_the_password():
    options = ConnectionOptions(
        password="hunter2", tls=True, tls_ca=PEM + b"hunter2", tls_cert=PEM, tls_key=PEM + b"hunter2"
    )
    assert "hunter2" not in repr(options)
    assert "hunter2" not in str(options)


SECRET_TEXT = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"valkey://u:{SECRET_TEXT}@h:x",
        f"valkey://u:{SECRET_TEXT}@h/x",
        f"valkey://u:{SECRET_TEXT}@h#x",
        f"valkey://u:{SECRET_TEXT}@h?nope=1",
        f"valkey://u:{SECRET_TEXT}@h?request_timeout=x",
        f"http://u:{SECRET_TEXT}@h",
        f"valkey://u:a/{SECRET_TEXT}@h",
        f"valkey://u:a/{SECRET_TEXT}",
        f"valkey://u:a?{SECRET_TEXT}@h",
        f"valkey://u:a?x={SECRET_TEXT}@h",
        f"valkey://v@u:a?x={SECRET_TEXT}@h",
        f"valkey://u:a#{SECRET_TEXT}@h",
        f"valkey://u:{SECRET_TEXT}%@h",
        f"valkey://u:{SECRET_TEXT}@h?password={SECRET_TEXT}",
        f"valkey://h?passwd={SECRET_TEXT}",
        f"valkey://h?password={SECRET_TEXT}",
        f"u:{SECRET_TEXT}@h",
        f"valkey://u:{SECRET_TEXT}",
        f"valkey://u:a#{SECRET_TEXT}",
        f"valkey://{SECRET_TEXT}@h",
        f"valkey:/u:{SECRET_TEXT}@h",
        f"valkey://u:1?{SECRET_TEXT}=x",
        f"valkey://u:1?client_name_{SECRET_TEXT}=x",
        f"valkey://u:1?client_name={SECRET_TEXT}%20x",
        f"valkey://u:1?read_from={SECRET_TEXT}",
        f"u:{SECRET_TEXT}:6379",
        SECRET_TEXT,
    ],
)
def test_no_error_shows_the_password(url):
    with pytest.raises(GlideMQValidationError) as caught:
        ConnectionOptions.from_url(url)
    shown = str(caught.value) + repr(caught.value) + repr(caught.value.value)
    assert SECRET_TEXT not in shown
    assert caught.value.__cause__ is None


def test_no_error_of_other_arguments_shows_the_password():
    for build in (
        lambda: ConnectionOptions([f"valkey://u:{SECRET_TEXT}@h"]),
        lambda: ConnectionOptions([("u:" + SECRET_TEXT + "@h", 1)]),
        lambda: ConnectionOptions(password=SECRET_TEXT.encode()),  # type: ignore[arg-type]
        lambda: ConnectionOptions(password=SECRET_TEXT * 1000),
        lambda: ConnectionOptions(password=SECRET_TEXT, username="u", iam=IAM, tls=True),
        lambda: ConnectionOptions(password=SECRET_TEXT, client_name="a b"),
        lambda: ConnectionOptions.parse({"Password": SECRET_TEXT}),
        lambda: ConnectionOptions(iam={"password": SECRET_TEXT}),  # type: ignore[arg-type]
        lambda: ConnectionOptions.parse([("password", SECRET_TEXT)]),  # type: ignore[arg-type]
    ):
        with pytest.raises(GlideMQValidationError) as caught:
            build()
        assert SECRET_TEXT not in str(caught.value) + repr(caught.value)


def shown_by(error: BaseException) -> str:
    value = getattr(error, "value", None)
    return "".join([str(error), repr(error), repr(value), *traceback.format_exception(error)])


PIECES = [
    "valkey://", "valkeys+cluster:/", "u:", SECRET_TEXT, "@", "h", ":6379", ",", "/0", "/", "?", "request_timeout=5",
    "&client_name=", "#", "%", "=", " ", "\n", "[", "]", "'", "x", "?tls_ca=", "read_from",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.lists(st.sampled_from(PIECES), max_size=8))
def test_no_error_of_any_mangled_url_shows_the_password(before: list[str], after: list[str]):
    url = "".join([*before, SECRET_TEXT, *after])
    shown = ""
    try:
        options = ConnectionOptions.from_url(url)
    except GlideMQValidationError as error:
        # Shown if it is clearly the path of a file. Text after the host is no password.
        if not (error.option.startswith("tls_") and is_clearly_path(error.value)):
            shown = shown_by(error)
    else:
        public = [*(address.host for address in options.addresses), options.username or "", options.client_name or ""]
        if not any(SECRET_TEXT in text for text in public):
            shown = repr(options) + str(options)
    assert SECRET_TEXT not in shown


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.lists(st.sampled_from(PIECES), max_size=8))
def test_no_error_shows_the_password_of_a_url_in_the_wrong_place(before: list[str], after: list[str]):
    url = "".join(["valkey://u:", *before, SECRET_TEXT, *after])
    for give in (
        lambda: Queue(url),
        lambda: Queue("q", prefix=url + "*"),
        lambda: check_connection({"url": url}),
        lambda: check_connection(url.encode()),
        lambda: Worker("q", print, concurrency=url),  # type: ignore[arg-type]
        lambda: ConnectionOptions.from_url(url.encode()),  # type: ignore[arg-type]
        lambda: ConnectionOptions.parse({"Url": url}),
        lambda: ConnectionOptions.parse({url: 1}),
        lambda: ConnectionOptions(client_name=url + " "),
        lambda: ConnectionOptions([url + "@"]),
        lambda: ConnectionOptions([("h", url)]),  # type: ignore[list-item]
        lambda: ConnectionOptions([(url, 1)]),
        lambda: ConnectionOptions([url.encode()]),  # type: ignore[list-item]
        lambda: ConnectionOptions(database_id=url),  # type: ignore[arg-type]
        lambda: ConnectionOptions(read_from=url),  # type: ignore[arg-type]
    ):
        with pytest.raises(GlideMQValidationError) as caught:
            give()
        assert SECRET_TEXT not in shown_by(caught.value)


@pytest.mark.parametrize(
    ("written", "suggested"),
    [
        ("127.0.0.1:6379", "valkey://127.0.0.1:6379"),
        ("10.0.0.7", "valkey://10.0.0.7"),
        ("localhost:7000", "valkey://localhost:7000"),
        ("[::1]:6379", "valkey://[::1]:6379"),
        ("db.example.org:6379", "valkey://db.example.org:6379"),
    ],
)
def test_a_url_without_a_scheme_is_rejected_with_a_suggestion(written: str, suggested: str):
    with pytest.raises(GlideMQValidationError, match=re.escape(f"did you mean {suggested}?")):
        ConnectionOptions.from_url(written)
    ConnectionOptions.from_url(suggested)


@pytest.mark.parametrize("written", ["redis:6379", "u:secret", "secret", "u:1234@h"])
def test_possible_password_is_not_repeated(written: str):
    with pytest.raises(GlideMQValidationError, match="has no scheme") as caught:
        ConnectionOptions.from_url(written)
    assert written not in shown_by(caught.value)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
)
def test_any_credentials_travel_percent_encoded(username, password):
    url = f"valkey://{quote(username, safe='')}:{quote(password, safe='')}@h:1"
    options = ConnectionOptions.from_url(url)
    assert (options.username, options.password) == (username, password)


@pytest.mark.slow
@given(st.text())
def test_no_url_raises_anything_else(text):
    for url in (text, f"valkey://{text}", f"valkey://h?{text}"):
        with suppress(GlideMQValidationError):
            ConnectionOptions.from_url(url)


CA = b"-----BEGIN CERTIFICATE-----\n"


def test_default_options():
    config = config_of(ConnectionOptions())
    assert isinstance(config, GlideClientConfiguration)
    assert [(a.host, a.port) for a in config.addresses] == [("127.0.0.1", 6379)]
    assert (config.use_tls, config.credentials, config.read_from) == (False, None, ReadFrom.PRIMARY)
    assert (config.request_timeout, config.advanced_config.connection_timeout) == (30_000, 5_000)  # type: ignore[union-attr]
    assert (config.database_id, config.client_name, config.client_az) == (None, None, None)
    assert config.inflight_requests_limit is None


def test_all_standalone_options():
    options = ConnectionOptions(
        [Address("a", 1), "b:2", ("::1", 3)], tls=True, username="u", password="p", read_from="az_affinity",
        client_az="eu-1a", request_timeout=1_234, connection_timeout=2_345, inflight_requests_limit=77, database_id=4,
        tls_ca=CA, client_name="me",
    )  # fmt: skip
    config = config_of(options)
    assert isinstance(config, GlideClientConfiguration)
    assert [(a.host, a.port) for a in config.addresses] == [("a", 1), ("b", 2), ("::1", 3)]
    assert config.use_tls is True
    assert config.credentials is not None
    assert (config.credentials.username, config.credentials.password) == ("u", "p")
    assert (config.read_from, config.client_az) == (ReadFrom.AZ_AFFINITY, "eu-1a")
    assert (config.request_timeout, config.inflight_requests_limit) == (1_234, 77)
    assert (config.database_id, config.client_name) == (4, "me")
    advanced = config.advanced_config
    assert advanced is not None
    assert advanced.connection_timeout == 2_345
    assert advanced.tls_config is not None
    assert advanced.tls_config.root_pem_cacerts == CA
    assert not advanced.tls_config.use_insecure_tls


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("primary", ReadFrom.PRIMARY),
        ("prefer_replica", ReadFrom.PREFER_REPLICA),
        ("az_affinity", ReadFrom.AZ_AFFINITY),
        ("az_affinity_replicas_and_primary", ReadFrom.AZ_AFFINITY_REPLICAS_AND_PRIMARY),
    ],
)
def test_read_from(name: Any, meant: ReadFrom):
    az = "z" if name.startswith("az") else None
    assert config_of(ConnectionOptions(read_from=name, client_az=az)).read_from is meant


@pytest.mark.parametrize(
    ("service", "meant"), [("elasticache", ServiceType.ELASTICACHE), ("memorydb", ServiceType.MEMORYDB)]
)
def test_iam_and_cluster(service: Any, meant: ServiceType):
    iam = IamCredentials(
        username="u", cluster_name="c", region="eu-west-1", service=service, refresh_interval_seconds=60
    )
    config = config_of(ConnectionOptions("h", cluster=True, tls=True, iam=iam, tls_insecure=True))
    assert isinstance(config, GlideClusterClientConfiguration)
    credentials = config.credentials
    assert credentials is not None
    assert credentials.iam_config is not None
    assert (credentials.username, credentials.password) == ("u", None)
    assert (credentials.iam_config.cluster_name, credentials.iam_config.region) == ("c", "eu-west-1")
    assert (credentials.iam_config.service, credentials.iam_config.refresh_interval_seconds) == (meant, 60)
    assert config.advanced_config is not None
    assert config.advanced_config.tls_config is not None
    assert config.advanced_config.tls_config.use_insecure_tls is True
