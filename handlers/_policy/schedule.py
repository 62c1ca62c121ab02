"""A schedule of periodic jobs as users write it, checked where it is written.

The database stores what `definition` returns, and maintenance processes plan by it. So a new option
needs no change of the schema: it is a key of `options`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from jobherd.handlers._policy import template
from jobherd.handlers._policy.cron import parse
from jobherd.handlers._policy.durations import Duration, at_least_zero, positive
from jobherd.handlers._policy.names import KIND, check_queue, check_whole, shown
from jobherd.handlers._policy.timing import EPOCH, LAST, Timing, zone_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAME_HINT: Final = "use lower-case letters, digits and _ . : - , at most 100 characters"
SHORTEST: Final = 1.0
"""Seconds. Instants that are closer belong in one job that loops."""
LONGEST: Final = 3e9
"""Seconds, about 95 years. The table of schedules rejects more."""
LARGEST: Final = 100_000
"""Bytes of a payload as JSON. The table of schedules rejects more."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When jobs of a kind are enqueued periodically.

    Example:
        >>> Schedule("feed-us", cron="*/5 8-18 * * *", tz="America/New_York", overlap="skip").tz
        'America/New_York'
    """

    name: str = field(kw_only=False)
    """Name of the schedule, unique in the database."""
    cron: str | None = None
    """Cron expression of five fields, such as "0 3 * * MON-FRI". Either this or `every` is given."""
    every: Duration | None = None
    """Fixed period, at least 1 s, counted from `starts_at` or from 1970."""
    tz: str = "UTC"
    """Time zone of the cron expression and of the templates, such as "Europe/Berlin"."""
    payload: Mapping[str, Any] = field(default_factory=dict)
    """Payload of the jobs. Text in it may have templates, such as "{scheduled_for:%Y-%m-%d}"."""
    queue: str | None = None
    """Queue of the jobs. Default: the handler's."""
    priority: int | None = None
    """Priority of the jobs. Default: the handler's."""
    misfire: Literal["skip", "one", "all"] = "one"
    """What happens with instants for which no job was enqueued for more than 60 s: none of them runs, one job
    stands for all of them, or each runs."""
    misfire_most: int = 100
    """With `misfire="all"`: most instants that run later. Earlier ones do not."""
    misfire_within: Duration = "1d"
    """With `misfire="all"`: age of an instant from which on it does not run."""
    overlap: Literal["allow", "skip", "queue", "replace"] = "allow"
    """What happens if the job of an earlier instant has not finished: run both, skip the instant, run it
    afterwards, or cancel the earlier job and then run."""
    jitter: Duration = 0
    """Each job is due up to this much later than its instant, by a number made from name and instant."""
    starts_at: datetime | None = None
    """No instant is earlier. A datetime with a time zone."""
    ends_at: datetime | None = None
    """No instant is later. A datetime with a time zone."""
    good_for: Duration | None = None
    """Duration after its instant from which on a job is not started any more: it expires."""
    pause_after: int | None = None
    """Number of failed runs in a row that pauses the schedule. Default: none does."""

    def __post_init__(self) -> None:
        """Check all fields. Raises ValueError or TypeError naming the field, the value and the fix."""
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check(value, field=f"{name} of schedule {shown(self.name)}"))
        if (self.cron is None) == (self.every is None):
            message = f"schedule {self.name!r} needs cron or every, and not both"
            raise ValueError(message)
        try:
            never = self.timing.next(self.starts_at or EPOCH) is None
        except ValueError as problem:
            message = f"schedule {self.name!r}: {problem}"
            raise ValueError(message) from None
        if never:
            message = f"schedule {self.name!r} has no instant between its starts_at and its ends_at"
            raise ValueError(message)

    @property
    def timing(self) -> Timing:
        """When it is due."""
        every = None if self.every is None else float(self.every)  # type: ignore[arg-type]  # checked: seconds
        return Timing(self.cron, every, self.tz, self.starts_at, self.ends_at)

    def definition(self, kind: str) -> dict[str, Any]:
        """Return what the database stores, as JSON values. kind: of the jobs."""
        options = {one: getattr(self, one) for one in OPTIONS if getattr(self, one) != _DEFAULTS[one]}
        return {
            "name": self.name,
            "kind": kind,
            "cron": self.cron,
            "every": self.every,
            "tz": self.tz,
            "payload": self.payload,
            "options": {
                name: value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
                for name, value in options.items()
            },
        }


def _choice(*allowed: str) -> Callable[..., str]:
    def check(value: object, *, field: str) -> str:
        if not isinstance(value, str) or value not in allowed:
            message = f"{field} must be one of {', '.join(map(repr, allowed))}, not {shown(value)}"
            raise ValueError(message)
        return value

    return check


def _name(value: object, *, field: str) -> str:
    del field
    return check_name(value)


def check_name(value: object) -> str:
    """Return `value` if it is a valid name of a schedule, or raise ValueError with the rule."""
    if not isinstance(value, str) or not KIND.fullmatch(value):
        message = f"schedule {shown(value)} is not a name like 'feed-eu': {NAME_HINT}"
        raise ValueError(message)
    return value


def _text(value: object, *, field: str) -> str:
    if not isinstance(value, str):
        message = f"{field} must be text, not {shown(value)}"
        raise TypeError(message)
    return value


def check_cron(value: object, *, field: str) -> str:
    """Return a valid cron expression. Raises TypeError, or ValueError with what is wrong."""
    text = _text(value, field=field)
    try:
        parse(text)
    except ValueError as problem:
        message = str(problem) if field == "cron" else f"{field}: {problem}"
        raise ValueError(message) from None
    return text


def check_every(value: object, *, field: str) -> float:
    """Return a period in seconds. Raises TypeError or ValueError."""
    period = positive(value, field=field)
    if period < SHORTEST:
        message = f"{field} must be at least {SHORTEST:g} s, not {shown(value)}"
        raise ValueError(message)
    if period >= LONGEST:
        message = f"{field} must be less than {LONGEST:,.0f} s, not {shown(value)}: use cron for rare instants"
        raise ValueError(message)
    return period


def check_tz(value: object, *, field: str) -> str:
    """Return the name of a known time zone. Raises TypeError or ValueError."""
    name = _text(value, field=field)
    zone_of(name)
    return name


def check_payload(value: object, *, field: str) -> dict[str, Any]:
    """Return a valid payload of a schedule, with its templates. Raises TypeError or ValueError."""
    if not isinstance(value, dict):
        message = f"{field} must be a dict, not {shown(value)}"
        raise TypeError(message)
    template.check(value, field=field)
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError) as problem:  # also a lone surrogate
        message = f"{field} must be valid JSON: {problem}"
        raise ValueError(message) from None
    if size > LARGEST:
        message = f"{field} has {size:,} bytes as JSON, and at most {LARGEST:,} are allowed: store the data elsewhere"
        raise ValueError(message)
    return value


def _moment(value: object, *, field: str) -> datetime:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        message = f"{field} must be a datetime with a time zone, not {shown(value)}"
        raise TypeError(message)
    if not EPOCH <= value < LAST:
        message = f"{field} must lie between the years 1970 and 9000, not at {value.isoformat()}"
        raise ValueError(message)
    return value


_CHECKS: Final[dict[str, Callable[..., Any]]] = {
    "name": _name,
    "cron": check_cron,
    "every": check_every,
    "tz": check_tz,
    "payload": check_payload,
    "queue": check_queue,
    "priority": check_whole,
    "misfire": _choice("skip", "one", "all"),
    "misfire_most": lambda value, *, field: check_whole(value, field=field, least=1),
    "misfire_within": positive,
    "overlap": _choice("allow", "skip", "queue", "replace"),
    "jitter": at_least_zero,
    "starts_at": _moment,
    "ends_at": _moment,
    "good_for": positive,
    "pause_after": lambda value, *, field: check_whole(value, field=field, least=1),
}
OPTIONS: Final = tuple(name for name in _CHECKS if name not in {"name", "cron", "every", "tz", "payload"})
"""The fields that the database stores as options."""
_DEFAULTS: Final = {one.name: one.default for one in fields(Schedule)} | {"misfire_within": 86400.0, "jitter": 0.0}


def check_schedules(value: object, *, field: str) -> tuple[Schedule, ...]:
    """Return the value of the option `schedules`. Raises TypeError or ValueError."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, Schedule) for one in value):
        message = f'{field} must be a list of Schedule, like [Schedule("feed-eu", every="15m")], not {shown(value)}'
        raise TypeError(message)
    names = [one.name for one in value]
    if twice := next((name for name in names if names.count(name) > 1), None):
        message = f"{field} has two schedules with the name {twice!r}: give one of them another name"
        raise ValueError(message)
    return tuple(value)
