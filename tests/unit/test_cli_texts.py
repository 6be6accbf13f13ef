"""Arguments of `glidemq` as values, and values as text."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Subscription
from glidemq_py._operate.conversion import duration_text
from glidemq_py._operate.doctor import configuration, queue_findings
from glidemq_py._operate.parsing import pairs_of, rate_of, span_of, time_of, value_of
from glidemq_py._operate.snapshots import QueueSnapshot
from glidemq_py.cli.texts import age, clock, span


@pytest.mark.parametrize(
    ("text", "ms"), [("90s", 90_000), ("1.5h", 5_400_000), ("7d", 604_800_000), ("1w", 604_800_000)]
)
def test_durations_are_parsed(text: str, ms: int) -> None:
    assert span_of("--since", text) == ms


@pytest.mark.parametrize("text", ["", "5", "-5m", "5 m", "fast", "1e3s", "9" * 13 + "s"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(GlideMQValidationError, match="'--since'"):
        span_of("--since", text)


def test_times_are_dates_or_durations_ago() -> None:
    assert time_of("--since", None) is None
    given = time_of("--since", "2026-11-23T06:00+00:00")
    assert given == 1_795_413_600_000
    local = time_of("--since", "2026-11-23T06:00")
    assert local == round(datetime(2026, 11, 23, 6).astimezone().timestamp() * 1_000)
    ago = time_of("--since", "1h")
    assert ago is not None
    assert abs(time.time() * 1_000 - 3_600_000 - ago) < 100_000
    for text in ("yesterday", "2026-13-01", "", "9" * 400):
        with pytest.raises(GlideMQValidationError):
            time_of("--since", text)


def test_values_are_json_or_text() -> None:
    assert [value_of(text) for text in ("1", '{"a": [1]}', "true", "plain", '"7"', "[" * 100_000)] == [
        1, {"a": [1]}, True, "plain", "7", "[" * 100_000,
    ]  # fmt: skip
    assert pairs_of("--data", ["a=1", "b=x=y", "c="]) == {"a": 1, "b": "x=y", "c": ""}
    for text in ("a", "=1", ""):
        with pytest.raises(GlideMQValidationError, match="must be KEY=VALUE"):
            pairs_of("--data", [text])


def test_rates_are_parsed() -> None:
    assert (rate_of("--rate", "5/s").max, rate_of("--rate", "5/s").duration) == (5, 1_000)
    assert rate_of("--rate", "100/10m").duration == 600_000
    for text in ("5", "x/s", "5/", "5/x", "0/s", "/s"):
        with pytest.raises(GlideMQValidationError):
            rate_of("--rate", text)


def test_durations_and_times_are_shown() -> None:
    assert [span(ms) for ms in (0, 850, 12_000, 200_000, 3_600_000, 187_200_000)] == [
        "0ms", "850ms", "12s", "3m 20s", "1h", "2d 4h",
    ]  # fmt: skip
    assert [duration_text(ms) for ms in (0, 250, 90_000, 300_000, 86_400_000)] == ["0ms", "250ms", "90s", "5m", "1d"]
    assert (age(None), clock(None), age(0)) == ("", "", "")
    assert age(round(time.time() * 1_000) + 7_300_000).startswith("in 2h")
    assert age(round(time.time() * 1_000) - 7_300_000).endswith(" ago")
    assert clock(10**18) == str(10**18)


HEALTHY = {
    "valkey_version": "9.1.0", "maxmemory_policy": "noeviction", "aof_enabled": "1", "role": "master",
    "connected_slaves": "1", "slave0": "ip=1,port=2,state=online,offset=1,lag=0", "used_memory": "100",
    "maxmemory": "1000",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "check", "severity"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, "eviction", "error"),
        ({"maxmemory_policy": "volatile-lru"}, "volatile", "warning"),
        ({"aof_enabled": "0"}, "aof", "warning"),
        ({"valkey_version": "7.2.0"}, "version", "error"),
        ({"role": "slave"}, "replica", "error"),
        ({"cluster_enabled": "1"}, "cluster", "error"),
        ({"connected_slaves": "0"}, "replicas", "note"),
        ({"slave0": "ip=1,port=2,state=wait_bgsave"}, "replicas", "warning"),
        ({"used_memory": "900"}, "memory", "warning"),
        ({"aof_last_write_status": "err"}, "persistence", "error"),
    ],
)
def test_every_problem_of_a_server_has_a_remedy(changed: dict[str, str], check: str, severity: str) -> None:
    assert all(each.severity == "ok" for each in configuration("n:1", HEALTHY, cluster=False))
    found = [each for each in configuration("n:1", HEALTHY | changed, cluster=False) if each.severity != "ok"]
    assert [(each.check, each.severity) for each in found] == [(check, severity)]
    assert found[0].problem
    assert found[0].remedy


def test_acceptance_of_a_missing_append_only_file_is_described_for_a_shell() -> None:
    found = {each.check: each for each in configuration("n:1", HEALTHY | {"aof_enabled": "0"}, cluster=False)}
    assert "?allow_no_aof=true" in found["aof"].remedy
    assert "URL" in found["aof"].remedy


def test_an_accepted_problem_is_a_note() -> None:
    info = HEALTHY | {"aof_enabled": "0", "maxmemory_policy": "allkeys-lru"}
    found = configuration("n:1", info, cluster=False, accepted={"aof", "eviction"})
    assert {each.check for each in found if each.severity == "note"} == {"aof", "eviction"}


IDLE: dict[str, Any] = dict.fromkeys(
    ("oldest_waiting", "workers", "waiting", "prioritized", "group_waiting", "active", "delayed", "suspended",
     "waiting_children", "completed", "failed", "outbox"), 0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"waiting": 3}, "3 unfinished jobs and no live worker"),
        ({"waiting": 1}, "1 unfinished job and no live worker"),
        ({"waiting": 1, "paused": True}, "paused, with 1 job ready to run"),
        ({"waiting": 1, "workers": 1, "oldest_waiting": 120_000}, "1 job ready, and the oldest"),
        ({"failed": 1}, "1 failed job kept"),
        ({"waiting": 3, "paused": True}, "paused, with 3 jobs"),
        ({"waiting": 3, "workers": 1, "oldest_waiting": 120_000}, "the oldest has waited for 120 s"),
        ({"failed": 2}, "2 failed jobs kept"),
        ({"outbox": 1}, "1 result for another queue is not delivered"),
        ({"outbox": 2}, "2 results for other queues are not delivered"),
    ],
)
def test_every_problem_of_a_queue_has_a_remedy(changed: dict[str, Any], words: str) -> None:
    (found,) = queue_findings(QueueSnapshot(**{"name": "q", "paused": False, **IDLE, **changed}), 60_000)
    assert words in found.problem
    assert found.remedy


def test_the_slowest_subscription_of_a_broadcast_is_named() -> None:
    late = {"waiting": 9, "workers": 1, "oldest_waiting": 120_000}
    broadcast = QueueSnapshot(**{"name": "q", "paused": False, **IDLE, **late})
    read = {"active": 0, "released": 0, "consumers": 1}
    ahead = Subscription(name="ahead", waiting=0, last_delivered="1700000000000-12", **read)
    for waiting, words in (
        (1, "1 unread message"),
        (9, "9 unread messages"),
        (None, "more than 1,000 unread messages"),
    ):
        behind = Subscription(name="behind", waiting=waiting, last_delivered="1700000000000-9", **read)
        (found,) = queue_findings(broadcast, 60_000, 0, [ahead, behind])
        assert found.problem == f"subscription 'behind' has {words}, and the oldest has waited for 120 s"


@pytest.mark.parametrize("changed", [{}, {"waiting": 3, "workers": 1, "oldest_waiting": 1_000}, {"paused": True}])
def test_a_healthy_queue_has_no_problem(changed: dict[str, Any]) -> None:
    (found,) = queue_findings(QueueSnapshot(**{"name": "q", "paused": False, **IDLE, **changed}), 60_000)
    assert found.severity == "ok"


def test_the_reference_lists_every_command() -> None:
    pytest.importorskip("typer", reason="needs the extra `cli`")
    from tools.generate_commands import PAGE, page

    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run python -m tools.generate_commands"


def test_constants_that_are_not_json_are_text() -> None:
    assert [value_of(text) for text in ("NaN", "Infinity", "[-Infinity]")] == ["NaN", "Infinity", "[-Infinity]"]
