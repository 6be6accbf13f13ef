"""The screen of `glidemq top`: queues, running jobs, failures and schedules, one tab each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

try:
    from rich.text import Text
    from textual.app import App, ComposeResult
    from textual.binding import Binding, BindingType
    from textual.containers import Vertical
    from textual.screen import ModalScreen
    from textual.widgets import DataTable, Footer, Label, Static, TabbedContent, TabPane
except ImportError as error:
    raise ImportError('glidemq top requires textual: pip install "glidemq-py[cli]"') from error

from glidemq_py._core.logs import escape_control
from glidemq_py._core.record import JobState
from glidemq_py._operate.action import Action, perform
from glidemq_py._operate.actions import PauseQueue, PauseSchedule, ResumeQueue, ResumeSchedule, RunSchedule
from glidemq_py._operate.filters import JobFilter
from glidemq_py._operate.job_actions import CancelJobs, RetryJobs
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.parsing import span
from glidemq_py._operate.snapshots import QueueSnapshot
from glidemq_py.cli.shell import age, clock
from glidemq_py.errors import GlideMQError

_ROWS: Final = 200
"""Rows of a tab."""
_QUEUES_READ: Final = 50
"""Queues whose running jobs, failures or schedules are read per update."""
_LONG: Final = 120
_NAME: Final = 32
"""Width of a job's name, so that the columns after it stay visible."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a table: its key, (queue, id), and its cells."""

    key: tuple[str, str]
    cells: tuple[str | Text, ...]


class _Question(ModalScreen[bool]):
    """Asks before something that cannot be undone."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"), Binding("n,escape", "answer(False)", "No"),
    ]  # fmt: skip
    CSS = """
    _Question { align: center middle; }
    _Question > Vertical { width: 60; height: auto; padding: 1 2; border: round $warning; background: $surface; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the question."""
        with Vertical():
            yield Label(self._text, markup=False)
            yield Label("y = yes, n = no")

    def action_answer(self, is_yes: bool) -> None:
        """Close the question."""
        self.dismiss(is_yes)


class Top(App[None]):
    """Shows queues and their jobs, until `q` is pressed.

    Args:
        operator: Reads and changes.
        queues: Names of the queues; empty: all.
        interval: Seconds between two updates.
    """

    TITLE = "glidemq top"
    CSS = """
    TabbedContent, DataTable { height: 1fr; }
    #status { height: 1; padding: 0 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("1", "tab('queues')", "Queues", show=False),
        Binding("2", "tab('running')", "Running", show=False),
        Binding("3", "tab('failures')", "Failures", show=False),
        Binding("4", "tab('schedules')", "Schedules", show=False),
        Binding("p", "pause", "Pause or resume"),
        Binding("r", "retry", "Retry"),
        Binding("c", "cancel", "Cancel"),
        Binding("n", "run_now", "Run schedule now"),
        Binding("f5", "refresh_now", "Refresh"),
    ]
    _COLUMNS: ClassVar[dict[str, tuple[str, ...]]] = {
        "queues": (
            "QUEUE", "READY", "ACTIVE", "DELAYED", "SUSPENDED", "CHILDREN", "COMPLETED", "FAILED", "WORKERS", "OLDEST",
        ),
        "running": ("QUEUE", "JOB", "NAME", "RUNNING FOR", "ATTEMPT", "PROGRESS"),
        "failures": ("QUEUE", "JOB", "NAME", "FAILED", "REASON", "ERROR"),
        "schedules": ("QUEUE", "SCHEDULE", "WHEN", "NEXT", "LAST", "RUNS"),
    }  # fmt: skip

    def __init__(self, operator: Operator, queues: Iterable[str] = (), *, interval: float = 2.0) -> None:
        super().__init__()
        self._operator = operator
        self._wanted = tuple(queues)
        self._interval = interval
        self._snapshots: list[QueueSnapshot] = []
        self._keys: dict[str, list[tuple[str, str]]] = {name: [] for name in self._COLUMNS}

    def compose(self) -> ComposeResult:
        """Build the tabs."""
        with TabbedContent(initial="queues"):
            for number, (name, columns) in enumerate(self._COLUMNS.items(), 1):
                with TabPane(f"{number} {name.capitalize()}", id=name):
                    table: DataTable[str | Text] = DataTable(id=f"{name}-table", cursor_type="row", zebra_stripes=True)
                    table.add_columns(*columns)
                    yield table
        yield Static("reading …", id="status", markup=False)
        yield Footer()

    async def on_mount(self) -> None:
        """Read for the first time, and from then on repeatedly."""
        self.set_interval(self._interval, self._update)
        self._table("queues").focus()
        await self._update()

    async def on_tabbed_content_tab_activated(self) -> None:
        """Read the rows of the tab that is shown now."""
        self._table(self._shown).focus()
        await self._update()

    # -- reading ------------------------------------------------------------------------------------------

    @property
    def _shown(self) -> str:
        return self.query_one(TabbedContent).active or "queues"

    def _table(self, name: str) -> DataTable[str | Text]:
        return cast("DataTable[str | Text]", self.query_one(f"#{name}-table", DataTable))

    async def _update(self) -> None:
        readers: dict[str, Callable[[], Awaitable[list[_Row]]]] = {
            "queues": self._read_queues, "running": self._read_running, "failures": self._read_failures,
            "schedules": self._read_schedules,
        }  # fmt: skip
        name = self._shown
        status = self.query_one("#status", Static)
        try:
            names = self._wanted or await self._operator.list_queues()
            self._snapshots = await self._operator.get_queues(names)
            self._show(name, await readers[name]())
        except GlideMQError as error:
            status.update(escape_control(f"not current: {error}"))
            return
        total = {each: sum(getattr(one, each) for one in self._snapshots) for each in ("ready", "active", "failed")}
        number = len(self._snapshots)
        parts = ", ".join(f"{count:,} {name}" for name, count in total.items())
        status.update(f"{number:,} {'queue' if number == 1 else 'queues'}, {parts}")

    def _show(self, name: str, rows: list[_Row]) -> None:
        """Replace the rows; the cursor stays on its row, or at its place if that is gone."""
        table, before = self._table(name), self._keys[name]
        at = table.cursor_row
        chosen = before[at] if 0 <= at < len(before) else None
        table.clear()
        for row in rows:
            # A cell of type str is parsed as markup, and jobs choose what is in it.
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row.cells))
        keys = self._keys[name] = [row.key for row in rows]
        if keys:
            table.move_cursor(row=keys.index(chosen) if chosen in keys else min(max(at, 0), len(keys) - 1))

    async def _read_queues(self) -> list[_Row]:
        rows: list[_Row] = []
        for each in self._snapshots:
            name = Text(_line(each.name))
            if each.paused:
                name.append(" paused", "yellow")
            alone = "red" if each.ready and not each.workers else ""
            rows.append(
                _Row(
                    (each.name, ""),
                    (
                        name, _number(each.ready), _number(each.active), _number(each.delayed),
                        _number(each.suspended), _number(each.waiting_children), _number(each.completed),
                        _number(each.failed, "red"), Text(f"{each.workers}", alone),
                        span(each.oldest_waiting) if each.oldest_waiting else "",
                    ),
                )
            )  # fmt: skip
        return rows

    async def _read_running(self) -> list[_Row]:
        rows: list[_Row] = []
        for queue in self._with("active"):
            page = await self._operator.get_jobs(queue, JobFilter(state=JobState.ACTIVE), count=_ROWS)
            for job in page.jobs:
                progress = _line(job.progress) if job.progress else ""
                cells = (
                    _short(job.name),
                    age(job.started_at).removesuffix(" ago"),
                    f"{job.attempts_made + 1}",
                    progress,
                )
                rows.append(_Row((queue, job.id), (_line(queue), _line(job.id), *cells)))
        return rows[:_ROWS]

    async def _read_failures(self) -> list[_Row]:
        rows: list[tuple[int, _Row]] = []
        for queue in self._with("failed"):
            for each in (await self._operator.get_newest_failures(queue, _ROWS // 4))[0]:
                error = f"{each.error_type}: {each.error}" if each.error_type else each.error
                cells = (_short(each.name), age(each.failed_at), each.reason.words, Text(_line(error), "red"))
                rows.append((each.failed_at, _Row((queue, each.job_id), (_line(queue), _line(each.job_id), *cells))))
        return [row for _, row in sorted(rows, key=lambda each: -each[0])[:_ROWS]]

    async def _read_schedules(self) -> list[_Row]:
        rows: list[_Row] = []
        for queue in [each.name for each in self._snapshots][:_QUEUES_READ]:
            for each in await self._operator.get_schedules(queue):
                cells = (
                    each.when,
                    "paused" if each.paused_at is not None else f"{clock(each.next_run)} {age(each.next_run)}",
                    age(each.last_run),
                    f"{each.runs:,}",
                )
                rows.append(_Row((queue, each.name), (_line(queue), _line(each.name), *cells)))
        return rows[:_ROWS]

    def _with(self, count: str) -> list[str]:
        return [each.name for each in self._snapshots if getattr(each, count)][:_QUEUES_READ]

    # -- changes ------------------------------------------------------------------------------------------

    def _chosen(self, tab: str) -> tuple[str, str] | None:
        """Return the key of the row under the cursor, if that tab is shown."""
        if self._shown != tab:
            self.notify(f"first choose a row of the tab {tab.capitalize()}", severity="warning")
            return None
        keys, at = self._keys[tab], self._table(tab).cursor_row
        return keys[at] if 0 <= at < len(keys) else None

    async def _perform(self, action: Action, done: str) -> None:
        try:
            result = await perform(self._operator, action)
        except GlideMQError as error:
            self.notify(escape_control(str(error)), severity="error", markup=False)
        else:
            text = result.problems[0].error if result.problems else done
            self.notify(escape_control(text), severity="error" if result.problems else "information", markup=False)
        await self._update()

    async def action_tab(self, name: str) -> None:
        """Show a tab."""
        self.query_one(TabbedContent).active = name

    async def action_refresh_now(self) -> None:
        """Read again."""
        await self._update()

    async def action_pause(self) -> None:
        """Pause the chosen queue or schedule, or resume it."""
        is_schedule = self._shown == "schedules"
        chosen = self._chosen("schedules" if is_schedule else "queues")
        if chosen is None:
            return
        queue, name = chosen
        if is_schedule:
            found = await self._operator.get_schedule(queue, name)
            is_paused = found is not None and found.paused_at is not None
            action: Action = (ResumeSchedule if is_paused else PauseSchedule)(queue=queue, name=name)
        else:
            is_paused = any(each.paused for each in self._snapshots if each.name == queue)
            action = (ResumeQueue if is_paused else PauseQueue)(queue=queue)
        subject = f"schedule {name!r}" if is_schedule else f"queue {queue!r}"
        await self._perform(action, f"{subject} {'resumed' if is_paused else 'paused'}")

    async def action_retry(self) -> None:
        """Retry the chosen failed job."""
        chosen = self._chosen("failures")
        if chosen is not None:
            queue, job_id = chosen
            await self._perform(RetryJobs(queue=queue, ids=(job_id,)), f"job {job_id!r} will be retried")

    async def action_run_now(self) -> None:
        """Run the chosen schedule now."""
        chosen = self._chosen("schedules")
        if chosen is not None:
            queue, name = chosen
            await self._perform(RunSchedule(queue=queue, name=name), f"schedule {name!r}: job added")

    def action_cancel(self) -> None:
        """Cancel the chosen running job, after a question."""
        chosen = self._chosen("running")
        if chosen is None:
            return
        queue, job_id = chosen

        async def answered(is_yes: bool | None) -> None:
            if is_yes:
                await self._perform(CancelJobs(queue=queue, ids=(job_id,)), f"job {job_id!r} is cancelled")

        self.push_screen(_Question(escape_control(f"Cancel job {job_id!r} of queue {queue!r}?")), answered)


def _line(value: Any) -> str:
    """Return a value as one line without control characters."""
    return escape_control(str(value))[:_LONG]


def _short(name: str) -> Text:
    """Return the name of a job, cut to the width of its column with an ellipsis."""
    text = Text(_line(name))
    text.truncate(_NAME, overflow="ellipsis")
    return text


def _number(number: int, style: str = "") -> Text:
    return Text(f"{number:,}", style if number else "dim", justify="right")
