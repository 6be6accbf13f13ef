"""Jupyter and IPython: the magic ``%glidemq``, and tables for queues. Load it with `load_ipython_extension`."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from typing import Any, Final, NoReturn, TypeVar, cast

try:
    from IPython.core.error import UsageError
    from IPython.display import HTML
except ImportError as error:
    raise ImportError("glidemq_py.integrations.jupyter requires IPython: pip install ipython") from error

from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._api.job_queue import Queue
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.transport import resolve
from glidemq_py._core.keys import DEFAULT_PREFIX, validate_prefix
from glidemq_py._core.logs import escape_control
from glidemq_py._operate.filters import JobFilter
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.snapshots import JobDetails, JobSummary, QueueSnapshot
from glidemq_py.errors import GlideMQError
from glidemq_py.sync import Queue as BlockingQueue

__all__ = ["load_ipython_extension"]

T = TypeVar("T")

_JOBS: Final = 20
_STATES: Final = ("ready", "active", "delayed", "suspended", "waiting_children", "completed", "failed")


def load_ipython_extension(ipython: Any) -> None:
    """Register ``%glidemq`` and the display of queues. ``%load_ext glidemq_py.integrations.jupyter`` calls this."""
    ipython.register_magic_function(_Magic(), "line", "glidemq")
    formatter: Any = ipython.display_formatter.formatters["text/html"]
    formatter.for_type(Queue, _queue_html)
    formatter.for_type(BlockingQueue, _blocking_queue_html)


def _blocking_queue_html(queue: BlockingQueue[Any, Any]) -> str | None:
    return _queue_html(queue._core)


def _in_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine while the notebook's own event loop runs in this thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()


@dataclass(frozen=True, slots=True)
class _Place:
    """A server and a prefix."""

    connection: ConnectionOptions
    prefix: str

    def operator(self) -> Operator:
        return Operator(self.connection, prefix=self.prefix)


def _queue_html(queue: Any) -> str | None:
    """Return the state of a queue; None, which means its plain text, if it uses a GLIDE client of the program."""
    try:
        found = resolve(queue._connection)
        if not isinstance(found, ConnectionOptions):
            return None
        place = _Place(found, queue.options.prefix)
        return _in_thread(lambda: _queue(place, queue.name))
    except GlideMQError as error:
        return f"<p>{escape(repr(queue))}: {_text(str(error))}</p>"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%glidemq: {message}; {self.format_usage().strip()}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%glidemq", add_help=False)
    parser.add_argument("queue", nargs="?")
    parser.add_argument("job", nargs="?")
    parser.add_argument("--url")
    parser.add_argument("--prefix")
    return parser


def _display(text: str) -> Any:
    return cast("Any", HTML)(text)  # IPython has no annotations here


class _Magic:
    """``%glidemq [QUEUE [JOB]] [--url URL] [--prefix TEXT]``; later calls use the same options."""

    def __init__(self) -> None:
        self._url: str | None = None
        self._prefix = DEFAULT_PREFIX

    def __call__(self, line: str) -> Any:
        """Show all queues, one queue and some of its jobs, or one job and its flow."""
        given = _parser().parse_args(shlex.split(line))
        try:
            found = resolve(given.url or self._url)
            assert isinstance(found, ConnectionOptions)
            place = _Place(found, validate_prefix(given.prefix or self._prefix))
            self._url, self._prefix = given.url or self._url, place.prefix
            if given.job is not None:
                return _display(_in_thread(lambda: _job(place, given.queue, given.job)))
            if given.queue is not None:
                return _display(_in_thread(lambda: _queue(place, given.queue)))
            return _display(_in_thread(lambda: _queues(place)))
        except GlideMQError as error:
            raise UsageError(f"%glidemq: {error}") from None


# -- tables -------------------------------------------------------------------------------------------------


async def _queues(place: _Place) -> str:
    async with place.operator() as operator:
        found = await operator.get_queues(await operator.list_queues())
    if not found:
        return "<p>no queues</p>"
    return _queue_table(found)


async def _queue(place: _Place, name: str) -> str:
    async with place.operator() as operator:
        if not await operator.queue_exists(name):
            return f"<p>no queue {_text(name)}</p>"
        queue = await operator.get_queue(name)
        pages = [(await operator.get_jobs(name, JobFilter(state=state), count=_JOBS)).jobs
                 for state in ("active", "waiting", "failed")]  # fmt: skip
    jobs = [job for page in pages for job in page][:_JOBS]
    return _queue_table([queue]) + (_job_table(jobs) if jobs else "")


async def _job(place: _Place, queue: str, job_id: str) -> str:
    async with place.operator() as operator:
        if not await operator.queue_exists(queue):
            return f"<p>no queue {_text(queue)}</p>"
        found = await operator.get_job(queue, job_id)
    if found is None:
        return f"<p>queue {_text(queue)} has no job {_text(job_id)}</p>"
    async with FlowProducer(place.connection, prefix=place.prefix) as flows:
        flow = await flows.get_flow(queue, job_id, max_jobs=1_000)
    tree = flow._repr_html_() if flow is not None and flow.children else ""
    return _details(found) + tree


def _queue_table(queues: Iterable[QueueSnapshot]) -> str:
    rows = [
        [
            queue.name + (" (paused)" if queue.paused else ""),
            *(f"{getattr(queue, state):,}" for state in _STATES),
            f"{queue.workers:,}",
            _seconds(queue.oldest_waiting),
        ]
        for queue in queues
    ]
    return _table(["queue", *(state.replace("_", " ") for state in _STATES), "workers", "oldest waits"], rows)


def _job_table(jobs: Iterable[JobSummary]) -> str:
    rows = [[job.id, job.name, str(job.state or "?"), str(job.attempts_made), job.error or ""] for job in jobs]
    return _table(["job", "name", "state", "failed attempts", "error"], rows)


def _details(found: JobDetails) -> str:
    job = found.job
    rows = [
        ["job", f"{job.id} of {job.queue}"], ["name", job.name], ["state", str(job.state or "?")],
        ["data", _json(found.data)], ["result", _json(found.result)], ["failed attempts", str(job.attempts_made)],
        ["traceback", found.traceback], ["log", "\n".join(found.logs)],
    ]  # fmt: skip
    return _table(None, [row for row in rows if row[1] not in ("", "null")])


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1_000:,.1f} s" if milliseconds else ""


def _json(value: Any) -> str:
    text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    return text if len(text) <= 2_000 else text[:2_000] + " ..."


def _text(value: str) -> str:
    return escape("\n".join(map(escape_control, value.split("\n"))))


def _table(header: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> str:
    head = "" if header is None else f"<tr>{''.join(f'<th>{_text(title)}</th>' for title in header)}</tr>"
    cell = '<td style="text-align:left;vertical-align:top;white-space:pre-wrap">'
    body = "".join(f"<tr>{''.join(f'{cell}{_text(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table>{head}{body}</table>"
