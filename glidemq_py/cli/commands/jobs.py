"""`glidemq job`: look at jobs and change them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from glidemq_py import _operate as operate
from glidemq_py._core.record import JobState
from glidemq_py._features.failed_attempts import requeues
from glidemq_py._features.steps import StepState
from glidemq_py._operate.parsing import CRITERIA, PARAMETERS, Param, pairs_of, span, span_of
from glidemq_py.cli.shell import ExitCode, Shell, age, changes, clock, command, json_line
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._operate.snapshots import JobDetails, JobSummary, StepSummary


STYLES: Final = {"completed": "green", "failed": "red", "active": "yellow"}
_POLL_S: Final = 0.5
_LONG: Final = 100
_REQUEUED: Final = "requeued by hand or by the failure policy: attempts count from 1 again"


def state_cell(state: JobState | None) -> tuple[str, str]:
    """Return a state with its color."""
    return str(state or "unknown"), STYLES.get(str(state), "")


def jobs_table(shell: Shell, jobs: Iterable[JobSummary], empty: str) -> None:
    """Print jobs as a table."""
    rows = [
        (
            job.id, job.name, state_cell(job.state), age(job.added_at), job.attempts_made or "",
            (job.error or _waiting(job))[:_LONG],
        )
        for job in jobs
    ]  # fmt: skip
    shell.table(("ID", "NAME", "STATE", "ADDED", ">FAILED", "ERROR"), rows, empty)


def _waiting(job: JobSummary) -> str:
    """Return the reason for which a job waits, or ''."""
    if job.suspended_at is None:
        return f"due {age(job.due_at)}" if job.due_at else ""
    until = f", until {clock(job.suspended_until)}" if job.suspended_until else ""
    return f"waits for {job.waits_for or 'a signal'} since {age(job.suspended_at)}{until}"


@command("job ls", **CRITERIA)
async def ls(shell: Shell, queue: str, newest: bool = False, limit: int = 50, **criteria: Any) -> None:
    """List the jobs of a queue, or the messages of a broadcast, that match all given criteria.

    Completed and failed jobs are listed oldest first, or with --newest, which requires their state, newest first.
    """
    wanted, state = operate.filters.JobFilter(**criteria), criteria["state"]
    await shell.check_exists(queue)
    is_broadcast = await shell.operator.is_broadcast(queue)
    if newest and state not in ("completed", "failed"):
        raise GlideMQValidationError("--newest", None, "--newest requires --state completed or --state failed")
    jobs = (
        operate.lists.iter_newest_jobs(shell.operator, queue, wanted)
        if newest
        else shell.operator.iter_jobs(queue, wanted)
    )
    found, more = await operate.operating.some(jobs, limit)
    shell.print_json({"jobs": found, "more": more})
    is_all = wanted == operate.filters.JobFilter()
    if is_broadcast:
        rows = [(job.id, job.name, age(job.added_at), f"due {age(job.due_at)}" if job.due_at else "") for job in found]
        empty = f"broadcast {queue!r} keeps no {'' if is_all else 'such '}messages"
        shell.table(("ID", "SUBJECT", "PUBLISHED", ""), rows, empty)
    else:
        jobs_table(shell, found, f"queue {queue!r} is empty" if is_all else f"no such jobs in queue {queue!r}")
    if more:
        of_newest = "" if newest or state not in ("completed", "failed") else ", or the newest ones with --newest"
        noun = "messages" if is_broadcast else "jobs"
        shell.note(f"more than {limit:,} {noun} match; list more with --limit{of_newest}")


@command("job show")
async def show(shell: Shell, queue: str, job_id: str) -> None:
    """Show everything about a job: data, result, failed attempts, log, parents.

    Of a message of a broadcast: its data, and its state in each subscription.
    """
    found = await _details(shell, queue, job_id)
    if await shell.operator.is_broadcast(queue):
        await _show_message(shell, queue, found)
        return
    shell.print_json(found)
    job = found.job
    requeued = requeues(job.state, job.attempts_made, found.attempts)
    shell.facts([
        ("job", f"{job.id} {job.name}"),
        ("queue", job.queue),
        ("state", state_cell(job.state)),
        ("added", _moment(job.added_at)),
        ("due", _moment(job.due_at)),
        ("waits for", job.waits_for or ("a signal" if job.suspended_at else "")),
        ("suspended", _moment(job.suspended_at)),
        ("until", _moment(job.suspended_until)),
        ("started", _moment(job.started_at)),
        ("finished", _moment(job.finished_at)),
        ("run time", "" if job.run_time is None else span(job.run_time)),
        ("attempts", _attempts(found, requeued)),
        ("priority", job.priority or None),
        ("group", job.group),
        ("fair key", job.fair_key),
        ("tags", ", ".join(job.tags)),
        ("progress", json_line(job.progress) if job.progress else None),
        ("error", (f"{job.error_type}: {job.error}" if job.error_type else job.error, "red")),
        ("options", json_line(found.options) if found.options else None),
        ("data", json_line(found.data)),
        ("result", json_line(found.result) if job.state is JobState.COMPLETED else None),
        ("parents", ", ".join(f"{each.queue} {each.id}" for each in found.parents)),
    ])  # fmt: skip
    for step in found.steps:
        which = step.name if step.ordinal == 1 else f"{step.name} {step.ordinal}"
        shell.say(f"step {which}: {', '.join(_step_facts(step))}")
    for entry in found.timeline:
        by = f" by {entry.worker}" if entry.worker else ""
        shell.say(f"{clock(entry.at)}  {f'step {entry.step}' if entry.step else entry.state}{by}")
    for index, attempt in enumerate(found.attempts):
        if index in requeued:
            shell.say(_REQUEUED)
        took = "" if attempt.duration is None else f" after {span(attempt.duration)}"
        error = f"{attempt.error_type}: {attempt.error}" if attempt.error_type else attempt.error
        which = f"attempt {attempt.number}: " if attempt.number else ""  # a parent whose child failed has not run
        shell.say(f"{which}{attempt.reason.words}{took}, {clock(attempt.failed_at)}: {error}")
    if len(found.attempts) in requeued:
        shell.say(_REQUEUED)
    if found.traceback:
        shell.say()
        for line in found.traceback.splitlines():
            shell.say(line)
    if found.log_count:
        shell.say(f"\nlog, last {len(found.logs)} of {found.log_count:,} lines:".lstrip("\n"))
        for line in found.logs:
            shell.say(f"  {line}")
    if found.attempts and not found.timeline:
        shell.note(
            "only failed attempts are recorded; a queue records the timeline of all transitions after "
            "`await queue.timelines.set(1.0)` (docs/learn/timelines.md)"
        )


def _step_facts(step: StepSummary) -> list[str]:
    """Return what is known of a step, for people."""
    facts = [step.state.value, clock(step.stored_at)]
    facts += [f"took {span(step.took)}"] if step.took else []
    facts += [f"{step.attempts} attempts"] if step.attempts > 1 else []
    facts += [f"until {clock(step.due_at)}"] if step.due_at else []
    facts += [f"{step.children} children"] if step.children else []
    facts += [f"{step.error_type}: {step.error}"] if step.error else []
    return [*facts, json_line(step.result)] if step.state is StepState.DONE else facts


async def _show_message(shell: Shell, queue: str, found: JobDetails) -> None:
    subscriptions = [each.name for each in await shell.operator.get_subscriptions(queue)]
    states = await operate.lists.get_deliveries(shell.operator, queue, found.job.id, subscriptions)
    message = operate.lists.get_message(found)
    shell.print_json({**operate.snapshots.as_json(found), "deliveries": states})
    shell.facts([
        ("message", f"{message.id} {message.name}"),
        ("broadcast", queue),
        ("published", _moment(message.published_at)),
        ("due", _moment(message.due_at)),
        ("options", json_line(found.options) if found.options else None),
        ("data", json_line(message.data)),
    ])  # fmt: skip
    shell.say()
    rows = [
        (
            each.subscription, (each.state or "not known", STYLES.get(each.state or "", "")), each.attempts_made or "",
            (f"{each.error_type}: {each.error}" if each.error_type else each.error or "")[:_LONG],
        )
        for each in states
    ]  # fmt: skip
    shell.table(("SUBSCRIPTION", "STATE", ">FAILED", "ERROR"), rows, "")


def _attempts(found: JobDetails, requeued: frozenset[int]) -> str:
    made = found.job.attempts_made
    if requeued:
        return f"{made:,} failed since the last requeue; {len(found.attempts):,} failures recorded in all"
    return f"{made:,} failed" if made else ""


async def _details(shell: Shell, queue: str, job_id: str, log_lines: int = 20) -> JobDetails:
    found = await shell.operator.get_job(queue, job_id, log_lines=log_lines)
    if found is None:
        await shell.check_exists(queue)
        shell.missing(f"queue {queue!r} has no job {job_id!r}")
    return found


def _moment(at: int | None) -> str:
    return f"{clock(at)} ({age(at)})" if at else ""


@command(
    "job add", name=Param("NAME", "Name of the job."),
    data=PARAMETERS["value"],
    options=Param(
        "--option -o KEY=VALUE", "Option of Queue.add, such as attempts=3; repeatable.", pairs_of, is_many=True
    ),
    delay=Param("--delay TIME", "Run after this time, such as 5m.", span_of),
    job_id=Param("--id ID", "Id of the job; not added if it exists."),
    priority=Param("--priority N", "1 (most urgent) to 2047."),
)  # fmt: skip
async def add(
    shell: Shell, queue: str, name: str, data: Any = None, *, options: dict[str, Any], priority: int | None = None,
    **own: Any,
) -> None:  # fmt: skip
    """Add a job, and print its id."""
    for each in {"self", "name", "data"} & options.keys():
        raise GlideMQValidationError("--option", each, "is an argument of the command, not an option of the job")
    given = {"priority": priority, **own}
    options |= {each: value for each, value in given.items() if value is not None}
    value: Any = {} if data is None else data
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        shell.note("DATA is not JSON: the job gets it as text")
    result = await operate.action.perform(
        shell.operator, operate.job_actions.AddJob(queue=queue, name=name, data=value, options=options)
    )
    shell.print_json(result)
    shell.say(result.ids[0])
    if result.detail != "added":
        shell.note(f"not added as a new job: {result.detail}")


def _chosen(examples: str, queue: str, ids: tuple[str, ...], **criteria: Any) -> dict[str, Any]:
    wanted = operate.filters.JobFilter(**criteria)
    if bool(ids) == (wanted != operate.filters.JobFilter()):
        either = "either ids of jobs, or" if ids else "ids of jobs, or"
        raise GlideMQValidationError("--state", None, f"give {either} {examples}")
    return {"queue": queue, "ids": ids, "wanted": None if ids else wanted}


def _retried(queue: str, ids: tuple[str, ...], completed: bool) -> dict[str, Any]:
    if not ids:
        raise GlideMQValidationError("IDS", None, f"give ids of jobs; for many jobs: glidemq failures retry {queue}")
    return {"queue": queue, "ids": ids, "completed": completed}


def _promoted(every: bool, name: str | None, data: Any, **others: Any) -> dict[str, Any]:
    state = "delayed" if every or name or data else None
    return _chosen("--name, --data or --all", state=state, name=name, data=data, **others)


_IDS: Final[dict[str, Any]] = {"ids": PARAMETERS["ids"]}
changes(operate.job_actions.RetryJobs, _retried, **_IDS, completed=Param("--completed", "Requeue completed jobs too."))
changes(
    operate.job_actions.PromoteJobs, _promoted, **_IDS, name=CRITERIA["name"], data=CRITERIA["data"],
    every=Param("--all", "All delayed jobs."),
)  # fmt: skip
changes(operate.job_actions.CancelJobs, partial(_chosen, "criteria such as --state waiting"), **_IDS, **CRITERIA)
changes(operate.job_actions.RemoveJobs, partial(_chosen, "criteria such as --state failed"), **_IDS, **CRITERIA)


@command("job logs", lines=Param("--lines -n N", "The last lines.", least=1, most=10_000))
async def logs(shell: Shell, queue: str, job_id: str, lines: int = 100) -> None:
    """Print the log of a job."""
    found = await _details(shell, queue, job_id, lines)
    shell.print_json({"logs": found.logs, "count": found.log_count})
    for line in found.logs:
        shell.say(line)
    if not found.log_count:
        shell.note(f"job {job_id!r} has no log")


@command("job watch")
async def watch(shell: Shell, queue: str, job_id: str, timeout: int | None = None) -> None:
    """Follow a job until it ends: states, progress, log. Exit code 1 if it fails or the time is over.

    With --json, prints one line per change.
    """
    if await shell.operator.is_broadcast(queue):
        raise operate.lists.BroadcastActionError(
            queue, f"for the state of one in each subscription: glidemq job show {queue} {job_id}"
        )
    ends = None if timeout is None else asyncio.get_running_loop().time() + timeout / 1_000
    shown: tuple[Any, ...] = ()
    lines = 0
    while True:
        found = await _details(shell, queue, job_id, 200)
        job = found.job
        new = found.logs[-(found.log_count - lines) :] if found.log_count > lines else ()
        lines = found.log_count
        for line in new:
            shell.say(f"  {line}")
        if shown != (job.state, job.progress, job.attempts_made):
            shown = (job.state, job.progress, job.attempts_made)
            shell.print_json(job, line=True)
            shell.say(_change(job))
        if job.state is not None and job.state.is_finished:
            shell.stop(ExitCode.OK if job.state is JobState.COMPLETED else ExitCode.FAILED)
        if ends is not None and asyncio.get_running_loop().time() >= ends:
            shell.fail(f"job {job_id!r} is {job.state} after {span(timeout or 0)}")
        await asyncio.sleep(_POLL_S)


def _change(job: JobSummary) -> str:
    parts = [f"{job.id} {job.name}: {job.state}"]
    if job.progress:  # 0 before the first report
        parts.append(f"progress {json_line(job.progress)}")
    if job.error and job.state is not JobState.COMPLETED:
        parts.append(job.error)
    return ", ".join(parts)
