"""`glidemq events`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from glidemq_py.cli.commands.arguments import Queue
from glidemq_py.cli.completion import words
from glidemq_py.cli.shell import Shell, command, group
from glidemq_py.cli.texts import clock
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    pass

__all__ = ["app"]

app = group("events", "Events of a queue.")


def _event_names(incomplete: str) -> list[str]:
    from glidemq_py._client.event_reader import QUEUE_EVENTS

    return words(QUEUE_EVENTS)(incomplete)


@command(app, "tail")
async def tail(
    shell: Shell,
    queue: Queue,
    event: Annotated[
        list[str] | None,
        typer.Option(
            "--event", metavar="EVENT", help="Only events with this name; repeatable.", autocompletion=_event_names
        ),
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="Start after this event; 0 = the oldest kept.")
    ] = None,
    number: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Stop after so many events.")
    ] = None,
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
