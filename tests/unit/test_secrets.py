"""A password is in no repr, error, help text or span of the package, however the connection was given."""

import contextlib
import io
import traceback
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py import (
    ConnectionOptions,
    GlideMQError,
    Queue,
    QueueEvents,
    library,
)
from glidemq_py.proxy.__main__ import main as proxy_main
from tests.inside import read_arguments

SECRET = "hunter2Secret"
URL = f"valkey://user:{SECRET}@h:6379?tls_insecure=true".replace("valkey", "valkeys")
TOKEN = f"{SECRET}-token-that-is-long-enough"


def test_repr_of_spark_options():
    pytest.importorskip("pyspark")
    from glidemq_py.spark.options import WriteOptions
    from glidemq_py.spark.read_options import ReadOptions

    for value in (
        WriteOptions.parse({"queue": "q", "url": URL, "jobName": "n"}, streaming=False),
        ReadOptions.parse({"queue": "q", "url": URL}, streaming=False),
    ):
        assert SECRET not in f"{value!r} {value}"


MUTATIONS = st.lists(st.tuples(st.integers(0, 60), st.text(min_size=0, max_size=3)), max_size=4)


@given(st.sampled_from([f"valkey://user:{SECRET}@h:6379/0?client_name=a", f"valkeys+cluster://:{SECRET}@a:1,b:2",
                        f"redis://{SECRET}@h", f"user:{SECRET}@h:1"]), MUTATIONS)  # fmt: skip
def test_errors_about_a_damaged_url(url: str, mutations: list[tuple[int, str]]):
    head, _, tail = url.partition(SECRET)
    for at, text in mutations:
        place = at % (len(head) + len(tail) + 1)
        if place <= len(head):
            head = head[:place] + text + head[place + 1 :]
        else:
            tail = tail[: place - len(head)] + text + tail[place - len(head) + 1 :]
    for use in (ConnectionOptions.from_url, lambda given: Queue("q", given), lambda given: QueueEvents("q", given)):
        shown = outcome(partial(use, head + SECRET + tail))
        # A path or a user name is no secret; a password is.
        assert f":{SECRET}" not in shown
        assert SECRET not in shown.partition("Error")[2]


def outcome(attempt: Callable[[], object]) -> str:
    """Return the repr of a result, or all that an error shows."""
    try:
        return repr(attempt())
    except GlideMQError as error:
        return f"Error {error} {error!r} {vars(error)} {''.join(traceback.format_exception(error))}"


@pytest.mark.parametrize(
    "run",
    [
        lambda: read_arguments(["--help"]),
        lambda: library.main(["--help"]),
        lambda: library.main(["check", "--help"]),
        lambda: proxy_main(["--help"]),
    ],
    ids=["worker", "library", "library check", "proxy"],
)
def test_help_shows_no_environment(run: Callable[[], object], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLIDEMQ_URL", URL)
    monkeypatch.setenv("GLIDEMQ_PROXY_TOKENS", TOKEN)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        run()
    assert "usage" in out.getvalue()
    assert SECRET not in out.getvalue()
