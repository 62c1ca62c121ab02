"""Parses rates such as "100/min": how many jobs may start in a time.

This is the only place in Python that reads them. `jobherd.parse_rate` in the database reads the same texts.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from jobherd.handlers._policy.names import shown

_RATE: Final = re.compile(r"([1-9][0-9]{0,6})/([1-9][0-9]{0,4})?(s|m|min|h|d)", re.ASCII)
_SECONDS: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
MOST: Final = 1_000_000
LONGEST: Final = 366 * 86400.0
"""Seconds. A bucket that takes longer to fill is a mistake."""


class Rate(NamedTuple):
    """A number of jobs that may start in a time of so many seconds."""

    jobs: int
    seconds: float


def check_rate(value: object, *, field: str) -> Rate:
    """Return `value` as a rate, or raise ValueError naming `field`.

    >>> check_rate("100/min", field="rate")
    Rate(jobs=100, seconds=60.0)
    >>> check_rate("5/2h", field="rate")
    Rate(jobs=5, seconds=7200.0)
    """
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        rate = Rate(int(found[1]), int(found[2] or 1) * _SECONDS[found[3]])
        if rate.jobs <= MOST and rate.seconds / rate.jobs <= LONGEST:
            return rate
    message = (
        f"{field} {shown(value)} is not a number of jobs and a time, such as '100/min', '10/s' or '5/2h': "
        "units are s, min, h and d, at most 1,000,000 jobs"
    )
    raise ValueError(message)


def check_burst(value: object, *, field: str) -> int:
    """Return `value` if it can be a burst, or raise ValueError naming `field`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        message = f"{field} must be a whole number from 1 to 1000000, not {shown(value)}"
        raise ValueError(message)
    return value


def check_refill(rate: Rate | None, burst: int | None) -> None:
    """Raise ValueError if there is a burst without a rate, or the rate takes over a year to reach it."""
    if burst is None:
        return
    if rate is None:
        message = 'burst requires rate, for example rate="100/min"'
        raise ValueError(message)
    if burst * rate.seconds / rate.jobs > LONGEST:
        message = f"burst {burst} takes more than a year at {rate.jobs} in {rate.seconds:g} s: choose a smaller one"
        raise ValueError(message)
