"""The verbs of `glidemq worker`: list, inspect, quiet and resize live workers."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from glidemq_py import _operate as operate
from glidemq_py._operate.parsing import PARAMETERS, Param
from glidemq_py.cli.shell import Shell, age, command, size_text, span
from glidemq_py.errors import WorkerNotFoundError

if TYPE_CHECKING:
    from glidemq_py._core.record import WorkerInfo

_T = TypeVar("_T")


@command("workers ls")
async def ls(shell: Shell, queues: list[str] | None = None) -> None:
    """List the live workers of queues."""
    found = {
        each.name: await shell.operator.get_workers(each.name)
        for each in await shell.operator.get_queues(await shell.queue_names(queues))
        if each.workers
    }
    shell.print_json([{"queue": name, "worker": each} for name, workers in found.items() for each in workers])
    rows = [
        (
            name,
            each.id,
            each.host,
            str(each.pid),
            _slots(each),
            size_text(each.memory),
            span(each.age),
            _state(each.paused, each.stuck) or "",
        )
        for name, workers in found.items()
        for each in workers
    ]
    columns = ("QUEUE", "WORKER", "HOST", ">PID", ">SLOTS", ">MEMORY", "RUNNING FOR", "")
    shell.table(columns, rows, "no live workers")


def _slots(worker: WorkerInfo) -> str:
    occupied = worker.active_jobs + worker.stuck
    return f"{occupied:,}" if worker.concurrency is None else f"{occupied:,}/{worker.concurrency:,}"


def _state(is_paused: bool, stuck: int) -> tuple[str, str] | None:
    """Return the state of a worker and its color; None if it fetches jobs and no slot is stuck."""
    words = (["quiet"] if is_paused else []) + ([f"{stuck:,} stuck"] if stuck else [])
    return (", ".join(words), "red" if stuck else "yellow") if words else None


_ANSWERS: Final = PARAMETERS["timeout"]._replace(text="How long to wait for answers.")


@command("workers ping", timeout=_ANSWERS)
async def ping(shell: Shell, queue: str, worker: str | None = None, timeout: int = 15_000) -> None:
    """Print the ids of the workers that answer; exit code 1 if a worker does not, or there is none."""
    await shell.check_exists(queue)
    workers = (await shell.operator.queue(queue)).workers
    answered = await _of_worker(shell, queue, worker, workers.ping(worker, timeout=timeout))
    listed = [worker] if worker else [each.id for each in await shell.operator.get_workers(queue)]
    silent = sorted(set(listed) - set(answered))
    shell.print_json({"answered": answered, "silent": silent})
    for each in answered:
        shell.say(each)
    if silent:
        shell.fail(f"no answer within {span(timeout)}: {', '.join(silent)}")
    if not answered:
        shell.fail(f"queue {queue!r} has no live workers")


@command("workers inspect", timeout=_ANSWERS)
async def inspect(shell: Shell, queue: str, worker: str | None = None, timeout: int = 15_000) -> None:
    """List the running jobs of workers, as the workers report them."""
    await shell.check_exists(queue)
    found = await _of_worker(shell, queue, worker, shell.operator.inspect_workers(queue, worker, timeout=timeout))
    shell.print_json([
        {
            "id": each.id, "is_paused": each.is_paused, "concurrency": each.concurrency, "active": each.active,
            "stuck": each.stuck, "jobs": [job._asdict() for job in each.jobs],
        }
        for each in found
    ])  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    for each in found:
        state = _state(each.is_paused, each.stuck) or "fetching"
        slots = f"{each.active + each.stuck:,} of {each.concurrency:,}"
        rows += [(each.id, state, slots, job.queue, job.id, job.name, age(job.started_at)) for job in each.jobs] or [
            (each.id, state, slots, "", "", "", "")
        ]
    columns = ("WORKER", "STATE", "SLOTS", "QUEUE", "JOB", "NAME", "STARTED")
    shell.table(columns, rows, f"queue {queue!r} has no live workers")


@command("workers quiet", timeout=_ANSWERS)
async def quiet(shell: Shell, queue: str, worker: str | None = None, timeout: int = 15_000) -> None:
    """Let workers fetch no further jobs, for example before a deploy. Their active jobs keep running."""
    action = operate.actions.QuietWorker(queue=queue, worker=worker, timeout=timeout)
    await _change_workers(shell, action, worker, "quieted")


@command("workers resume", timeout=_ANSWERS)
async def resume(shell: Shell, queue: str, worker: str | None = None, timeout: int = 15_000) -> None:
    """Let quiet workers fetch jobs again."""
    action = operate.actions.ResumeWorker(queue=queue, worker=worker, timeout=timeout)
    await _change_workers(shell, action, worker, "resumed")


@command("workers resize", timeout=_ANSWERS, concurrency=Param("CONCURRENCY", "Jobs at a time."))
async def resize(shell: Shell, queue: str, concurrency: int, worker: str | None = None, timeout: int = 15_000) -> None:
    """Change how many jobs workers run at the same time, until they end."""
    action = operate.actions.ResizeWorker(queue=queue, worker=worker, concurrency=concurrency, timeout=timeout)
    await _change_workers(shell, action, worker, "resized")


async def _change_workers(shell: Shell, action: operate.actions.Action, worker: str | None, done: str) -> None:
    result = await _of_worker(shell, action.queue, worker, operate.actions.perform(shell.operator, action))
    shell.print_json(result)
    for each in result.ids:
        shell.say(f"{done} {each}")
    if not result.done:
        shell.note(f"queue {action.queue!r} has no live workers")


async def _of_worker(shell: Shell, queue: str, worker: str | None, request: Coroutine[Any, Any, _T]) -> _T:
    try:
        return await request
    except WorkerNotFoundError:
        shell.missing(f"queue {queue!r} has no worker {worker!r}")
