"""Messages of the errors about states of jobs."""

from typing import Any

import pytest

from glidemq_py import (
    GlideMQError,
    GlideMQValidationError,
    JobBatchNotFoundError,
    JobNotFoundError,
    JobStateError,
    WaitTimeoutError,
)
from tests.contract.api import Queue


async def test_the_error_of_an_unknown_state_lists_the_states_as_one_writes_them(url: str, queue_name: str):
    queue = Queue(queue_name, url)
    with pytest.raises(GlideMQValidationError, match=r"must be one of 'waiting', 'active', .*'suspended'$"):
        await queue.revoke("1", states=("bogus",))
    with pytest.raises(GlideMQValidationError, match="did you mean 'delayed'"):
        await queue.clean(0, state="delaye")
    await queue.close()


async def test_errors_name_the_queue(queue: Queue, queue_name: str):
    job = await queue.add("n", ordering={"key": "k"})
    gone = await queue.add("n")
    await gone.remove()
    missing = f"job {gone.id!r} not found in queue {queue_name!r}"
    state = f"cannot {{}} job {job.id!r}: it is waiting (queue {queue_name!r})"
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: gone.retry(), JobNotFoundError, missing),
        (lambda: gone.reload(), JobNotFoundError, missing),
        (lambda: gone.promote(), JobNotFoundError, missing),
        (lambda: gone.log("text"), JobNotFoundError, missing),
        (lambda: gone.wait_until_finished(timeout=60_000), JobNotFoundError, missing),
        (lambda: gone.change_priority(1), JobNotFoundError, missing),
        (lambda: queue.discard(gone.id), JobNotFoundError, missing),
        (lambda: queue.promote("x"), JobNotFoundError, f"job 'x' not found in queue {queue_name!r}"),
        (lambda: job.retry(), JobStateError, state.format("retry")),
        (lambda: job.promote(), JobStateError, state.format("promote")),
        (lambda: queue.revoke(job.id, states="failed"), JobStateError, state.format("revoke")),
        (
            lambda: job.wait_until_finished(timeout=1), WaitTimeoutError,
            f"job {job.id!r} did not end within 1 ms (queue {queue_name!r})",
        ),
        (
            lambda: queue.get_batch("nope"), JobBatchNotFoundError,
            f"batch 'nope' not found in queue {queue_name!r}",
        ),
        (
            lambda: job.move_to_failed("why"), GlideMQError,
            "move_to_failed may only be called by the handler that runs the job "
            f"(job {job.id!r} of queue {queue_name!r})",
        ),
    ]  # fmt: skip
    for call, kind, text in calls:
        with pytest.raises(kind) as caught:
            await call()
        assert str(caught.value) == text
