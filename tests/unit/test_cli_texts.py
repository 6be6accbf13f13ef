"""Arguments of `glidemq` as values, and values as text."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from glidemq_py import (
    BackupInfo,
    FailureStats,
    FairKeyInfo,
    GlideMQValidationError,
    GlobalLimits,
    GroupInfo,
    QueuePartitions,
    RestoreReport,
    Subscription,
    WorkerInfo,
)
from glidemq_py._features.schedulers.cron import pattern_in_words
from glidemq_py._operate.action import ActionResult, Problem
from glidemq_py._operate.conversion import duration_text
from glidemq_py._operate.doctor import Diagnosis, configuration, queue_findings
from glidemq_py._operate.parsing import pairs_of, rate_of, span_of, time_of, value_of
from glidemq_py._operate.snapshots import (
    BatchSnapshot,
    DeadLetter,
    FlowNode,
    GroupSummary,
    JobDetails,
    JobSummary,
    QueueDetails,
    QueueSnapshot,
    ScheduleRun,
    ScheduleSnapshot,
)
from glidemq_py.cli.texts import age, clock, span
from tests.inside import parse_cron


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


# -- the documented keys of `glidemq ... --json` are those of the values that the commands ---------


PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "command-line.md"
PRINTED: Final[dict[str, tuple[type[Any], ...]]] = {
    "queue ls": (QueueSnapshot,),
    "queue show": (QueueDetails,),
    "queue limits": (GlobalLimits,),
    "queue partitions": (QueuePartitions,),
    "job ls": (JobSummary,),
    "job show": (JobDetails,),
    "dlq ls": (DeadLetter,),
    "cron ls": (ScheduleSnapshot, ScheduleRun),
    "batch ls": (BatchSnapshot,),
    "flow show": (FlowNode,),
    "worker ls": (WorkerInfo,),
    "group ls": (GroupSummary,),
    "restore": (RestoreReport,),
    "doctor": (Diagnosis,),
    "what changes something": (ActionResult, Problem),
}
CHANGES: Final = frozenset((
    "queue pause", "queue resume", "queue drain", "queue clean", "queue obliterate", "job add", "job retry",
    "job promote", "job cancel", "job rm", "failures retry", "failures purge", "dlq replay", "dlq purge", "cron add",
    "cron pause", "cron resume", "cron run", "cron rm", "batch cancel", "worker quiet", "worker resume",
    "worker resize", "job signal",
))  # fmt: skip


def rows() -> dict[str, str]:
    """Return the rows of the table: what is printed, by each command."""
    section = PAGE.read_text(encoding="utf-8").split("### Output")[1].split("\n### ")[0]
    found: dict[str, str] = {}
    for names, text in re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE):
        noun = ""
        for name in re.findall(r"`([^`]+)`", names) or [names]:
            noun = name.split()[0] if " " in name else noun
            found[name if " " in name or not noun else f"{noun} {name}"] = text
    return found


@pytest.mark.parametrize("command", PRINTED)
def test_every_key_is_documented(command: str):
    text = rows()[command]
    for kind in PRINTED[command]:
        for each in fields(kind):
            assert f"`{each.name}`" in text, f"{command}: {each.name} of {kind.__name__} is not documented"


@pytest.mark.parametrize(
    ("command", "kind"),
    [("group fair", FairKeyInfo), ("group limit", GroupInfo), ("failures stats", FailureStats), ("backup", BackupInfo)],
)
def test_public_classes_are_named(command: str, kind: type[Any]):
    assert f"`{kind.__name__}`" in rows()[command]


def commands() -> Iterator[str]:
    """Yield the names of all commands that a server is needed for."""
    pytest.importorskip("typer", reason="needs the extra `cli`")
    import typer.main

    from glidemq_py.cli import PASSED
    from glidemq_py.cli.app import app

    whole: Any = typer.main.get_command(app)
    for noun, group in whole.commands.items():
        if noun in PASSED:
            continue
        for verb in getattr(group, "commands", None) or [""]:
            yield f"{'worker' if noun == 'workers' else noun} {verb}".strip()


def test_every_command_says_what_it_prints():
    every, documented = set(commands()), set(rows())
    assert every - documented - CHANGES - {"top"} == set()
    assert every >= CHANGES


# -- cron patterns in words ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("* * * * *", "every minute"), ("*/1 * * * *", "every minute"), ("*/5 * * * *", "every 5 minutes"),
        ("0 */5 * * * *", "every 5 minutes"), ("*/15 * * * 1-5", "every 15 minutes on weekdays"),
        ("0 * * * *", "every hour"), ("5 * * * *", "every hour at minute 5"), ("0 */6 * * *", "every 6 hours"),
        ("30 */2 * * *", "every 2 hours at minute 30"), ("0 3 * * *", "at 03:00 every day"),
        ("0 9 * * 1-5", "at 09:00 on weekdays"), ("0 9 * * MON-FRI", "at 09:00 on weekdays"),
        ("30 8 * * 6,0", "at 08:30 on weekends"), ("30 8 * * SAT,SUN", "at 08:30 on weekends"),
        ("0 9,17 * * *", "at 09:00 and 17:00 every day"), ("0 12 * * 7", "at 12:00 on Sundays"),
        ("15 4 * * 5,1,3", "at 04:15 on Mondays, Wednesdays and Fridays"),
        ("0 0 1 * *", "at 00:00 on day 1 of each month"),
        ("@daily", "at 00:00 every day"), ("@hourly", "every hour"), ("@weekly", "at 00:00 on Sundays"),
    ],
)  # fmt: skip
def test_common_patterns(pattern: str, words: str):
    parse_cron(pattern)
    assert pattern_in_words(pattern) == words


@pytest.mark.parametrize(
    "pattern",
    [
        "*/7 * * * *", "*/5 9-17 * * *", "0 9 1 * 1", "0 9 * 6 *", "10 0 9 * * *", "0-10 * * * *", "0 9 * * 1-3",
        "0 9 31 * *", "0 1,2,3,4,5 * * *", "5/10 * * * *", "0 */5 * * *", "nonsense", "",
    ],
)  # fmt: skip
def test_other_patterns_have_no_words(pattern: str):
    assert pattern_in_words(pattern) == ""
