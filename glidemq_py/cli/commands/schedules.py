"""`glidemq cron`: schedules."""

from __future__ import annotations

from typing import Any, Final

from glidemq_py import _operate as operate
from glidemq_py._operate.parsing import PARAMETERS, Param, data_of, span_of
from glidemq_py.cli.shell import Shell, age, clock, command, json_line
from glidemq_py.errors import GlideMQValidationError

_NAME: Final = Param("NAME", "Name of the schedule.", of="schedule")


@command(
    "cron ls", after=Param("--after QUEUE", "Only queues whose names follow this one, to continue a list."),
    limit=PARAMETERS["limit"]._replace(text="Read no further queue after so many schedules."),
)  # fmt: skip
async def ls(shell: Shell, queues: list[str] | None = None, after: str | None = None, limit: int = 1_000) -> None:
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


@command("cron show", name=_NAME)
async def show(shell: Shell, queue: str, name: str) -> None:
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


@command(
    "cron add", name=_NAME, data=Param("DATA", "Data of the jobs: JSON, or text.", data_of),
    pattern=Param("--pattern PATTERN", "Cron pattern, such as '0 3 * * *' or @daily."),
    every=Param("--every TIME", "Interval, such as 5m.", span_of),
    tz=Param("--tz ZONE", "Time zone of the pattern; default: UTC."),
    job=Param("--job NAME", "Name of the jobs; default: that of the schedule."),
    overlap=Param("--overlap RULE", "If the last job is unfinished: allow, skip or buffer_one.", default="allow"),
    limit=Param("--limit N", "Maximum number of runs.", least=1),
    skip_without_worker=Param("--skip-without-worker", "Add no job while no worker of the queue is registered."),
)  # fmt: skip
async def add(
    shell: Shell, queue: str, name: str, data: Any = None, *, job: str | None = None, **schedule: Any
) -> None:  # fmt: skip
    """Create a schedule, or change the one with this name."""
    if (schedule["pattern"] is None) == (schedule["every"] is None):
        is_pattern = schedule["pattern"] is None and isinstance(data, str) and len(data.split()) >= 5
        hint = f"; did you mean --pattern {data!r}?" if is_pattern else ""
        raise GlideMQValidationError("--pattern", None, f"give either --pattern or --every{hint}")
    schedule = {each: value for each, value in schedule.items() if value is not None and value is not False}
    action = operate.actions.PutSchedule(queue=queue, name=name, schedule=schedule, job_name=job, data=data)
    await operate.action.perform(shell.operator, action)
    found = await shell.operator.get_schedule(queue, name)
    shell.print_json(found)
    if found is not None:
        due = "paused" if found.paused_at is not None else f"next {clock(found.next_run)}"
        shell.say(f"schedule {name!r} of queue {queue!r}: {found.when}, {due}")


@command(
    "cron resume", name=_NAME,
    catch_up=Param(
        "--catch-up/--no-catch-up",
        "Handle runs missed by the pause by the misfire rule of the schedule; default: only of fire_all.",
    ),
)  # fmt: skip
async def resume(shell: Shell, queue: str, name: str, catch_up: bool | None = None) -> None:
    """Add the jobs of a paused schedule again, from its next due time on."""
    await shell.check_exists(queue)
    await shell.change(operate.actions.ResumeSchedule(queue=queue, name=name, catch_up=catch_up))
    found = await shell.operator.get_schedule(queue, name)
    shell.say("no due time was left: it is deleted" if found is None else f"next run: {clock(found.next_run)}")
