"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from glidemq_py import _operate as operate
from glidemq_py._core.job_states import JobState
from glidemq_py._features.failed_attempts import FailureReason
from glidemq_py._operate.parsing import pairs_of, time_of
from glidemq_py.cli.completion import complete_queue, words

if TYPE_CHECKING:
    from glidemq_py._operate.operating import JobFilter

__all__ = [
    "Concurrency", "Data", "FairKey", "Group", "JobId", "JobIds", "JobName", "Limit", "Newest", "Queue", "Queues",
    "Rate", "Reason", "Since", "State", "Tag", "Timeout", "Until", "filter_of",
]  # fmt: skip

Queue = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False, autocompletion=complete_queue),
]
Queues = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUEUES", help="Names of queues; default: queues in [tool.glidemq], else all.", show_default=False,
        autocompletion=complete_queue,
    ),
]  # fmt: skip
JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.", show_default=False)]
JobIds = Annotated[list[str] | None, typer.Argument(metavar="IDS", help="Ids of jobs.", show_default=False)]

State = Annotated[
    str | None,
    typer.Option(
        "--state", metavar="STATE", help="State of the jobs, such as waiting, delayed or failed.",
        autocompletion=words(JobState),
    ),
]  # fmt: skip
JobName = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Complete name of the jobs.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Not before this time: 2026-11-23T06:00, or 2h (ago).")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Not after this time.")]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data", metavar="KEY=VALUE", help="Key and value (JSON, or text) that the data contains; repeatable."
    ),
]
Group = Annotated[str | None, typer.Option("--group", metavar="KEY", help="Ordering key of the jobs.")]
FairKey = Annotated[str | None, typer.Option("--fair-key", metavar="KEY", help="Fair key of the jobs.")]
Tag = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Tag of the jobs; repeated: all of them.")]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=100_000, help="Maximum number to list.")]
Newest = Annotated[bool, typer.Option("--newest", help="List the jobs that ended last, newest first.")]
Reason = Annotated[
    list[str] | None,
    typer.Option(
        "--reason",
        metavar="REASON",
        help="Reason of the failure: explicit_fail (error), max_attempts_exceeded (error, last attempt), "
        "cancelled, timeout, ...; repeatable.",
        autocompletion=words(FailureReason),
    ),
]


def filter_of(
    state: str | None, name: str | None, since: str | None, until: str | None, data: list[str] | None,
    group: str | None, fair_key: str | None,
    tags: list[str] | None = None,
) -> JobFilter:  # fmt: skip
    """Return the filter of these options. Raises GlideMQValidationError."""
    return operate.operating.JobFilter(
        state=state, name=name, since=time_of("--since", since), until=time_of("--until", until),
        data=pairs_of("--data", data) if data else None, group=group, fair_key=fair_key, tags=tuple(tags or ()),
    )  # fmt: skip


Timeout = Annotated[str | None, typer.Option("--timeout", metavar="TIME", help="Give up after this time.")]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", metavar="N", min=0, help="Active jobs; 0 = no limit.")
]
Rate = Annotated[
    str | None, typer.Option("--rate", metavar="JOBS/TIME", help="Jobs per window, such as 100/1m; off = no limit.")
]
