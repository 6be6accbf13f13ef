"""Lines of a job's log and their levels.

A line with a level is stored as `[WARNING] text`, which any reader shows as a plain line. A line without one, such as
those of Node peers, counts as info.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, cast

from glidemq_py._core.checks import check_choice

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LEVELS: Final[tuple[LogLevel, ...]] = ("debug", "info", "warning", "error", "critical")
"""The levels, in ascending order."""
_STORED: Final = re.compile(r"\[(DEBUG|INFO|WARNING|ERROR|CRITICAL)\] ")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLogLine:
    """One line of a job's log.

    Attributes:
        level: level of the line; "info" if it was written without one.
        message: the text, without the level.
    """

    level: LogLevel
    message: str

    def is_at_least(self, level: LogLevel) -> bool:
        """Return True if the line has this level or a higher one."""
        return LEVELS.index(self.level) >= LEVELS.index(level)


def check_level(level: object) -> LogLevel:
    """Return a level.

    Raises:
        GlideMQValidationError: If it does not exist.
    """
    return cast("LogLevel", check_choice("level", level, LEVELS))


def with_level(line: str, level: LogLevel) -> str:
    """Return the stored form of a line."""
    return f"[{check_level(level).upper()}] {line}"


def parse_log_line(line: str) -> JobLogLine:
    """Return the level and the message of a stored line."""
    found = _STORED.match(line)
    if found is None:
        return JobLogLine(level="info", message=line)
    return JobLogLine(level=cast("LogLevel", found[1].lower()), message=line[found.end() :])
