"""Cron patterns in words."""

import pytest

from glidemq_py._features.schedulers.in_words import pattern_in_words
from tests.inside import parse_cron


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("* * * * *", "every minute"), ("*/1 * * * *", "every minute"), ("*/5 * * * *", "every 5 minutes"),
        ("0 */5 * * * *", "every 5 minutes"), ("*/15 * * * 1-5", "every 15 minutes on weekdays"),
        ("0 * * * *", "every hour"), ("5 * * * *", "every hour at minute 5"), ("0 */6 * * *", "every 6 hours"),
        ("30 */2 * * *", "every 2 hours at minute 30"), ("0 3 * * *", "at 03:00 every day"),
        ("0 9 * * 1-5", "at 09:00 on weekdays"), ("0 9 * * MON-FRI", "at 09:00 on weekdays"),
        ("30 8 * * 6,0", "at 08:30 on weekends"), ("30 8 * * SAT,SUN", "at 08:30 on weekends"),
        ("0 9,17 * * *", "at 09:00 and 17:00 every day"), ("0 12 * * 7", "at 12:00 on Sundays"),
        ("15 4 * * 5,1,3", "at 04:15 on Mondays, Wednesdays and Fridays"),
        ("0 0 1 * *", "at 00:00 on day 1 of each month"),
        ("@daily", "at 00:00 every day"), ("@hourly", "every hour"), ("@weekly", "at 00:00 on Sundays"),
    ],
)  # fmt: skip
def test_common_patterns(pattern: str, words: str):
    parse_cron(pattern)
    assert pattern_in_words(pattern) == words


@pytest.mark.parametrize(
    "pattern",
    [
        "*/7 * * * *", "*/5 9-17 * * *", "0 9 1 * 1", "0 9 * 6 *", "10 0 9 * * *", "0-10 * * * *", "0 9 * * 1-3",
        "0 9 31 * *", "0 1,2,3,4,5 * * *", "5/10 * * * *", "0 */5 * * *", "nonsense", "",
    ],
)  # fmt: skip
def test_other_patterns_have_no_words(pattern: str):
    assert pattern_in_words(pattern) == ""
