"""Cron expressions described in English."""

from __future__ import annotations

import pytest

from jobherd.handlers._policy.timing_words import words_of


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("*/5 8-18 * * *", "every 5 minutes of hours 8 to 18"),
        ("* 3 * * *", "every minute of hour 3"),
        ("5 * * * *", "at minute 5 of every hour"),
        ("15,45 * * * *", "at minutes 15 and 45 of every hour"),
        ("*/25 8-18 * * *", "at minutes 0, 25 and 50 of hours 8 to 18"),
        ("0 */2 * * *", "at minute 0 of every 2 hours"),
        ("0 1,3,5,7,9,11 * * *", "at minute 0 of hours 1, 3, 5, 7, 9 and 11"),
        ("@daily", "at 00:00, every day"),
        ("30 */6 * * *", "at 00:30, 06:30, 12:30 and 18:30, every day"),
        ("0 3 * * MON-FRI", "at 03:00, Monday to Friday"),
        ("0 3 * * 0,6", "at 03:00, Saturday and Sunday"),
        ("0 9 1-5,10 * *", "at 09:00, on days 1 to 5 and 10"),
        ("0 0 1 * MON", "at 00:00, on day 1 and each Monday"),
        ("10 5 1-31 * MON", "at 05:10, every day"),
        ("@yearly", "at 00:00, on day 1, in January"),
        ("0 0 1 JAN-MAR,12 *", "at 00:00, on day 1, in January to March and December"),
    ],
)
def test_words_of_describes_a_cron_expression(cron, words):
    assert words_of(cron) == words


def test_words_of_rejects_an_invalid_expression():
    with pytest.raises(ValueError, match="minute must be from 0 to 59"):
        words_of("60 * * * *")
