"""`glidemq doctor`, `glidemq events` and `glidemq top`."""

from __future__ import annotations

import sys
from typing import Final

from glidemq_py import _operate as operate
from glidemq_py._operate.parsing import Param, span_of
from glidemq_py.cli.arguments import words
from glidemq_py.cli.shell import ExitCode, Shell, clock, command
from glidemq_py.errors import GlideMQValidationError

_STYLES: Final = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def _role_names(incomplete: str) -> list[str]:
    return words(operate.doctor.ROLES)(incomplete)


@command(
    "doctor", max_wait=Param("--max-wait TIME", "Warn if a job has been ready for longer.", span_of),
    user=Param("--user NAME", "Examine the permissions of this user; default: your own."),
    role=Param(
        "--role ROLE", "The user needs those of probe, observer, producer, worker, operator or app.", of=_role_names
    ),
)  # fmt: skip
async def doctor(
    shell: Shell, queues: list[str] | None = None, max_wait: int = 60_000, user: str = "", role: str = ""
) -> None:
    """Examine the server and queues, and say what to do about each problem.

    Exit code 1 if there are warnings or errors.
    """
    names = await shell.queue_names(queues)
    found = await operate.doctor.examine(shell.operator, names, max_wait=max_wait, user=user, role=role)
    shell.print_json(found)
    rows = [
        ((str(each.severity), _STYLES[each.severity]), each.check, each.subject, _text(each.problem, each.remedy))
        for each in found
    ]
    shell.table(("", "CHECK", "WHERE", "FOUND"), rows, "")
    if not names:
        shell.note(f"no queues (prefix {shell.settings.prefix!r})")
    if any(each.severity in ("warning", "error") for each in found):
        shell.stop(ExitCode.FAILED)


def _text(problem: str, remedy: str) -> str:
    return f"{problem}; {remedy}" if remedy else problem


def _event_names(incomplete: str) -> list[str]:
    from glidemq_py._client.event_reader import QUEUE_EVENTS

    return words(QUEUE_EVENTS)(incomplete)


@command(
    "events tail",
    event=Param("--event EVENT", "Only events with this name; repeatable.", of=_event_names),
    after=Param("--after ID", "Start after this event; 0 = the oldest kept."),
    number=Param("--count -n N", "Stop after so many events.", least=1),
)  # fmt: skip
async def tail(
    shell: Shell, queue: str, event: list[str] | None = None, after: str | None = None, number: int | None = None
) -> None:
    """Print the events of a queue as they happen, until Ctrl-C. With --json, one line per event."""
    from glidemq_py._client.event_reader import QUEUE_EVENTS

    for each in event or ():
        if each not in QUEUE_EVENTS:
            raise GlideMQValidationError("--event", each, f"must be one of {', '.join(QUEUE_EVENTS)}")
    left = number
    if not await shell.operator.queue_exists(queue):
        shell.note(f"queue {queue!r} does not exist (prefix {shell.settings.prefix!r}); waiting for its first event")
    async for found in shell.operator.iter_events(queue, after=after):
        if event and found.event not in event:
            continue
        shell.print_json(found, line=True)
        more = " ".join(f"{key}={value}" for key, value in found.fields.items())
        shell.say(f"{clock(found.timestamp)}  {found.event:<12} {found.job_id} {more}".rstrip())
        if left is not None:
            left -= 1
            if left <= 0:
                return


@command("top", json=False, interval=Param("--interval SECONDS", "Time between two updates.", least=0.2, most=3_600))
async def top(shell: Shell, queues: list[str] | None = None, interval: float = 2.0) -> None:
    """Show queues, running jobs, failures and schedules, and keep them current, until q is pressed.

    p pauses or resumes a queue or schedule, r retries a failed job, c cancels a running one, n runs a schedule now.
    """
    if shell.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        shell.fail("top needs a terminal; for scripts, use queue ls --json", ExitCode.USAGE)
    try:
        from glidemq_py.cli.top_screen import Top
    except ImportError as error:
        shell.fail(str(error), ExitCode.USAGE)
    names = queues or list(shell.settings.queues)
    for name in names:
        await shell.check_exists(name)
    await Top(shell.operator, names, interval=interval).run_async()
