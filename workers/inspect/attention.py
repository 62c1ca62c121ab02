"""Says in short sentences what needs an operator's attention.

The strip of the dashboard, `top` and `doctor` show the same items. Each gets the rows of
observe/list_attention and shows the items in this order. Must not query the database, and must not
know how an item is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jobherd.workers.inspect.phrases import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Row = Mapping[str, Any]

HOURS: Final = 24
"""Failures of the last hours that count."""
NAMED: Final = 3
"""Most items with a name, for each condition."""
PARAMETERS: Final[Mapping[str, object]] = {"most": 10_000, "names": NAMED, "since": HOURS * 3600.0, "late": 60.0}
"""The parameters of observe/list_attention."""
_SEVERE: Final = frozenset({"fleet", "failed", "flow", "kind", "queue", "schedule"})
"""What no one intends. The others can be a decision, or pass without one."""


@dataclass(frozen=True, slots=True)
class Item:
    """A condition that needs attention.

    what: fleet, failed, flow, retrying, paused, limit, kind, queue or schedule.
    text: the sentence, with its count.
    page: name of the dashboard's page that shows more.
    query: the query of its address.
    row: the id of the row on that page, or "".
    schedule: its name, if the page is that of one.
    """

    what: str
    text: str
    page: str
    query: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    schedule: str = ""
    row: str = ""

    @property
    def is_severe(self) -> bool:
        """Whether the condition is a fault, and not possibly intended."""
        return self.what in _SEVERE


def attention(rows: Iterable[Row]) -> list[Item]:
    """Return an item for each row, and one for the rest of each condition that has more rows.

    >>> rows = [{"what": "retrying", "scope": None, "name": None, "jobs": 25, "capped": False, "total": 1}]
    >>> [item.text for item in attention(rows)]
    ['25 jobs are retrying']
    """
    items: list[Item] = []
    listed = list(rows)
    for place, row in enumerate(listed):
        items.append(_item(row))
        is_last = place + 1 == len(listed) or listed[place + 1]["what"] != row["what"]
        if is_last and row["total"] > NAMED:
            items.append(_rest(row["what"], row["total"] - NAMED))
    return items


def _item(row: Row) -> Item:
    what, name = row["what"], row["name"]
    jobs = f"{row['jobs']:,}{'+' if row['capped'] else ''} {'job' if row['jobs'] == 1 else 'jobs'}"
    waits = f"{jobs} {'waits' if row['jobs'] == 1 else 'wait'}"
    called = "everything" if row["scope"] == "all" else f"{row['scope']} {name}"
    match what:
        case "fleet":
            return Item(what, "no worker runs, and jobs wait", "fleet")
        case "failed":
            return Item(what, f"{jobs} failed in the last {HOURS} h", "errors", {"window": ("day",)})
        case "flow":
            flows = f"{row['jobs']:,}{'+' if row['capped'] else ''} {'flow' if row['jobs'] == 1 else 'flows'}"
            return Item(what, f"{flows} failed in the last {HOURS} h", "flows", {"state": ("failed",)})
        case "retrying":
            return Item(what, f"{jobs} {'is' if row['jobs'] == 1 else 'are'} retrying", "jobs", {"state": (what,)})
        case "paused":
            return Item(what, f"{called} is paused: {waits}", "queues", _gate(row), row=_row(row))
        case "limit":
            return Item(what, f"{called} is at its limit: {waits}", "queues", _gate(row), row=_row(row))
        case "kind":
            return Item(what, f"no handler for kind {name}: {waits}", "jobs", {"kind": (name,)})
        case "queue":
            return Item(what, f"no worker serves queue {name}", "jobs", {"state": ("ready",), "queue": (name,)})
    return Item(what, f"schedule {name} does not run in time", "schedule", schedule=name)


def _rest(what: str, more: int) -> Item:
    match what:
        case "paused":
            return Item(what, f"{count(more, 'more pause', 'more pauses')} with a backlog", "queues")
        case "limit":
            return Item(what, f"{count(more, 'more limit', 'more limits')} reached", "queues")
        case "kind":
            waiting = {"state": ("ready", "retrying", "scheduled")}
            return Item(what, f"{count(more, 'more kind', 'more kinds')} without a handler", "jobs", waiting)
        case "queue":
            return Item(what, f"{count(more, 'more queue', 'more queues')} without a worker", "queues")
    return Item(what, f"{count(more, 'more schedule', 'more schedules')} not in time", "schedules")


def _gate(row: Row) -> dict[str, tuple[str, ...]]:
    """Return the query that fills in the form of the page of queues."""
    return {} if row["scope"] == "all" else {row["scope"]: (row["name"],)}


def _row(row: Row) -> str:
    return "" if row["scope"] == "all" else f"{row['scope']}-{row['name']}"
