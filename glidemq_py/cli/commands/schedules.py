"""`glidemq cron`: schedules."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from glidemq_py import _operate as operate
from glidemq_py._operate.parsing import span_of, value_of
from glidemq_py.cli.arguments import Queue, Queues, complete_schedule
from glidemq_py.cli.shell import Shell, age, changes, clock, command, group, json_line
from glidemq_py.errors import GlideMQValidationError

__all__ = ["app"]

app = group("cron", "Schedules: list, add, pause, run and delete them.")

_Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the schedule.", show_default=False, autocompletion=complete_schedule),
]


_After = Annotated[
    str | None,
    typer.Option("--after", metavar="QUEUE", help="Only queues whose names follow this one, to continue a list."),
]
_SchedulesLimit = Annotated[
    int,
    typer.Option(
        "--limit", "-n", metavar="N", min=1, max=100_000, help="Read no further queue after so many schedules."
    ),
]


@command(app, "ls")
async def ls(shell: Shell, queues: Queues = None, after: _After = None, limit: _SchedulesLimit = 1_000) -> None:
    """List the schedules of queues."""
    names = await shell.queue_names(queues)
    if after is not None:
        names = [name for name in names if name > after]
    found: list[operate.snapshots.ScheduleSnapshot] = []
    last, more = "", False
    for name in names:
        if len(found) >= limit:
            more = True
            break
        found += await shell.operator.get_schedules(name)
        last = name
    shell.print_json(found)
    one = queues is not None and len(names) == 1
    rows = [
        (
            *(() if one else (each.queue,)), each.name, each.when, each.timezone or "", each.job_name, _next(each),
            age(each.last_run), each.runs,
        )
        for each in found
    ]  # fmt: skip
    columns = (*(() if one else ("QUEUE",)), "NAME", "WHEN", "TIME ZONE", "JOB", "NEXT", "LAST", ">RUNS")
    shell.table(columns, rows, f"queue {names[0]!r} has no schedules" if one else "no schedules")
    if more:
        shell.note(f"more queues were not read; continue with --after {last}")


def _next(schedule: operate.snapshots.ScheduleSnapshot) -> str | tuple[str, str]:
    return ("paused", "yellow") if schedule.paused_at is not None else age(schedule.next_run)


def _run(run: operate.snapshots.ScheduleRun) -> str:
    return f"{clock(run.due_at)}  job {run.job_id} {run.state or 'is deleted'}"


@command(app, "show")
async def show(shell: Shell, queue: Queue, name: _Name) -> None:
    """Show a schedule with its next due times."""
    found = await shell.operator.get_schedule(queue, name)
    if found is None:
        await shell.check_exists(queue)
        shell.missing(f"queue {queue!r} has no schedule {name!r}")
    shell.print_json(found)
    shell.facts([
        ("schedule", found.name), ("queue", found.queue), ("when", found.when), ("in words", found.in_words),
        ("time zone", found.timezone),
        ("overlap", found.overlap), ("without a worker", "skipped" if found.skip_without_worker else None),
        ("job", found.job_name),
        ("data", None if found.data is None else json_line(found.data)), ("runs", found.runs),
        ("limit", found.limit), ("skipped", found.skipped or None), ("last run", clock(found.last_run)),
        ("paused", None if found.paused_at is None else f"since {clock(found.paused_at)} ({age(found.paused_at)})"),
        ("last job", found.last_job_id), ("last runs", "\n".join(map(_run, found.last_runs))),
        ("next runs", "\n".join(clock(each) for each in found.upcoming)),
    ])  # fmt: skip


@command(app, "add")
async def add(
    shell: Shell,
    queue: Queue,
    name: _Name,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Data of the jobs: JSON, or text.", show_default=False)
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="PATTERN", help="Cron pattern, such as '0 3 * * *' or @daily.")
    ] = None,
    every: Annotated[str | None, typer.Option("--every", metavar="TIME", help="Interval, such as 5m.")] = None,
    tz: Annotated[
        str | None, typer.Option("--tz", metavar="ZONE", help="Time zone of the pattern; default: UTC.")
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="NAME", help="Name of the jobs; default: that of the schedule.")
    ] = None,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="RULE", help="If the last job is unfinished: allow, skip or buffer_one.")
    ] = "allow",
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Maximum number of runs.")] = None,
    skip_without_worker: Annotated[
        bool, typer.Option("--skip-without-worker", help="Add no job while no worker of the queue is registered.")
    ] = False,
) -> None:
    """Create a schedule, or change the one with this name."""
    if (pattern is None) == (every is None):
        is_pattern = pattern is None and data is not None and len(data.split()) >= 5
        hint = f"; did you mean --pattern {data!r}?" if is_pattern else ""
        raise GlideMQValidationError("--pattern", None, f"give either --pattern or --every{hint}")
    schedule: dict[str, Any] = {"pattern": pattern, "tz": tz, "overlap": overlap, "limit": limit}
    if skip_without_worker:
        schedule["skip_without_worker"] = True
    if every is not None:
        schedule["every"] = span_of("--every", every)
    value = None if data is None else value_of(data)
    action = operate.actions.PutSchedule(queue=queue, name=name, schedule=schedule, job_name=job, data=value)
    await operate.actions.perform(shell.operator, action)
    found = await shell.operator.get_schedule(queue, name)
    shell.print_json(found)
    if found is not None:
        due = "paused" if found.paused_at is not None else f"next {clock(found.next_run)}"
        shell.say(f"schedule {name!r} of queue {queue!r}: {found.when}, {due}")


changes(
    app, "pause", "PauseSchedule", "Add no jobs of a schedule until it is resumed. Jobs it has added are kept.",
    name=_Name,
)  # fmt: skip


@command(app, "resume")
async def resume(
    shell: Shell,
    queue: Queue,
    name: _Name,
    catch_up: Annotated[
        bool | None,
        typer.Option(
            "--catch-up/--no-catch-up",
            show_default=False,
            help="Handle runs missed by the pause by the misfire rule of the schedule; default: only of fire_all.",
        ),
    ] = None,
) -> None:
    """Add the jobs of a paused schedule again, from its next due time on."""
    await shell.check_exists(queue)
    await shell.change(operate.actions.ResumeSchedule(queue=queue, name=name, catch_up=catch_up))
    found = await shell.operator.get_schedule(queue, name)
    shell.say("no due time was left: it is deleted" if found is None else f"next run: {clock(found.next_run)}")


changes(app, "run", "RunSchedule", "Add the job of a schedule now. Its due times do not change.", name=_Name)
changes(app, "rm", "RemoveSchedule", "Delete a schedule. Jobs it has added are kept.", asks=True, name=_Name)
