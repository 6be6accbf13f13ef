"""URLs of any text: a valid connection, or an error that shows no password."""

from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py import ConnectionOptions, Queue, Worker
from glidemq_py._client.connection_url import is_clearly_path
from glidemq_py.errors import GlideMQValidationError
from tests.inside import check_connection
from tests.unit.test_tables import SECRET, shown_by

PIECES = [
    "valkey://", "valkeys+cluster:/", "u:", SECRET, "@", "h", ":6379", ",", "/0", "/", "?", "request_timeout=5",
    "&client_name=", "#", "%", "=", " ", "\n", "[", "]", "'", "x", "?tls_ca=", "read_from",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.lists(st.sampled_from(PIECES), max_size=8))
def test_no_error_of_any_mangled_url_shows_the_password(before: list[str], after: list[str]):
    url = "".join([*before, SECRET, *after])
    shown = ""
    try:
        options = ConnectionOptions.from_url(url)
    except GlideMQValidationError as error:
        # Shown if it is clearly the path of a file. Text after the host is no password.
        if not (error.option.startswith("tls_") and is_clearly_path(error.value)):
            shown = shown_by(error)
    else:
        public = [*(address.host for address in options.addresses), options.username or "", options.client_name or ""]
        if not any(SECRET in text for text in public):
            shown = repr(options) + str(options)
    assert SECRET not in shown


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.lists(st.sampled_from(PIECES), max_size=8))
def test_no_error_shows_the_password_of_a_url_in_the_wrong_place(before: list[str], after: list[str]):
    url = "".join(["valkey://u:", *before, SECRET, *after])
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
        assert SECRET not in shown_by(caught.value)


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
