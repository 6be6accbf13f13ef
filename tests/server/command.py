"""Run a command of ours as a child process and wait for lines of its output."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from glidemq_py import worker

__all__ = ["Command", "alive", "checked"]

ROOT = Path(__file__).resolve().parents[2]


class Command:
    """Runs `python -m MODULE ARGUMENTS` in a folder; stdout and stderr are merged."""

    def __init__(self, folder: Path, module: str, *arguments: str, env: dict[str, str | None] | None = None):
        environment: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        environment.pop("GLIDEMQ_URL", None)
        environment.update(env or {})
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env={name: value for name, value in environment.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self.lines.append(line.rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    @property
    def text(self) -> str:
        """Return the output so far."""
        return "\n".join(self.lines)

    async def printed(self, pattern: str, times: int = 1, seconds: float = 100.0) -> list[re.Match[str]]:
        """Wait until ``times`` lines match; return the matches."""
        return await asyncio.to_thread(self._printed, re.compile(pattern), times, seconds)

    def _printed(self, pattern: re.Pattern[str], times: int, seconds: float) -> list[re.Match[str]]:
        found: list[re.Match[str]] = []

        def enough() -> bool:
            found[:] = [match for line in self.lines if (match := pattern.search(line))]
            return len(found) >= times or self._ended

        with self._more:
            assert self._more.wait_for(enough, seconds), f"not printed: {pattern.pattern}\n{self.text}"
        assert len(found) >= times, f"ended without printing {pattern.pattern}:\n{self.text}"
        return found

    def signal(self, number: signal.Signals):
        """Send a signal to the command."""
        self._process.send_signal(number)

    async def ends(self, seconds: float = 100.0) -> int:
        """Wait for the end of the process and its output; return the exit code."""
        code = await asyncio.to_thread(self._process.wait, seconds)
        await asyncio.to_thread(self._reader.join, seconds)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        # Children of a supervisor that was killed end by themselves; until then they hold the pipe.
        self._reader.join(20)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and is not yet waited for counts as ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return not Path("/proc").exists()


async def checked(queue: str, url: str) -> int:
    """Return the exit code of `glidemq worker --check`."""
    return await asyncio.to_thread(worker.main, ["--check", "--queue", queue, "--url", url])
