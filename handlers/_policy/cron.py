"""Parses cron expressions and enumerates their instants in a time zone, across changes of the clock.

It follows Debian's cron. A fixed time happens once on every day that matches: at the first of two
equal wall-clock times when the clock is set back, and at the moment after the gap when the clock is
set forward. An expression whose minute or hour begins with `*` follows real time instead.

This module enumerates days, then the times of each day. It must not search for the next match
minute by minute: such searches skip times in gaps, and do not end for dates that never come. It
reads no clock.
"""

from __future__ import annotations

import calendar
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import tzinfo

_MONTHS: Final = {name.upper(): number for number, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS: Final = {name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}


class _Field(NamedTuple):
    name: str
    least: int
    most: int
    names: Mapping[str, int] = MappingProxyType({})


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _WEEKDAYS),
)
_NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_LONGEST: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LAST_YEAR: Final = 8999
_BARREN: Final = 50
"""Years without a match after which no other match is expected. February 29 falls on a given weekday
at least every 40 years.
"""
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression.

    Attributes:
        times: minutes since midnight, ascending.
        either: a day matches by its number or by its weekday, not only by both.
        real_time: follows real time when the clock changes.
    """

    times: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool
    real_time: bool

    def after(self, moment: datetime, zone: tzinfo) -> Iterator[datetime]:
        """Yield the instants later than `moment`, in UTC, strictly ascending.

        moment: with a time zone. zone: whose wall clock the expression means.
        """
        last = moment.astimezone(UTC)
        # The day before: a fixed time in a gap may belong to a day that the clock skips.
        for day in self._days(_day_before(moment.astimezone(zone).date())):
            for instant in self._instants(day, zone, last):
                if instant > last:
                    last = instant
                    yield instant

    def _days(self, first: date) -> Iterator[date]:
        year, month, matched = first.year, first.month, first.year
        while year <= min(_LAST_YEAR, matched + _BARREN):
            if month in self.months:
                for number in range(1, calendar.monthrange(year, month)[1] + 1):
                    day = date(year, month, number)
                    by_day, by_weekday = number in self.days, day.isoweekday() % 7 in self.weekdays
                    if day >= first and (by_day or by_weekday if self.either else by_day and by_weekday):
                        matched = year
                        yield day
            year, month = (year + 1, 1) if month == 12 else (year, month + 1)

    def _instants(self, day: date, zone: tzinfo, after: datetime) -> Iterator[datetime]:
        """Yield the instants of one day in ascending order. Those up to `after` may be missing."""
        midnight = datetime.combine(day, time(), zone)
        offset = midnight.utcoffset() or timedelta()
        if offset == ((midnight + _DAY).utcoffset() or timedelta()):
            # No change of the clock on this day.
            start = midnight.replace(tzinfo=UTC) - offset
            passed = (after - start) // timedelta(minutes=1)
            for minutes in self.times[bisect_right(self.times, passed) :]:
                yield start + timedelta(minutes=minutes)
            return
        instants: set[datetime] = set()
        for minutes in self.times:
            instants.update(self._at(midnight + timedelta(minutes=minutes), zone))
        yield from sorted(instants)

    def _at(self, wall: datetime, zone: tzinfo) -> list[datetime]:
        """Return the instants at which a wall clock shows `wall`, on a day on which the clock changes."""
        first, second = wall.replace(fold=0).astimezone(UTC), wall.replace(fold=1).astimezone(UTC)
        if first == second:
            return [first]
        if first < second:  # The clock shows this time twice.
            return [first, second] if self.real_time else [first]
        return [] if self.real_time else [_change(second, first, zone)]


def parse(text: str) -> Cron:
    """Return the expression of five fields: minute, hour, day of month, month, day of week.

    Raises ValueError with the field and what to write instead.

    >>> parse("0 3 * * MON-FRI").times
    (180,)
    """
    parts = _NAMED.get(text.strip().lower(), text).split()
    if len(parts) != len(_FIELDS):
        message = (
            f"cron {text!r} has {len(parts)} fields, not 5: minute, hour, day of month, month and day of week, "
            'such as "0 3 * * MON-FRI"'
        )
        raise ValueError(message)
    minutes, hours, days, months, weekdays = (
        _numbers(part, text, field) for part, field in zip(parts, _FIELDS, strict=True)
    )
    either = not parts[2].startswith("*") and not parts[4].startswith("*")
    if not either and not any(day <= _LONGEST[month - 1] for month in months for day in days):
        message = f"cron {text!r} never matches: no such month has a day {min(days)}"
        raise ValueError(message)
    return Cron(
        tuple(sorted(60 * hour + minute for hour in hours for minute in minutes)),
        days,
        months,
        frozenset(number % 7 for number in weekdays),
        either,
        parts[0].startswith("*") or parts[1].startswith("*"),
    )


def _numbers(part: str, text: str, field: _Field) -> frozenset[int]:
    found: set[int] = set()
    for piece in part.split(","):
        span, slash, step = piece.partition("/")
        low, dash, high = span.partition("-")
        if span == "*":
            first, last = field.least, field.most
        else:
            first = _number(low, text, field)
            last = _number(high, text, field) if dash else field.most if slash else first
        if last < first:
            message = f"cron {text!r}: {field.name} {span!r} ends before it begins; write it as two ranges"
            raise ValueError(message)
        every = _number(step, text, _Field(f"step of {field.name}", 1, field.most)) if slash else 1
        found.update(range(first, last + 1, every))
    return frozenset(found)


def _number(word: str, text: str, field: _Field) -> int:
    number = field.names.get(word.upper(), int(word) if word.isascii() and word.isdecimal() and len(word) <= 4 else -1)
    if not field.least <= number <= field.most:
        also = f" or a name such as {next(iter(field.names))}" if field.names else ""
        message = f"cron {text!r}: {field.name} must be from {field.least} to {field.most}{also}, not {word!r}"
        raise ValueError(message)
    return number


def _day_before(day: date) -> date:
    return day if day == date.min else day - _DAY


def _change(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """Return the first moment, to the second, at which the clock of `zone` shows the offset of `after`."""
    offset = after.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) // 2
        middle = middle.replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after
