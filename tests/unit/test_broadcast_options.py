"""Subjects and patterns, in Python and on the server; options that a broadcast rejects."""

import re
from typing import Any

import pytest

from glidemq_py import (
    Broadcast,
    BroadcastWorker,
    GlideMQValidationError,
    compile_subject_matcher,
    match_subject,
)
from glidemq_py._features.broadcast.options import PublishOptionsDict, lua_patterns
from tests.inside import JobOptionsDict, unsupported_in

CASES = [
    ("a.>", "a", False), ("a.>", "a.b", True), ("a.>", "a.b.c", True), (">", "a", True), (">", "a.b", True),
    ("*", "a", True), ("*", "a.b", False), ("a.*.c", "a.b.c", True), ("a.*.c", "a.b.b.c", False), ("a.*", "a", False),
    ("a.b", "a.b", True), ("a.b", "aXb", False), ("a.b", "a.b.c", False), ("*.>", "a", False), ("*.>", "a.b", True),
    ("a-b.(x)%d.*", "a-b.(x)%d.1", True), ("a-b.(x)%d.*", "ab.(x)%d.1", False), ("ö.*", "ö.ü", True),
    ("a_b", "a_b", True), ("a*", "a*", True), ("a*", "ab", False), ("a.>", "a.", True), ("a.*", "a.", True),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "subject", "matches"), CASES)
def test_matching(pattern: str, subject: str, matches: bool):
    assert match_subject(pattern, subject) is matches
    matcher = compile_subject_matcher(["nothing.here", pattern])
    assert matcher is not None
    assert matcher(subject) is matches


@pytest.mark.parametrize(("pattern", "subject", "matches"), CASES)
def test_the_server_matches_alike(pattern: str, subject: str, matches: bool):
    found = lua_patterns([pattern])
    if found is None:
        assert matches
        return
    # Of Lua's patterns these use `%` before what would be magic, and sets: the same in Python with a backslash.
    as_python = re.sub(r"%(.)", lambda escaped: re.escape(escaped[1]), found[0])
    assert (re.fullmatch(as_python, subject) is not None) is matches


def test_no_pattern_is_no_filter():
    assert compile_subject_matcher([]) is None
    assert compile_subject_matcher(None) is None
    assert lua_patterns([]) is None
    assert lua_patterns(["a", ">"]) is None


@pytest.mark.parametrize("pattern", ["a.>.b", ">.a", "", "a\n"])
def test_invalid_patterns_are_rejected(pattern: str):
    with pytest.raises(GlideMQValidationError):
        match_subject(pattern, "a")
    with pytest.raises(GlideMQValidationError, match=r"subjects\[1\]"):
        BroadcastWorker("b", print, subscription="s", subjects=["a", pattern])


async def nothing(_: Any):
    return None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"subscription": " "}, "subscription"), ({"subscription": ""}, "subscription"),
        ({"subscription": "workers"}, "subscription"), ({"subscription": "a\n"}, "subscription"),
        ({"start_from": "now"}, "start_from"), ({"start_from": 0}, "start_from"), ({"subjects": "a.b"}, "subjects"),
        ({"subjects": [3]}, "subjects[0]"), ({"concurrency": 0}, "concurrency"),
        ({"limiter": {"max": 0, "duration": 1}}, "limiter.max"),
        ({"handler": None}, "handler"), ({"handler": 3}, "handler"), ({"handler": "nowhere"}, "handler"),
        ({"sandbox": {}}, "handler"), ({"handler": "json:dumps", "batch": {"size": 2}}, "batch"),
        ({"batch": {"size": 0}}, "batch.size"), ({"dead_letter_queue": "b"}, "dead_letter_queue"),
        ({"dead_letter_queue": ""}, "dead_letter_queue.name"),
        ({"token_limiter": {"max_tokens": 0, "duration": 1}}, "token_limiter.max_tokens"),
    ],
)  # fmt: skip
def test_workers_refuse(options: Any, named: str):
    with pytest.raises(GlideMQValidationError) as refused:
        BroadcastWorker("b", **{"handler": nothing, "subscription": "s", **options})
    assert refused.value.option == named


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_messages": 0}, "max_messages"),
        ({"max_age": 0}, "max_age"),
        ({"default_job_options": {"priority": 3}}, "default_job_options.priority"),
    ],
)
def test_broadcasts_refuse(options: Any, named: str):
    with pytest.raises(GlideMQValidationError) as refused:
        Broadcast("b", **options)
    assert refused.value.option == named


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("priority", 2), ("lifo", True), ("ordering", "key"), ("fallbacks", ["m"]), ("lock_duration", 5_000),
        ("remove_on_complete", True), ("remove_on_fail", 10), ("parent", ("q", "1")), ("on_failure", "ignore"),
        ("deduplication", {"id": "x"}), ("rank", 9_000), ("fair_key", "k"), ("depends_on", ["1"]), ("tags", ["a"]),
    ],
)  # fmt: skip
async def test_unsupported_options_are_rejected(option: str, value: Any):
    """W33: a peer accepts priority and lifo, and the message is never delivered."""
    broadcast: Broadcast = Broadcast("b", "valkey://127.0.0.1:1")
    options: Any = {option: value}
    with pytest.raises(GlideMQValidationError, match=option):
        await broadcast.publish("a", **options)
    with pytest.raises(GlideMQValidationError, match=rf"jobs\[1\]\.{option}"):
        await broadcast.publish_bulk([("a", 1), ("a", 1, options)])
    await broadcast.close()


def test_each_job_option_is_accepted_or_rejected():
    accepted, rejected = set(PublishOptionsDict.__annotations__), set(unsupported_in("message"))
    assert not accepted & rejected
    assert accepted | rejected == set(JobOptionsDict.__annotations__)


@pytest.mark.parametrize("patterns", ["orders.*", 3, b"x", [3], ["a.>.b"]])
def test_matcher_of_an_invalid_pattern_list(patterns: Any):
    with pytest.raises(GlideMQValidationError, match="patterns"):
        compile_subject_matcher(patterns)


@pytest.mark.parametrize("subject", [None, 3, b"a.b", ["a"]])
def test_invalid_subject_is_reported(subject: Any):
    with pytest.raises(GlideMQValidationError, match="subject"):
        match_subject("a.*", subject)
