"""The verbs of `glidemq worker`: list, inspect, quiet and resize live workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glidemq_py._operate.parsing import PARAMETERS, span
from glidemq_py.cli.shell import Shell, age, command, size_text

if TYPE_CHECKING:
    from glidemq_py._core.record import WorkerInfo


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


@command("workers ping", timeout=PARAMETERS["answers"])
async def ping(shell: Shell, queue: str, worker: str | None = None, timeout: int = 15_000) -> None:
    """Print the ids of the workers that answer; exit code 1 if a worker does not, or there is none."""
    await shell.check_exists(queue)
    workers = (await shell.operator.queue(queue)).workers
    answered = await workers.ping(worker, timeout=timeout)
    listed = [worker] if worker else [each.id for each in await shell.operator.get_workers(queue)]
    silent = sorted(set(listed) - set(answered))
    shell.print_json({"answered": answered, "silent": silent})
    for each in answered:
        shell.say(each)
    if silent:
        shell.fail(f"no answer within {span(timeout)}: {', '.join(silent)}")
    if not answered:
        shell.fail(f"queue {queue!r} has no live workers")


@command("workers inspect", timeout=PARAMETERS["answers"])
async def inspect(shell: Shell, queue: str, worker: str | None = None, timeout: int = 15_000) -> None:
    """List the running jobs of workers, as the workers report them."""
    await shell.check_exists(queue)
    found = await shell.operator.inspect_workers(queue, worker, timeout=timeout)
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
