"""Cron patterns in words, for people: only the common forms, whose words are certain."""

from __future__ import annotations

import re
from typing import Final

_ALIASES: Final = {
    "@yearly": "at 00:00 on January 1", "@annually": "at 00:00 on January 1",
    "@monthly": "at 00:00 on day 1 of each month", "@weekly": "at 00:00 on Sundays", "@daily": "at 00:00 every day",
    "@midnight": "at 00:00 every day", "@hourly": "every hour",
}  # fmt: skip
_DAYS: Final = ("Sundays", "Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays")
_NAMES: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MOST_TIMES: Final = 4
_SHORTEST_MONTH: Final = 28


def pattern_in_words(pattern: str) -> str:
    """Return a valid cron pattern in words, such as "at 09:00 on weekdays"; '' if its form is not a common one."""
    text = pattern.strip().lower()
    if text in _ALIASES:
        return _ALIASES[text]
    fields = text.split()
    if len(fields) == 6 and fields[0] == "0":
        fields = fields[1:]
    if len(fields) != 5:
        return ""
    minute, hour, day, month, weekday = fields
    time = _time(minute, hour)
    days = _days(day, weekday) if month == "*" else None
    if not time or days is None:
        return ""
    if days:
        return f"{time} {days}"
    return f"{time} every day" if time.startswith("at ") else time


def _time(minute: str, hour: str) -> str:
    """Return the minutes and hours in words; '' if they are not of a common form."""
    if hour == "*":
        step = _step(minute, 60)
        if step:
            return "every minute" if step == 1 else f"every {step} minutes"
        if not _is_number(minute):
            return ""
        return "every hour" if int(minute) == 0 else f"every hour at minute {int(minute)}"
    if not _is_number(minute):
        return ""
    step = _step(hour, 24)
    if step:
        every = "every hour" if step == 1 else f"every {step} hours"
        return every if int(minute) == 0 else f"{every} at minute {int(minute)}"
    hours = hour.split(",")
    if len(hours) > _MOST_TIMES or not all(map(_is_number, hours)):
        return ""
    return f"at {_joined([f'{each:02}:{int(minute):02}' for each in sorted({int(each) for each in hours})])}"


def _days(day: str, weekday: str) -> str | None:
    """Return the days in words, '' for every day; None if they are not of a common form."""
    if weekday == "*":
        if day == "*":
            return ""
        return f"on day {int(day)} of each month" if _is_number(day) and int(day) <= _SHORTEST_MONTH else None
    if day != "*":  # whether both must match depends on the schedule
        return None
    for number, name in enumerate(_NAMES):
        weekday = re.sub(rf"\b{name}\b", str(number), weekday)
    if weekday == "1-5":
        return "on weekdays"
    parts = weekday.split(",")
    if not all(re.fullmatch("[0-7]", each) for each in parts):
        return None
    numbers = {int(each) % 7 for each in parts}
    if numbers == {0, 6}:
        return "on weekends"
    return f"on {_joined([_DAYS[each] for each in sorted(numbers, key=lambda each: each or 7)])}"


def _step(field: str, whole: int) -> int:
    """Return the step of a field that matches at equal intervals, 1 for each; 0 if it does not."""
    if field == "*":
        return 1
    found = re.fullmatch(r"\*/([1-9]\d?)", field)
    return int(found[1]) if found and whole % int(found[1]) == 0 and int(found[1]) < whole else 0


def _is_number(field: str) -> bool:
    return re.fullmatch(r"\d{1,2}", field) is not None


def _joined(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
