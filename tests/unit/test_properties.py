"""Any options, times, keys, records and URLs: what holds for all of them (tables/ has the single ones)."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from glidemq_py import Backoff, ConnectionOptions, JobOptions, KeepJobs, Queue, Worker
from glidemq_py.errors import GlideMQValidationError
from tests.inside import (
    MAX_DURATION_MS,
    MAX_EPOCH_MS,
    QueueKeys,
    check_connection,
    connection_options,
    epoch_ms,
    read_stored_options,
    record,
    split_member,
    to_ms,
)
from tests.unit.test_tables import SECRET, shown_by

VALUES = {
    "delay": st.integers(0, MAX_DURATION_MS),
    "attempts": st.integers(0, 1_000_000),
    "backoff": st.builds(
        Backoff,
        st.sampled_from(["fixed", "exponential", "mine"]),
        st.integers(0, 10**6),
        jitter=st.floats(0, 1),
    ),
    "job_id": st.from_regex(r"[a-z][a-zé0-9_-]{0,20}", fullmatch=True),
    "priority": st.integers(0, 2047),
    "lifo": st.booleans(),
    "ttl": st.integers(1, MAX_DURATION_MS),
    "timeout": st.integers(1, MAX_DURATION_MS),
    "remove_on_complete": st.booleans() | st.integers(1, 10**6) | st.builds(KeepJobs, age=st.integers(1, 10**6)),
    "remove_on_fail": st.booleans() | st.integers(1, 10**6) | st.builds(KeepJobs, count=st.integers(1, 10**6)),
    "lock_duration": st.integers(1000, 86_400_000),
}
GIVEN = st.fixed_dictionaries({}, optional=VALUES).filter(
    lambda given: not (given.get("lifo") and given.get("priority"))
)


@given(GIVEN)
def test_every_accepted_option_survives_storage(given_options):
    options = JobOptions.parse(given_options)
    assert read_stored_options(options.to_wire_json()) == options


@given(GIVEN, GIVEN)
def test_merging_is_merging_of_mappings(defaults, overrides):
    assume(not ((defaults | overrides).get("lifo") and (defaults | overrides).get("priority")))
    merged = JobOptions.merge(JobOptions.parse(defaults), JobOptions.parse(overrides))
    if overrides.get("attempts", 2) < 2 and "backoff" not in overrides:
        defaults.pop("backoff", None)
    assert merged == JobOptions.parse(defaults | overrides)


@given(
    st.sampled_from(["fixed", "exponential"]),
    st.integers(0, MAX_DURATION_MS),
    st.floats(0, 1),
    st.integers(0, 1_000_000),
    st.floats(0, 1, exclude_max=True),
)
def test_every_delay_is_an_int_within_bounds(kind, delay, jitter, attempts_made, draw):
    value = Backoff(kind, delay, jitter=jitter).compute(attempts_made, lambda: draw)
    assert type(value) is int
    assert delay <= value <= MAX_DURATION_MS


@given(st.integers(0, MAX_DURATION_MS))
def test_milliseconds_are_unchanged(ms):
    assert to_ms("delay", ms) == ms
    assert to_ms("delay", timedelta(milliseconds=ms)) == ms


@given(st.timedeltas(timedelta(microseconds=1), timedelta(days=3650)))
def test_positive_timedelta_is_rounded_up(value):
    ms = to_ms("delay", value, minimum=1)
    assert timedelta(milliseconds=ms - 1) < value <= timedelta(milliseconds=ms)


@given(st.integers(0, MAX_EPOCH_MS))
def test_an_instant_in_milliseconds(ms):
    assert epoch_ms(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)) == ms


names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="{}:*?[]\\"), min_size=1, max_size=100
)
prefixes = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="{}*?[]\\"), min_size=1, max_size=100
)


@given(prefixes, names, names)
def test_every_key_carries_the_queue_as_hash_tag(prefix, name, job_id):
    keys = QueueKeys(prefix, name)
    for key in (*keys.static, keys.job(job_id), *keys.satellites(job_id), keys.worker("w")):
        assert key[key.index("{") + 1 : key.index("}")] == name


@given(prefixes, names, names)
def test_members_are_split_where_they_were_joined(prefix, name, job_id):
    keys = QueueKeys(prefix, name)
    assert split_member(keys.member(job_id)) == (keys.base, job_id)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "state",
                "timestamp",
                "attemptsMade",
                "priority",
                "stacktrace",
                "id",
                "progress",
                "finishedOn",
                "opts",
                "lifo",
                "revoked",
                "parentIds",
                "tpmTokens",
                "cost",
            ]
        )
        | st.text(),
        st.none() | st.text() | st.sampled_from(["-1", "1e5", ".", "+", "--", "[]", "null", "-0", "9" * 30]),
    )
)
def test_reading_never_raises(fields):
    assert record.JobRecord.parse("1", fields).id == "1"


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
        if not (error.option.startswith("tls_") and connection_options.is_clearly_path(error.value)):
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
