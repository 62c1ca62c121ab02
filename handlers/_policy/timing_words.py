"""Says a cron expression in words, for people who do not read five fields.

The words come from the parsed expression, so they cannot differ from what runs. This module must
not calculate instants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.handlers._policy.cron import parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TIMES: Final = 4
"""Most times of day that are listed one by one."""
_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_WEEK: Final = (1, 2, 3, 4, 5, 6, 0)
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def words_of(text: str) -> str:
    """Return a cron expression in words. Raises ValueError if it is not valid.

    >>> words_of("0 3 * * MON-FRI"), words_of("*/15 * * * *"), words_of("30 8-18 1 1,7 *")
    ('at 03:00, Monday to Friday', 'every 15 minutes', 'at minute 30 of hours 8 to 18, on day 1, in January and July')
    """
    cron = parse(text)
    parts = [_times(cron.times)]
    days = f"on {_counted('day', _ranges(sorted(cron.days)))}" if len(cron.days) < 31 else ""
    weekdays = _named([_DAYS[number] for number in _WEEK], [_WEEK.index(number) for number in cron.weekdays])
    if cron.either:
        parts += [f"{days} and each {weekdays}"] if days and weekdays else []
    else:
        parts += [each for each in (days, weekdays) if each]
    if months := _named(_MONTHS, [number - 1 for number in cron.months]):
        parts.append(f"in {months}")
    if len(parts) == 1 and parts[0].startswith("at ") and " of " not in parts[0]:
        parts.append("every day")
    return ", ".join(parts)


def _times(times: Sequence[int]) -> str:
    """Return the times of a day. times: minutes since midnight, ascending."""
    if len(times) <= _TIMES:
        return "at " + _joined([f"{time // 60:02}:{time % 60:02}" for time in times])
    minutes, hours = sorted({time % 60 for time in times}), sorted({time // 60 for time in times})
    step = _step(minutes, 60)
    if len(minutes) == 1 and (apart := _step(hours, 24)) and apart > 1:
        return f"at minute {minutes[0]} of every {apart} hours"
    if step == 1:
        often = "every minute"
    elif step and len(minutes) > 1:
        often = f"every {step} minutes"
    else:
        often = f"at {_counted('minute', _ranges(minutes))}"
        if len(hours) == 24:
            return f"{often} of every hour"
    return often if len(hours) == 24 else f"{often} of {_counted('hour', _ranges(hours))}"


def _step(numbers: Sequence[int], end: int) -> int | None:
    """Return the distance if the numbers go from 0 to `end` in equal steps, else None."""
    step = end // len(numbers)
    return step if list(numbers) == list(range(0, end, step)) else None


def _ranges(numbers: Iterable[int]) -> list[str]:
    """Return numbers with those that follow each other as ranges, such as "8 to 18"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    found: list[str] = []
    for span in spans:
        found += [f"{span[0]} to {span[-1]}"] if len(span) > 2 else map(str, span)
    return found


def _named(names: Sequence[str], chosen: Iterable[int]) -> str:
    """Return the names at some places, or "" for all of them."""
    places = sorted(chosen)
    if len(places) == len(names):
        return ""
    return _joined([
        " to ".join(names[int(place)] for place in span.split(" to ")) for span in _ranges(places)
    ])  # fmt: skip


def _counted(noun: str, numbers: Sequence[str]) -> str:
    return f"{noun}{'' if len(numbers) == 1 and ' ' not in numbers[0] else 's'} {_joined(numbers)}"


def _joined(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
