"""Cron expressions compared with brute force around clock changes in ten zones, and with cronsim on other days."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from jobherd.handlers._policy.cron import parse

MINUTE = timedelta(minutes=1)
CHANGES = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("America/Santiago", "2026-09-06"),  # the day begins with the skipped hour
    ("America/Santiago", "2026-04-05"),
    ("America/Havana", "2026-11-01"),  # midnight happens twice
    ("America/Havana", "2026-03-08"),
    ("Asia/Beirut", "2026-03-29"),
    ("Australia/Lord_Howe", "2026-10-04"),  # half an hour
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Pacific/Apia", "2011-12-30"),  # a day that does not exist
    ("Asia/Pyongyang", "2018-05-04"),
    ("Africa/Casablanca", "2026-03-22"),
    ("Africa/Casablanca", "2026-02-15"),
    ("America/St_Johns", "2011-03-13"),  # one minute after midnight
    ("America/St_Johns", "2011-11-06"),
]
FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


@cache
def wall_clock(zone: str, day: str) -> list[tuple[datetime, datetime]]:
    """Return each minute of six days in UTC, and the local time then."""
    start = datetime.combine(date.fromisoformat(day) - timedelta(days=3), time(), UTC)
    minutes = [start + n * MINUTE for n in range(6 * 1440)]
    return [(minute, minute.astimezone(ZoneInfo(zone)).replace(tzinfo=None)) for minute in minutes]


def values(part: str, least: int, most: int) -> set[int]:
    found: set[int] = set()
    for piece in part.split(","):
        span, _, step = piece.partition("/")
        first, _, last = span.partition("-")
        low, high = (least, most) if span == "*" else (int(first), int(last or (most if step else first)))
        found.update(range(low, high + 1, int(step or 1)))
    return found


def by_force(text: str, zone: str, day: str) -> list[datetime]:
    """Return the instants of the four days in the middle, found by checking every minute."""
    parts = text.split()
    minutes, hours, days, months, weekdays = (values(part, *limits) for part, limits in zip(parts, FIELDS, strict=True))
    either = not parts[2].startswith("*") and not parts[4].startswith("*")

    def matches(shown: date) -> bool:
        one, other = shown.day in days, shown.isoweekday() % 7 in weekdays
        return shown.month in months and (one or other if either else one and other)

    clock = wall_clock(zone, day)
    if parts[0].startswith("*") or parts[1].startswith("*"):
        found = {at for at, shown in clock if shown.hour in hours and shown.minute in minutes and matches(shown.date())}
    else:
        found = set()
        first = clock[0][1].date()
        for shown in (first + timedelta(days=n) for n in range(8)):
            for hour in hours if matches(shown) else ():
                for minute in minutes:
                    wanted = datetime.combine(shown, time(hour, minute))
                    found.update([next((at for at, wall in clock if wall >= wanted), clock[-1][0])])
    return sorted(at for at in found if clock[1440][0] < at < clock[5 * 1440][0])


def expressions(seed: int, count: int) -> list[str]:
    """Return expressions whose fixed times and ranges are mostly near the hours at which clocks change."""
    chance = random.Random(seed)

    def minute() -> str:
        return chance.choice(["*", "*/7", "*/30", "0", "30", "1,59", "5-50/9", "42", str(chance.randrange(60))])

    def hour() -> str:
        return chance.choice(["*", "*/2", "*/5", "0", "1", "2", "3", "0-3", "23", "1,2", str(chance.randrange(24))])

    return [
        " ".join(
            (
                minute(),
                hour(),
                chance.choice(["*", "*", "*", "*/2", "1-15", "29,30", str(chance.randrange(1, 29))]),
                "*",
                chance.choice(["*", "*", "*", "0", "6", "1-5", "*/2"]),
            )
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_cron_equals_brute_force_around_clock_changes(zone: str, day: str):
    clock = wall_clock(zone, day)
    for text in expressions(date.fromisoformat(day).toordinal(), 60):
        found = list(takewhile(lambda at: at < clock[5 * 1440][0], parse(text).after(clock[1440][0], ZoneInfo(zone))))
        assert found == by_force(text, zone, day), text


@given(st.integers(0, 100_000), st.integers(0, 30_000))
def test_cron_equals_cronsim_on_ordinary_days(seed: int, days: int):
    [text] = expressions(seed, 1)
    start = datetime(2000, 1, 1, 13, 37, tzinfo=UTC) + timedelta(days=days)
    other, found = CronSim(text, start), parse(text).after(start, UTC)
    assert [next(found) for _ in range(5)] == [next(other) for _ in range(5)]


def first(text: str, after: str, zone: str, count: int = 1) -> list[str]:
    found = parse(text).after(datetime.fromisoformat(after), ZoneInfo(zone))
    return [next(found).astimezone(ZoneInfo(zone)).isoformat() for _ in range(count)]


def test_fixed_time_runs_once_a_day_across_clock_changes():
    assert first("30 2 * * *", "2026-03-28T12:00+01:00", "Europe/Berlin", 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert first("30 2 * * *", "2026-10-24T12:00+02:00", "Europe/Berlin", 2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]


def test_hourly_expression_follows_elapsed_time_across_clock_changes():
    assert first("0 * * * *", "2026-10-25T01:30+02:00", "Europe/Berlin", 3) == [
        "2026-10-25T02:00:00+02:00",
        "2026-10-25T02:00:00+01:00",
        "2026-10-25T03:00:00+01:00",
    ]


def test_leap_day_expressions_find_the_next_match_decades_later():
    assert first("0 0 29 2 *", "2097-01-01T00:00Z", "UTC") == ["2104-02-29T00:00:00+00:00"]
    assert first("0 0 29 2 */7", "2088-03-01T00:00Z", "UTC") == ["2128-02-29T00:00:00+00:00"], (
        "the next match is 40 years later because 2100 is not a leap year"
    )


def test_cron_accepts_names_and_7_as_sunday():
    assert parse("0 0 * JAN-mar,Dec mon,7") == parse("0 0 * 1,2,3,12 0,1")
    assert parse("@weekly") == parse("0 0 * * SUN")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("* * * *", "has 4 fields, not 5"),
        ("60 * * * *", "minute must be from 0 to 59, not '60'"),
        ("0 0 31 2,4 *", "no such month has a day 31"),
        ("0 0 * FOO *", "month must be from 1 to 12 or a name such as JAN, not 'FOO'"),
        ("0 0 * * 5-1", "'5-1' ends before it begins"),
        ("*/0 * * * *", "step of minute must be from 1 to 59, not '0'"),
        ("0 99999999999999999999 * * *", "hour must be"),
        ("@often", "has 1 fields"),
        (", * * * *", "minute must be"),
        ("٣ * * * *", "minute must be"),
    ],
)
def test_error_names_the_invalid_part_of_the_expression(text: str, says: str):
    with pytest.raises(ValueError, match="cron") as caught:
        parse(text)
    assert says in str(caught.value)
