"""The documented keys of `glidemq ... --json` are those of the values that the commands print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

from glidemq_py.records import (
    BackupInfo,
    FailureStats,
    FairKeyInfo,
    GlobalLimits,
    GroupInfo,
    QueuePartitions,
    RestoreReport,
    WorkerInfo,
)
from tests.operating import (
    ACTIONS,
    ActionResult,
    BatchSnapshot,
    DeadLetter,
    Diagnosis,
    FlowNode,
    GroupSummary,
    JobDetails,
    JobSummary,
    Problem,
    QueueDetails,
    QueueSnapshot,
    ScheduleRun,
    ScheduleSnapshot,
)


def test_the_pages_list_every_command_and_action() -> None:
    pytest.importorskip("typer", reason="needs the extra `cli`")
    from tools.generate_commands import PAGES, page

    for text in (each.read_text(encoding="utf-8") for each in PAGES):
        assert text == page(text), "run python -m tools.generate_commands"


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
CHANGES: Final = {each.command.replace("workers", "worker") for each in ACTIONS.values() if each.command} | {
    "job add", "cron add", "cron resume",
}  # fmt: skip


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
