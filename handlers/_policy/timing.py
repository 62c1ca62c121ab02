"""Calculates the instants of a schedule, by cron expression or by a fixed period, within its limits.

It reads no clock and no database: the caller gives the moment. A period is anchored to `starts_at`
or to 1970, so a restart moves no instant.
"""

from __future__ import annotations

import zoneinfo
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from importlib import metadata
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from jobherd.handlers._policy.cron import parse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def zone_of(name: str) -> tzinfo:
    """Return the time zone with this IANA name. Raises ValueError that says what to do."""
    if name == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        # ValueError: not a name, such as "../etc". OSError: a folder such as "Europe".
        message = (
            f"tz {name!r} is not a known time zone, such as 'Europe/Berlin'; "
            "if this host has no time zone data: pip install 'jobherd[tz]'"
        )
        raise ValueError(message) from None


@cache
def zone_version() -> str:
    """Return the version of this host's time zone data, such as "2026a"."""
    for folder in zoneinfo.TZPATH:
        with suppress(OSError), open(f"{folder}/tzdata.zi", encoding="utf-8") as file:
            return file.readline().removeprefix("# version ").strip()
    with suppress(ModuleNotFoundError):
        return metadata.version("tzdata")
    return "unknown"


@dataclass(frozen=True)
class Timing:
    """When a schedule is due. One of `cron` and `every` is given.

    Attributes:
        cron: expression of five fields.
        every: period in seconds.
        tz: zone of the expression.
        starts_at: no instant is earlier.
        ends_at: no instant is later.
    """

    cron: str | None = None
    every: float | None = None
    tz: str = "UTC"
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    @cached_property
    def zone(self) -> tzinfo:
        """The time zone. Raises ValueError if it is unknown."""
        return zone_of(self.tz)

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the instants later than `moment`, in UTC. Raises ValueError for an invalid timing."""
        if self.starts_at is not None:
            moment = max(moment, self.starts_at - _MICROSECOND)
        until = LAST if self.ends_at is None else min(LAST, self.ends_at + _MICROSECOND)
        return takewhile(lambda instant: instant < until, self._after(moment))

    def next(self, moment: datetime) -> datetime | None:
        """Return the first instant later than `moment`, or None. Raises as `after`."""
        return next(self.after(moment), None)

    def between(self, first: datetime, until: datetime, keep: int) -> tuple[int, list[datetime]]:
        """Return how many instants lie from `first` to `until`, and the last `keep` of them.

        first: an instant. A period costs the same however long that is.
        """
        if self.ends_at is not None:
            until = min(until, self.ends_at)
        if self.every is None:
            count, last = 0, deque[datetime](maxlen=keep)
            for instant in takewhile(lambda at: at <= until, self.after(first - _MICROSECOND)):
                count += 1
                last.append(instant)
            return count, list(last)
        step = timedelta(seconds=self.every)
        count = max(0, (until - first) // step + 1)
        return count, [first + number * step for number in range(max(0, count - keep), count)]

    def _after(self, moment: datetime) -> Iterator[datetime]:
        if self.cron is not None:
            yield from parse(self.cron).after(moment, self.zone)
            return
        anchor = self.starts_at or EPOCH
        step = timedelta(seconds=self.every or 0.0)
        if step <= timedelta():
            message = "every must be more than 0 seconds"
            raise ValueError(message)
        instant = anchor + ((moment - anchor) // step + 1) * step
        while instant < LAST:
            yield instant
            instant += step
