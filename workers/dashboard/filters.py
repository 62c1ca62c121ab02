"""Represents the filter of the job list, in its address and in statements.

The whole filter is in the address, so that it can be shared. A duration in it stays one ("24h"
still means the last 24 hours tomorrow); a bulk action stores the timestamp instead. Pure: must not
query the database.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson

from jobherd.handlers._policy import durations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import tzinfo

    from starlette.datastructures import ImmutableMultiDict

LIVE: Final = ("running", "ready", "retrying", "scheduled", "blocked")
TROUBLED: Final = ("failed", "cancelled", "expired")
STATES: Final = (*LIVE, *TROUBLED, "completed")
"""In the words of the view `jobherd.jobs`."""
LONGEST: Final = 200
"""Characters of a field."""
TEXT_REACHES: Final = "24h"
"""How far back text is searched by default: no index covers the contents of payloads."""
_WORDS: Final = ("kind", "queue", "tenant", "code", "field", "since", "until", "tz")
SORTS: Final = ("", "end")
"""Newest first by id, or by the time of end (finished jobs only)."""
_FIELD: Final = re.compile(r"([^:\s]+):\s*(.+)")
_CLOCK: Final = re.compile(r"(?:(today|yesterday) ?)?(?:([01]?[0-9]|2[0-3]):([0-5][0-9]))?")
"""A day, a time of day, or both."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter; an empty field matches every job.

    states: any of these. kind, queue, tenant, code (of the error): exactly this.
    since, until: bounds of the time at which a job finished, else started, else is due. Each is a
        timestamp ("2026-01-31 08:00"), a day ("yesterday"), a time of day that has passed ("09:00"),
        both ("yesterday 09:00"), or a duration before now ("24h").
    tz: the time zone of the timestamps without an offset; default UTC.
    text: part of the payload, the error, the kind or the queue.
    field: the name of a payload field at any depth, a colon and its value: a number, true, false, null
        or a text. With a * at its end it is the beginning of a text or number.
    sort: of `SORTS`; it selects no job.

    >>> Wanted(states=("failed",), since="24h").query()
    'state=failed&since=24h'
    """

    states: tuple[str, ...] = ()
    kind: str = ""
    queue: str = ""
    tenant: str = ""
    code: str = ""
    since: str = ""
    until: str = ""
    tz: str = ""
    text: str = ""
    field: str = ""
    sort: str = ""

    @classmethod
    def read(cls, given: ImmutableMultiDict[str, str]) -> tuple[Wanted, dict[str, str]]:
        """Return the filter of an address or a form, and a message for each invalid field.

        Invalid fields are left out of the filter.
        """
        problems: dict[str, str] = {}
        states = given.getlist("state")
        if unknown := [state for state in states if state not in STATES]:
            problems["state"] = f"“{unknown[0][:40]}” is not a state: choose one of {', '.join(STATES)}."
        fields = {name: given.get(name, "").strip() for name in _WORDS} | {"text": given.get("q", "").strip()}
        for name, text in fields.items():
            if "\0" in text or len(text) > LONGEST:
                problems["q" if name == "text" else name] = (
                    f"“{name}” takes at most {LONGEST} characters, none of them a NUL."
                )
                fields[name] = ""
        if _zone(fields["tz"]) is UTC or not (fields["since"] or fields["until"]):
            fields["tz"] = ""
        if fields["field"] and not _FIELD.fullmatch(fields["field"]):
            problems["field"] = "Write a payload field as “order_id:7”, or “order_id:7*” for all that begin so."
            fields["field"] = ""
        for name in ("since", "until"):
            try:
                _moment(fields[name], datetime.now(UTC), name, _zone(fields["tz"]))
            except ValueError as problem:
                problems[name] = f"{problem}."
                fields[name] = ""
        chosen = tuple(state for state in STATES if state in states)
        sort = given.get("sort", "")
        fields["sort"] = sort if sort in SORTS else ""
        return cls(() if len(chosen) == len(STATES) else chosen, **fields), problems

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Wanted:
        """Return the filter that `document` was made of."""
        return cls(**{**document, "states": tuple(document.get("states", ()))})

    def document(self) -> dict[str, object]:
        """Return the filter as a document for JSON."""
        return {name: list(value) if name == "states" else value for name, value in asdict(self).items() if value}

    @property
    def is_everything(self) -> bool:
        """Whether the filter matches every job."""
        return replace(self, sort="") == Wanted()

    @property
    def reads_payloads(self) -> bool:
        """Whether payloads are searched, which no index covers."""
        return bool(self.text or self.field)

    @property
    def is_relative(self) -> bool:
        """Whether the filter depends on the current time."""
        return (
            bool(self.reads_payloads and not self.since)
            or any(_is_span(text) for text in (self.since, self.until))
            or any(_CLOCK.fullmatch(text.lower()) for text in (self.since, self.until) if text)
        )

    def fixed(self, now: datetime) -> Wanted:
        """Return the same filter with timestamps instead of durations."""
        since, until = ("" if moment is None else moment.isoformat() for moment in self._bounds(now))
        return replace(self, since=since, until=until, tz="")

    def among(self, states: Iterable[str]) -> Wanted | None:
        """Return the same filter limited to these states; None if it wants none of them."""
        allowed = tuple(states)
        left = tuple(state for state in self.states or STATES if state in allowed)
        return replace(self, states=left) if left else None

    def pairs(self) -> list[tuple[str, str]]:
        """Return the filter as the fields of a form."""
        words = [("q" if name == "text" else name, getattr(self, name)) for name in (*_WORDS, "text", "sort")]
        return [("state", state) for state in self.states] + [(name, value) for name, value in words if value]

    def query(self, **more: object) -> str:
        """Return the filter as a query string, followed by `more`; None values are left out."""
        return urlencode([*self.pairs(), *((name, str(value)) for name, value in more.items() if value is not None)])

    def parameters(self, now: datetime) -> dict[str, object]:
        """Return the filter as parameters of the statements `dashboard/list_*`."""
        since, until = self._bounds(now)
        escaped = self.text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        return {
            "states": list(self.states) or None,
            "kind": self.kind or None,
            "queue": self.queue or None,
            "tenant": self.tenant or None,
            "code": self.code or None,
            "since": since,
            "until": until,
            "text": f"%{escaped}%" if self.text else None,
            **_field(self.field),
        }

    def _bounds(self, now: datetime) -> tuple[datetime | None, datetime | None]:
        since = self.since or (TEXT_REACHES if self.reads_payloads else "")
        zone = _zone(self.tz)
        return _moment(since, now, "since", zone), _moment(self.until, now, "until", zone)


def _field(text: str) -> dict[str, str | None]:
    r"""Return the regular expression of a payload field, and a text that every match contains.

    The payload is compared as it was written: `#>>` raises for a payload with a NUL, which JSON may hold.

    >>> _field("id:7")["field"]
    '"id"\\s*:\\s*("7"|7)\\s*[],}]'
    """
    if not (found := _FIELD.fullmatch(text)):
        return {"field": None, "needle": None}
    name, value = found.groups()
    begins = value.endswith("*")
    value = value.removesuffix("*")
    names = {_escaped(orjson.dumps(name).decode()), _escaped(json.dumps(name))}
    texts = {_escaped(dumped[1:-1]) for dumped in (orjson.dumps(value).decode(), json.dumps(value))}
    ends = "" if begins else '"'
    values = [f'"{one}{ends}' for one in sorted(texts)]
    values += [_escaped(value)] if re.fullmatch(r"-?[0-9][-+.0-9eE]*|true|false|null", value) else []
    end = "" if begins else r"\s*[],}]"
    needle = f'"{name}"' if re.fullmatch(r"[\w.-]+", name, re.ASCII) else '"'
    return {"field": rf"({'|'.join(sorted(names))})\s*:\s*({'|'.join(values)}){end}", "needle": needle}


def _escaped(text: str) -> str:
    """Return a text as a regular expression of PostgreSQL that matches it alone."""
    return re.sub(r"[!#-/:-@\[-^`{-~]", lambda found: f"\\{found[0]}", text)


def _is_span(text: str) -> bool:
    try:
        return bool(text) and durations.seconds(text, field="it") is not None
    except ValueError:
        return False


def _zone(name: str) -> tzinfo:
    """Return a time zone by its name; UTC for one that this host does not know."""
    try:
        return ZoneInfo(name) if name and name != "UTC" else UTC
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return UTC


def _moment(text: str, now: datetime, field: str, zone: tzinfo) -> datetime | None:
    if not text:
        return None
    if _is_span(text):
        try:
            return now - timedelta(seconds=durations.seconds(text, field=field))
        except OverflowError:
            pass
    if clock := _CLOCK.fullmatch(text.lower()):
        word, hour, minute = clock.groups()
        local = now.astimezone(zone)
        then = local.replace(hour=int(hour or 0), minute=int(minute or 0), second=0, microsecond=0)
        is_before = word == "yesterday" or (not word and then > local)
        return (then - timedelta(days=1) if is_before else then).astimezone(UTC)
    try:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo else found.replace(tzinfo=zone)
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        message = f"{field} is not a time: write “24h” for 24 hours ago, “yesterday”, “09:00”, or “2026-01-31 08:00”"
        raise ValueError(message) from None
